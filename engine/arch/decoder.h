#pragma once

/*
 * decoder - builds the ops of decoder-only transformers with RoPE, RMS norms and gated FFNs, dense
 * or with experts. Tensors have the names of llama.cpp. An architecture that differs only in biases
 * and norms is a row of the table in arch.c; one with layers of other kinds has a bind function of
 * its own, which uses the functions here. Errors are kept in the binder.
 */

#include "engine/bind.h"
#include "engine/model.h"

/* Options of decoder layers: the differences from layers of seven matrices and two norms. */
struct decoder {
    enum bind_need qkv_bias, out_bias, ffn_bias, qk_norm, sinks, expert_bias;
    bool unnormed;        /* layers have no norms before attention and the FFN */
    bool streams;         /* qwen4exp.h: branches go to residual streams; no norm before logits */
    const char *ffn_norm; /* name of the norm before the FFN; NULL: ffn_norm */
    /* names of the norms after attention and after the FFN; NULL: there are no such norms */
    const char *attn_post_norm, *ffn_post_norm;
    float post_eps; /* epsilon of the norms after branches; 0: rms_eps */
    enum glu glu;
    bool v_unit;     /* values have a norm without weights; a layer without attn_v uses attn_k */
    uint32_t window; /* window.h: size of the window if the file does not give it */
    uint32_t window_period; /* window.h: default of window_read()'s period */
    /* models with this number of layers scale scores by 1 / sqrt(n_embd / n_head) */
    uint32_t wide_scores;
    bool window_rope;      /* layers with a window use the second set of RoPE frequencies */
    bool same_base;        /* the second set has the base of the first if the file has none */
    bool scaled_embedding; /* the embedding is multiplied by sqrt(n_embd) */
    bool two_way;          /* window.h: rows of a picture see each other, in all layers */
    bool unit_embedding;   /* the embedding gets a norm without weights */
    bool scaled_logits;    /* logits are multiplied by logit_scale, before the cap */
    bool norm_all;         /* the norms of q and k are over all heads together */
    /* layers without a window have no rotary positions, if other layers have a window */
    bool window_only_rope;
    uint32_t plain_period; /* the last of this many layers has no rotary positions; 0: all have */
    bool fused_qkv;        /* attn_qkv has the rows of q, k and v */
    bool fused_ffn;        /* ffn_up has the rows of gate and up */
    bool gated;            /* attn_q has gates too: o is multiplied by their sigmoid */
    bool soft_gate;        /* attn_gate: o is multiplied by softplus(attn_gate y) */
    bool sigmoid_gate;     /* attn_gate: o is multiplied by sigmoid(attn_gate y) */
    bool no_gate;          /* FFNs have no gate matrix: GLU_RELU, or in an encoder gelu(up) */
    bool positions;        /* encoder.h: the model has learned position embeddings */
    bool alibi;            /* encoder.h: scores have ALiBi */
    bool windowed;         /* lfm2.h: attention has a window if the file gives its size */
    enum bind_need pick_bias;
    const char *final_norm; /* name of the norm before the logits; NULL: output_norm */
    bool tiled;             /* hybrid.h: delta_shape.tiled */
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

/* Returns the defaults for layer @index: the heads of the shape, no window, RoPE set 0, and keys of
 * its own. */
struct layer decoder_layer(const struct model *m, uint32_t index);

/* Binds token_embd, output_norm and output; a file without output uses token_embd as output too.
 * Adds the embedding, and sets *logits to the op that the caller adds after the layers. */
void decoder_ends(struct binder *b, struct model *m, const struct decoder *d,
                  struct model_op *logits);
/* Adds x += W in, or with @branch b = W in, where W is the matrix @name with @n_in columns. */
void decoder_project(struct binder *b, struct model *m, uint32_t layer, enum act_role in,
                     uint64_t n_in, const char *name, bool branch);
/* Checks that the heads of each of @n layers share their key heads evenly. */
void decoder_check_heads(struct binder *b, uint32_t n, const uint32_t *n_head,
                         const uint32_t *n_kv);
/* Adds x += Wo attention(qkv(norm x)). Keys are those of layer->kv, or if that is NULL the layer's
 * own, in KV_WINDOW if it has a window. Returns the place of the keys. */
struct kv_layer decoder_attention(struct binder *b, struct model *m, const struct decoder *d,
                                  const struct layer *l);
/* Adds x += down glu(gate y, up y), y = norm x. */
void decoder_ffn(struct binder *b, struct model *m, const struct decoder *d, const struct layer *l);
/* Adds x += the sum of the picked experts and the output of the shared expert, if there is one. */
void decoder_experts(struct binder *b, struct model *m, const struct decoder *d, uint32_t layer);
/* Adds experts, or the dense FFN if the model has no experts or the layer is one of the leading
 * dense layers. */
void decoder_mlp(struct binder *b, struct model *m, const struct decoder *d, const struct layer *l);
/* Binds a whole model in which every layer is attention followed by an FFN, or by experts. */
void decoder_bind(struct binder *b, struct model *m, const struct decoder *d);
