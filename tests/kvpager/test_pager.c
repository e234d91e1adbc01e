#include <criterion/criterion.h>
#include <errno.h>

#include "base/rng.h"
#include "model.h"
#include "tests/support/few.h"

Test(kv_pager, random_operations_agree_with_the_naive_model) {
    for (uint64_t seed = 1; seed <= FEWER(2000, 400); seed++)
        model_random(seed, 1000, NULL);
}

Test(kv_pager, a_pool_that_lives_long_agrees_with_the_naive_model) {
    for (uint64_t seed = 1; seed <= FEWER(8, 2); seed++)
        model_random(~seed, 100000, NULL);
}

/* A snapshot is found with the prefix whose page it belongs to, and freed with that page; when room
 * is needed, the most recently used one is freed last. */
Test(kv_pager, snapshots_belong_to_pages) {
    const struct kv_opts o = {.n_pages = 8,
                              .page_tokens = 4,
                              .max_seqs = 4,
                              .max_seq_tokens = 16,
                              .n_states = 2,
                              .n_snapshots = 2};
    const struct kv_isolation isolation = {{1}};
    int32_t token[16];
    struct kv_pager *p;
    struct kv_seq *s, *other;

    for (int i = 0; i < 16; i++)
        token[i] = i;
    cr_assert_eq(kv_pager_new(&p, &o), 0);
    cr_assert_eq(kv_seq_new(&s, p, &isolation), 0);
    cr_assert_eq(kv_seq_grow(s, 16), 0);
    for (uint32_t n = 4; n <= 12; n += 4) { /* three snapshots, with room for two */
        uint32_t snapshot = kv_snapshot_acquire(p, NULL);
        cr_assert_lt(snapshot, 2);
        kv_seq_commit(s, token, n);
        kv_seq_attach_snapshot(s, snapshot, false);
        kv_pager_check(p);
    }
    cr_expect_eq(kv_pager_match(p, &isolation, token, 16).n_tokens, 12);
    cr_expect_eq(kv_pager_match(p, &isolation, token, 11).n_tokens, 8);
    cr_expect_eq(kv_pager_match(p, &isolation, token, 7).n_tokens, 0);
    cr_assert_eq(kv_seq_new(&other, p, &isolation), 0);
    cr_expect_neq(kv_seq_state(s), kv_seq_state(other));
    cr_assert_eq(kv_seq_attach(other, token, 8), 8);
    cr_expect_neq(kv_seq_snapshot(other), KV_NO_SNAPSHOT); /* used: the one at 12 goes first */
    uint32_t taken = kv_snapshot_acquire(p, NULL);
    kv_pager_check(p);
    cr_expect_eq(kv_pager_match(p, &isolation, token, 16).n_tokens, 8);
    kv_snapshot_hold(p, kv_seq_snapshot_at(other, 1));
    cr_expect_eq(kv_snapshot_untaken(p), 0);
    cr_expect_eq(kv_snapshot_acquire(p, NULL), KV_NO_SNAPSHOT);
    kv_snapshot_release(p, 1 - taken);
    cr_expect_neq(kv_snapshot_acquire(p, NULL), KV_NO_SNAPSHOT);
    cr_expect_eq(kv_snapshot_acquire(p, NULL), KV_NO_SNAPSHOT); /* both are taken */
    kv_snapshot_free(p, taken);
    kv_snapshot_free(p, 1 - taken);
    taken = kv_snapshot_acquire(p, NULL);
    kv_seq_attach_snapshot(other, taken, false);
    kv_seq_free(s);
    kv_seq_free(other);
    kv_pager_drop_cached(p);
    kv_pager_check(p);
    cr_expect_eq(kv_pager_match(p, &isolation, token, 16).n_tokens, 0);
    kv_pager_free(p);
}

/* ---- peers ---- */

enum { FAMILIES = 6, CHAIN = 8, T = 4, SLOTS = 5 };

/* A device and a host that share their snapshots, and the content of each slot. */
struct peers {
    struct kv_pager *pager[2];
    /* NULL, or a sequence of family running_of with a passing snapshot */
    struct kv_seq *running;
    uint32_t running_of;
    /* content: family * 1000 + tokens */
    uint32_t content[SLOTS];
    uint32_t n_only_in_host, n_back;
};

static const struct kv_isolation peers_key = {{1}};

/* Writes the tokens of a family; the first half is common to all families. */
static void family_tokens(uint32_t family, int32_t *token) {
    for (uint32_t i = 0; i < CHAIN * T; i++)
        token[i] = (int32_t)(i < CHAIN * T / 2 ? i : i + 1000 * family);
}

