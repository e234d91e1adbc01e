#include "api/constrain.h"

#include <errno.h>
#include <string.h>
#include "api/private.h"
#include "text/constraint.h"

/*
 * Where reasoning may come first, the grammar must let it:
 *
 *      the prompt ends inside reasoning    free until the closing marker (a trigger), then the grammar
 *      the model may open it itself        the grammar begins with a block of it that may be missing
 *      the prompt has closed it, or the    the grammar alone
 *      model has none
 */

#define AFTER_REASONING "[ \\n]{0,4}" /* white space that models write there; it is dropped again */

enum thinking { THINKS_NOT, MAY_THINK, THINKS };

struct draft {
    struct work *w;
    yyjson_mut_doc *doc;
    enum thinking thinking;
};

static yyjson_mut_val *node(struct draft *d, const char *key, yyjson_mut_val *v) {
    yyjson_mut_val *o = yyjson_mut_obj(d->doc);

    return yyjson_mut_obj_add_val(d->doc, o, key, v) ? o : NULL;
}

static yyjson_mut_val *text_node(struct draft *d, const char *key, const char *text) {
    return node(d, key, yyjson_mut_str(d->doc, text));
}

/* {"sequence": [..]} or {"either": [..]}; NULL among them: no memory. */
static yyjson_mut_val *list_node(struct draft *d, const char *key, yyjson_mut_val *const *item,
                                 size_t n) {
    yyjson_mut_val *list = yyjson_mut_arr(d->doc);

    for (size_t i = 0; i < n; i++)
        if (!yyjson_mut_arr_append(list, item[i]))
            return NULL;
    return node(d, key, list);
}

#define LIST(d, key, ...)                                                                          \
    list_node(d, key, (yyjson_mut_val *[]){__VA_ARGS__},                                           \
              ARRAY_SIZE(((yyjson_mut_val *[]){__VA_ARGS__})))

static yyjson_mut_val *optional(struct draft *d, yyjson_mut_val *v) {
    yyjson_mut_val *o = node(d, "repeat", v);

    return yyjson_mut_obj_add_int(d->doc, o, "min", 0) &&
                   yyjson_mut_obj_add_int(d->doc, o, "max", 1)
               ? o
               : NULL;
}

/* ---- what the request wants ---- */

static yyjson_mut_val *form_node(struct draft *d) {
    const struct request_form *f = &d->w->r.form;
    bool is_schema = strcmp(f->kind, "json_schema") == 0;
    yyjson_mut_val *v = strcmp(f->kind, "json_object") == 0 ? yyjson_mut_true(d->doc)
                                                            : yyjson_val_mut_copy(d->doc, f->value);
    yyjson_mut_val *o = node(d, f->kind, v);
    bool ok = yyjson_mut_obj_add_str(d->doc, o, "param", f->param);

    if (f->compact)
        ok = ok && yyjson_mut_obj_add_bool(d->doc, o, "compact", true);
    if (is_schema)
        ok = ok && yyjson_mut_obj_add_bool(d->doc, o, "any_format", true);
    return ok ? o : NULL;
}

/* ---- reasoning ---- */

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool ends_with(const char *text, size_t len, const char *end) {
    size_t n = strlen(end);

    return len >= n && memcmp(text + len - n, end, n) == 0;
}

static enum thinking thinking_of(const struct work *w) {
    const struct toolcall_reasoning *r = w->parse.reasoning;
    const char *text = w->prompts[0].text;
    size_t len = w->prompts[0].len;

    if (!w->parses || !r || (w->parse.format && w->parse.format->has_reasoning))
        return THINKS_NOT;
    if (w->parse.in_reasoning)
        return THINKS;
    while (len && is_space(text[len - 1]))
        len--;
    return ends_with(text, len, r->close) ? THINKS_NOT : MAY_THINK;
}

/* gpt-oss names the channel of everything it writes. */
static yyjson_mut_val *in_channels(struct draft *d, yyjson_mut_val *v) {
    yyjson_mut_val *analysis = LIST(
        d, "sequence", text_node(d, "literal", "<|channel|>analysis<|message|>"),
        text_node(d, "free_text", "<|end|>"), text_node(d, "literal", "<|end|><|start|>assistant"));

    return LIST(d, "sequence", optional(d, analysis),
                text_node(d, "literal", "<|channel|>final<|message|>"), v);
}

static yyjson_mut_val *after_reasoning(struct draft *d, yyjson_mut_val *v) {
    const struct toolcall_reasoning *r = d->w->parse.reasoning;
    yyjson_mut_val *space;

    if (d->w->parse.format && d->w->parse.format->has_reasoning)
        return in_channels(d, v);
    if (d->thinking == THINKS_NOT)
        return v;
    space = text_node(d, "regex", AFTER_REASONING);
    if (d->thinking == THINKS)
        return LIST(d, "sequence", space, v);
    yyjson_mut_val *block =
        LIST(d, "sequence", text_node(d, "literal", r->open), text_node(d, "free_text", r->close),
             text_node(d, "literal", r->close), space);
    return LIST(d, "sequence", optional(d, block), v);
}

/* ---- as text ---- */

static int write_text(struct work *w, yyjson_mut_val *v, struct str *out) {
    size_t len = 0;
    char *text = v ? yyjson_mut_val_write(v, 0, &len) : NULL;
    const char *kept = text && len <= UINT32_MAX ? arena_strndup(&w->r.arena, text, len) : NULL;

    free(text);
    *out = (struct str){kept, kept ? (uint32_t)len : 0};
    return kept ? 0 : -ENOMEM;
}

static int set_triggers(struct draft *d) {
    yyjson_mut_val *o = yyjson_mut_obj(d->doc), *after = yyjson_mut_arr(d->doc);

    if (d->thinking != THINKS)
        return 0;
    if (!yyjson_mut_arr_add_str(d->doc, after, d->w->parse.reasoning->close) ||
        !yyjson_mut_obj_add_val(d->doc, o, "after", after) ||
        !yyjson_mut_obj_add_bool(d->doc, o, "required", true))
        return -ENOMEM;
    return write_text(d->w, o, &d->w->r.triggers);
}

static int check(struct work *w) {
    struct grammar *g = NULL;
    int r = constraint_compile(&g, NULL, w->r.grammar.data, w->r.grammar.len, NULL, &w->err);

    grammar_free(g);
    return r;
}

static int build(struct draft *d) {
    struct work *w = d->w;
    int r = write_text(w, after_reasoning(d, form_node(d)), &w->r.grammar);

    if (r == 0)
        r = check(w);
    return r < 0 ? r : set_triggers(d);
}

bool constrain_is_work(const struct request *r) {
    return r->form.kind;
}

int constrain(struct work *w) {
    struct draft d = {.w = w, .thinking = thinking_of(w)};
    int r;

    if (w->r.choice.mode == TOOLS_REQUIRED || w->r.choice.allowed)
        return err_set_code(&w->err, 400, "unsupported_parameter", "tool_choice",
                            "tool_choice: calls cannot be forced here.");
    if (!w->r.form.kind)
        return 0;
    if (!(d.doc = yyjson_mut_doc_new(NULL)))
        return -ENOMEM;
    r = build(&d);
    yyjson_mut_doc_free(d.doc);
    return r;
}
