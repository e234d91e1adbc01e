#include "tests/api/toolcall_support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

static const char tools_json[] =
    R"([{"type": "function", "function": {"name": "get_weather", "description": )"
    R"("Weather.", )"
    R"("parameters": {"type": "object", "properties": {"city": {"type": "string", )"
    R"("description": "City"}, "unit": {"type": "string", "enum": ["celsius", )"
    R"("fahrenheit"], "description": "Unit"}}, "required": ["city"]}}}, )"
    R"({"type": "function", "function": {"name": "search_files", "description": )"
    R"("Search.", )"
    R"("parameters": {"type": "object", "properties": {"pattern": {"type": "string", )"
    R"("description": "Regex"}, "max_results": {"type": "integer", "description": )"
    R"("Most"}, )"
    R"("paths": {"type": "array", "items": {"type": "string"}, "description": )"
    R"("Where"}, )"
    R"("options": {"type": "object", "description": "Switches", "properties": )"
    R"({"context": {"type": ["integer", "null"]}}, "additionalProperties": false}}, )"
    R"("required": ["pattern"]}}}, )"
    /* the form of another API */
    R"({"name": "write", "input_schema": {"type": "object", "properties": {"path": )"
    R"({"type": "string"}, "text": {"type": "string"}, "mode": {"anyOf": [{"type": )"
    R"("string"}, {"type": "null"}]}, "flag": {"type": ["boolean", "null"]}, )"
    R"("any": {}, "ref": {"anyOf": [{"type": "string"}, {"$ref": "#/x"}]}, "n": )"
    R"({"enum": [1, 2]}}}}, )"
    R"({"type": "function", "function": {"name": "ping"}}])";

yyjson_val *toolcall_tools(void) {
    static yyjson_doc *doc; /* one for all tests of a process */

    if (!doc)
        doc = yyjson_read(tools_json, strlen(tools_json), 0);
    cr_assert(doc);
    return yyjson_doc_get_root(doc);
}

struct told {
    struct buf line, args;
    /* kind of the open event: 'C', 'R': text; 'F': a call; 0: none */
    char kind;
    uint32_t n_calls;
    bool ids;
};

static void close_text(struct told *t) {
    if (t->kind == 'C' || t->kind == 'R')
        buf_add_str(&t->line, "> ");
    t->kind = 0;
}

static void notify_text(struct told *t, char kind, const struct toolcall_event *e) {
    cr_assert_neq(t->kind, 'F', "text inside a call");
    cr_assert_gt(e->len, 0);
    if (t->kind != kind) {
        close_text(t);
        buf_printf(&t->line, "%c<", kind);
        t->kind = kind;
    }
    buf_add(&t->line, e->data, e->len);
}

/* Parses strict JSON, except for bytes that are no UTF-8: these pass through, and are repaired when
 * they are sent. */
static yyjson_doc *read_args(const struct buf *args) {
    char *text = malloc(args->len + 1);

    cr_assert(text);
    for (size_t i = 0; i < args->len; i++)
        text[i] = (char)((unsigned char)args->data[i] < 0x80 ? args->data[i] : '?');
    yyjson_doc *doc = yyjson_read(text, args->len, 0);

    free(text);
    return doc;
}

static void end_call(struct told *t, const struct toolcall_event *e) {
    yyjson_doc *doc = read_args(&t->args);

    cr_assert_eq(t->kind, 'F', "the end of no call");
    cr_assert_eq(e->index, t->n_calls - 1);
    if (e->complete)
        cr_expect(yyjson_is_obj(yyjson_doc_get_root(doc)), "arguments are no object: %s",
                  t->args.data ? t->args.data : "");
    yyjson_doc_free(doc);
    buf_add(&t->line, t->args.data, t->args.len);
    buf_add_str(&t->line, e->complete ? "; " : "! ");
    buf_clear(&t->args);
    t->kind = 0;
}

static int on_event(void *ctx, const struct toolcall_event *e) {
    struct told *t = ctx;

    switch (e->kind) {
    case TOOLCALL_CONTENT:
        notify_text(t, 'C', e);
        break;
    case TOOLCALL_REASONING:
        notify_text(t, 'R', e);
        break;
    case TOOLCALL_BEGIN:
        cr_assert_neq(t->kind, 'F', "a call inside a call");
        close_text(t);
        cr_assert_eq(e->index, t->n_calls++);
        cr_assert(e->id[0] && e->name[0]);
        buf_printf(&t->line, t->ids ? "%s#%s" : "%s", e->name, e->id);
        t->kind = 'F';
        break;
    case TOOLCALL_ARGS:
        cr_assert_eq(t->kind, 'F', "arguments of no call");
        cr_assert_eq(e->index, t->n_calls - 1);
        buf_add(&t->args, e->data, e->len);
        break;
    case TOOLCALL_END:
        end_call(t, e);
        break;
    }
    return 0;
}

static void feed(struct toolcall_parser *p, struct toolcall_run *r, const char *in, size_t from,
                 size_t to, struct told *t) {
    /* A copy of exactly that size, so that a read behind it is detected. */
    char *piece = malloc(to - from + !(to - from));

    cr_assert(piece);
    memcpy(piece, in + from, to - from);
    for (size_t i = 0; i < r->n_special; i++)
        if (r->special[i] == from && to > from)
            toolcall_note_token(p);
    cr_assert_eq(toolcall_feed(p, piece, to - from, on_event, t), 0);
    free(piece);
    r->max_held = MAX(r->max_held, toolcall_held(p));
}

char *toolcall_tell(struct toolcall_run *r, const char *in, size_t len) {
    CLEANUP(toolcall_parser_freep) struct toolcall_parser *p = NULL;
    struct told t = {.ids = r->ids};
    size_t from = 0;

    buf_init(&t.line, 1u << 30);
    buf_init(&t.args, 1u << 30);
    buf_add_str(&t.line, "");
    r->opts.format = r->format;
    r->opts.reasoning = r->reasoning;
    if (!r->opts.tools)
        r->opts.tools = toolcall_tools();
    cr_assert_eq(toolcall_parser_new(&p, &r->opts), 0);
    for (size_t i = 0; i <= r->n_cuts; i++) {
        size_t to = i < r->n_cuts ? r->cuts[i] : len;

        feed(p, r, in, from, to, &t);
        from = to;
    }
    cr_assert_eq(toolcall_finish(p, !r->ended, on_event, &t), 0);
    cr_assert_neq(t.kind, 'F', "a call without end");
    cr_assert_eq(toolcall_n_calls(p), t.n_calls);
    r->n_calls = t.n_calls;
    close_text(&t);
    while (t.line.len && t.line.data[t.line.len - 1] == ' ')
        t.line.data[--t.line.len] = 0;
    r->n_line = t.line.len;
    buf_deinit(&t.args);
    return t.line.data;
}

struct toolcall_run toolcall_run_of(const struct toolcall_case *c) {
    struct toolcall_run r = {
        .format = c->format ? toolcall_find(c->format) : NULL,
        .reasoning = c->reasoning ? toolcall_find_reasoning(c->reasoning) : NULL,
        .opts = {.in_reasoning = c->in_reasoning},
        .ended = c->ended,
    };

    cr_assert(!c->format || r.format, "no format %s", c->format);
    cr_assert(!c->reasoning || r.reasoning, "no reasoning %s", c->reasoning);
    return r;
}
