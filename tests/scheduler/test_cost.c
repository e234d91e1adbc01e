#include <criterion/criterion.h>
#include <math.h>

#include "base/rng.h"
#include "base/util.h"
#include "scheduler/cost.h"

/* A machine: ms of a step, and the relative size of its noise. */
struct machine {
    double fixed, row, free_rows, key, pair, seq, noise;
};

static double truth(const struct machine *m, const struct cost_shape *s) {
    return m->fixed + m->row * fmax(s->rows - m->free_rows, 0) + m->key * (double)s->context +
           m->pair * (double)s->pairs + m->seq * s->seqs;
}

static struct cost_shape random_shape(struct rng *r, uint32_t max_chunk) {
    struct cost_shape s = {0};
    uint32_t n_decode = rng_below(r, 24), n_prefill = rng_below(r, 3);

    for (uint32_t i = 0; i < n_decode; i++)
        cost_add(&s, rng_below(r, 4000), 1);
    for (uint32_t i = 0; i < n_prefill; i++)
        cost_add(&s, rng_below(r, 8000), 1 + rng_below(r, max_chunk));
    if (s.rows == 0)
        cost_add(&s, 100, 1);
    return s;
}

static void learn(struct cost *c, const struct machine *m, struct rng *r, uint32_t n,
                  uint32_t max_chunk) {
    for (uint32_t i = 0; i < n; i++) {
        struct cost_shape s = random_shape(r, max_chunk);
        double ms = truth(m, &s) * (1 + m->noise * (2 * rng_unit(r) - 1));

        cost_learn(c, &s, (int64_t)(ms * 1e6));
    }
}

/* Returns the mean relative error, and the greatest, over new shapes. */
static double mean_error(const struct cost *c, const struct machine *m, struct rng *r,
                         uint32_t max_chunk) {
    double sum = 0;

    for (int i = 0; i < 200; i++) {
        struct cost_shape s = random_shape(r, max_chunk);
        double t = truth(m, &s);

        sum += fabs((double)cost_expect_ns(c, &s) / 1e6 - t) / t / 200;
    }
    return sum;
}

static const struct machine machines[] = {
    {.fixed = 4, .row = 0.02, .key = 2e-5, .pair = 1e-7, .seq = 0.005, .noise = 0.05}, /* GPU */
    {.fixed = 60, .row = 4, .key = 1e-4, .pair = 2e-6, .seq = 0.3, .noise = 0.1},      /* CPU */
    {.fixed = 900, .row = 60, .key = 1e-3, .pair = 1e-5, .seq = 1, .noise = 0.1},      /* laptop */
    {.fixed = 20, .row = 0.5, .free_rows = 16, .key = 1e-4, .pair = 1e-6, .seq = 0.1, .noise = 0.1},
};

Test(cost, converges_on_machines_a_thousandfold_apart) {
    for (size_t i = 0; i < ARRAY_SIZE(machines); i++) {
        struct rng r = {i + 1};
        struct cost c;

        cost_init(&c);
        learn(&c, &machines[i], &r, 200, 256);
        double e = mean_error(&c, &machines[i], &r, 256);
        cr_expect_lt(e, 0.12, "machine %zu: mean error %.3f", i, e);
    }
}

/* Noise of half a step's time hardly changes the price of a chunk relative to that of a row. */
Test(cost, noise_moves_no_price) {
    struct machine m = {.fixed = 60, .row = 4, .noise = 0.8};
    struct cost_shape one = {.rows = 1, .seqs = 1, .context = 500},
                      many = {.rows = 64, .seqs = 1, .context = 564, .pairs = 64 * 532};
    double moved = 0;

    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct rng r = {seed};
        struct cost c;
        double before = 0;

        cost_init(&c);
        learn(&c, &m, &r, 200, 64);
        for (uint32_t k = 0; k <= 300; k++) {
            learn(&c, &m, &r, 1, 64);
            double ratio = (double)cost_expect_ns(&c, &many) / (double)cost_expect_ns(&c, &one);

            moved += k > 0 ? fabs(log(ratio / before)) / 300 / 20 : 0;
            before = ratio;
        }
    }
    cr_expect_lt(moved, 0.015, "a step moves it by %.4f", moved);
}

/* The prior's price of context is far above this machine's, and contexts grow too slowly to be seen
 * from step to step. The speed must not fall with it, nor the price of rows with the speed. */
