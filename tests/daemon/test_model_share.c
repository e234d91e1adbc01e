#include <criterion/criterion.h>
#include <math.h>

#include "base/util.h"
#include "daemon/models/model_share.h"

#define MS INT64_C(1000000)
#define N_MODELS 6
#define QUANTUM (200 * MS)

/* ---- a machine with room for one model ---- */

struct world {
    struct model_share share;
    struct model_users users[N_MODELS];
    /* number of the loaded model; -1: none */
    int loaded;
    int64_t now, had_ns[N_MODELS];
};

static void use(struct world *w, int model, uint32_t tenant, double weight) {
    model_share_use(&w->share, &w->users[model], tenant, weight, w->now);
}

/* Runs 10 ms in which all models of @waiting (bits) that are not loaded wait for room. */
static void step(struct world *w, unsigned waiting) {
    int first = -1;
    double least = INFINITY;

    if (w->loaded >= 0)
        waiting &= ~(1u << w->loaded);
    for (int k = 0; k < N_MODELS; k++)
        if (waiting & 1u << k && model_share_least(&w->share, &w->users[k], w->now) < least)
            least = model_share_least(&w->share, &w->users[first = k], w->now);
    if (first >= 0 && (w->loaded < 0 || !model_share_holds(&w->share, &w->users[w->loaded],
                                                           &w->users[first], QUANTUM, 0, w->now)))
        w->loaded = first;
    w->now += 10 * MS;
    if (w->loaded < 0)
        return;
    w->had_ns[w->loaded] += 10 * MS;
    if (!(waiting & ~(1u << w->loaded)))
        return;
    model_share_charge(&w->share, &w->users[w->loaded], 1, 10 * MS, w->now);
    for (int k = 0; k < N_MODELS; k++)
        if (k == w->loaded || waiting & 1u << k)
            least = MIN(least, model_share_least(&w->share, &w->users[k], w->now));
    model_share_advance(&w->share, least);
}

/* Lets tenant 0 use model 0 and tenant 1 all other models, all the time. */
static void both(struct world *w, double weight, int n_steps) {
    while (n_steps--) {
        use(w, 0, 0, weight);
        for (int k = 1; k < N_MODELS; k++)
            use(w, k, 1, 1);
        step(w, (1u << N_MODELS) - 1);
    }
}

static double part_of_first(struct world *w, double weight, int n_steps) {
    int64_t before = w->had_ns[0], begin = w->now;

    both(w, weight, n_steps);
    return (double)(w->had_ns[0] - before) / (double)(w->now - begin);
}

Test(model_share, many_models_get_their_tenant_no_more) {
    struct world w = {.loaded = -1};

    cr_expect_float_eq(part_of_first(&w, 1, 2000), 0.5, 0.02);
    model_share_deinit(&w.share);
}

Test(model_share, shares_are_by_weight) {
    struct world w = {.loaded = -1};

    cr_expect_float_eq(part_of_first(&w, 3, 2000), 0.75, 0.03);
    model_share_deinit(&w.share);
}

Test(model_share, who_comes_is_not_ahead_of_who_was_there) {
    struct world w = {.loaded = -1};

    for (int i = 0; i < 10000; i++) { /* 100 s of one tenant alone, whose models do not all fit */
        use(&w, 1, 1, 1);
        use(&w, 2, 1, 1);
        step(&w, 6);
    }
    cr_expect_float_eq(part_of_first(&w, 1, 400), 0.5, 0.05);
    model_share_deinit(&w.share);
}

Test(model_share, no_tenant_waits_longer_than_the_greatest_lead) {
    struct world w = {.loaded = -1};
    int n = 0;

    /* Model 0 has room of its own for an hour, in which tenant 1 uses far more. */
    use(&w, 0, 0, 1);
    for (int i = 0; i < 3600; i++) {
        use(&w, 0, 0, 1);
        use(&w, 1, 1, 1);
        w.now += 1000 * MS;
        model_share_charge(&w.share, &w.users[1], 1, 1000 * MS, w.now);
        model_share_charge(&w.share, &w.users[0], 0.01, 1000 * MS, w.now);
        model_share_advance(&w.share, model_share_least(&w.share, &w.users[0], w.now));
    }
    w.loaded = 0;
    while (w.loaded == 0) {
        use(&w, 0, 0, 1);
        use(&w, 1, 1, 1);
        step(&w, 3);
        n++;
    }
    cr_expect_leq(n * 10 * MS, MODEL_LEAD_NS + 2 * QUANTUM);
    model_share_deinit(&w.share);
}

Test(model_share, a_model_that_no_tenant_uses_any_more_leaves) {
    struct world w = {.loaded = 0};

    use(&w, 0, 0, 1);
    use(&w, 0, 2, 1);
    use(&w, 1, 1, 1);
    cr_expect(model_share_holds(&w.share, &w.users[0], &w.users[1], QUANTUM, 0, w.now));
    w.now += MODEL_USE_NS;
    use(&w, 1, 1, 1);
    /* the last user is charged; the other one does not count any more */
    for (int i = 0; i < QUANTUM / (10 * MS); i++)
        step(&w, 2);
    cr_expect_eq(w.loaded, 0);
    step(&w, 2);
    cr_expect_eq(w.loaded, 1);
    model_share_deinit(&w.share);
}

