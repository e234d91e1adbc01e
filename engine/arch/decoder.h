#pragma once

/*
 * decoder - the layers of a decoder-only transformer with rotary positions, RMS norms and SwiGLU,
 * dense or with experts, by the names that llama files gave their tensors. An architecture that
 * only differs in which biases and norms there are is a row in arch.c; one with layers of other
 * kinds composes its own bind function from the parts here. Errors stay in the binder.
 */

#include "engine/bind.h"
#include "engine/model.h"

/* What a decoder layer may have beside its seven matrices and two norms. */
struct decoder {
    enum bind_need qkv_bias, out_bias, ffn_bias, qk_norm;
    const char *ffn_norm; /* name of the norm before the FFN; NULL: ffn_norm */
    bool gated;           /* attn_q has a gate for each head, whose sigmoid weighs its output */
    bool tiled;           /* hybrid.h: how value heads share key heads, struct delta_shape */
};

/* A model's beginning and end: token_embd; output_norm, and output or the embedding again when the
 * file has none. The embedding is added, *logits is for decoder_bind() to add behind the layers. */
void decoder_ends(struct binder *b, struct model *m, struct model_op *logits);
/* x += Wo attention(qkv(norm x)), with pages of class KV_GLOBAL. */
void decoder_attention(struct binder *b, struct model *m, const struct decoder *d, uint32_t layer);
/* x += down (silu(gate y) * up y), y = norm x */
void decoder_ffn(struct binder *b, struct model *m, const struct decoder *d, uint32_t layer);
/* x += the picked experts' sum, and what the shared expert of all rows adds, if there is one */
void decoder_experts(struct binder *b, struct model *m, const struct decoder *d, uint32_t layer);
/* All of a model whose every layer is attention and then an FFN, or experts where the model has
 * any. */
void decoder_bind(struct binder *b, struct model *m, const struct decoder *d);
