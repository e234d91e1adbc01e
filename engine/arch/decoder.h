#pragma once

/*
 * decoder - the layers of a decoder-only transformer with rotary positions, RMS norms and gated
 * FFNs, dense or with experts, by the names that llama files gave their tensors. An architecture
 * that differs only in its biases and norms is a row in arch.c; one with layers of other kinds
 * composes its own bind function from the parts here. Errors are kept in the binder.
 */

#include "engine/bind.h"
#include "engine/model.h"

/* Describes a decoder layer's parts beside its seven matrices and two norms. */
struct decoder {
    enum bind_need qkv_bias, out_bias, ffn_bias, qk_norm, sinks, expert_bias;
    bool unnormed;        /* no norms before attention and the FFN */
    bool streams;         /* qwen4exp.h: branches go to residual streams; no norm before logits */
    const char *ffn_norm; /* name of the norm before the FFN; NULL: ffn_norm */
    /* Norms of the sums that attention and the FFN add; NULL: none */
    const char *attn_post_norm, *ffn_post_norm;
    float post_eps; /* of the post norms; 0: rms_eps */
    enum glu glu;
    bool v_unit;     /* values have a norm without weights, and are keys where attn_v is missing */
    uint32_t window; /* window.h: the size if the file has none */
    uint32_t window_period;
    uint32_t wide_scores; /* layers of the model whose scores are scaled by the model's width */
    bool window_rope;     /* layers with a window have the second set of rotary positions */
    bool same_base;       /* the second RoPE has the first one's base if the file names none */
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
    bool windowed;     /* lfm2.h: attention has a window if the file has one */
    enum bind_need pick_bias;
    const char *final_norm; /* name of the norm before the logits; NULL: output_norm */
    bool tiled;             /* hybrid.h: how value heads share key heads, struct delta_shape */
};

/* Properties of one layer that differ between layers. */
struct layer {
    uint32_t index; /* in the file */
    struct heads heads;
    struct attn attn;
    uint8_t rope;              /* index into model_shape.rope */
    uint32_t n_ff;             /* width of the dense FFN */
    const struct kv_layer *kv; /* pages of an earlier layer that it reads; NULL: its own */
};

/* Layer @index as the shape has it: all keys, the first set of rotary positions. */
struct layer decoder_layer(const struct model *m, uint32_t index);

/* Binds a model's beginning and end: token_embd; output_norm, and output, or the embedding again if
 * the file has no output. Adds the embedding; the caller adds *logits behind the layers. */
void decoder_ends(struct binder *b, struct model *m, const struct decoder *d,
                  struct model_op *logits);
/* Adds x += Wo attention(qkv(norm x)), with its own pages (of KV_WINDOW if the layer has a window)
 * or with those of @l; returns the pages. */
struct kv_layer decoder_attention(struct binder *b, struct model *m, const struct decoder *d,
                                  const struct layer *l);
/* Adds x += down glu(gate y, up y), y = norm x */
void decoder_ffn(struct binder *b, struct model *m, const struct decoder *d, const struct layer *l);
/* Adds x += the sum of the picked experts, and the output of the shared expert, if there is one */
void decoder_experts(struct binder *b, struct model *m, const struct decoder *d, uint32_t layer);
/* Adds experts if the model has any and the layer is not among the leading dense ones, else the
 * FFN. */
void decoder_mlp(struct binder *b, struct model *m, const struct decoder *d, const struct layer *l);
/* Binds a whole model in which every layer is attention followed by an FFN, or by experts. */
void decoder_bind(struct binder *b, struct model *m, const struct decoder *d);
