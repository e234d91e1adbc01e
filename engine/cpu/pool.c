/*
 * pool - fork-join threads. A call of pool_run() is a round. A step of the model has some hundred
 * rounds, microseconds apart, so a sleeping thread would wake too late for most of them. But a
 * server is idle most of the day, and a thread that spins all the time would waste a core. Both the
 * caller and the workers therefore spin for about 0.1 ms, and then sleep on a futex.
 *
 * The threads of a round take items of work one by one, so a round can complete with the caller
 * alone. The caller opens a gate, works, closes the gate when there are no more items, and waits
 * only for the threads that entered. A thread that sleeps or has lost its core does not delay a
 * round; the other threads do its part of the work.
 *
 *   gate: | round number (32 bits) | closed (1 bit) | threads that entered (31 bits) |
 *
 *   caller: sets fn, left = 0;                            worker:
 *           opens the gate with the next round number --> gate++ unless it is closed;
 *           runs fn; closes the gate;                     runs fn; left++
 *           waits until left == threads that entered <---
 *
 * No wake-up is missed: a thread that goes to sleep announces this before the futex compares the
 * number that it waits for; the thread that wakes it changes this number before it looks for
 * sleepers; and these operations are sequentially consistent.
 */

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cpus.h"
#include "base/thread.h"
#include "engine/cpu/cpu.h"

/* SPINS: checks of a number before a thread sleeps. */
enum { SPINS = 4000, THREADS_MAX = 1024 };

#define CLOSED 0x80000000u

/* Invariants: the gate is closed between rounds; fn and ctx change only while it is closed; left <=
 * the threads that entered. */
struct pool {
    _Atomic uint64_t gate __attribute__((aligned(64)));
    /* futex on which workers sleep; counts calls of ring() */
    _Atomic uint32_t bell;
    /* workers that sleep, or are about to */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    pool_fn fn;
    void *ctx;
    /* futex on which the caller sleeps: workers that have returned from fn in this round */
    _Atomic uint32_t left __attribute__((aligned(64)));
    _Atomic bool caller_sleeps;
    uint32_t n_threads, n_started;
    struct worker {
        pthread_t thread;
        struct pool *pool;
        uint32_t index;
    } * workers;
};

/* Sleeps while *word equals @seen; may return early. */
static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Executes the instruction that tells the core that this thread spins. */
static void pool_relax(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* Waits until the bell differs from @seen, its value when it was read last. Returns its value. */
static uint32_t await_bell(struct pool *p, uint32_t seen) {
    uint32_t bell;

    for (uint32_t i = 0; i < SPINS; i++) {
        bell = atomic_load_explicit(&p->bell, memory_order_acquire);
        if (bell != seen)
            return bell;
        pool_relax();
    }
    atomic_fetch_add(&p->sleepers, 1);
    while ((bell = atomic_load(&p->bell)) == seen)
        futex_wait(&p->bell, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    return bell;
}

/* Enters the open round and sets *@last to its number. Returns false if the gate is closed, or if
 * the open round is *@last, which this thread has entered before. */
static bool come_in(struct pool *p, uint32_t *last) {
    uint64_t gate = atomic_load(&p->gate);

    while (!(gate & CLOSED) && (uint32_t)(gate >> 32) != *last)
        if (atomic_compare_exchange_weak(&p->gate, &gate, gate + 1)) {
            *last = (uint32_t)(gate >> 32);
            return true;
        }
    return false;
}

/* Runs a worker thread. The gate opens before the bell rings, so a worker may enter a round because
 * of an earlier bell, and may find the gate closed when it hears the bell of a round. */
static void *work(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    uint32_t bell = 0, round = 0;

    for (;;) {
        bell = await_bell(p, bell);
        if (atomic_load(&p->stop))
            return NULL;
        if (!come_in(p, &round))
            continue;
        p->fn(p->ctx, w->index);
        atomic_fetch_add(&p->left, 1);
        if (atomic_load(&p->caller_sleeps))
            futex_wake(&p->left);
    }
}

/* Waits until the @n threads that entered the round have returned from fn. */
static void await_workers(struct pool *p, uint32_t n) {
    uint32_t left;

    assert(n < p->n_threads);
    for (uint32_t i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&p->left, memory_order_acquire) == n)
            return;
        pool_relax();
    }
    atomic_store(&p->caller_sleeps, true);
    while ((left = atomic_load(&p->left)) != n)
        futex_wait(&p->left, left);
    atomic_store(&p->caller_sleeps, false);
}

/* Wakes the workers, after the gate was opened or p->stop was set. */
static void ring(struct pool *p) {
    atomic_fetch_add(&p->bell, 1);
    if (atomic_load(&p->sleepers) > 0)
        futex_wake(&p->bell);
}

void pool_run(struct pool *p, pool_fn fn, void *ctx) {
    if (p->n_threads == 1) {
        fn(ctx, 0);
        return;
    }
    uint64_t gate = atomic_load(&p->gate), round = (gate >> 32) + 1;

    assert(gate & CLOSED); /* fn must not call pool_run() */
    p->fn = fn;
    p->ctx = ctx;
    atomic_store(&p->left, 0);
    atomic_store(&p->gate, round << 32);
    ring(p);
    fn(ctx, 0);
    await_workers(p, (uint32_t)atomic_fetch_or(&p->gate, CLOSED));
}

/* Context of run_items(). */
struct items {
    each_fn fn;
    void *ctx;
    uint32_t n;
    /* the first item that is not taken */
    _Atomic uint32_t next;
};

/* Implements pool_fn: calls the function for the items that this thread takes. */
static void run_items(void *ctx, uint32_t thread) {
    struct items *w = ctx;
    uint32_t i;

    while ((i = atomic_fetch_add(&w->next, 1)) < w->n)
        w->fn(w->ctx, i, thread);
}

void pool_each(struct pool *p, uint32_t n, each_fn fn, void *ctx) {
    struct items w = {.fn = fn, .ctx = ctx, .n = n};

    if (n <= 1)
        run_items(&w, 0);
    else
        pool_run(p, run_items, &w);
}

int pool_new(struct pool **out, uint32_t n_threads) {
    struct pool *p = aligned_alloc(64, sizeof(*p));

    if (!p)
        return -ENOMEM;
    *p = (struct pool){
        .gate = CLOSED,
        .n_threads = MIN(n_threads ? n_threads : cpus_usable(), THREADS_MAX),
    };
    p->workers = calloc(p->n_threads, sizeof(*p->workers));
    if (!p->workers) {
        pool_free(p);
        return -ENOMEM;
    }
    for (uint32_t i = 1; i < p->n_threads; i++) {
        struct worker *w = &p->workers[i];

        w->pool = p;
        w->index = i;
        int r = thread_start(&w->thread, NULL, work, w);
        if (r < 0) {
            pool_free(p);
            return r;
        }
        p->n_started = i;
    }
    *out = p;
    return 0;
}

struct pool *pool_free(struct pool *p) {
    if (!p)
        return NULL;
    assert(atomic_load(&p->gate) & CLOSED); /* no round is open */
    atomic_store(&p->stop, true);
    ring(p);
    for (uint32_t i = 1; i <= p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    free(p->workers);
    free(p);
    return NULL;
}

uint32_t pool_n_threads(const struct pool *p) {
    return p->n_threads;
}
