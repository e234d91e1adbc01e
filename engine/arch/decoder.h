#pragma once

/*
 * decoder - the layers of a decoder-only transformer with rotary positions, RMS norms and gated
 * FFNs, dense or with experts, by the names that llama files gave their tensors. An architecture
 * that only differs in which biases and norms there are is a row in arch.c; one with layers of
 * other kinds composes its own bind function from the parts here. Errors stay in the binder.
 */

#include "engine/bind.h"
#include "engine/model.h"

/* Describes a decoder layer's parts beside its seven matrices and two norms. */
struct decoder {
    enum bind_need qkv_bias, out_bias, ffn_bias, qk_norm, sinks, expert_bias;
    bool unnormed;        /* no norms before attention and the FFN */
    bool streams;         /* qwen4exp.h: branches go to residual streams; no norm before logits */
    const char *ffn_norm; /* name of the norm before the FFN; NULL: ffn_norm */
    /* Norms of what attention and the FFN add; NULL: none */
    const char *attn_post_norm, *ffn_post_norm;
    float post_eps; /* of the post norms; 0: rms_eps */
    enum glu glu;
    bool v_unit;     /* values have a norm without weights, and are keys where attn_v is missing */
    uint32_t window; /* window.h: the size where the file says none */
    uint32_t window_period;
    uint32_t wide_scores; /* layers of the model whose scores are scaled by the model's width */
    bool window_rope;     /* layers with a window have the second set of rotary positions */
    bool same_base;       /* the second RoPE has the first one's base where the file names none */
    bool scaled_embedding;
    bool two_way;        /* pictures' rows see each other: window.h, in all layers */
    bool unit_embedding; /* the embedding is normed, without weights */
    bool scaled_logits;  /* by logit_scale, before the cap */
    bool norm_all;       /* q and k are normed over all heads together */
    bool fused;          /* attn_qkv has the rows of q, k and v, ffn_up those of gate and up */
    bool gated;          /* attn_q has a gate for each head, whose sigmoid weighs its output */
    bool soft_gate;    /* attn_gate of the same input weighs the output of attention by softplus */
    bool sigmoid_gate; /* or by the sigmoid */
    bool no_gate;      /* ups are gates too: GLU_RELU; of an encoder: there are no ups */
    bool positions;    /* encoder.h: learned, one for each position */
    bool alibi;        /* encoder.h: scores are less by distance */
    bool windowed;     /* lfm2.h: attention has a window where the file says so */
    enum bind_need pick_bias;
    const char *final_norm; /* name of the norm before the logits; NULL: output_norm */
    bool tiled;             /* hybrid.h: how value heads share key heads, struct delta_shape */
};

/* Describes one layer, where layers differ. */
struct layer {
    uint32_t index; /* in the file */
    struct heads heads;
    struct attn attn;
    uint8_t rope;              /* index into model_shape.rope */
    uint32_t n_ff;             /* width of the dense FFN */
    const struct kv_layer *kv; /* the pages of a layer before it that it reads; NULL: its own */
};

/* Layer @index as the shape has it: all keys, the first set of rotary positions. */
struct layer decoder_layer(const struct model *m, uint32_t index);

/* A model's beginning and end: token_embd; output_norm, and output or the embedding again when the
 * file has none. The embedding is added, *logits is for the caller to add behind the layers. */
void decoder_ends(struct binder *b, struct model *m, const struct decoder *d,
                  struct model_op *logits);
/* x += Wo attention(qkv(norm x)), with pages of its own, of KV_WINDOW where the layer has a window,
 * or those that the layer says; returns which. */
struct kv_layer decoder_attention(struct binder *b, struct model *m, const struct decoder *d,
                                  const struct layer *l);
/* x += down glu(gate y, up y), y = norm x */
void decoder_ffn(struct binder *b, struct model *m, const struct decoder *d, const struct layer *l);
/* x += the picked experts' sum, and what the shared expert of all rows adds, if there is one */
void decoder_experts(struct binder *b, struct model *m, const struct decoder *d, uint32_t layer);
/* One of the two: experts where the model has any and the layer is not among the leading ones. */
void decoder_mlp(struct binder *b, struct model *m, const struct decoder *d, const struct layer *l);
/* Binds a whole model whose every layer is attention and then an FFN, or experts where the model
 * has any. */
void decoder_bind(struct binder *b, struct model *m, const struct decoder *d);
