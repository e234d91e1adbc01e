/*
 * Chunks of 256 KiB are handed out one by one, because with fixed shares a core that is taken away
 * for a moment would delay the whole measurement. The threads that read the buffer also touch it
 * first, in huge pages if the kernel provides them, because small pages can cost a fifth. Each
 * thread keeps four independent sums, so that it waits for loads and not for additions.
 */

#include "cmd/bench_bandwidth.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/util.h"
#include "cmd/bench_clock.h"

#define CHUNK ((size_t)256 << 10)
#define THREADS_MAX 1024u

/* State shared by all threads, which begin at `go`, when n_ready is n_threads, and end at
 * `stop`. */
struct meter {
    uint64_t *data;
    size_t n_chunks;
    atomic_size_t next;
    atomic_uint n_ready;
    atomic_bool go, stop;
    uint32_t n_threads;
};

struct reader {
    struct meter *meter;
    pthread_t thread;
    uint32_t number;
    /* number of chunks read */
    uint64_t n_read, sum;
};

static uint64_t read_chunk(const uint64_t *p) {
    uint64_t a = 0, b = 0, c = 0, d = 0;

    for (size_t i = 0; i < CHUNK / 8; i += 8) {
        a += p[i] ^ p[i + 1];
        b += p[i + 2] ^ p[i + 3];
        c += p[i + 4] ^ p[i + 5];
        d += p[i + 6] ^ p[i + 7];
    }
    return a + b + c + d;
}

/* Runs a thread: touches its part of the buffer, then reads chunks from go to stop. */
static void *bandwidth_read_all(void *ctx) {
    struct reader *r = ctx;
    struct meter *m = r->meter;

    for (size_t k = r->number; k < m->n_chunks; k += m->n_threads)
        for (size_t i = 0; i < CHUNK / 8; i += 512) /* touches a word of every page */
            m->data[k * (CHUNK / 8) + i] = k;
    atomic_fetch_add(&m->n_ready, 1);
    while (!atomic_load(&m->go))
        ;
    while (!atomic_load_explicit(&m->stop, memory_order_relaxed)) {
        size_t k = atomic_fetch_add_explicit(&m->next, 1, memory_order_relaxed);

        r->sum += read_chunk(m->data + k % m->n_chunks * (CHUNK / 8));
        r->n_read++;
    }
    return NULL;
}

/* Lets the threads read for @seconds. Returns bytes per second. */
static double bandwidth_drive(struct meter *m, double seconds) {
    while (atomic_load(&m->n_ready) < m->n_threads)
        usleep(1000);
    int64_t start = bench_now_ns();
    size_t before = atomic_load(&m->next);
    atomic_store(&m->go, true);
    usleep((useconds_t)(seconds * 1e6));
    size_t after = atomic_load(&m->next);
    int64_t end = bench_now_ns();
    atomic_store(&m->stop, true);
    return (double)(after - before) * (double)CHUNK / ((double)(end - start) * 1e-9);
}

int bandwidth_measure(uint32_t n_threads, uint64_t bytes, double seconds, double *out) {
    struct meter m = {.n_chunks = bytes / CHUNK, .n_threads = MIN(n_threads, THREADS_MAX)};
    CLEANUP(freep) struct reader *readers = calloc(m.n_threads, sizeof(*readers));
    volatile uint64_t keep = 0;
    uint32_t n = 0;
    double rate = 0;

    assert(m.n_chunks > 0 && seconds > 0);
    if (!readers)
        return -ENOMEM;
    m.data =
        mmap(NULL, m.n_chunks * CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m.data == MAP_FAILED)
        return -ENOMEM;
    madvise(m.data, m.n_chunks * CHUNK, MADV_HUGEPAGE);
    while (n < m.n_threads) {
        readers[n] = (struct reader){.meter = &m, .number = n};
        if (pthread_create(&readers[n].thread, NULL, bandwidth_read_all, &readers[n]) != 0)
            break;
        n++;
    }
    if (n == m.n_threads) {
        rate = bandwidth_drive(&m, seconds);
    } else { /* ends the threads that exist */
        atomic_store(&m.stop, true);
        atomic_store(&m.go, true);
    }
    for (uint32_t i = 0; i < n; i++) {
        pthread_join(readers[i].thread, NULL);
        keep += readers[i].sum; /* uses the sums, or the compiler could leave out the reading */
    }
    munmap(m.data, m.n_chunks * CHUNK);
    if (n < m.n_threads)
        return -EAGAIN;
    *out = rate;
    return 0;
}

uint64_t bandwidth_buffer(void) {
    long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t spare = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 4 : 0;

    return MAX(MIN(spare, (uint64_t)1 << 30), (uint64_t)64 << 20) / CHUNK * CHUNK;
}
