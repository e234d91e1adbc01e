#pragma once

/*
 * shape - the dimensions of a model that its ops and the backends need, and functions that derive
 * sizes of pages and states from them. Private to engine/.
 */

#include "base/util.h"
#include "engine/types.h"

#define MODEL_LAYERS_MAX 512
#define MODEL_EXPERTS_MAX 1024
#define OP_MATRICES 4 /* matrices of an op, at most */

/* Positions whose hidden states a slot keeps: those of a draft, the last known position, and the
 * position before it. */
#define ENGINE_KEPT (ENGINE_DRAFT_MAX + 2u)

/* Passes of a model, each a list of ops: the model itself; PASS_DRAFT + k, draft block k, of at
 * most MTP_BLOCKS; and the model with holes in place of the blocks' keys (arch/mtp.c). */
enum { MTP_BLOCKS = 8, PASS_MODEL = 0, PASS_DRAFT, PASS_HOLES = PASS_DRAFT + MTP_BLOCKS, PASSES };

struct model_op; /* op.h */

enum rope_type { ROPE_NORM, ROPE_NEOX }; /* pairs (2i, 2i+1) or (i, i + n_rot/2) */

/* Sets of rotary frequencies: 0 for most layers, 1 for layers of another kind, ROPE_DRAFT for a
 * block drafter. */
enum { ROPE_DRAFT = 2, ROPE_SETS };

/* Rotary positions: the angle of pair i at position p is p * freq[i]; cos and sin are multiplied by
 * mscale. Scaling (linear, yarn, a tensor of divisors) is folded in by engine/rope.c, in double by
 * mathx. */
struct rope_set {
    /* values of a head with rotary positions; 0: none */
    uint32_t n_rot;
    /* [n_rot / 2] */
    const double *freq;
    /* [n_rot / 2] M-RoPE: the position (ROPE_TIME, ...) by which each pair turns. NULL: every pair
     * turns by ROPE_TIME. */
    const uint8_t *axis;
    /* of pictures; PLACES_TEXT without @axis */
    enum picture_places places;
    float mscale;
};

/* Functions from a router's logits l to weights: softmax over all experts, sigmoid of each, or
 * sqrt(ln(1 + e^l)). */
enum gating { GATING_SOFTMAX, GATING_SIGMOID, GATING_ROOT, GATING_MASKED };

/*
 * Recurrent layers keep a state of fixed size for each sequence instead of pages. All recurrent
 * layers of a model are of one kind. Each begins with products of the input (STATE_IN) and a
 * convolution over the last @kernel tokens of the first product. The state has the convolution's
 * input of the last kernel - 1 tokens, oldest first, then the data of the kind, in an order that
 * the backend chooses. n_layer 0: the model has none.
 */
struct state_shape {
    /* number of recurrent layers */
    uint32_t n_layer;
    /* taps: 2 to 8 */
    uint32_t kernel;
    /* values of a row in each product, the most of any layer; n_in[0]: the convolution's channels,
     * a multiple of 16 */
    uint32_t n_in[OP_MATRICES];
    /* values of a row between the two products of STATE_IN with @low; 0: there are none */
    uint32_t n_low;
    /* values of the output, ACT_D */
    uint32_t n_out;
    /* size of a sequence's state in one layer */
    uint64_t n_floats;
    /* floats of a sequence's state after those of the layers: data of NGRAM, INDEX,
     * POOL_KEYS, COMPRESS, and of drafting blocks CSA_KEYS */
    uint64_t n_more;
};

/* Residual streams (hyper-connections, Zhu et al. 2024): every row has @n residual vectors instead
 * of one. n 0: the model has none. */
struct stream_shape {
    /* n_low: rank of the matrices of a MIX, or outputs of an HC_IN */
    uint32_t n, n_low;
    /* HC_IN: Sinkhorn iterations (sinkhorn.h); 0: the model uses MIX */
    uint32_t rounds;
    /* HC_IN: added to its weights and sums */
    float eps;
};

/* Sparse attention: an indexer scores blocks of @ratio positions, each by one key of @dim values,
 * and a row attends to the best blocks. n_layer 0: the model has none. */
struct sparse_shape {
    uint32_t n_layer;
    /* n_head: queries of the indexer per row; dim: a multiple of 16 */
    uint32_t n_head, dim;
    /* positions of a key; a power of two up to 16, which divides a page */
    uint32_t ratio;
    /* HEAD_INDEX: positions of a block, a multiple of 32; 0: a block has one key, and the heads of
     * the indexer choose together */
    uint32_t block;
    /* most blocks that a row sees; without @block it also sees the positions after the last
     * complete block */
    uint32_t n_block;
    /* HEAD_INDEX: the last blocks, which a row always sees, its own included; they count among
     * n_block */
    uint32_t n_local;
    /* epsilon of the layer norm of POOL_KEYS; 0: the model has INDEX */
    float eps;
};

