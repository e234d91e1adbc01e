#include "responses_support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

static const char template[] =
    "{%- if tools -%}<|im_start|>tools\n{%- for t in tools -%}[{{ t.function | tojson }}]"
    "{%- endfor -%}<|im_end|>\n{%- endif -%}{%- for m in messages -%}"
    "{{ '<|im_start|>' + m.role + ('=' + m.name if m.name else '') + '\n' }}"
    "{%- if m.reasoning_content -%}{{ '<think>' + m.reasoning_content + '</think>' }}{%- endif -%}"
    "{{ m.content or '' }}{%- for c in m.tool_calls or [] -%}"
    "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{%- endfor -%}<|im_end|>\n{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}";

void responses_init(struct world *w) {
    world_init(w);
    world_use_template(w, template, sizeof(template) - 1);
    w->model.max_context = 16384;
    w->opts.max_stored = 100;
    w->opts.stored_bytes = 1 << 20;
    w->opts.stored_ttl_s = 3600;
}

void responses_start(struct world *w) {
    responses_init(w);
    world_start(w);
}

void responses_ask(struct world *w, const char *fields, const char *output, struct reply *r) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};

    buf_printf(&body, "{%s}", fields);
    w->port.script = output;
    world_ask(w, RESPONSES, body.data, r);
    w->port.script = NULL;
}

/* ---- reading ---- */

struct reading {
    uint64_t sequence;
    bool created, in_progress, ended;
    /* items that are done */
    yyjson_doc *items[64];
    size_t n_items;
    /* an item is open */
    bool open;
    /* id of the open item */
    char id[80];
    /* type of the open item */
    char type[32];
    /* text of its deltas */
    struct buf delta;
    /* tokens of the log probabilities in its deltas */
    struct buf told;
    /* the item has an open part; its text was repeated in full */
    bool part, said;
    yyjson_doc *final;
};

static yyjson_val *get(yyjson_val *v, const char *key) {
    yyjson_val *member = yyjson_obj_get(v, key);

    cr_assert(member, "no %s", key);
    return member;
}

static const char *str(yyjson_val *v, const char *key) {
    cr_assert(yyjson_is_str(get(v, key)), "%s is no string", key);
    return yyjson_get_str(get(v, key));
}

