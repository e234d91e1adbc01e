#include <criterion/criterion.h>
#include <math.h>

#include "base/fairq.h"
#include "base/rng.h"

#define TENANTS 6
#define ITEMS 64
#define MS 1000000

/* Reports all that has ended. */
static void remove_all(struct fairq *q) {
    struct fairq_item *i;

    while ((i = fairq_next_ended(q)))
        fairq_remove(q, i);
}

/* ---- a naive model: everything is found by looking at all items ---- */

struct unit {
    struct fairq_item item;
    uint32_t tenant;
    bool in, paused, ended;
    /* among equals: as they came or ended, and before them what paused last */
    int64_t order;
};

struct model {
    struct fairq q;
    struct unit unit[ITEMS];
    double virtual_ns[TENANTS], now, weight[TENANTS];
    int64_t order;
};

static uint32_t count(const struct model *m, int tenant, bool running) {
    uint32_t n = 0;

    for (int k = 0; k < ITEMS; k++) {
        const struct unit *u = &m->unit[k];

        if (u->in && (tenant < 0 || u->tenant == (uint32_t)tenant))
            n += running ? u->item.running : u->item.begun;
    }
    return n;
}

static bool is_active(const struct model *m, uint32_t tenant) {
    for (int k = 0; k < ITEMS; k++)
        if (m->unit[k].in && m->unit[k].tenant == tenant)
            return true;
    return false;
}

static void advance(struct model *m) {
    double least = INFINITY, most = m->now;

    for (uint32_t t = 0; t < TENANTS; t++) {
        most = m->virtual_ns[t] > most ? m->virtual_ns[t] : most;
        if (is_active(m, t) && m->virtual_ns[t] < least)
            least = m->virtual_ns[t];
    }
    least = isinf(least) ? most : least;
    m->now = least > m->now ? least : m->now;
}

static bool may_run(const struct model *m, const struct unit *u) {
    uint32_t n_free = m->q.n_slots - count(m, -1, false), places = m->q.n_places;

    if (!u->in || u->ended || u->item.running || (u->item.begun && !u->paused))
        return false;
    if (count(m, -1, true) >= places ||
        count(m, (int)u->tenant, true) >= (places > 1 ? places - 1 : 1))
        return false;
    return u->item.begun || (n_free > 0 && count(m, (int)u->tenant, false) <= n_free / 4);
}

/* Whether @a comes before @b; ties between tenants are free. */
static bool is_before(const struct model *m, const struct unit *a, const struct unit *b) {
    if (a->item.background != b->item.background)
        return b->item.background;
    if (a->tenant != b->tenant)
        return m->virtual_ns[a->tenant] < m->virtual_ns[b->tenant];
    int64_t quanta = a->item.used_ns / FAIRQ_QUANTUM_NS - b->item.used_ns / FAIRQ_QUANTUM_NS;

    return quanta ? quanta < 0 : a->order < b->order;
}

static void check_next(struct model *m) {
    bool any = false;
    bool could[ITEMS];

    for (int k = 0; k < ITEMS; k++)
        any |= could[k] = may_run(m, &m->unit[k]);
    struct fairq_item *i = fairq_next(&m->q);

    cr_assert_eq(i != NULL, any);
    if (!i)
        return;
    struct unit *u = CONTAINER_OF(i, struct unit, item);
    cr_assert(could[u - m->unit]);
    for (int k = 0; k < ITEMS; k++)
        cr_assert(!could[k] || !is_before(m, &m->unit[k], u), "item %d should be next", k);
    u->paused = false;
}

static void add(struct model *m, struct rng *rng) {
    struct unit *u = &m->unit[rng_below(rng, ITEMS)];

    if (u->in)
        return;
    advance(m);
    *u = (struct unit){.tenant = (uint32_t)rng_below(rng, TENANTS)};
    if (!is_active(m, u->tenant) && m->virtual_ns[u->tenant] < m->now - FAIRQ_CREDIT_NS)
        m->virtual_ns[u->tenant] = m->now - FAIRQ_CREDIT_NS;
    u->item.background = rng_below(rng, 8) == 0;
    u->order = ++m->order;
    cr_assert_eq(fairq_add(&m->q, &u->item, u->tenant, m->weight[u->tenant]), 0);
    u->in = true;
}

