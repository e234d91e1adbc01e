/* Outputs with triggers that are cut at a limit: what was begun is complete, what must come has. */

#include <string.h>

#include "grammar/constraint.h"
#include "tests/grammar/grammar_support.h"

enum { WORDS = 64 };

#define ENUM R"({"json_schema":{"enum":["foobar","hello",12]}})"
#define OBJECT                                                                                     \
    R"({"json_schema":{"type":"object","properties":{"name":{"type":"string"},)"                   \
    R"("items":{"type":"array","minItems":2,"items":{"type":"integer"}}},)"                        \
    R"("required":["name","items"],"additionalProperties":false}})"
#define CALL R"({"sequence":[)" OBJECT R"(,{"literal":"</tool_call>"}]})"

static const struct {
    const char *grammar, *triggers;
    /* of the start; 0: it may end at once */
    uint32_t distance;
} CASES[] = {
    {ENUM, "", 1},
    {OBJECT, R"({"after":["foobar","</"]})", 0},
    {ENUM, R"({"after":["</think>"],"required":true})", 7 + 1},
    {OBJECT, R"({"after":["</think>","foobar"],"required":true})", 1 + 12},
    {ENUM, R"({"after":["<tool_call>"],"required":true})", 1 + 1},
    {CALL, R"({"after":["<tool_call>"],"repeat":true})", 0},
    {CALL, R"({"after":["<tool_call>","x="],"repeat":true,"required":true})", 1 + 13},
    {"{\"regex\":\"[a-z]{5,}(\\\\)|\\\\]{9})\"}", R"({"after":["foo(","na"],"repeat":true})", 0},
    {R"({"regex":"a{3}(b{7}c)*"})", R"({"after":["foo","a1"],"repeat":true})", 0},
    {CALL,
     R"({"after":["<tool_call>"],"repeat":true,)"
     R"("quiet":{"open":"{}","close":"b","now":true}})",
     0},
    {ENUM,
     R"({"after":["name"],"required":true,)"
     R"("quiet":{"open":"{}","close":"[]","now":true}})",
     1 + 1 + 1},
};

static struct constraint *make(size_t i) {
    struct constraint *c = NULL;
    struct err err = {0};

    cr_assert_eq(constraint_new(&c, test_vocab(), CASES[i].grammar, strlen(CASES[i].grammar),
                                CASES[i].triggers, strlen(CASES[i].triggers), NULL, &err),
                 0, "%zu: %s", i, err.message);
    return c;
}

/* Likes triggers, or long tokens, or nothing, and never the end. */
static uint32_t choose(uint32_t model, const uint32_t *bits, struct rng *r) {
    uint32_t best = 0, best_score = 0;

    for (uint32_t id = 0; id < test_n_tokens(); id++) {
        size_t len;
        const char *text = test_token(id, &len);
        uint32_t score = id == TEST_END ? 1 : 2 + rng_below(r, 1000);

        if (!(bits[id / 32] >> (id % 32) & 1))
            continue;
        if (model == 0 && len && (strchr("<fnx", text[0]) || id == TEST_MARKER))
            score += rng_below(r, 1500);
        if (model == 1)
            score += (uint32_t)len * 100;
        if (score > best_score) {
            best = id;
            best_score = score;
        }
    }
    return best;
}

static void cut(const struct constraint *c, size_t i, uint32_t limit, uint32_t model, struct rng *r,
                int *n_held) {
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    static char text[32768];
    uint32_t bits[WORDS];
    size_t n_text = 0;

    cr_assert_eq(constraint_state_new(&s, c), 0);
    for (uint32_t k = 0; k < limit; k++) {
        int64_t n = constraint_mask_within(s, bits, limit - k);
        size_t len;

        cr_assert_gt(n, 0, "%zu: no token %u of %u behind %.*s", i, k, limit, (int)n_text, text);
        if (constraint_is_free_within(s, limit - k))
            cr_assert_eq(n, test_n_tokens());
        uint32_t id = choose(model, bits, r);
        const char *bytes = test_token(id, &len);

        memcpy(text + n_text, bytes, len);
        n_text += len;
        cr_assert_eq(constraint_accept(s, (int32_t)id), 0);
        if (constraint_is_done(s))
            break;
        uint32_t left = constraint_distance(s);

        cr_assert_leq(left, limit - k - 1, "%zu: %u tokens to go, %u left: %.*s", i, left,
                      limit - k - 1, (int)n_text, text);
        *n_held += left > 0;
    }
    cr_assert(constraint_is_done(s) || constraint_can_end(s), "%zu, cut at %u: %.*s", i, limit,
              (int)n_text, text);
}

Test(ending, what_was_begun_is_complete_at_any_limit) {
    struct rng r = {31};

    for (size_t i = 0; i < ARRAY_SIZE(CASES); i++) {
        CLEANUP(constraint_freep) struct constraint *c = make(i);
        int n_held = 0;

        for (uint32_t k = 0; k < 300; k++)
            cut(c, i, MAX(CASES[i].distance + k / 3, 1u), k % 3, &r, &n_held);
        cr_expect_gt(n_held, 30, "%zu: %d", i, n_held);
    }
}

/* A mask takes time, and free output far from its limit needs none. */
Test(ending, free_output_needs_no_mask_before_the_limit_is_near) {
    for (size_t i = 0; i < ARRAY_SIZE(CASES); i++) {
        CLEANUP(constraint_freep) struct constraint *c = make(i);
        CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;

        cr_assert_eq(constraint_state_new(&s, c), 0);
        cr_expect_eq(constraint_is_free_within(s, 10000), constraint_is_free(s), "%zu", i);
        cr_expect_eq(constraint_is_free_within(s, GRAMMAR_NO_MAX), constraint_is_free(s), "%zu", i);
    }
}

Test(ending, the_distance_counts_the_trigger) {
    for (size_t i = 0; i < ARRAY_SIZE(CASES); i++) {
        CLEANUP(constraint_freep) struct constraint *c = make(i);
        CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
        uint32_t bits[WORDS], n = CASES[i].distance;

        cr_assert_eq(constraint_state_new(&s, c), 0);
        cr_expect_eq(constraint_distance(s), n, "%zu: %u", i, constraint_distance(s));
        cr_expect(n < 2 || constraint_mask_within(s, bits, n - 1) == 0, "%zu", i);
    }
}

/* Reasoning that is ended from outside, by the whole trigger, leaves time for the answer. */
Test(ending, a_trigger_written_from_outside_is_in_time) {
    CLEANUP(constraint_freep) struct constraint *c = make(2);
    struct rng r = {3};

    for (uint32_t k = 0; k < 200; k++) {
        CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
        uint32_t bits[WORDS], limit = 30, at = rng_below(&r, limit), i = 0;

        cr_assert_eq(constraint_state_new(&s, c), 0);
        for (; i < at && constraint_distance(s) > 2; i++) {
            cr_assert_gt(constraint_mask_within(s, bits, limit - i), 0);
            cr_assert_eq(constraint_accept(s, (int32_t)choose(2, bits, &r)), 0);
        }
        for (const char *p = "</think>"; *p && constraint_distance(s) > 2; p++, i++)
            cr_assert_eq(constraint_accept(s, (uint8_t)*p), 0);
        cr_expect_leq(constraint_distance(s), limit - i, "%u of %u", i, limit);
    }
}
