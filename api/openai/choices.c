#include "api/openai/choices.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/generation/timings.h"
#include "api/http/conn.h"
#include "api/http/respond.h"
#include "api/openai/openai.h"

#define CHUNK_MAX API_SEND_MAX

static const struct choices_form *choices_form_of(const struct writer *w) {
    assert(w->endpoint->form);
    return w->endpoint->form;
}

const char *choices_token(const struct writer *w, int32_t id, size_t *len) {
    *len = 0;
    if (id < 0)
        return "";
    return tokenizer_piece(w->job.model->info->tokenizer, id, true, len);
}

void choices_put_token(struct json *j, const struct writer *w, int32_t id) {
    size_t len;
    const char *text = choices_token(w, id, &len);
    char name[24];

    if (!w->job.request.answer.tokens_as_ids) {
        json_string(j, text, len);
        return;
    }
    snprintf(name, sizeof(name), "token_id:%d", (int)id);
    json_cstring(j, name);
}

void choices_pause(struct json *j) {
    int r = job_pause();

    if (j->error == 0)
        j->error = r;
}

/* ---- usage ---- */

static void put_output_details(struct json *j, const struct writer *w,
                               const struct writer_usage *u) {
    bool reasons = w->job.parses && w->job.model->family.reasons;

    if (!reasons && !w->job.request.submit.prediction.len)
        return;
    json_print(j, "completion_tokens_details:{");
    if (reasons)
        json_print(j, "reasoning_tokens:%u", u->reasoning);
    if (w->job.request.submit.prediction.len)
        json_print(j, "accepted_prediction_tokens:%u, rejected_prediction_tokens:%u",
                   u->predicted_accepted, u->predicted - MIN(u->predicted_accepted, u->predicted));
    json_close(j, '}');
}

static void choices_put_usage(struct json *j, const struct writer *w) {
    struct writer_usage u = writer_usage(w);

    json_print(j,
               "{prompt_tokens:%u, completion_tokens:%u, total_tokens:%ld, "
               "prompt_tokens_details:{cached_tokens:%u",
               u.prompt, u.output, (int64_t)u.prompt + u.output, u.cached);
    if (u.pictures)
        json_print(j, "image_tokens:%u", u.pictures);
    json_close(j, '}');
    put_output_details(j, w, &u);
    json_close(j, '}');
}

/* ---- log probabilities of the prompt ---- */

/* Writes "ID": {"logprob", "rank", "decoded_token"}. @rank is 0 if the token is not among the best
 * that were asked for. */
static void choices_put_entry(struct json *j, const struct writer *w, int32_t id, float logprob,
                              uint32_t rank) {
    size_t len;
    const char *text = choices_token(w, id, &len);
    char key[16];

    snprintf(key, sizeof(key), "%d", (int)id);
    json_print(j, "%s:{logprob:%g", key, (double)logprob);
    if (rank)
        json_print(j, "rank:%u", rank);
    else
        json_print(j, "rank:null");
    json_print(j, "decoded_token:%.*s}", (int)len, text);
}

/* Writes prompt token @i and the likeliest tokens in its place. */
static void put_position(struct json *j, const struct writer *w, const struct gen *g, uint32_t i) {
    assert(i > 0 && i < g->n_prompt && g->prompt_lp);
    const struct event_top *t = &g->prompt_top[(size_t)(i - 1) * g->m.n_prompt_top];
    bool seen = false;

    json_open(j, '{');
    for (uint32_t k = 0; k < w->job.request.answer.n_prompt_top && t[k].token >= 0; k++) {
        choices_put_entry(j, w, t[k].token, t[k].logprob, k + 1);
        seen |= t[k].token == g->tokens[i];
    }
    if (!seen)
        choices_put_entry(j, w, g->tokens[i], g->prompt_lp[i - 1], 0);
    json_close(j, '}');
}

/* Writes vLLM's list of the log probabilities of the prompt's tokens. */
static void put_prompt(struct json *j, const struct writer *w, const struct gen *g) {
    json_open(j, '[');
    for (uint32_t i = 0; i < g->n_prompt; i++) {
        if (i % CHOICES_PAUSE == 0)
            choices_pause(j);
        if (i == 0 || !g->prompt_lp)
            json_print(j, "null");
        else
            put_position(j, w, g, i);
    }
    json_close(j, ']');
}

