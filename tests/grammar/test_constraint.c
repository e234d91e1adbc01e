/* Nodes and triggers as they travel, and what they mean for a request. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "grammar/constraint.h"
#include "tests/grammar/grammar_support.h"

static struct grammar *compile(const char *text) {
    struct grammar *g = NULL;
    struct err err = {0};
    int r = constraint_compile(&g, test_vocab(), text, strlen(text), NULL, &err);

    cr_assert_eq(r, 0, "%s: %s", text, err.message);
    return g;
}

static void lists(const char *text, const char *const *fits, const char *const *fits_not) {
    CLEANUP(grammar_freep) struct grammar *g = compile(text);

    for (; *fits; fits++)
        cr_assert(test_fits(g, *fits, strlen(*fits)), "%s should fit %s", *fits, text);
    for (; *fits_not; fits_not++)
        cr_assert(!test_fits(g, *fits_not, strlen(*fits_not)), "%s fits %s", *fits_not, text);
}

static struct err refused(const char *text) {
    struct grammar *g = NULL;
    struct err err = {0};

    cr_assert_eq(constraint_compile(&g, NULL, text, strlen(text), NULL, &err), -EINVAL, "%s", text);
    cr_assert_eq(err.status, 400);
    return err;
}

Test(constraint, nodes_are_their_grammars) {
    lists(R"({"json_schema":{"type":"integer","minimum":10,"maximum":12}})", YES("10", "11", "12"),
          YES("9", "13", "1"));
    lists(R"({"json_object":true})", YES("{}", R"({"a": 1})"), YES("[]", "1"));
    lists(R"({"json_object":true,"compact":true})", YES(R"({"a":1})"), YES(R"({"a": 1})"));
    lists(R"({"regex":"a+b"})", YES("ab", "aab"), YES("b", "aba"));
    lists(R"({"ebnf":"root ::= \"x\"*"})", YES("", "xx"), YES("y"));
    lists(R"({"json_schema":{"items":{"enum":[true,null,1]}},"python":true})",
          YES("[True, null]", "[true,None,1]"), YES("[False]", "[TRUE]", "[none]"));
    lists(R"({"json_object":true,"python":true})", YES(R"({"a": True})", R"({"b":[false,None]})"),
          YES("{True: 1}"));
    lists(R"({"json_schema":{"items":{"type":["boolean","null"]},"uniqueItems":true}})",
          YES("[true, null]"), YES("[True]", "[None]", "[true,true]"));
    lists(
        R"({"json_schema":{"items":{"type":["boolean","null"]},"uniqueItems":true},"python":true})",
        YES("[true, null]"), YES("[True,true]", "[null, None]"));
    lists(R"({"choice":["yes","no"]})", YES("yes", "no"), YES("", "yesno"));
    lists(R"({"literal":"abc"})", YES("abc"), YES("ab", "abcd"));
    lists(R"({"free_text":"END"})", YES("", "EN", "text"), YES("END", "xENDx"));
}

Test(constraint, nodes_compose) {
    lists(R"({"sequence":[{"literal":"<"},{"either":[{"regex":"[0-9]"},)"
          R"({"literal":"x"}]},{"literal")"
          R"(:">"}]})",
          YES("<1>", "<x>"), YES("<>", "<1x>"));
    lists(R"({"repeat":{"literal":"a"},"separator":{"literal":","},"min":1,"max":2})",
          YES("a", "a,a"), YES("", "a,", "aa", "a,a,a"));
    lists(R"({"repeat":{"literal":"a"}})", YES("", "aaaa"), YES("b"));
}

Test(constraint, members_come_once_in_their_order) {
    static const char list[] =
        R"({"members":[{"key":"a","value":{"regex":"[0-9]"},"optional":true},)"
        R"({"key":"ab","value":{"literal":"!"}},)"
        R"({"key":"c","value":{"literal":""},"optional":true}],)"
        R"("before":{"literal":"%s"}})";
    char text[300];

    snprintf(text, sizeof(text), list, "");
    lists(text, YES("ab!", "a1ab!", "a1ab!c", "ab!c"), YES("", "a1", "c", "ab!ab!", "cab!", "ac"));
    snprintf(text, sizeof(text), list, "<");
    lists(text, YES("<ab!", "<a1<ab!<c"), YES("ab!", "<a1", "<", "<ab!<"));
    lists(R"({"members":[],"before":{"literal":"<"}})", YES(""), YES("<"));
    lists(R"({"members":[{"key":"a","value":{"literal":""},)"
          R"("optional":true}],"before":{"literal":"<)"
          R"("}})",
          YES("", "<a"), YES("<", "a", "<a<a"));
}

Test(constraint, numbers_of_schemas_stay_exact) {
    lists(R"({"json_schema":{"const":0.10000000000000000001}})", YES("0.10000000000000000001"),
          YES("0.1"));
}

Test(constraint, refusals_name_what_is_wrong) {
    struct err e =
        refused(R"({"json_schema":{"$dynamicRef":"#"},"param":"tools[2].function.parameters"})");

    cr_assert_str_eq(e.code, "grammar_unsupported");
    cr_assert_str_eq(e.param, "tools[2].function.parameters");
    cr_assert_str_eq(refused(R"({"regex":"("})").code, "grammar_invalid");
    const char *const rows[][2] = {
        {"", "not JSON"},
        {"[]", "a node of a grammar must be an object"},
        {"{}", "a node of the grammar has no known key"},
        {R"({"regex":1})", "regex, ebnf and lark must be strings"},
        {R"({"json_object":false})", "json_object must be true"},
        {R"({"either":[]})", "sequence and either must be arrays of nodes"},
        {R"({"sequence":{}})", "sequence and either must be arrays of nodes"},
        {R"({"repeat":{"literal":"a"},"min":2,"max":1})", "min is greater than max"},
        {R"({"repeat":{"literal":"a"},"min":-1})", "min and max must be whole numbers"},
        {R"({"repeat":{"literal":"a"},"max":99999999999})", "min and max must be whole"},
        {R"({"repeat":{"literal":"a"},"max":"3"})", "min and max must be whole numbers"},
        {R"({"literal":1})", "a node of the grammar has no known key"},
        {R"({"members":{},"before":{"literal":""}})", "members must be an array"},
        {R"({"members":[1],"before":{"literal":""}})", R"(must have a string "key")"},
        {R"({"members":[{"key":1,"value":{"literal":""}}],"before":{"literal":""}})",
         R"(must have a string "key")"},
        {R"({"members":[{"key":"","value":{"literal":""}}],"before":{"literal":""}})",
         R"(must have a string "key")"},
        {R"({"members":[{"key":"a"}],"before":{"literal":""}})",
         "a node of a grammar must be an object"},
        {R"({"members":[],"before":1})", "a node of a grammar must be an object"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct err e_of = refused(rows[i][0]);

        cr_expect(strstr(e_of.message, rows[i][1]), "%s: %s", rows[i][0], e_of.message);
    }
}

Test(constraint, nesting_is_limited) {
    char text[4096];
    size_t n = 0;

    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, R"({"repeat":)");
    n += (size_t)snprintf(text + n, sizeof(text) - n, R"({"literal":"a"})");
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "}");
    struct err e = refused(text);

    cr_assert_str_eq(e.code, "grammar_too_complex");
    cr_expect_str_eq(e.message, "the grammar's parts are nested more than 32 deep");
}

/* Returns what constraint_new() says of these triggers, behind which a literal comes. */
static int check_triggers(const char *text, size_t len, struct err *err) {
    CLEANUP(constraint_freep) struct constraint *c = NULL;
    const char *grammar = R"({"literal":"x"})";

    return constraint_new(&c, test_vocab(), grammar, strlen(grammar), text, len, NULL, err);
}

