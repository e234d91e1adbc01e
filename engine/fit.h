#pragma once

/*
 * fit - the arithmetic of memory, before anything is loaded: what a model's weights, buffers, pages
 * and states take, and how much of it a host backend's KV memory is to be. Private to engine/;
 * others call engine_fit().
 */

#include "engine/model.h"

struct fit_text {
    char s[24];
};

/* "1.25 GiB". */
struct fit_text fit_text(uint64_t bytes);

/* What a host backend keeps of the tensors: repacking changes no sizes, and a tensor that two ops
 * use is there twice. */
uint64_t fit_weights(const struct model *m);
/* What is read of them for a token: all but the embedding, and of the experts those that are
 * picked. */
uint64_t fit_token_weights(const struct model *m);
/* Activations of a batch and logits of its sequences: an upper estimate. */
uint64_t fit_buffers(const struct model *m, const struct engine_opts *o);

/* What is to be fitted. */
struct fit {
    uint64_t weights, buffers, page, state; /* bytes; state 0: the model has none */
    uint64_t host;                          /* of the configured host tier */
    uint32_t page_tokens, model_context;
    uint32_t context; /* that is asked for; 0: any */
    uint64_t wish;    /* for KV memory; 0: any */
    uint64_t memory;  /* that may be taken */
    uint64_t n_params;
};

/*
 * KV memory for it: what is wished, else a quarter of the memory or room for FIT_CONTEXT tokens if
 * that is more; more where the context that is asked for needs more; less where the weights leave
 * less. 0, or -ENOMEM with the
 * arithmetic and what would fit in @err: there is not even room for the context that is asked for,
 * or for FIT_LEAST tokens.
 */
#define FIT_CONTEXT 32768u
#define FIT_LEAST 1024u
int fit_kv(const struct fit *f, uint64_t *kv_bytes, struct err *err);