/* ---- choices ---- */

/* Writes the members before the list of choices. */
static void open_chunk(struct json *j, const struct writer *w, const char *object) {
    json_print(j, "{id:%s, object:%s, created:%ld, model:%s", w->id, object, w->created,
               w->job.model->info->id);
    if (w->job.model->info->fingerprint)
        json_print(j, "system_fingerprint:%s", w->job.model->info->fingerprint);
}

static void choices_put_ids(struct json *j, const char *key, const int32_t *ids, uint32_t n) {
    json_print(j, "%s:[", key);
    for (uint32_t i = 0; i < n; i++)
        json_int(j, ids[i]);
    json_close(j, ']');
}

/* Writes the tokens of the prompt before the list of choices, as vLLM does for chats. */
static void put_prompt_ids(struct json *j, const struct writer *w) {
    const struct gen *g = w->choices[0].gen;

    if (w->job.request.answer.return_token_ids && !choices_form_of(w)->prompt_in_choice)
        choices_put_ids(j, "prompt_token_ids", g->tokens, g->n_prompt);
}

/* Writes members that OpenAI's API does not have: ids of tokens, log probabilities of the prompt,
 * and digests of logits. */
static void put_extras(struct json *j, const struct writer *w, const struct piece *p) {
    const struct choices_form *form = choices_form_of(w);
    const struct gen *g = p->choice->gen;
    char hex[20];

    if (w->job.request.answer.return_token_ids) {
        if (p->first && form->prompt_in_choice)
            choices_put_ids(j, "prompt_token_ids", g->tokens, g->n_prompt);
        choices_put_ids(j, "token_ids", g->tokens + g->n_prompt + p->from, p->to - p->from);
    }
    if (w->job.request.answer.prompt_logprobs && form->prompt_in_choice) {
        json_print(j, "prompt_logprobs:");
        put_prompt(j, w, g);
    }
    if (!w->job.request.answer.digests)
        return;
    assert(p->from == p->to || g->digests);
    json_print(j, "digests:[");
    for (uint32_t i = p->from; i < p->to; i++) {
        snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)g->digests[i]);
        json_cstring(j, hex);
    }
    json_close(j, ']');
}

/* Returns true if there is a token whose log probability can be sent. */
static bool has_text_token(const struct piece *p) {
    for (uint32_t i = p->from; i < p->to; i++)
        if (gen_is_text(p->choice->gen, i))
            return true;
    return p->echo_to > p->echo_from;
}

static bool is_ended_loop(const struct gen *g) {
    return g->repeats && g->finish == FINISH_LENGTH;
}

/* Returns the finish reason by OpenAI's names: strict clients refuse an answer with another. */
static const char *finish_of(const struct writer *w, const struct gen *g) {
    const char *name = gen_finish_name(g);

    if (is_ended_loop(g))
        return "length";
    if (!w->job.request.answer.functions_form || strcmp(name, "tool_calls") != 0)
        return name;
    return "function_call";
}

/* Writes one choice, whole or as a chunk; the form of the endpoint writes its content. */
static void choices_put_one(struct json *j, const struct writer *w, const struct piece *p,
                            bool stream) {
    assert(p->from <= p->to && p->to <= p->choice->gen->n_out);
    json_print(j, "{index:%u", p->index);
    choices_form_of(w)->content(j, w, p, stream);
    json_print(j, "logprobs:");
    if (w->job.request.answer.logprobs && (!stream || has_text_token(p)))
        choices_form_of(w)->logprobs(j, w, p);
    else
        json_print(j, "null");
    json_put_string(j, "finish_reason", p->last ? finish_of(w, p->choice->gen) : NULL);
    if (p->last && is_ended_loop(p->choice->gen))
        json_print(j, "loop_ended:true");
    put_extras(j, w, p);
    json_close(j, '}');
}

void choices_put_progress(struct json *j, const struct writer *w, const struct gen *g,
                          bool begins) {
    uint32_t done = begins ? 0 : gen_prompt_done(g);

    json_print(j, "prompt_progress:{total:%u, cache:%u, processed:%u, time_ms:%ld}", g->n_prompt,
               g->n_cached, MAX(done, g->n_cached),
               (clock_now(w->job.env->clock) - g->m.arrived_ns) / 1000000);
}

