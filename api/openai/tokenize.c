#include <errno.h>
#include <string.h>
#include "api/anthropic/anthropic.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/llamacpp/llamacpp.h"
#include "api/openai/openai.h"
#include "api/private.h"
#include "api/http/respond.h"
#include "api/responses/responses.h"
#include "api/generation/prompt_job.h"

/*
 * Text to tokens and back, for debugging and for routers that hash prompts: what the generating
 * endpoints would do, without generating.
 */

struct lookup {
    struct prompt_job job;
    struct exchange *exchange; /* NULL: the client is gone */
    void (*write)(struct json *j, const struct lookup *l);
};

static void free_lookup(struct lookup *l) {
    prompt_job_deinit(&l->job);
    free(l);
}

static void put_ids(struct json *j, const struct tokens *t) {
    json_open(j, '[');
    for (size_t i = 0; i < t->n; i++)
        json_int(j, t->id[i]);
    json_close(j, ']');
}

/* vLLM's answer of /tokenize. */
static void write_tokens(struct json *j, const struct lookup *l) {
    const struct tokens *t = &l->job.prompts[0].tokens;
    const struct api_model *m = l->job.api->model;

    json_open(j, '{');
    json_put_int(j, "count", (int64_t)t->n);
    json_put_int(j, "max_model_len", m->max_context);
    json_key(j, "tokens");
    put_ids(j, t);
    json_key(j, "token_strs");
    if (l->job.request.token_strings) {
        json_open(j, '[');
        for (size_t i = 0; i < t->n; i++) {
            struct gguf_str s = tokenizer_text(m->tokenizer, t->id[i]);

            json_string(j, s.data, s.len);
        }
        json_close(j, ']');
    } else {
        json_null(j);
    }
    json_close(j, '}');
}

/* The prompts as the model would see them; routers read token_ids. */
static void write_prompts(struct json *j, const struct lookup *l) {
    const struct prompt_job *job = &l->job;

    json_open(j, '{');
    json_put_string(j, "object", "render");
    json_put_string(j, "model", job->api->model->id);
    json_key(j, "token_ids");
    put_ids(j, &job->prompts[0].tokens);
    json_key(j, "prompts");
    json_open(j, '[');
    for (uint32_t i = 0; i < job->n_prompts; i++) {
        const struct prompt *p = &job->prompts[i];

        json_open(j, '{');
        json_key(j, "text");
        if (p->text)
            json_string(j, p->text, p->len);
        else
            json_null(j);
        json_key(j, "token_ids");
        put_ids(j, &p->tokens);
        json_close(j, '}');
    }
    json_close(j, ']');
    json_close(j, '}');
}

/* Anthropic's answer of /v1/messages/count_tokens. */
static void write_count(struct json *j, const struct lookup *l) {
    json_open(j, '{');
    json_put_int(j, "input_tokens", (int64_t)l->job.prompts[0].tokens.n);
    json_close(j, '}');
}

/* As vLLM calls it, and as llama-server does. */
static void write_text(struct json *j, const struct lookup *l) {
    const struct buf *text = &l->job.text;

    json_open(j, '{');
    json_key(j, "prompt");
    json_string(j, text->data ? text->data : "", text->len);
    json_key(j, "content");
    json_string(j, text->data ? text->data : "", text->len);
    json_close(j, '}');
}

/* llama-server's answer of /apply-template. */
static void write_prompt(struct json *j, const struct lookup *l) {
    const struct prompt *p = &l->job.prompts[0];

    json_open(j, '{');
    json_key(j, "prompt");
    json_string(j, p->text, p->len);
    json_close(j, '}');
}

static void on_prepared(struct prompt_job *job) {
    struct lookup *l = CONTAINER_OF(job, struct lookup, job);
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    struct exchange *x = l->exchange;
    struct err err = job->err;
    struct json j;
    int r = job->result;

    if (!x) {
        free_lookup(l);
        return;
    }
    json_begin(&j, &b);
    if (r == 0)
        l->write(&j, l);
    x->ops = NULL;
    free_lookup(l);
    if (r < 0 && err.status)
        respond_error(x, &err);
    else
        respond_buf(x, 200, &b, r < 0 ? r : j.error);
}

static void on_gone(struct exchange *x) {
    struct lookup *l = x->state;

    l->exchange = NULL; /* on_prepared() frees it */
    prompt_job_abandon(&l->job);
    exchange_end(x);
}

static void on_fail(struct exchange *x, const struct err *err) {
    struct lookup *l = x->state;

    l->exchange = NULL;
    prompt_job_abandon(&l->job);
    respond_error(x, err);
}

static void serve(struct exchange *x, enum gen_request_kind kind,
                  void (*write)(struct json *j, const struct lookup *l)) {
    static const struct exchange_ops ops = {on_gone, NULL, on_fail, NULL};
    struct lookup *l = calloc(1, sizeof(*l));

    if (l && kind == REQUEST_RESPONSES && !(l->job.responses = responses_new(x))) {
        free(l);
        l = NULL;
    }
    if (!l) {
        respond_errno(x, -ENOMEM);
        return;
    }
    l->exchange = x;
    l->write = write;
    x->ops = &ops;
    x->state = l;
    prompt_job_start(&l->job, x, kind, on_prepared);
}

void tokenize_serve(struct exchange *x, struct http *h) {
    (void)h;
    serve(x, REQUEST_TOKENIZE, write_tokens);
}

void anthropic_count_serve(struct exchange *x, struct http *h) {
    (void)h;
    serve(x, REQUEST_ANTHROPIC_COUNT, write_count);
}

/* OpenAI's answer of /v1/responses/input_tokens. */
static void write_input_tokens(struct json *j, const struct lookup *l) {
    json_open(j, '{');
    json_put_string(j, "object", "response.input_tokens");
    json_put_int(j, "input_tokens", (int64_t)l->job.prompts[0].tokens.n);
    json_close(j, '}');
}

void responses_count_serve(struct exchange *x, struct http *h) {
    (void)h;
    serve(x, REQUEST_RESPONSES, write_input_tokens);
}

void chat_render_serve(struct exchange *x, struct http *h) {
    (void)h;
    serve(x, REQUEST_CHAT, write_prompts);
}

void llamacpp_template_serve(struct exchange *x, struct http *h) {
    (void)h;
    serve(x, REQUEST_CHAT, write_prompt);
}

void completions_render_serve(struct exchange *x, struct http *h) {
    (void)h;
    serve(x, REQUEST_COMPLETION, write_prompts);
}

void detokenize_serve(struct exchange *x, struct http *h) {
    (void)h;
    serve(x, REQUEST_DETOKENIZE, write_text);
}
