#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "proto/messages.h"
#include "scheduler/fair_share.h"
#include "scheduler/plan.h"
#include "scheduler/queue.h"
#include "scheduler/request.h"
#include "scheduler/view.h"

#define SECOND INT64_C(1000000000)

static struct fair_share s;
static const struct sched_view none;

static void set_up(void) {
    cr_assert_eq(fair_init(&s, &none), 0);
}

static void tear_down(void) {
    fair_deinit(&s);
}

TestSuite(fair_share, .init = set_up, .fini = tear_down);

static struct fair_item item(uint16_t ref, int64_t key, uint64_t order, double cost_ns) {
    return (struct fair_item){
        .tenant = ref, .key = key, .order = order, .cost_ns = cost_ns, .n_left = 8};
}

/* Serves the first waiting item repeatedly; each tenant always has one of @cost ns waiting. */
static void serve(uint32_t n, const uint16_t *ref, const double *cost, uint32_t turns,
                  double *had) {
    for (uint32_t k = 0; k < turns; k++) {
        struct fair_item x[16];
        uint32_t first;

        for (uint32_t i = 0; i < n; i++)
            x[i] = item(ref[i], (int64_t)i, k * n + i, cost[i]);
        cr_assert_eq(fair_pick(&s, x, n, &first, 1), 1);
        fair_charge(&s, ref[first], cost[first], 0);
        had[first] += cost[first];
    }
}

Test(fair_share, device_time_is_divided_by_weight) {
    uint16_t ref[3] = {fair_enter(&s, 7, 1000, 0, 0), fair_enter(&s, 8, 2000, 0, 0),
                       fair_enter(&s, 9, 5000, 0, 0)};
    double cost[3] = {30e6, 10e6, 70e6}, had[3] = {0};

    serve(3, ref, cost, 5000, had);
    double sum = had[0] + had[1] + had[2];
    cr_expect_float_eq(had[0] / sum, 1 / 8.0, 0.005);
    cr_expect_float_eq(had[1] / sum, 2 / 8.0, 0.005);
    cr_expect_float_eq(had[2] / sum, 5 / 8.0, 0.005);
    uint32_t n;
    cr_expect_gt(fair_jain(&s, 0, &n), 0.999);
    cr_expect_eq(n, 3);
}

Test(fair_share, a_class_is_a_weight_and_starves_nobody) {
    uint16_t ref[2] = {fair_enter(&s, 1, 1000, 1, 0), fair_enter(&s, 2, 1000, 2, 0)};
    double cost[2] = {10e6, 10e6}, had[2] = {0};

    serve(2, ref, cost, 6500, had);
    cr_expect_float_eq(had[1] / (had[0] + had[1]), 1 / 65.0, 0.002);
}

Test(fair_share, who_comes_back_gets_no_arrears) {
    uint16_t a = fair_enter(&s, 1, 1000, 0, 0), b = fair_enter(&s, 2, 1000, 0, 0);

    fair_charge(&s, b, 1e6, 0);
    fair_exit(&s, b, 0);
    fair_charge(&s, a, 1000e9, 0);
    b = fair_enter(&s, 2, 1000, 0, SECOND);
    double lag = s.tenant[a].served_ns - s.tenant[b].served_ns;
    cr_expect_gt(lag, 0, "an occasional request stands before the flood");
    cr_expect_leq(lag, 1.001e9, "but not for a thousand seconds");
}

Test(fair_share, who_was_alone_is_not_punished_for_it) {
    uint16_t a = fair_enter(&s, 1, 1000, 0, 0);

    fair_charge(&s, a, 1000e9, 0);
    fair_exit(&s, a, 0);
    uint16_t b = fair_enter(&s, 2, 1000, 0, 0);
    a = fair_enter(&s, 1, 1000, 0, 0);
    cr_expect_leq(s.tenant[a].served_ns - s.tenant[b].served_ns, 1.001e9);
}

Test(fair_share, a_flood_does_not_hide_who_comes_after_it) {
    static struct fair_item x[300];
    uint16_t flood = fair_enter(&s, 1, 1000, 0, 0);
    uint32_t out[8];

    fair_charge(&s, flood, 10e9, 0);
    uint16_t other = fair_enter(&s, 2, 1000, 0, 0);
    for (uint32_t i = 0; i < 299; i++)
        x[i] = item(flood, 0, i, 100e6);
    x[299] = item(other, 5 * SECOND, 299, 100e6);
    cr_assert_eq(fair_pick(&s, x, 300, out, 8), 8);
    cr_expect_eq(out[0], 299);
    cr_expect_eq(out[1], 0);
}