Test(cost, growing_contexts_change_no_price_of_rows) {
    const struct machine m = {.fixed = 1.9, .row = 0.23, .noise = 0.15};

    for (int is_busy = 0; is_busy < 2; is_busy++) {
        struct rng r = {1};
        struct cost c;

        cost_init(&c);
        for (uint32_t i = 0; i < 10; i++) { /* eight prompts in succession */
            struct cost_shape s = {0};

            cost_add(&s, 0, 27);
            for (uint32_t k = 0; k < i % 8; k++)
                cost_add(&s, 30, 1);
            cost_learn(&c, &s, (int64_t)(truth(&m, &s) * 1e6));
        }
        for (uint32_t t = 0; t < 4000; t++) {
            struct cost_shape s = {0};
            double slow = is_busy && t >= 1000 && t < 1600 ? 3 : 1;
            double rare = rng_below(&r, 100) == 0 ? 2 : 1;

            for (int i = 0; i < 8; i++)
                cost_add(&s, 30 + t, 1);
            double ms = truth(&m, &s) * slow * rare * (1 + m.noise * (2 * rng_unit(&r) - 1));
            cost_learn(&c, &s, (int64_t)(ms * 1e6));
            if (t % 500 != 499)
                continue;
            cost_add(&s, 0, 223);
            double expected = (double)cost_expect_ns(&c, &s) / 1e6 / slow, t_ms = truth(&m, &s);
            cr_expect(expected > t_ms / 2 && expected < 1.5 * t_ms, "%u steps: %.1f ms, not %.1f",
                      t + 1, expected, t_ms);
        }
    }
}

/* The function is true on a shared processor until most of the last steps have chunks, and never on
 * a dedicated one. */
Test(cost, the_speed_of_decode_is_known_as_such) {
    const struct machine m = {.fixed = 2, .row = 0.25};

    for (int own = 0; own < 2; own++) {
        const struct cost_model model = {.own_processor = own};
        struct cost_shape decode = {0}, chunk;
        struct cost c;

        cost_init_for(&c, &model);
        cr_expect_not(cost_is_of_decode(&c));
        for (int i = 0; i < 8; i++)
            cost_add(&decode, 100, 1);
        chunk = decode;
        cost_add(&chunk, 0, 100);
        for (int k = 0; k < 20; k++)
            cost_learn(&c, &decode, (int64_t)(truth(&m, &decode) * 1e6));
        for (int k = 0; k < 8; k++) {
            cr_expect_eq(cost_is_of_decode(&c), !own && k < 4, "%d chunks", k);
            cost_learn(&c, &chunk, (int64_t)(truth(&m, &chunk) * 1e6));
        }
    }
}

Test(cost, recovers_when_the_machine_slows_down) {
    struct machine m = machines[1];
    struct rng r = {7};
    struct cost c;

    cost_init(&c);
    learn(&c, &m, &r, 300, 256);
    m.fixed *= 2;
    m.row *= 2;
    learn(&c, &m, &r, 150, 256);
    cr_expect_lt(mean_error(&c, &m, &r, 256), 0.15);
}

Test(cost, one_slow_step_changes_little) {
    struct rng r = {3};
    struct cost c;
    struct cost_shape s = {0};

    cost_init(&c);
    learn(&c, &machines[0], &r, 200, 256);
    for (uint32_t i = 0; i < 8; i++)
        cost_add(&s, 500, 1);
    double before = (double)cost_expect_ns(&c, &s);
    cost_learn(&c, &s, (int64_t)(before * 50));
    cr_expect_lt((double)cost_expect_ns(&c, &s), before * 1.7);
    learn(&c, &machines[0], &r, 20, 256);
    cr_expect_lt(fabs((double)cost_expect_ns(&c, &s) / before - 1), 0.15);
}

/* Hours of decode teach nothing about prefill; its price neither explodes nor falls to zero. */
Test(cost, pure_decode_keeps_prefill_sane) {
    struct rng r = {11};
    struct cost c;

    cost_init(&c);
    learn(&c, &machines[1], &r, 200, 256);
    struct cost_shape chunk = {0};
    cost_add(&chunk, 1000, 200);
    double t = truth(&machines[1], &chunk);
    for (int i = 0; i < 50000; i++) {
        struct cost_shape s = {0};

        for (uint32_t k = 1 + rng_below(&r, 8); k > 0; k--)
            cost_add(&s, rng_below(&r, 4000), 1);
        cost_learn(&c, &s, (int64_t)(truth(&machines[1], &s) * 1e6));
    }
    double p = (double)cost_expect_ns(&c, &chunk) / 1e6;
    cr_expect(p > t / 2 && p < t * 2, "%.1f ms expected, %.1f true", p, t);
    learn(&c, &machines[1], &r, 20, 256);
    cr_expect_lt(mean_error(&c, &machines[1], &r, 256), 0.2);
}

