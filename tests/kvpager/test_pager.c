#include <criterion/criterion.h>
#include "model.h"

Test(kv_pager, random_operations_agree_with_the_naive_model) {
    for (uint64_t seed = 1; seed <= 2000; seed++)
        model_random(seed, 1000, NULL);
}

Test(kv_pager, a_pool_that_lives_long_agrees_with_the_naive_model) {
    for (uint64_t seed = 1; seed <= 8; seed++)
        model_random(~seed, 100000, NULL);
}

/* A snapshot is found with the prefix whose page it belongs to, goes with that page, and when room
 * is needed the one that was used last goes last. */
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
    for (uint32_t n = 4; n <= 12; n += 4) { /* three, and there is room for two */
        uint32_t snapshot = kv_snapshot_take(p, NULL);
        cr_assert_lt(snapshot, 2);
        kv_seq_commit(s, token, n);
        kv_seq_put_snapshot(s, snapshot, false);
        kv_pager_check(p);
    }
    cr_expect_eq(kv_pager_match_state(p, &isolation, token, 16).n_tokens, 12);
    cr_expect_eq(kv_pager_match_state(p, &isolation, token, 11).n_tokens, 8);
    cr_expect_eq(kv_pager_match_state(p, &isolation, token, 7).n_tokens, 0);
    cr_assert_eq(kv_seq_new(&other, p, &isolation), 0);
    cr_expect_neq(kv_seq_state(s), kv_seq_state(other));
    cr_assert_eq(kv_seq_attach(other, token, 8), 8);
    cr_expect_neq(kv_seq_snapshot(other), KV_NO_SNAPSHOT); /* used: the one at 12 goes first */
    uint32_t taken = kv_snapshot_take(p, NULL);
    kv_pager_check(p);
    cr_expect_eq(kv_pager_match_state(p, &isolation, token, 16).n_tokens, 8);
    cr_expect_neq(kv_snapshot_take(p, NULL), KV_NO_SNAPSHOT);
    cr_expect_eq(kv_snapshot_take(p, NULL), KV_NO_SNAPSHOT); /* both are taken */
    kv_snapshot_give(p, taken);
    kv_snapshot_give(p, 1 - taken);
    taken = kv_snapshot_take(p, NULL);
    kv_seq_put_snapshot(other, taken, false);
    kv_seq_free(s);
    kv_seq_free(other);
    kv_pager_drop_cached(p);
    kv_pager_check(p);
    cr_expect_eq(kv_pager_match_state(p, &isolation, token, 16).n_tokens, 0);
    kv_pager_free(p);
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

/* A sequence goes through many positions with a few window pages. What the next turn of another one
 * begins with stays: its last full pages, wherever in a page it ended, and the end of its prompt. */
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
