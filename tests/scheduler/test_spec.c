/* The estimates for drafts and the rests of sources, with a source that drafts as the test says. */

#include <criterion/criterion.h>

#include "scheduler/spec.h"

static uint32_t n_asked, n_offered = 8;
static bool offers = true;

static int begin(void **state, void *common, const struct draft_text *t) {
    static int anything;

    (void)common, (void)t;
    *state = &anything;
    return 0;
}

static void end(void *state) {
    (void)state;
}

static uint32_t propose(void *state, const struct draft_text *t, int32_t *out, uint32_t max) {
    uint32_t n = offers ? MIN(max, n_offered) : 0;

    (void)state, (void)t;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (int32_t)i;
    n_asked++;
    return n;
}

static const struct draft_source source = {
    .name = "test", .prior = 0.5F, .begin = begin, .end = end, .propose = propose};
static const struct draft_source *const table[] = {&source, NULL};

static struct spec spec;
static int32_t tokens[1000];

static void setup(void) {
    cr_assert_eq(spec_init(&spec, &(struct spec_opts){.source = table}), 0);
}

static struct request request_of(uint32_t n_prompt, uint32_t max_new) {
    return (struct request){.tokens = tokens,
                            .n_prompt = n_prompt,
                            .n_tokens = n_prompt,
                            .max_tokens = n_prompt + max_new};
}

TestSuite(spec, .init = setup);

Test(spec, sources_left_out_are_not_asked) {
    for (uint32_t out = 0; out <= 1; out++) {
        struct request r = request_of(10, 100);
        struct spec s;

        cr_assert_eq(spec_init(&s, &(struct spec_opts){.source = table, .no_sources = out}), 0);
        offers = true;
        n_offered = 4;
        n_asked = 0;
        spec_begin_step(&s, 1, 1);
        spec_propose(&s, &r);
        cr_expect_eq(n_asked, !out);
        spec_request_free(r.draft.spec);
        spec_deinit(&s);
    }
}

/* Statistics by source use these names. */
Test(spec, sources_have_the_order_of_their_names) {
    struct spec s;

    cr_assert_eq(spec_init(&s, &(struct spec_opts){0}), 0);
    cr_assert_eq(s.n_sources, MSG_DRAFT_SOURCES);
    for (uint32_t i = 0; i < s.n_sources; i++)
        cr_assert_str_eq(s.source[i]->name, msg_draft_source[i]);
    spec_deinit(&s);
}

/* The counts of predicted tokens in a client's usage exclude other drafts. */
Test(spec, predicted_tokens_are_counted_by_themselves) {
    static const struct draft_source *const both[] = {&source, &draft_prediction, NULL};
    static int32_t expected[] = {7, 8, 9, 7, 8, 9};
    struct request r = request_of(10, 900);
    struct spec s;

    cr_assert_eq(spec_init(&s, &(struct spec_opts){.source = both}), 0);
    spec_propose(&s, &r);
    spec_learn(&s, &r, 2, 1, false);
    cr_expect(r.draft.n_drafted == 2 && r.draft.n_accepted == 1 && r.draft.n_predicted == 0 &&
              r.draft.n_predicted_accepted == 0);
    r.draft.spec = spec_request_free(r.draft.spec);
    offers = false;
    r.draft.prediction = expected;
    r.draft.n_prediction = ARRAY_SIZE(expected);
    spec_propose(&s, &r);
    cr_assert_eq(r.draft.spec->n_draft, 2);
    spec_learn(&s, &r, 2, 1, false);
    cr_expect(r.draft.n_drafted == 4 && r.draft.n_accepted == 2 && r.draft.n_predicted == 2 &&
              r.draft.n_predicted_accepted == 1);
    spec_request_free(r.draft.spec);
    spec_deinit(&s);
}

Test(spec, estimates_follow_what_happens) {
    struct request r = request_of(10, 900);

    spec_propose(&spec, &r);
    cr_expect_eq(r.draft.spec->n_draft, 2); /* the first one is short */
    cr_expect_float_eq(r.draft.spec->survival[0], 0.5F, 1e-6F);
    cr_expect_float_eq(r.draft.spec->survival[1], 0.25F, 1e-6F);
    for (int i = 0; i < 60; i++)
        spec_learn(&spec, &r, 8, 8, false);
    spec_propose(&spec, &r);
    cr_expect_eq(r.draft.spec->n_draft, 8);
    cr_expect_gt(r.draft.spec->survival[0], 0.9F);
    cr_expect_gt(r.draft.spec->survival[7], 0.4F);
    float before = r.draft.spec->survival[1] / r.draft.spec->survival[0];
    for (int i = 0; i < 90; i++)
        spec_learn(&spec, &r, 8, 1, false);
    spec_propose(&spec, &r);
    cr_expect_lt(r.draft.spec->survival[1] / r.draft.spec->survival[0], 0.6F * before);
    spec_request_free(r.draft.spec);
}

