#pragma once

/*
 * decoder - layers of a decoder-only transformer with RoPE, RMS norms and gated FFNs, dense or with
 * experts, under the tensor names of llama.cpp. An architecture that differs only in its biases and
 * norms is a row in arch.c; one with layers of other kinds composes its own bind function from the
 * parts here. Errors are kept in the binder.
 */

#include "engine/bind.h"
#include "engine/model.h"

/* Options of decoder layers: what differs from seven matrices and two norms. */
struct decoder {
    enum bind_need qkv_bias, out_bias, ffn_bias, qk_norm, sinks, expert_bias;
    bool unnormed;        /* no norms before attention and the FFN */
    bool streams;         /* qwen4exp.h: branches go to residual streams; no norm before logits */
    const char *ffn_norm; /* name of the norm before the FFN; NULL: ffn_norm */
    /* Names of the norms after attention and after the FFN; NULL: none */
    const char *attn_post_norm, *ffn_post_norm;
    float post_eps; /* epsilon of the norms after branches; 0: rms_eps */
    enum glu glu;
    bool v_unit;     /* values have a norm without weights; without attn_v, keys are values */
    uint32_t window; /* window.h: size of the window if the file has none */
    uint32_t window_period;
    /* a model with this many layers scales scores by 1 / sqrt(n_embd / n_head) */
    uint32_t wide_scores;
    bool window_rope; /* layers with a window use the second set of RoPE frequencies */
    bool same_base;   /* the second set has the base of the first if the file has none */
    bool scaled_embedding;
    bool two_way;        /* rows of a picture see each other: window.h, in all layers */
    bool unit_embedding; /* the embedding gets a norm without weights */
    bool scaled_logits;  /* logits are multiplied by logit_scale, before the cap */
    bool norm_all;       /* norms of q and k are over all heads together */
    bool fused;          /* attn_qkv has the rows of q, k and v, and ffn_up those of gate and up */
    /* attn_q has gates: the output of attention is multiplied by their sigmoid */
    bool gated;
    /* attn_gate: the output of attention is multiplied by softplus(attn_gate y) */
    bool soft_gate;
    bool sigmoid_gate; /* attn_gate with the sigmoid */
    bool no_gate;      /* FFNs have no gate: GLU_RELU; in an encoder: gelu(up) */
    bool positions;    /* encoder.h: learned position embeddings */
    bool alibi;        /* encoder.h: ALiBi */
    bool windowed;     /* lfm2.h: attention has a window if the file has one */
    enum bind_need pick_bias;
    const char *final_norm; /* name of the norm before the logits; NULL: output_norm */
    bool tiled;             /* hybrid.h: how value heads share key heads, struct delta_shape */
};

/* Properties of one layer that differ between layers. */
struct layer {
    uint32_t index; /* number in the file */
    struct heads heads;
    struct attn attn;
    uint8_t rope;              /* index into model_shape.rope */
    uint32_t n_ff;             /* width of the dense FFN */
    const struct kv_layer *kv; /* keys of an earlier layer that it reads; NULL: its own */
};

/* Returns the default for layer @index: heads of the shape, no window, the first set of RoPE
 * frequencies. */
struct layer decoder_layer(const struct model *m, uint32_t index);

/* Binds token_embd, output_norm, and output (or the embedding again if the file has no output).
 * Adds the embedding; the caller adds *logits after the layers. */
void decoder_ends(struct binder *b, struct model *m, const struct decoder *d,
                  struct model_op *logits);
/* Adds x += Wo attention(qkv(norm x)), with keys of its own (in KV_WINDOW if the layer has a
 * window) or those of layer->kv. Returns the place of the keys. */
struct kv_layer decoder_attention(struct binder *b, struct model *m, const struct decoder *d,
                                  const struct layer *l);
/* Adds x += down glu(gate y, up y), y = norm x. */
void decoder_ffn(struct binder *b, struct model *m, const struct decoder *d, const struct layer *l);
/* Adds x += the sum of the picked experts, and the output of the shared expert, if there is one */
void decoder_experts(struct binder *b, struct model *m, const struct decoder *d, uint32_t layer);
/* Adds experts if the model has any and the layer is not among the leading dense ones, else the
 * FFN. */
void decoder_mlp(struct binder *b, struct model *m, const struct decoder *d, const struct layer *l);
/* Binds a whole model in which every layer is attention followed by an FFN, or by experts. */
void decoder_bind(struct binder *b, struct model *m, const struct decoder *d);
