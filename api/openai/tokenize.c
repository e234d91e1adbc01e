/*
 * Text to tokens and back, for debugging and for routers that hash prompts: the first part of the
 * work of the generating endpoints.
 */

#include <errno.h>

#include "api/generation/endpoint.h"
#include "api/generation/model.h"
#include "api/generation/prompt_job.h"
#include "api/generation/read_request.h"
#include "api/http/json.h"
#include "api/openai/openai.h"
#include "base/jobs.h"
#include "base/text.h"
#include "base/util.h"
#include "text/stops.h"

#define UNIT 4096 /* tokens between two calls of job_pause() */

/* Returns true if the answer continues with token @i: the client is still there. */
static bool tokenize_goes_on(struct json *j, size_t i) {
    if (i % UNIT == 0 && job_pause() < 0)
        j->error = -ECANCELED;
    return j->error == 0;
}

static void tokenize_put_ids(struct json *j, const struct tokens *t) {
    json_open(j, '[');
    for (size_t i = 0; i < t->n && tokenize_goes_on(j, i); i++)
        json_int(j, t->id[i]);
    json_close(j, ']');
}

/* Writes tokens in llama-server's form: a piece that is no UTF-8 is an array of its bytes. */
static void put_pieces(struct json *j, const struct tokenizer *tokenizer, const struct tokens *t) {
    json_open(j, '[');
    for (size_t i = 0; i < t->n && tokenize_goes_on(j, i); i++) {
        size_t len;
        const char *s = tokenizer_piece(tokenizer, t->id[i], true, &len);

        json_print(j, "{id:%d, piece:", t->id[i]);
        if (utf8_valid(s, len)) {
            json_string(j, s, len);
        } else {
            json_open(j, '[');
            for (size_t k = 0; k < len; k++)
                json_int(j, (unsigned char)s[k]);
            json_close(j, ']');
        }
        json_close(j, '}');
    }
    json_close(j, ']');
}

/* Writes vLLM's answer of /tokenize. */
static void write_tokens(struct json *j, const struct prompt_job *job) {
    const struct tokens *t = &job->prompts[0].tokens;
    const struct api_model *m = job->model->info;

    json_print(j, "{count:%ld, max_model_len:%u, tokens:", (int64_t)t->n, m->max_context);
    if (job->request.answer.with_pieces)
        put_pieces(j, m->tokenizer, t);
    else
        tokenize_put_ids(j, t);
    if (job->request.answer.token_strings) {
        json_print(j, "token_strs:[");
        for (size_t i = 0; i < t->n && tokenize_goes_on(j, i); i++) {
            struct gguf_str s = tokenizer_text(m->tokenizer, t->id[i]);

            json_string(j, s.data, s.len);
        }
        json_close(j, ']');
    } else {
        json_print(j, "token_strs:null");
    }
    json_close(j, '}');
}

static void put_hash(struct json *j, const uint8_t digest[PICTURE_DIGEST]) {
    char hex[2 * PICTURE_DIGEST + 1];

    hex_write(hex, digest, PICTURE_DIGEST);
    json_string(j, hex, sizeof(hex) - 1);
}

/* Writes the pictures of @p in vLLM's form, from which llm-d computes the extra keys of blocks: the
 * digests that KV events have, and the tokens that stand for each. Nothing if there are none. */
static void put_features(struct json *j, const struct prompt *p) {
    if (p->n_pictures == 0)
        return;
    json_print(j, "features:{mm_hashes:{image:[");
    for (uint32_t i = 0; i < p->n_pictures; i++)
        put_hash(j, p->pictures[i].digest);
    json_print(j, "]}, mm_placeholders:{image:[");
    for (uint32_t i = 0; i < p->n_pictures; i++)
        json_print(j, "{offset:%u, length:%u}", p->pictures[i].at, p->pictures[i].n_rows);
    json_print(j, "]}}");
}

static void put_prompts(struct json *j, const struct prompt_job *job) {
    json_open(j, '[');
    for (uint32_t i = 0; i < job->n_prompts; i++) {
        const struct prompt *p = &job->prompts[i];

        json_print(j, "{text:");
        if (p->text)
            json_string(j, p->text, p->len);
        else
            json_print(j, "null");
        json_print(j, "token_ids:");
        tokenize_put_ids(j, &p->tokens);
        put_features(j, p);
        json_close(j, '}');
    }
    json_close(j, ']');
}

/* Writes the prompts as the model would see them; routers read token_ids. */
static void write_prompts(struct json *j, const struct prompt_job *job) {
    json_print(j, "{object:'render', model:%s, token_ids:", job->model->info->id);
    tokenize_put_ids(j, &job->prompts[0].tokens);
    put_features(j, &job->prompts[0]);
    json_print(j, "prompts:");
    put_prompts(j, job);
    json_close(j, '}');
}

/* Writes the text under the names of vLLM and of llama-server. */
static void tokenize_write_text(struct json *j, const struct prompt_job *job) {
    const struct buf *text = &job->text;

    json_print(j, "{prompt:");
    json_string(j, text_or(text->data, ""), text->len);
    json_print(j, "content:");
    json_string(j, text_or(text->data, ""), text->len);
    json_close(j, '}');
}

static int read_tokenize(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    int r = openai_read_rendered(job, body, FIELDS_TOKENIZE, err);

    job->request.answer.tokens_only = true;
    return r;
}

static int read_detokenize(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    return gen_request_read(&job->request, job->model, FIELDS_DETOKENIZE, body, err);
}

/* Writes llama-server's token count of a chat. */
static void tokenize_write_count(struct json *j, const struct prompt_job *job) {
    json_print(j, "{input_tokens:%ld}", (int64_t)job->prompts[0].tokens.n);
}

const struct endpoint openai_tokenize = {.translate = read_tokenize, .write = write_tokens};
const struct endpoint openai_detokenize = {.translate = read_detokenize,
                                           .write = tokenize_write_text};
const struct endpoint openai_chat_render = {.translate = openai_read_chat, .write = write_prompts};
const struct endpoint openai_chat_count = {.translate = openai_read_chat,
                                           .write = tokenize_write_count};
const struct endpoint openai_llama_count = {.translate = openai_read_llama_chat,
                                            .write = tokenize_write_count};
const struct endpoint openai_completion_render = {.translate = openai_read_completion,
                                                  .write = put_prompts};