Test(fair_share, candidates_of_equals_alternate) {
    struct fair_item x[8];
    uint16_t a = fair_enter(&s, 1, 1000, 0, 0), b = fair_enter(&s, 2, 1000, 0, 0);
    uint32_t out[8], of_b = 0;

    for (uint32_t i = 0; i < 8; i++)
        x[i] = item(i < 4 ? a : b, i, i, 100e6);
    cr_assert_eq(fair_pick(&s, x, 8, out, 8), 8);
    for (uint32_t i = 0; i < 4; i++)
        of_b += out[i] >= 4;
    cr_expect_eq(of_b, 2);
}

Test(fair_share, what_was_overtaken_often_is_first_of_all) {
    uint16_t a = fair_enter(&s, 1, 1000, 0, 0), b = fair_enter(&s, 2, 1000, 0, 0);
    struct fair_item x[2] = {item(a, 0, 0, 1e6), item(b, 0, 1, 1e6)};
    uint32_t out[2];

    fair_charge(&s, a, 500e9, 0);
    x[0].n_left = 0;
    fair_pick(&s, x, 2, out, 2);
    cr_expect_eq(out[0], 0);
}

Test(fair_share, over_is_more_than_ones_part) {
    uint16_t a = fair_enter(&s, 1, 3000, 0, 0), b = fair_enter(&s, 2, 1000, 0, 0);

    cr_expect(!fair_is_over(&s, a, 75, 100, false, 0));
    cr_expect(fair_is_over(&s, a, 76, 100, false, 0));
    cr_expect(fair_is_over(&s, b, 26, 100, false, 0));
    fair_exit(&s, a, 0);
    cr_expect(!fair_is_over(&s, b, 100, 100, false, 0), "alone it may have all");
    cr_expect(fair_is_over(&s, b, 100, 100, true, 0), "but the other was here lately");
    cr_expect(!fair_is_over(&s, b, 100, 100, true, 1000 * SECOND));
}

/* The sum of weights is kept between calls: here it is added up anew for each. */
Test(fair_share, over_is_judged_by_those_that_are_there_now) {
    static const uint32_t weights[4] = {100, 700, 1000, 3300};
    static uint16_t live[400];
    struct rng rng = {8};
    uint32_t n = 0, n_over = 0;

    for (int64_t now = SECOND, i = 0; i < 6000; i++, now += rng_below(&rng, 3) * SECOND) {
        uint32_t id = rng_below(&rng, 300), at = rng_below(&rng, MAX(n, 1));

        if (n < 400 && rng_below(&rng, 2) == 0) {
            live[n++] = fair_enter(&s, id, weights[id % 4], (uint8_t)(id % 3), now);
        } else if (n > 0) {
            fair_exit(&s, live[at], now);
            live[at] = live[--n];
        }
        if (n == 0)
            continue;
        uint32_t t = live[rng_below(&rng, n)], held = rng_below(&rng, 20);
        for (int lately = 0; lately < 2; lately++) {
            double sum = 0;

            for (uint32_t k = 0; k < s.n_tenants; k++)
                if (s.tenant[k].n_live > 0 || (lately && now - s.tenant[k].seen_ns < 300 * SECOND))
                    sum += s.tenant[k].weight;
            bool over = held * sum > 1000 * s.tenant[t].weight;
            cr_assert_eq(fair_is_over(&s, t, held, 1000, lately, now), over, "%ld", (long)i);
            n_over += over;
        }
    }
    cr_expect(n_over > 1000 && n_over < 11000, "%u", n_over);
}

Test(fair_share, tables_never_overflow) {
    struct rng rng = {6};
    static uint16_t live[2000];

    for (uint32_t i = 0; i < 2000; i++)
        live[i] = fair_enter(&s, rng_below(&rng, 600), 1000, (uint8_t)rng_below(&rng, 3), i);
    for (uint32_t i = 0; i < 2000; i++) {
        cr_assert_lt(live[i], FAIR_TENANTS);
        fair_charge(&s, live[i], 1e6, i);
        fair_exit(&s, live[i], i);
    }
    for (uint32_t i = 0; i < FAIR_TENANTS; i++)
        cr_assert_eq(s.tenant[i].n_live, 0);
}