static void change(struct model *m, struct rng *rng) {
    struct unit *u = &m->unit[rng_below(rng, ITEMS)];
    uint64_t what = rng_below(rng, 4);

    if (!u->in || u->ended)
        return;
    if (u->item.running) {
        int64_t ns = (int64_t)rng_below(rng, FAIRQ_QUANTUM_NS);

        fairq_charge(&m->q, &u->item, ns);
        m->virtual_ns[u->tenant] += (double)ns / m->weight[u->tenant];
        if (what) {
            fairq_pause(&m->q, &u->item);
            u->paused = true;
            u->order = -++m->order;
            return;
        }
        fairq_end(&m->q, &u->item);
    } else if (what == 0 && (u->paused || !u->item.begun)) {
        bool begun = u->item.begun;

        fairq_withdraw(&m->q, &u->item);
        if (begun)
            fairq_end(&m->q, &u->item);
    } else {
        return;
    }
    u->ended = true;
    u->order = ++m->order;
}

/* Reports one item that has ended; the report takes up to @most_ns. */
static void report(struct model *m, struct rng *rng, uint64_t most_ns) {
    bool any = false;

    for (int k = 0; k < ITEMS; k++)
        any |= m->unit[k].ended;
    struct fairq_item *i = fairq_next_ended(&m->q);

    cr_assert_eq(i != NULL, any);
    if (!i)
        return;
    struct unit *u = CONTAINER_OF(i, struct unit, item);
    int64_t ns = (int64_t)rng_below(rng, most_ns);
    cr_assert(u->in && u->ended);
    for (int k = 0; k < ITEMS; k++) {
        const struct unit *o = &m->unit[k];

        if (o->ended && o->tenant == u->tenant)
            cr_assert_geq(o->order, u->order, "item %d has ended before", k);
        else if (o->ended)
            cr_assert_geq(m->virtual_ns[o->tenant], m->virtual_ns[u->tenant]);
    }
    fairq_charge(&m->q, i, ns);
    fairq_remove(&m->q, i);
    m->virtual_ns[u->tenant] += (double)ns / m->weight[u->tenant];
    u->in = u->ended = false;
    advance(m);
}

Test(fairq, chooses_as_a_naive_model_does) {
    for (uint64_t seed = 1; seed <= 24; seed++) {
        struct model m = {0};
        struct rng rng = {seed};
        uint32_t n_places = 1 + (uint32_t)rng_below(&rng, 5);

        for (uint32_t t = 0; t < TENANTS; t++)
            m.virtual_ns[t] = -FAIRQ_CREDIT_NS;
        fairq_init(&m.q, n_places, n_places + (uint32_t)rng_below(&rng, 16));
        for (uint32_t t = 0; t < TENANTS; t++)
            m.weight[t] = (double)(1 + rng_below(&rng, 4));
        for (int i = 0; i < 3000; i++) {
            if (rng_below(&rng, 3) == 0)
                add(&m, &rng);
            else
                change(&m, &rng);
            if (rng_below(&rng, 3) == 0)
                report(&m, &rng, FAIRQ_QUANTUM_NS);
            check_next(&m);
            cr_assert_eq(m.q.n_running, count(&m, -1, true));
            cr_assert_eq(m.q.n_begun, count(&m, -1, false));
        }
        for (int k = 0; k < ITEMS; k++) {
            struct unit *u = &m.unit[k];

            if (u->in && !u->ended && !u->item.running)
                fairq_withdraw(&m.q, &u->item);
            if (u->in && u->item.begun)
                fairq_end(&m.q, &u->item);
            u->ended = false;
        }
        remove_all(&m.q);
        fairq_deinit(&m.q);
    }
}

/* ---- promises, in virtual time ---- */

/* Runs all that has a place for one slice, @n times. */
static void run_slices(struct fairq *q, struct fairq_item *const *item, uint32_t n_items, int n) {
    while (n--) {
        while (fairq_next(q))
            ;
        for (uint32_t k = 0; k < n_items; k++) {
            if (!item[k]->running)
                continue;
            fairq_charge(q, item[k], 2 * MS);
            fairq_pause(q, item[k]);
        }
    }
}

static void end_all(struct fairq *q, struct fairq_item *const *item, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) {
        fairq_withdraw(q, item[k]);
        if (item[k]->begun)
            fairq_end(q, item[k]);
    }
    remove_all(q);
    fairq_deinit(q);
}

Test(fairq, time_is_shared_by_weight_however_many_items_a_tenant_has) {
    struct fairq q;
    struct fairq_item many[20] = {0}, one = {0}, *all[21];

    fairq_init(&q, 1, 16);
    for (int k = 0; k < 20; k++) {
        cr_assert_eq(fairq_add(&q, &many[k], 1, 1), 0);
        all[k] = &many[k];
    }
    cr_assert_eq(fairq_add(&q, &one, 2, 3), 0);
    all[20] = &one;
    run_slices(&q, all, 21, 4000);
    int64_t others = 0;
    for (int k = 0; k < 20; k++)
        others += many[k].used_ns;
    cr_expect_eq(one.used_ns + others, 8000ll * MS);
    cr_expect_float_eq((double)one.used_ns / (double)others, 3, 0.01);
    end_all(&q, all, 21);
}

