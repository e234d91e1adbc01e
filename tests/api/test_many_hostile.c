/*
 * Hostile lists of tools: ten thousand, all with one name, names without text, names that begin
 * each other, in four formats. Each list is compiled within its limits of work and
 * memory, or refused with a reason; the front answers each request, and says what it left out.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <yyjson.h>

#include "api/toolcall/grammar_ir.h"
#include "api/toolcall/toolcall.h"
#include "grammar/constraint.h"
#include "stream.h"
#include "tests/api/toolcall_random.h"
#include "tests/support/few.h"

#define WORK_MAX 64000000 /* as for the tools of a request */
#define BYTES_MAX (128u << 20)
#define SECONDS_MAX 20 /* of processor time for one list; it takes less than one */
#define NAME_MAX_LEN 256
#define TOOLS_MAX 10000
#define WORDS 16

/* The templates of the formats: marks by which each is found. */
static const struct {
    const char *name, *source;
} formats[] = {
    {"hermes", "{{ tools | length }}{{ messages[0].content }}{# <tool_call> #}"},
    {"qwen-coder",
     "{{ tools | length }}{{ messages[0].content }}{# <tool_call> <function= <parameter= #}"},
    {"gemma4",
     "{{ tools | length }}{{ messages[0].content }}{% if false %}<|tool_call>call:{% endif %}"},
    {"kimi-k3", "{{ tools | length }}{{ messages[0].content }}{% if false %}<|open|> <|close|> "
                "argument{% endif %}"},
};

enum kind { SEQUENCE, EQUAL, EMPTY, NESTED, LONGEST, N_KINDS };

/* Writes the name of tool @i. */
static void write_name(enum kind kind, uint32_t i, char *out) {
    switch (kind) {
    case SEQUENCE:
        snprintf(out, NAME_MAX_LEN + 1, "tool_%u", i);
        break;
    case EQUAL:
        strcpy(out, "same");
        break;
    case EMPTY:
        *out = 0;
        break;
    case NESTED: /* a, aa, aaa; then b, bb, bbb */
        memset(out, "abcdefghijklmnopqrstuvwxyz"[i / NAME_MAX_LEN % 26], i % NAME_MAX_LEN + 1);
        out[i % NAME_MAX_LEN + 1] = 0;
        break;
    default:
        snprintf(out, NAME_MAX_LEN + 1, "%0*u", NAME_MAX_LEN, i);
    }
}

/* Schemas, with the number of a tool in them: of a tool without arguments, of one with names that
 * begin each other, of one with additional members. */
static const char *const schemas[] = {
    R"({"type":"object"})",
    R"({"type":"object","properties":{"a":{"type":"string"},"aa":{"type":"integer"})"
    ","
    R"("a%u":{"enum":[1,"x",null]}},"required":["aa"],"additionalProperties":false})",
    R"({"type":"object","properties":{"p%u":{"type":"object","properties":{"k":{}},)"
    R"("additionalProperties":{"type":"boolean"}}},"additionalProperties":{"type":)"
    R"("string"}})",
};

static double seconds(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

/* ---- without the front */

struct tool_list {
    char name[TOOLS_MAX][NAME_MAX_LEN + 1];
    struct toolcall_tool tool[TOOLS_MAX];
    yyjson_doc *doc[TOOLS_MAX];
    uint32_t n;
};

static struct tool_list *list_new(enum kind kind, uint32_t n) {
    struct tool_list *l = calloc(1, sizeof(*l));

    cr_assert(l && n <= TOOLS_MAX);
    l->n = n;
    for (uint32_t i = 0; i < n; i++) {
        char text[400];

        write_name(kind, i, l->name[i]);
        snprintf(text, sizeof(text), schemas[i % 3], i);
        l->doc[i] = yyjson_read(text, strlen(text), 0);
        l->tool[i] = (struct toolcall_tool){
            .name = l->name[i], .parameters = yyjson_doc_get_root(l->doc[i]), .param = "tools"};
    }
    return l;
}

static void list_free(struct tool_list *l) {
    for (uint32_t i = 0; i < l->n; i++)
        yyjson_doc_free(l->doc[i]);
    free(l);
}

/* Writes the node of the calls. NULL: refused, with @err. */
static char *write_calls(const struct toolcall_format *f, const struct tool_list *l,
                         struct err *err) {
    struct toolcall_force o = {.format = f, .tools = l->tool, .n_tools = l->n};
    struct nodes nodes = {.doc = yyjson_mut_doc_new(NULL)};
    yyjson_mut_val *root;
    char *text = NULL;

    if (toolcall_force(&root, &nodes, &o, err) == 0)
        text = yyjson_mut_val_write(root, 0, NULL);
    yyjson_mut_doc_free(nodes.doc);
    return text;
}

static void compile_list(const struct toolcall_format *f, enum kind kind, uint32_t n) {
    struct grammar_limits limits = CONSTRAINT_LIMITS;
    struct tool_list *l = list_new(kind, n);
    struct grammar *g = NULL;
    struct err err = {0};
    uint64_t work = 0;
    double from = seconds();
    CLEANUP(freep) char *text = write_calls(f, l, &err);

    limits.max_work = WORK_MAX;
    limits.work = &work;
    if (text)
        cr_expect_eq(constraint_compile(&g, NULL, text, strlen(text), &limits, &err), 0,
                     "%s, list %d: %s", f->name, kind, err.message);
    cr_expect_eq(text != NULL, kind != EMPTY, "%s", err.message);
    cr_expect(text || strstr(err.message, "a name needs 1 to 256"), "%s", err.message);
    cr_expect(!g || grammar_bytes(g) < BYTES_MAX, "%s, list %d", f->name, kind);
    cr_expect_lt(seconds() - from, SECONDS_MAX, "%s, list %d", f->name, kind);
    grammar_free(g);
    list_free(l);
}

Test(many_hostile, ten_thousand_tools_are_compiled) {
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++) {
        const struct toolcall_format *f = toolcall_find(formats[i].name);

        cr_assert_not_null(f);
        for (enum kind kind = 0; kind < N_KINDS; kind++)
            compile_list(f, kind, FEWER(TOOLS_MAX, 3000));
    }
}