Test(constraint, triggers_are_checked) {
    const char *const good[] = {"",
                                R"({"after":["</think>"]})",
                                R"({"after":["a","b"],"repeat":true})",
                                R"({"after":["a"],"required":true})",
                                R"({"after":["a"],"quiet":{"open":"b","close":"c"}})",
                                R"({"after":["a"],"quiet":{"open":"b","close":"c","now":true}})",
                                R"({"after":[{"text":"a","held":"b"}],"start":[]})",
                                R"({"after":["a"],"start":["b",{"text":"a","held":"a"}]})"};
    static const char LIST[] = R"(triggers must have an array "after" of 1 to 16 strings)",
                      ONE[] = R"(a trigger must be a string of 1 to 256 bytes, or "text" and )"
                              R"("held" that are)",
                      FLAG[] = R"("repeat" and "required" of triggers must be booleans)",
                      QUIET[] = R"("quiet" of triggers must have "open" and "close", strings )"
                                R"(of 1 to 256 bytes, and may have "now", a boolean)";
    const char *const bad[][2] = {
        {"[]", LIST},
        {"{}", LIST},
        {R"({"after":[]})", LIST},
        {R"({"after":"a"})", LIST},
        {R"({"after":[""]})", ONE},
        {R"({"after":[1]})", ONE},
        {R"({"after":["a"],"repeat":1})", FLAG},
        {R"({"after":["a"],"quiet":true})", QUIET},
        {R"({"after":["a"],"start":"b"})",
         R"("start" of triggers must be an array of at most 1024)"},
        {R"({"after":["a"],"start":[{"text":"b"}]})", ONE},
        {R"({"after":[{"text":"","held":"b"}]})", ONE},
        {R"({"after":["a"],"quiet":{"open":"b"}})", QUIET},
        {R"({"after":["a"],"quiet":{"open":"b","close":""}})", QUIET},
        {R"({"after":["a"],"quiet":{"open":"b","close":"c","now":1}})", QUIET},
        {R"({"after":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])"
         "}",
         LIST},
        {"{", "the triggers are not JSON"},
    };
    struct err err;

    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        cr_assert_eq(check_triggers(good[i], strlen(good[i]), &err), 0, "%s", good[i]);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        cr_assert_eq(check_triggers(bad[i][0], strlen(bad[i][0]), &err), -EINVAL, "%s", bad[i][0]);
        cr_expect_str_eq(err.message, bad[i][1]);
    }
}

