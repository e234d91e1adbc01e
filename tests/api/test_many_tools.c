/*
 * Requests with many tools: all of them are held together; where they are too much together, the
 * largest may have any arguments, and the others are still held.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "grammar/constraint.h"
#include "stream.h"
#include "tests/support/few.h"
#include "tiny.h"

#define TAGGED                                                                                     \
    "{{ tools | length }}{{ messages[0].content }}{# <tool_call> <function= <parameter= #}"
#define LLAMA                                                                                      \
    "{{ tools | length }}{{ messages[0].content }}{% if "                                          \
    R"(false %}<|python_tag|> "parameters": )"                                                     \
    "{% endif %}"
#define HERMES "{{ tools | length }}{{ messages[0].content }}{# <tool_call> #}"

/* Begins a tool with a property "a"; more properties may follow. */
static void begin_tool(struct buf *b, const char *name, uint32_t i, const char *more) {
    buf_printf(b,
               R"(%s{"type":"function","function":{"name":"%s%u"%s,"parameters":{"type":)"
               R"("object","required":["a"],"properties":{"a":{"type":"string"})",
               b->data[b->len - 1] == '[' ? "" : ",", name, i, more);
}

/* Adds @n tools with 12 parameters each. */
static void add_tools(struct buf *b, const char *name, uint32_t n) {
    static const char *const types[] = {"string", "integer", "boolean"};

    for (uint32_t i = 0; i < n; i++) {
        begin_tool(b, name, i, "");
        for (uint32_t k = 1; k < 12; k++)
            buf_printf(b, R"(,"p%u_%u":{"type":"%s"})", k, i % 50, types[k % 3]);
        buf_add_str(b, "}}}}");
    }
}

/* Adds a tool with a list of some @n * 40 bytes of constants that share no beginning. */
static void add_large(struct buf *b, const char *name, uint32_t i, uint32_t n, const char *more) {
    begin_tool(b, name, i, more);
    buf_add_str(b, R"(,"large":{"enum":["")");
    for (uint32_t k = 0; k < n; k++)
        buf_printf(b, R"(,"%05u %u of a list of long constants")", (k * 7919u + i) % 100000, k);
    buf_add_str(b, "]}}}}}");
}

static void begin_body(struct buf *b) {
    *b = (struct buf){.max = 16 << 20};
    buf_add_str(b, "{" HI R"(,"tools":[)");
}

/* Sends the body, which gets its end here, and returns the grammar that the worker is given. */
static const char *told(struct world *w, struct buf *b, const char *choice, struct reply *r) {
    CLEANUP(freep) char *body = NULL;
    uint32_t n = w->port.n;

    cr_assert_geq(asprintf(&body, R"(%s],"tool_choice":"%s"})", b->data, choice), 0);
    w->port.script = "ok";
    world_ask(w, CHAT, body, r);
    return w->port.n > n ? w->port.r[n].grammar : NULL;
}

static void open_world(struct world *w, const char *source) {
    world_init(w);
    w->opts.max_body_bytes = 16 << 20;
    world_use_template(w, source, strlen(source));
    world_start(w);
}

/* Asserts that the worker can compile the grammar. */
static void expect_compiles(const char *grammar) {
    struct grammar *g = NULL;
    struct err err = {0};

    cr_expect_eq(constraint_compile(&g, NULL, grammar, strlen(grammar), &CONSTRAINT_LIMITS, &err),
                 0, "%s", err.message);
    grammar_free(g);
}

static uint32_t count(const char *text, const char *part) {
    uint32_t n = 0;

    for (; (text = strstr(text, part)); text++)
        n++;
    return n;
}

Test(many_tools, a_thousand_are_held) {
    static const char *const sources[] = {TAGGED, HERMES}, *const choices[] = {"required", "auto"};
    struct buf b;

    begin_body(&b);
    add_tools(&b, "tool_", 1000);
    for (int i = 0; i < 4; i++) {
        struct world w;
        struct reply r;

        open_world(&w, sources[i / 2]);
        const char *grammar = told(&w, &b, choices[i % 2], &r);

        cr_expect_eq(r.status, 200, "%s", r.body.data);
        cr_assert_not_null(grammar);
        cr_expect(strstr(grammar, "tool_0") && strstr(grammar, "tool_999"));
        cr_expect(strstr(grammar, "p11_49"), "the parameters are held, too");
        expect_compiles(grammar);
        reply_deinit(&r);
        world_stop(&w);
    }
    buf_deinit(&b);
}

/* Each tool fits, all together do not. Which ones are held depends on the request alone, so that a
 * request that is sent again has the same grammar. */