/* Writes random calls under the grammar @text. Each mask has a token or, where too many tools with
 * one name differ in what may come, fails with -E2BIG. Returns the number of calls that failed. */
static uint32_t walk_calls(const char *text) {
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = random_vocab(true);
    CLEANUP(constraint_freep) struct constraint *c = NULL;
    struct err err = {0};
    uint32_t bits[WORDS], failed = 0;
    struct rng r = {7};

    cr_assert_eq(constraint_new(&c, v, text, strlen(text), "", 0, &CONSTRAINT_LIMITS, &err), 0,
                 "%s", err.message);
    cr_assert_leq(constraint_n_words(c), WORDS);
    for (int k = 0; k < FEWER(20, 5); k++) {
        CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
        int64_t allowed = 1;

        cr_assert_eq(constraint_state_new(&s, c), 0);
        for (int i = 0; i < 300 && !constraint_is_done(s) && allowed > 0; i++) {
            int32_t id = (int32_t)rng_below(&r, random_n_tokens(true));

            allowed = constraint_mask(s, bits);
            cr_assert(allowed > 0 || allowed == -E2BIG, "%ld", allowed);
            while (allowed > 0 && !(bits[id / 32] >> (id % 32) & 1))
                id = (id + 1) % (int32_t)random_n_tokens(true);
            if (allowed > 0 && constraint_accept(s, id) == -E2BIG)
                allowed = -E2BIG;
        }
        failed += allowed < 0;
    }
    return failed;
}

/* Where the front does not stand before them, equal names may make a mask fail, and no more. */
Test(many_hostile, calls_with_one_name_go_on_or_fail) {
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++) {
        struct tool_list *l = list_new(EQUAL, 1024);
        struct err err = {0};
        double from = seconds();
        CLEANUP(freep) char *text = write_calls(toolcall_find(formats[i].name), l, &err);

        cr_assert_not_null(text);
        cr_expect_gt(walk_calls(text), 0, "the front need not make them loose");
        cr_expect_lt(seconds() - from, SECONDS_MAX);
        list_free(l);
    }
}

/* ---- through the front */

/* Writes a request with @n tools. */
static void write_body(struct buf *b, enum kind kind, uint32_t n, const char *choice) {
    buf_add_str(b, "{" HI R"(,"tools":[)");
    for (uint32_t i = 0; i < n; i++) {
        char name[NAME_MAX_LEN + 1], schema[400];

        write_name(kind, i, name);
        snprintf(schema, sizeof(schema), schemas[i % 3], i);
        buf_printf(b, R"(%s{"type":"function","function":{"name":"%s","parameters":%s}})",
                   i ? "," : "", name, schema);
    }
    buf_printf(b, R"(],"tool_choice":"%s"})", choice);
}

/* Asks with @n tools. Returns the status; the answer has @part. */
static int ask(struct world *w, enum kind kind, uint32_t n, const char *choice, const char *part) {
    struct buf b = {.max = 16 << 20};
    struct reply r;

    write_body(&b, kind, n, choice);
    w->port.script = "ok";
    double from = seconds();
    world_ask(w, CHAT, b.data, &r);
    int status = r.status;

    cr_expect_lt(seconds() - from, SECONDS_MAX, "list %d", kind);
    cr_expect(strstr(status == 200 ? r.head : r.body.data, part), "list %d: %d %s", kind, status,
              r.body.data);
    if (status == 200)
        cr_expect_eq(walk_calls(w->port.r[w->port.n - 1].grammar), 0, "list %d", kind);
    reply_deinit(&r);
    buf_deinit(&b);
    return status;
}

Test(many_hostile, the_front_answers_and_goes_on) {
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++) {
        struct world w;

        world_init(&w);
        w.opts.max_body_bytes = 16 << 20;
        world_use_template(&w, formats[i].source, strlen(formats[i].source));
        world_start(&w);
        for (int k = 0; k < 2; k++) {
            const char *choice = k ? "auto" : "required";

            cr_expect_eq(ask(&w, SEQUENCE, 1024, choice, ""), 200);
            cr_expect_eq(ask(&w, NESTED, 1024, choice, ""), 200);
            cr_expect_eq(ask(&w, LONGEST, 1024, choice, ""), 200);
            cr_expect_eq(ask(&w, EQUAL, 1024, choice, "X-Weft-Loosened: same#\r\n"), 200);
            cr_expect_eq(ask(&w, EQUAL, 8, choice, ""), 200);
            cr_expect_eq(ask(&w, EMPTY, 1024, choice, "name"), 400);
            cr_expect_eq(ask(&w, SEQUENCE, 1025, choice, "at most 1024 tools"), 400);
            cr_expect_eq(ask(&w, EQUAL, 10000, choice, "at most 1024 tools"), 400);
        }
        world_stop(&w);
    }
}
