/*
 * The plan and the cost model on devices that are slow, busy, or differ from the model: steps are
 * planned, take the time of a simulated device, and are learnt from.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "scheduler/plan.h"
#include "scheduler/policy.h"
#include "tests/support/few.h"

enum { REQS = 24, PAGE = 16, ROWS = 512, WINDOW = 50 };

/* Times in ms. All rows of a step together take at least @read. */
struct device {
    const char *name;
    double fixed, read, row, seq, key, pair;
    /* no other program is expected to run on it */
    bool own;
};

static const struct device devices[] = {
    {"h200", 0.25, 1.14, 0.022, 0.002, 36e-6, 0.85e-6, false},
    {"desktop", 0.25, 77.8, 7.55, 0.002, 2.45e-3, 0.59e-3, false},
    {"host memory", 0.25, 336, 0.24, 0.002, 0.2e-3, 18e-6, false},
    {"laptop, 32B", 5, 800, 140, 0.1, 5e-3, 1e-3, false},
    {"barriers", 900, 0, 12, 1, 1e-3, 0.2e-3, false},
    {"rows alone", 1, 0, 200, 0, 1e-3, 0.2e-3, false},
    {"h200, own", 0.25, 1.14, 0.022, 0.002, 36e-6, 0.85e-6, true},
    {"rtx5090, 27B, own", 0.25, 10.8, 0.092, 0.002, 43e-6, 2.7e-6, true},
};

struct run {
    struct device d;
    /* factor by which the device is slower */
    double scale;
    /* standard deviation of the logarithm of a step's time */
    double noise;
    /* steps of a period that is alternately ten times slower and not; 0: none */
    uint32_t busy;
    /* factor of this step, 1 or 10 */
    double speed;
    struct rng rng;
    struct cost cost;
    struct plan plan;
    struct plan_req req[REQS], was[REQS];
    uint32_t scratch[REQS];
    /* number of steps without rows since the request arrived */
    uint32_t n_waited[REQS];
    /* time of this step, and the longest */
    double ms, worst_ms;
};

static double nominal_ms(const struct run *u, const struct cost_shape *s) {
    const struct device *d = &u->d;

    return u->scale * (d->fixed + fmax(d->read, d->row * s->rows) + d->seq * s->seqs +
                       d->key * (double)s->context + d->pair * (double)s->pairs);
}

static double normal(struct rng *r) {
    double sum = 0;

    for (int i = 0; i < 12; i++)
        sum += rng_unit(r);
    return sum - 6;
}

static void begin(struct run *u, const struct device *d, double scale, uint64_t seed) {
    memset(u, 0, sizeof(*u));
    u->d = *d;
    u->scale = scale;
    u->speed = 1;
    u->rng = (struct rng){seed};
    cost_init_for(&u->cost, &(struct cost_model){.own_processor = d->own});
    u->plan = (struct plan){
        .req = u->req,
        .scratch = u->scratch,
        .page_tokens = PAGE,
        .n_available = 1000000,
        .max_rows = ROWS,
        .max_seqs = REQS,
        .max_bypass = 4,
        .itl_ns = 50000000,
        .max_step_ns = 200000000,
        .cost = &u->cost,
    };
}

static uint32_t add(struct run *u, uint32_t n_tokens, uint32_t n_computed) {
    uint32_t i = u->plan.n_running++;

    cr_assert_lt(i, REQS);
    u->req[i] = (struct plan_req){.n_tokens = n_tokens, .n_computed = n_computed};
    u->n_waited[i] = 0;
    return i;
}

/* Makes every coefficient @factor times as large as after the first step, or divides it. */
static void mislead(struct run *u, double factor) {
    struct cost_shape one = {0};

    cost_add(&one, 100, 1);
    cost_learn(&u->cost, &one, (int64_t)(nominal_ms(u, &one) * 1e6));
    for (int i = 0; i < COST_FEATURES; i++) {
        double f = rng_below(&u->rng, 2) ? factor : 1 / factor;

        u->cost.a[i] *= f;
        u->cost.p[i][i] *= fmax(f * f, 1); /* makes it uncertain of the wrong coefficients */
        u->cost.cap[i] *= fmax(f * f, 1);
    }
}