Test(model_share, an_idle_model_is_kept_for_a_while) {
    struct world w = {.loaded = 0};

    use(&w, 0, 0, 1);
    use(&w, 1, 1, 1);
    cr_expect(
        model_share_holds(&w.share, &w.users[0], &w.users[1], QUANTUM, MODEL_HOLD_NS - 1, w.now));
    cr_expect(
        !model_share_holds(&w.share, &w.users[0], &w.users[1], QUANTUM, MODEL_HOLD_NS, w.now));
    model_share_deinit(&w.share);
}

Test(model_share, a_tenant_does_not_hold_out_against_itself) {
    struct world w = {.loaded = 0};

    use(&w, 0, 0, 1);
    use(&w, 1, 0, 1);
    cr_expect(!model_share_holds(&w.share, &w.users[0], &w.users[1], QUANTUM, 0, w.now));
    use(&w, 0, 1, 1); /* another tenant uses both models, a third one only the first */
    use(&w, 1, 1, 1);
    cr_expect(!model_share_holds(&w.share, &w.users[0], &w.users[1], QUANTUM, 0, w.now));
    use(&w, 0, 2, 1);
    cr_expect(model_share_holds(&w.share, &w.users[0], &w.users[1], QUANTUM, 0, w.now));
    model_share_deinit(&w.share);
}

Test(model_share, the_latest_users_are_kept) {
    struct world w = {.loaded = -1};

    for (uint32_t t = 0; t < 3 * MODEL_USERS; t++) {
        use(&w, 0, t, 1);
        use(&w, 0, t / 2, 1);
    }
    cr_expect_eq(w.users[0].n, MODEL_USERS);
    for (uint32_t i = 0; i < MODEL_USERS; i++)
        for (uint32_t k = 0; k < i; k++)
            cr_expect_neq(w.users[0].user[i].tenant, w.users[0].user[k].tenant);
    cr_expect_eq(w.users[0].user[0].tenant, (3 * MODEL_USERS - 1) / 2);
    cr_expect_eq(w.users[0].user[1].tenant, 3 * MODEL_USERS - 1);
    model_share_deinit(&w.share);
}

/* ---- numbers ---- */

static double virtual(const struct world *w, uint32_t tenant) {
    return w->share.tenant[tenant].virtual_ns;
}

/* A model's users share what it costs, each by its weight. */
Test(model_share, the_cost_is_divided_by_users_and_weights) {
    struct world w = {.loaded = -1, .now = 1000 * MS};

    model_share_charge(&w.share, &w.users[0], 1, 7, w.now); /* it has no user */
    cr_expect_eq(model_share_least(&w.share, &w.users[0], w.now), 0);
    use(&w, 0, 1, 1);
    use(&w, 0, 4, 2);
    cr_expect_eq(w.share.n, 5);
    cr_expect(w.share.tenant[0].weight == 0 && w.share.tenant[4].weight == 2);
    model_share_charge(&w.share, &w.users[0], 0.5, 800, w.now);
    cr_expect_float_eq(virtual(&w, 1), 200, 1e-6);
    cr_expect_float_eq(virtual(&w, 4), 100, 1e-6);
    cr_expect_float_eq(model_share_least(&w.share, &w.users[0], w.now), 100, 1e-6);
    use(&w, 0, 4, 4); /* its weight has changed */
    model_share_charge(&w.share, &w.users[0], 1, 800, w.now);
    cr_expect_float_eq(virtual(&w, 4), 200, 1e-6);
    cr_expect_float_eq(virtual(&w, 1), 600, 1e-6);
    model_share_advance(&w.share, 300);
    model_share_advance(&w.share, 250);
    cr_expect_eq(w.share.virtual_ns, 300);
    cr_expect_eq(model_share_least(&w.share, &w.users[1], w.now), 300, "that of a new user");
    use(&w, 1, 4, 4);
    cr_expect_eq(virtual(&w, 4), 300, "it is not ahead of a new one");
    use(&w, 1, 1, 1);
    cr_expect_float_eq(virtual(&w, 1), 600, 1e-6);
    model_share_charge(&w.share, &w.users[0], 1, 2 * MODEL_LEAD_NS * 2, w.now);
    cr_expect_eq(virtual(&w, 1), 300 + MODEL_LEAD_NS, "the greatest lead");
    model_share_deinit(&w.share);
    cr_expect(!w.share.tenant && w.share.n == 0 && w.share.virtual_ns == 0);
}

/* A user counts for a minute, and the latest one always. */
Test(model_share, users_count_for_a_time) {
    struct world w = {.loaded = -1, .now = 1000 * MS};

    use(&w, 0, 1, 1);
    w.now += 5;
    use(&w, 0, 2, 1);
    w.now += MODEL_USE_NS - 6;
    model_share_charge(&w.share, &w.users[0], 1, 100, w.now);
    cr_expect(virtual(&w, 1) == 50 && virtual(&w, 2) == 50);
    w.now++;
    model_share_charge(&w.share, &w.users[0], 1, 100, w.now);
    cr_expect(virtual(&w, 1) == 50 && virtual(&w, 2) == 150);
    cr_expect_eq(model_share_least(&w.share, &w.users[0], w.now), 150);
    w.now += 10 * MODEL_USE_NS;
    model_share_charge(&w.share, &w.users[0], 1, 100, w.now);
    cr_expect_eq(virtual(&w, 2), 250);
    use(&w, 0, 1, 1);
    cr_expect_eq(w.users[0].n, 2);
    cr_expect(w.users[0].user[0].tenant == 1 && w.users[0].user[0].at_ns == w.now);
    cr_expect_eq(w.users[0].user[1].tenant, 2);
    model_share_deinit(&w.share);
}
