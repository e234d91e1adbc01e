/* Masks against acceptance byte by byte, taking back, copying, forced bytes, composition, free
 * text. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/mask/share.h"
#include "tests/grammar/grammar_support.h"

static const struct {
    enum grammar_kind kind;
    const char *text;
} SOURCES[] = {
    {GRAMMAR_JSON_OBJECT, ""},
    {GRAMMAR_REGEX, "[a-z]{1,40}( [a-z]{2,9})*"},
    {GRAMMAR_REGEX, "(.{3,30}\n){1,5}"},
    {GRAMMAR_REGEX, "(a{1,9}|b{2,12}a?){3,20}c?"},
    {GRAMMAR_REGEX, "[^x]*x[^y]{0,20}y"},
    {GRAMMAR_EBNF, "root ::= \"(\" root \")\" | [a-z0-9]{1,12} | root2\nroot2 ::= \"[\" root "
                   R"(("," root)* "]")"},
    {GRAMMAR_EBNF,
     "root ::= s*\ns ::= \"<tool\" [_a-z]* \">\" | <tool_call> t </tool_call>\nt ::= [^<]{0,50}"},
    {GRAMMAR_EBNF, "root ::= x x\nx ::= [a-c]* y?\ny ::= \"ab\" | x2\nx2 ::= \"a\" [ab]{0,3}"},
    /* Loops whose end goes on with their bytes and with others; calls beside edges, from several
     * stacks. */
    {GRAMMAR_REGEX, R"(([a-z]{1,4}"[ )"
                    "\n]{2,7}|[a-z]{2,3}[a-e]{1,3}:)*"},
    {GRAMMAR_EBNF,
     R"(root ::= (x | y "ab" | "aab" | "{" s "}")+)"
     "\n"
     R"(x ::= "a" x? "b" )"
     "\" \"\ny ::= \"{\" y? \"}\" | \"a\" y\ns ::= \" \"{1,5} (x | \":\" s \"\\n\")?"},
    {GRAMMAR_EBNF, R"(root ::= "[" (x | "{}")+)"
                   "\n"
                   R"(x ::= "{" (x | "\"")+ "}")"},
    {GRAMMAR_EBNF, "root ::= p | q\np ::= v \"}\" p?\nq ::= v \", \" q?\nv ::= \"[\" v? \"]\""},
    /* Many readings of a loop, which differ by what they have counted; what is behind it begins
     * with its bytes, and with others. */
    {GRAMMAR_REGEX, "[a-d]*[ab]{9,14}[b-d]x"},
    {GRAMMAR_REGEX, R"([ab]*[ab]{9,12}("}?|cd))"},
    {GRAMMAR_REGEX, R"((([ab]{3})*[ab]{9,10}("}|cd))*)"},
    {GRAMMAR_REGEX, "(\\p{Lu}[\\p{L}\\p{M}' -]{2,9}|\\P{L}\\p{Nd}+)*"},
    {GRAMMAR_CHOICE, R"(["foobar", "foo", "hello world", "name\":"])"},
    {GRAMMAR_JSON_SCHEMA, R"({"type": "object", "properties": {"name": {"type": )"
                          R"("string", "maxLength": 20}, "na": {"type": "integer"}, )"
                          R"("items": {"type": "array", "items": {"$ref": "#"}, )"
                          R"("maxItems": 3}}, "additionalProperties": {"type": )"
                          R"("string", "minLength": 3}})"},
    {GRAMMAR_JSON_SCHEMA, "{}"},
};

