/*
 * A text that is cut at a limit fits all the same: random texts of random schemas and of other
 * grammars, drawn by several kinds of models under masks that know how many tokens are left.
 */

#include <errno.h>
#include <locale.h>
#include <string.h>

#include "tests/grammar/grammar_support.h"
#include "tests/support/schemas.h"

enum { WORDS = 64 };

static const struct grammar_vocab *bytes_only(void) {
    static struct grammar_vocab *v;
    static uint8_t byte[256];
    struct grammar_token token[257] = {0};
    const int32_t end = 256;

    for (int i = 0; i < 256 && !v; i++) {
        byte[i] = (uint8_t)i;
        token[i] = (struct grammar_token){.bytes = &byte[i], .len = 1};
    }
    if (!v)
        cr_assert_eq(grammar_vocab_new(&v, token, 257, &end, 1), 0);
    return v;
}

/* ---- against a naive search */

/* Whether some text of at most @n more tokens fits: every token is tried. */
static bool can_finish(const struct grammar *g, const struct grammar_state *s, uint32_t n) {
    CLEANUP(grammar_state_freep) struct grammar_state *t = NULL;
    uint32_t bits[WORDS];

    if (grammar_can_end(s))
        return true;
    if (n == 0)
        return false;
    cr_assert_eq(grammar_state_new(&t, g), 0);
    cr_assert_eq(grammar_state_copy(t, s), 0);
    cr_assert_geq(grammar_mask(t, bits), 0);
    for (uint32_t id = 0; id < WORDS * 32; id++) {
        if (id >= 32 * grammar_vocab_n_words(bytes_only()) || !(bits[id / 32] >> (id % 32) & 1))
            continue;
        cr_assert_eq(grammar_accept(t, (int32_t)id), 0);
        bool found = can_finish(g, t, n - 1);

        cr_assert_eq(grammar_rollback(t, 1), 0);
        if (found)
            return true;
    }
    return false;
}

static void nearest_is(enum grammar_kind kind, unsigned flags, const char *text, uint32_t want) {
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    struct grammar_source src = {.kind = kind, .flags = flags, .text = text, .len = strlen(text)};
    struct err err = {0};

    cr_assert_eq(grammar_compile(&g, bytes_only(), &src, NULL, &err), 0, "%s", err.message);
    cr_assert_eq(grammar_state_new(&s, g), 0);
    uint32_t n = grammar_distance(s);

    cr_expect_eq(n, want, "%s: %u", text, n);
    cr_expect_not(want && can_finish(g, s, want - 1), "%s: less than %u", text, want);
    cr_expect(can_finish(g, s, want), "%s: not even %u", text, want);
}

Test(grammar_finish, the_distance_in_bytes_is_that_of_a_naive_search) {
    nearest_is(GRAMMAR_REGEX, 0, "", 0);
    nearest_is(GRAMMAR_REGEX, 0, "a*", 0);
    nearest_is(GRAMMAR_REGEX, 0, "ab|c", 1);
    nearest_is(GRAMMAR_REGEX, 0, "[ab]{3}(c|dd)e", 5);
    nearest_is(GRAMMAR_REGEX, 0, "a{12,20}", 12);
    nearest_is(GRAMMAR_REGEX, 0, "(ab){3,}", 6);
    nearest_is(GRAMMAR_REGEX, 0, "(x[yz]){2,400}w", 5);
    nearest_is(GRAMMAR_CHOICE, 0, R"(["red","green","no"])", 2);
    nearest_is(GRAMMAR_EBNF, 0, "root ::= \"(\" root \")\" | \"x\" | \"yy\"", 1);
    nearest_is(GRAMMAR_EBNF, 0, "root ::= a a\na ::= \"(\" a \")\" | \"(\" b\nb ::= \"]\"", 4);
    nearest_is(GRAMMAR_LARK, 0,
               "start: a\n"
               R"(a: "[" a* "]")",
               2);
    nearest_is(GRAMMAR_JSON_SCHEMA, GRAMMAR_COMPACT, R"({"type":"null"})", 4);
    nearest_is(GRAMMAR_JSON_SCHEMA, GRAMMAR_COMPACT, R"({"const":[1,2]})", 5);
    nearest_is(GRAMMAR_JSON_SCHEMA, GRAMMAR_COMPACT, R"({"enum":["abc",12]})", 2);
    nearest_is(GRAMMAR_JSON_SCHEMA, GRAMMAR_COMPACT,
               R"({"type":"array","minItems":1,"items":{"enum":[1,22]}})", 3);
}

static uint32_t distance_of(unsigned flags, const char *schema) {
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    struct grammar_source src = {
        .kind = GRAMMAR_JSON_SCHEMA, .flags = flags, .text = schema, .len = strlen(schema)};
    struct err err = {0};

    cr_assert_eq(grammar_compile(&g, bytes_only(), &src, NULL, &err), 0, "%s", err.message);
    cr_assert_eq(grammar_state_new(&s, g), 0);
    return grammar_distance(s);
}

