/*
 * How long planning takes with 256 requests running: that time is added to every step, or hidden
 * behind the one under way. Not a test: prints a table. The median over fresh copies of the same
 * input.
 *
 * usage: bench_plan [SECONDS-PER-ROW]
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "scheduler/plan.h"

enum { RUNNING = 256, WAITING = 32, HASHES = 512, PAGE = 32 };

struct bench {
    struct plan_req input[RUNNING + WAITING], req[RUNNING + WAITING];
    uint32_t scratch[RUNNING + WAITING];
    uint64_t hash[RUNNING + WAITING][HASHES];
    struct cost cost;
    struct rng rng;
    struct plan plan;
};

/* A prompt of 16k tokens of which @n_common pages are those of all others; @n_computed is done. */
static void fill_req(struct bench *b, uint32_t i, uint32_t n_common, uint32_t n_tokens,
                     uint32_t n_computed) {
    for (uint32_t k = 0; k < HASHES; k++)
        b->hash[i][k] = k < n_common ? k : rng_next(&b->rng);
    b->input[i] = (struct plan_req){
        .n_tokens = n_tokens,
        .n_computed = n_computed,
        .n_stored = n_computed,
        .n_pages = (n_computed + PAGE - 1) / PAGE,
        .n_exclusive = (n_computed + PAGE - 1) / PAGE,
        .n_target = n_tokens + 300,
        .n_share = MIN(n_tokens - 1, HASHES * PAGE),
        .n_hashes = MIN((n_tokens - 1) / PAGE, HASHES),
        .hash = b->hash[i],
    };
}

static void setup(struct bench *b, uint32_t n_prefill, uint32_t n_waiting, uint32_t n_available) {
    cost_init(&b->cost);
    for (uint32_t i = 0; i < 300; i++) {
        struct cost_shape s = {0};

        cost_add(&s, rng_below(&b->rng, 16000), 1 + rng_below(&b->rng, 1000));
        cost_add(&s, rng_below(&b->rng, 16000), 1);
        cost_learn(&b->cost, &s, 5000000 + s.rows * INT64_C(30000));
    }
    for (uint32_t i = 0; i < RUNNING; i++) {
        uint32_t n = 8000 + rng_below(&b->rng, 8000);
        bool prefill = i >= RUNNING - n_prefill;

        fill_req(b, i, 100, n, prefill ? rng_below(&b->rng, n / PAGE) * PAGE : n - 1);
    }
    for (uint32_t i = RUNNING; i < RUNNING + WAITING; i++)
        fill_req(b, i, 100, 8000 + rng_below(&b->rng, 8000), 0);
    b->plan = (struct plan){
        .req = b->req,
        .scratch = b->scratch,
        .n_running = RUNNING,
        .n_waiting = n_waiting,
        .page_tokens = PAGE,
        .n_available = n_available,
        .max_rows = 4096,
        .max_seqs = RUNNING + WAITING,
        .max_bypass = 8,
        .itl_ns = 50000000,
        .max_step_ns = 200000000,
        .cost = &b->cost,
    };
}

static void draft(struct bench *b) {
    static float survival[RUNNING][16];

    for (uint32_t i = 0; i < RUNNING; i++) {
        float s = 1;

        for (uint32_t k = 0; k < 16; k++)
            survival[i][k] = s *= 0.5F + 0.5F * (float)rng_unit(&b->rng);
        b->input[i].n_draft_max = 16;
        b->input[i].survival = survival[i];
    }
    b->plan.draft_slower = 1;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static void measure(struct bench *b, const char *name, double seconds) {
    static int64_t sample[10000];
    int64_t spent = 0, budget = (int64_t)(seconds * 1e9);
    size_t n = 0;

    for (; spent < budget && n < ARRAY_SIZE(sample); n++) {
        memcpy(b->req, b->input, sizeof(b->req));
        int64_t begin = clock_now(clock_monotonic());
        plan_step(&b->plan);
        sample[n] = clock_now(clock_monotonic()) - begin;
        spent += sample[n];
    }
    qsort(sample, n, sizeof(*sample), by_value);
    printf("%-52s %7.1f us   99 %%: %7.1f us   %u rows, %u sequences\n", name,
           (double)sample[n / 2] / 1e3, (double)sample[n * 99 / 100] / 1e3, b->plan.n_rows,
           b->plan.n_seqs);
}

int main(int argc, char **argv) {
    static struct bench b = {.rng = {1}};
    double seconds = argc > 1 ? atof(argv[1]) : 0.2;

    setup(&b, 0, 0, 100000);
    measure(&b, "256 decode", seconds);
    draft(&b);
    measure(&b, "256 decode, all with a draft of 16", seconds);
    setup(&b, 4, 0, 100000);
    measure(&b, "252 decode, 4 prefill", seconds);
    setup(&b, 4, WAITING, 100000);
    measure(&b, "252 decode, 4 prefill, 32 waiting, room for some", seconds);
    setup(&b, 64, 0, 100000);
    measure(&b, "192 decode, 64 prefill", seconds);
    setup(&b, RUNNING, WAITING, 100000);
    measure(&b, "256 prefill with a common beginning, 32 waiting", seconds);
    setup(&b, 4, WAITING, 3);
    measure(&b, "252 decode, 4 prefill, no pages: preemption", seconds);
    return 0;
}