Test(grammar_mask, equals_acceptance_of_every_token_in_random_texts) {
    struct rng r = {1};

    for (size_t i = 0; i < ARRAY_SIZE(SOURCES); i++) {
        CLEANUP(grammar_freep) struct grammar *g = test_compile(SOURCES[i].kind, SOURCES[i].text);

        for (int run = 0; run < 6; run++) {
            CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
            uint32_t bits[64];

            if (run == 3)
                grammar_prepare(g);
            cr_assert_eq(grammar_state_new(&s, g), 0);
            for (int step = 0; step < 60; step++) {
                uint32_t n = test_mask_is_exact(s, g, bits), k = rng_below(&r, MAX(n, 1u)), id = 0;

                if (n == 0)
                    break;
                for (;; id++) {
                    if ((bits[id / 32] >> (id % 32) & 1) && k-- == 0)
                        break;
                }
                cr_assert_eq(grammar_accept(s, (int32_t)id), 0);
            }
        }
    }
}

/* Walks at random, taking back at random, beside a fresh state that replays what is left. */
Test(grammar_state, rollback_equals_replay) {
    struct rng r = {7};

    for (size_t i = 0; i < ARRAY_SIZE(SOURCES); i++) {
        CLEANUP(grammar_freep) struct grammar *g = test_compile(SOURCES[i].kind, SOURCES[i].text);
        CLEANUP(grammar_state_freep) struct grammar_state *s = NULL, *t = NULL;
        int32_t path[4096];
        uint32_t n = 0, a[64], b[64];

        cr_assert_eq(grammar_state_new(&s, g), 0);
        cr_assert_eq(grammar_state_new(&t, g), 0);
        for (int turn = 0; turn < 250; turn++) {
            int64_t allowed = grammar_mask(s, a);
            uint32_t k = allowed > 0 ? rng_below(&r, (uint32_t)allowed) : 0;
            int32_t id = 0;

            if (allowed == 0 || rng_below(&r, 4) == 0) {
                uint32_t back = rng_below(&r, 9);

                back = MIN(back, n);

                cr_assert_eq(grammar_rollback(s, back), 0);
                n -= back;
            } else {
                while (!(a[id / 32] >> (id % 32) & 1) || k-- > 0)
                    id++;
                cr_assert_eq(grammar_accept(s, id), 0);
                path[n++] = id;
            }
            cr_assert_eq(grammar_n_accepted(s), n);
            if (turn % 5 == 0) {
                grammar_state_reset(t);
                for (uint32_t p = 0; p < n; p++)
                    cr_assert_eq(grammar_accept(t, path[p]), 0);
                cr_assert_eq(grammar_mask(s, a), grammar_mask(t, b));
                cr_assert_eq(memcmp(a, b, (test_n_tokens() + 31) / 32 * 4), 0);
                cr_assert_eq(grammar_can_end(s), grammar_can_end(t));
            }
        }
    }
}

Test(grammar_state, long_texts_keep_their_recent_history) {
    CLEANUP(grammar_freep) struct grammar *g = test_compile(GRAMMAR_JSON_OBJECT, "");
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL, *t = NULL;
    const char *unit = R"([[{"a":[1,{}]},2],)";
    uint32_t a[64], b[64];

    cr_assert_eq(grammar_state_new(&s, g), 0);
    cr_assert_eq(grammar_state_new(&t, g), 0);
    for (const char *p = R"({"x":[)"; *p; p++)
        cr_assert_eq(grammar_accept(s, *p), 0);
    for (int i = 0; i < 300; i++) {
        for (const char *p = unit; *p; p++)
            cr_assert_eq(grammar_accept(s, *p), 0);
        /* The list grows in depth every seventh time. */
        if (i % 7 == 0)
            cr_assert_eq(grammar_accept(s, '['), 0);
    }
    cr_assert_eq(grammar_state_copy(t, s), 0);
    for (int i = 0; i < GRAMMAR_HISTORY - 1; i++)
        cr_assert_eq(grammar_accept(s, i % 2 ? ',' : '1'), 0);
    cr_assert_eq(grammar_rollback(s, GRAMMAR_HISTORY - 1), 0);
    cr_assert_eq(grammar_mask(s, a), grammar_mask(t, b));
    cr_assert_eq(memcmp(a, b, (test_n_tokens() + 31) / 32 * 4), 0);
    cr_expect_eq(grammar_rollback(s, 1000), -22);
    cr_expect_eq(grammar_n_accepted(s), grammar_n_accepted(t));
}

