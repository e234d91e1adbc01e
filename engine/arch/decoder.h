#pragma once

/*
 * decoder - builds the ops of decoder-only transformers with RoPE, RMS norms and gated FFNs, dense
 * or with experts. Tensors have the names of llama.cpp. An architecture that differs only in biases
 * and norms is a row of the table in arch.c; one with layers of other kinds has a bind function of
 * its own, which uses the functions here. Errors are kept in the binder.
 */

#include "engine/bind/bind.h"
#include "engine/model.h"

/* Options of decoder layers: the differences from layers of seven matrices and two norms. */
struct decoder {
    enum bind_need qkv_bias, out_bias, ffn_bias, qk_norm, sinks, expert_bias;
    /* norms before branches and before the logits are layer norms, with biases or without */
    bool layer_norm;
    enum bind_need norm_bias;
    /* logits have biases */
    enum bind_need output_bias;
    /* these norms have no weights */
    bool plain_norm;
    /* attention and the FFN read the same norm, attn_norm, and both are added to x */
    bool parallel;
    /* parallel: the experts and the shared expert count one half each */
    bool halves;
    /* window.h: dense first layers have rotary positions, too */
    bool lead_rope;
    /* layers have no norms before attention and the FFN */
    bool unnormed;
    /* qwen4exp.h: branches go to residual streams; no norm before logits */
    bool streams;
    /* name of the norm before the FFN; NULL: ffn_norm */
    const char *ffn_norm;
    /* the name of this norm does not end with .weight */
    bool bare_ffn_norm;
    /* names of the norms after attention and after the FFN; NULL: there are no such norms */
    const char *attn_post_norm, *ffn_post_norm;
    /* the names of these norms do not end with .weight */
    bool bare_post_norms;
    /* epsilon of the norms after branches; 0: rms_eps */
    float post_eps;
    enum glu glu;
    /* values have a norm without weights; a layer without attn_v uses attn_k */
    bool v_unit;
    /* window.h: size of the window if the file does not give it */
    uint32_t window;
    /* window.h: default of window_read()'s period */
    uint32_t window_period;
    /* models with this number of layers scale scores by 1 / sqrt(n_embd / n_head) */
    uint32_t wide_scores;
    /* layers with a window use the second set of RoPE frequencies */
    bool window_rope;
    /* the second set has the base of the first if the file has none */
    bool same_base;
    /* the embedding is multiplied by sqrt(n_embd) */
    bool scaled_embedding;
    /* window.h: rows of a picture see each other, in all layers */
    bool two_way;
    /* the embedding gets a norm without weights */
    bool unit_embedding;
    /* logits are multiplied by logit_scale, before the cap */
    bool scaled_logits;
    /* the norms of q and k are over all heads together */
    bool norm_all;
    /* the norms of q and k have weights for each head */
    bool norm_each;
    /* q and k have their norms after RoPE */
    bool norm_late;
    /* layers without a window have no rotary positions, if other layers have a window */
    bool window_only_rope;
    /* the last of this many layers has no rotary positions; 0: all have */
    uint32_t plain_period;
    /* attn_qkv has the rows of q, k and v: in all files, or in layers that have this tensor */
    bool fused_qkv, may_fuse_qkv;
    /* ffn_up has the rows of gate and up */
    bool fused_ffn;
    /* attn_q has gates too: o is multiplied by their sigmoid */
    bool gated;
    /* attn_gate: o is multiplied by softplus(attn_gate y) */
    bool soft_gate;
    /* attn_gate: o is multiplied by sigmoid(attn_gate y) */
    bool sigmoid_gate;
    /* FFNs have no gate matrix: GLU_RELU, or in an encoder gelu(up) */
    bool no_gate;
    /* encoder.h: the model has learned position embeddings */
    bool positions;
    /* encoder.h: scores have ALiBi */
    bool alibi;
    /* encoder.h: name of the norm of the embedding; NULL: none, in BERT token_embd_norm */
    const char *embed_norm;
    /* encoder.h: the first layer's attention has no norm, because the embedding has one */
    bool lead_unnormed;
    /* encoder.h: of window_period layers the first one has no window, not the last one */
    bool lead_whole;
    /* lfm2.h: attention has a window if the file gives its size */
    bool windowed;
    enum bind_need pick_bias;
    /* name of the norm before the logits; NULL: output_norm */
    const char *final_norm;
    /* layers run several times if the file says so, each time with keys of their own */
    bool loops;
    /* hybrid.h: delta_shape.tiled */
    bool tiled;
};

/* Properties of one layer that differ between layers. */
struct layer {
    /* number in the file */
    uint32_t index;
    struct heads heads;
    struct attn attn;
    /* index into model_shape.rope */
    uint8_t rope;
    /* width of the dense FFN */
    uint32_t n_ff;
    /* factor of attention's output, in place of that of all branches; 0: none */
    float gain;
    /* keys of an earlier layer that it reads; NULL: its own */
    const struct kv_layer *kv;
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
/* Adds a layer: attention, then decoder_mlp(); with @parallel both from the same norm. */
void decoder_block(struct binder *b, struct model *m, const struct decoder *d,
                   const struct layer *l);
/* Adds what layer @l has in place of attention. */
typedef void decoder_mixer(struct binder *b, struct model *m, uint32_t l);
/* Adds the FFN, or the experts, of layer @l. */
typedef void decoder_feed(struct binder *b, struct model *m, const struct decoder *d,
                          const struct layer *l);
/* Binds a whole model in which layers without heads of keys have @mixer in place of attention;
 * @feed follows in each. The caller has read the sizes of the mixer. */
void decoder_hybrid(struct binder *b, struct model *m, const struct decoder *d,
                    decoder_mixer *mixer, decoder_feed *feed);
/* Binds a whole model in which every layer is attention followed by an FFN, or by experts. */
void decoder_bind(struct binder *b, struct model *m, const struct decoder *d);