/* If each row costs the same, that is also learnt from steps that end inside a tile; otherwise
 * drafts would seem cheap. */
Test(cost, a_few_rows_are_not_taken_for_a_whole_tile) {
    static const uint32_t rows[] = {32, 36, 32, 34};
    struct cost c;

    cost_init(&c);
    for (uint32_t i = 0; i < 400; i++) {
        struct cost_shape s = {.rows = rows[i % 4], .seqs = 32};

        cost_learn(&c, &s, (int64_t)s.rows * 3000000);
    }
    struct cost_shape all = {.rows = 40, .seqs = 32};
    cr_expect_float_eq((double)cost_expect_ns(&c, &all) / 1e6, 120, 3);
}

Test(cost, more_work_is_never_cheaper) {
    struct rng r = {5};

    for (int round = 0; round < 20; round++) {
        struct cost c;

        cost_init(&c);
        for (int i = 0; i < 30; i++) { /* times that no machine has */
            struct cost_shape s = random_shape(&r, 300);
            cost_learn(&c, &s, 1000000 + rng_below(&r, 200000000));
        }
        for (int i = 0; i < 50; i++) {
            struct cost_shape s = random_shape(&r, 300), more = s;
            cost_add(&more, rng_below(&r, 1000), 1 + rng_below(&r, 100));
            cr_assert_geq(cost_expect_ns(&c, &more), cost_expect_ns(&c, &s));
            cr_assert_geq(cost_bound_ns(&c, &s), cost_expect_ns(&c, &s));
        }
    }
}

Test(cost, before_data_it_is_careful) {
    struct cost c;
    struct cost_shape s = {0};

    cost_init(&c);
    cr_expect_eq(cost_trusted_rows(&c), 32);
    cost_add(&s, 0, 256);
    cr_expect_gt(cost_expect_ns(&c, &s), 200000000);
    cost_learn(&c, &s, 5000000);
    cr_expect_eq(cost_trusted_rows(&c), 512);
}

Test(cost, no_step_is_larger_than_one_that_surprised) {
    struct cost_shape decode = {0}, chunk = {0};
    struct cost c;

    cost_init(&c);
    for (int i = 0; i < 8; i++)
        cost_add(&decode, 100, 1);
    cost_add(&chunk, 0, 200);
    for (int i = 0; i < 10; i++)
        cost_learn(&c, i % 2 ? &chunk : &decode, i % 2 ? 20000000 : 5000000);
    cr_expect_eq(cost_trusted_rows(&c), 400);
    cost_learn(&c, &decode, 5 * cost_expect_ns(&c, &decode));
    cr_expect_eq(cost_trusted_rows(&c), 400, "other programs, not rows");
    cost_learn(&c, &chunk, 3 * cost_expect_ns(&c, &chunk));
    cr_expect_eq(cost_trusted_rows(&c), 200);
    cost_learn(&c, &chunk, cost_expect_ns(&c, &chunk));
    cr_expect_eq(cost_trusted_rows(&c), 400);
}

Test(cost, removing_is_the_inverse_of_adding) {
    struct cost_shape s = {0}, before;

    cost_add(&s, 17, 1);
    before = s;
    cost_add(&s, 1000, 77);
    cost_remove(&s, 1000, 77);
    cr_expect_eq(s.rows, before.rows);
    cr_expect_eq(s.context, before.context);
    cr_expect_eq(s.pairs, before.pairs);
    cr_expect_eq(s.seqs, before.seqs);
}

/* The first step of a process pays for memory that was never touched. The resulting overestimate is
 * corrected at once, and is no reason for a margin. */