Test(fairq, one_tenant_never_has_the_last_place_or_all_slots) {
    struct fairq q;
    struct fairq_item many[40] = {0}, late = {0}, *all[41];

    fairq_init(&q, 4, 16);
    for (int k = 0; k < 40; k++) {
        cr_assert_eq(fairq_add(&q, &many[k], 1, 1), 0);
        all[k] = &many[k];
    }
    run_slices(&q, all, 40, 200);
    cr_expect_leq(q.n_begun, 4u, "%u slots", q.n_begun);
    while (fairq_next(&q))
        ;
    cr_expect_eq(q.n_running, 3u);
    cr_assert_eq(fairq_add(&q, &late, 2, 1), 0);
    cr_expect_eq(fairq_next(&q), &late, "another tenant's item runs at once");
    all[40] = &late;
    for (int k = 0; k < 41; k++)
        if (all[k]->running)
            fairq_pause(&q, all[k]);
    end_all(&q, all, 41);
}

Test(fairq, absence_earns_little_and_excess_is_remembered) {
    struct fairq q;
    struct fairq_item a = {0}, b = {0}, c = {0};

    fairq_init(&q, 1, 4);
    cr_assert_eq(fairq_add(&q, &a, 1, 1), 0);
    cr_assert_eq(fairq_add(&q, &b, 2, 1), 0);
    struct fairq_item *first = fairq_next(&q), *second;
    fairq_charge(&q, first, 1000 * MS);
    fairq_end(&q, first);
    remove_all(&q);
    second = fairq_next(&q);
    cr_expect_eq(second, first == &a ? &b : &a);
    fairq_charge(&q, second, 100 * MS);
    fairq_pause(&q, second);
    /* The first one comes again: it is 900 ms ahead, whatever it has ended meanwhile. */
    cr_assert_eq(fairq_add(&q, first, first == &a ? 1 : 2, 1), 0);
    cr_expect_eq(fairq_next(&q), second);
    fairq_charge(&q, second, 800 * MS);
    fairq_pause(&q, second);
    /* A new one does not get all the time that it was not there. */
    cr_assert_eq(fairq_add(&q, &c, 3, 1), 0);
    struct fairq_item *all[] = {&a, &b, &c};
    run_slices(&q, all, 3, 300);
    /* 600 ms for three, of which two wait for c to use its credit. */
    cr_expect_leq(c.used_ns, 320 * MS);
    cr_expect_geq(c.used_ns, 150 * MS);
    end_all(&q, all, 3);
}

Test(fairq, what_comes_now_and_then_runs_at_once) {
    struct fairq q;
    struct fairq_item lasting = {0};

    fairq_init(&q, 1, 4);
    cr_assert_eq(fairq_add(&q, &lasting, 1, 1), 0);
    for (int round = 0; round < 20; round++) {
        struct fairq_item small = {0};

        for (int k = 0; k < 100; k++) {
            cr_assert_eq(fairq_next(&q), &lasting);
            fairq_charge(&q, &lasting, 2 * MS);
            fairq_pause(&q, &lasting);
        }
        cr_assert_eq(fairq_add(&q, &small, 2, 1), 0);
        for (int k = 0; k < 40; k++) { /* 80 ms without a pause for the other */
            cr_assert_eq(fairq_next(&q), &small, "round %d, slice %d", round, k);
            fairq_charge(&q, &small, 2 * MS);
            fairq_pause(&q, &small);
        }
        cr_assert_eq(fairq_next(&q), &small);
        fairq_end(&q, &small);
        remove_all(&q);
    }
    fairq_withdraw(&q, &lasting);
    fairq_end(&q, &lasting);
    remove_all(&q);
    fairq_deinit(&q);
}

Test(fairq, an_item_of_a_tenant_goes_on_for_its_quantum) {
    struct fairq q;
    struct fairq_item item[3] = {0};
    struct fairq_item *const all[] = {&item[0], &item[1], &item[2]};

    fairq_init(&q, 1, 16);
    for (int k = 0; k < 3; k++)
        cr_assert_eq(fairq_add(&q, &item[k], 1, 1), 0);
    for (int n = 0; n < 12; n++) {
        struct fairq_item *first = NULL;

        for (int k = 0; k < 8; k++) {
            struct fairq_item *i = fairq_next(&q);

            first = k == 0 ? i : first;
            cr_assert_eq(i, first, "quantum %d, pause %d", n, k);
            fairq_charge(&q, i, FAIRQ_QUANTUM_NS / 8);
            fairq_pause(&q, i);
        }
    }
    for (int k = 0; k < 3; k++)
        cr_expect_eq(item[k].used_ns, 4 * FAIRQ_QUANTUM_NS);
    end_all(&q, all, 3);
}