static uint32_t content_of(uint32_t family, uint32_t n) {
    return n <= CHAIN * T / 2 ? n : family * 1000 + n;
}

/* Asserts that the state found in @side is the one put there. Returns its tokens, 0 if there is
 * none. */
static uint32_t look(struct peers *e, int side, uint32_t family) {
    int32_t token[CHAIN * T];
    struct kv_seq *s;

    family_tokens(family, token);
    uint32_t n = kv_pager_match(e->pager[side], &peers_key, token, ARRAY_SIZE(token)).n_tokens;
    if (n == 0 || kv_seq_new(&s, e->pager[side], &peers_key) < 0)
        return n;
    cr_assert_eq(kv_seq_attach(s, token, n), n);
    uint32_t slot = kv_seq_snapshot(s);
    cr_assert_lt(slot, SLOTS);
    cr_assert_eq(e->content[slot], content_of(family, n));
    kv_seq_free(s);
    return n;
}

/* Computes @n pages on the device and keeps the state behind the last one. */
static void compute(struct peers *e, uint32_t family, uint32_t n, bool passes) {
    int32_t token[CHAIN * T];
    struct kv_seq *s;

    family_tokens(family, token);
    if (kv_seq_new(&s, e->pager[0], &peers_key) < 0)
        return;
    kv_seq_attach(s, token, n * T);
    uint32_t slot =
        kv_seq_grow(s, n * T) == 0 ? kv_snapshot_acquire(e->pager[0], s) : KV_NO_SNAPSHOT;
    if (slot == KV_NO_SNAPSHOT) {
        kv_seq_free(s);
        return;
    }
    e->content[slot] = content_of(family, n * T);
    kv_seq_commit(s, token, n * T);
    kv_seq_attach_snapshot(s, slot, passes);
    if (e->running || !passes) {
        kv_seq_free(s);
    } else {
        e->running = s;
        e->running_of = family;
    }
}

/* Copies pages of @family from one pager to the other, with their snapshots. */
static void copy(struct peers *e, int from, uint32_t family) {
    int32_t token[CHAIN * T];
    kv_page page[CHAIN];
    struct kv_seq *s;

    family_tokens(family, token);
    uint32_t n =
        kv_pager_find(e->pager[from], &peers_key, token, ARRAY_SIZE(token), 0, page, CHAIN);
    if (n == 0 || kv_seq_new(&s, e->pager[!from], &peers_key) < 0)
        return;
    kv_seq_attach(s, token, n * T);
    if (kv_seq_grow(s, n * T) == 0) {
        kv_seq_commit(s, token, n * T);
        uint32_t before = from ? look(e, 0, family) : 0;
        for (uint32_t i = 0; i < n; i++)
            kv_seq_share_snapshot(s, i, page[i]);
        e->n_back += from && look(e, 0, family) > before;
    }
    kv_seq_free(s);
}

/* Lets the running sequence continue by a page; its passing snapshot moves with it. */
static void go_on(struct peers *e) {
    int32_t token[CHAIN * T];

    if (!e->running)
        return;
    family_tokens(e->running_of, token);
    uint32_t n = kv_seq_committed(e->running) + T, slot;
    if (n <= CHAIN * T && kv_seq_grow(e->running, n) == 0 &&
        (slot = kv_snapshot_acquire(e->pager[0], e->running)) != KV_NO_SNAPSHOT) {
        e->content[slot] = content_of(e->running_of, n);
        kv_seq_commit(e->running, token, n);
        kv_seq_attach_snapshot(e->running, slot, true);
    } else {
        e->running = kv_seq_free(e->running);
    }
}

static void run_peers(struct peers *e, struct rng *r) {
    struct kv_opts o = {.n_pages = 14,
                        .page_tokens = T,
                        .max_seqs = 4,
                        .max_seq_tokens = CHAIN * T,
                        .n_snapshots = SLOTS};

    cr_assert_eq(kv_pager_new(&e->pager[0], &o), 0);
    o.peer = e->pager[0];
    o.n_pages = 20;
    cr_assert_eq(kv_pager_new(&e->pager[1], &o), 0);
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t family = rng_below(r, FAMILIES), what = rng_below(r, 8);

        if (what < 3)
            compute(e, family, 1 + rng_below(r, CHAIN), what == 0);
        else if (what < 6)
            copy(e, what == 5, family);
        else if (what == 6)
            go_on(e);
        else if (rng_below(r, 4) == 0)
            kv_pager_drop_cached(e->pager[rng_below(r, 2)]);
        kv_pager_check(e->pager[0]);
        kv_pager_check(e->pager[1]);
        for (uint32_t f = 0; f < FAMILIES; f++) {
            uint32_t device = look(e, 0, f);
            e->n_only_in_host += look(e, 1, f) > device;
        }
    }
    e->running = kv_seq_free(e->running);
    kv_pager_free(e->pager[0]);
    kv_pager_free(e->pager[1]);
}