Test(grammar_state, refused_tokens_change_nothing) {
    CLEANUP(grammar_freep) struct grammar *g = test_compile(GRAMMAR_REGEX, "ab*c");
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    const int32_t bad[] = {-1, 'b', 'c', TEST_END, TEST_MARKER, TEST_CONTROL, 1 << 30};
    uint32_t bits[64];

    cr_assert_eq(grammar_state_new(&s, g), 0);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        cr_expect_eq(grammar_accept(s, bad[i]), -22, "%d", bad[i]);
    cr_expect_eq(grammar_n_accepted(s), 0);
    cr_expect_eq(test_mask_is_exact(s, g, bits), 3, "a, ab, abc");
    cr_expect_eq(grammar_accept(s, 'a'), 0);
    cr_expect_eq(grammar_accept(s, 'c'), 0);
    cr_expect(grammar_can_end(s) && !grammar_is_done(s));
    cr_expect_eq(grammar_mask(s, bits), 1);
    cr_expect_eq(grammar_accept(s, TEST_END), 0);
    cr_expect(grammar_is_done(s) && !grammar_can_end(s));
    cr_expect_eq(grammar_accept(s, TEST_END), -22);
    grammar_state_reset(s);
    cr_expect_eq(grammar_accept(s, 'a'), 0);
    cr_expect_eq(grammar_accept(s, 'b'), 0);
    cr_expect_eq(grammar_accept(s, -1), -22);
    cr_expect_eq(grammar_rollback(s, 2), 0);
    cr_expect(!grammar_is_done(s) && !grammar_can_end(s));
}

static void expect_forced(struct grammar_state *s, const char *wanted, int32_t wanted_token) {
    uint8_t out[64];
    int32_t token;
    size_t n = grammar_forced(s, out, sizeof(out), &token);

    cr_expect(n == strlen(wanted) && memcmp(out, wanted, n) == 0 && token == wanted_token,
              "forced '%.*s' %d, wanted '%s' %d", (int)n, out, token, wanted, wanted_token);
}

static grammar_part literal(struct grammar_builder *b, const char *s) {
    return grammar_literal(b, s, strlen(s));
}

static grammar_part source(struct grammar_builder *b, enum grammar_kind kind, const char *s) {
    struct grammar_source src = {.kind = kind, .text = s, .len = strlen(s)};

    return grammar_part_of(b, &src);
}

/* <tool_call>{"name": "f", "arguments": ...}</tool_call>, two functions, one to three calls. */
static struct grammar *tool_calls(void) {
    CLEANUP(grammar_builder_freep) struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    struct err err = {0};
    grammar_part call[2];

    cr_assert_eq(grammar_builder_new(&b, test_vocab(), NULL), 0);
    for (int i = 0; i < 2; i++) {
        grammar_part part[] = {
            literal(b, i ? "<tool_call>\n"
                           R"({"name": "get_time", "arguments": )"
                         : "<tool_call>\n"
                           R"({"name": "get_weather", "arguments": )"),
            source(b, GRAMMAR_REGEX, i ? "[0-9]{1,3}" : "\\{\\}"),
            literal(b, "}\n</tool_call>"),
        };

        call[i] = grammar_sequence(b, part, 3);
    }
    grammar_part all = grammar_repeat(b, grammar_either(b, call, 2), literal(b, "\n"), 1, 3);

    cr_assert_eq(grammar_build(&g, b, all, &err), 0, "%s", err.message);
    return g;
}

