/*
 * An answer is one object, or a line of JSON for each piece and a last one with `done` and the
 * figures. Reasoning has a member of its own. A call is written when it is complete, since its
 * arguments are an object here; one that breaks off is not written. A silent stream gets no
 * keep-alive comments, since clients would take them for an answer.
 */

#include "api/ollama/ollama.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <yyjson.h>

#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/writer.h"
#include "api/http/conn.h"
#include "api/http/respond.h"
#include "api/openai/choices.h"
#include "api/openai/openai.h"
#include "base/text.h"

/* Writes "model" and "created_at". */
static void put_head(struct json *j, const struct model *m) {
    char text[48];
    struct timespec now;
    struct tm tm;

    clock_gettime(CLOCK_REALTIME, &now);
    size_t n = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &tm));
    snprintf(text + n, sizeof(text) - n, ".%09ldZ", now.tv_nsec);
    json_print(j, "model:%s, created_at:%s", m->info->id, text);
}

static bool is_chat(const struct writer *w) {
    return w->endpoint->repeats != REPEATS_NOTHING;
}

/* Writes {"message": {... or "response": ..., with content and reasoning; a message is left
 * open. */
static void ollama_open_message(struct json *j, const struct writer *w, const char *text,
                                size_t len, const char *thinking, size_t n_thinking) {
    json_print(j, is_chat(w) ? "message:{role:'assistant', content:%.*s" : "response:%.*s",
               (int)len, text);
    if (n_thinking)
        json_print(j, "thinking:%.*s", (int)n_thinking, thinking);
}

static void ollama_put_call(struct json *j, const struct output_parser *s, uint32_t i) {
    const struct output_call *c = &s->calls[i];

    assert(i < s->n_calls && c->complete); /* arguments are whole JSON */
    json_print(j, "{id:%s, function:{index:%u, name:%s, arguments:", c->id, i, c->name);
    json_raw(j, s->text[OUTPUT_CALL].data + c->begin, c->end - c->begin);
    json_print(j, "}}");
}

/* Writes the log probabilities of output tokens [from, to), if they were asked for. */
static void put_logprobs(struct json *j, const struct writer *w, uint32_t from, uint32_t to) {
    assert(from <= to);
    if (!w->job.request.answer.logprobs || from == to)
        return;
    json_print(j, "logprobs:");
    choices_put_logprobs(j, w, w->choices[0].gen, from, to, false);
}

static int64_t ollama_between(int64_t from, int64_t to) {
    if (!from || to <= from)
        return 0;
    return to - from;
}

/* Writes the members that only the last line has. */
static void ollama_put_figures(struct json *j, const struct writer *w) {
    const struct gen *g = w->choices[0].gen;

    assert(w->n_choices == 1 && g->state == GEN_DONE);
    struct writer_usage u = writer_usage(w);
    int64_t from = w->started_ns;

    json_print(j,
               "done:true, done_reason:%s, total_duration:%ld, load_duration:%ld, "
               "prompt_eval_count:%u, prompt_eval_duration:%ld, eval_count:%u, eval_duration:%ld",
               g->finish == FINISH_LENGTH ? "length" : "stop",
               ollama_between(from, clock_now(w->job.env->clock)),
               ollama_between(from, g->first_step_ns), u.prompt,
               ollama_between(g->first_step_ns, g->prompt_end_ns), u.output,
               ollama_between(g->prompt_end_ns, g->computed_ns));
    if (g->repeats)
        json_print(j, "loop_ended:true");
}

static void ollama_put_calls(struct json *j, const struct output_parser *s) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_calls; i++) {
        if (!s->calls[i].complete)
            continue;
        if (n++ == 0)
            json_print(j, "tool_calls:[");
        ollama_put_call(j, s, i);
    }
    if (n)
        json_close(j, ']');
}

/* Writes the answer to a request that only loads, or unloads, the model. */
static void put_loaded(struct json *j, const struct writer *w) {
    ollama_open_message(j, w, "", 0, "", 0);
    if (is_chat(w))
        json_close(j, '}');
    bool unloads = w->job.request.input.has_keep_alive && w->job.request.input.keep_alive_s == 0 &&
                   model_on_demand(w->job.model);
    json_print(j, "done_reason:%s, done:true", unloads ? "unload" : "load");
}

static void ollama_put_whole(struct json *j, struct writer *w) {
    const struct output_parser *s = w->n_choices ? w->choices[0].gen->output : NULL;

    assert(w->n_choices <= 1);
    json_open(j, '{');
    put_head(j, w->job.model);
    if (!s) {
        put_loaded(j, w);
        json_close(j, '}');
        return;
    }
    const struct buf *text = &s->text[OUTPUT_CONTENT], *thinking = &s->text[OUTPUT_REASONING];
    ollama_open_message(j, w, text_or(text->data, ""), text->len, thinking->data, thinking->len);
    if (is_chat(w)) {
        ollama_put_calls(j, s);
        json_close(j, '}');
    }
    put_logprobs(j, w, 0, w->choices[0].gen->n_out);
    ollama_put_figures(j, w);
    json_close(j, '}');
}

