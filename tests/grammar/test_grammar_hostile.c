/* Sources that mean harm: each is refused or compiled within the limits on work, states and
 * memory. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "tests/grammar/grammar_support.h"

/* @head, @n times @unit, @tail. To be freed. */
static char *repeat(const char *head, const char *unit, size_t n, const char *tail) {
    struct buf b;

    buf_init(&b, 1 << 24);
    cr_assert_eq(buf_add_str(&b, head), 0);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(buf_add_str(&b, unit), 0);
    cr_assert_eq(buf_add_str(&b, tail), 0);
    return b.data;
}

/* Compiles; 0 or the refusal. What compiles must give a first mask. */
static int try_compile(enum grammar_kind kind, const char *text, struct err *err) {
    struct grammar_source src = {.kind = kind, .text = text, .len = strlen(text)};
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    uint32_t bits[64];
    int r = grammar_compile(&g, test_vocab(), &src, NULL, err);

    if (r < 0)
        return r;
    cr_assert_eq(grammar_state_new(&s, g), 0);
    cr_expect(grammar_mask(s, bits) != 0, "%.100s", text);
    return 0;
}

static void expect_refused(enum grammar_kind kind, char *text, const char *part) {
    struct err err = {0};
    int r = try_compile(kind, text, &err);

    cr_expect(r == -22 && err.status == 400 && strstr(err.message, part),
              "%.60s: %d '%s', wanted '%s'", text, r, err.message, part);
    free(text);
}

static void expect_compiles(enum grammar_kind kind, char *text) {
    struct err err = {0};

    cr_expect_eq(try_compile(kind, text, &err), 0, "%.60s: %s", text, err.message);
    free(text);
}

Test(grammar_hostile, deep_nesting) {
    expect_refused(GRAMMAR_REGEX, repeat("", "(", 30000, "a"), "nested more than");
    expect_refused(GRAMMAR_REGEX, repeat("", "(?:", 30000, ""), "nested more than");
    expect_refused(GRAMMAR_EBNF, repeat("root ::= ", "(", 30000, ""), "nested more than");
    expect_refused(GRAMMAR_JSON_SCHEMA, repeat("", R"({"items":)", 2000, "{}"), "not valid JSON");
    char *deep = repeat("", R"({"items":)", 2000, "true");
    char *whole = repeat(deep, "}", 2000, "");

    free(deep);
    expect_refused(GRAMMAR_JSON_SCHEMA, whole, "nested more than");
    deep = repeat("", R"({"anyOf":[)", 2000, "true");
    whole = repeat(deep, "]}", 2000, "");
    free(deep);
    expect_refused(GRAMMAR_JSON_SCHEMA, whole, "nested more than");
    deep = repeat(R"({"const":)", "[", 2000, "1");
    whole = repeat(deep, "]", 2000, "}");
    free(deep);
    expect_refused(GRAMMAR_JSON_SCHEMA, whole, "nested more than");
    expect_refused(GRAMMAR_JSON_SCHEMA, repeat("", "[", 100000, ""), "not valid JSON");
}

Test(grammar_hostile, regex_bombs) {
    expect_refused(GRAMMAR_REGEX, repeat("(a|b)*a", "(a|b)", 24, ""), "more than");
    expect_refused(GRAMMAR_REGEX, repeat("[ab]*a", "[ab]", 60, ""), "more than");
    expect_compiles(GRAMMAR_REGEX, repeat("", "(a*)*", 50, "b"));
    expect_compiles(GRAMMAR_REGEX, repeat("", "(a|aa)+", 20, "b"));
    expect_compiles(GRAMMAR_REGEX, strdup("((((a{1,1000}){1,1000}){1,1000}){1,1000})b"));
    expect_compiles(GRAMMAR_REGEX, strdup("(.{1,4000000000}){1,4000000000}"));
    expect_refused(GRAMMAR_REGEX, strdup("a{99999999999}"), "repetition count");
    expect_refused(GRAMMAR_REGEX, repeat("", "[a-z]{1,8}[^x]{1,8}", 20000, ""), "more than");
    expect_compiles(GRAMMAR_REGEX,
                    repeat("", "(", 30,
                           "a{2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){"
                           "2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){2}){2}"));
}

