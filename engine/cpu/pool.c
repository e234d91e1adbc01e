#include "engine/cpu/cpu.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * Fork-join threads. A step has some hundred forks, microseconds apart, so that a sleeping thread would
 * come too late; but a server is idle most of the day, so that a spinning one would burn a core. Both sides
 * therefore spin for a bounded time (about 0.1 ms), then sleep on a futex.
 *
 *   caller: fn; pending = n - 1; round++ ---------> workers: see a new round, run fn, pending--
 *           runs fn itself; waits for pending == 0 <--------
 *
 * Sleepers announce themselves before they look a last time (the futex compares), wakers change the
 * number before they look for sleepers: with sequentially consistent operations none is missed.
 */

enum { SPINS = 4000, THREADS_MAX = 1024 };

struct pool {
    _Atomic uint32_t round __attribute__((aligned(64)));
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    pool_fn fn;
    void *ctx;
    _Atomic uint32_t pending __attribute__((aligned(64)));
    _Atomic bool caller_sleeps;
    uint32_t n_threads, n_started;
    struct worker {
        pthread_t thread;
        struct pool *pool;
        uint32_t index;
    } * workers;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void relax(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* Waits until the round is not @seen. */
static uint32_t await_round(struct pool *p, uint32_t seen) {
    uint32_t round;

    for (uint32_t i = 0; i < SPINS; i++) {
        round = atomic_load_explicit(&p->round, memory_order_acquire);
        if (round != seen)
            return round;
        relax();
    }
    atomic_fetch_add(&p->sleepers, 1);
    while ((round = atomic_load(&p->round)) == seen)
        futex_wait(&p->round, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    return round;
}

static void *work(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    uint32_t round = 0;

    for (;;) {
        round = await_round(p, round);
        if (atomic_load(&p->stop))
            return NULL;
        p->fn(p->ctx, w->index);
        if (atomic_fetch_sub(&p->pending, 1) == 1 && atomic_load(&p->caller_sleeps))
            futex_wake(&p->pending);
    }
}

static void await_workers(struct pool *p) {
    uint32_t left;

    for (uint32_t i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&p->pending, memory_order_acquire) == 0)
            return;
        relax();
    }
    atomic_store(&p->caller_sleeps, true);
    while ((left = atomic_load(&p->pending)) != 0)
        futex_wait(&p->pending, left);
    atomic_store(&p->caller_sleeps, false);
}

static void start_round(struct pool *p) {
    atomic_fetch_add(&p->round, 1);
    if (atomic_load(&p->sleepers) > 0)
        futex_wake(&p->round);
}

void pool_run(struct pool *p, pool_fn fn, void *ctx) {
    if (p->n_threads > 1) {
        p->fn = fn;
        p->ctx = ctx;
        atomic_store(&p->pending, p->n_threads - 1);
        start_round(p);
    }
    fn(ctx, 0);
    if (p->n_threads > 1)
        await_workers(p);
}

static uint32_t usable_cpus(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    return n > 0 ? (uint32_t)n : 1;
}

int pool_new(struct pool **out, uint32_t n_threads) {
    struct pool *p = aligned_alloc(64, sizeof(*p));

    if (!p)
        return -ENOMEM;
    *p = (struct pool){.n_threads = MIN(n_threads ? n_threads : usable_cpus(), THREADS_MAX)};
    p->workers = calloc(p->n_threads, sizeof(*p->workers));
    if (!p->workers) {
        pool_free(p);
        return -ENOMEM;
    }
    for (uint32_t i = 1; i < p->n_threads; i++) {
        struct worker *w = &p->workers[i];

        w->pool = p;
        w->index = i;
        int r = pthread_create(&w->thread, NULL, work, w);
        if (r) {
            pool_free(p);
            return -r;
        }
        p->n_started = i;
    }
    *out = p;
    return 0;
}

struct pool *pool_free(struct pool *p) {
    if (!p)
        return NULL;
    atomic_store(&p->stop, true);
    start_round(p);
    for (uint32_t i = 1; i <= p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    free(p->workers);
    free(p);
    return NULL;
}

uint32_t pool_n_threads(const struct pool *p) {
    return p->n_threads;
}
