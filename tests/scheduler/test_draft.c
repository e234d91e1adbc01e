/* The sources of drafts, each with a text whose continuation is known. */

#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "scheduler/draft/draft.h"
#include "scheduler/draft/ngram.h"

enum { ROOM = 40000 };

static int32_t text[ROOM], draft[DRAFT_MAX];
static const uint8_t key_a[16] = {1}, key_b[16] = {2};

static struct draft_text begin_text(uint32_t n_prompt) {
    return (struct draft_text){
        .tokens = text, .n_prompt = n_prompt, .n_tokens = n_prompt, .isolation_key = key_a};
}

/* Writes @n tokens in no order, from @from on. */
static void scramble(int32_t *out, uint32_t n, uint64_t seed) {
    struct rng r = {seed};

    for (uint32_t i = 0; i < n; i++)
        out[i] = (int32_t)rng_below(&r, 1 << 30);
}

static uint32_t propose(const struct draft_source *s, void *state, const struct draft_text *t,
                        uint32_t max) {
    return s->propose(state, t, draft, max);
}

/* ---- suffix ---- */

Test(draft_suffix, goes_on_as_it_went_on_before) {
    struct draft_text t = begin_text(300);
    void *state = NULL;

    scramble(text, 200, 1);
    memcpy(text + 200, text + 50, 100 * sizeof(*text)); /* repeats positions 50 to 149 */
    cr_assert_eq(draft_suffix.begin(&state, NULL, &t), 0);
    cr_expect_eq(propose(&draft_suffix, state, &t, 16), 16);
    cr_expect_arr_eq(draft, text + 150, 16 * sizeof(*draft));
    draft_suffix.end(state);
}

Test(draft_suffix, nothing_is_drafted_where_nothing_repeats) {
    struct draft_text t = begin_text(3000);
    void *state = NULL;

    scramble(text, 3100, 2);
    cr_assert_eq(draft_suffix.begin(&state, NULL, &t), 0);
    for (; t.n_tokens < 3100; t.n_tokens++)
        cr_assert_eq(propose(&draft_suffix, state, &t, 16), 0);
    draft_suffix.end(state);
}

Test(draft_suffix, stays_in_the_copy_that_is_followed) {
    struct draft_text t = begin_text(100);
    void *state = NULL;

    scramble(text, 100, 3);
    /* a later place that agrees in only 4 tokens */
    memcpy(text + 60, text + 12, 4 * sizeof(*text));
    memcpy(text + 100, text + 4, 30 * sizeof(*text));
    cr_assert_eq(draft_suffix.begin(&state, NULL, &t), 0);
    for (t.n_tokens = 104; t.n_tokens < 125; t.n_tokens++) {
        cr_assert_geq(propose(&draft_suffix, state, &t, 4), 1);
        cr_assert_eq(draft[0], text[t.n_tokens - 96], "at %u", t.n_tokens);
    }
    draft_suffix.end(state);
}

Test(draft_suffix, a_loop_is_drafted_as_a_loop) {
    struct draft_text t = begin_text(40);
    void *state = NULL;

    for (uint32_t i = 0; i < 60; i++)
        text[i] = (int32_t)(i % 5);
    cr_assert_eq(draft_suffix.begin(&state, NULL, &t), 0);
    cr_expect_eq(propose(&draft_suffix, state, &t, 16), 16);
    cr_expect_arr_eq(draft, text + 40, 16 * sizeof(*draft));
    draft_suffix.end(state);
}

Test(draft_suffix, a_long_prompt_is_read_in_several_calls) {
    struct draft_text t = begin_text(30000);
    void *state = NULL;
    uint32_t calls = 1;

    scramble(text, 29000, 4);
    memcpy(text + 29000, text + 20000, 1000 * sizeof(*text));
    cr_assert_eq(draft_suffix.begin(&state, NULL, &t), 0);
    while (propose(&draft_suffix, state, &t, 8) == 0 && calls < 10)
        calls++;
    cr_expect_eq(calls, (30000 + DRAFT_CATCH_UP - 1) / DRAFT_CATCH_UP);
    cr_expect_arr_eq(draft, text + 21000, 8 * sizeof(*draft));
    draft_suffix.end(state);
}

/* ---- prediction ---- */

/* Returns the number of right tokens in the prediction's drafts if the output is @out and the
 * prediction @pred. */
static uint32_t run_prediction(const int32_t *pred, uint32_t n_pred, const int32_t *out,
                               uint32_t n_out, uint32_t *n_wrong) {
    struct draft_text t = begin_text(10);
    uint32_t n_right = 0;
    void *state = NULL;

    t.prediction = pred;
    t.n_prediction = n_pred;
    memcpy(text + 10, out, n_out * sizeof(*out));
    cr_assert_eq(draft_prediction.begin(&state, NULL, &t), 0);
    *n_wrong = 0;
    for (; t.n_tokens < 10 + n_out; t.n_tokens++) {
        uint32_t n = propose(&draft_prediction, state, &t, 1);

        n_right += n == 1 && draft[0] == text[t.n_tokens];
        *n_wrong += n == 1 && draft[0] != text[t.n_tokens];
    }
    draft_prediction.end(state);
    return n_right;
}

