#include "api/generation/family_format.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "api/http/json_build.h"
#include "base/json_read.h"
#include "base/json_value.h"
#include "base/text.h"
#include "base/try.h"

#define PROBE_FUEL 500000u        /* steps of one rendering */
#define PROBE_OUTPUT (256u << 10) /* bytes of one */

/* ---- source ---- */

/* Returns the end of the tag or expression at @at, behind its strings. */
static const char *family_source_skip(const char *at, const char *end) {
    char close = at[1] == '{' ? '}' : '%', quote = 0;

    for (at += 2; at < end; at++) {
        if (quote && *at == '\\') {
            at++;
        } else if (quote) {
            quote = *at == quote ? 0 : quote;
        } else if (*at == '"' || *at == '\'') {
            quote = *at;
        } else if (*at == close && at + 1 < end && at[1] == '}') {
            return at + 2;
        }
    }
    return end;
}

struct buf family_source(const char *source, size_t len) {
    const char *at = source, *end = source + len;
    struct buf out = {.max = len + 1};
    int r = 0;

    while (at < end && r == 0) {
        const char *from = at;

        if (end - at >= 2 && at[0] == '{' && at[1] == '#') {
            const char *close = memmem(at + 2, (size_t)(end - at) - 2, "#}", 2);

            at = close ? close + 2 : end;
            continue;
        }
        if (end - at >= 2 && at[0] == '{' && (at[1] == '{' || at[1] == '%'))
            at = family_source_skip(at, end);
        else
            at++;
        r = buf_add(&out, from, (size_t)(at - from));
    }
    return out;
}

