/* The number of drafted rows in a step and their distribution. test_plan.c checks the properties of
 * every plan. */

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "base/util.h"
#include "scheduler/plan.h"

enum { MAX_REQS = 12, MAX_DRAFT = 16 };

static struct plan p;
static struct plan_req req[MAX_REQS];
static uint32_t scratch[MAX_REQS];
static float survival[MAX_REQS][MAX_DRAFT];
static struct cost cost;

/* Sets up a machine of @fixed_ms per step and @row_ms per row. */
static void setup(double fixed_ms, double row_ms) {
    struct rng r = {1};

    cost_init(&cost);
    for (int i = 0; i < 600; i++) {
        struct cost_shape s = {0};
        for (uint32_t k = 1 + rng_below(&r, i % 4 ? 4 : 20); k > 0; k--)
            cost_add(&s, 50 + rng_below(&r, 100), i % 3 ? 1 : 1 + rng_below(&r, 12));
        if (i % 2)
            cost_add(&s, rng_below(&r, 100), 1 + rng_below(&r, 200));
        cost_learn(&cost, &s, (int64_t)((fixed_ms + row_ms * s.rows) * 1e6));
    }
    p = (struct plan){
        .req = req,
        .scratch = scratch,
        .page_tokens = 16,
        .n_available = 1000,
        .max_rows = 512,
        .max_seqs = 32,
        .itl_ns = 50000000,
        .max_step_ns = 200000000,
        .draft_slower = 1,
        .cost = &cost,
    };
}

/* Adds a running request that lacks one token and has a draft whose tokens are right with
 * probability @accept. */
static struct plan_req *decoding(uint32_t n_tokens, uint32_t n_draft, float accept) {
    uint32_t i = p.n_running++;
    float s = 1;

    req[i] = (struct plan_req){.n_tokens = n_tokens,
                               .n_target = n_tokens,
                               .n_computed = n_tokens - 1,
                               .n_stored = n_tokens - 1,
                               .n_pages = plan_pages(&p, n_tokens - 1),
                               .n_exclusive = plan_pages(&p, n_tokens - 1),
                               .n_draft_max = n_draft,
                               .survival = survival[i]};
    for (uint32_t k = 0; k < n_draft; k++)
        survival[i][k] = s *= accept;
    return &req[i];
}

static struct plan_req *prefilling(uint32_t n_tokens) {
    uint32_t i = p.n_running++;

    req[i] = (struct plan_req){.n_tokens = n_tokens, .n_target = n_tokens};
    return &req[i];
}

Test(plan_draft, much_where_rows_are_cheap_nothing_where_they_are_dear) {
    setup(30, 0.1);
    struct plan_req *r = decoding(100, 16, 0.9F);
    plan_step(&p);
    cr_expect_geq(r->n_draft, 10);
    cr_expect_eq(r->n_rows, 1 + r->n_draft);
    setup(2, 4);
    r = decoding(100, 16, 0.4F);
    plan_step(&p);
    cr_expect_eq(r->n_draft, 0);
}

Test(plan_draft, the_likelier_draft_gets_the_rows) {
    setup(10, 1.0);
    struct plan_req *a = decoding(100, 16, 0.5F), *b = decoding(100, 16, 0.9F);
    plan_step(&p);
    cr_expect_gt(b->n_draft, 2 * MAX(a->n_draft, 1));
}

static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

static double rate_of(double tokens, uint32_t n) {
    struct cost_shape s = {0};
    uint64_t context = 0;

    for (uint32_t i = 0; i < p.n_running; i++)
        cost_add(&s, req[i].n_computed, 1), context += req[i].n_computed + 1;
    s.rows += n;
    s.context += n;
    s.pairs += (n + MIN(n, p.n_running)) * (context / p.n_running);
    return tokens / (double)cost_expect_ns(&cost, &s);
}

Test(plan_draft, no_other_number_of_rows_promises_more_tokens_for_the_time) {
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct rng r = {seed};
        float all[MAX_REQS * MAX_DRAFT];
        double best = 0, tokens, planned;
        uint32_t n = 0;

        setup(5 + rng_below(&r, 20), 0.05 + rng_unit(&r) * 2);
        p.itl_ns = p.max_step_ns = INT64_MAX / 8;
        uint32_t n_reqs = 1 + rng_below(&r, MAX_REQS);
        for (uint32_t i = 0; i < n_reqs; i++) {
            decoding(100 + rng_below(&r, 10), rng_below(&r, MAX_DRAFT + 1),
                     0.3F + 0.69F * (float)rng_unit(&r));
            for (uint32_t k = 0; k < req[i].n_draft_max; k++)
                all[n++] = survival[i][k];
        }
        plan_step(&p);
        qsort(all, n, sizeof(*all), descending);
        tokens = planned = n_reqs;
        for (uint32_t i = 0; i < n_reqs; i++)
            for (uint32_t k = 0; k < req[i].n_draft; k++)
                planned += survival[i][k];
        best = rate_of(tokens, 0);
        struct cost_shape s0 = {0};
        for (uint32_t i = 0; i < n_reqs; i++)
            cost_add(&s0, req[i].n_computed, 1);
        int64_t limit = cost_bound_ns(&cost, &s0) / 2 * (n_reqs > 1 ? 3 : 6);
        for (uint32_t k = 0; k < MIN(n, 128); k++) {
            tokens += all[k];
            /* within the time that drafts may add */
            if (tokens / rate_of(tokens, k + 1) * (1 + 1.5 * cost.error) < (double)limit * 0.9)
                best = MAX(best, rate_of(tokens, k + 1));
        }
        cr_assert_geq(rate_of(planned, p.n_drafts), 0.97 * best,
                      "seed %lu: %u drafts, %g < %g, limit %g", seed, p.n_drafts,
                      rate_of(planned, p.n_drafts) * 1e6, best * 1e6, (double)limit);
    }
}