static void step(struct run *u) {
    struct plan *p = &u->plan;

    for (uint32_t i = 0; i < p->n_running; i++) {
        struct plan_req *r = &u->req[i];

        r->n_stored = r->n_computed;
        r->n_pages = r->n_exclusive = plan_pages(p, r->n_computed);
        r->n_target = r->n_tokens;
    }
    plan_step(p);
    cr_assert_gt(p->n_rows, 0);
    u->ms = nominal_ms(u, &p->shape);
    if (u->busy && p->turn % u->busy == 0)
        u->speed = rng_below(&u->rng, 2) ? 10 : 1;
    double ms = u->ms * u->speed * exp(u->noise * normal(&u->rng));
    cost_learn(&u->cost, &p->shape, (int64_t)(ms * 1e6));
    u->worst_ms = fmax(u->worst_ms, u->ms);
    for (uint32_t i = 0; i < p->n_running; i++) {
        struct plan_req *r = &u->req[i];

        u->n_waited[i] = r->n_rows > 0 ? 0 : u->n_waited[i] + 1;
        r->n_computed += r->n_rows;
        if (r->n_computed == r->n_tokens)
            r->n_tokens++; /* samples its next token */
    }
    p->turn++;
}

/* Returns the rows per ms at the best size of a chunk at @pos. */
static double best_rate(const struct run *u, uint32_t pos) {
    double best = 0;

    for (uint32_t n = 1; n <= ROWS; n++) {
        struct cost_shape s = {0};

        cost_add(&s, pos, n);
        best = fmax(best, n / nominal_ms(u, &s));
    }
    return best;
}

/* Returns the least part of the best rate that a prompt alone has over WINDOW steps, after @from
 * steps. */
static double least_rate(struct run *u, uint32_t from, uint32_t n_steps) {
    static double used[4096], could[4096];
    uint32_t i = add(u, 1000000, 0);
    double least = 1e9;

    for (uint32_t k = 0; k < n_steps; k++) {
        uint32_t pos = u->req[i].n_computed;

        step(u);
        used[k] = u->req[i].n_rows;
        could[k] = best_rate(u, pos) * u->ms;
        if (k < from + WINDOW - 1)
            continue;
        double sum = 0, best = 0;
        for (uint32_t j = k + 1 - WINDOW; j <= k; j++)
            sum += used[j], best += could[j];
        least = fmin(least, sum / best);
    }
    return least;
}

/* Each device 1 to 100 times slower, at an even pace and with periods of 100 steps of which half
 * are ten times slower, with a model that is right and with one that is wrong by a factor of 30.
 * The wrong model has 64 steps to learn, because at first only chunks that double are tried; one
 * draw in twenty of it may take longer. */
Test(slow, a_prompt_alone_has_four_fifths_of_the_best_rate) {
    uint32_t n_wrong = 0, n_below = 0;

    for (size_t d = 0; d < ARRAY_SIZE(devices); d++)
        for (uint64_t seed = 1; seed <= FEWER(160, 16); seed++) {
            static struct run u;
            bool wrong = seed & 1, busy = seed & 2;

            begin(&u, &devices[d], pow(10, (double)(seed % 3)), seed);
            u.busy = busy ? 100 : 0;
            if (wrong)
                mislead(&u, 30);
            double rate = least_rate(&u, wrong ? 64 : 32, 300);
            n_wrong += wrong;
            n_below += wrong && rate < 0.8;
            cr_expect(wrong || rate >= 0.8, "%s, seed %lu: %.2f", devices[d].name, seed, rate);
        }
    cr_expect_leq(n_below, n_wrong / 20, "%u of %u", n_below, n_wrong);
    printf("# %u of %u wrong models below\n", n_below, n_wrong);
}

/* Times that vary by a factor of 1.3 from step to step (one standard deviation). */
Test(slow, noise_does_not_make_a_prompt_crawl) {
    for (size_t d = 0; d < ARRAY_SIZE(devices); d++)
        for (uint64_t seed = 1; seed <= FEWER(12, 4); seed++) {
            static struct run u;

            begin(&u, &devices[d], pow(10, (double)(seed % 3)), seed);
            u.noise = 0.25;
            double rate = least_rate(&u, 50, 300);
            cr_expect_geq(rate, 0.65, "%s, seed %lu: %.2f", devices[d].name, seed, rate);
        }
}

/* An arrival during a prompt that is computed alone waits for at most the time of ten rows, or
 * max_step. */