static bool ends(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Checks the members that name the open item. */
static void check_place(struct reading *r, yyjson_val *e) {
    cr_assert(r->open);
    cr_assert_str_eq(str(e, "item_id"), r->id);
    cr_assert_eq(yyjson_get_uint(get(e, "output_index")), r->n_items);
}

/* Adds the tokens of a list of log probabilities to @out. */
static void add_tokens(struct buf *out, yyjson_val *list) {
    yyjson_val *entry;
    size_t i, n;

    cr_assert(yyjson_is_arr(list));
    yyjson_arr_foreach(list, i, n, entry) {
        cr_assert(yyjson_is_num(get(entry, "logprob")));
        cr_assert(yyjson_is_arr(get(entry, "top_logprobs")));
        buf_add_str(out, str(entry, "token"));
    }
}

/* Checks that a repeated text has the log probabilities of its deltas. */
static void check_tokens(struct reading *r, yyjson_val *list) {
    CLEANUP(buf_deinit) struct buf all = {.max = 1 << 20};

    add_tokens(&all, list);
    cr_assert_str_eq(all.len ? all.data : "", r->told.len ? r->told.data : "");
}

static void take_part(struct reading *r, yyjson_val *e, const char *type) {
    bool summary = strstr(type, "summary");
    yyjson_val *part = get(e, "part");

    check_place(r, e);
    cr_assert_eq(yyjson_get_uint(get(e, summary ? "summary_index" : "content_index")), 0);
    if (ends(type, ".added")) {
        cr_assert(!r->part);
        cr_assert_str_eq(str(part, "text"), "");
        r->part = true;
        return;
    }
    cr_assert(r->part && r->said, "a part ends that was not said");
    cr_assert_str_eq(str(part, "text"), r->delta.data ? r->delta.data : "");
    if (strcmp(str(part, "type"), "output_text") == 0)
        check_tokens(r, get(part, "logprobs"));
    r->part = false;
}

static void take_text(struct reading *r, yyjson_val *e, const char *type) {
    static const char *const names[] = {"text", "arguments", "input"};
    bool call = strstr(type, "arguments") || strstr(type, "tool_call_input");

    check_place(r, e);
    cr_assert_eq(r->part, !call);
    cr_assert(!r->said);
    if (!call)
        cr_assert(get(e, strstr(type, "summary") ? "summary_index" : "content_index"));
    bool output = strstr(type, "output_text");
    if (ends(type, ".delta")) {
        if (output)
            add_tokens(&r->told, get(e, "logprobs"));
        cr_assert_gt(yyjson_get_len(get(e, "delta")), 0);
        buf_add_str(&r->delta, str(e, "delta"));
        return;
    }
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (yyjson_obj_get(e, names[i]))
            cr_assert_str_eq(str(e, names[i]), r->delta.data ? r->delta.data : "");
    if (output)
        check_tokens(r, get(e, "logprobs"));
    r->said = true;
}

static void take_item(struct reading *r, yyjson_val *e, const char *type) {
    yyjson_val *item = get(e, "item");

    cr_assert_eq(yyjson_get_uint(get(e, "output_index")), r->n_items);
    if (ends(type, ".added")) {
        cr_assert(!r->open);
        cr_assert_str_eq(str(item, "status"), "in_progress");
        r->open = true;
        r->said = false;
        snprintf(r->id, sizeof(r->id), "%s", str(item, "id"));
        snprintf(r->type, sizeof(r->type), "%s", str(item, "type"));
        buf_clear(&r->delta);
        buf_clear(&r->told);
        return;
    }
    bool at_once = strcmp(r->type, "shell_call") == 0 || strcmp(r->type, "local_shell_call") == 0 ||
                   strcmp(r->type, "apply_patch_call") == 0 ||
                   strcmp(r->type, "tool_search_call") == 0 || strcmp(r->type, "compaction") == 0;
    cr_assert(r->open && !r->part && r->said == !at_once);
    cr_assert_str_eq(str(item, "id"), r->id);
    cr_assert_str_eq(str(item, "type"), r->type);
    r->open = false;
    char *text = yyjson_val_write(item, 0, NULL);
    r->items[r->n_items++] = yyjson_read(text, strlen(text), 0);
    free(text);
}

/* Checks at the end that the response has exactly the items of the stream. */
static void take_end(struct reading *r, yyjson_val *response, const char *type) {
    yyjson_val *item;
    size_t i, n;
    bool failed = ends(type, "failed");

    r->ended = true;
    cr_assert(failed || !r->open);
    cr_assert(failed || yyjson_arr_size(get(response, "output")) == r->n_items);
    yyjson_arr_foreach(get(response, "output"), i, n, item) {
        if (i < r->n_items)
            cr_assert(yyjson_equals(item, yyjson_doc_get_root(r->items[i])));
    }
    const char *status = str(response, "status");
    cr_assert(failed ? strcmp(status, "failed") == 0 || strcmp(status, "cancelled") == 0
                     : ends(type, status));
    char *text = yyjson_val_write(response, 0, NULL);
    r->final = yyjson_read(text, strlen(text), 0);
    free(text);
}

static void take_event(struct reading *r, const char *name, yyjson_val *e) {
    const char *type = str(e, "type");

    cr_assert_str_eq(name, type);
    cr_assert_eq(yyjson_get_uint(get(e, "sequence_number")), r->sequence++);
    cr_assert(!r->ended, "%s after the end", type);
    if (strcmp(type, "response.created") == 0) {
        cr_assert(!r->created);
        r->created = true;
    } else if (strcmp(type, "response.queued") == 0) {
        cr_assert(r->created && !r->in_progress);
    } else if (strcmp(type, "response.in_progress") == 0) {
        cr_assert(r->created);
        r->in_progress = true;
        cr_assert_eq(yyjson_arr_size(get(get(e, "response"), "output")), 0);
    } else if (strstr(type, "output_item.")) {
        cr_assert(r->in_progress);
        take_item(r, e, type);
    } else if (strstr(type, "_part.")) {
        take_part(r, e, type);
    } else if (yyjson_obj_get(e, "response")) {
        take_end(r, get(e, "response"), type);
    } else {
        take_text(r, e, type);
    }
}

static yyjson_doc *read_stream(char *text) {
    struct reading r = {.delta = {.max = 1 << 20}, .told = {.max = 1 << 20}};
    char *save = NULL, name[64] = "";

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "event: ", 7) == 0) {
            snprintf(name, sizeof(name), "%s", line + 7);
            continue;
        }
        cr_assert_eq(strncmp(line, "data: ", 6), 0, "%s", line);
        yyjson_doc *doc = yyjson_read(line + 6, strlen(line + 6), 0);
        cr_assert(doc, "%s", line);
        take_event(&r, name, yyjson_doc_get_root(doc));
        yyjson_doc_free(doc);
    }
    cr_assert(r.ended, "the stream has no end");
    for (size_t i = 0; i < r.n_items; i++)
        yyjson_doc_free(r.items[i]);
    buf_deinit(&r.delta);
    buf_deinit(&r.told);
    return r.final;
}

/* ---- results as text ---- */