/* What a front that has lost its mind would send: it is a grammar or a 400. */
Test(constraint, mutated_texts_are_grammars_or_refused) {
    const char *const texts[] = {
        R"({"sequence":[{"literal":"<tool_call>"},)"
        R"({"json_schema":{"type":"object","properties":{"a")"
        R"(:{"enum":[1,"b"]}}},"compact":true,"param":"x"},{"free_text":"END"}]})",
        "{\"repeat\":{\"either\":[{\"regex\":\"[a-z]+(x|y)\"},{\"choice\":[\"a\",\"b\"]}]},"
        R"("separator":{")"
        R"(literal":","},"min":1,"max":30})",
        R"({"ebnf":"root ::= a b*\na ::= [0-9]{2}\nb ::= \"x\""})",
        R"({"members":[{"key":"a","value":{"regex":"b*"},"optional":true},{"key":"ab","value":{")"
        R"(literal":"c"}}],"before":{"literal":"<"}})",
        R"({"after":["</)"
        R"(think>","ab"],"start":["x",{"text":"<a","held":"b"}],"repeat":true,"required":false,")"
        R"(quiet":{"open":"<x>","close":"y","now":false}})"};
    struct rng r = {9};
    int n_good = 0, n_bad = 0;

    for (int i = 0; i < 6000; i++) {
        char text[512];
        size_t n = (size_t)snprintf(text, sizeof(text), "%s", texts[i % 4]);

        for (uint32_t k = 1 + rng_below(&r, 3); k > 0; k--) {
            uint32_t at = rng_below(&r, (uint32_t)n), from = rng_below(&r, (uint32_t)n);

            switch (rng_below(&r, 3)) {
            case 0:
                text[at] = (char)rng_below(&r, 256);
                break;
            case 1:
                text[at] = text[from];
                break;
            default:
                memmove(text + at, text + at + 1, n - at - 1);
                n--;
            }
        }
        struct grammar_limits limits = {.max_work = 300000};
        struct grammar *g = NULL;
        struct err err = {0};
        int e = i % 4 == 3
                    ? check_triggers(text, n, &err)
                    : constraint_compile(&g, i % 2 ? test_vocab() : NULL, text, n, &limits, &err);

        cr_assert(e == 0 || (e == -EINVAL && err.status == 400 && *err.message), "%.*s", (int)n,
                  text);
        n_good += e == 0;
        n_bad += e < 0;
        grammar_free(g);
    }
    cr_expect(n_good > 300 && n_bad > 1000, "%d good, %d bad", n_good, n_bad);
}

static struct constraint *constrain(const char *grammar, const char *triggers) {
    struct constraint *c = NULL;
    struct err err = {0};
    int r = constraint_new(&c, test_vocab(), grammar, strlen(grammar), triggers, strlen(triggers),
                           NULL, &err);