/* Closes the chunk @j, whose list of choices is open, and sends it. @usage: it is the chunk that
 * tells the usage; @times: it has tokens, and the times if each such chunk has them. */
static void send_chunk(struct writer *w, struct json *j, bool usage, bool times) {
    const struct gen_request *r = &w->job.request;

    assert(w->head_sent);
    json_close(j, ']');
    if (r->answer.include_usage || r->answer.continuous_usage) {
        json_print(j, "usage:");
        if (usage || r->answer.continuous_usage)
            choices_put_usage(j, w);
        else
            json_print(j, "null");
    }
    if (usage)
        choices_form_of(w)->figures(j, w);
    else if (times && r->answer.timings_per_token && openai_is_llama_server(w->route))
        timings_put(j, w->choices[0].gen);
    json_close(j, '}');
    if (j->error < 0)
        conn_break(w->exchange->conn);
    else
        respond_event(w->exchange, j->out->data, j->out->len);
}

void choices_piece(struct writer *w, const struct piece *p) {
    CLEANUP(buf_deinit) struct buf b = {.max = CHUNK_MAX};
    struct json j = {.out = &b};

    open_chunk(&j, w, choices_form_of(w)->chunk_object);
    if (p->first && p->index == 0)
        put_prompt_ids(&j, w);
    /* The piece without tokens begins the answer, the first with tokens ends the prompt. */
    if (w->job.request.answer.return_progress && p->from == 0)
        choices_put_progress(&j, w, p->choice->gen, choices_begins(p));
    json_print(&j, "choices:[");
    choices_put_one(&j, w, p, true);
    send_chunk(w, &j, false, p->to > 0);
}

void choices_alive(struct writer *w) {
    CLEANUP(buf_deinit) struct buf b = {.max = CHUNK_MAX};
    struct piece p = {.text = ""};
    struct json j = {.out = &b};

    while (p.index < w->n_choices && w->choices[p.index].finish_sent)
        p.index++;
    if (p.index < w->n_choices) {
        p.choice = &w->choices[p.index];
        open_chunk(&j, w, choices_form_of(w)->chunk_object);
        if (w->job.request.answer.return_progress && p.choice->gen->n_out == 0)
            choices_put_progress(&j, w, p.choice->gen, false);
        json_print(&j, "choices:[");
        choices_put_one(&j, w, &p, true);
        send_chunk(w, &j, false, false);
    }
    if (!writer_send_wait(w))
        respond_comment(w->exchange, "keep-alive");
}

void choices_begin(struct writer *w) {
    for (uint32_t i = 0; i < w->n_choices && choices_form_of(w)->has_role; i++) {
        struct piece p = {.choice = &w->choices[i], .index = i, .text = "", .first = true};

        choices_piece(w, &p);
        p.choice->begun = true;
    }
}

void choices_end(struct writer *w) {
    CLEANUP(buf_deinit) struct buf b = {.max = CHUNK_MAX};
    struct json j = {.out = &b};

    if (!w->job.request.answer.include_usage)
        return;
    open_chunk(&j, w, choices_form_of(w)->chunk_object);
    json_print(&j, "choices:[");
    send_chunk(w, &j, true, false);
}

void choices_whole(struct json *j, struct writer *w) {
    uint32_t n = w->job.request.input.n, made = gen_request_made(&w->job.request);

    assert(n > 0 && made >= n && w->n_choices % made == 0);

    open_chunk(j, w, choices_form_of(w)->object);
    put_prompt_ids(j, w);
    json_print(j, "choices:[");
    for (uint32_t i = 0; i < w->n_choices / made * n; i++) {
        struct choice *c = &w->choices[i / n * made + i % n];
        struct piece p = writer_whole_piece(c, i);

        choices_put_one(j, w, &p, false);
    }
    json_print(j, "], usage:");
    choices_put_usage(j, w);
    if (w->job.request.answer.prompt_logprobs && !choices_form_of(w)->prompt_in_choice) {
        json_print(j, "prompt_logprobs:");
        put_prompt(j, w, w->choices[0].gen);
    }
    choices_form_of(w)->figures(j, w);
    json_close(j, '}');
}
