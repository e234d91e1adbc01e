/* Items that must differ (uniqueItems), one by one as the text goes on. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "tests/grammar/grammar_support.h"
#include "tests/support/schemas.h"

#define ARRAY(items, more) R"({"type":"array","uniqueItems":true,"items":)" items more "}"

static void schema(const char *text, const char *const *fits, const char *const *fits_not) {
    test_lists(GRAMMAR_JSON_SCHEMA, text, fits, fits_not);
}

Test(grammar_distinct, strings_are_compared_with_all_before) {
    schema(ARRAY(R"({"type":"string"})", ""),
           YES("[]", R"([""])", R"(["a", "", "ab","abc", "b"])", R"(["abc","ab","a"])",
               R"(["a,\"","a"])", "[\n  \"a\",\n  \"b\"\n]"),
           YES(R"(["",""])", R"(["a","b", "a"])", R"(["abc","ab","a","abc"])", R"(["a","\u0061"])",
               "[\n  \"a\",\n  \"a\"\n]"));
    schema(ARRAY(R"({"type":"string","minLength":2,"maxLength":2})", R"(,"maxItems":2)"),
           YES(R"(["ab","ac"])", R"(["aé","aè"])"), YES(R"(["ab","ab"])", R"(["aa","ab","ac"])"));
    schema(ARRAY(R"({"type":["string","null","boolean"]})", R"(,"minItems":1)"),
           YES(R"([null,true,"null","true",false])"), YES("[]", R"([null,"",null])"));
    schema(ARRAY(R"({"type":"string","format":"date"})", ""), YES(R"(["2024-02-29","2024-02-28"])"),
           YES(R"(["2024-02-29","2024-02-29"])"));
}

Test(grammar_distinct, integers_have_one_spelling) {
    schema(ARRAY(R"({"type":"integer"})", ""), YES("[1,12,123, 2,0,-1]", "[12,1,11]"),
           YES("[1,1]", "[12,1,12]", "[-0]", "[1.0]"));
    schema(ARRAY(R"({"type":"integer","minimum":0,"maximum":11})", ""),
           YES("[0,1,2,3,4,5,6,7,8,9,10,11]", "[11,1]"), YES("[1,11,1]", "[12]"));
}

/* A pattern with few matches: no text runs into a dead end, and no comma comes behind the last. */
Test(grammar_distinct, what_is_used_up_is_not_begun) {
    schema(ARRAY(R"({"type":"string","pattern":"^(ab|ac|b)$"})", ""), YES(R"(["ac","b","ab"])"),
           YES(R"(["ab","ab"])"));
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile(GRAMMAR_JSON_SCHEMA,
                                     ARRAY(R"({"type":"string","pattern":"^(ab|ac|b)$"})", ""));
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    static const char TEXT[] = R"(["ab","ac",")";

    cr_assert_eq(grammar_state_new(&s, g), 0);
    for (size_t i = 0; i < strlen(TEXT); i++)
        cr_assert_eq(grammar_accept(s, TEXT[i]), 0);
    cr_expect_neq(grammar_accept(s, 'a'), 0, "both are used up");
    cr_expect(grammar_accept(s, 'b') == 0 && grammar_accept(s, '"') == 0);
    cr_expect_neq(grammar_accept(s, ','), 0, "all are used up");
    cr_expect(grammar_accept(s, ']') == 0 && grammar_can_end(s));
    cr_assert_eq(grammar_rollback(s, 4), 0);
    cr_expect_neq(grammar_accept(s, 'a'), 0, "as before");
}

Test(grammar_distinct, lists_of_values_with_counts) {
    schema(ARRAY(R"({"enum":[1,2,3,4,5,6,7,8,9,10,11,12]})", R"(,"maxItems":3)"),
           YES("[]", "[11,1,12]"), YES("[1,1]", "[11,1,11]", "[1,2,3,4]"));
}

Test(grammar_distinct, each_array_for_itself) {
    schema(R"({"type":"array","items":)" ARRAY(R"({"type":"string"})", "") "}",
           YES(R"([["a","b"],["a","b"]])"), YES(R"([["a"],["b","b"]])"));
}

Test(grammar_distinct, what_is_refused) {
    test_refused(GRAMMAR_JSON_SCHEMA, ARRAY(R"({"type":"number"})", ""), "grammar_unsupported",
                 "#/uniqueItems");
    test_refused(GRAMMAR_JSON_SCHEMA, ARRAY(R"({"type":"object"})", ""), "grammar_unsupported",
                 "#/uniqueItems");
    test_refused(GRAMMAR_JSON_SCHEMA, ARRAY(R"({"type":"string"})", R"(,"minItems":2)"),
                 "grammar_unsupported", "minItems");
}

/* More than once: token classes are made when a state comes again. */
static void masks_are_exact_along(const char *text, const char *along) {
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_COMPACT, text);
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    uint32_t bits[64];

    cr_assert_eq(grammar_state_new(&s, g), 0);
    for (int i = 0; i < 3; i++) {
        grammar_state_reset(s);
        for (const char *c = along; *c; c++) {
            test_mask_is_exact(s, g, bits);
            cr_assert_eq(grammar_accept(s, (uint8_t)*c), 0, "%s", c);
        }
    }
}

/* Tokens that end one item and have another, at every place; and beside another reading of the
 * array, whose items may be the same. */