Test(cost, a_cold_first_step_is_soon_forgotten) {
    static const uint32_t rows[] = {8, 1, 16, 1, 1, 1, 26, 36, 66, 64, 64, 64};
    struct machine m = {.fixed = 6, .row = 1.75, .pair = 7e-4};
    struct cost c;
    uint32_t pos = 0;

    cost_init(&c);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct cost_shape s = {0};

        cost_add(&s, pos, rows[i]);
        pos = i < 6 ? 0 : pos + rows[i];
        cost_learn(&c, &s, (int64_t)(truth(&m, &s) * 1e6) * (i == 0 ? 3 : 1));
    }
    struct cost_shape few = {0};
    cost_add(&few, pos, 1);
    cost_add(&few, pos - 16, 16);
    double expect = truth(&m, &few), bound = (double)cost_bound_ns(&c, &few) / 1e6;
    cr_expect(bound > 0.9 * expect && bound < 1.5 * expect, "bound %.1f ms, true %.1f", bound,
              expect);
}

/* Copies are also priced when nearly every step has a few of them: errors in the price of other
 * work are not attributed to them. */
Test(cost, copies_have_a_price_of_their_own) {
    const struct machine *m = &machines[0];
    struct rng r = {3};
    struct cost c;
    double seen = 0;

    cost_init(&c);
    learn(&c, m, &r, 20, 256);
    for (int i = 0; i < 400; i++) {
        struct cost_shape s = random_shape(&r, 256);

        s.copies = i % 3 ? 1 : rng_below(&r, 64);
        double ms = (truth(m, &s) + 0.05 * s.copies) * (1 + m->noise * (2 * rng_unit(&r) - 1));
        cost_learn(&c, &s, (int64_t)(ms * 1e6));
        seen += i < 200 ? 0 : (double)cost_copies_ns(&c, 10) / 200;
    }
    cr_expect_float_eq(seen, 10 * 50000, 10 * 12500, "%.0f", seen);
    double e = mean_error(&c, m, &r, 256);
    cr_expect_lt(e, 0.12, "mean error %.3f", e);
}

/* Steps of one size, whatever time they take, leave the relative prices of other sizes at those of
 * the model's bytes and operations. Steps of other sizes then change them. */
Test(cost, a_prior_holds_until_sizes_vary) {
    static const struct cost_model big = {4.7e9, 8e9, 131072, 2.0 * 4096 * 32, false};
    struct cost_shape one = {.rows = 1, .seqs = 1, .context = 500},
                      many = {.rows = 64, .seqs = 1, .context = 564, .pairs = 64 * 532};
    struct rng r = {9};
    struct cost c;

    cost_init_for(&c, &big);
    double before = (double)cost_expect_ns(&c, &many) / (double)cost_expect_ns(&c, &one);
    for (int i = 0; i < 500; i++) /* a machine that is busy for a while */
        cost_learn(&c, &one, (int64_t)((i / 100 % 2 ? 3e8 : 3e7) * (0.5 + rng_unit(&r))));
    double after = (double)cost_expect_ns(&c, &many) / (double)cost_expect_ns(&c, &one);
    cr_expect_float_eq(after / before, 1, 0.1, "%.2f before, %.2f after", before, after);
    for (int i = 0; i < 20; i++)
        cost_learn(&c, i % 2 ? &one : &many, i % 2 ? 30000000 : 60000000);
    after = (double)cost_expect_ns(&c, &many) / (double)cost_expect_ns(&c, &one);
    cr_expect_float_eq(after, 2, 0.3, "%.2f", after);
}

/* A machine that becomes ten times slower is followed within four steps, and one slow step is not.
 * */
Test(cost, the_speed_is_followed_within_four_steps) {
    struct cost_shape s = {.rows = 20, .seqs = 3, .context = 500};
    struct cost c;

    cost_init(&c);
    for (int i = 0; i < 50; i++)
        cost_learn(&c, &s, 10000000);
    for (int i = 0; i < 3; i++)
        cost_learn(&c, &s, 100000000);
    cr_expect_lt(cost_expect_ns(&c, &s), 20000000);
    cost_learn(&c, &s, 100000000);
    cr_expect_gt(cost_expect_ns(&c, &s), 80000000);
}