Test(grammar_finish, counters_members_and_names_are_in_the_distance) {
    cr_expect_eq(distance_of(GRAMMAR_COMPACT, R"({"type":"string","minLength":100})"), 102);
    cr_expect_eq(distance_of(GRAMMAR_COMPACT,
                             R"({"type":"array","minItems":500,"items":{"type":"integer"}})"),
                 2 + 500 + 499);
    cr_expect_eq(distance_of(0, R"({"type":"object"})"), 2);
    /* {"b":""} */
    cr_expect_eq(distance_of(GRAMMAR_COMPACT,
                             R"({"type":"object","properties":{"a":{"type":"string"},)"
                             R"("b":{"type":"string"}},"required":["b"]})"),
                 8);
    /* {"c":"","a":"","b":""} whatever comes first */
    cr_expect_eq(distance_of(GRAMMAR_COMPACT | GRAMMAR_ANY_ORDER,
                             R"({"type":"object","properties":{"a":{"type":"string"},"b":{)"
                             R"("type":"string"},)"
                             R"("c":{"type":"string"},"d":{}},"required":["c","a","b"]})"),
                 2 + 3 * 6 + 2);
    /* {" ":0}: a name that is none of the declared ones */
    cr_expect_eq(distance_of(GRAMMAR_COMPACT,
                             R"({"type":"object","properties":{"":{}},"minProperties":2,)"
                             R"("additionalProperties":{"type":"integer"}})"),
                 distance_of(GRAMMAR_COMPACT, R"({"const":{"":0,"x":0}})"));
}

/* ---- cut at a limit */

/* How a model chooses. */
enum model { UNIFORM, LONG_TOKENS, GREEDY, NO_ENDS, MODELS };

static uint32_t choose(enum model model, const uint32_t *bits, uint32_t n, uint32_t seed,
                       struct rng *r) {
    uint32_t best = UINT32_MAX, best_score = 0, k = rng_below(r, n);

    for (uint32_t id = 0; id < 32 * WORDS; id++) {
        uint32_t score;
        size_t len;

        if (id >= test_n_tokens() || !(bits[id / 32] >> (id % 32) & 1))
            continue;
        test_token(id, &len);
        if (model == GREEDY)
            score = (id * 2654435761u ^ seed) % 1000003 + 1;
        else if (model == LONG_TOKENS)
            score = (uint32_t)(len * 1000) + rng_below(r, 3000) + 1;
        else
            score = id == TEST_END && model == NO_ENDS ? 1 : k-- == 0 ? 3 : 2;
        if (score > best_score) {
            best = id;
            best_score = score;
        }
    }
    return best;
}

struct cut {
    int len;
    /* by an end token */
    bool ended;
    bool refused;
    /* a mask had too many readings: docs/reference/grammars.md */
    bool ambiguous;
};

static struct cut write_within(const struct grammar *g, uint32_t limit, enum model model,
                               struct rng *r, char *out, size_t cap) {
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    uint32_t bits[WORDS], seed = (uint32_t)rng_next(r);
    struct cut c = {0};

    cr_assert_eq(grammar_state_new(&s, g), 0);
    for (uint32_t i = 0; i < limit; i++) {
        int64_t n = grammar_mask_within(s, bits, limit - i);
        size_t len;

        if (n == 0 && i == 0) {
            c.refused = true;
            return c;
        }
        if (n == -E2BIG) {
            c.ambiguous = true;
            return c;
        }
        cr_assert_gt(n, 0, "no token %u of %u behind %.*s", i, limit, c.len, out);
        uint32_t id = choose(model, bits, (uint32_t)n, seed, r);

        cr_assert_eq(grammar_accept(s, (int32_t)id), 0);
        if (grammar_is_done(s)) {
            c.ended = true;
            return c;
        }
        const char *bytes = test_token(id, &len);

        cr_assert_lt((size_t)c.len + len, cap);
        memcpy(out + c.len, bytes, len);
        c.len += (int)len;
        uint32_t left = grammar_distance(s);

        cr_assert_leq(left, limit - i - 1, "%u tokens to go, %u left: %.*s", left, limit - i - 1,
                      c.len, out);
    }
    cr_assert(grammar_can_end(s), "cut at %u: %.*s", limit, c.len, out);
    return c;
}