Test(grammar_distinct, masks_know_the_items_before) {
    masks_are_exact_along(ARRAY(R"({"type":"string"})", ""),
                          R"(["a","","abcd","ab","b",",","aa"])");
    masks_are_exact_along(ARRAY(R"({"type":"integer"})", ""), "[1,12,0,11,123]");
    masks_are_exact_along(
        R"({"anyOf":[)" ARRAY(R"({"type":"string"})", "") R"(,{"type":"array","items":{)"
                                                          R"("type":"string"},"minItems":3}]})",
        R"(["b","b","a","a"])");
}

/* The shortest completion is not an item that was there. */
Test(grammar_distinct, the_distance_is_that_of_another_item) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_COMPACT, ARRAY(R"({"type":"string"})", ""));
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    static const char TEXT[] = R"(["",")";

    cr_assert_eq(grammar_state_new(&s, g), 0);
    for (size_t i = 0; i < strlen(TEXT); i++)
        cr_assert_eq(grammar_accept(s, TEXT[i]), 0);
    cr_expect_eq(grammar_distance(s), 2); /* a blank and a quote, ] */
    cr_assert_eq(grammar_rollback(s, 1), 0);
    cr_expect_eq(grammar_distance(s), 3);
}

/* Few letters, so that items meet; tokens that end two items at once are in the vocabulary. */
static const char *const ITEMS[] = {
    R"({"type":"string","maxLength":1,"pattern":"^[ab]*$"})",
    R"({"type":"string","pattern":"^[ab]{0,2}$"})",
    R"({"type":"string","pattern":"^(a|ab|abb|b)$"})",
    R"({"type":"string","maxLength":2})",
    R"({"type":"string"})",
    R"({"type":["string","null"],"pattern":"^a*$"})",
    R"({"type":"integer","minimum":0,"maximum":12})",
    R"({"enum":[1,11,111,"1",null,"a","aa","ab","b"]})",
};

static const char *write_schema(struct rng *r, char *out, size_t cap) {
    uint32_t max = rng_below(r, 3) ? 0 : 2 + rng_below(r, 4);
    bool inner = rng_below(r, 2);

    snprintf(out, cap, R"(%s{"type":"array","uniqueItems":true,"items":%s,"minItems":%u%s%.0u}%s)",
             inner ? R"({"type":"object","required":["k"],"properties":{"k":)" : "",
             ITEMS[rng_below(r, ARRAY_SIZE(ITEMS))], rng_below(r, 2), max ? R"(,"maxItems":)" : "",
             max, inner ? "}}" : "");
    return out;
}

/* Mostly short pieces of text: quotes, commas, a, b and 1. */
static uint32_t choose(const uint32_t *bits, struct rng *r) {
    uint32_t best = UINT32_MAX, best_score = 0;

    for (uint32_t id = 0; id < test_n_tokens(); id++) {
        size_t len;
        const char *bytes = test_token(id, &len);
        bool plain = len > 0 && strspn(bytes, R"([",ab1 {k:)") >= len;
        uint32_t score = 1 + rng_below(r, 100) + (plain ? 70 : 0);

        if ((bits[id / 32] >> (id % 32) & 1) && score > best_score) {
            best = id;
            best_score = score;
        }
    }
    return best;
}

/* A text of at most @limit tokens; every mask against every token, one in @often. */
static int write_text(const struct grammar *g, uint32_t limit, uint32_t often, struct rng *r,
                      char *out) {
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    uint32_t bits[64], least;
    int len = 0;

    cr_assert_eq(grammar_state_new(&s, g), 0);
    least = grammar_distance(s);
    limit = MAX(limit, least);
    for (uint32_t i = 0; i < limit && !grammar_is_done(s); i++) {
        if (rng_below(r, often) == 0)
            test_mask_is_exact(s, g, bits);
        cr_assert_gt(grammar_mask_within(s, bits, limit - i), 0, "%.*s: %u", len, out, limit - i);
        uint32_t id = choose(bits, r);
        size_t n;
        const char *bytes = test_token(id, &n);

        cr_assert_eq(grammar_accept(s, (int32_t)id), 0);
        memcpy(out + len, bytes, id == TEST_END ? 0 : n);
        len += id == TEST_END ? 0 : (int)n;
        if (rng_below(r, 8) == 0) { /* taken back and read again */
            cr_assert_eq(grammar_rollback(s, 1), 0);
            cr_assert_eq(grammar_accept(s, (int32_t)id), 0);
        }
    }
    cr_assert(grammar_is_done(s) || grammar_can_end(s), "%.*s", len, out);
    return len;
}

Test(grammar_distinct, random_texts_are_valid_at_any_limit) {
    struct rng r = {18};
    char text[512], out[8192];

    for (int i = 0; i < 150; i++) {
        CLEANUP(grammar_freep) struct grammar *g = NULL;
        unsigned flags = rng_below(&r, 2) ? GRAMMAR_COMPACT : 0;

        write_schema(&r, text, sizeof(text));
        g = test_compile_with(GRAMMAR_JSON_SCHEMA, flags, text);
        for (int k = 0; k < 8; k++) {
            int len = write_text(g, 2 + rng_below(&r, 60), 40, &r, out);

            cr_assert(schema_allows(text, strlen(text), out, (size_t)len), "%.*s\n%s", len, out,
                      text);
        }
    }
}