Test(grammar_forced, goes_as_far_as_there_is_no_choice) {
    CLEANUP(grammar_freep) struct grammar *g = tool_calls();
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;

    cr_assert_eq(grammar_state_new(&s, g), 0);
    expect_forced(s, "", TEST_MARKER);
    cr_assert_eq(grammar_accept(s, TEST_MARKER), 0);
    expect_forced(s,
                  "\n"
                  R"({"name": "get_)",
                  -1);
    for (const char *p = "\n"
                         R"({"name": "get_t)";
         *p; p++)
        cr_assert_eq(grammar_accept(s, *p), 0);
    expect_forced(s, R"(ime", "arguments": )", -1);
    for (const char *p = R"(ime", "arguments": 123)"; *p; p++)
        cr_assert_eq(grammar_accept(s, *p), 0);
    expect_forced(s, "}\n", TEST_MARKER_END);
    cr_expect_eq(grammar_accept(s, '<'), -22);
    for (const char *p = "}\n"; *p; p++)
        cr_assert_eq(grammar_accept(s, *p), 0);
    cr_assert_eq(grammar_accept(s, TEST_MARKER_END), 0);
    cr_expect(grammar_can_end(s));
    expect_forced(s, "", -1);
}

Test(grammar_forced, ends_where_the_callers_room_ends) {
    CLEANUP(grammar_freep) struct grammar *g = tool_calls();
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    char out[] = "------";
    int32_t token;

    cr_assert_eq(grammar_state_new(&s, g), 0);
    cr_assert_eq(grammar_accept(s, TEST_MARKER), 0);
    cr_expect_eq(grammar_forced(s, (uint8_t *)out, 0, &token), 0);
    cr_expect_str_eq(out, "------");
    cr_expect_eq(grammar_forced(s, (uint8_t *)out, 4, &token), 4);
    cr_expect_str_eq(out, "\n"
                          R"({"n--)");
    cr_expect_eq(token, -1);
    expect_forced(s,
                  "\n"
                  R"({"name": "get_)",
                  -1);
}

Test(grammar_builder, repeats_with_separators_and_limits) {
    CLEANUP(grammar_freep) struct grammar *g = tool_calls();
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;

    cr_assert_eq(grammar_state_new(&s, g), 0);
    for (int i = 0; i < 3; i++) {
        if (i)
            cr_assert_eq(grammar_accept(s, '\n'), 0);
        cr_assert_eq(grammar_accept(s, TEST_MARKER), 0);
        for (const char *p = "\n"
                             R"({"name": "get_weather", "arguments": {}})"
                             "\n";
             *p; p++)
            cr_assert_eq(grammar_accept(s, *p), 0);
        cr_assert_eq(grammar_accept(s, TEST_MARKER_END), 0);
        cr_expect(grammar_can_end(s));
    }
    cr_expect_eq(grammar_accept(s, '\n'), -22);
}

Test(grammar_builder, errors_are_kept) {
    CLEANUP(grammar_builder_freep) struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    struct err err = {0};

    cr_assert_eq(grammar_builder_new(&b, test_vocab(), NULL), 0);
    grammar_part bad = source(b, GRAMMAR_REGEX, "(a");
    grammar_part part[] = {literal(b, "x"), bad};

    cr_expect_eq(bad, GRAMMAR_NO_PART);
    cr_expect_eq(grammar_build(&g, b, grammar_sequence(b, part, 2), &err), -22);
    cr_expect(strstr(err.message, "')' is missing"));
}

Test(grammar_builder, free_text_stops_at_its_stop) {
    static const char *const STOP[] = {"<tool_call", "aab", "abab", "\xe2\x82\xac"};
    static const char *const FITS[][3] = {{"hello <tool <<to", "<tool_cal<tool_cal", ""},
                                          {"aaa", "aaaaaaaaa", "ab"},
                                          {"abaab", "aba", "bab"},
                                          {"\xe2\x82\xa1", "x", "\xf0\x9f\x98\x80"}};
    static const char *const NOT[][2] = {{"a <tool_call", "<<tool_call>"},
                                         {"aaaab", "aab"},
                                         {"aabab", "abab"},
                                         {"\xe2\x82\xac", "\xe2\x82"}};

    for (size_t i = 0; i < ARRAY_SIZE(STOP); i++) {
        CLEANUP(grammar_builder_freep) struct grammar_builder *b = NULL;
        CLEANUP(grammar_freep) struct grammar *g = NULL;
        CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
        uint32_t bits[64];
        struct err err;

        cr_assert_eq(grammar_builder_new(&b, test_vocab(), NULL), 0);
        cr_assert_eq(grammar_build(&g, b, grammar_free_text(b, STOP[i], strlen(STOP[i])), &err), 0);
        for (size_t k = 0; k < ARRAY_SIZE(FITS[i]); k++)
            cr_expect(test_fits(g, FITS[i][k], strlen(FITS[i][k])), "%s", FITS[i][k]);
        for (size_t k = 0; k < ARRAY_SIZE(NOT[i]); k++)
            cr_expect_not(test_fits(g, NOT[i][k], strlen(NOT[i][k])), "%s", NOT[i][k]);
        cr_assert_eq(grammar_state_new(&s, g), 0);
        for (const char *p = FITS[i][0]; *p; p++) {
            cr_assert_eq(grammar_accept(s, (uint8_t)*p), 0);
            test_mask_is_exact(s, g, bits);
        }
    }
}