static void tell_parts(struct buf *line, const char *letter, yyjson_val *parts) {
    yyjson_val *part;
    size_t i, n;

    yyjson_arr_foreach(parts, i, n, part) {
        yyjson_val *list = yyjson_obj_get(part, "logprobs");
        CLEANUP(buf_deinit) struct buf all = {.max = 1 << 20};

        buf_printf(line, "%s<%s> ", letter, str(part, "text"));
        if (yyjson_arr_size(list) == 0)
            continue;
        add_tokens(&all, list);
        buf_printf(line, "L<%s> ", all.data);
    }
}

static void tell_item(struct buf *line, yyjson_val *item) {
    const char *type = str(item, "type");

    if (strcmp(type, "message") == 0) {
        tell_parts(line, "M", get(item, "content"));
    } else if (strcmp(type, "reasoning") == 0) {
        tell_parts(line, "S", get(item, "summary"));
        tell_parts(line, "R", get(item, "content"));
    } else if (strcmp(type, "compaction") == 0) {
        buf_printf(line, "K<%s> ", str(item, "encrypted_content"));
    } else if (strcmp(type, "function_call") == 0) {
        if (yyjson_obj_get(item, "namespace"))
            buf_printf(line, "%s.", str(item, "namespace"));
        buf_printf(line, "%s%s ", str(item, "name"), str(item, "arguments"));
    } else if (yyjson_obj_get(item, "action") || yyjson_obj_get(item, "operation") ||
               yyjson_is_obj(yyjson_obj_get(item, "arguments"))) {
        yyjson_val *action = yyjson_obj_get(item, "action");

        if (!action)
            action = yyjson_obj_get(item, "arguments");
        char *text = yyjson_val_write(action ? action : get(item, "operation"), 0, NULL);

        buf_printf(line, "%s%s ", type, text);
        free(text);
    } else {
        cr_assert_str_eq(type, "custom_tool_call");
        buf_printf(line, "%s<%s> ", str(item, "name"), str(item, "input"));
    }
    if (strcmp(str(item, "status"), "incomplete") == 0) {
        line->len--;
        buf_add_str(line, "! ");
    }
}

yyjson_doc *responses_read(struct reply *r, struct buf *line) {
    bool stream = r->body.len > 7 && strncmp(r->body.data, "event: ", 7) == 0;
    yyjson_val *item;
    size_t i, n;

    cr_assert_eq(r->status, 200, "%s", r->body.data);
    yyjson_doc *doc =
        stream ? read_stream(r->body.data) : yyjson_read(r->body.data, r->body.len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc), *status = get(root, "status");
    buf_clear(line);
    yyjson_arr_foreach(get(root, "output"), i, n, item) tell_item(line, item);
    buf_add_str(line, yyjson_get_str(status));
    if (yyjson_equals_str(status, "incomplete"))
        cr_assert_str_eq(str(get(root, "incomplete_details"), "reason"), "max_output_tokens");
    reply_deinit(r);
    return doc;
}

const char *responses_told(struct reply *r) {
    static struct buf line = {.max = 1 << 20};

    yyjson_doc_free(responses_read(r, &line));
    return line.data;
}

void responses_expect(struct world *w, const char *fields, const char *output, const char *want) {
    char with[4000];
    struct reply r;

    responses_ask(w, fields, output, &r);
    cr_expect_str_eq(responses_told(&r), want);
    snprintf(with, sizeof(with), R"(%s,"stream":true)", fields);
    responses_ask(w, with, output, &r);
    cr_expect_str_eq(responses_told(&r), want);
}

const char *responses_prompt(struct world *w) {
    static struct buf text = {.max = 1 << 22};
    const struct submit *m;

    cr_assert_gt(w->port.n, 0);
    m = &w->port.r[w->port.n - 1].m;
    buf_clear(&text);
    cr_assert_eq(tokenizer_decode(w->model.tokenizer, m->tokens, m->n_prompt, true, &text), 0);
    return text.data;
}

void responses_refused(struct world *w, const char *fields, int status, const char *code,
                       const char *param) {
    struct reply r;

    responses_ask(w, fields, "x", &r);
    yyjson_doc *doc = yyjson_read(r.body.data, r.body.len, 0);
    yyjson_val *e = yyjson_obj_get(yyjson_doc_get_root(doc), "error");
    cr_expect_eq(r.status, status, "%d for %s: %s", r.status, fields, r.body.data);
    cr_expect(yyjson_equals_str(yyjson_obj_get(e, "code"), code), "%s: %s", fields, r.body.data);
    cr_expect(yyjson_equals_str(yyjson_obj_get(e, "param"), param), "%s: %s", fields, r.body.data);
    yyjson_doc_free(doc);
    reply_deinit(&r);
}
