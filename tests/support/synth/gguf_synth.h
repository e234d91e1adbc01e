#pragma once

/*
 * gguf_synth - private header of `weft-synth`: the shape of a model, the list of its tensors,
 * its vocabulary.
 */

#include <stdbool.h>

#include "base/err.h"
#include "base/gguf.h"
#include "tests/support/synth/gguf_write.h"
#include "vision/projector.h"

/* Architectures; hybrid ones are the last. */
enum synth_arch {
    SYNTH_LLAMA,
    SYNTH_MISTRAL3,
    /* drafts for a gemma4 model */
    SYNTH_ASSISTANT,
    SYNTH_GPT_OSS,
    SYNTH_GEMMA4,
    SYNTH_DEEPSEEK2,
    SYNTH_DEEPSEEK4,
    SYNTH_QWEN2,
    SYNTH_QWEN3,
    SYNTH_QWEN3MOE,
    SYNTH_MUSE,
    SYNTH_STEP35,
    SYNTH_MINIMAX,
    SYNTH_BAILING3,
    /* from here on hybrid: three of four layers are gated delta nets */
    SYNTH_QWEN3NEXT,
    SYNTH_QWEN35,
    SYNTH_QWEN35MOE,
    SYNTH_QWEN4EXP,
};

/* A shape that synth_shape_parse() has accepted: n_layer 1 to SYNTH_LAYERS_MAX, n_head a
 * multiple of n_kv, n_used <= n_expert. */
struct synth_shape {
    enum synth_arch arch;
    uint32_t n_layer, n_embd, n_head, n_kv, head_dim, n_ff, n_vocab, context, tied;
    double theta, eps;
    /* n_expert 0: a dense FFN; else n_ff is that of an expert */
    uint32_t n_expert, n_used;
    /* Width of the expert of all rows; of the dense FFN of the first n_lead layers (deepseek2), or
     * of the one beside the experts (gemma4). */
    uint32_t n_shared, n_dense, n_lead;
    /* Hybrid models: heads of the delta nets and their size. */
    uint32_t n_key, n_value, n_state;
    /* values of a head that are rotated; 0: all */
    uint32_t n_rot;
    /* deepseek2, bailingmoe3: latent vectors of queries and of keys, values of a head; q_rank also
     * of deepseek4. */
    uint32_t q_rank, kv_rank, v_dim;
    /* Tokens that a layer with a window sees; the last of each @period layers has none. gemma4:
     * key heads and size of heads of layers with one. bailingmoe3: the last of each @period layers
     * has latent attention, the others delta nets whose heads have v_dim values. */
    uint32_t window, period, n_kv_window, window_dim;
    /* qwen4exp: residual streams and the rank of their mixes; heads and size of the indexer, and
     * the number of tokens that it chooses, in blocks of 4; rows that each of 16 hashes of a token
     * has in the table of n-grams. */
    uint32_t n_stream, n_low, n_index, index_dim, n_chosen, n_table;
    /* deepseek4, which has n_stream, n_index and index_dim, too, and chooses n_chosen blocks: parts
     * of attention's output, and values of each. deepseek2, bailingmoe3: groups of experts, of
     * which each token uses half; 0: none. */
    uint32_t n_group, out_rank;
    /* step35: heads of layers with a window */
    uint32_t n_head_window;
    /* YaRN: factor by which the original context is stretched; 0: none */
    uint32_t factor, original;
    /* Blocks of multi-token prediction, 0 or 1. A block predicts what a model would whose layers
     * add nothing. The layers add @loud (0: 1) times their normal values: the less, the more often
     * the block is right. */
    uint32_t n_mtp;
    double loud;
    /* gemma4-assistant: the width of the model for which it drafts. With the same seed and width it
     * predicts what the model would if its layers added nothing. */
    uint32_t n_embd_out;
};

#define SYNTH_LAYERS_MAX 256u
#define SYNTH_VOCAB_MIN 272u /* bytes and special tokens */
#define SYNTH_VOCAB_MAX 524288u

/* Three of four layers are gated delta nets. */
static inline bool synth_is_hybrid(const struct synth_shape *s) {
    return s->arch >= SYNTH_QWEN3NEXT;
}

/* Some layers, or all, have latent attention. */
static inline bool synth_is_latent(const struct synth_shape *s) {
    return s->arch == SYNTH_DEEPSEEK2 || s->arch == SYNTH_BAILING3;
}

/* A gemma4 model or its assistant. */
static inline bool synth_is_gemma4(const struct synth_shape *s) {
    return s->arch == SYNTH_GEMMA4 || s->arch == SYNTH_ASSISTANT;
}

/* Returns true if layer @l of a model with windows in some layers has one: in each period all
 * layers except the last, for step35 all except the first. */
static inline bool synth_in_window(const struct synth_shape *s, uint32_t l) {
    return (l + (s->arch != SYNTH_STEP35)) % s->period != 0;
}