/* Due requests behind it are served first, until it is due itself. */
Test(fair_share, a_request_is_overtaken_only_so_often) {
    static struct fair_item x[40];
    uint16_t tenant = fair_enter(&s, 1, 1000, 0, 0);
    uint32_t out[40];

    for (uint32_t i = 0; i < 40; i++) {
        x[i] = item(tenant, i, i, 1e6);
        x[i].n_left = i > 3 ? 0 : 8;
    }
    x[3].n_left = 5;
    cr_assert_eq(fair_pick(&s, x, 40, out, 40), 40);
    cr_expect_eq(out[4], 8);
    cr_expect_eq(out[5], 3);
}

/* Slots are left for the need that was observed of tenants with less, and for more if there are
 * many of them. */
Test(fair_share, seats_are_left_to_those_that_come_and_go) {
    uint16_t flood = fair_enter(&s, 1, 0, 0, 0), other[8];

    for (uint32_t i = 0; i < 8; i++)
        other[i] = fair_enter(&s, 2 + i, 0, 0, 0);
    s.tenant[flood].n_running = 40;
    for (int64_t t = 0; t <= 60 * SECOND; t += SECOND / 10)
        fair_note_slots(&s, 64, t);
    int64_t now = 60 * SECOND;
    cr_expect_eq(fair_yields(&s, flood, 64, now), 14, "8 and twice their root");
    for (uint32_t i = 0; i < 4; i++)
        s.tenant[other[i]].n_running = 1;
    cr_expect_eq(fair_yields(&s, flood, 64, now), 10, "4 have theirs");
    cr_expect_eq(fair_yields(&s, other[0], 64, now), 0, "it has its part");
    fair_charge(&s, other[7], 1e9, now);
    cr_expect_eq(fair_yields(&s, flood, 64, now), 9, "one has had enough");
    s.tenant[flood].served_ns = s.tenant[other[7]].served_ns - FAIR_QUANTUM_NS;
    cr_expect_eq(fair_yields(&s, flood, 64, now), 10, "one quantum is not enough");
}

Test(fair_share, half_of_a_share_is_forgotten_in_a_half_life) {
    const int64_t later = (int64_t)FAIR_HALF_LIFE_NS;
    uint16_t a = fair_enter(&s, 1, 0, 0, 0), b = fair_enter(&s, 2, 0, 0, 0);
    uint32_t n;

    fair_charge(&s, a, 2e9, 0);
    fair_charge(&s, b, 1e9, later);
    cr_expect_float_eq(fair_jain(&s, later, &n), 1, 1e-9);
    cr_expect_float_eq(fair_jain(&s, 3 * later, &n), 1, 1e-9, "both go on to decay");
    cr_expect_eq(n, 2);
}

Test(fair_share, who_is_going_to_be_ahead_is_held_from_the_beginning) {
    uint16_t a = fair_enter(&s, 1, 0, 0, 0), b = fair_enter(&s, 2, 0, 0, 0);

    s.tenant[b].coming_ns = 4e8;
    cr_assert_eq(fair_order(&s, 0), 2);
    cr_expect(s.part[0] >= 1 && s.part[1] >= 1);
    s.tenant[b].coming_ns = 7e9; /* a prompt of 100000 tokens */
    fair_order(&s, 0);
    for (uint32_t i = 0; i < 2; i++)
        cr_expect_float_eq(s.part[i], s.order[i] == a ? 1 : 0.5F, 0.01F);
}

/* A tenant with as much virtual time or as many slots takes no slot from another one. */
Test(fair_share, a_slot_is_taken_for_who_has_less_in_both) {
    static const struct {
        /* slots of four: of the tenant that asks, and of the other */
        uint32_t n_running[2];
        double had_ns[2];
        bool preempts;
    } cases[] = {
        {{0, 4}, {0, 9e9}, true},  {{1, 3}, {0, 9e9}, true},  {{1, 2}, {0, 9e9}, false},
        {{2, 2}, {0, 9e9}, false}, {{0, 4}, {9e9, 0}, false}, {{0, 4}, {9e9, 9e9}, false},
    };
    struct estimate estimate;
    struct plan plan = {.n_running = 4, .max_seqs = 4, .page_tokens = 16};
    struct list waiting;
    struct sched_view view = {
        .plan = &plan, .waiting = &waiting, .estimate = &estimate, .n_pages = 1000};

    estimate_init(&estimate, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fair_share f;
        struct request asks = {.n_prompt = 10, .n_tokens = 10, .max_tokens = 20};

        cr_assert_eq(fair_init(&f, &view), 0);
        asks.tenant = fair_enter(&f, 1, 0, 0, 0);
        uint16_t other = fair_enter(&f, 2, 0, 0, 0);
        f.tenant[asks.tenant].n_running = cases[i].n_running[0];
        f.tenant[other].n_running = cases[i].n_running[1];
        cr_assert_eq(fair_order(&f, 0), 2);
        f.tenant[asks.tenant].served_ns = cases[i].had_ns[0];
        f.tenant[other].served_ns = cases[i].had_ns[1];
        list_init(&waiting);
        list_push_back(&waiting, &asks.queued.link);
        cr_expect_eq(fair_preempts(&f, 0), cases[i].preempts, "case %zu", i);
        asks.tenant = other;
        cr_expect_eq(fair_is_victim(&f, &asks), cases[i].preempts, "case %zu", i);
        fair_deinit(&f);
    }
}

