/* Answers of /completion and /infill: one object for each prompt, whole or as events of which the
 * last has `stop` and the figures. */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/writer.h"
#include "api/http/conn.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/llamacpp/llamacpp.h"
#include "api/openai/raw_answer.h"
#include "base/json_read.h"

static const struct llamacpp_completion *llamacpp_form(const struct writer *w) {
    assert(w->job.state);
    return w->job.state;
}

static struct raw_form raw_form_of(const struct writer *w, const struct piece *p, bool stream) {
    const struct llamacpp_completion *form = llamacpp_form(w);

    return (struct raw_form){
        .probs = !stream || p->to > p->from,
        .tokens = stream || form->return_tokens,
        .progress = stream && w->job.request.answer.return_progress && p->from == 0,
        .timings = w->job.request.answer.timings_per_token,
    };
}

/* Writes those members of the object @text that @fields lists, each a path "a/b/c" that is also its
 * name in the answer. */
static void put_fields(struct json *j, const struct buf *text, yyjson_doc *fields) {
    yyjson_doc *doc = yyjson_read(text->data, text->len, 0);

    assert(yyjson_is_arr(yyjson_doc_get_root(fields)));
    if (!doc)
        j->error = -ENOMEM;
    json_open(j, '{');
    JSON_EACH(path, yyjson_doc_get_root(fields)) {
        yyjson_val *v = yyjson_doc_get_root(doc);
        const char *at = json_cstr(path);

        while (at && v && *at) {
            size_t len = strcspn(at, "/");

            v = yyjson_obj_getn(v, at, len);
            at += len + (at[len] == '/');
        }
        char *value = at && v ? yyjson_val_write(v, 0, NULL) : NULL;
        if (value) {
            json_print(j, "%s:", json_cstr(path));
            json_raw(j, value, strlen(value));
        }
        free(value);
    }
    json_close(j, '}');
    yyjson_doc_free(doc);
}

/* Writes the object of @p; if it ends its choice, only the members that the request asks for. */
static void put_asked(struct json *j, const struct writer *w, const struct piece *p, bool stream) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    struct raw_form raw = raw_form_of(w, p, stream);
    struct json inner = {.out = &b};

    if (!llamacpp_form(w)->fields || !p->last) {
        raw_answer_put(j, w, p, &raw);
        return;
    }
    raw_answer_put(&inner, w, p, &raw);
    if (inner.error < 0)
        j->error = inner.error;
    else
        put_fields(j, &b, llamacpp_form(w)->fields);
}

void llamacpp_piece(struct writer *w, const struct piece *p) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    struct json j = {.out = &b};

    put_asked(&j, w, p, true);
    if (j.error < 0)
        conn_break(w->exchange->conn);
    else
        respond_event(w->exchange, b.data, b.len);
}

/* Tells that the prompt begins, which a client would otherwise see at its end only. */
void llamacpp_begin(struct writer *w) {
    for (uint32_t i = 0; i < w->n_choices && w->job.request.answer.return_progress; i++) {
        struct piece p = {.choice = &w->choices[i], .index = i, .text = "", .first = true};

        llamacpp_piece(w, &p);
    }
}

/* Tells how far the first prompt is that has no token yet. */
void llamacpp_alive(struct writer *w) {
    struct piece p = {.text = ""};

    while (p.index < w->n_choices && w->choices[p.index].gen->n_out > 0)
        p.index++;
    if (p.index < w->n_choices && w->job.request.answer.return_progress) {
        p.choice = &w->choices[p.index];
        llamacpp_piece(w, &p);
    }
    if (!writer_send_wait(w))
        respond_comment(w->exchange, "keep-alive");
}

static void llamacpp_put_choice(struct json *j, const struct writer *w, uint32_t i) {
    struct piece p = writer_whole_piece(&w->choices[i], i);

    put_asked(j, w, &p, false);
}

void llamacpp_whole(struct json *j, struct writer *w) {
    bool many = w->job.many || w->n_choices > 1; /* prompts, or answers to one (n) */

    if (many)
        json_open(j, '[');
    for (uint32_t i = 0; i < w->n_choices; i++)
        llamacpp_put_choice(j, w, i);
    if (many)
        json_close(j, ']');
}
