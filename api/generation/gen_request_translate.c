/* Bodies in the forms of other services: each becomes a chat's or a completion's, and is read as such. */

#include <errno.h>
#include "api/anthropic/input.h"
#include "api/http/json.h"
#include "api/llamacpp/llamacpp.h"
#include "api/ollama/ollama.h"
#include "api/generation/gen_request.h"

/* From Anthropic's form into a chat's. Takes @body over. */
static int parse_anthropic(struct gen_request *r, const struct api *a, bool count, yyjson_doc *body,
                           struct err *err) {
    CLEANUP(buf_deinit) struct buf prefill = {.max = UINT32_MAX};
    yyjson_doc *chat = NULL;
    int result = anthropic_translate(a, body, count, &chat, &prefill, err);

    yyjson_doc_free(body);
    if (result == 0)
        result = gen_request_parse_doc(r, a, REQUEST_CHAT, chat, err);
    if (result < 0 || prefill.len == 0)
        return result;
    r->prefill.len = (uint32_t)prefill.len;
    r->prefill.data = arena_strndup(&r->arena, prefill.data, prefill.len);
    return r->prefill.data ? 0 : -ENOMEM;
}

/* Likewise from llama-server's. */
static int parse_llamacpp(struct gen_request *r, const struct api *a, bool infill, yyjson_doc *body,
                          struct err *err) {
    yyjson_doc *ours = NULL;
    int result = llamacpp_translate(body, infill, &ours, err);

    yyjson_doc_free(body);
    if (result == 0)
        result = gen_request_parse_doc(r, a, REQUEST_COMPLETION, ours, err);
    if (result == 0 && !r->max_new)
        r->max_new = INT32_MAX;
    return result;
}

/* Likewise from Ollama's. */
static int parse_ollama(struct gen_request *r, const struct api *a, bool generate, yyjson_doc *body,
                        struct err *err) {
    yyjson_doc *ours = NULL;
    bool text = false, load = false;
    int result = ollama_translate(a, body, generate, &ours, &text, &load, err);

    yyjson_doc_free(body);
    if (result == 0)
        result = gen_request_parse_doc(r, a, text ? REQUEST_COMPLETION : REQUEST_CHAT, ours, err);
    if (result == 0)
        r->load_only = load;
    if (result == 0 && text && !r->max_new)
        r->max_new = INT32_MAX; /* all that is left, unlike OpenAI's 16 */
    return result;
}

int gen_request_parse(struct gen_request *r, const struct api *a, enum gen_request_kind kind,
                      const char *body, size_t len, struct err *err) {
    yyjson_doc *doc = NULL;
    int result = json_read(&doc, body, len, err);

    if (result == 0 && kind & (REQUEST_ANTHROPIC | REQUEST_ANTHROPIC_COUNT))
        return parse_anthropic(r, a, kind == REQUEST_ANTHROPIC_COUNT, doc, err);
    if (result == 0 && kind & (REQUEST_LLAMACPP | REQUEST_INFILL))
        return parse_llamacpp(r, a, kind == REQUEST_INFILL, doc, err);
    if (result == 0 && kind & (REQUEST_OLLAMA | REQUEST_OLLAMA_GENERATE))
        return parse_ollama(r, a, kind == REQUEST_OLLAMA_GENERATE, doc, err);
    return result < 0 ? result : gen_request_parse_doc(r, a, kind, doc, err);
}