/* The state found in either pager is the one put into that slot, whatever was evicted, dropped,
 * replaced and copied in between; and a snapshot outlives its page on the device. */
Test(kv_pager, snapshots_of_peers_are_of_the_same_prefix) {
    uint32_t n_only_in_host = 0, n_back = 0;

    for (uint64_t seed = 1; seed <= FEWER(300, 60); seed++) {
        struct rng r = {seed};
        struct peers e = {0};

        run_peers(&e, &r);
        n_only_in_host += e.n_only_in_host;
        n_back += e.n_back;
    }
    cr_expect_gt(n_only_in_host, FEWER(1000, 200));
    cr_expect_gt(n_back, FEWER(500, 100));
}

static void run_through(struct kv_pager *p, int32_t *token, uint32_t n, int32_t first,
                        uint32_t wanted) {
    const struct kv_isolation isolation = {{1}};
    struct kv_seq *s;

    for (uint32_t i = 0; i < n; i++)
        token[i] = first + (int32_t)i;
    cr_assert_eq(kv_seq_new(&s, p, &isolation), 0);
    kv_seq_want(s, wanted);
    for (uint32_t i = 1; i <= n; i++) {
        cr_assert_eq(kv_seq_grow(s, i), 0);
        kv_seq_commit(s, token, i);
    }
    kv_pager_check(p);
    kv_seq_free(s);
}

/* A sequence advances through many positions with a few window pages. The window pages with which
 * the next turn of another sequence begins stay: its last full pages, wherever in a page it ended,
 * and the end of its prompt. */
Test(kv_pager, windows_of_ended_turns_outlive_those_that_are_passed) {
    const struct kv_isolation isolation = {{1}};
    int32_t token[96], other[400];
    struct kv_stats stats;

    for (uint32_t n = 44; n <= 96; n++) {
        const struct kv_opts o = {.n_pages = 200,
                                  .page_tokens = 4,
                                  .max_seqs = 4,
                                  .max_seq_tokens = 400,
                                  .n_windows = 16,
                                  .window = 10};
        struct kv_pager *p;

        cr_assert_eq(kv_pager_new(&p, &o), 0);
        run_through(p, token, n, 0, 30);
        run_through(p, other, 400, 1000, 400);
        kv_pager_stats(p, &stats);
        cr_assert_gt(stats.n_windows_evicted, 50);
        cr_assert_eq(stats.n_cached, 100 + n / 4);
        cr_expect_eq(kv_pager_match(p, &isolation, token, n).n_tokens, n / 4 * 4, "%u", n);
        cr_expect_eq(kv_pager_match(p, &isolation, token, 39).n_tokens, 28, "%u", n);
        cr_expect_eq(kv_pager_match(p, &isolation, other, 200).n_tokens, 0);
        kv_pager_free(p);
    }
}

Test(kv_pager, bad_options_are_refused) {
    const struct kv_opts good = {.n_pages = 8,
                                 .page_tokens = 4,
                                 .max_seqs = 2,
                                 .max_seq_tokens = 16,
                                 .n_windows = 4,
                                 .window = 4};
    struct kv_opts bad[10];
    struct kv_pager *p = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        bad[i] = good;
    bad[0].n_pages = 0;
    bad[1].n_pages = UINT32_MAX; /* the number that means no page */
    bad[2].max_seqs = 0;
    bad[3].max_seq_tokens = 0;
    bad[4].page_tokens = 0;
    bad[5].page_tokens = 3;
    bad[6].page_tokens = 512;
    bad[7].window = 0;
    bad[8].n_snapshots = 2;
    bad[9].page_tokens = 6;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        cr_expect_eq(kv_pager_new(&p, &bad[i]), -EINVAL, "%zu", i);
        cr_expect_null(p);
    }
    cr_assert_eq(kv_pager_new(&p, &good), 0);
    kv_pager_free(p);
}

