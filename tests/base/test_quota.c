#include <criterion/criterion.h>
#include <string.h>

#include "base/quota.h"
#include "base/rng.h"

/* A tree of accounts and charges, and the same once more as plain arrays that know no lists and no
 * sums: each question is answered from the charges alone. */
#define ACCOUNTS 7 /* 0: the root; 1, 2, 3: below it; 4, 5, 6: below 3 */
#define CHARGES 24

struct scene {
    struct quota q;
    /* [0] is not used */
    struct quota_account own[ACCOUNTS];
    struct quota_charge charge[CHARGES];
    /* The model. */
    int account_of[CHARGES];
    uint64_t n[CHARGES];
    /* 0: it is not */
    uint64_t offered_at[CHARGES];
    uint64_t now;
};

static const int parent_of[ACCOUNTS] = {-1, 0, 0, 0, 3, 3, 3};
static const double weight_of[ACCOUNTS] = {1, 1, 2, 1, 1, 1, 4};

static struct quota_account *account(struct scene *s, int i) {
    return i == 0 ? &s->q.root : &s->own[i];
}

static void scene_init(struct scene *s, uint64_t limit, uint64_t reserve) {
    memset(s, 0, sizeof(*s));
    quota_init(&s->q, limit, reserve);
    for (int i = 1; i < ACCOUNTS; i++)
        quota_account_init(&s->own[i], account(s, parent_of[i]), weight_of[i]);
    for (int i = 0; i < CHARGES; i++) {
        s->account_of[i] = i % 2 ? 1 + i % 2 : 4 + i % 3;
        quota_charge_init(&s->charge[i], account(s, s->account_of[i]));
    }
}

static bool is_below(int i, int account) {
    for (; i >= 0; i = parent_of[i])
        if (i == account)
            return true;
    return false;
}

static uint64_t model_used(const struct scene *s, int account) {
    uint64_t sum = 0;

    for (int i = 0; i < CHARGES; i++)
        sum += is_below(s->account_of[i], account) ? s->n[i] : 0;
    return sum;
}

/* What @account may have while @asker asks, by the definition. */
static double model_share(const struct scene *s, int account, int asker) {
    double sum = 0;

    if (account == 0)
        return (double)s->q.limit;
    for (int i = 1; i < ACCOUNTS; i++)
        if (parent_of[i] == parent_of[account] && (model_used(s, i) > 0 || is_below(asker, i)))
            sum += weight_of[i];
    return model_share(s, parent_of[account], asker) * weight_of[account] / sum;
}

/* How far @account is above its share, 0 where it or one above it is not. */
static double model_excess(const struct scene *s, int account, int asker, uint64_t n) {
    double has = 0, share = 1;

    for (int i = account; i > 0; i = parent_of[i]) {
        double h = (double)model_used(s, i) + (double)(is_below(asker, i) ? n : 0);

        if (h <= model_share(s, i, asker) + 1e-9)
            return 0;
        if (i == account) {
            has = h;
            share = model_share(s, i, asker);
        }
    }
    return has / share;
}

static double model_most(const struct scene *s, int asker, uint64_t n) {
    double most = 0;

    for (int i = 0; i < CHARGES; i++)
        if (s->offered_at[i])
            most = MAX(most, model_excess(s, s->account_of[i], asker, n));
    return most;
}

static void expect_same(struct scene *s, int asker, uint64_t n) {
    struct quota_charge *v = quota_victim(&s->q, account(s, asker), n);
    double most = model_most(s, asker, n);

    for (int i = 0; i < ACCOUNTS; i++)
        cr_assert_eq(account(s, i)->used, model_used(s, i));
    if (!v) {
        cr_assert_eq(most, 0, "there is a victim");
        return;
    }
    int at = (int)(v - s->charge);
    cr_assert(s->offered_at[at]);
    cr_assert_float_eq(model_excess(s, s->account_of[at], asker, n), most, 1e-6);
    for (int i = 0; i < CHARGES; i++)
        cr_assert(!s->offered_at[i] || s->account_of[i] != s->account_of[at] ||
                      s->offered_at[i] >= s->offered_at[at],
                  "an older one is offered");
}

static void set(struct scene *s, int i, uint64_t n) {
    quota_charge_set(&s->charge[i], n);
    s->n[i] = n;
    s->offered_at[i] = n ? s->offered_at[i] : 0;
}

static void move(struct scene *s, int i, int to) {
    quota_charge_move(&s->charge[i], account(s, to));
    if (s->account_of[i] != to && s->offered_at[i])
        s->offered_at[i] = ++s->now;
    s->account_of[i] = to;
}

static void offer(struct scene *s, int i, bool offered) {
    if (offered)
        quota_charge_offer(&s->charge[i]);
    else
        quota_charge_withhold(&s->charge[i]);
    s->offered_at[i] = offered && s->n[i] ? ++s->now : 0;
}

