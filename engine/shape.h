#pragma once

/*
 * shape - the numbers of a model that its ops and their backends need, and what follows from them:
 * the sizes of pages and states, and which part the host computes. Private to engine/.
 */

#include "base/util.h"
#include "engine/types.h"

#define MODEL_LAYERS_MAX 512
#define MODEL_EXPERTS_MAX 1024
#define OP_MATRICES 4 /* most matrices of an op */

/* Positions of a slot whose hidden states are kept: those of a draft, the last known one, and the
 * one before it. */
#define ENGINE_KEPT (ENGINE_DRAFT_MAX + 2u)

/* Passes of a model: its own; PASS_DRAFT + k, that of block k, of at most MTP_BLOCKS; and its own
 * with holes. */
enum { MTP_BLOCKS = 8, PASS_MODEL = 0, PASS_DRAFT, PASS_HOLES = PASS_DRAFT + MTP_BLOCKS, PASSES };

struct model_op; /* op.h */

enum rope_type { ROPE_NORM, ROPE_NEOX }; /* pairs (2i, 2i+1) or (i, i + n_rot/2) */

/* Sets of rotary frequencies: of most layers, of layers of another kind, of a block drafter. */
enum { ROPE_DRAFT = 2, ROPE_SETS };

/* Rotary positions: the angle of pair i at position p is p * freq[i]; cos and sin are multiplied by
 * mscale. Scaling (linear, yarn, a tensor of divisors) is folded in by engine/rope.c, in double by
 * mathx. */
struct rope_set {
    uint32_t n_rot;     /* values of a head with rotary positions; 0: none */
    const double *freq; /* [n_rot / 2] */
    /* [n_rot / 2] by which position of a row a pair turns (ROPE_TIME, ...): M-RoPE. NULL: all by
     * the first. */
    const uint8_t *axis;
    float mscale;
};

/* Functions that turn a router's numbers into weights: softmax over all experts, or of each the
 * sigmoid, or sqrt(ln(1 + e^l)). */
enum gating { GATING_SOFTMAX, GATING_SIGMOID, GATING_ROOT };

/*
 * Recurrent layers: their memory of a sequence is a state of fixed size instead of pages. Those of
 * a model are of one kind; all begin with products of the input (STATE_IN) and a convolution over
 * the last @kernel tokens of the first of these. The state has kernel - 1 rows of the convolution's
 * input, the oldest first, then the data of the kind, in an order that the backend chooses. n_layer
 * 0: the model has none.
 */
struct state_shape {
    uint32_t n_layer;           /* number of the model's layers of this kind */
    uint32_t kernel;            /* taps: 2 to 8 */
    uint32_t n_in[OP_MATRICES]; /* values of a row's products, the largest of any layer; n_in[0]:
                                   the convolution's channels, a multiple of 16 */
    uint32_t n_out;             /* values of the output, ACT_D */
    uint64_t n_floats;          /* size of a sequence's state in one layer */
    /* values of a sequence's state behind those of the layers: NGRAM, INDEX, CONDENSE */
    uint64_t n_more;
};

/* Residual streams (hyper-connections, Zhu et al. 2024): every row has @n of them instead of x.
 * n 0: the model has none. */
struct stream_shape {
    uint32_t n, n_low; /* n_low: rank of the weights of a MIX, or numbers of a BLEND */
    uint32_t rounds;   /* BLEND: of sinkhorn.h; 0: streams are joined by MIX */
    float eps;         /* BLEND: added to its weights and sums */
};

/* Attention to some of the keys: an indexer scores blocks of @ratio positions, each by one key of
 * @dim values. n_layer 0: the model has none. */
struct sparse_shape {
    uint32_t n_layer;
    uint32_t n_head, dim; /* queries of the indexer; dim: a multiple of 16 */
    uint32_t ratio;       /* positions of a block; a power of two up to 16, which divides a page */
    uint32_t n_block;     /* blocks that a row sees beside the last positions, at most */
};

/*
 * Attention to condensed keys. All heads share a position's key, which is its value, too. A row
 * sees the keys of the last @window positions, which the state of its sequence has (row p % window
 * of the layer's part), and one key for each block of positions, which lies in the page of the
 * block's last position. A layer has short blocks, long ones or none; of the short ones a row sees
 * those that an indexer picks. The last values of a key have rotary positions. window 0: the model
 * has none.
 */
struct condensed_shape {
    uint32_t window, q_rank;     /* q_rank: of what queries are made of */
    uint32_t n_group;            /* parts of the heads' output that have their own matrices */
    uint32_t n_index, index_dim; /* queries of the indexer; index_dim: a multiple of 16 */
    uint32_t n_block;            /* short blocks that a row sees at most */
    uint64_t n_short, n_long;    /* values of a block's keys in all layers */
};

enum { BLOCK_SHORT = 4, BLOCK_LONG = 128 }; /* positions of a block */