const char *family_tools_variable(const struct template *t) {
    static const char *const names[] = {"tools", "xml_tools"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (template_uses(t, names[i]))
            return names[i];
    return NULL;
}

/* ---- probes ---- */

enum probe { PROBE_ASKED, PROBE_CALL, PROBE_CALL_TEXT, PROBE_ANSWER, PROBE_PROMPT };

/* Makes a message with a call of the tool whose arguments are @args. */
static yyjson_mut_val *probe_call(yyjson_mut_doc *d, yyjson_mut_val *args) {
    return json_make(d,
                     "{role:'assistant', content:'', tool_calls:[{id:'call12345', type:'function', "
                     "function:{name:'get_weather', arguments:%}}]}",
                     args);
}

/* Makes the variables of a conversation with a tool: a question, with or without what begins an
 * answer, and in the other probes an answer or a call, whose arguments are an object or a text. */
static int probe_vars(const struct template *t, enum probe probe, yyjson_val *kwargs,
                      yyjson_doc **out) {
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *d = json_doc_new(&failed);
    yyjson_mut_val *root = yyjson_mut_obj(d);
    static const char args[] = "{\"city\": \"Paris\"}";

    JSON_MEMBERS(key, value, kwargs) {
        yyjson_mut_obj_add(root, yyjson_val_mut_copy(d, key), yyjson_val_mut_copy(d, value));
    }
    yyjson_mut_val *messages = json_constant(d, "[{role:'user', content:'Go'}]");
    if (probe == PROBE_ANSWER)
        yyjson_mut_arr_append(messages, json_constant(d, "{role:'assistant', content:'Done'}"));
    else if (probe == PROBE_CALL)
        yyjson_mut_arr_append(messages, probe_call(d, json_constant(d, "{city:'Paris'}")));
    else if (probe == PROBE_CALL_TEXT)
        yyjson_mut_arr_append(messages, probe_call(d, yyjson_mut_str(d, args)));
    yyjson_mut_obj_add_val(d, root, "messages", messages);
    yyjson_mut_obj_add_val(
        d, root, text_or(family_tools_variable(t), "tools"),
        json_constant(d, "[{type:'function', function:{name:'get_weather', description:'Weather', "
                         "parameters:{type:'object', properties:{city:{type:'string', "
                         "description:'City'}}, required:['city']}}}]"));
    yyjson_mut_obj_add_str(d, root, "functions", "[]");
    yyjson_mut_obj_add_str(d, root, "datetime", "2025-01-01");
    yyjson_mut_obj_add_null(d, root, "documents");
    yyjson_mut_obj_add_str(d, root, "bos_token", "");
    yyjson_mut_obj_add_str(d, root, "eos_token", "");
    yyjson_mut_obj_add_bool(d, root, "add_generation_prompt", probe == PROBE_PROMPT);
    if (failed)
        return -ENOMEM;
    return json_doc_seal(d, root, out);
}

/* Renders a probe. Returns false if the template refuses it. */
static bool probe_render(const struct template *t, enum probe probe, yyjson_val *kwargs,
                         struct rendered *out) {
    struct template_opts o = {.fuel = PROBE_FUEL, .max_output = PROBE_OUTPUT};
    struct err err = {0};
    yyjson_doc *vars = NULL;
    bool ok = probe_vars(t, probe, kwargs, &vars) == 0 &&
              template_render(t, yyjson_doc_get_root(vars), &o, out, &err) == 0 && out->text.len;

    yyjson_doc_free(vars);
    if (!ok) {
        rendered_deinit(out);
        memset(out, 0, sizeof(*out));
    }
    return ok;
}

/* Returns the number of bytes with which both begin, up to the beginning of a tag. */
static size_t probe_common(const struct buf *a, const struct buf *b) {
    size_t n = 0;

    while (n < a->len && n < b->len && a->data[n] == b->data[n])
        n++;
    for (size_t tag = n; tag && a->data[tag - 1] != '>'; tag--)
        if (a->data[tag - 1] == '<')
            return tag - 1;
    return n;
}

const struct toolcall_format *family_find_format(const struct template *t, const struct buf *source,
                                                 yyjson_val *kwargs) {
    const struct toolcall_format *f = NULL;
    struct rendered asked = {0}, called = {0};
    bool has_call;

    probe_render(t, PROBE_ASKED, kwargs, &asked);
    has_call = probe_render(t, PROBE_CALL, kwargs, &called) ||
               probe_render(t, PROBE_CALL_TEXT, kwargs, &called);
    if (has_call) {
        size_t n = probe_common(&asked.text, &called.text);

        f = toolcall_detect_call(called.text.data + n, called.text.len - n, called.text.data,
                                 called.text.len);
    }
    if (!f && has_call)
        f = toolcall_detect(called.text.data, called.text.len);
    if (!f && asked.text.len)
        f = toolcall_detect(asked.text.data, asked.text.len);
    if (!f && source->len)
        f = toolcall_detect(source->data, source->len);
    rendered_deinit(&asked);
    rendered_deinit(&called);
    return f;
}

/* ---- reasoning ---- */

/* Renders a JSON text of variables. Returns false if the template refuses it. */
static bool probe_text(const struct template *t, const char *vars, struct rendered *out) {
    struct template_opts o = {.fuel = PROBE_FUEL, .max_output = PROBE_OUTPUT};
    struct err err = {0};
    yyjson_doc *doc = yyjson_read(vars, strlen(vars), 0);
    bool ok = doc && template_render(t, yyjson_doc_get_root(doc), &o, out, &err) == 0;

    yyjson_doc_free(doc);
    return ok && out->text.len;
}

#define PROBE_BASE                                                                                 \
    "\"bos_token\": \"\", \"eos_token\": \"\", \"tools\": null, \"documents\": null, "             \
    "\"functions\": \"\", \"datetime\": \"\", "
#define PROBE_ASKS "{\"role\": \"user\", \"content\": \"x\"}"
#define PROBE_NEEDLE "qzjxqzjx"

/* Returns the reasoning that a prompt opens or closes where an answer begins. */
static const struct toolcall_reasoning *reasoning_of_prompt(const struct template *t) {
    static const char *const variables[] = {"", "\"enable_thinking\": true, \"thinking\": true, ",
                                            "\"enable_thinking\": false, \"thinking\": false, "};
    const struct toolcall_reasoning *found = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(variables) && !found; i++) {
        CLEANUP(rendered_deinit) struct rendered out = {0};
        char vars[400];

        snprintf(vars, sizeof(vars),
                 "{" PROBE_BASE "%s\"add_generation_prompt\": true, \"messages\": [" PROBE_ASKS
                 "]}",
                 variables[i]);
        if (!probe_text(t, vars, &out))
            continue;
        for (size_t k = 0; toolcall_reasoning_at(k) && !found; k++)
            if (toolcall_opens_reasoning(toolcall_reasoning_at(k), out.text.data, out.text.len) ||
                toolcall_closes_reasoning(toolcall_reasoning_at(k), out.text.data, out.text.len))
                found = toolcall_reasoning_at(k);
    }
    return found;
}