Test(slow, a_prompt_alone_leaves_steps_short_enough) {
    for (size_t d = 0; d < ARRAY_SIZE(devices); d++) {
        static struct run u;

        double worst = 0;

        begin(&u, &devices[d], 10, 1);
        uint32_t i = add(&u, 100000, 0);
        for (uint32_t k = 0; k < 200; k++) {
            struct cost_shape one = {0};

            cost_add(&one, u.req[i].n_computed, 1);
            double most = fmax(200, 10 * nominal_ms(&u, &one));
            step(&u);
            worst = k < 20 ? 0 : fmax(worst, u.ms / most);
        }
        cr_expect_lt(worst, 1.5, "%s: %.2f", devices[d].name, worst);
    }
}

/* Returns the most that a step may take in which request @decodes has its row and @prompt a chunk:
 * 4/3 of the time with one row of the prompt, or twice that time without two targets. */
static double most_ms(const struct run *u, uint32_t decodes, uint32_t prompt) {
    struct cost_shape one = {0};

    cost_add(&one, u->req[decodes].n_computed, 1);
    struct cost_shape both = one;
    cost_add(&both, u->req[prompt].n_computed, 1);

    double least = nominal_ms(u, &both);
    return fmax(50, fmax(4 * least / 3, 2 * (least - 50)));
}

/* One request decodes and a long prompt arrives: tokens come within the target or the stated bound,
 * and the prompt has two fifths of the rate that it has alone. */
Test(slow, decode_and_a_prompt_share_the_time) {
    for (size_t d = 0; d < ARRAY_SIZE(devices); d++)
        for (uint64_t seed = 1; seed <= FEWER(9, 3); seed++) {
            static struct run u;
            double best = 0, had = 0;

            begin(&u, &devices[d], pow(10, (double)(seed % 3)), seed);
            double worst = 0;
            uint32_t decodes = add(&u, 101, 100), prompt = add(&u, 1000000, 0);
            for (uint32_t k = 0; k < 300; k++) {
                uint32_t pos = u.req[prompt].n_computed;
                double most = most_ms(&u, decodes, prompt);

                step(&u);
                cr_expect_eq(u.req[decodes].n_rows, 1);
                if (k < 50)
                    continue;
                best += best_rate(&u, pos) * u.ms;
                had += u.req[prompt].n_rows;
                worst = fmax(worst, u.ms / most);
            }
            cr_expect_lt(worst, 1.4, "%s, seed %lu: %.2f", devices[d].name, seed, worst);
            cr_expect_geq(had, 0.4 * best, "%s, seed %lu: %.2f", devices[d].name, seed, had / best);
        }
}

/* If other programs take the cores, the waits at a step's barriers grow more than its arithmetic:
 * the shape changes with the speed, and back again. */
Test(slow, a_busy_machine_changes_the_shape) {
    for (uint64_t seed = 1; seed <= FEWER(12, 4); seed++) {
        static const struct device quiet = {"quiet", 6, 0, 1.5, 0.1, 1e-4, 1e-5, false},
                                   busy = {"busy", 300, 0, 12, 1, 1e-3, 1e-4, false};
        static struct run u;

        begin(&u, &quiet, 1, seed);
        u.noise = seed & 1 ? 0.25 : 0;
        cr_expect_geq(least_rate(&u, 32, 100), 0.8, "seed %lu", seed);
        for (int again = 0; again < 2; again++) {
            u.plan.n_running = 0;
            u.d = again ? quiet : busy;
            double rate = least_rate(&u, 32, 150);
            cr_expect_geq(rate, 0.7, "%s, seed %lu: %.2f", u.d.name, seed, rate);
        }
    }
}

/* A long prompt on a machine with many busy loops, as recorded: the first steps are quiet, then
 * most of a step is waits at barriers, and times vary by a factor of 1.5. @n_chats requests arrive
 * at a time and decode beside it, with pauses of @pause steps. Returns the prompt's rate as a part
 * of its rate alone. */