Test(spec, a_draft_grows_with_what_was_right_and_falls_at_once) {
    struct request r = request_of(10, 900);
    uint32_t n[4];

    n_offered = 16;
    for (int i = 0; i < 4; i++) {
        spec_propose(&spec, &r);
        n[i] = r.draft.spec->n_draft;
        spec_learn(&spec, &r, n[i], n[i], false);
    }
    cr_expect(n[0] == 2 && n[1] == 6 && n[2] == 14 && n[3] == 16, "%u %u %u %u", n[0], n[1], n[2],
              n[3]);
    spec_learn(&spec, &r, 16, 0, false);
    spec_propose(&spec, &r);
    cr_expect_leq(r.draft.spec->n_draft, 16);
    spec_learn(&spec, &r, 16, 0, false);
    spec_propose(&spec, &r);
    cr_expect_leq(r.draft.spec->n_draft, 8);
    spec_request_free(r.draft.spec);
}

Test(spec, another_request_starts_from_what_all_have_seen) {
    struct request a = request_of(10, 900), b = request_of(10, 900);

    spec_propose(&spec, &a);
    for (int i = 0; i < 200; i++)
        spec_learn(&spec, &a, 8, 8, false);
    spec_propose(&spec, &b);
    cr_expect_gt(b.draft.spec->survival[0], 0.9F);
    spec_request_free(a.draft.spec);
    spec_request_free(b.draft.spec);
}

Test(spec, an_end_says_nothing_about_the_tokens_behind_it) {
    struct request r = request_of(10, 900);

    spec_propose(&spec, &r);
    for (int i = 0; i < 20; i++)
        spec_learn(&spec, &r, 8, 2, true);
    spec_propose(&spec, &r);
    cr_expect_gt(r.draft.spec->survival[1], 0.7F);
    cr_expect_gt(r.draft.spec->survival[2] / r.draft.spec->survival[1], 0.9F);
    spec_request_free(r.draft.spec);
}

/* Asks for @n tokens; no draft gets a row or is right. Returns the number of drafts. */
static uint32_t lose(struct request *r, uint32_t n, bool refused) {
    uint32_t n_drafts = 0;

    for (uint32_t i = 0; i < n; i++, r->n_tokens++) {
        spec_begin_step(&spec, spec.turn + 1, 1);
        spec_propose(&spec, r);
        if (r->draft.spec->n_draft == 0)
            continue;
        n_drafts++;
        if (refused && !spec_probes(r))
            spec_refused(r);
        else
            spec_learn(&spec, r, r->draft.spec->n_draft, 0, false);
    }
    return n_drafts;
}

Test(spec, a_source_that_loses_rests_and_is_tried_again) {
    for (int refused = 0; refused < 2; refused++) {
        struct request r = request_of(10, 1900);

        n_asked = 0;
        uint32_t n = lose(&r, 200, refused);
        cr_expect_leq(n, 12, "%u", n);
        cr_expect_geq(n, 10, "%u", n);
        uint32_t later = lose(&r, 700, refused);
        cr_expect_leq(later, 7, "%u", later); /* about every 128 tokens */
        cr_expect_geq(later, 4, "%u", later);
        cr_expect_eq(n_asked, n + later, "resting costs nothing");
        /* A probe that is right ends the rest. */
        while (r.draft.spec->n_draft == 0 && r.n_tokens < r.max_tokens)
            r.n_tokens++, spec_begin_step(&spec, spec.turn + 1, 1), spec_propose(&spec, &r);
        cr_assert_gt(r.draft.spec->n_draft, 0);
        cr_expect_leq(r.draft.spec->n_draft, 2);
        cr_expect(spec_probes(&r));
        spec_learn(&spec, &r, 2, 1, false);
        spec_propose(&spec, &r);
        cr_expect_not(spec_probes(&r));
        spec_request_free(r.draft.spec);
    }
}

/* Counts how many of 32 requests probe in each of 320 steps: at most @most. Sets *n_tries to their
 * sum; returns the number of steps with probes. */