Test(draft_prediction, is_followed_from_its_beginning) {
    int32_t pred[100];
    uint32_t n_wrong;

    scramble(text, 10, 5);
    scramble(pred, 100, 6);
    cr_expect_eq(run_prediction(pred, 100, pred, 100, &n_wrong), 100);
    cr_expect_eq(n_wrong, 0);
}

Test(draft_prediction, is_found_again_after_a_change) {
    int32_t pred[100], out[200];
    uint32_t n_wrong;

    scramble(pred, 100, 7);
    memcpy(out, pred, sizeof(pred)); /* one token replaced */
    out[40] = -5;
    cr_expect_geq(run_prediction(pred, 100, out, 100, &n_wrong), 98);
    memcpy(out, pred, 40 * sizeof(*out)); /* ten tokens left out */
    memcpy(out + 40, pred + 50, 50 * sizeof(*out));
    cr_expect_geq(run_prediction(pred, 100, out, 90, &n_wrong), 88);
    cr_expect_leq(n_wrong, 1);
    memcpy(out + 40, (int32_t[]){-1, -2, -3, -4}, 4 * sizeof(*out)); /* four tokens inserted */
    memcpy(out + 44, pred + 40, 60 * sizeof(*out));
    cr_expect_geq(run_prediction(pred, 100, out, 104, &n_wrong), 98);
    memcpy(out + 40, pred + 10, 90 * sizeof(*out)); /* back to an earlier place */
    cr_expect_geq(run_prediction(pred, 100, out, 130, &n_wrong), 126);
}

Test(draft_prediction, without_one_there_is_no_state) {
    struct draft_text t = begin_text(10);
    void *state = NULL;

    cr_expect_eq(draft_prediction.begin(&state, NULL, &t), 0);
    cr_expect_null(state);
}

/* ---- recent ---- */

static void finish(void *common, const uint8_t *key, uint32_t n_prompt, uint32_t n_tokens) {
    struct draft_text t = begin_text(n_prompt);

    t.n_tokens = n_tokens;
    t.isolation_key = key;
    draft_recent.finish(common, &t);
}

/* Returns the number of drafted tokens after the first @n tokens of the text, of which @n_prompt
 * are the prompt. */
static uint32_t ask_recent(void *common, const uint8_t *key, uint32_t n_prompt, uint32_t n) {
    struct draft_text t = begin_text(n_prompt);
    void *state = NULL;
    uint32_t got;

    t.isolation_key = key;
    cr_assert_eq(draft_recent.begin(&state, common, &t), 0);
    propose(&draft_recent, state, &t, 8);
    t.n_tokens = n;
    got = propose(&draft_recent, state, &t, 8);
    draft_recent.end(state);
    return got;
}

Test(draft_recent, an_output_that_ended_is_drafted_again_under_its_key_only) {
    void *common = NULL;

    cr_assert_eq(draft_recent.share(&common), 0);
    scramble(text, 200, 8);
    cr_expect_eq(ask_recent(common, key_a, 100, 120), 0);
    finish(common, key_a, 100, 200);
    cr_expect_eq(ask_recent(common, key_a, 100, 120), 8);
    cr_expect_arr_eq(draft, text + 120, 8 * sizeof(*draft));
    cr_expect_eq(ask_recent(common, key_a, 120, 120), 8); /* after the first tokens of an output */
    cr_expect_eq(ask_recent(common, key_a, 100, 197), 3); /* not beyond its end */
    cr_expect_eq(ask_recent(common, key_b, 100, 120), 0);
    draft_recent.unshare(common);
}

Test(draft_recent, old_outputs_and_old_keys_make_room) {
    void *common = NULL;

    cr_assert_eq(draft_recent.share(&common), 0);
    for (uint32_t i = 0; i < 60; i++) {
        scramble(text, 600, 100 + i);
        finish(common, key_a, 20, 600);
    }
    cr_expect_eq(ask_recent(common, key_a, 20, 300), 8);
    scramble(text, 600, 100);
    cr_expect_eq(ask_recent(common, key_a, 20, 300), 0);
    scramble(text, 600, 159);
    for (uint8_t k = 0; k < 40; k++) {
        uint8_t key[16] = {100, k};
        finish(common, key, 20, 600);
    }
    cr_expect_eq(ask_recent(common, key_a, 20, 300), 0);
    cr_expect_eq(ask_recent(common, (uint8_t[16]){100, 39}, 20, 300), 8);
    draft_recent.unshare(common);
}