/* Free text, then calls: what `tool_choice: auto` needs. */
Test(grammar_builder, free_text_before_calls) {
    CLEANUP(grammar_builder_freep) struct grammar_builder *b = NULL;
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    struct err err;

    cr_assert_eq(grammar_builder_new(&b, test_vocab(), NULL), 0);
    grammar_part call[] = {literal(b, "CALL "), source(b, GRAMMAR_CHOICE, R"(["f", "g"])")};
    grammar_part calls = grammar_repeat(b, grammar_sequence(b, call, 2), literal(b, ";"), 0, 2);
    grammar_part all[] = {grammar_free_text(b, "CALL ", 5), calls};

    cr_assert_eq(grammar_build(&g, b, grammar_sequence(b, all, 2), &err), 0);
    cr_expect(test_fits(g, "hi CAL", 6) && test_fits(g, "hi CALL f;CALL g", 16) &&
              test_fits(g, "", 0));
    cr_expect(!test_fits(g, "hi CALL x", 9) && !test_fits(g, "CALL f;CALL g;CALL f", 20));
}

#define LONG 58 /* letters of a token: LONG * LONG / 2 nodes are more than a quick mask looks at */

/* Of sources that begin alike in two ways, behind each letter anew, a mask reads every token once:
 * else it would be late. */
Test(grammar_mask, reads_once_what_begins_alike) {
    static const char *const ALIKE[] = {
        R"(root ::= ("a" | y)* "z")"
        "\n"
        R"(y ::= "a" y "b" | "ac")",
        R"(root ::= [a]{1,90} [ab]{1,90} "z")",
        R"(root ::= ([ab]{30,90} "z" | [a]{20,90} [ab]{1,90} "bz"))",
    };
    struct grammar_token token[] = {{"a", 1, false}, {"b", 1, false},     {"c", 1, false},
                                    {"z", 1, false}, {NULL, LONG, false}, {NULL, LONG, false}};
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = NULL;
    char text[LONG + 1];

    memset(text, 'a', sizeof(text));
    text[LONG] = 'z';
    token[4].bytes = text;
    token[5].bytes = text + 1;
    cr_assert_eq(grammar_vocab_new(&v, token, ARRAY_SIZE(token), NULL, 0), 0);
    for (size_t i = 0; i < ARRAY_SIZE(ALIKE); i++) {
        CLEANUP(grammar_builder_freep) struct grammar_builder *b = NULL;
        CLEANUP(grammar_freep) struct grammar *g = NULL;
        CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
        uint32_t bits;
        struct err err = {0};

        /* With free text in it no class is made before it is needed. */
        cr_assert_eq(grammar_builder_new(&b, v, NULL), 0);
        grammar_part free[] = {literal(b, "z"), grammar_free_text(b, "b", 1)};
        grammar_part part[] = {source(b, GRAMMAR_EBNF, ALIKE[i]), grammar_sequence(b, free, 2)};

        cr_assert_eq(grammar_build(&g, b, grammar_either(b, part, 2), &err), 0, "%s", err.message);
        cr_assert_eq(grammar_state_new(&s, g), 0);
        for (int n = 0; n < 3; n++) {
            grammar_state_set_quick(s, true);
            cr_expect_gt(grammar_mask(s, &bits), 0, "%s: late behind %d letters", ALIKE[i], n);
            grammar_state_set_quick(s, false);
            cr_assert_gt(grammar_mask(s, &bits), 0);
            cr_expect(bits >> 4 & 1, "%s", ALIKE[i]);
            cr_assert_eq(grammar_accept(s, 0), 0);
        }
    }
}