static uint32_t try_all(uint32_t most, uint32_t *n_tries) {
    struct request r[32];
    uint32_t n_steps = 0;

    *n_tries = 0;

    for (uint32_t i = 0; i < 32; i++) {
        r[i] = request_of(10 + 3 * i, 900);
        lose(&r[i], 8 + 3 * i, false);
    }
    for (int step = 0; step < 320; step++) {
        uint32_t n = 0;

        spec_begin_step(&spec, spec.turn + 1, 32);
        for (int i = 0; i < 32; i++, r[i - 1].n_tokens++) {
            spec_propose(&spec, &r[i]);
            n += r[i].draft.spec->n_draft > 0;
            if (r[i].draft.spec->n_draft > 0)
                spec_learn(&spec, &r[i], r[i].draft.spec->n_draft, 0, false);
        }
        cr_expect_leq(n, most);
        n_steps += n > 0;
        *n_tries += n;
    }
    for (int i = 0; i < 32; i++)
        spec_request_free(r[i].draft.spec);
    return n_steps;
}

Test(spec, tries_of_all_requests_are_few) {
    uint32_t n_tries;

    cr_expect_leq(try_all(2, &n_tries), 320 / 16);
    cr_expect_gt(n_tries, 20);
}

Test(spec, the_last_tokens_are_not_drafted_beyond_the_end) {
    struct request r = request_of(10, 4);

    n_offered = 16;
    spec_propose(&spec, &r);
    cr_expect_leq(r.draft.spec->n_draft, 3); /* one more token is sampled behind them */
    r.n_tokens = r.max_tokens - 1;
    spec_propose(&spec, &r);
    cr_expect_eq(r.draft.spec->n_draft, 0);
    spec_request_free(r.draft.spec);
}

Test(spec, off_is_off) {
    struct request r = request_of(10, 900);
    struct spec off;

    r.flags = SUBMIT_NO_SPECULATION;
    spec_propose(&spec, &r);
    cr_expect_null(r.draft.spec);
    r.flags = 0;
    cr_assert_eq(spec_init(&off, &(struct spec_opts){.off = true}), 0);
    spec_propose(&off, &r);
    cr_expect_null(r.draft.spec);
}

Test(spec, slow_steps_with_drafts_are_noticed) {
    for (int i = 0; i < 50; i++) {
        spec_account(&spec, 1, false, 1, 1000000, 1000000);
        spec_account(&spec, 1, true, 2, 1500000, 1000000);
    }
    cr_expect_float_eq(spec_slower(&spec), 1.5F, 0.02F);
    for (int i = 0; i < 50; i++)
        spec_account(&spec, 1, true, 2, 500000, 1000000);
    cr_expect_float_eq(spec_slower(&spec), 1, 1e-6F); /* an estimate below 1 is not used */
}

/* A cost model that is wrong by a factor, as in a worker's first steps, does not affect the
 * decision. */
Test(spec, a_wrong_cost_model_is_not_the_drafts_fault) {
    for (int i = 0; i < 50; i++)
        spec_account(&spec, 1, false, 1, 1000000, 4000000);
    cr_expect_float_eq(spec_slower(&spec), 1, 1e-6F);
    spec_account(&spec, 1, true, 2, 1000000, 4000000);
    cr_expect_float_eq(spec_slower(&spec), 1, 0.02F);
}

/* Runs steps of which those with drafts bring @tokens in the time of one without. Returns the
 * number of steps with drafts. */
static uint32_t run(uint32_t n_steps, double tokens) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_steps; i++) {
        spec_begin_step(&spec, spec.turn + 1, 5);
        n += !spec.quiet;
        spec_account(&spec, 5, !spec.quiet, 5, spec.quiet ? 1000000 : (int64_t)(1e6 / tokens),
                     1000000);
    }
    return n;
}

Test(spec, steps_without_drafts_are_looked_at_now_and_then) {
    uint32_t n = run(2000, 2);

    cr_expect_geq(n, 1980);
    cr_expect_lt(n, 2000);
    n = run(2000, 1.05);
    cr_expect_geq(n, 1850);
    cr_expect_lt(n, 1900);
}

Test(spec, when_drafts_lose_there_are_none_for_a_while) {
    run(500, 2);
    run(100, 0.8); /* the decision takes a while */
    cr_expect_leq(run(2000, 0.8), 130);
    cr_expect_geq(run(3000, 1.5), 1800); /* and drafts continue when they gain again */
}
