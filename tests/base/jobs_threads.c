/*
 * The pool under the thread sanitizer: the owner puts, abandons and delivers jobs that pause at any
 * moment, while the threads run them.
 */

#include <assert.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/jobs.h"
#include "base/rng.h"

#define JOBS 200
#define ROUNDS 30000

struct piece {
    struct job job;
    struct rng rng;
    /* written by its thread, read after done() */
    uint64_t sum;
    bool out, abandoned;
    int result;
};

static struct piece piece[JOBS];
static uint64_t n_done, n_ran;

static void run(struct job *j) {
    struct piece *p = CONTAINER_OF(j, struct piece, job);

    p->sum = 1;
    for (uint64_t n = rng_below(&p->rng, 4000); n > 0 && p->result == 0; n--) {
        p->sum += rng_next(&p->rng) >> 32;
        if (n % 16 == 0)
            p->result = job_pause();
    }
}

static void done(struct job *j) {
    struct piece *p = CONTAINER_OF(j, struct piece, job);

    assert(p->out && (p->sum > 0 || p->abandoned) && (p->result == 0 || p->abandoned));
    p->out = false;
    n_done++;
    n_ran += p->sum > 0;
}

static void wake(void *ctx) {
    atomic_fetch_add_explicit((atomic_uint *)ctx, 1, memory_order_relaxed);
}

/* A clock on which every look is a slice later, so that every call of job_pause() takes turns. */
static int64_t hurry(struct clock *c) {
    static atomic_llong ns;

    (void)c;
    return atomic_fetch_add_explicit(&ns, JOBS_SLICE_NS / 2, memory_order_relaxed);
}

int main(void) {
    static struct clock clock = {hurry};
    atomic_uint wakes = 0;
    struct jobs_opts o = {.name = "test",
                          .n_running = 3,
                          .n_threads = 12,
                          .clock = &clock,
                          .ctx = &wakes,
                          .wake = wake};
    struct rng rng = {1};
    struct jobs *pool = NULL;
    uint64_t n_put = 0;
    int r = jobs_new(&pool, &o);

    assert(r == 0);
    for (int i = 0; i < ROUNDS; i++) {
        struct piece *p = &piece[rng_below(&rng, JOBS)];

        if (!p->out) {
            *p = (struct piece){.rng = {rng_next(&rng)}, .out = true};
            p->job = (struct job){.run = run,
                                  .done = done,
                                  .tenant = (uint32_t)rng_below(&rng, 9),
                                  .weight = 1 + (double)rng_below(&rng, 3),
                                  .background = rng_below(&rng, 9) == 0};
            r = jobs_submit(pool, &p->job);
            assert(r == 0);
            n_put++;
        } else if (rng_below(&rng, 30) == 0) {
            p->abandoned = true;
            jobs_abandon(pool, &p->job);
        }
        if (rng_below(&rng, 4) == 0)
            jobs_deliver(pool, rng_below(&rng, 2) ? 0 : JOBS_WITHOUT_BUDGET);
        if (rng_below(&rng, 64) == 0)
            usleep(200);
    }
    while (jobs_n(pool) > 0) {
        usleep(100);
        jobs_deliver(pool, JOBS_WITHOUT_BUDGET);
    }
    jobs_free(pool);
    assert(n_done == n_put && n_ran > n_put / 16 && wakes > 0);
    printf("ok: %llu jobs, %llu ran\n", (unsigned long long)n_done, (unsigned long long)n_ran);
    return 0;
}