Test(grammar_finish, texts_of_random_schemas_are_valid_at_any_limit) {
    static char text[65536];
    struct schema_writer w = {.r = {77}};
    int n_schemas = 0, n_cut = 0, n_refused = 0, n_ambiguous = 0;

    setlocale(LC_CTYPE, "C.UTF-8"); /* for regexec() */
    buf_init(&w.b, 1 << 20);
    while (n_schemas < 1000) {
        static const unsigned FLAGS[] = {0, GRAMMAR_COMPACT, GRAMMAR_ANY_ORDER,
                                         GRAMMAR_ANY_ORDER | GRAMMAR_COMPACT};
        CLEANUP(grammar_freep) struct grammar *g = NULL;
        CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
        struct err err = {0};

        schema_write(&w);
        struct grammar_source src = {.kind = GRAMMAR_JSON_SCHEMA,
                                     .text = w.b.data,
                                     .len = w.b.len,
                                     .flags = FLAGS[rng_below(&w.r, ARRAY_SIZE(FLAGS))]};

        if (grammar_compile(&g, test_vocab(), &src, NULL, &err) < 0)
            continue;
        cr_assert_eq(grammar_state_new(&s, g), 0);
        uint32_t least = grammar_distance(s);

        n_schemas++;
        cr_assert_lt(least, 2000, "%s", w.b.data);
        for (int i = 0; i < 6; i++) {
            uint32_t limit = i == 0   ? least
                             : i == 1 ? MAX(least, 1u) - 1
                             : i == 2 ? least + 1 + rng_below(&w.r, 4)
                                      : least + rng_below(&w.r, 60);

            if (limit == 0)
                continue;
            struct cut c = write_within(g, limit, (enum model)rng_below(&w.r, MODELS), &w.r, text,
                                        sizeof(text));

            n_ambiguous += c.ambiguous;
            if (c.ambiguous)
                continue;
            if (c.refused) {
                cr_assert_lt(limit, least, "%s", w.b.data);
                n_refused++;
                continue;
            }
            cr_assert(schema_allows(w.b.data, w.b.len, text, (size_t)c.len),
                      "limit %u, not valid: %.*s\nschema: %s", limit, c.len, text, w.b.data);
            n_cut += !c.ended;
        }
    }
    buf_deinit(&w.b);
    cr_expect(n_cut > 1800 && n_refused > 150 && n_ambiguous < 10,
              "%d cut, %d refused, %d ambiguous", n_cut, n_refused, n_ambiguous);
}

Test(grammar_finish, other_grammars_too) {
    static const struct {
        enum grammar_kind kind;
        const char *text;
    } CASES[] = {
        {GRAMMAR_JSON_OBJECT, ""},
        {GRAMMAR_REGEX, "(\\d{3}-){2,5}[a-z]{4,40}( (foo|bar)+)?"},
        {GRAMMAR_REGEX, "[^#]{0,200}#[ -~]{10,}"},
        {GRAMMAR_REGEX, "(a|aaaa)*b{30}"},
        {GRAMMAR_CHOICE, R"(["hello world","foobar","x=1"])"},
        {GRAMMAR_EBNF,
         "root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\""},
        {GRAMMAR_EBNF, R"(root ::= <tool_call> "{" [a-z]* "}" <[258]> | "hello" [a-z]{50})"},
        {GRAMMAR_LARK, "start: item (\",\" item)*\nitem: WORD | \"[\" start \"]\"\nWORD: "
                       "/[a-z]+/\n"
                       R"(%ignore " ")"},
    };
    static char text[65536];
    struct rng r = {5};

    for (size_t i = 0; i < ARRAY_SIZE(CASES); i++) {
        CLEANUP(grammar_freep) struct grammar *g = test_compile(CASES[i].kind, CASES[i].text);
        CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;

        cr_assert_eq(grammar_state_new(&s, g), 0);
        uint32_t least = grammar_distance(s);

        for (uint32_t k = 0; k < 200; k++) {
            uint32_t limit = MAX(least + k / 4, 1u);
            struct cut c = write_within(g, limit, (enum model)(k % MODELS), &r, text, sizeof(text));

            cr_assert_not(c.refused, "%s: %u", CASES[i].text, limit);
        }
    }
}

/* What is far from the limit is not touched. */
Test(grammar_finish, a_far_limit_changes_no_mask) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile(GRAMMAR_JSON_SCHEMA,
                     R"({"type":"object","properties":{"a":{"type":"string"},"b":{},"c":{"type":)"
                     R"("array","items":{"type":"integer"}}},"required":["a","c"]})");
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    struct rng r = {9};
    uint32_t bits[WORDS], near[WORDS];

    cr_assert_eq(grammar_state_new(&s, g), 0);
    for (int i = 0; i < 2000; i++) {
        int64_t n = grammar_mask(s, bits);
        uint32_t n_words = grammar_vocab_n_words(test_vocab());

        if (n == 0) {
            grammar_state_reset(s);
            continue;
        }
        cr_assert_eq(grammar_mask_within(s, near, 5000), n);
        cr_assert_eq(memcmp(bits, near, n_words * sizeof(*bits)), 0);
        cr_assert_eq(grammar_accept(s, (int32_t)choose(UNIFORM, bits, (uint32_t)n, 0, &r)), 0);
    }
}