/* Returns the reasoning between whose markers the template writes that of a message with a call. */
static const struct toolcall_reasoning *reasoning_of_past(const struct template *t) {
    static const char *const members[] = {
        "\"reasoning_content\": \"" PROBE_NEEDLE "\"", "\"reasoning\": \"" PROBE_NEEDLE "\"",
        "\"thinking\": \"" PROBE_NEEDLE "\"", "\"thought\": \"" PROBE_NEEDLE "\""};
    const struct toolcall_reasoning *found = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(members) && !found; i++) {
        CLEANUP(rendered_deinit) struct rendered out = {0};
        char vars[900];

        snprintf(vars, sizeof(vars),
                 "{" PROBE_BASE "\"add_generation_prompt\": false, \"enable_thinking\": true, "
                 "\"thinking\": true, \"messages\": [" PROBE_ASKS ", {\"role\": \"assistant\", "
                 "\"content\": \"y\", %s, \"tool_calls\": [{\"id\": \"call12345\", \"type\": "
                 "\"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}]}]}",
                 members[i]);
        if (!probe_text(t, vars, &out))
            continue;
        for (size_t k = 0; toolcall_reasoning_at(k) && !found; k++)
            if (toolcall_encloses(toolcall_reasoning_at(k), out.text.data, out.text.len,
                                  PROBE_NEEDLE))
                found = toolcall_reasoning_at(k);
    }
    return found;
}

/* Returns the reasoning that the template takes out of the content of an earlier answer. */
static const struct toolcall_reasoning *reasoning_taken_out(const struct template *t) {
    for (size_t k = 0; toolcall_reasoning_at(k); k++) {
        CLEANUP(rendered_deinit) struct rendered out = {0};
        const struct toolcall_reasoning *r = toolcall_reasoning_at(k);
        char vars[700];

        snprintf(vars, sizeof(vars),
                 "{" PROBE_BASE "\"add_generation_prompt\": true, \"messages\": [" PROBE_ASKS
                 ", {\"role\": \"assistant\", \"content\": \"%s\\n" PROBE_NEEDLE
                 "\\n%s\\n\\nanswer\"}, " PROBE_ASKS "]}",
                 r->open, r->close);
        if (probe_text(t, vars, &out) &&
            memmem(out.text.data, out.text.len, "answer", strlen("answer")) &&
            !memmem(out.text.data, out.text.len, PROBE_NEEDLE, strlen(PROBE_NEEDLE)))
            return r;
    }
    return NULL;
}

const struct toolcall_reasoning *family_find_reasoning(const struct template *t,
                                                       const struct buf *source) {
    const struct toolcall_reasoning *r = reasoning_of_prompt(t);

    if (!r)
        r = reasoning_of_past(t);
    if (!r)
        r = reasoning_taken_out(t);
    if (!r && source->len)
        r = toolcall_detect_reasoning(source->data, source->len);
    return r;
}

/* ---- ends ---- */

/* Returns the last token of a rendering, if that is a control token; white space behind it does not
 * count. -1: it is another one. */
