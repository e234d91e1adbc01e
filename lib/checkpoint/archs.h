#pragma once

/*
 * archs - the table of architectures of checkpoints: how Hugging Face's names of tensors and keys
 * of config.json map to those of GGUF, to which the engine's table (engine/arch/arch.c) belongs.
 */

#include <stdbool.h>
#include <stdint.h>

/* Differences between a tensor of a checkpoint and that of a GGUF file. */
enum name_how {
    /* a matrix in place; a vector as F32 */
    NAME_PLAIN,
    /* rows of q or k, in the order of struct tensor.interleave if row.permuted, and of
     * struct tensor.halved if row.halved */
    NAME_ROTATED,
    /* F32, without dimensions of 1 */
    NAME_FLOATS,
    /* F32; plus one if row.gains_minus_one */
    NAME_GAIN,
    /* F32: -e^x */
    NAME_NEG_EXP,
    /* F32: a value for each head of Mamba-2, as rows of one value; -e^x of these */
    NAME_HEADS,
    NAME_HEADS_NEG_EXP,
    /* F32: a row for each group of heads of Mamba-2 */
    NAME_GROUPS,
    /* a matrix of one expert, in place */
    NAME_EXPERT,
    /* tensors of several, which GGUF has apart (layouts.c) */
    NAME_GATE_UP,
    NAME_SHARED_GATE_UP,
    NAME_QKVZ,
    NAME_KV_B,
    /* blocks of MXFP4, whose scales are a tensor beside them */
    NAME_BLOCKS_GATE_UP,
    NAME_BLOCKS_DOWN,
    /* matrices of all experts by columns, of which those of gate and up take turns */
    NAME_TURNED_GATE_UP,
    NAME_TURNED_DOWN,
    /* F32: values of the gate and of the up projection in turns */
    NAME_GATE_UP_BIAS,
    /* kernels of two frames, which GGUF has apart (vision.c) */
    NAME_FRAMES,
    /* kernels whose colours are behind the pixels (vision.c) */
    NAME_PIXELS,
    /* F32: the table of positions without its unused rows */
    NAME_POSITIONS,
    /* in place if the folder has a classifier, which reads it; else left out */
    NAME_POOLER,
    /* nothing that a GGUF file has */
    NAME_LEFT_OUT,
};

/* A pattern of names: '#' stands for the number of a layer, '@' for that of an expert. */
struct arch_name {
    const char *from, *to;
    enum name_how how;
};

enum key_kind { KEY_U32, KEY_F32, KEY_BOOL };

/* A key of config.json, of which the first that is there counts (blanks separate them), and that of
 * GGUF, without its architecture. */
struct arch_key {
    const char *from, *to;
    enum key_kind kind;
    bool must;
};

/* A value that transformers assumes where config.json does not have the key. */
struct arch_default {
    const char *key;
    double value;
};

struct arch_row {
    /* of the text model */
    const char *model_type;
    /* of draft models, before a row of the same type for models: their name in `architectures`,
     * which decides; they need no tokenizer of their own */
    const char *drafter;
    /* general.architecture */
    const char *arch;
    /* lists end with an empty entry; NULL: none. Names are searched before the common ones */
    const struct arch_name *names;
    const struct arch_key *keys;
    const struct arch_default *defaults;
    /* GGUF has the rows of q and k in RoPE's order of neighbours */
    bool permuted;
    /* RoPE rotates neighbours, and GGUF has the rows of q and k as if it rotated halves */
    bool halved;
    /* norms are stored without the one */
    bool gains_minus_one;
    /* the engine always divides experts' weights by their sum */
    bool sums_picks;
    /* the engine never divides experts' weights by their sum */
    bool plain_picks;
    /* every layer of this number has no rotary positions; 0: all have them */
    uint32_t plain_period;
    /* latent attention: keys and values are made of one vector */
    bool latent;
    /* layers of delta nets among layers with attention */
    bool hybrid;
    /* value heads of delta nets lie beside those of the same key head */
    bool grouped_heads;
    /* layers without attention have 0 key heads in the keys */
    bool by_layer_kv;
    /* a block is Mamba-2, attention or an FFN, which a pattern says */
    bool blocks;
    /* of models without experts, beside a row of the same type for those with experts */
    bool dense;
    /* heads of layers with a window have another size and number than those of the others */
    bool two_heads;
    /* the width of the FFN is computed of the one in config.json */
    bool adjusts_ff;
    /* layer_types says which layers have a window */
    bool window_pattern;
    /* blocks of multi-token prediction, which follow the layers, are kept */
    bool mtp;
    /* an encoder of texts: rows see their whole text, and there are no logits */
    bool encoder;
    /* of models whose rows see what follows, before a row of the same type for decoders */
    bool two_way;
    /* positions have a table, and nothing rotates */
    bool learned_positions;
    /* the table begins with rows that no token has, up to that of the padding */
    bool padded_positions;
    /* reads the outputs of some layers of the model for which it drafts */
    bool taps;
    /* the one activation that the engine computes, by its names in config.json; NULL: not
     * checked */
    const char *activation;
    /* expert_gating_func; 0: not written */
    uint32_t gating;
};

/* Returns the row of @model_type, with or without @experts and rows that see what follows
 * (@two_way) where that makes a difference, or of a draft model if @architecture (NULL: none) is
 * one; NULL: unknown. */
const struct arch_row *arch_find(const char *model_type, const char *architecture, bool experts,
                                 bool two_way);
/* Writes the known types, separated by commas. */
void arch_list(char *out, unsigned size);
extern const struct arch_name arch_names[]; /* names that most architectures have */
extern const struct arch_key arch_keys[];   /* keys that most architectures have */
