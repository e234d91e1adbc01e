/*
 * Patterns beside a large maxLength, whose characters are counted where they are read: against the
 * product of the pattern and `^[\s\S]{min,max}$`, in which each count is a state, and against the
 * characters of the text.
 */

#include <stdio.h>
#include <string.h>

#include "tests/grammar/grammar_support.h"

enum { WORDS = 64, TEXT_MAX = 4096 };

struct pair {
    struct grammar *counted, *product;
    char schema[1024];
};

/* @pattern as JSON writes it; @more: further keywords of the string. */
static void pair_init(struct pair *p, const char *pattern, const char *more, uint32_t min,
                      uint32_t max) {
    char other[1200];

    snprintf(p->schema, sizeof(p->schema),
             R"({"type":"string","pattern":"%s","minLength":%u,"maxLength":%u%s})", pattern, min,
             max, more);
    snprintf(other, sizeof(other),
             R"({"type":"string","allOf":[{"pattern":"%s"},)"
             R"({"pattern":"^[\\s\\S]{%u,%u}$"}]%s})",
             pattern, min, max, more);
    p->counted = test_compile(GRAMMAR_JSON_SCHEMA, p->schema);
    p->product = test_compile(GRAMMAR_JSON_SCHEMA, other);
}

static void pair_deinit(struct pair *p) {
    grammar_free(p->counted);
    grammar_free(p->product);
}

/* Whether it has states for the pattern alone. */
static bool is_counted(const struct pair *p) {
    return grammar_bytes(p->counted) * 5 < grammar_bytes(p->product) * 4;
}

static uint32_t pick(const uint32_t *bits, struct rng *r) {
    uint32_t n = 0, id = 0;

    for (uint32_t w = 0; w < grammar_vocab_n_words(test_vocab()); w++)
        n += (uint32_t)__builtin_popcount(bits[w]);
    cr_assert_gt(n, 0);
    for (uint32_t k = rng_below(r, n) + 1; k; id++)
        k -= bits[id / 32] >> (id % 32) & 1;
    return id - 1;
}

/* A text drawn at random, with masks that are the same in both; now and then compared with every
 * token. @left: tokens that may come (GRAMMAR_NO_MAX: any number), then the text ends in time. */
static void walk(const struct pair *p, struct rng *r, uint32_t left) {
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL, *t = NULL;
    uint32_t bits[WORDS], same[WORDS], n_words = grammar_vocab_n_words(test_vocab());
    bool limited = left != GRAMMAR_NO_MAX;

    cr_assert_eq(grammar_state_new(&s, p->counted), 0);
    cr_assert_eq(grammar_state_new(&t, p->product), 0);
    for (uint32_t i = 0; !grammar_is_done(s); i++) {
        cr_assert_lt(i, TEXT_MAX);
        cr_assert_geq(grammar_mask(s, bits), 0);
        cr_assert_geq(grammar_mask(t, same), 0);
        cr_assert_arr_eq(bits, same, n_words * sizeof(*bits), "%s: token %u", p->schema, i);
        if (rng_below(r, 16) == 0)
            test_mask_is_exact(s, p->counted, bits);
        if (limited) {
            if (left == 0)
                break;
            cr_assert_gt(grammar_mask_within(s, bits, left), 0, "%s: token %u", p->schema, i);
            left--;
        }
        uint32_t id = pick(bits, r);

        cr_assert_eq(grammar_accept(s, (int32_t)id), 0);
        cr_assert_eq(grammar_accept(t, (int32_t)id), 0);
    }
    cr_assert(grammar_is_done(t) || (left == 0 && grammar_can_end(t)));
}

static void check(const char *pattern, const char *more, uint32_t min, uint32_t max, uint32_t n) {
    struct rng r = {min * 1000 + max};
    struct pair p;
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;

    pair_init(&p, pattern, more, min, max);
    cr_assert(is_counted(&p), "%s", p.schema);
    cr_assert_eq(grammar_state_new(&s, p.counted), 0);
    uint32_t least = grammar_distance(s) + 1;

    for (uint32_t i = 0; i < n; i++) {
        walk(&p, &r, GRAMMAR_NO_MAX);
        walk(&p, &r, least + rng_below(&r, 1 + max / 2));
    }
    pair_deinit(&p);
}

Test(grammar_within, masks_are_those_of_the_product) {
    check("^(?:\\\\S+\\\\s+){0,29}\\\\S+$", "", 0, 70, 6);
    check("^(?:\\\\S+\\\\s+){0,29}\\\\S+$", "", 2, 64, 4);
    /* characters of two to four bytes, escapes */
    check(R"(^([a-z]{2,9}(\u00e9|\u20ac|\ud83d\ude00|\\n|\"|\\\\)){0,40}(ab){3}$)", "", 0, 80, 6);
    /* the shortest way in bytes is not the one with the fewest characters */
    check("^(a{3}|\\ud83d\\ude00){25,90}$", "", 0, 64, 8);
    /* beside a pattern that must not match */
    check("^([ab]{1,5}-){0,90}x*$", R"(,"not":{"pattern":"ab-b"})", 3, 150, 4);
}

