/* OpenAI's chat completions, completions, embeddings and models, and vLLM's additions to them. */

#include "api/openai/openai.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/lookup.h"
#include "api/generation/writer.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/openai/vectors.h"

bool openai_is_llama_server(const struct route *route) {
    return route && strncmp(route->path, "/v1/", 4) != 0 && strncmp(route->path, "/api/", 5) != 0;
}

/* Returns the type of the error. Clients of llama-server recognise a prompt that does not fit by
 * the type. */
static const char *openai_type(const struct exchange *x, const struct err *err) {
    if (x && openai_is_llama_server(x->route) && strcmp(err->code, "context_length_exceeded") == 0)
        return "exceed_context_size_error";
    return respond_error_type(err);
}

void openai_put_error(struct json *j, const struct exchange *x, const struct err *err) {
    json_print(j, "{error:{message:%s, type:%s, param:%s, code:%s", err->message,
               openai_type(x, err), *err->param ? err->param : NULL, respond_error_code(err));
    if (err->n_prompt)
        json_print(j, "n_prompt_tokens:%u, n_ctx:%u", err->n_prompt, err->n_context);
    json_print(j, "}}");
}

size_t openai_put_ids(const struct exchange *x, int64_t processing_ms, char *out, size_t size) {
    int n = snprintf(out, size,
                     "X-Request-Id: %s\r\nOpenAI-Version: 2020-10-01\r\n"
                     "OpenAI-Processing-Ms: %lld\r\n",
                     x->id, (long long)processing_ms);

    assert(n > 0 && (size_t)n < size);
    return (size_t)n;
}

static void put_duration(char *out, size_t size, double ms) {
    uint64_t n = (uint64_t)(ms + 0.5);

    if (n < 1000)
        snprintf(out, size, "%llums", (unsigned long long)n);
    else if (n < 59950)
        snprintf(out, size, "%.3gs", (double)n / 1000);
    else
        snprintf(out, size, "%llum%llus", (unsigned long long)(n + 50) / 60000,
                 (unsigned long long)(n + 50) / 1000 % 60);
}

size_t openai_put_limit(const struct limit_left *l, char *out, size_t size) {
    char reset[40];

    put_duration(reset, sizeof(reset), l->reset_ms);
    int n = snprintf(out, size,
                     "x-ratelimit-limit-%s: %.0f\r\nx-ratelimit-remaining-%s: %.0f\r\n"
                     "x-ratelimit-reset-%s: %s\r\n",
                     l->what, l->limit, l->what, l->left, l->what, reset);
    if (n <= 0 || (size_t)n >= size)
        return 0;
    return (size_t)n;
}

static const struct route routes[] = {
    {"/v1/models", HTTP_GET, false, false, models_list_serve, NULL},
    {"/v1/models/*", HTTP_GET, false, false, models_one_serve, NULL},
    {"/v1/chat/completions", HTTP_POST, false, true, writer_serve, &openai_chat},
    {"/v1/completions", HTTP_POST, false, true, writer_serve, &openai_completion},
    {"/v1/embeddings", HTTP_POST, false, true, vectors_serve, &openai_embeddings},
    {"/v1/chat/completions/render", HTTP_POST, false, false, lookup_serve, &openai_chat_render},
    {"/v1/completions/render", HTTP_POST, false, false, lookup_serve, &openai_completion_render},
    {"/models", HTTP_GET, false, false, models_list_serve, NULL},
    {"/chat/completions", HTTP_POST, false, true, writer_serve, &openai_llama_chat},
    {"/v1/chat/completions/input_tokens", HTTP_POST, false, false, lookup_serve,
     &openai_chat_count},
    {"/chat/completions/input_tokens", HTTP_POST, false, false, lookup_serve, &openai_llama_count},
    {"/embeddings", HTTP_POST, false, true, vectors_serve, &openai_embeddings},
    {"/embedding", HTTP_POST, false, true, vectors_serve, &openai_embedding},
    {"/v1/rerank", HTTP_POST, false, true, vectors_serve, &openai_rerank},
    {"/v2/rerank", HTTP_POST, false, true, vectors_serve, &openai_rerank},
    {"/rerank", HTTP_POST, false, true, vectors_serve, &openai_rerank},
    {"/v1/reranking", HTTP_POST, false, true, vectors_serve, &openai_rerank},
    {"/reranking", HTTP_POST, false, true, vectors_serve, &openai_rerank},
    {"/v1/decisions", HTTP_POST, false, true, writer_serve, &openai_decisions},
    {"/v1/systemone", HTTP_POST, false, true, writer_serve, &openai_system_one},
    {"/v1/score", HTTP_POST, false, true, vectors_serve, &openai_score},
    {"/score", HTTP_POST, false, true, vectors_serve, &openai_score},
    {"/tokenize", HTTP_POST, false, false, lookup_serve, &openai_tokenize},
    {"/detokenize", HTTP_POST, false, false, lookup_serve, &openai_detokenize},
    {0},
};

static const char *const prefixes[] = {
    "/v1/chat/",  "/v1/completions", "/v1/embeddings", "/chat/", "/embeddings",
    "/v1/rerank", "/v1/score",       "/rerank",        "/score", NULL};

const struct dialect openai_dialect = {
    .name = "openai",
    .prefixes = prefixes,
    .routes = routes,
    OPENAI_FORM,
    .stream_end = "data: [DONE]\n\n",
};