/* The number computed before drafts are made must equal the number planned afterwards, or drafts
 * are made in vain: also with states, and at the limit of a step's time. */
Test(plan_draft, what_is_expected_before_is_what_is_planned) {
    uint32_t n_some = 0, n_none = 0;

    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct rng r = {seed};

        setup(5 + rng_below(&r, 60), 0.05 + rng_unit(&r) * 8);
        p.state_pages = rng_below(&r, 3) * 20;
        p.draft_slower = 1 + (float)rng_unit(&r);
        struct plan_req *q =
            decoding(100, 1 + rng_below(&r, 4), 0.2F + 0.79F * (float)rng_unit(&r));
        struct cost_shape decode = {0};
        double right = 0, best = 0;

        cost_add(&decode, q->n_computed, 1);
        double without = 1 / plan_decode_ns(&p, &decode, 0, 0);
        for (uint32_t k = 0; k < q->n_draft_max; k++) {
            right += (double)q->survival[k];
            best = fmax(best, (1 + right) / plan_decode_ns(&p, &decode, k + 1, right));
        }
        plan_step(&p);
        cr_expect_eq(q->n_draft > 0, best > without, "seed %lu: %u drafts, %g, without %g", seed,
                     q->n_draft, best * 1e6, without * 1e6);
        n_some += q->n_draft > 0;
        n_none += q->n_draft == 0;
    }
    cr_expect_gt(n_some, 50);
    cr_expect_gt(n_none, 50);
}

Test(plan_draft, the_limit_on_the_time_of_a_step_is_kept) {
    for (double fixed = 10; fixed < 50; fixed += 3) {
        setup(fixed, 1.0);
        for (int i = 0; i < 4; i++)
            decoding(100, 16, 0.97F);
        plan_step(&p);
        int64_t without =
            cost_bound_ns(&cost, &(struct cost_shape){.rows = 4, .seqs = 4, .context = 400});
        cr_expect(without > p.itl_ns || cost_bound_ns(&cost, &p.shape) <= p.itl_ns);
        cr_expect_leq(cost_bound_ns(&cost, &p.shape), MAX(p.max_step_ns, without * 5 / 4));
        cr_expect_gt(p.n_drafts, 0);
    }
}

Test(plan_draft, one_draft_does_not_make_others_wait_much_longer) {
    setup(8, 1.0);
    decoding(100, 16, 0.97F);
    for (int i = 0; i < 3; i++)
        decoding(100, 0, 0);
    plan_step(&p);
    struct cost_shape without = {0};
    for (int i = 0; i < 4; i++)
        cost_add(&without, 99, 1);
    cr_expect_gt(p.n_drafts, 0);
    cr_expect_leq(cost_bound_ns(&cost, &p.shape), cost_bound_ns(&cost, &without) * 3 / 2);
}

Test(plan_draft, prefill_goes_on_beside_drafts) {
    setup(10, 0.2);
    for (int i = 0; i < 8; i++)
        decoding(100, 16, 0.95F);
    struct plan_req *r = prefilling(1000);
    plan_step(&p);
    cr_expect_gt(p.n_drafts, 0);
    cr_expect_geq(r->n_rows, 32);
    cr_expect_leq(cost_bound_ns(&cost, &p.shape), p.itl_ns);
}

Test(plan_draft, nobody_yields_for_a_draft) {
    setup(30, 0.1);
    p.n_available = 0;
    struct plan_req *a = decoding(100, 16, 0.95F), *b = decoding(112, 16, 0.95F);
    plan_step(&p); /* a has room for 12 more rows in its last page, b for none */
    cr_expect_eq(a->n_draft, 12);
    cr_expect_eq(b->n_draft, 0);
    cr_expect_eq(b->n_rows, 1);
    cr_expect_eq(p.n_preempted, 0);
}

Test(plan_draft, slowness_is_counted) {
    setup(10, 0.5);
    struct plan_req *r = decoding(100, 8, 0.8F);
    plan_step(&p);
    cr_expect_gt(r->n_draft, 0);
    p.draft_slower = 5;
    plan_step(&p);
    cr_expect_eq(r->n_draft, 0);
    r->try_draft = true; /* a probe is planned nevertheless */
    plan_step(&p);
    cr_expect_gt(r->n_draft, 0);
}