/* ---- several workers of one device ---- */

#define WORKERS 3u
#define TENANTS 3u
#define TURN_NS 20e6

/* Workers that run side by side for the same time. */
struct device {
    struct fair_share worker[WORKERS];
    uint16_t ref[WORKERS][TENANTS];
    bool asks[WORKERS][TENANTS];
    double had[WORKERS][TENANTS];
    int64_t now;
};

/* @asks: for each worker, a bit for each tenant that always has a request there. */
static void open_device(struct device *d, const uint32_t asks[WORKERS],
                        const uint32_t weight[TENANTS]) {
    memset(d, 0, sizeof(*d));
    for (uint32_t w = 0; w < WORKERS; w++) {
        cr_assert_eq(fair_init(&d->worker[w], &none), 0);
        for (uint32_t t = 0; t < TENANTS; t++)
            if ((d->asks[w][t] = asks[w] >> t & 1))
                d->ref[w][t] = fair_enter(&d->worker[w], t, weight[t], 0, 0);
    }
}

static void close_device(struct device *d) {
    for (uint32_t w = 0; w < WORKERS; w++)
        fair_deinit(&d->worker[w]);
}

/* Gives TURN_NS of each worker to the tenant that is first there. */
static void turn(struct device *d, uint32_t w) {
    struct fair_item x[TENANTS];
    uint32_t n = 0, first;

    for (uint32_t t = 0; t < TENANTS; t++)
        if (d->asks[w][t])
            x[n++] = item(d->ref[w][t], d->now, t, TURN_NS);
    if (fair_pick(&d->worker[w], x, n, &first, 1) == 0)
        return;
    fair_charge(&d->worker[w], x[first].tenant, TURN_NS, d->now);
    d->had[w][d->worker[w].tenant[x[first].tenant].id] += TURN_NS;
}

/* Exchanges SERVED as the front does. */
static void tell(struct device *d) {
    struct msg_served all[SERVED_MAX];

    for (uint32_t from = 0; from < WORKERS; from++) {
        uint32_t n = fair_served(&d->worker[from], all, SERVED_MAX);

        for (uint32_t to = 0; to < WORKERS; to++)
            for (uint32_t i = 0; i < n && to != from; i++)
                fair_charge_elsewhere(&d->worker[to], all[i].tenant, all[i].ns, d->now);
    }
}

static void run_device(struct device *d, uint32_t seconds) {
    for (uint32_t i = 0; i < seconds * 50; i++) {
        d->now += (int64_t)TURN_NS;
        for (uint32_t w = 0; w < WORKERS; w++)
            turn(d, w);
        if (i % 5 == 4)
            tell(d);
    }
}

/* Returns the tenant's part of the work of all workers. */
static double part(const struct device *d, uint32_t tenant) {
    double sum = 0, own = 0;

    for (uint32_t w = 0; w < WORKERS; w++)
        for (uint32_t t = 0; t < TENANTS; t++) {
            sum += d->had[w][t];
            own += t == tenant ? d->had[w][t] : 0;
        }
    return own / sum;
}

