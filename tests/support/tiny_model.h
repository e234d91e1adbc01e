#pragma once

/*
 * tiny_model - makes random models of weft's architectures in any tensor format, small enough for a
 * test. The weights have a sane scale, so that logits spread and different tokens are sampled. Of
 * the hybrid architectures every second layer is a gated delta net, of gpt-oss the first and every
 * second has a window of 8 keys; deepseek2 has one key head of 80 values, 16 of them with RoPE; of
 * llama4 every second layer has experts, and three of four layers see chunks of 24 keys; of gemma3n
 * the first and third layer have a window of 24 keys, and the last two read the keys of the first
 * two. A block of multi-token prediction predicts what a model would whose layers add nothing: the
 * less they add, the more of its drafts are right. So does the assistant of a gemma4 model:
 * "gemma4-assistant" with the numbers of the model, whose width is half of the model's. Embeddings
 * of that model are zeros in the second half; its even layers have a window of 24 keys; with
 * n_expert a layer has those beside its FFN. NVFP4 comes with a scale for each matrix, but that of
 * the embedding. Encoders (names with bert, gemma-embedding) come with a vocabulary: [PAD] [UNK]
 * [CLS] [SEP] [MASK], then by id 5 + c - 33 the words of one ASCII character c, by 99 + i the
 * letters and digits inside words, then "w135", "w136" and so on. "dflash" is the block drafter of
 * a model with the same numbers, two layers and an untied embedding, whose last token it takes as
 * the mask: blocks of 4 tokens, the first draft of which is the prediction of a model whose layers
 * add nothing; n_embd must be n_head_kv heads of head_dim.
 */

#include "tests/support/gguf_writer.h"

struct tiny_model { /* 0: the default in the comment */
    /* "llama" */
    const char *arch;
    /* type of the matrices; F32 is 0 */
    enum tensor_type type;
    /* of the ups of dense FFNs; F32: type */
    enum tensor_type up;
    /* 2, 256, 256, 300 */
    uint32_t n_layer, n_embd, n_ff, n_vocab;
    /* 4, 2, 64, 512 */
    uint32_t n_head, n_head_kv, head_dim, max_context;
    /* 0: a dense FFN; for architectures without one: 7, 3 */
    uint32_t n_expert, n_expert_used;
    /* blocks of multi-token prediction: hybrid architectures and glm4moe */
    uint32_t n_blocks;
    /* number of blocks with the weights of the first; 0: 1 */
    uint32_t n_same;
    /* writes only the blocks: the file that belongs to a model without blocks */
    bool blocks_alone;
    /* factor of what layers add; 0: 1 */
    float loud;
    bool tied;
    uint64_t seed;
    /* of gemma4: 24; key heads of layers without one: 1 */
    uint32_t window, n_kv_full;
    /* of dflash: rank of a Markov head whose weights are 0; 0: none */
    uint32_t markov;
    /* whose first draft is the anchor's */
    bool anchored;
    /* pooling and labels of an encoder; 0: no pooling type, no classifier */
    uint32_t pooling, n_labels;
    /* tensor or key that is left out */
    const char *leave_out;
    /* NVFP4: writes the values in F32 instead, except those of the embedding */
    bool decoded;
};

/* Builds the file in @w, which the caller may change, and saves with gw_finish() or gw_save(). */
void tiny_model_build(const struct tiny_model *t, struct gguf_writer *w);
void tiny_model_save(const struct tiny_model *t, const char *path);
/* Saves the model under a new name in the temporary folder; the path is written to @path. */
void tiny_model_temp(const struct tiny_model *t, char path[64]);
/* Does the same for a file that was built. */
void tiny_model_temp_of(struct gguf_writer *w, char path[64]);