    cr_assert_eq(r, 0, "%s %s: %s", grammar, triggers, err.message);
    return c;
}

static const struct {
    const char *grammar, *triggers;
} CASES[] = {
    {R"({"json_object":true})", ""},
    {R"({"json_object":true})", R"({"after":["</tool_call>"]})"},
    {R"({"json_object":true})", R"({"after":["</", "abc"],"required":true})"},
    {R"({"regex":"[a-z]{1,6}"})", R"({"after":["\"", "id"],"repeat":true})"},
    {R"({"regex":"name( [0-9]*)?"})", R"({"after":["{", ":0"],"repeat":true})"},
    {R"({"sequence":[{"json_object":true},{"literal":"</tool_call>"}]})",
     R"({"after":["<tool_call>"],"repeat":true,"required":true})"},
    {R"({"literal":""})", R"({"after":["a", "aab"],"repeat":true})"},
    {R"({"json_object":true})", R"({"after":["a"],"quiet":{"open":"{","close":"}"}})"},
    {R"({"regex":"[a-z]{1,6}"})",
     R"({"after":["\"", )"
     R"("id"],"repeat":true,"quiet":{"open":"<tool","close":"a","now":true}})"},
    {R"({"json_object":true})", R"({"after":["a{","{"],"repeat":true,"quiet":{"open":)"
                                R"("abc","close":"aa","now":true}})"},
    {R"({"json_object":true})", R"({"after":["abc"],"start":[{"text":"{\"","held":"{\""}],)"
                                R"("repeat":true})"},
    {R"({"regex":"name[0-9]*( [a-z]+)?"})",
     R"({"after":[{"text":"id","held":"name1"}],"start":["a",{"text":"value",)"
     R"("held":)"
     R"("name"}],"repeat":true,"quiet":{"open":"{","close":"}"}})"},
};

/* The mask has exactly the tokens that are accepted. */
static uint32_t check_mask(struct constraint_state *s, uint32_t *bits) {
    int64_t n = constraint_mask(s, bits);
    uint32_t count = 0;

    for (uint32_t t = 0; t < test_n_tokens(); t++) {
        bool in = bits[t / 32] >> (t % 32) & 1;
        int r = constraint_accept(s, (int32_t)t);

        count += in;
        cr_assert_eq(r, in ? 0 : -EINVAL, "token %u: mask %d, accept %d", t, in, r);
        if (r == 0)
            cr_assert_eq(constraint_rollback(s, 1), 0);
    }
    for (uint32_t t = test_n_tokens(); t < 32 * ((test_n_tokens() + 31) / 32); t++)
        cr_assert(!(bits[t / 32] >> (t % 32) & 1));
    cr_assert_eq(n, count);
    cr_assert_eq(constraint_can_end(s), bits[TEST_END / 32] >> (TEST_END % 32) & 1);
    cr_assert(!constraint_is_free(s) || count == test_n_tokens());
    return count;
}

static int32_t pick(struct rng *r, const uint32_t *bits, uint32_t n) {
    uint32_t k = rng_below(r, n);
    int32_t id = 0;

    while (!(bits[id / 32] >> (id % 32) & 1) || k-- > 0)
        id++;
    return id;
}

Test(constraint_state, masks_equal_acceptance_in_random_texts) {
    struct rng r = {11};

    for (size_t i = 0; i < ARRAY_SIZE(CASES); i++) {
        CLEANUP(constraint_freep)
        struct constraint *c = constrain(CASES[i].grammar, CASES[i].triggers);

        for (int run = 0; run < 12; run++) {
            CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
            uint32_t bits[64];

            cr_assert_eq(constraint_state_new(&s, c), 0);
            for (int step = 0; step < 60; step++) {
                uint32_t n = check_mask(s, bits);

                if (n == 0)
                    break;
                cr_assert_eq(constraint_accept(s, pick(&r, bits, n)), 0);
            }
        }
    }
}

