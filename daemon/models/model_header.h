#pragma once

/*
 * model_header - the description of a model in the header of its file, for clients that ask before
 * the model is loaded. Reading it touches no weights.
 */

#include "base/gguf.h"
#include "text/repeats.h"

struct config;

/* Kinds of vocabularies, with the numbers that clients of llama.cpp expect. */
enum vocab_type {
    VOCAB_NONE,
    VOCAB_SPM,
    VOCAB_BPE,
    VOCAB_WPM,
    VOCAB_UGM,
    VOCAB_RWKV,
    VOCAB_PLAMO2
};

/* Header of a file; numbers that it lacks are 0. */
struct model_header {
    char arch[64];
    uint32_t n_ctx_train, n_embd, n_vocab;
    uint8_t vocab_type;
    /* its chat template has a form of reasoning */
    bool reasons;
    uint64_t n_params, tensor_bytes;
};

/* Fills the header from the metadata and the list of tensors of @g. */
void model_header_read(struct model_header *h, const struct gguf *g);
/* Reads the file at @path. Returns 0, or -errno with *h zeroed. */
int model_header_open(struct model_header *h, const char *path);
/* Returns the value of loop-breaker for a model of this size and format: small models, and those of
 * two bits a weight, end many chats in a loop. 0: it needs none. */
uint32_t model_header_loops(const struct model_header *h);
/* Returns the longest context that the model can be served with by these options, before the
 * memory for it is known; 0: unknown. */
uint32_t model_header_context(const struct model_header *h, const struct config *c);