/*
 * Attention to compressed keys (DeepSeek-V4). All heads share one key per position, which is also
 * the value. A row sees the keys of the last @window positions, which are in the state of its
 * sequence (row p % window of the layer's part), and one compressed key for each earlier block of
 * positions, which lies in the page of the block's last position. A layer has short blocks, long
 * blocks or none; of short blocks a row sees those that an indexer picks. The last n_rot values of
 * a key are rotary. window 0: the model has none.
 */
struct compressed_shape {
    /* q_rank: rank of the projection of queries */
    uint32_t window, q_rank;
    /* groups of heads whose outputs have a projection each (CSA_OUT) */
    uint32_t n_group;
    /* n_index: queries of the indexer per row; index_dim: a multiple of 16 */
    uint32_t n_index, index_dim;
    /* most short blocks that a row sees */
    uint32_t n_block;
    /* values that the keys of one short and of one long block take in all layers */
    uint64_t n_short, n_long;
};

enum { BLOCK_SHORT = 4, BLOCK_LONG = 128 }; /* positions of a block */

/* Most tokens of an n-gram; most rows of the table that a token reads; floats that the last tokens
 * take in a state. */
enum { NGRAM_TOKENS = 4, NGRAM_HEADS = 64, NGRAM_STATE = 16 };

/* A table of n-gram embeddings: for each length from 2 to @n, a token reads @n_head rows of the
 * table, found by hashes of the token and of those before it. n 0: the model has none. */
struct ngram_shape {
    /* width: values of a row */
    uint32_t n, n_head, width;
    /* taps of the convolution, 2 to 8, dilated by @n tokens */
    uint32_t kernel;
    /* hashed in place of tokens before the start of the sequence or before an end token */
    int32_t eos;
    uint64_t factor[NGRAM_TOKENS];
    /* first row and number of rows of each head's part of the table */
    uint64_t first[NGRAM_HEADS], size[NGRAM_HEADS];
};

/* Gated delta nets (Yang et al. 2024, "Gated Delta Networks"). The convolution's channels are the
 * queries and keys of the key heads, then the values of the value heads. A state has a matrix [dim
 * keys][dim values] for each value head. */
struct delta_shape {
    /* n_value_head is a multiple of n_key_head */
    uint32_t n_key_head, n_value_head;
    /* values of a key and of a value of one head, a multiple of 16 */
    uint32_t dim;
    /* value head h uses key head h % n_key_head; else h / (n_value_head / n_key_head) */
    bool tiled;
    /* KDA: each element of a key has a decay */
    bool elementwise;
    /* KDA: lower bound of the logarithm of a decay, negative; 0: there is none */
    float lower;
    /* added under the root of the lengths of queries and keys */
    float eps;
};

/* Mamba-2 (Dao and Gu 2024). The convolution's channels are x of all heads, then B and C of all
 * groups. A state has a matrix [dim][n_state] for each head. */
struct mamba_shape {
    /* dim: a multiple of 16 */
    uint32_t n_head, dim;
    /* groups of successive heads that share B and C; divides n_head */
    uint32_t n_group;
    /* a multiple of 4 */
    uint32_t n_state;
};

enum { SCAN_PARTS = 3 };

/* Mamba-1 (Gu and Dao 2023). The convolution's channels are x. A state has a matrix
 * [channels][n_state]. Where steps are those of heads, mamba_shape has the heads, in one group. */
struct scan_shape {
    /* n_rank: values of t; n_state: a multiple of 4; 0: the model has none */
    uint32_t n_rank, n_state;
    /* values of t, B and C in the order of the products' rows */
    uint32_t n_part[SCAN_PARTS];
};

/* Multi-head latent attention (MLA): all heads share one key of rank + n_rot values, the first
 * @rank of which are also the value. rank 0: the model has none. */
struct mla_shape {
    /* q_rank: rank of the projection of queries; 0: queries are projected directly */
    uint32_t rank, q_rank;
    /* n_nope: values of a head's query without RoPE; n_value: values of a head's output */
    uint32_t n_nope, n_value;
};

/* A block drafter (arch/dflash.c), which drafts a block of tokens in one pass. Convolutions over
 * the block have @kernel dynamic taps, shared by groups of @group channels. A selector of rank
 * @rank chooses among the @top_k best tokens of each position; top_k 0: rank is that of CHAIN. All
 * 0: the drafter has none of these. */
struct block_shape {
    uint32_t kernel, group, rank, top_k;
};