Test(constraint_state, rollback_equals_replay) {
    struct rng r = {5};

    for (size_t i = 0; i < ARRAY_SIZE(CASES); i++) {
        CLEANUP(constraint_freep)
        struct constraint *c = constrain(CASES[i].grammar, CASES[i].triggers);
        CLEANUP(constraint_state_freep) struct constraint_state *s = NULL, *t = NULL, *u = NULL;
        int32_t path[2048];
        uint32_t n = 0, most = 0, a[64], b[64];

        cr_assert_eq(constraint_state_new(&s, c), 0);
        cr_assert_eq(constraint_state_new(&t, c), 0);
        cr_assert_eq(constraint_state_new(&u, c), 0);
        for (int turn = 0; turn < 1500; turn++) {
            int64_t allowed = constraint_mask(s, a);

            if (allowed == 0 || rng_below(&r, 6) == 0) {
                uint32_t back = rng_below(&r, turn % 100 ? 9 : CONSTRAINT_HISTORY);

                back = MIN(back, n - (most - MIN(most, CONSTRAINT_HISTORY)));
                cr_assert_eq(constraint_rollback(s, back), 0);
                n -= back;
            } else {
                path[n] = pick(&r, a, (uint32_t)allowed);
                cr_assert_eq(constraint_accept(s, path[n++]), 0);
                most = MAX(most, n);
            }
            if (turn % 25)
                continue;
            constraint_state_reset(t);
            for (uint32_t p = 0; p < n; p++)
                cr_assert_eq(constraint_accept(t, path[p]), 0);
            cr_assert_eq(constraint_state_copy(u, s), 0);
            cr_assert_eq(constraint_mask(s, a), constraint_mask(t, b));
            cr_assert_eq(memcmp(a, b, (test_n_tokens() + 31) / 32 * 4), 0);
            cr_assert_eq(constraint_mask(s, a), constraint_mask(u, b));
            cr_assert_eq(memcmp(a, b, (test_n_tokens() + 31) / 32 * 4), 0);
            cr_assert_eq(constraint_is_free(s), constraint_is_free(t));
        }
    }
}

Test(constraint, what_no_token_begins_is_refused) {
    const struct grammar_token tokens[] = {{"a", 1, false}, {"ab", 2, false}, {"", 0, true}};
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = NULL;
    const char *good = R"({"literal":"aq"})", *bad = R"({"literal":"qa"})";
    const int32_t ends = 2;
    struct constraint *c;
    struct err err = {0};

    cr_assert_eq(grammar_vocab_new(&v, tokens, 3, &ends, 1), 0);
    cr_assert_eq(constraint_new(&c, v, bad, strlen(bad), "", 0, NULL, &err), -EINVAL);
    cr_expect_str_eq(err.code, "grammar_unsupported");
    cr_expect_str_eq(err.message,
                     "no token of this model's vocabulary can begin a text of this grammar");
    cr_expect_eq(err.status, 400);
    cr_assert_eq(constraint_new(&c, v, good, strlen(good), "", 0, NULL, &err), 0);
    constraint_free(c);
}

/* Feeds @text token by token, the longest first; -1, or the offset at which one is refused. */
static int feed(struct constraint_state *s, const char *text) {
    size_t len = strlen(text), at = 0;

    while (at < len) {
        int32_t best = -1;
        size_t longest = 0;

        for (uint32_t t = 0; t < test_n_tokens(); t++) {
            size_t n;
            const char *bytes = test_token(t, &n);

            if (n > longest && n <= len - at && memcmp(bytes, text + at, n) == 0)
                best = (int32_t)t, longest = n;
        }
        if (constraint_accept(s, best) < 0)
            return (int)at;
        at += longest;
    }
    return -1;
}

/* 299 ways to begin, all of which one character keeps open. */
Test(constraint, what_may_begin_in_too_many_ways_is_refused) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};
    struct constraint *c = NULL;
    struct err err = {0};

    buf_add_str(&b, R"({"regex":"()");
    for (int i = 1; i < 300; i++)
        buf_printf(&b, "%s[a-z]{%d}x", i > 1 ? "|" : "", i);
    buf_add_str(&b, ")\"}");
    cr_assert_eq(constraint_new(&c, test_vocab(), b.data, b.len, "", 0, NULL, &err), -EINVAL);
    cr_expect_eq(err.status, 400);
    cr_expect_str_eq(err.code, "grammar_too_complex");
    cr_expect(strstr(err.message, "too ambiguous"), "%s", err.message);
}