static double part_beside_chats(uint64_t seed, uint32_t n_chats, uint32_t pause) {
    static const struct device quiet = {"quiet", 6, 0, 2, 0.1, 1e-4, 1e-5, false},
                               busy = {"busy", 1000, 0, 70, 5, 5e-3, 5e-4, false};
    static const struct cost_model small = {2.9e8, 4.7e8, 114688, 2.0 * 1024 * 28, false};
    static struct run u;
    double best = 0, had = 0;
    uint32_t idle = 0;

    begin(&u, &quiet, 1, seed);
    cost_init_for(&u.cost, &small);
    add(&u, 8, 0);
    for (uint32_t k = 0; k < 2; k++)
        step(&u);
    u.plan.n_running = 0;
    u.d = busy;
    u.noise = 0.4;
    uint32_t prompt = add(&u, 100000, 0);
    for (uint32_t k = 0; k < 200; k++) {
        uint32_t pos = u.req[prompt].n_computed;

        if (u.plan.n_running == 1 && idle++ == pause) {
            for (uint32_t i = 0; i < n_chats; i++)
                add(&u, 18, 0);
            idle = 0;
        }
        step(&u);
        if (k > 40) {
            best += best_rate(&u, pos) * u.ms;
            had += u.req[prompt].n_rows;
        }
        if (u.plan.n_running > 1 && u.req[1].n_tokens >= 18 + 24)
            u.plan.n_running = 1;
    }
    return had / best;
}

/* The prompt has at least a quarter of its rate alone. */
Test(slow, a_prompt_goes_on_beside_chats_on_a_busy_machine) {
    for (uint64_t seed = 1; seed <= FEWER(24, 8); seed++)
        for (uint32_t n_chats = 1; n_chats <= 3; n_chats++)
            for (uint32_t pause = 1; pause <= 4; pause += 3) {
                double part = part_beside_chats(seed, n_chats, pause);

                cr_expect_geq(part, 0.25, "seed %lu, %u chats, pause %u: %.2f", seed, n_chats,
                              pause, part);
            }
}

static int64_t one_row_ns(const struct run *u) {
    struct cost_shape one = {0};

    cost_add(&one, 0, 1);
    return cost_bound_ns(&u->cost, &one);
}

/* Twenty long prompts, half of the time a request that decodes, and now and then a prompt of up to
 * 64 rows: a single short prompt begins in the ninth step at the latest, and in the second if the
 * model expects one row to take longer than the target. */
Test(slow, a_short_prompt_begins_at_once_beside_any_number_of_long_ones) {
    for (size_t d = 0; d < ARRAY_SIZE(devices); d++)
        for (uint64_t seed = 1; seed <= FEWER(12, 4); seed++) {
            static struct run u;

            begin(&u, &devices[d], pow(10, (double)(seed % 3)), seed);
            u.noise = 0.5;
            u.busy = 30;
            mislead(&u, 30);
            if (seed & 1)
                add(&u, 101, 100);
            for (int i = 0; i < 20; i++)
                add(&u, 30000 + rng_below(&u.rng, 30000), 0);
            for (int round = 0; round < 30; round++) {
                uint32_t n = 2 + rng_below(&u.rng, 63), i = add(&u, n, 0);

                for (int k = 0; u.req[i].n_computed == 0; k++) {
                    bool misses = one_row_ns(&u) > u.plan.max_step_ns;

                    cr_assert_lt(k, PLAN_PASSED_MOST + 1, "%s, seed %lu", devices[d].name, seed);
                    step(&u);
                    cr_assert(!misses || k == 0 || u.req[i].n_computed > 0, "%s, seed %lu",
                              devices[d].name, seed);
                }
                for (int k = 0; u.req[i].n_computed < n; k++) {
                    cr_assert_lt(k, 128, "%s, seed %lu", devices[d].name, seed);
                    step(&u);
                }
                u.plan.n_running--; /* its client has the whole answer */
            }
        }
}

/* Several short ones are served one after the other. */
Test(slow, short_prompts_take_turns) {
    for (size_t d = 0; d < ARRAY_SIZE(devices); d++) {
        static struct run u;

        begin(&u, &devices[d], 1, 3);
        mislead(&u, 30);
        for (int i = 0; i < 8; i++)
            add(&u, 50000, 0);
        for (int i = 0; i < 8; i++)
            add(&u, 20, 0);
        for (uint32_t k = 0; k < 2 * 8 * 20; k++)
            step(&u);
        for (uint32_t i = 8; i < 16; i++)
            cr_expect_gt(u.req[i].n_computed, 20, "%s: %u", devices[d].name, i);
    }
}
