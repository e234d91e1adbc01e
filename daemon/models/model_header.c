#include "daemon/models/model_header.h"

#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/try.h"
#include "checkpoint/checkpoint.h"
#include "daemon/config/config.h"

/* Reads "<architecture>.@name"; 0 if the file does not have it. */
static uint32_t model_header_number(const struct model_header *h, const struct gguf *g,
                                    const char *name) {
    uint32_t n = 0;
    char key[128];

    snprintf(key, sizeof(key), "%s.%s", h->arch, name);
    gguf_u32(g, key, &n);
    return n;
}

/* Returns the kind that tokenizer.ggml.model names. */
static uint8_t vocab_of(const struct gguf *g) {
    static const struct {
        const char *name;
        enum vocab_type type;
    } rows[] = {
        {"llama", VOCAB_SPM}, {"gemma4", VOCAB_BPE}, {"gpt2", VOCAB_BPE},      {"bert", VOCAB_WPM},
        {"t5", VOCAB_UGM},    {"rwkv", VOCAB_RWKV},  {"plamo2", VOCAB_PLAMO2},
    };
    struct gguf_str s;

    if (gguf_string(g, "tokenizer.ggml.model", &s) < 0)
        return VOCAB_NONE;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (s.len == strlen(rows[i].name) && memcmp(s.data, rows[i].name, s.len) == 0)
            return (uint8_t)rows[i].type;
    return VOCAB_NONE;
}

void model_header_read(struct model_header *h, const struct gguf *g) {
    const struct gguf_array *tokens = gguf_array(g, "tokenizer.ggml.tokens");
    struct gguf_str arch = {"", 0}, text;

    *h = (struct model_header){.vocab_type = vocab_of(g)};
    gguf_string(g, "general.architecture", &arch);
    snprintf(h->arch, sizeof(h->arch), "%.*s", (int)MIN(arch.len, sizeof(h->arch) - 1), arch.data);
    h->n_ctx_train = model_header_number(h, g, "context_length");
    h->n_embd = model_header_number(h, g, "embedding_length");
    h->n_vocab = tokens ? (uint32_t)MIN(gguf_array_n(tokens), UINT32_MAX) : 0;
    if (gguf_string(g, "tokenizer.chat_template", &text) == 0)
        h->reasons = api_template_reasons(text.data, text.len);
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);

        h->n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        h->tensor_bytes += t->n_bytes;
    }
}

int model_header_open(struct model_header *h, const char *path) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct err err;

    *h = (struct model_header){0};
    TRY(checkpoint_open_model(&g, path, &err));
    model_header_read(h, g);
    return 0;
}

uint32_t model_header_loops(const struct model_header *h) {
    bool is_small = h->n_params < 2000000000u;
    bool is_coarse = 80 * h->tensor_bytes < 33 * h->n_params; /* 3.3 bits a weight */

    if (is_small || is_coarse)
        return REPEATS_DEFAULT;
    return 0;
}

uint32_t model_header_context(const struct model_header *h, const struct config *c) {
    uint32_t asked = c->engine.max_context;

    if (asked && asked < h->n_ctx_train)
        return asked;
    return h->n_ctx_train;
}