/* Dimensions of a model, as the ops need them. engine/arch has validated them. */
struct model_shape {
    uint32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_vocab, max_context;
    /* heads.value of most layers */
    uint32_t value_dim;
    /* width of the widest dense FFN; 0: all layers have experts */
    uint32_t n_ff;
    /* some dense FFN has op_ffn.sparsity */
    bool sparse_gates;
    float rms_eps, attn_scale;
    /* norms of inputs (model_op.norm) are layer norms: (x - mean) / sqrt(variance + eps) * norm +
     * norm_bias */
    bool layer_norm;
    enum rope_type rope_type;
    /* indexed by model_op.rope */
    struct rope_set rope[ROPE_SETS];
    /* n_head, n_head_kv and head_dim are those of most layers; these are the largest values of any
     * layer: values of a row's queries (q) and keys (kv), values of a head, query heads per key
     * head (group), key heads (n_kv). */
    struct {
        uint32_t q, kv, head, group, n_kv;
    } widest;
    /* For each class of pages: the layers that have pages, and the values of keys and values that a
     * token takes in all of them. */
    uint32_t n_kv_layer[KV_CLASSES];
    uint64_t n_kv_values[KV_CLASSES];
    /* keys that a row reads in layers of KV_WINDOW: the largest window of any of them */
    uint32_t window;
    /* Mixture of experts: each row picks n_expert_used of n_expert FFNs of width n_ff_expert; both
     * are the largest of any layer. n_expert 0: FFNs are dense. */
    uint32_t n_expert, n_expert_used, n_ff_expert;
    /* width of the latent space in which experts compute; 0: none */
    uint32_t n_latent;
    /* factor of the sum over the picked experts */
    float expert_scale;
    /* function from a router's logits to weights */
    enum gating gating;
    /* weights of picked experts are not divided by their sum */
    bool unnormed;
    /* Groups of experts, and the number of best groups from which experts are picked; 0: no
     * groups. */
    uint32_t n_expert_group, n_group_used;
    /* width of the shared expert, which every row uses; 0: none */
    uint32_t n_ff_shared;
    /* Experts that are in host memory beside a device and are computed there: one bit per expert,
     * [n_layer][host_words()]. NULL: none. fetches: the device computes them, too, and copies their
     * weights when they are picked; host memory then has all experts of such layers, and a bit says
     * that the device lacks the expert at the start. */
    const uint32_t *host_experts;
    bool fetches;
    /* model without experts: the number of last layers whose FFNs the host computes */
    uint32_t n_host_ffn;
    /* bytes of these experts or FFNs in host memory */
    uint64_t host_bytes;
    /* width of a layer's part of LAYER_INPUT; 0: the model has none */
    uint32_t n_layer_input;
    /* values of a picture's row: n_embd, and n_embd more for each DEEP; 0: the model takes no
     * pictures */
    uint32_t n_picture;
    /* Bytes of a device's memory that the image encoder takes; 0: the host computes it, or
     * there is none. */
    uint64_t picture_weights, picture_buffers;
    /* some op has attn.two_way */
    bool two_way;
    /* attention is bidirectional over whole sequences, and there are no logits */
    bool encoder;
    /* draft passes: engine_info.draft_passes */
    uint8_t drafts;
    /* a hidden state is all residual streams (hidden_width()) */
    bool keeps_streams;
    /* draft passes have no keys of their own: engine_info.borrows */
    bool borrows;
    /* number of TAP ops; 0: none */
    uint32_t n_taps;
    /* as in engine_info */
    uint32_t n_block, first_draft;
    int32_t mask_token;
    struct block_shape block;
    struct state_shape state;
    struct delta_shape delta;
    struct mamba_shape mamba;
    struct scan_shape scan;
    struct mla_shape mla;
    struct stream_shape stream;
    struct sparse_shape sparse;
    struct compressed_shape compressed;
    struct ngram_shape ngram;
    /* First layer of each device if layers are divided among devices, then n_layer. All 0: they are
     * not divided. */
    uint32_t cut[ENGINE_DEVICES + 1];
    /* [n_ops] the ops of the model */
    const struct model_op *op;
    uint32_t n_ops;
};

/* Returns the bytes of @n cached values; @n must be a multiple of the format's block. */
static inline uint64_t kv_bytes(enum engine_kv_type type, uint64_t n) {
    return n / kv_types[type].block * kv_types[type].block_bytes;
}

/* Returns the bytes of @n cached numbers, half of which are keys and half values. */
static inline uint64_t kv_bytes_both(struct kv_formats kv, uint64_t n) {
    return kv_bytes(kv.k, n / 2) + kv_bytes(kv.v, n / 2);
}

/* Returns the number of floats of a sequence's state. */
static inline uint64_t state_floats(const struct state_shape *s) {
    return s->n_layer * s->n_floats + s->n_more;
}

/* Returns the positions of a block of sparse attention. */
static inline uint32_t sparse_block(const struct sparse_shape *p) {
    if (p->block)
        return p->block;
    return p->ratio;
}

