#pragma once

/* openai - the parts of OpenAI's dialect that other dialects share. */

#include <stdbool.h>

#include "api/generation/gen_request.h"
#include "api/http/dialect.h"
#include "base/lib_types.h"

struct endpoint;

struct prompt_job;

/* Writes {"error": {...}} with all four members. */
void openai_put_error(struct json *j, const struct exchange *x, const struct err *err);
/* Returns true if the client asks like one of llama-server: on a path without /v1 or /api. */
bool openai_is_llama_server(const struct route *route);
/* Writes X-Request-Id and the other headers that OpenAI's clients log. */
size_t openai_put_ids(const struct exchange *x, int64_t processing_ms, char *out, size_t size);
/* x-ratelimit-*, with times as 120ms, 7.66s or 6m0s. */
size_t openai_put_limit(const struct limit_left *l, char *out, size_t size);

/* The members of a dialect whose heads, errors and streams are OpenAI's. */
#define OPENAI_FORM                                                                                \
    .put_ids = openai_put_ids, .put_limit = openai_put_limit, .put_error = openai_put_error,       \
    .stream_type = SSE_TYPE, .event_begin = SSE_BEGIN, .event_end = SSE_END,                       \
    .keepalive = SSE_COMMENT

/* Implements endpoint.translate for bodies in OpenAI's form, into which other dialects are
 * translated. */
int openai_read_chat(struct prompt_job *job, yyjson_doc *body, struct err *err);
/* Reads a chat of a client of llama-server: the answer continues a last message of the assistant.
 */
int openai_read_llama_chat(struct prompt_job *job, yyjson_doc *body, struct err *err);
/* Reads a body with messages as one of @kind; with continue_final_message the prompt ends with the
 * last of them. */
int openai_read_rendered(struct prompt_job *job, yyjson_doc *body, enum field_set kind,
                         struct err *err);
int openai_read_completion(struct prompt_job *job, yyjson_doc *body, struct err *err);

/* route.serve */
void models_list_serve(struct exchange *x, struct http *h);
void models_one_serve(struct exchange *x, struct http *h);

extern const struct endpoint openai_chat, openai_llama_chat, openai_chat_count, openai_llama_count,
    openai_chat_render, openai_completion, openai_completion_render, openai_embeddings,
    openai_embedding, openai_rerank, openai_score, openai_decisions, openai_system_one,
    openai_tokenize, openai_detokenize;