Test(many_tools, the_largest_are_loosened_where_all_are_too_much) {
    struct buf b;
    struct world w;

    begin_body(&b);
    add_tools(&b, "small_", 30);
    for (uint32_t i = 0; i < 12; i++)
        add_large(&b, "large_", i, 3800, "");
    open_world(&w, TAGGED);
    for (int i = 0; i < FEWEST(2, 1); i++) {
        CLEANUP(freep) char *first = NULL;
        struct reply r;
        const char *grammar = told(&w, &b, i ? "auto" : "required", &r);

        cr_expect_eq(r.status, 200, "%s", r.body.data);
        cr_assert_not_null(grammar);
        cr_expect(strstr(grammar, "large_0") && strstr(grammar, "large_11"));
        cr_expect(strstr(grammar, "p11_29"), "small tools are held");
        cr_expect(strstr(grammar, "3799 of a list"), "some large ones are, too");
        cr_expect_lt(count(grammar, "3799 of a list"), 12, "not all of them are");
        expect_compiles(grammar);
        reply_deinit(&r);
        first = strdup(grammar);
        reply_deinit(&r);
        cr_expect_str_eq(told(&w, &b, i ? "auto" : "required", &r), first);
        reply_deinit(&r);
    }
    world_stop(&w);
    buf_deinit(&b);
}

Test(many_tools, strict_ones_are_refused_without_the_name_of_an_innocent_one) {
    struct buf b;
    struct world w;
    struct reply r;

    begin_body(&b);
    for (uint32_t i = 0; i < 12; i++)
        add_large(&b, "large_", i, 3800, R"(,"strict":true)");
    open_world(&w, TAGGED);
    cr_expect_null(told(&w, &b, "required", &r));
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, R"("param":null,"code":"grammar_too_complex")"), "%s",
              r.body.data);
    reply_deinit(&r);
    world_stop(&w);
    buf_deinit(&b);
}

#define BLANKS 60000 /* tokens that begin with a blank, as many as real vocabularies have */

/* Makes a vocabulary of the bytes and of words behind a blank. */
static struct grammar_vocab *vocab_of_words(void) {
    static char text[256 + BLANKS][8];
    static struct grammar_token t[256 + BLANKS + 1];
    static const int32_t ends[] = {256 + BLANKS};
    struct grammar_vocab *v = NULL;

    for (uint32_t i = 0; i < 256 + BLANKS; i++) {
        uint32_t n = i - 256;

        if (i < 256)
            text[i][0] = (char)i;
        else
            snprintf(text[i], sizeof(text[i]), " %c%c%c%c", 'a' + n % 26, 'a' + n / 26 % 26,
                     'a' + n / 676 % 26, 'a' + n / 17576);
        t[i] = (struct grammar_token){.bytes = text[i], .len = i < 256 ? 1 : 5};
    }
    cr_assert_eq(grammar_vocab_new(&v, t, ARRAY_SIZE(t), ends, 1), 0);
    return v;
}

/* Asserts that a call that begins the output without a marker is held behind its name. */
static void expect_held(const struct constraint *c, const char *name) {
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    char text[100];
    int n = snprintf(text, sizeof(text), R"({"name": "%s", "parameters": {")", name);

    cr_assert_eq(constraint_state_new(&s, c), 0);
    for (int i = 0; i < n; i++)
        cr_assert_eq(constraint_accept(s, (uint8_t)text[i]), 0, "%s", name);
    cr_expect(!constraint_can_end(s), "%s", name);
    cr_expect_eq(constraint_accept(s, 'x'), -EINVAL, "%s has no member x", name);
    cr_expect_eq(constraint_accept(s, 'a'), 0, "%s", name);
}

/* In a format whose calls may lack a marker, each name is what begins a call. */
Test(many_tools, calls_without_a_marker_are_held_for_each) {
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = vocab_of_words();
    CLEANUP(constraint_freep) struct constraint *c = NULL;
    struct err err = {0};
    struct buf b;
    struct world w;
    struct reply r;

    begin_body(&b);
    for (uint32_t i = 0; i < 1024; i++) {
        begin_tool(&b, "the_name_of_a_tool_", i, "");
        buf_add_str(&b, R"(},"additionalProperties":false}}})");
    }
    open_world(&w, LLAMA);
    const char *grammar = told(&w, &b, "auto", &r);

    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_assert_not_null(grammar);
    const char *triggers = w.port.r[w.port.n - 1].triggers;

    cr_expect_eq(count(triggers, R"("held")"), 1024);
    cr_assert_eq(constraint_new(&c, v, grammar, strlen(grammar), triggers, strlen(triggers),
                                &CONSTRAINT_LIMITS, &err),
                 0, "%s", err.message);
    expect_held(c, "the_name_of_a_tool_0");
    expect_held(c, "the_name_of_a_tool_102");
    expect_held(c, "the_name_of_a_tool_1023");
    reply_deinit(&r);
    world_stop(&w);
    buf_deinit(&b);
}