Test(constraint_state, a_trigger_lets_the_grammar_hold_to_the_end) {
    CLEANUP(constraint_freep)
    struct constraint *c = constrain(R"({"json_object":true})", R"({"after":["</think>"]})");
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    uint32_t bits[64];

    cr_assert_eq(constraint_state_new(&s, c), 0);
    cr_assert(constraint_is_free(s));
    cr_assert_eq(feed(s, "hello {x </thin </think"), -1);
    cr_assert(constraint_can_end(s));
    cr_assert_eq(feed(s, ">"), -1);
    cr_assert(!constraint_is_free(s) && !constraint_can_end(s));
    cr_assert_eq(feed(s, "hello"), 0);
    cr_assert_eq(feed(s, R"({"a": 1})"), -1);
    cr_assert(constraint_can_end(s));
    cr_assert_eq(check_mask(s, bits), 1);
    cr_assert_eq(feed(s, "</think>"), 0);
    cr_assert_eq(constraint_accept(s, TEST_END), 0);
    cr_assert(constraint_is_done(s));
    cr_assert_eq(constraint_accept(s, TEST_END), -EINVAL);
}

Test(constraint_state, triggers_are_text_where_it_is_quiet) {
    static const struct {
        const char *now, *text;
        /* bytes of @text before the grammar holds; -1: it does not */
        int held;
    } cases[] = {
        {"false", "a<tool_call>", 12},
        {"false", "<think>a<tool_call> </think", -1},
        {"false", "\n<think>a</think>a<tool_call>", 29},
        {"false", "a<think><tool_call>", 19}, /* only where the output begins */
        {"false", "<think></think>\n<think><tool_call>", -1},
        {"false", "<think></think>a<think><tool_call>", 34},
        {"true", "a<tool_call></thin</think", -1},
        {"true", "<think></think><tool_call>", 26},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
        CLEANUP(constraint_freep) struct constraint *c = NULL;
        char triggers[200], text[100];

        snprintf(triggers, sizeof(triggers),
                 R"({"after":["<tool_call>"],"quiet":)"
                 R"({"open":"<think>","close":"</think>","now":%s}})",
                 cases[i].now);
        c = constrain(R"({"json_object":true})", triggers);
        cr_assert_eq(constraint_state_new(&s, c), 0);
        for (int n = 0; n < (int)strlen(cases[i].text); n++) {
            cr_expect(constraint_can_end(s), "%s: held at %d", cases[i].text, n);
            snprintf(text, sizeof(text), "%c", cases[i].text[n]);
            cr_assert_eq(feed(s, text), -1);
        }
        cr_expect_eq(constraint_can_end(s), cases[i].held < 0, "%s", cases[i].text);
    }
}

/* A bare object that names a tool is held from its beginning, where the output begins; elsewhere,
 * or with another name, it is text. */
Test(constraint_state, triggers_at_a_start_may_be_part_of_the_grammar) {
    const char *grammar =
        R"({"regex":"\\{\"name\": \"(f\", \"a\": [0-9]+|g\", \"a\": [a-z]+)\\}"})";
    static const char triggers[] = R"({"after":["<tool_call>"],"repeat":true,"start":[)"
                                   R"({"text":"{\"name\": \"f\", )"
                                   R"(\"a","held":"{\"name\": \"f\", \"a"},)"
                                   R"({"text":"{\"name\": \"g\", )"
                                   R"(\"a","held":"{\"name\": \"g\", \"a"}]})";
    const struct {
        const char *text;
        /* feed() */
        int refused;
    } cases[] = {
        {R"({"name": "f", "a": 12})", -1},
        {R"({"name": "g", "a": xy})", -1},
        {R"({"name": "h", "a": {xy 1)", -1},
        {R"({"name": "f", "b": {xy 1)", -1},
        {R"( {"name": "f", "a": {xy 1)", -1},
        {R"({"name": "f", "a": 1}{"name": "g", "a": x})", -1},
        {R"(<tool_call>{"name": "g", "a": x})", -1},
        {R"({"name": "f", "a": x)", 19},
        {R"({"name": "g", "a": 1)", 19},
        {R"({"name": "f", "a": 1}{"name": "g", "a": 1)", 40},
    };
    CLEANUP(constraint_freep) struct constraint *c = constrain(grammar, triggers);

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;

        cr_assert_eq(constraint_state_new(&s, c), 0);
        cr_expect(constraint_is_free(s));
        cr_expect_eq(feed(s, cases[i].text), cases[i].refused, "%s", cases[i].text);
        cr_expect(cases[i].refused >= 0 || constraint_can_end(s), "%s", cases[i].text);
    }
}