/* Most tokens of an n-gram; most rows of a token; values of a state that the last tokens take. */
enum { NGRAM_TOKENS = 4, NGRAM_HEADS = 64, NGRAM_STATE = 16 };

/* A table of n-grams: a token has @n_head rows of the table for each length from 2 to @n, which are
 * found by hashes of it and of the tokens before it. n 0: the model has none. */
struct ngram_shape {
    uint32_t n, n_head, width; /* width: values of a row */
    uint32_t kernel;           /* taps of the convolution, 2 to 8, @n tokens apart */
    int32_t eos;               /* stands for every token before a sequence and after an end token */
    uint64_t factor[NGRAM_TOKENS];
    uint64_t first[NGRAM_HEADS], size[NGRAM_HEADS]; /* the part of the table that is a head's */
};

/* Gated delta nets (Yang et al. 2024, "Gated Delta Networks"). Channels are queries and keys of the
 * key heads, values of the value heads. A state has a matrix [dim keys][dim values] for each value
 * head. */
struct delta_shape {
    uint32_t n_key_head, n_value_head; /* the second a multiple of the first */
    uint32_t dim; /* values of a head's key, and of its value: a multiple of 16 */
    bool tiled;   /* value head h has key head h % n_key_head; else h / (values per key) */
    float lower;  /* KDA: the lowest logarithm of a decay; less than 0 */
};

/* Mamba-2 (Dao and Gu 2024). Channels are x of all heads, then B and C of all groups. A state has a
 * matrix [dim][n_state] for each head. */
struct mamba_shape {
    uint32_t n_head, dim; /* dim: a multiple of 16 */
    uint32_t n_group;     /* heads that follow each other share B and C; divides n_head */
    uint32_t n_state;     /* a multiple of 4 */
};

/* Latent attention: heads share one key of rank + n_rot values, the first @rank of which are their
 * value too. rank 0: the model has none. */
struct mla_shape {
    uint32_t rank, q_rank;    /* q_rank: of what queries are made of; 0: the norm's output */
    uint32_t n_nope, n_value; /* values of a head's query without RoPE; values of a head's output */
};

/* Block drafters with convolutions over the block, of @kernel taps, whose channels share dynamic
 * taps in groups of @group, and a selector of rank @rank among the @top_k best tokens of a
 * position; without @top_k rank is that of a CHAIN. All 0: the drafter has none. */
struct block_shape {
    uint32_t kernel, group, rank, top_k;
};

/* Shape of the model as the forward pass and the ops need it. Validated by engine/arch. */
struct model_shape {
    uint32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_vocab, max_context;
    uint32_t n_ff; /* width of the widest dense FFN; 0: all layers have experts */
    float rms_eps, attn_scale;
    enum rope_type rope_type;
    struct rope_set rope[ROPE_SETS]; /* by model_op.rope */
    /* n_head, n_head_kv and head_dim are those of most layers; the largest of all layers: values
     * of a row's queries and keys, heads' size, heads that share keys, key heads. */
    struct {
        uint32_t q, kv, head, group, n_kv;
    } widest;
    /* Layers that have pages, by class, and what those hold of a token: values of keys and values
     * over all of them. */
    uint32_t n_kv_layer[KV_CLASSES];
    uint64_t n_kv_values[KV_CLASSES];
    uint32_t window; /* the largest of the layers of KV_WINDOW: they read no other keys */
    /* Mixture of experts: each row picks n_expert_used FFNs of n_ff_expert each. 0: a dense FFN. */
    uint32_t n_expert, n_expert_used, n_ff_expert;
    float expert_scale; /* factor of the experts' sum */
    enum gating gating; /* function from a router's logits to weights */
    bool unnormed;      /* weights of picked experts are not divided by their sum */
    /* Groups of experts, and best groups from which experts are picked; 0: no groups. */
    uint32_t n_expert_group, n_group_used;
    uint32_t n_ff_shared; /* width of the shared expert, which every row uses; 0: there is none */
    /* Beside a device: the experts that the host has and computes, a bit each, [n_layer][words of
     * n_expert bits]. NULL: none. fetches: the device computes them, too; the host has all experts
     * of such layers, and the bits say which the device does not have at first. */
    const uint32_t *host_experts;
    bool fetches;
    uint32_t n_host_ffn;    /* without experts: the number of last layers whose FFNs the host has */
    uint64_t host_bytes;    /* bytes of these experts or FFNs in host memory */
    uint32_t n_layer_input; /* width of LAYER_INPUT in a layer; 0: the model has none */
    uint32_t n_picture;     /* values of a picture's row: n_embd and as many for each DEEP; 0: the
                               model takes none */
    /* Bytes of a device's memory that the image encoder takes; 0: the host computes it, or
     * there is none. */
    uint64_t picture_weights, picture_buffers;
    bool two_way;                  /* an op's attn.two_way */
    bool encoder;                  /* attention is of whole sequences, and there are no logits */
    uint8_t drafts;                /* passes that draft: engine_info.draft_passes */
    bool keeps_streams;            /* hidden states are all residual streams (hidden_width()) */
    bool borrows;                  /* their ops have no keys: engine_info.borrows */
    uint32_t n_taps;               /* TAPs of the model; 0: it has none */
    uint32_t n_block, first_draft; /* as engine_info has them */
    int32_t mask_token;
    struct block_shape block;
    struct state_shape state;
    struct delta_shape delta;
    struct mamba_shape mamba;
    struct mla_shape mla;
    struct stream_shape stream;
    struct sparse_shape sparse;
    struct condensed_shape condensed;
    struct ngram_shape ngram;
    /* First layer of each device if devices divide the layers, then n_layer. All 0: they do not. */
    uint32_t cut[ENGINE_DEVICES + 1];
    const struct model_op *op; /* [n_ops] the model's */
    uint32_t n_ops;
};