Test(fair_share, who_asks_two_models_has_what_others_have) {
    static const struct {
        const char *what;
        uint32_t asks[WORKERS], weight[TENANTS];
        double part[TENANTS];
    } cases[] = {
        /* Shares are exact if use elsewhere can be balanced here; */
        {"one each and a common one", {3, 5, 0}, {1000, 1000, 1000}, {1 / 3.0, 1 / 3.0, 1 / 3.0}},
        {"weights", {3, 1, 0}, {3000, 1000, 0}, {0.75, 0.25, 0}},
        {"weights, all ask all", {7, 7, 7}, {1000, 2000, 1000}, {0.25, 0.5, 0.25}},
        /* otherwise a tenant keeps an eighth of its share. */
        {"two models", {3, 1, 0}, {1000, 1000, 0}, {10 / 18.0, 8 / 18.0, 0}},
        {"three models", {3, 1, 1}, {1000, 1000, 0}, {19 / 27.0, 8 / 27.0, 0}},
        {"one of three has one", {7, 1, 2}, {1000, 1000, 1000}, {11 / 30.0, 11 / 30.0, 8 / 30.0}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        static struct device d;

        open_device(&d, cases[i].asks, cases[i].weight);
        run_device(&d, 200);
        for (uint32_t t = 0; t < TENANTS; t++)
            cr_expect_float_eq(part(&d, t), cases[i].part[t], 0.02, "%s: tenant %u has %.3f",
                               cases[i].what, t, part(&d, t));
        close_device(&d);
    }
}

/* Use elsewhere is forgotten after a while, and use without competition never counts. */
Test(fair_share, what_was_had_elsewhere_is_forgotten) {
    static struct device d;
    const uint32_t asks[WORKERS] = {3, 1, 0}, weight[TENANTS] = {1000, 1000, 0};

    open_device(&d, asks, weight);
    run_device(&d, 600);
    d.asks[1][0] = false; /* now both tenants use one model */
    run_device(&d, 30);
    memset(d.had, 0, sizeof(d.had));
    run_device(&d, 10);
    cr_expect_float_eq(part(&d, 0), 0.5, 0.05, "%.3f", part(&d, 0));
    close_device(&d);

    open_device(&d, asks, weight);
    d.asks[0][0] = d.asks[0][1] = false;
    fair_exit(&d.worker[0], d.ref[0][0], 0);
    run_device(&d, 600);
    d.asks[1][0] = false;
    d.asks[0][0] = d.asks[0][1] = true;
    d.ref[0][0] = fair_enter(&d.worker[0], 0, 1000, 0, d.now);
    memset(d.had, 0, sizeof(d.had));
    run_device(&d, 10);
    cr_expect_float_eq(part(&d, 0), 0.5, 0.01, "%.3f", part(&d, 0));
    close_device(&d);

    uint16_t a = fair_enter(&s, 1, 1000, 0, 0), b = fair_enter(&s, 2, 1000, 0, 0);
    fair_charge_elsewhere(&s, 1, 5000000000, 0);
    fair_exit(&s, a, 0);
    /* less than the uncounted use, and within the second of FAIR_BURST_NS */
    fair_charge(&s, b, 3e9, 0);
    a = fair_enter(&s, 1, 1000, 0, 0);
    cr_expect_float_eq(s.tenant[a].served_ns, 2e9, 1);
    cr_expect_float_eq(s.tenant[a].elsewhere_ns, 3e9, 1);
}

/* Makes tenant @t pause and come back @n times. Returns the time of its last end. */
static int64_t pause_often(uint32_t t, uint32_t n, int64_t pause_ns, int64_t now) {
    for (uint32_t i = 0; i < n; i++) {
        now += pause_ns;
        fair_exit(&s, fair_enter(&s, t, 1000, 0, now), now);
    }
    return now;
}

Test(fair_share, who_comes_back_soon_is_expected) {
    static const int64_t soon = 250000000;
    uint16_t other = fair_enter(&s, 1, 1000, 0, SECOND);

    fair_charge(&s, other, 100e9, 0);
    int64_t now = pause_often(2, 1, 0, 2 * SECOND);
    cr_expect_not(fair_expects(&s, now), "of its pauses none is known");
    now = pause_often(2, 1, soon, now);
    cr_expect(fair_expects(&s, now));
    cr_expect(fair_expects(&s, now + soon));
    cr_expect_not(fair_expects(&s, now + soon + 1));
    now = pause_often(2, 1, soon + 1, now);
    cr_expect_not(fair_expects(&s, now), "one of two pauses was long");
    now = pause_often(2, 3, 1, now);
    now = pause_often(2, 3, 10 * SECOND, now);
    cr_expect(fair_expects(&s, now), "three of the last six were short");
    now = pause_often(2, 3, SECOND, now);
    cr_expect_not(fair_expects(&s, now));

    now = pause_often(2, 1, 1, now);
    cr_expect(fair_expects(&s, now));
    fair_exit(&s, fair_enter(&s, 2, 1000, 0, now), now);
    fair_charge(&s, fair_enter(&s, 2, 1000, 0, now), 100e9, 0);
    cr_expect_not(fair_expects(&s, now), "its request is not in its last step");
    fair_exit(&s, s.tenant[0].id == 2 ? 0 : 1, now);
    cr_expect_not(fair_expects(&s, now), "it is not behind");
}