Test(constraint_state, a_token_may_reach_beyond_a_trigger) {
    CLEANUP(constraint_freep)
    struct constraint *c = constrain(R"({"regex":"value|a|o"})", R"({"after":["xf"]})");
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    uint32_t bits[64];

    cr_assert_eq(constraint_state_new(&s, c), 0);
    cr_assert_eq(feed(s, "hello x"), -1);
    check_mask(s, bits);
    /* "foo" goes on with "oo", "fal" with "al". */
    for (uint32_t t = 0; t < test_n_tokens(); t++) {
        size_t n;
        const char *bytes = test_token(t, &n);
        bool bad = n > 1 && bytes[0] == 'f';

        cr_assert_eq(bits[t / 32] >> (t % 32) & 1, !bad, "%.*s", (int)n, bytes);
    }
}

Test(constraint_state, repeated_triggers_set_the_text_free_again) {
    CLEANUP(constraint_freep)
    struct constraint *c =
        constrain(R"({"sequence":[{"json_object":true},{"literal":"</tool_call>"}]})",
                  R"({"after":["<tool_call>"],"repeat":true})");
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;

    cr_assert_eq(constraint_state_new(&s, c), 0);
    for (int i = 0; i < 3; i++) {
        cr_assert(constraint_is_free(s) && constraint_can_end(s));
        cr_assert_eq(feed(s, "hello <tool_call>"), -1);
        cr_assert(!constraint_is_free(s) && !constraint_can_end(s));
        cr_assert_eq(constraint_accept(s, TEST_END), -EINVAL);
        cr_assert_eq(feed(s, R"({"a":[]})"), -1);
        cr_assert_eq(feed(s, "hello"), 0);
        cr_assert_eq(feed(s, "</tool_call>"), -1);
    }
    cr_assert_eq(constraint_accept(s, TEST_END), 0);
}

Test(constraint_state, what_may_end_is_left_by_what_does_not_fit) {
    CLEANUP(constraint_freep)
    struct constraint *c =
        constrain(R"({"repeat":{"literal":"ab"},"min":1})", R"({"after":["@"],"repeat":true})");
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;

    cr_assert_eq(constraint_state_new(&s, c), 0);
    cr_assert_eq(feed(s, "foo@"), -1);
    cr_assert(!constraint_can_end(s));
    cr_assert_eq(feed(s, "ab"), -1);
    cr_assert(constraint_can_end(s));
    cr_assert_eq(feed(s, "ab"), -1);
    cr_assert_eq(feed(s, "foo@"), -1); /* left, and a trigger again */
    cr_assert_eq(feed(s, "foo"), 0);
    cr_assert_eq(feed(s, "ab"), -1);
    cr_assert_eq(constraint_accept(s, TEST_END), 0);
}

Test(constraint_state, required_triggers_come_before_the_end) {
    CLEANUP(constraint_freep)
    struct constraint *c =
        constrain(R"({"json_object":true})", R"({"after":["@"],"required":true})");
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;

    cr_assert_eq(constraint_state_new(&s, c), 0);
    cr_assert_eq(constraint_accept(s, TEST_END), -EINVAL);
    cr_assert_eq(feed(s, "foo@{}"), -1);
    cr_assert_eq(constraint_accept(s, TEST_END), 0);
}

Test(constraint_state, the_longest_triggers_are_no_trouble) {
    char grammar[] = R"({"literal":"b"})", triggers[8192];
    size_t n = (size_t)snprintf(triggers, sizeof(triggers), R"({"after":[)");
    struct constraint *c = NULL;
    struct err err = {0};

    for (int i = 0; i < 16; i++) {
        n += (size_t)snprintf(triggers + n, sizeof(triggers) - n, R"(%s"%x)", i ? "," : "", i);
        for (int k = 0; k < 250; k++)
            triggers[n++] = 'a';
        triggers[n++] = '"';
    }
    n += (size_t)snprintf(triggers + n, sizeof(triggers) - n, "]}");
    int r = constraint_new(&c, test_vocab(), grammar, strlen(grammar), triggers, n, NULL, &err);

    cr_assert_eq(r, 0, "%s", err.message);
    cr_assert(constraint_bytes(c) < 1u << 20);
    constraint_free(c);
}