/* A lookup is counted once for each sequence, with what it found. */
Test(kv_pager, lookups_are_counted) {
    const struct kv_opts o = {.n_pages = 16, .page_tokens = 4, .max_seqs = 4, .max_seq_tokens = 32};
    const struct kv_isolation isolation = {{1}};
    int32_t token[32];
    struct kv_pager *p;
    struct kv_stats stats;
    struct kv_seq *s;

    for (int i = 0; i < 32; i++)
        token[i] = i;
    cr_assert_eq(kv_pager_new(&p, &o), 0);
    cr_assert_eq(kv_seq_new(&s, p, &isolation), 0);
    cr_assert_eq(kv_seq_attach(s, token, 31), 0);
    cr_assert_eq(kv_seq_grow(s, 20), 0);
    kv_seq_commit(s, token, 20);
    kv_seq_free(s);
    struct kv_match m = kv_pager_match(p, &isolation, token, 31);
    cr_expect_eq(m.n_tokens, 20);
    cr_expect_eq(m.n_idle, 5);
    cr_assert_eq(kv_seq_new(&s, p, &isolation), 0);
    cr_assert_eq(kv_seq_attach(s, token, 31), 20);
    cr_expect_eq(kv_pager_match(p, &isolation, token, 31).n_idle, 0);
    cr_assert_eq(kv_seq_attach(s, token, 31), 20); /* once more, without new pages */
    kv_pager_stats(p, &stats);
    cr_expect_eq(stats.n_lookup_tokens, 62);
    cr_expect_eq(stats.n_hit_tokens, 20);
    cr_expect_eq(stats.n_missed_tokens, 0);
    kv_seq_free(s);
    kv_pager_free(p);
}

/* One page for each begun page_tokens. */
Test(kv_pager, need_is_what_is_not_there_yet) {
    const struct kv_opts o = {.n_pages = 16, .page_tokens = 4, .max_seqs = 4, .max_seq_tokens = 32};
    const struct kv_isolation isolation = {{1}};
    struct kv_pager *p;
    struct kv_seq *s;

    cr_assert_eq(kv_pager_new(&p, &o), 0);
    cr_assert_eq(kv_seq_new(&s, p, &isolation), 0);
    for (uint32_t there = 0; there <= 3; there++) {
        cr_assert_eq(kv_seq_grow(s, there * 4), 0);
        for (uint32_t n = 0; n <= 32; n++) {
            uint32_t pages = (n + 3) / 4;

            cr_expect_eq(kv_seq_need(s, n), pages > there ? pages - there : 0, "%u of %u", n,
                         there);
        }
    }
    kv_seq_free(s);
    kv_pager_free(p);
}

/* The pager evicts, of two snapshots that save equally many tokens, the one used longer ago. */
Test(kv_pager, a_snapshot_that_was_used_stays) {
    const struct kv_opts o = {.n_pages = 8,
                              .page_tokens = 4,
                              .max_seqs = 2,
                              .max_seq_tokens = 16,
                              .n_states = 2,
                              .n_snapshots = 2};
    const struct kv_isolation isolation = {{1}};
    const int32_t token[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    uint32_t snapshot[2];
    struct kv_stats stats;
    struct kv_pager *p;
    struct kv_seq *s;

    cr_assert_eq(kv_pager_new(&p, &o), 0);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(kv_seq_new(&s, p, &isolation), 0);
        cr_assert_eq(kv_seq_grow(s, 4), 0);
        snapshot[i] = kv_snapshot_acquire(p, NULL);
        kv_seq_commit(s, token[i], 4);
        kv_seq_attach_snapshot(s, snapshot[i], false);
        kv_seq_free(s);
    }
    cr_assert_eq(kv_seq_new(&s, p, &isolation), 0);
    cr_assert_eq(kv_seq_attach(s, token[0], 4), 4);
    cr_expect_eq(kv_seq_snapshot(s), snapshot[0]);
    kv_seq_free(s);
    cr_expect_eq(kv_snapshot_acquire(p, NULL), snapshot[1]);
    cr_expect_eq(kv_pager_match(p, &isolation, token[0], 4).n_tokens, 4);
    cr_expect_eq(kv_pager_match(p, &isolation, token[1], 4).n_tokens, 0);
    kv_pager_stats(p, &stats);
    cr_expect_eq(stats.n_snapshots, 1);
    cr_expect_eq(stats.n_snapshots_made, 2);
    cr_expect_eq(stats.n_snapshots_used, 1);
    cr_expect_eq(stats.n_snapshots_evicted, 1);
    kv_snapshot_free(p, snapshot[1]);
    kv_pager_free(p);
}