/* ---- lines ---- */

struct line {
    struct buf b;
    struct json j;
};

static struct json *ollama_begin(struct line *l, const struct writer *w) {
    memset(l, 0, sizeof(*l));
    buf_init(&l->b, API_SEND_MAX);
    l->j.out = &l->b;
    json_open(&l->j, '{');
    put_head(&l->j, w->job.model);
    return &l->j;
}

static void ollama_emit(struct writer *w, struct line *l) {
    assert(w->exchange && w->head_sent);
    json_close(&l->j, '}');
    if (l->j.error < 0)
        conn_break(w->exchange->conn);
    else
        respond_event(w->exchange, l->b.data, l->b.len);
    buf_deinit(&l->b);
}

/* Writes the output tokens up to @to that no line has had yet. */
static void ollama_put_new_logprobs(struct json *j, struct writer *w, uint32_t to) {
    put_logprobs(j, w, w->block.n_tokens, to);
    w->block.n_tokens = to;
}

static void put_not_done(struct json *j, struct writer *w, uint32_t n_tokens) {
    ollama_put_new_logprobs(j, w, n_tokens);
    json_print(j, "done:false");
}

/* Sends the open call, if it is complete. @n_tokens is the number of output tokens up to its
 * end. */
static void send_call(struct writer *w, uint32_t n_tokens) {
    const struct output_parser *s = w->choices[0].gen->output;
    struct line l;

    if (!w->block.open)
        return;
    w->block.open = false;
    if (!is_chat(w) || !s->calls[w->block.n].complete)
        return;
    struct json *j = ollama_begin(&l, w);
    ollama_open_message(j, w, "", 0, "", 0);
    json_print(j, "tool_calls:[");
    ollama_put_call(j, s, w->block.n);
    json_print(j, "]}");
    put_not_done(j, w, n_tokens);
    ollama_emit(w, &l);
}

static void ollama_send_piece(struct writer *w, const struct piece *p) {
    const struct output_piece *part = p->part;
    struct line l;

    if (!part)
        return; /* the end: ollama_send_end() */
    if (part->kind == OUTPUT_CALL) {
        if (part->begins) {
            send_call(w, p->from);
            assert(part->call < w->choices[0].gen->output->n_calls);
            w->block.open = true;
            w->block.n = part->call;
        }
        return;
    }
    send_call(w, p->from);
    if (!part->len)
        return;
    bool thinking = part->kind == OUTPUT_REASONING;
    struct json *j = ollama_begin(&l, w);
    ollama_open_message(j, w, part->text, thinking ? 0 : part->len, part->text,
                        thinking ? part->len : 0);
    if (is_chat(w))
        json_close(j, '}');
    put_not_done(j, w, p->to);
    ollama_emit(w, &l);
}

static void ollama_send_end(struct writer *w) {
    uint32_t n_tokens = w->choices[0].gen->n_out;
    struct line l;

    send_call(w, n_tokens);
    struct json *j = ollama_begin(&l, w);
    ollama_open_message(j, w, "", 0, "", 0);
    if (is_chat(w))
        json_close(j, '}');
    ollama_put_new_logprobs(j, w, n_tokens);
    ollama_put_figures(j, w);
    ollama_emit(w, &l);
}

/* ---- the request ---- */

static int ollama_read_request(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    yyjson_doc *ours = NULL;
    bool text = false, load = false;
    int r = ollama_translate(job->model, body, job->endpoint == &ollama_generate, &ours, &text,
                             &load, err);
    yyjson_doc_free(body);
    if (r == 0)
        r = (text ? openai_read_completion : openai_read_chat)(job, ours, err);
    if (r == 0)
        job->request.input.load_only = load;
    if (r == 0 && text && !job->request.input.max_new)
        /* the rest of the context; OpenAI's default is 16 */
        job->request.input.max_new = GEN_REQUEST_NO_LIMIT;
    return r;
}

/* Gives the fields of an error their names in Ollama's options. */
static void rename_fields(struct err *err) {
    err_rename(err, "max_tokens", "num_predict");
    err_rename(err, "repetition_penalty", "repeat_penalty");
}

const struct endpoint ollama_chat = {
    .whole_calls = true,
    .translate = ollama_read_request,
    .rename = rename_fields,
    .streams_unasked = true,
    .id_prefix = "",
    .repeats = REPEATS_TEXT,
    .parsed = true,
    .piece = ollama_send_piece,
    .end = ollama_send_end,
    .whole = ollama_put_whole,
};

const struct endpoint ollama_generate = {
    .translate = ollama_read_request,
    .rename = rename_fields,
    .streams_unasked = true,
    .id_prefix = "",
    .parsed = true,
    .piece = ollama_send_piece,
    .end = ollama_send_end,
    .whole = ollama_put_whole,
};