Test(grammar_within, random_patterns) {
    static const char *const PIECE[] = {"a",      "[ab]",  "b?", "\\u00e9",      "(ab|b)",
                                        "a{2,4}", "\\\\n", ".",  "(a|\\u20acb)", "[^a]"};
    uint32_t n_counted = 0;
    struct rng r = {7};

    for (int i = 0; i < 12; i++) {
        char pattern[400];
        size_t len = 0;
        struct pair p;

        len += (size_t)snprintf(pattern, sizeof(pattern), "^");
        for (uint32_t k = 0; k < 3; k++) {
            len += (size_t)snprintf(pattern + len, sizeof(pattern) - len, "(");
            for (uint32_t n = 1 + rng_below(&r, 4); n; n--)
                len += (size_t)snprintf(pattern + len, sizeof(pattern) - len, "%s",
                                        PIECE[rng_below(&r, ARRAY_SIZE(PIECE))]);
            /* one draw a statement: the order of a call's arguments depends on the processor */
            uint32_t most = 8 + rng_below(&r, 30);
            uint32_t least = rng_below(&r, 5);
            len += (size_t)snprintf(pattern + len, sizeof(pattern) - len, "c){%u,%u}", least, most);
        }
        snprintf(pattern + len, sizeof(pattern) - len, "%s", rng_below(&r, 2) ? "$" : "");
        uint32_t max = 64 + rng_below(&r, 30);
        bool bounded = rng_below(&r, 2);
        uint32_t min = rng_below(&r, 30);
        pair_init(&p, pattern, "", bounded ? min : 0, max);
        n_counted += is_counted(&p);
        for (int k = 0; k < 3; k++)
            walk(&p, &r, GRAMMAR_NO_MAX);
        pair_deinit(&p);
    }
    cr_expect_gt(n_counted, 3);
}

/* Characters are those of the text, not of what it is written as. */
Test(grammar_within, a_text_of_the_longest_length_fits_and_no_longer_one) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile(GRAMMAR_JSON_SCHEMA, R"({"type":"string","format":"uri","maxLength":65536})");
    static char text[70000];

    for (uint32_t n = 65535; n <= 65537; n++) {
        memset(text, 'a', n + 2);
        memcpy(text, R"("http://)", 8);
        text[n + 1] = '"';
        cr_expect_eq(test_fits(g, text, n + 2), n <= 65536, "%u", n);
    }
}

Test(grammar_within, what_needs_more_characters_than_there_are_fits_nothing) {
    test_refused(GRAMMAR_JSON_SCHEMA,
                 R"({"type":"string","pattern":"^([a-z]{9}-){40}$","maxLength":399})",
                 "grammar_invalid", "no text satisfies");
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile(
        GRAMMAR_JSON_SCHEMA, R"({"type":"string","pattern":"^([a-z]{9}-){40}$","maxLength":400})");

    cr_expect_not_null(g);
}

/* The names of members are languages, in which a count is a state. */
Test(grammar_within, names_of_members) {
    test_lists(GRAMMAR_JSON_SCHEMA,
               R"({"type":"object","additionalProperties":{"type":"null"},)"
               R"("propertyNames":{"pattern":"^(ab?c{1,9}){0,90}$","maxLength":70}})",
               YES(R"({"abc":null})", R"({"acccabccc":null})"),
               YES(R"({"ab":null})",
                   R"({"acccccccccacccccccccacccccccccacccccccccacccccccccacccccccccaccccccccccacc)"
                   R"(":null})"));
}

/* In each of several strings a character is taken only where what must come still fits. */
Test(grammar_within, each_string_has_room_for_its_end) {
    enum { MAX = 2000 };
    static const char *const before[] = {R"({"a":")", R"(e","b":")"};
    static const char letter[] = "ac";
    static const uint32_t ends[] = {1, 3};
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile(GRAMMAR_JSON_SCHEMA,
                     R"({"type": "object", "required": ["a", "b"], "properties": {)"
                     R"("a": {"type": "string", "pattern": "^(a|bcd)+e$", "maxLength": 2000}, )"
                     R"("b": {"type": "string", "pattern": "^(c|def)+ghi$", "maxLength": 2000}}})");
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;

    cr_assert_eq(grammar_state_new(&s, g), 0);
    for (int i = 0; i < 2; i++) {
        for (const char *c = before[i]; *c; c++)
            cr_assert_eq(grammar_accept(s, *c), 0, "%s", c);
        for (uint32_t n = 0; n < MAX - ends[i]; n++)
            cr_assert_eq(grammar_accept(s, letter[i]), 0, "%d: %u", i, n);
        cr_expect_eq(grammar_accept(s, letter[i]), -22, "%d", i);
    }
    for (const char *c = R"(ghi"})"; *c; c++)
        cr_assert_eq(grammar_accept(s, *c), 0, "%s", c);
    cr_expect(grammar_can_end(s));
}

/* Rounds of a pattern are copies of the smallest automaton of one: one reading, whatever the
 * length. */
Test(grammar_within, words_that_are_counted) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile(GRAMMAR_JSON_SCHEMA, R"({"type":"string",)"
                                          "\"pattern\":\"^$|(^(?:\\\\S+\\\\s+){0,199}\\\\S+$)\"}");
    CLEANUP(grammar_freep)
    struct grammar *few =
        test_compile(GRAMMAR_JSON_SCHEMA, R"({"type":"string",)"
                                          "\"pattern\":\"^$|(^(?:\\\\S+\\\\s+){0,19}\\\\S+$)\"}");
    char text[1024] = R"(")";

    cr_expect_gt(grammar_bytes(g), 4 * grammar_bytes(few));
    cr_expect(test_fits(g, R"("")", 2));
    for (uint32_t n = 1; n <= 202; n++) {
        size_t len = strlen(text);

        snprintf(text + len, sizeof(text) - len, "ab%s", n % 3 ? " " : "  ");
        memcpy(text + len + 2, R"(")", 2);
        cr_expect_eq(test_fits(g, text, len + 3), n <= 200, "%u words", n);
        snprintf(text + len, sizeof(text) - len, "ab%s", n % 3 ? " " : "  ");
    }
    struct rng r = {3};

    for (int i = 0; i < 3; i++) {
        char out[8192];

        cr_expect_geq(test_random_text(g, &r, 400, out, sizeof(out)), 0);
    }
}