Test(grammar_hostile, look_ahead_in_look_ahead) {
    expect_refused(GRAMMAR_JSON_SCHEMA,
                   repeat(R"({"type":"string","pattern":")", "(?=", 100000, R"("})"), "#/pattern");
    expect_refused(GRAMMAR_JSON_SCHEMA,
                   repeat(R"({"type":"string","pattern":")", "(?=a)", 100000, R"("})"),
                   "look-ahead");
}

Test(grammar_hostile, schema_bombs) {
    struct buf b;

    /* 2^20 combinations of branches. */
    expect_refused(GRAMMAR_JSON_SCHEMA,
                   repeat(R"({"allOf":[)", R"({"anyOf":[{"minimum":1},{"maximum":2}]},)", 20,
                          R"({"type":"integer"}]})"),
                   "too much");
    /* References that double at each step. */
    buf_init(&b, 1 << 20);
    buf_add_str(&b, R"({"$ref":"#/$defs/d40","$defs":{"d0":{"type":"integer"})");
    for (int i = 1; i <= 40; i++)
        buf_printf(&b, R"(,"d%d":{"prefixItems":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]})",
                   i, i - 1, i - 1);
    buf_add_str(&b, "}}");
    expect_compiles(GRAMMAR_JSON_SCHEMA, b.data);
    buf_init(&b, 1 << 20);
    buf_add_str(&b, R"({"$ref":"#/$defs/d40","$defs":{"d0":{"type":"integer"})");
    for (int i = 1; i <= 40; i++)
        buf_printf(&b,
                   R"(,"d%d":{"anyOf":[{"$ref":"#/$defs/d%d"},{"allOf":[{"$ref":"#/)"
                   R"($defs/d%d"}]}]})",
                   i, i - 1, i - 1);
    buf_add_str(&b, "}}");
    expect_refused(GRAMMAR_JSON_SCHEMA, b.data, "too much");
    /* A negation whose document has n * n / 2 values. */
    expect_refused(GRAMMAR_JSON_SCHEMA,
                   repeat(R"({"not":{"prefixItems":[)", R"({"minimum":1},)", 3000, "{}]}}"),
                   "too much work");
    /* References to an item of a list of schemas, which is found by passing those before it. */
    buf_init(&b, 1 << 22);
    buf_add_str(&b, R"({"properties":{)");
    for (int i = 0; i < 2000; i++)
        buf_printf(&b, R"("p%d":{"$ref":"#/$defs/a/100000"},)", i);
    char *list = repeat(R"("x":{}},"$defs":{"a":[)", "{},", 100000, "{}]}}");

    buf_add_str(&b, list);
    free(list);
    expect_refused(GRAMMAR_JSON_SCHEMA, b.data, "too much work");
    /* A long chain of references. */
    buf_init(&b, 1 << 22);
    buf_add_str(&b, R"({"$ref":"#/$defs/d1","$defs":{"d0":{})");
    for (int i = 0; i < 5000; i++)
        buf_printf(&b, R"(,"d%d":{"$ref":"#/$defs/d%d"})", i + 1, i + 2);
    buf_add_str(&b, "}}");
    expect_refused(GRAMMAR_JSON_SCHEMA, b.data, "nested more than");
}

Test(grammar_hostile, huge_lists) {
    struct buf b;

    buf_init(&b, 1 << 22);
    buf_add_str(&b, R"({"enum":["start")");
    for (int i = 0; i < 60000; i++)
        buf_printf(&b, R"(,"%x%d")", i * 7919, i);
    buf_add_str(&b, "]}");
    expect_refused(GRAMMAR_JSON_SCHEMA, b.data, "more than");
    buf_init(&b, 1 << 22);
    buf_add_str(&b, R"({"type":"object","properties":{"start":{})");
    for (int i = 0; i < 20000; i++)
        buf_printf(&b, R"(,"p%d":{"type":"integer"})", i);
    buf_add_str(&b, "}}");
    expect_refused(GRAMMAR_JSON_SCHEMA, b.data, "too much");
    expect_refused(GRAMMAR_JSON_SCHEMA, strdup(R"({"type":"array","minItems":10000000000})"),
                   "too large");
    expect_compiles(GRAMMAR_JSON_SCHEMA,
                    strdup(R"({"type":"array","items":{"type":"integer"},"minItems":100000000})"));
    expect_compiles(GRAMMAR_JSON_SCHEMA,
                    strdup(R"({"type":"string","minLength":5000000,"maxLength":500000000})"));
    expect_refused(GRAMMAR_JSON_SCHEMA, strdup(R"({"type":"object","maxProperties":100000})"),
                   "too many states");
    expect_refused(GRAMMAR_CHOICE,
                   repeat("[",
                          R"("abcdefghijklmnopqrstuvwxyz",)"
                          "",
                          60000, R"("x"])"),
                   "at most");
    expect_compiles(GRAMMAR_CHOICE,
                    repeat("[", R"("abcdefghijklmnopqrstuvwxyz",)", 20000, R"("x"])"));
}

Test(grammar_hostile, ebnf_bombs) {
    struct buf b;

    expect_refused(GRAMMAR_EBNF, strdup(R"(root ::= root root | "a")"), "left recursion");
    buf_init(&b, 1 << 22);
    buf_add_str(&b, "root ::= r0\n");
    for (int i = 0; i < 20000; i++)
        buf_printf(&b, "r%d ::= r%d\n", i, i + 1);
    buf_add_str(&b, R"(r20000 ::= "x")"
                    "\n");
    expect_compiles(GRAMMAR_EBNF, b.data);
    expect_compiles(GRAMMAR_EBNF, strdup(R"(root ::= "a" root root | "a")"));
}

/* A chain of rules that may be empty: none is entered as the last call of its state. It is refused,
 * or its state is, or it has a first mask; the stack is enough for each. */
Test(grammar_hostile, ebnf_chain_of_optional_rules) {
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    struct err err = {0};
    uint32_t bits[64];
    struct buf b;

    buf_init(&b, 1 << 22);
    buf_add_str(&b, R"(root ::= r0 "y")"
                    "\n");
    for (int i = 0; i < 20000; i++)
        buf_printf(&b, "r%d ::= r%d?\n", i, i + 1);
    buf_add_str(&b, R"(r20000 ::= "x")"
                    "\n");
    struct grammar_source src = {.kind = GRAMMAR_EBNF, .text = b.data, .len = b.len};
    int r = grammar_compile(&g, test_vocab(), &src, NULL, &err);

    if (r == 0 && (r = grammar_state_new(&s, g)) == 0)
        cr_expect(grammar_mask(s, bits) > 0);
    cr_expect(r == 0 || r == -E2BIG || err.status == 400, "%d '%s'", r, err.message);
    buf_deinit(&b);
}

/* Ambiguity may exhaust the configurations: the request is told, and nothing grows without
 * bound. */
Test(grammar_hostile, ambiguous_texts_end_with_an_error_or_go_on) {
    static const char *const SOURCES[] = {
        "root ::= s*\n"
        R"(s ::= "a" s s | "a")",
        "root ::= x{1,1000}\nx ::= y{1,1000}\ny ::= \"a\"{1,1000}",
        "root ::= (a | b)*\na ::= \"a\" a? c\nb ::= \"a\" b? c\nc ::= \"a\" c | \"a\"",
    };

    for (size_t i = 0; i < ARRAY_SIZE(SOURCES); i++) {
        CLEANUP(grammar_freep) struct grammar *g = test_compile(GRAMMAR_EBNF, SOURCES[i]);
        CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
        uint32_t bits[64];
        int r = 0;

        cr_assert_eq(grammar_state_new(&s, g), 0);
        for (int n = 0; n < 2000 && r == 0; n++) {
            if (n % 100 == 0)
                cr_expect(grammar_mask(s, bits) != 0);
            r = grammar_accept(s, 'a');
        }
        cr_expect(r == 0 || r == -7, "%d", r);
    }
}

/* As many readings as @n rules, each with a stack of its own that every "a" makes one higher. */
static struct grammar *many_stacks(uint32_t n) {
    struct buf b;

    buf_init(&b, 1 << 16);
    buf_add_str(&b, "root ::= y0");
    for (uint32_t i = 1; i < n; i++)
        buf_printf(&b, " | y%u", i);
    for (uint32_t i = 0; i < n; i++)
        buf_printf(&b,
                   "\n"
                   R"(y%u ::= "a" y%u "c%u" | "b")",
                   i, i, i);
    struct grammar *g = test_compile(GRAMMAR_EBNF, b.data);

    buf_deinit(&b);
    return g;
}

Test(grammar_hostile, a_place_has_bounded_memory) {
    static const uint32_t N[] = {2, 20, 22, 60, 120, 250};

    for (size_t i = 0; i < ARRAY_SIZE(N); i++) {
        CLEANUP(grammar_freep) struct grammar *g = many_stacks(N[i]);
        CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
        uint32_t bits[64], n = 0;
        int r = 0;

        cr_assert_eq(grammar_state_new(&s, g), 0);
        for (; n < 700 && r == 0; n++) {
            if (n % 8 == 0)
                cr_assert_gt(grammar_mask_within(s, bits, 8 + 5 * n), 0);
            r = grammar_accept(s, 'a');
            cr_assert_leq(grammar_state_bytes(s), 9 << 18, "%u readings, %u bytes of text", N[i],
                          n);
        }
        cr_expect_eq(r, N[i] * 700 > 16384 ? -7 : 0, "%u", N[i]);
        cr_expect(r == 0 || N[i] * (n - 1) >= 16384 - 2 * N[i], "%u: refused at %u", N[i], n);
        /* What was refused left no trace. */
        if (r < 0)
            cr_expect_eq(grammar_accept(s, 'b'), 0);
    }
}

Test(grammar_hostile, endless_nesting_stops_at_the_stack_limit) {
    CLEANUP(grammar_freep) struct grammar *g = test_compile(GRAMMAR_JSON_SCHEMA, "{}");
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    uint32_t bits[64];
    int n = 0;

    cr_assert_eq(grammar_state_new(&s, g), 0);
    while (n < 5000 && grammar_accept(s, '[') == 0)
        n++;
    cr_expect(n > 250 && n < 5000, "%d", n);
    cr_expect_gt(test_mask_is_exact(s, g, bits), 0, "something still fits");
    for (int i = 0; i < n; i++)
        cr_assert_eq(grammar_accept(s, ']'), 0);
    cr_expect(grammar_can_end(s));
}

/* The work of an object of @n optional properties. */
static uint64_t work_of_properties(unsigned n) {
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    struct grammar_limits limits = {.work = &(uint64_t){0}};
    struct err err = {0};
    struct buf b;

    buf_init(&b, 1 << 22);
    buf_add_str(&b, R"({"additionalProperties":false,"properties":{"start":{})");
    for (unsigned i = 0; i < n; i++)
        buf_printf(&b, R"(,"p%u_%u":{"type":"boolean"})", i * 7919 % n, i);
    buf_add_str(&b, "}}");
    struct grammar_source src = {.kind = GRAMMAR_JSON_SCHEMA, .text = b.data, .len = b.len};

    cr_assert_eq(grammar_compile(&g, test_vocab(), &src, &limits, &err), 0, "%s", err.message);
    buf_deinit(&b);
    return *limits.work;
}

Test(grammar_hostile, work_grows_with_the_bytes_of_the_properties) {
    uint64_t few = work_of_properties(400), many = work_of_properties(1600);

    cr_expect(many < 6 * few, "%llu for 400, %llu for 1,600", (unsigned long long)few,
              (unsigned long long)many);
}

/* Multiples of 100 are even: what a product tells apart beyond its language takes no states. */
/* States that read few tokens cost more than the walk that finds these. */
Test(grammar_hostile, work_grows_with_the_states_of_a_regex) {
    CLEANUP(freep) char *text = repeat("", "[一乙][丁七]", 200, "");
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    struct grammar_source src = {.kind = GRAMMAR_REGEX, .text = text, .len = strlen(text)};
    struct grammar_limits limits = {.work = &(uint64_t){0}};
    struct err err = {0};

    cr_assert_eq(grammar_compile(&g, test_vocab(), &src, &limits, &err), 0, "%s", err.message);
    cr_expect_geq(*limits.work, 400u * 3 * 40, "%llu steps", (unsigned long long)*limits.work);
}

Test(grammar_hostile, equal_languages_take_equal_memory) {
    static const char FEW[] = R"({"type":"integer","multipleOf":3,"not":{"multipleOf":2}})";
    static const char MANY[] = R"({"type":"integer","multipleOf":3,"allOf":)"
                               R"([{"not":{"multipleOf":2}},{"not":{"multipleOf":100}}]})";
    CLEANUP(grammar_freep) struct grammar *few = test_compile(GRAMMAR_JSON_SCHEMA, FEW);
    CLEANUP(grammar_freep) struct grammar *many = test_compile(GRAMMAR_JSON_SCHEMA, MANY);

    cr_expect_eq(grammar_bytes(few), grammar_bytes(many), "%zu %zu", grammar_bytes(few),
                 grammar_bytes(many));
}

/* An object with one of two members, @n times: as many alternatives as there are choices. */
static size_t bytes_of_choices(unsigned n) {
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    struct buf b;

    buf_init(&b, 1 << 16);
    buf_add_str(&b, R"({"additionalProperties":false,"properties":{"start":{})");
    for (unsigned i = 0; i < n; i++)
        buf_printf(&b, R"(,"a%u":{"type":"boolean"},"b%u":{"type":"boolean"})", i, i);
    buf_add_str(&b, R"(},"allOf":[true)");
    for (unsigned i = 0; i < n; i++)
        buf_printf(&b, R"(,{"anyOf":[{"required":["a%u"]},{"required":["b%u"]}]})", i, i);
    buf_add_str(&b, "]}");
    g = test_compile(GRAMMAR_JSON_SCHEMA, b.data);
    cr_expect_not(test_fits(g, "{}", 2));
    buf_deinit(&b);
    return grammar_bytes(g);
}

/* What they have in common is there once: 16 and 256 of them. */
Test(grammar_hostile, alternatives_share_what_they_end_with) {
    size_t few = bytes_of_choices(4), many = bytes_of_choices(8);

    cr_expect(many < 3 * few, "%zu for 4 choices, %zu for 8", few, many);
}

/* Looking a word up among many others costs its sender. */
Test(grammar_hostile, many_words_and_many_properties) {
    struct buf b;

    buf_init(&b, 1 << 22);
    buf_add_char(&b, '{');
    for (int i = 0; i < 50000; i++)
        buf_printf(&b, R"("x%d":0,)", i);
    buf_add_str(&b, R"("properties":{"start":{})");
    for (int i = 0; i < 20000; i++)
        buf_printf(&b, R"(,"p%d":{})", i);
    buf_add_str(&b, "}}");
    expect_refused(GRAMMAR_JSON_SCHEMA, b.data, "too much");
}

/* Random bytes and mutations of good sources: refused or compiled, never worse. */
Test(grammar_hostile, mutated_sources) {
    static const struct {
        enum grammar_kind kind;
        const char *text;
    } SEEDS[] = {
        {GRAMMAR_REGEX, "^(a|[b-f]{2,9}\\d+)(?:x*|.y?)\\u00e9$"},
        {GRAMMAR_EBNF,
         "root ::= \"a\" b{1,3} | (c [x-z] \"\\n\")*\nb ::= <tool_call> | .\nc ::= [^a] c?"},
        {GRAMMAR_LARK,
         "start: a | start \"x\"~1..3 [B]\n  | \"c\"i..\"d\"\na: (/[e-g]+\\/./is \"h\")*\n"
         "B.2: \"i\"{2} -> k\n%import common.INT -> L\n%ignore L\n"},
        {GRAMMAR_LARK, R"(start: %json {"type":"array","items":{"pattern":"^a"}} /[^k]/i)"},
        {GRAMMAR_JSON_SCHEMA, R"({"type":"object","properties":{"a":{"$ref":"#/$defs/)"
                              R"(x"},"b":{"enum":[1,"2",null]}},"required":["a"],)"
                              R"("additionalProperties":{"type":"number","minimum":-1.5,)"
                              R"("maximum":1e2},"$defs":{"x":{"oneOf":[{"type":"string",)"
                              R"("pattern":"^a+$"},{"type":"array","prefixItems":[{}],)"
                              R"("items":{"$ref":"#"},"minItems":1}]}}})"},
    };
    struct rng r = {99};
    char text[1024];
    int n_good = 0;

    for (int i = 0; i < 6000; i++) {
        size_t seed = rng_below(&r, ARRAY_SIZE(SEEDS)), len = strlen(SEEDS[seed].text);
        struct err err = {0};

        memcpy(text, SEEDS[seed].text, len + 1);
        for (uint32_t k = rng_below(&r, 4); k-- > 0;) {
            size_t at = rng_below(&r, (uint32_t)len), from = rng_below(&r, (uint32_t)len);

            if (rng_below(&r, 2))
                text[at] = text[from];
            else
                memmove(text + at, text + from, len - MAX(at, from));
        }
        text[len] = 0;
        int e = try_compile(SEEDS[seed].kind, text, &err);

        n_good += e == 0;
        cr_expect(e == 0 || (e == -22 && err.status == 400 && err.message[0]), "%s", text);
    }
    cr_expect_gt(n_good, 1000);
}