Test(grammar_vocab, is_checked) {
    struct grammar_token token[2] = {{"a", 1, false}, {"b", 1, false}};
    struct grammar_vocab *v = NULL;
    const int32_t ends[] = {2};

    cr_expect_eq(grammar_vocab_new(&v, token, 2, ends, 1), -22);
    cr_expect_eq(grammar_vocab_new(&v, token, 0, NULL, 0), 0);
    cr_expect_eq(grammar_vocab_n_words(v), 0);
    grammar_vocab_free(v);
}

Test(grammar_limits, are_named) {
    struct grammar_limits limits = {.max_source = 10};
    struct grammar_source src = {.kind = GRAMMAR_REGEX, .text = "aaaaaaaaaaa", .len = 11};
    struct grammar *g = NULL;
    struct err err = {0};

    cr_expect_eq(grammar_compile(&g, NULL, &src, &limits, &err), -22);
    cr_expect_str_eq(err.code, "grammar_too_complex");
    limits = (struct grammar_limits){.max_states = 10};
    cr_expect_eq(grammar_compile(&g, NULL, &src, &limits, &err), -22);
    cr_expect(strstr(err.message, "more than 10 states"));
    limits = (struct grammar_limits){.max_work = 20};
    cr_expect_eq(grammar_compile(&g, NULL, &src, &limits, &err), -22);
    cr_expect(strstr(err.message, "too much work"));
    limits = (struct grammar_limits){.max_bytes = 100};
    cr_expect_eq(grammar_compile(&g, NULL, &src, &limits, &err), -22);
    cr_expect(strstr(err.message, "100 bytes"));
    src = (struct grammar_source){.kind = GRAMMAR_EBNF,
                                  .text = "root ::= a b\na ::= \"a\"\nb ::= \"b\""};
    src.len = strlen(src.text);
    limits = (struct grammar_limits){.max_states = 2};
    cr_expect_eq(grammar_compile(&g, NULL, &src, &limits, &err), -22);
    cr_expect_str_eq(err.message, "the grammar has more than 2 rules");
    src = (struct grammar_source){.kind = GRAMMAR_REGEX, .text = "((((a))))", .len = 9};
    limits = (struct grammar_limits){.max_depth = 3};
    cr_expect_eq(grammar_compile(&g, NULL, &src, &limits, &err), -22);
    cr_expect(strstr(err.message, "more than 3 deep"));
}

