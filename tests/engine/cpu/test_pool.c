/* Tests the pool: every item is processed exactly once; data written before a round is visible in
 * it, and data written in it after it; sleeping threads wake up; it works without additional
 * threads. */

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <time.h>

#include "engine/cpu/cpu.h"

enum { ITEMS = 64, ROUNDS = 20000 };

struct round {
    /* plain: the pool must order them */
    uint32_t value, done[ITEMS];
    _Atomic uint32_t next, n_bad, n_calls;
    uint32_t n_threads;
};

static void take(void *ctx, uint32_t thread) {
    struct round *r = ctx;
    uint32_t i;

    atomic_fetch_add(&r->n_calls, 1);
    if (thread >= r->n_threads)
        atomic_fetch_add(&r->n_bad, 1);
    while ((i = atomic_fetch_add(&r->next, 1)) < ITEMS) {
        if (r->done[i] != r->value - 1)
            atomic_fetch_add(&r->n_bad, 1);
        r->done[i] = r->value;
    }
}

static void run_rounds(struct pool *p, struct round *r, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        r->value++;
        atomic_store(&r->next, 0);
        atomic_store(&r->n_calls, 0);
        pool_run(p, take, r);
        for (uint32_t j = 0; j < ITEMS; j++)
            cr_assert(r->done[j] == r->value, "round %u item %u", r->value, j);
        cr_assert(atomic_load(&r->n_calls) >= 1 && atomic_load(&r->n_calls) <= r->n_threads);
    }
    cr_assert(atomic_load(&r->n_bad) == 0);
}

static void check(uint32_t n_threads, uint32_t rounds) {
    struct round r = {.n_threads = n_threads};
    struct pool *p;

    cr_assert(pool_new(&p, n_threads) == 0);
    cr_assert(pool_n_threads(p) == n_threads);
    run_rounds(p, &r, rounds);
    pool_free(p);
}

Test(cpu_pool, every_item_is_done_once_a_round) {
    check(1, 1000);
    check(2, ROUNDS);
    check(5, ROUNDS / 10);
}

Test(cpu_pool, sleepers_do_not_stop_a_round) {
    struct round r = {.n_threads = 3};
    struct pool *p;

    cr_assert(pool_new(&p, 3) == 0);
    for (int i = 0; i < 20; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL); /* by now they sleep */
        run_rounds(p, &r, 5);
    }
    pool_free(p);
}

Test(cpu_pool, starts_and_ends_at_once) {
    for (uint32_t i = 1; i <= 40; i++) {
        struct pool *p;

        cr_assert(pool_new(&p, i % 8 + 1) == 0);
        cr_assert(pool_free(p) == NULL);
    }
    cr_assert(pool_free(NULL) == NULL);
}

Test(cpu_pool, counts_the_usable_cpus) {
    struct pool *p;

    cr_assert(pool_new(&p, 0) == 0);
    cr_assert(pool_n_threads(p) >= 1);
    pool_free(p);
}
