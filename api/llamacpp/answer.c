#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "api/generation/endpoint.h"
#include "api/generation/timings.h"
#include "api/generation/writer.h"
#include "api/http/conn.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/openai/choices.h"
#include "api/llamacpp/llamacpp.h"
#include "api/generation/model.h"
#include "api/generation/env.h"
#include "base/json_read.h"

/* Answers of /completion and /infill: one object for each prompt, whole or as events of which the
 * last has `stop` and the figures. */

static const struct llamacpp_completion *form_of(const struct writer *w) {
    assert(w->job.state);
    return w->job.state;
}

/* ---- settings ---- */

static void put_bias(struct json *j, int32_t token, double bias) {
    if (isfinite(bias))
        json_print(j, "{bias:%g, token:%d}", bias, token);
    else
        json_print(j, "{bias:null, token:%d}", token);
}

/* Writes the end tokens as banned: with ignore_eos the model never writes them. */
static void put_banned_ends(struct json *j, const struct tokenizer *t) {
    size_t n;
    const int32_t *id = tokenizer_end_ids(t, &n);

    for (size_t i = 0; i < n; i++)
        put_bias(j, id[i], -INFINITY);
}

void llamacpp_put_settings(struct json *j, const struct api_model *m, const struct gen_request *r,
                           uint64_t seed, uint32_t max_new) {
    struct sampling s;
    int64_t n_predict = max_new < GEN_REQUEST_NO_LIMIT ? (int64_t)max_new : -1;

    if (r)
        s = r->sampling;
    else if (m->sampling)
        s = *m->sampling;
    else
        params_init(&s);
    /* Samplers that this server does not have are turned off. */
    json_print(j,
               "{seed:%lu, temperature:%g, top_k:%ld, top_p:%g, min_p:%g, repeat_last_n:-1, "
               "repeat_penalty:%g, presence_penalty:%g, frequency_penalty:%g, top_n_sigma:%g, "
               "xtc_probability:%g, xtc_threshold:%g, typical_p:%g, dry_multiplier:%g, "
               "dry_base:%g, dry_allowed_length:%ld, dry_penalty_last_n:%ld, dynatemp_range:0, "
               "mirostat:0, adaptive_target:-1, adaptive_decay:0, stop:[",
               seed, s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty,
               s.presence_penalty, s.frequency_penalty, s.top_n_sigma, s.xtc_probability,
               s.xtc_threshold, s.typical_p, s.dry_multiplier, s.dry_base, s.dry_allowed_length,
               s.dry_penalty_last_n);
    for (uint32_t i = 0; r && i < r->n_stops; i++)
        json_string(j, r->stops[i].data, r->stops[i].len);
    json_print(j,
               "], max_tokens:%ld, n_predict:%ld, ignore_eos:%i, stream:%i, n_probs:%u, "
               "logit_bias:[",
               n_predict, n_predict, s.ignore_eos != 0, r && r->stream, r ? r->n_top : 0);
    for (uint32_t i = 0; r && i < r->n_bias; i++)
        put_bias(j, r->bias[i].token, (double)r->bias[i].bias);
    if (s.ignore_eos && m->tokenizer)
        put_banned_ends(j, m->tokenizer);
    json_print(j, "]}");
}

/* ---- tokens ---- */

static void put_tokens(struct json *j, const struct piece *p) {
    const struct gen *g = p->choice->gen;

    assert(p->from <= p->to && p->to <= g->n_out);
    json_print(j, "tokens:[");
    for (uint32_t i = p->from; i < p->to; i++)
        json_int(j, g->tokens[g->n_prompt + i]);
    json_close(j, ']');
}

/* ---- objects ---- */

static void put_prompt(struct json *j, const struct writer *w, const struct gen *g) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};

    for (uint32_t i = 0; i < g->n_prompt; i++) {
        size_t len;
        const char *text = tokenizer_piece(w->job.model->info->tokenizer, g->tokens[i], true, &len);

        if (buf_add(&b, text, len) < 0)
            j->error = -ENOMEM;
    }
    json_print(j, "prompt:%.*s", (int)b.len, b.data);
}

static void put_end(struct json *j, const struct writer *w, const struct gen *g) {
    const struct str *stop =
        g->stopped && g->finish == FINISH_STOP ? &g->m.stops[g->stop_index] : NULL;

    assert(g->state == GEN_DONE);
    json_print(j,
               "model:%s, tokens_predicted:%u, tokens_evaluated:%u, tokens_cached:%u, "
               "generation_settings:",
               w->job.model->info->id, g->n_out, g->n_prompt, g->n_cached);
    llamacpp_put_settings(j, w->job.model->info, &w->job.request, g->m.seed,
                          w->job.request.max_new);
    put_prompt(j, w, g);
    json_print(j, "has_new_line:%i, truncated:false, stop_type:%s, stopping_word:%.*s",
               g->ready && memchr(g->text.data, '\n', g->ready),
               g->score_only || g->finish == FINISH_LENGTH ? "limit"
               : stop                                      ? "word"
                                                           : "eos",
               stop ? (int)stop->len : 0, stop ? stop->data : "");
    timings_put(j, g);
}

/* Writes the object of @p: a piece of a stream, or the whole of its choice. */
static void put_piece(struct json *j, const struct writer *w, const struct piece *p, bool stream) {
    const struct llamacpp_completion *form = form_of(w);
    const struct gen *g = p->choice->gen;
    bool tokens = stream || form->return_tokens;

    assert(!p->last || g->state == GEN_DONE);
    json_print(j, "{index:%u, content:%.*s", p->index, (int)p->len, p->text);
    put_tokens(j, tokens ? p : &(struct piece){.choice = p->choice});
    json_print(j, "id_slot:-1, stop:%i", p->last);
    if (w->job.request.n_top && (!stream || p->to > p->from)) {
        json_print(j, "completion_probabilities:");
        choices_put_logprobs(j, w, g, p->from, p->to, true);
    }
    if (p->last)
        put_end(j, w, g);
    else if (form->timings_per_token)
        timings_put(j, g);
    json_close(j, '}');
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
    struct json inner = {.out = &b};

    if (!form_of(w)->fields || !p->last) {
        put_piece(j, w, p, stream);
        return;
    }
    put_piece(&inner, w, p, stream);
    if (inner.error < 0)
        j->error = inner.error;
    else
        put_fields(j, &b, form_of(w)->fields);
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

static void put_choice(struct json *j, const struct writer *w, uint32_t i) {
    struct choice *c = &w->choices[i];
    struct piece p = {.choice = c,
                      .index = i,
                      .to = c->gen->n_out,
                      .text = c->gen->text.data ? c->gen->text.data : "",
                      .len = c->gen->ready,
                      .first = true,
                      .last = true};

    put_asked(j, w, &p, false);
}

void llamacpp_whole(struct json *j, struct writer *w) {
    bool many = w->job.many || w->n_choices > 1; /* prompts, or answers to one (n) */

    if (many)
        json_open(j, '[');
    for (uint32_t i = 0; i < w->n_choices; i++)
        put_choice(j, w, i);
    if (many)
        json_close(j, ']');
}