/* The front has no vocabulary at hand and still wants to refuse a bad schema. */
Test(grammar_compile, without_a_vocabulary_only_checks) {
    struct grammar_source good = {
        .kind = GRAMMAR_JSON_SCHEMA, .text = R"({"type": "object"})", .len = 18};
    struct grammar_source bad = {
        .kind = GRAMMAR_JSON_SCHEMA, .text = R"({"$dynamicRef": "#"})", .len = 20};
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    struct err err = {0};

    cr_expect_eq(grammar_compile(&g, NULL, &good, NULL, &err), 0);
    cr_expect(g && grammar_bytes(g) > 0);
    cr_expect_eq(grammar_compile(&g, NULL, &bad, NULL, &err), -22);
    cr_expect(strstr(err.message, "#/$dynamicRef"));
}

#define LONG_TAIL 100
#define N_TAILS 40
#define N_CUT 1200

/* Tokens "[cut N]", as of a vocabulary that was cut down, and some long ones whose letters
 * are read up to the last one. */
static struct grammar_vocab *cut_vocab(struct grammar_token *token, char (*text)[LONG_TAIL + 2]) {
    uint32_t n = 0;
    struct grammar_vocab *v = NULL;
    int32_t end = 256 + N_TAILS + N_CUT;

    for (; n < 256; n++)
        text[n][0] = (char)n, token[n] = (struct grammar_token){.bytes = text[n], .len = 1};
    for (; n < 256 + N_TAILS; n++) {
        for (uint32_t i = 0; i < LONG_TAIL; i++)
            text[n][i] = (char)(i == 0 ? 'a' : i + 1 == LONG_TAIL ? '!' : 'b' + (n >> i % 6 & 1));
        token[n] = (struct grammar_token){.bytes = text[n], .len = LONG_TAIL};
    }
    for (; n < 256 + N_TAILS + N_CUT; n++) {
        int len = snprintf(text[n], sizeof(*text), "[cut %u]", n);
        token[n] = (struct grammar_token){.bytes = text[n], .len = (size_t)len};
    }
    token[n++] = (struct grammar_token){.special = true};
    cr_assert_eq(grammar_vocab_new(&v, token, n, &end, 1), 0);
    return v;
}

/* The class of the state behind "l" begins as that of the state behind "k", and what differs takes
 * too long for a quick mask: the walk that gives it up is followed by another one. */
Test(grammar_state, a_class_that_is_given_up_leaves_other_walks_alone) {
    static const char schema[] = R"({"pattern":"^(ka[b-y]*|la[b-z]*|[kl][^a]Z*)$"})";
    static struct grammar_token token[256 + N_TAILS + N_CUT + 1];
    static char text[256 + N_TAILS + N_CUT][LONG_TAIL + 2];
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = cut_vocab(token, text);
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL, *t = NULL;
    CLEANUP(freep) uint32_t *bits = malloc(2ul * grammar_vocab_n_words(v) * sizeof(*bits));
    struct grammar_source src = {
        .kind = GRAMMAR_JSON_SCHEMA, .text = schema, .len = sizeof(schema) - 1};
    struct err err = {0};
    uint32_t n_words = grammar_vocab_n_words(v);

    cr_assert_eq(grammar_compile(&g, v, &src, NULL, &err), 0, "%s", err.message);
    cr_assert_eq(grammar_state_new(&s, g), 0);
    cr_assert_eq(grammar_state_new(&t, g), 0);
    cr_assert_eq(grammar_accept(s, '"') | grammar_accept(s, 'k'), 0);
    cr_assert_gt(grammar_mask(s, bits), 0);
    grammar_state_reset(s);
    cr_assert_eq(grammar_accept(s, '"') | grammar_accept(s, 'l'), 0);
    grammar_state_set_quick(s, true);
    cr_expect_eq(grammar_mask(s, bits), -EAGAIN);
    grammar_state_set_quick(s, false);
    int64_t n = grammar_mask(s, bits), n_accepted = 0;
    for (uint32_t i = 0; i < n_words * 32 && i < ARRAY_SIZE(text); i++) {
        cr_assert_eq(grammar_state_copy(t, s), 0);
        bool accepted = grammar_accept(t, (int32_t)i) == 0;

        n_accepted += accepted;
        cr_assert_eq(accepted, bits[i / 32] >> (i % 32) & 1, "token %u", i);
    }
    cr_expect_eq(n, n_accepted);
    cr_expect_gt(n, 0);
}

/* Down to the last byte, and none more. */
Test(grammar_share, all_of_the_memory_can_be_spent) {
    struct share *s;
    size_t spent = 0;

    cr_assert_eq(share_new(&s), 0);
    for (size_t n = (size_t)1 << 40; n > 0; n /= 2)
        while (share_spend(s, n))
            spent += n;
    cr_expect_eq(spent, (size_t)64 << 20);
    cr_expect_eq(share_bytes(s), spent);
    cr_expect(share_spend(s, 0));
    share_free(s);
}