/* Returns the number of sets of keys that a row sees in a layer: one for each head of HEAD_INDEX,
 * else one. */
static inline uint32_t sparse_sets(const struct sparse_shape *p) {
    if (p->block)
        return p->n_head;
    return 1;
}

/* Returns the bytes that the indexer's keys of one layer take in a page: f16, one key for each
 * @ratio positions. They follow the keys and values of all layers. */
static inline uint64_t index_bytes(const struct model_shape *s, uint32_t page_tokens) {
    const struct sparse_shape *p = &s->sparse;

    if (!p->n_layer)
        return 0;
    return (uint64_t)page_tokens / p->ratio * p->dim * 2;
}

/* Returns the bytes of one value of a compressed key: f16, or f32 if keys are f32. */
static inline uint32_t compressed_value(struct kv_formats kv) {
    if (kv.k == ENGINE_KV_F32)
        return 4;
    return 2;
}

/* Returns the bytes of a page of class @cls. */
static inline uint64_t page_size(const struct model_shape *s, uint8_t cls, struct kv_formats kv,
                                 uint32_t page_tokens) {
    uint64_t index = 0;
    uint64_t compressed = s->compressed.n_short * (page_tokens / BLOCK_SHORT) +
                          s->compressed.n_long * ((page_tokens + BLOCK_LONG - 1) / BLOCK_LONG);

    if (cls == KV_GLOBAL) {
        index = s->sparse.n_layer * index_bytes(s, page_tokens);
        index += compressed * compressed_value(kv);
    }
    return kv_bytes_both(kv, s->n_kv_values[cls] * page_tokens) + index;
}

/*
 * Rotation of keys and values before they are quantized. A head is divided into runs, and each run
 * is multiplied by a Hadamard matrix: an outlier, which would cost its neighbours their precision,
 * is spread over the run. Queries are multiplied like keys, so that scores do not change. The
 * matrix is its own inverse: multiplying the output of attention by it undoes the rotation of the
 * values.
 *
 * The matrix of size @n is H(1) = 1, H(2n) = [H(n) H(n); H(n) -H(n)] / sqrt(2).
 */
/* lengths of the runs of a key and of a value, in values; 0: not multiplied */
struct hadamard_runs {
    uint32_t k, v;
};

/* Returns the largest power of two up to @most that divides @dim, if @type rounds to blocks. */
static inline uint32_t hadamard_run(enum engine_kv_type type, uint32_t dim, uint32_t most) {
    uint32_t run = 0;

    if (kv_shares_scale(type))
        run = dim & (~dim + 1);
    return MIN(run, most);
}

/* Returns the runs for heads of @dim values. A latent key is not multiplied: it is a value as well,
 * and its parts have different scales. */
static inline struct hadamard_runs hadamard_runs(const struct model_shape *s, struct kv_formats kv,
                                                 uint32_t dim) {
    if (s->mla.rank)
        return (struct hadamard_runs){0, 0};
    return (struct hadamard_runs){hadamard_run(kv.k, dim, 512), hadamard_run(kv.v, dim, 64)};
}

/* Returns the number of words of a layer in model_shape.host_experts. */
static inline uint32_t host_words(const struct model_shape *s) {
    return (s->n_expert + 31) / 32;
}

/* Returns true if @expert of @layer is in host memory. Draft blocks, which are numbered after the
 * layers, are never there. */
static inline bool expert_is_hosts(const struct model_shape *s, uint32_t layer, uint32_t expert) {
    return s->host_experts && layer < s->n_layer &&
           (s->host_experts[layer * host_words(s) + expert / 32] >> expert % 32 & 1);
}

/* Returns how many experts of @layer are in host memory and not on the device. */
static inline uint32_t n_host_experts(const struct model_shape *s, uint32_t layer) {
    uint32_t n = 0;

    for (uint32_t i = 0; s->host_experts && layer < s->n_layer && i < host_words(s); i++)
        n += (uint32_t)__builtin_popcount(s->host_experts[layer * host_words(s) + i]);
    return n;
}

/* Returns true if the host computes the dense FFN of @layer. */
static inline bool ffn_is_hosts(const struct model_shape *s, uint32_t layer) {
    return layer < s->n_layer && layer + s->n_host_ffn >= s->n_layer;
}

/* Returns the index of the device that has @layer; 0 if layers are not divided. */
static inline uint32_t device_of_layer(const struct model_shape *s, uint32_t layer) {
    uint32_t i = 0;

    while (i + 1 < ENGINE_DEVICES && s->cut[i + 1] && layer >= s->cut[i + 1] &&
           s->cut[i + 1] < s->n_layer)
        i++;
    return i;
}

/* Returns true if the host computes a part of the model beside a device. */
static inline bool has_host_part(const struct model_shape *s) {
    return (s->host_experts && !s->fetches) || s->n_host_ffn;
}
