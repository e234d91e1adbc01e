/*
 * Names of additional members in the notations of calls, whose characters a register counts beside
 * an automaton of the names: against a pattern in which each count is a state. At every
 * token of random texts both have the same mask, and at a limit of tokens both end in time.
 */

#include <stdio.h>
#include <string.h>

#include "tests/grammar/grammar_support.h"

enum { WORDS = 64, TEXT_MAX = 400 };

#define GEMMA_MORE "([^\\x00-\\x1f{}\\[\\],:<]{0,62}[^\\x00-\\x20{}\\[\\],:<])?:"
#define GEMMA_NAME R"([^\x00-\x20{}\[\],:<"')])" GEMMA_MORE
#define GEMMA_NOT_X R"([^\x00-\x20{}\[\],:<"')x])" GEMMA_MORE
#define CALL_NAME "[A-Za-z_][A-Za-z0-9_.-]{0,63}="
#define LONG_NAME "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffggg"

static const struct row {
    unsigned flags;
    const char *schema, *regex;
} rows[] = {
    {GRAMMAR_GEMMA,
     R"({"type":"object","minProperties":1,"maxProperties":1,"properties":{"a":false,)"
     R"("ab":false,"a b":false,")"
     "\xc3\xa9"
     R"(":false,"value":false},)"
     R"("additionalProperties":{"const":2}})",
     "(?!\\{(a|ab|a b|\xc3\xa9|value):)\\{" GEMMA_NAME "2\\}"},
    /* names of 63 and 64 characters, the longest of the others; and one that is too long */
    {GRAMMAR_GEMMA,
     R"({"type":"object","minProperties":1,"maxProperties":1,"properties":{")" LONG_NAME
     R"(":false,")" LONG_NAME R"(h":false,")" LONG_NAME R"(hh":false},)"
     R"("additionalProperties":{"const":2}})",
     "(?!\\{" LONG_NAME "(h|hh)?:)\\{" GEMMA_NAME "2\\}"},
    {GRAMMAR_GEMMA,
     R"({"type":"object","minProperties":1,"maxProperties":1,"properties":{"x":false,)"
     R"("xx":false},"patternProperties":{"^x":{"const":3}},)"
     R"("additionalProperties":{"const":2}})",
     "(?!\\{xx?:)\\{(x" GEMMA_MORE "3|" GEMMA_NOT_X "2)\\}"},
    /* a pattern of which some names are too long, and one of which all are */
    {GRAMMAR_GEMMA,
     R"({"type":"object","minProperties":1,"maxProperties":1,)"
     R"("patternProperties":{"^.{60,70}$":{"const":3},"^.{65,}$":{"const":4}},)"
     R"("additionalProperties":false})",
     "(?=\\{.{60,64}:)\\{" GEMMA_NAME "3\\}"},
    {GRAMMAR_CALL,
     R"({"type":"object","minProperties":1,"maxProperties":1,"properties":{"a":false,)"
     R"("ab":false,")" LONG_NAME R"(":false},"additionalProperties":{"const":2}})",
     "(?!(a|ab|" LONG_NAME ")=)" CALL_NAME "2"},
};

/* Compiles the texts that @regex, with look-ahead, describes: as a string without quotes. */
static struct grammar *compile_pattern(const char *regex) {
    char schema[2000] = R"({"type":"string","pattern":"^)";
    size_t n = strlen(schema);
    struct grammar *g = NULL;
    struct err err = {0};

    for (const char *p = regex; *p; p++) {
        cr_assert_lt(n, sizeof(schema) - 10);
        if (*p == '\\' || *p == '"')
            schema[n++] = '\\';
        schema[n++] = *p;
    }
    strcpy(schema + n, R"($"})");
    const struct grammar_source src = {
        .kind = GRAMMAR_JSON_SCHEMA, .text = schema, .len = strlen(schema), .stop = "::"};

    cr_assert_eq(grammar_compile(&g, test_vocab(), &src, NULL, &err), 0, "%s: %s", schema,
                 err.message);
    return g;
}