/* Returns the bytes of @n cached values, in whole blocks. */
static inline uint64_t kv_bytes(enum engine_kv_type type, uint64_t n) {
    return n / kv_types[type].block * kv_types[type].block_bytes;
}

/* Returns the bytes of @n numbers, half of which are keys and half values. */
static inline uint64_t kv_bytes_both(struct kv_formats kv, uint64_t n) {
    return kv_bytes(kv.k, n / 2) + kv_bytes(kv.v, n / 2);
}

/* Returns the number of values of a sequence's state. */
static inline uint64_t state_floats(const struct state_shape *s) {
    return s->n_layer * s->n_floats + s->n_more;
}

/* Returns the bytes of the keys of blocks that a page has of a layer of model_shape.sparse: halves,
 * a block's behind the other. They lie behind the keys and values of all layers. */
static inline uint64_t index_bytes(const struct model_shape *s, uint32_t page_tokens) {
    const struct sparse_shape *p = &s->sparse;

    return p->n_layer ? (uint64_t)page_tokens / p->ratio * p->dim * 2 : 0;
}

/* Returns the bytes of a value of a condensed key: half, or float if keys are floats. */
static inline uint32_t condensed_value(struct kv_formats kv) {
    return kv.k == ENGINE_KV_F32 ? 4 : 2;
}

/* Returns the bytes of a page of class @cls. */
static inline uint64_t page_size(const struct model_shape *s, uint8_t cls, struct kv_formats kv,
                                 uint32_t page_tokens) {
    uint64_t index = cls == KV_GLOBAL ? s->sparse.n_layer * index_bytes(s, page_tokens) : 0;
    uint64_t condensed = s->condensed.n_short * (page_tokens / BLOCK_SHORT) +
                         s->condensed.n_long * ((page_tokens + BLOCK_LONG - 1) / BLOCK_LONG);

    index += cls == KV_GLOBAL ? condensed * condensed_value(kv) : 0;
    return kv_bytes_both(kv, s->n_kv_values[cls] * page_tokens) + index;
}

/*
 * Heads are multiplied by a Hadamard matrix before they are rounded to blocks: a number much larger
 * than its neighbours, which would take their precision, is spread over the run. Queries are
 * multiplied like keys, so that scores do not change. The matrix is its own inverse, so the output
 * of attention is multiplied by it again to undo the rotation of the values.
 *
 * The matrix of @n is H(1) = 1, H(2n) = [H(n) H(n); H(n) -H(n)] / sqrt(2).
 */
struct hadamard_runs { /* lengths of a head's runs; 0: it is not multiplied */
    uint32_t k, v;
};

/* Returns the largest power of two up to @most that divides @dim, if @type rounds to blocks. */
static inline uint32_t hadamard_run(enum engine_kv_type type, uint32_t dim, uint32_t most) {
    uint32_t run = kv_shares_scale(type) ? dim & (~dim + 1) : 0;

    return MIN(run, most);
}

/* Returns the runs of a head of attention. A latent key is a value, too, and its parts have
 * different scales, so it is not multiplied. */
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

/* Returns true if the host holds @expert of @layer. Blocks that draft lie behind the layers. */
static inline bool expert_is_hosts(const struct model_shape *s, uint32_t layer, uint32_t expert) {
    return s->host_experts && layer < s->n_layer &&
           (s->host_experts[layer * host_words(s) + expert / 32] >> expert % 32 & 1);
}

/* Returns the number of a layer's experts that the host holds and the device does not. */
static inline uint32_t n_host_experts(const struct model_shape *s, uint32_t layer) {
    uint32_t n = 0;

    for (uint32_t i = 0; s->host_experts && layer < s->n_layer && i < host_words(s); i++)
        n += (uint32_t)__builtin_popcount(s->host_experts[layer * host_words(s) + i]);
    return n;
}

/* Returns true if the host has the dense FFN of @layer. */
static inline bool ffn_is_hosts(const struct model_shape *s, uint32_t layer) {
    return layer < s->n_layer && layer + s->n_host_ffn >= s->n_layer;
}

/* Returns the place in shape.cut of the device that has @layer; 0 if layers are not divided. */
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
