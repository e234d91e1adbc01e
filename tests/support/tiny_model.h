#pragma once

/*
 * tiny_model - random models of our architectures in any tensor format, small enough to be made by
 * a test. The weights have a sane scale, so that logits spread and different tokens are sampled. Of
 * the hybrid architectures every second layer is a gated delta net, of gpt-oss the first and every
 * second has a window of 8 keys. A block of multi-token prediction says what a model would whose
 * layers add nothing: the less they add, the more of its drafts are right. So does the assistant of
 * a gemma4 model: "gemma4-assistant" with the numbers of the model, whose width is half of the
 * model's. Embeddings of that model are zeros in the second half; its even layers have a window of
 * 24 keys; with n_expert a layer has those beside its FFN. NVFP4 comes with a scale for each
 * matrix, but that of the embedding. Encoders (bert, nomic-bert, jina-bert-v2) come with a
 * vocabulary: [PAD] [UNK] [CLS] [SEP] [MASK], then by id 5 + c - 33 the words of one ASCII
 * character c, by 99 + i the letters and digits inside words, then "w135", "w136" and so on.
 * "dflash" is the block drafter of a model with the same numbers, two layers and an untied
 * embedding, whose last token it takes as the mask: blocks of 4 tokens, the first draft of which is
 * what a model says whose layers add nothing; n_embd must be n_head_kv heads of head_dim.
 */

#include "tests/support/gguf_writer.h"

struct tiny_model {                                    /* 0: the default in brackets */
    const char *arch;                                  /* "llama" */
    enum tensor_type type;                             /* of the matrices; F32 is 0 */
    enum tensor_type up;                               /* of the ups of dense FFNs; F32: type */
    uint32_t n_layer, n_embd, n_ff, n_vocab;           /* 2, 256, 256, 300 */
    uint32_t n_head, n_head_kv, head_dim, max_context; /* 4, 2, 64, 512 */
    uint32_t n_expert, n_expert_used; /* 0: a dense FFN; of architectures that have none: 7, 3 */
    uint32_t n_blocks; /* of multi-token prediction: hybrid architectures and glm4moe */
    uint32_t n_same;   /* so many of the blocks have the weights of the first, which is one; 0: 1 */
    bool blocks_alone; /* without the layers: the file that belongs to one of no blocks */
    float loud;        /* what layers add, times this; 1 */
    bool tied;
    uint64_t seed;
    uint32_t window, n_kv_full; /* of gemma4: 24; key heads of layers without one: 1 */
    uint32_t markov;            /* of dflash: rank of a Markov head whose weights are 0; 0: none */
    bool anchored;              /* whose first draft is the anchor's */
    uint32_t pooling, n_labels; /* of an encoder: 0: no pooling type, no classifier */
    const char *leave_out;      /* a tensor or key that is not written */
    bool decoded;               /* NVFP4: the values in F32 instead, but those of the embedding */
};

/* The file in @w, to be changed or saved by the caller with gw_finish() or gw_save(). */
void tiny_model_build(const struct tiny_model *t, struct gguf_writer *w);
void tiny_model_save(const struct tiny_model *t, const char *path);
/* Saves it under a new name in the temporary folder, written to @path. */
void tiny_model_temp(const struct tiny_model *t, char path[64]);
/* The same for a file that was built. */
void tiny_model_temp_of(struct gguf_writer *w, char path[64]);