/* Smallest chunks at 9/10 of the best rate: one row if all rows cost the same. */
Test(cost, efficient_chunks) {
    struct rng r = {4};
    struct machine rows = {.row = 5}, fixed = {.fixed = 180, .row = 2};
    struct cost c;

    cost_init(&c);
    learn(&c, &rows, &r, 300, 256);
    cr_expect_leq(cost_efficient_rows(&c, 0, 512), 4);
    cost_init(&c);
    learn(&c, &fixed, &r, 300, 256);
    /* n / (180 + 2 n) is 9/10 of 512 / (180 + 1024). */
    uint32_t n = cost_efficient_rows(&c, 0, 512);
    cr_expect(n > 260 && n < 360, "%u", n);
    cr_expect_eq(cost_efficient_rows(&c, 0, 1), 1);
}

/* A device whose steps vary by a hundredth. */
static const struct machine device = {
    .fixed = 3, .row = 0.026, .key = 97e-6, .pair = 4e-6, .seq = 0.002, .noise = 0.01};

/* Initialises @c and learns from @n steps of the device. */
static void learn_device(struct cost *c, struct rng *r, bool own_processor, uint32_t n) {
    cost_init_for(c, &(struct cost_model){.own_processor = own_processor});
    learn(c, &device, r, n, 256);
}

static double row_price(const struct cost *c) {
    return (double)cost_row_ns(c) / c->speed;
}

/* The first errors come from the prior: a device is learnt as well as if other programs ran on
 * it. */
Test(cost, a_device_begins_unsure) {
    double error[2] = {0};

    for (uint64_t seed = 1; seed <= 20; seed++)
        for (int own = 0; own < 2; own++) {
            struct rng r = {seed};
            struct cost c;

            learn_device(&c, &r, own, 40);
            error[own] += mean_error(&c, &device, &r, 256) / 20;
        }
    cr_expect_lt(error[1], 1.1 * error[0], "%.3f, shared %.3f", error[1], error[0]);
}

/* Rows cost 15 % more: within 20 steps a device's price has half of the difference, and that of a
 * shared processor a quarter, since other programs might cause it there. */
Test(cost, few_steps_of_a_device_tell_a_price) {
    struct machine dear = device;
    double rise[2] = {0};

    dear.row *= 1.15;
    for (uint64_t seed = 1; seed <= 20; seed++)
        for (int own = 0; own < 2; own++) {
            struct rng r = {seed};
            struct cost c;

            learn_device(&c, &r, own, 300);
            double before = row_price(&c);
            learn(&c, &dear, &r, 20, 256);
            rise[own] += (row_price(&c) / before - 1) / 20;
        }
    cr_expect_gt(rise[1], 0.06, "%.3f", rise[1]);
    cr_expect_lt(rise[0], 0.05, "%.3f", rise[0]);
}

/* A device that is shared after all has the bounds of a shared processor: one step that takes three
 * times as long changes little, the same change of all steps is learnt at once, and times that vary
 * by a factor of 1.3 change no price. */
Test(cost, a_device_with_other_work_recovers) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct machine slow = {.fixed = 3 * device.fixed,
                               .row = 3 * device.row,
                               .key = 3 * device.key,
                               .pair = 3 * device.pair,
                               .seq = 3 * device.seq,
                               .noise = device.noise},
                       uneven = device;
        struct rng r = {seed};
        struct cost c;
        double moved = 0, sum = 0;

        learn_device(&c, &r, true, 300);
        double before = row_price(&c);
        struct cost_shape s = random_shape(&r, 256);
        cost_learn(&c, &s, (int64_t)(3 * truth(&device, &s) * 1e6));
        cr_expect_lt(fabs(log(row_price(&c) / before)), 0.1, "seed %lu: %.3f", seed,
                     row_price(&c) / before);

        learn_device(&c, &r, true, 300);
        learn(&c, &slow, &r, 8, 256);
        double error = mean_error(&c, &slow, &r, 256);
        cr_expect_lt(error, 0.15, "seed %lu: %.3f", seed, error);

        uneven.noise = 0.45; /* evenly: a standard deviation of a factor of 1.3 */
        learn_device(&c, &r, true, 300);
        before = row_price(&c);
        for (uint32_t k = 0; k < 300; k++) {
            learn(&c, &uneven, &r, 1, 256);
            moved += fabs(log(row_price(&c) / before)) / 300;
            before = row_price(&c);
            sum += mean_error(&c, &device, &r, 256) / 300;
        }
        cr_expect_lt(moved, 0.015, "seed %lu: a step moves it by %.4f", seed, moved);
        cr_expect_lt(sum, 0.2, "seed %lu: mean error %.3f", seed, sum);
    }
}