/* Returns true if layer @l of bailingmoe3 has Kimi delta attention; its block has none. */
static inline bool synth_has_kda(const struct synth_shape *s, uint32_t l) {
    return l < s->n_layer && (l + 1) % s->period != 0;
}

/* First layers of deepseek4 whose experts follow from the token. */
enum { SYNTH_BY_TOKEN = 3 };

/* Returns the positions of a block of layer @l of deepseek4; 0: it has no blocks, as the layer that
 * drafts. */
static inline uint32_t synth_block(const struct synth_shape *s, uint32_t l) {
    return l < 2 || l >= s->n_layer ? 0 : l % 2 ? 128 : 4;
}

/* Returns the number of heads of queries of layer @l. */
static inline uint32_t synth_n_head(const struct synth_shape *s, uint32_t l) {
    return s->arch == SYNTH_STEP35 && synth_in_window(s, l) ? s->n_head_window : s->n_head;
}

const char *synth_arch_name(enum synth_arch arch); /* returns general.architecture */
/* Returns 0, or -EINVAL for an unknown name. */
int synth_arch_find(const char *name, enum synth_arch *out);

/* Parses "NAME", "key=value,..." or "NAME,key=value,...". @arch: by name, NULL for the shape's
 * own. */
int synth_shape_parse(struct synth_shape *out, const char *arch, const char *text, struct err *err);

/* Role of a tensor, which decides its format, mean and standard deviation. */
enum synth_role {
    ROLE_EMBED,
    ROLE_OUTPUT,
    /* attn_v, or attn_qkv of a delta net */
    ROLE_V,
    ROLE_DOWN,
    ROLE_MATRIX,
    ROLE_VECTOR,
    /* lets the first of two inputs pass, as far as it fits, and nothing of the other */
    ROLE_PASS,
    /* divisors of RoPE's frequencies: only the first quarter rotates */
    ROLE_DIVISORS,
    /* numbers of experts, different within a row; mean: number of experts */
    ROLE_PICKS,
};

/* A tensor and its content: normal numbers of this mean and deviation. */
struct synth_tensor {
    char name[64];
    enum synth_role role;
    uint32_t n_dims;
    uint64_t ne[4];
    const struct tensor_format *format;
    double mean, std;
};

/* Tensors of a file, in the order of its directory. */
struct synth_plan {
    struct synth_tensor *tensor;
    uint32_t n_tensors;
    /* general.file_type */
    uint32_t file_type;
};

/* @format: a tensor format's name, or the mix Q4_K_M, Q5_K_M or MXFP4_MOE. Returns 0, -EINVAL for
 * another one, or -ENOMEM. */
int synth_plan_new(struct synth_plan *out, const struct synth_shape *s, const char *format,
                   struct err *err);
void synth_plan_deinit(struct synth_plan *p);

/* A projector (mmproj) instead of a model. */
struct synth_projector {
    enum projector_kind kind;
    uint32_t n_layer, n_embd, n_head, n_ff, n_out, patch;
    /* patches of a side of a picture, or of the table of positions */
    uint32_t side;
    /* pixels of a tile's side (lfm2); 0: the key is left out */
    uint32_t tile;
    /* of layers without windows */
    uint32_t period;
    /* 1: products of gemma4v have bounds */
    uint32_t bounds;
    /* number of last layers with deepstack */
    uint32_t n_deep;
    /* 1: internvl has RMS norms, also of queries and keys, as the larger of its encoders; glm4v has
     * norms of queries and keys, and no positions, as GLM-OCR */
    uint32_t rms;
};

/* Parses like synth_shape_parse(), for a kind of vision/projector.h. */
int synth_projector_parse(struct synth_projector *out, const char *kind, const char *text,
                          struct err *err);
/* Makes a plan like synth_plan_new(). */
int synth_projector_plan(struct synth_plan *out, const struct synth_projector *s,
                         const char *format, struct err *err);
/* Writes the keys of a projector file; @name is its general.name. */
void synth_projector_keys(struct gguf_write *w, const struct synth_projector *s,
                          const struct synth_plan *p, const char *name);

/* Writes the keys "<arch>.*" and "general.*"; @name is the model's. */
void synth_keys_write(struct gguf_write *w, const struct synth_shape *s, const struct synth_plan *p,
                      const char *name);

/* Writes the tokenizer.* keys: a byte-level BPE vocabulary of @n_vocab tokens with a ChatML
 * template. */
int synth_vocab_write(struct gguf_write *w, const struct synth_shape *s, struct err *err);
/* Copies all tokenizer.* keys of @from; *n_vocab is the number of its tokens. */
int synth_vocab_copy(struct gguf_write *w, const struct gguf *from, struct err *err);
/* Counts the tokens of @from. 0 or -EINVAL with @err. */
int synth_vocab_count(const struct gguf *from, uint32_t *n_vocab, struct err *err);