static int32_t last_control(const struct tokenizer *t, const struct buf *text) {
    struct tokens all = {.max = PROBE_OUTPUT};
    size_t len = text->len, shown;
    int32_t id = -1;

    while (len && strchr(" \n", text->data[len - 1]) && text->data[len - 1])
        len--;
    if (tokenizer_encode(t, text->data, len, TOKENIZE_SPECIAL, NULL, 0, &all) == 0 && all.n)
        id = all.id[all.n - 1];
    tokens_deinit(&all);
    if (id < 0 || !tokenizer_is_special(t, id))
        return -1;
    tokenizer_piece(t, id, false, &shown);
    if (shown)
        return -1;
    return id;
}

/* Returns the control token with which a message of @f ends that has calls; -1: none. */
static int32_t format_end(const struct tokenizer *t, const struct toolcall_format *f) {
    int32_t id = f && f->end ? tokenizer_find(t, f->end, strlen(f->end)) : -1;

    if (id < 0 || !tokenizer_is_special(t, id) || tokenizer_is_end(t, id))
        return -1;
    return id;
}

/* Returns the control token with which a conversation ends in the template; -1: none. */
static int32_t probe_last(const struct template *t, const struct tokenizer *tokenizer,
                          enum probe probe) {
    struct rendered out = {0};
    int32_t id = probe_render(t, probe, NULL, &out) ? last_control(tokenizer, &out.text) : -1;

    rendered_deinit(&out);
    return id;
}

uint32_t family_find_ends(const struct template *t, const struct tokenizer *tokenizer,
                          const struct toolcall_format *f, const struct toolcall_reasoning *r,
                          int32_t ends[FAMILY_ENDS_MAX]) {
    static const enum probe probes[] = {PROBE_ANSWER, PROBE_CALL};
    /* Some templates begin an answer behind every conversation. */
    int32_t begins = probe_last(t, tokenizer, PROBE_PROMPT);
    uint32_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(probes); i++) {
        int32_t id = probe_last(t, tokenizer, probes[i]);
        size_t len = 0;
        const char *text = id < 0 ? "" : tokenizer_piece(tokenizer, id, true, &len);

        /* A part of a call or of reasoning ends only that. */
        if (len && id != begins && !tokenizer_is_end(tokenizer, id) &&
            !toolcall_has_marker(f, r, text, len) && (n == 0 || ends[0] != id))
            ends[n++] = id;
    }
    int32_t own = format_end(tokenizer, f);
    if (own >= 0 && n < FAMILY_ENDS_MAX)
        ends[n++] = own;
    return n;
}

/* ---- formats by variables ---- */

void family_formats_init(struct family_formats *f) {
    *f = (struct family_formats){.n = 0};
    pthread_mutex_init(&f->lock, NULL);
}

void family_formats_deinit(struct family_formats *f) {
    for (uint32_t i = 0; i < f->n; i++)
        free(f->rows[i].kwargs);
    pthread_mutex_destroy(&f->lock);
}

bool family_formats_get(struct family_formats *f, const char *kwargs,
                        const struct toolcall_format **out) {
    bool found = false;

    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < f->n && !found; i++) {
        found = strcmp(f->rows[i].kwargs, kwargs) == 0;
        *out = found ? f->rows[i].format : *out;
    }
    pthread_mutex_unlock(&f->lock);
    return found;
}

void family_formats_insert(struct family_formats *f, const char *kwargs,
                           const struct toolcall_format *format) {
    char *copy = strlen(kwargs) <= FAMILY_KWARGS_MAX ? strdup(kwargs) : NULL;

    if (!copy)
        return; /* it is found anew */
    pthread_mutex_lock(&f->lock);
    uint32_t at = f->n < FAMILY_KWARGS_KEPT ? f->n++ : f->oldest++ % FAMILY_KWARGS_KEPT;
    free(f->rows[at].kwargs);
    f->rows[at] = (struct family_formats_row){copy, format};
    pthread_mutex_unlock(&f->lock);
}