/* Returns a random token of @bits; where the text is in the long name, often its next byte. */
static uint32_t choose(const uint32_t *bits, struct rng *r, size_t at) {
    uint32_t next = at < strlen(LONG_NAME) ? (uint8_t)LONG_NAME[at] : 'h';
    uint32_t n = test_n_tokens(), from = rng_below(r, n);

    if (rng_below(r, 20) && bits[next / 32] >> (next % 32) & 1)
        return next;
    while (!(bits[from / 32] >> (from % 32) & 1))
        from = (from + 1) % n;
    return from;
}

/* Walks a random text under both. @left: the limit of tokens, GRAMMAR_NO_MAX for none. */
static void walk(const struct row *row, const struct grammar *x, const struct grammar *y,
                 struct rng *r, uint32_t left) {
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL, *t = NULL;
    uint32_t bits[WORDS], same[WORDS], n_words = grammar_vocab_n_words(test_vocab());
    size_t len, at = 0, start = row->flags & GRAMMAR_GEMMA ? 1 : 0;

    cr_assert_leq(n_words, WORDS);
    cr_assert_eq(grammar_state_new(&s, x), 0);
    cr_assert_eq(grammar_state_new(&t, y), 0);
    for (uint32_t i = 0; !grammar_is_done(s); i++) {
        cr_assert_lt(i, TEXT_MAX);
        cr_assert_eq(grammar_mask(s, bits), grammar_mask(t, same));
        cr_assert_eq(memcmp(bits, same, n_words * sizeof(*bits)), 0, "%s: byte %zu", row->schema,
                     at);
        if (rng_below(r, 16) == 0)
            test_mask_is_exact(s, x, bits);
        if (left != GRAMMAR_NO_MAX) {
            if (left == 0)
                break;
            cr_assert_gt(grammar_mask_within(s, bits, left--), 0, "%s: byte %zu", row->schema, at);
        }
        uint32_t id = choose(bits, r, at - start);

        cr_assert_eq(grammar_accept(s, (int32_t)id), 0);
        cr_assert_eq(grammar_accept(t, (int32_t)id), 0);
        test_token(id, &len);
        at += len;
    }
    cr_assert(grammar_can_end(s) || grammar_is_done(s));
}

Test(grammar_keys, counted_names_have_the_masks_of_a_pattern) {
    struct rng r = {3};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct grammar *x =
            test_compile_with(GRAMMAR_JSON_SCHEMA, rows[i].flags | GRAMMAR_COMPACT, rows[i].schema);
        struct grammar *y = compile_pattern(rows[i].regex);

        for (int k = 0; k < 60; k++)
            walk(&rows[i], x, y, &r, GRAMMAR_NO_MAX);
        for (int k = 0; k < 60; k++)
            walk(&rows[i], x, y, &r, 70 + rng_below(&r, 10));
        grammar_free(x);
        grammar_free(y);
    }
}

/* Returns the bytes of the grammar of an object with members alpha and beta, and @more. */
static size_t bytes_of(const char *more) {
    char schema[300];

    snprintf(schema, sizeof(schema),
             R"({"type":"object","properties":{"alpha":{"const":1},"beta":{"const":1}},)"
             R"("additionalProperties":%s})",
             more);
    struct grammar *g = test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_GEMMA, schema);
    size_t n = grammar_bytes(g);

    grammar_free(g);
    return n;
}

/* The states of names grow with the bytes of the declared ones and not with the longest name; where
 * there are no additional members, there are none. */
Test(grammar_keys, an_object_takes_few_states) {
    size_t closed = bytes_of("false"), open = bytes_of(R"({"const":2})");

    cr_expect_lt(closed, 36000, "%zu bytes", closed);
    cr_expect_lt(open, 60000, "%zu bytes", open);
}