Test(quota, the_victim_is_the_one_that_a_naive_model_finds) {
    static const int leaves[] = {1, 2, 4, 5, 6};
    struct scene s;
    struct rng r;

    for (uint64_t seed = 0; seed < 200; seed++) {
        r = (struct rng){seed};
        scene_init(&s, 1000, 0);
        for (int k = 0; k < 400; k++) {
            int i = (int)(rng_next(&r) % CHARGES);

            switch (rng_next(&r) % 4) {
            case 0:
                set(&s, i, rng_next(&r) % 3 ? rng_next(&r) % 200 : 0);
                break;
            case 1:
                move(&s, i, leaves[rng_next(&r) % ARRAY_SIZE(leaves)]);
                break;
            default:
                offer(&s, i, rng_next(&r) % 3);
            }
            expect_same(&s, leaves[rng_next(&r) % ARRAY_SIZE(leaves)], rng_next(&r) % 300);
        }
    }
}

static struct scene *the_scene;
static int n_taken;

static void take(struct quota_charge *v) {
    n_taken++;
    set(the_scene, (int)(v - the_scene->charge), 0);
}

/* As a server does: ask, then set. Whether it was allowed. */
static bool grow(struct scene *s, int i, uint64_t n) {
    the_scene = s;
    bool ok = quota_make_room(&s->q, &s->charge[i], n, take);
    if (ok)
        set(s, i, s->n[i] + n);
    return ok;
}

Test(quota, an_account_within_its_share_never_gives_way) {
    struct scene s;
    struct rng r;

    for (uint64_t seed = 0; seed < 200; seed++) {
        r = (struct rng){seed + 1000};
        scene_init(&s, 1000, 1000);
        move(&s, 0, 1); /* holds half of what it may, whatever the others do */
        for (int i = 1; i < CHARGES; i++)
            move(&s, i, i % 2 ? 2 : 4 + i % 3);
        cr_assert(grow(&s, 0, 110));
        offer(&s, 0, true);
        for (int k = 0; k < 300; k++) {
            int i = 1 + (int)(rng_next(&r) % (CHARGES - 1));

            if (grow(&s, i, rng_next(&r) % 200))
                offer(&s, i, rng_next(&r) % 2);
            cr_assert_eq(s.charge[0].n, 110);
            cr_assert_leq(s.q.root.used, 2000);
            expect_same(&s, 1, 10);
        }
    }
}

Test(quota, one_account_alone_has_everything_and_then_gives_way_to_itself) {
    struct scene s;

    scene_init(&s, 100, 100);
    for (int i = 0; i < 4; i++)
        move(&s, i, 1);
    for (int i = 0; i < 3; i++) {
        cr_expect(grow(&s, i, 30));
        offer(&s, i, true);
    }
    n_taken = 0;
    cr_expect(grow(&s, 3, 30));
    cr_expect_eq(n_taken, 1);
    cr_expect_eq(s.n[0], 0, "the oldest");
    cr_expect(!grow(&s, 1, 30), "what asks is itself the oldest");
}

Test(quota, what_cannot_be_taken_back_locks_out_no_one_within_its_share) {
    struct scene s;

    scene_init(&s, 100, 100);
    for (int i = 0; i < 4; i++)
        move(&s, i, i ? 1 : 2);
    cr_expect(grow(&s, 1, 100));
    cr_expect(!grow(&s, 2, 1), "it is above its share");
    cr_expect(grow(&s, 0, 60), "two thirds by weight are its share");
    cr_expect(!grow(&s, 0, 10));
    cr_expect_eq(s.q.root.used, 160);
}

Test(quota, addresses_without_a_key_count_as_one) {
    struct scene s;

    scene_init(&s, 120, 0);
    for (int i = 0; i < 20; i++) { /* 20 by each of three addresses, 40 by a tenant: none is left */
        move(&s, i, i < 6 ? 4 : i < 12 ? 5 : i < 14 ? 6 : 1);
        cr_expect(grow(&s, i, i < 14 ? 6 : 6));
        offer(&s, i, true);
    }
    /* The tenant has 36 of its 60; the addresses 84 of theirs. */
    cr_expect(grow(&s, 20, 0));
    move(&s, 21, 1);
    n_taken = 0;
    cr_expect(grow(&s, 21, 6));
    cr_expect_eq(n_taken, 1);
    cr_expect_eq(model_used(&s, 1), 42);
    cr_expect_eq(model_used(&s, 3), 78);
}

Test(quota, a_charge_that_is_passed_on_is_freed_by_its_new_owner) {
    struct scene s;
    struct quota_charge next;

    scene_init(&s, 100, 0);
    set(&s, 0, 40);
    offer(&s, 0, true);
    quota_charge_pass(&s.charge[0], &next);
    cr_expect_eq(s.charge[0].n, 0);
    cr_expect_eq(s.q.root.used, 40);
    cr_expect_null(quota_victim(&s.q, account(&s, 1), 100));
    quota_charge_set(&next, 0);
    cr_expect_eq(s.q.root.used, 0);
}
