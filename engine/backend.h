#pragma once

/*
 * backend - the ops of a model (engine/arch) and the table of functions that compute them
 * (engine/reference, engine/cpu, engine/cuda). They are fused as a fast GPU needs them: five ops
 * per dense layer. Private to engine/.
 *
 * For the model, activations are rows of f32; a backend may store them in any form.
 */

#include <stdlib.h>
#include "base/err.h"
#include "engine/types.h"

#define BACKEND_ABI 15u
#define MODEL_LAYERS_MAX 512
#define MODEL_EXPERTS_MAX 1024
#define PICKS_STEPS 64 /* be_ops.picks: 48 KiB come from a device, of 48 layers of 128 experts */
#define OP_MATRICES 4  /* most matrices of an op */

/* Positions of a slot whose hidden states are kept: those of a draft, the last known one, and the
 * one before it. */
#define ENGINE_KEPT (ENGINE_DRAFT_MAX + 2u)

/* Passes of a model: its own; PASS_DRAFT + k, that of block k, of at most MTP_BLOCKS; and its own
 * with holes. */
enum { MTP_BLOCKS = 8, PASS_MODEL = 0, PASS_DRAFT, PASS_HOLES = PASS_DRAFT + MTP_BLOCKS, PASSES };

struct be;      /* a backend's state */
struct step;    /* one step in flight; embedded by the backend */
struct weights; /* tensors of one op in the backend's form */
struct vis_ops; /* vision/ops.h */

/* Activation buffers by role; a backend sizes them at open: [max_rows][width]. */
enum act_role {
    ACT_X, /* residual stream, n_embd */
    ACT_Q, /* queries, widest.q */
    ACT_O, /* attention output, widest.q */
    ACT_H, /* FFN hidden, n_ff */
    ACT_D, /* output of a recurrent op, state.n_out, or of MLA_OUT, n_head * mla.n_value */
    ACT_B, /* a branch's sum that is not added to x yet, n_embd: every PROJ writes it */
    ACT_P, /* inputs of the layers, n_layer * n_layer_input */
    ACT_S, /* residual streams, one behind the other, stream.n * n_embd */
    ACT_ROLES
};

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

/* Activations of a gated FFN, from gate g and up u. */
enum glu {
    GLU_SILU, /* silu(g) u, or where the op has a limit min(silu(g), limit) u within +-limit */
    GLU_GELU, /* gelu(g) u, gelu(g) = g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) */
    /* g' sigmoid(1.702 g') (u' + 1), g' = min(g, 7), u' = u within +-7 */
    GLU_CLAMPED,
    GLU_RELU, /* max(g, 0) u; without a gate, where the ups are gates too: max(u, 0)^2 */
    GLU_CUT,  /* silu(min(g, limit)) u, u within +-limit */
    GLUS
};

/* Heads of an attention layer: @n query heads, in groups that share one of @n_kv key heads. */
struct heads {
    uint32_t n, n_kv, dim;
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

/* Kinds of ops. x is the residual stream (ACT_X); a backend has one function for each kind. */
enum op_kind {
    /* x = scale * rows of w[0]; with w[1], + its row of the position; with w[2], + its one row. Of
     * a picture's row the first n_embd values as they are. */
    OP_EMBED,
    /* x += values [part n_embd, (part + 1) n_embd) of a picture's row; x of a token */
    OP_DEEP,
    /* x = norm x; without @norm, x / sqrt(mean of x^2 + eps) */
    OP_NORM,
    /* p = (post_norm(w[0] x / sqrt(n_embd)) + sqrt(n) row of w[1]) / sqrt(2), n = n_layer_input:
     * for each layer n values, normed by themselves. A picture's row has row 0 of w[1]. */
    OP_LAYER_INPUT,
    /* q = temper rope(q_norm(w[0] y + b)), y = norm x; k, without temper, and v likewise, but v
     * without RoPE and, where @v_unit, with a norm of no weights, to the pages of @kv at the rows'
     * positions. No w[2]: v is w[1] y + b too. No w[1] either: only queries. @gated: behind each
     * head's rows of w[0] come as many that give its gate. @norm_all: a norm is over all heads
     * together. No norm: y = x, here and below. */
    OP_QKV,
    /* k and v of QKV without q: w[0] k, w[1] v, and their biases. Queries have an op of their
     * own. */
    OP_KEYS,
    /* Keys and values that no row sees, of @heads and to the pages of @kv at the rows' positions: a
     * key's scores are not finite. */
    OP_HOLES,
    OP_ATTEND, /* o = attention of q to the pages of @kv, as @attn says */
    /* o *= sigmoid(gate), of the QKV op before. With w[0]: o *= softplus(w[0] y), or where @sigmoid
     * its sigmoid, y = norm x, one number for a head or for each of its values. */
    OP_GATE,
    /* x = (x + gain t) * scale, t = post_norm(w[0] in + b), whose eps may be @post_eps. @branch:
     * b = t instead */
    OP_PROJ,
    OP_JOIN, /* x = (x + post_norm(b)) * scale */
    /* h = glu(w[0] y + b, w[1] y + b), y = norm x. No w[1]: all ups are 1. */
    OP_GATE_UP,
    OP_GATE_IN, /* h = glu(w[0] x, the layer's part of p) */
    /* Picks experts for every row: y = norm x, p = gating of scale * (w[0] y + b), the largest p +
     * pick_bias (ties: the lowest number); p of these are divided by their sum, unless unnormed.
     * With @table the picks are the numbers in the token's row of it. */
    OP_ROUTE,
    /* Follows ROUTE: x += t, t = post_norm(expert_scale * sum of p e(y) in the order of the picks),
     * e(y) = weigh[e] (down glu(gate y + b, up y + b) + b), y that of ROUTE or, with a norm of its
     * own, norm x. @joined: w[0] has each expert's gate, then its up; no w[1]. @branch, also of
     * SHARED: b += t instead. */
    OP_EXPERTS,
    /* Follows EXPERTS: x += sigmoid(w[3] y) down (silu(gate y) * up y), y that of ROUTE, w[3] one
     * row */
    OP_SHARED,
    /* in[first + i] = w[i] norm x, for the recurrent op that follows: d = what that makes of them
     * and of the state of the row's sequence, which is that behind the row then. @parts: in[0] is
     * the products of w[0], w[1] and w[2], one behind the other; another STATE_IN makes the
     * rest. */
    OP_STATE_IN,
    /* A gated delta net. in: u, z, the raw beta and alpha; without the last (@joined) the third
     * has, for each key head, its value heads' betas, then alphas. Token by token:
     *   c = silu(sum over j of conv[.][j] u of token t - kernel + 1 + j); c is q, k, v of all heads
     *   q, k: of unit length by head (the norm's eps under the root); q /= sqrt(dim)
     *   g = decay softplus(alpha + dt), b = sigmoid(beta)
     *   M = e^g M; M += k (b (v - M^T k))^T; d = norm(M^T q) silu(z), per value head */
    OP_DELTA,
    /* Kimi delta attention (Kimi Team 2025, "Kimi Linear"): a delta net whose keys have decays of
     * their own. in: u, z, the raw decays, the raw betas. Three matrices are conv's rows. As DELTA,
     * but by head, and for each key i
     *   g[i] = lower sigmoid(decay (raw[i] + dt[i])), b = sigmoid(beta)
     *   M[i] = e^g[i] M[i]; M += k (b (v - M^T k))^T; d = norm(M^T q) sigmoid(z) */
    OP_KDA,
    /* A short convolution. in: b, c, u. Token by token: t = b u, d = c times the sum over j of
     * conv[.][j] t of token t - kernel + 1 + j */
    OP_CONV,
    /* Mamba-2. in: u, z, the raw steps. Token by token, by head:
     *   c = silu(conv_bias + sum over j of conv[.][j] u of token t - kernel + 1 + j): x, B, C
     *   s = softplus(step + dt); M = e^(s decay) M + (s x) B^T; y = M C + skip x
     *   d = norm(y silu(z)), the norm over a group's heads */
    OP_MAMBA,
    /* l = w[0] y, r = w[1] y, y = norm x; without q_rank w[1] y is q. */
    OP_MLA_IN,
    /* q = w[0] norm r: for each head n_nope values, then n_rot that turn */
    OP_MLA_Q,
    /* Key and value, to the pages of @kv: (norm of the first rank values of l, rope of the others).
     * Queries, for ATTEND: (w[0][head] times the head's first n_nope values of q, rope of the
     * others). */
    OP_MLA_KV,
    /* Follows ATTEND: d = for each head w[0][head] times its first rank values of o */
    OP_MLA_OUT,
    /* x = norm x, with @centred (x - mean) / sqrt(variance + eps) * norm; no norm: as it is. It, or
     * w[0] x, is the hidden state, kept of every row for DRAFT_IN: of this step, and of the last
     * positions by slot. A row that is n_ahead counts as of position pos0 + n_ahead there.
     * @streams: the hidden state is all streams, and x stays. */
    OP_KEEP,
    /* x = w[0] (q_norm x, k_norm h): one vector behind the other, h what was kept of the position
     * before; zeros where nothing was. No norm: as it is. x has w[0]'s width from there on. Of a
     * pass 0 with several, @part more follow it. @streams: each stream of h makes one of s, and x
     * is undefined behind it. */
    OP_DRAFT_IN,
    OP_TAP,  /* part @part of t is x: what FUSE multiplies, of n_taps parts */
    OP_FUSE, /* x = w[0] t */
    /* c = norm x, d = w[0] c, x = convolution of c on side 0 by d and @weigh (engine/blocks.h); the
     * x before is kept */
    OP_BLOCK_IN,
    /* x = (kept x + post_norm c) * scale, c = convolution of b on side 1 by the d of BLOCK_IN and
     * @weigh */
    OP_BLOCK_OUT,
    /* Follows LOGITS: g = w[0] norm x for the wanted rows, and block_select() with the tables w[1]
     * of predecessors and w[2] of successors. */
    OP_SELECT,
    /* Follows LOGITS: for the wanted rows of each sequence from row first_draft on, one after the
     * other, c += w[0] (row a of w[1]), a the token before the one that c is for (block_before()).
     */
    OP_CHAIN,
    /* s[i] += weight[i] b for each of the streams, by the weights of the MIX before, or s[i] =
     * weight[i] b + the sum over j of share[j][i] s[j] by those of the BLEND; with @begins s[i] =
     * x. */
    OP_SPREAD,
    /* f = q_norm of each stream; g = sigmoid(w[0] silu(w[1] f / n)), n streams; x = the mean of the
     * streams of f g; weight = 2 sigmoid(w[2] f / n), one for each stream; b = 0 */
    OP_MIX,
    /* m = w[0] s / sqrt(mean of s^2 + eps), s the streams one behind the other; weights of m by
     * sinkhorn.h with scales @weigh and sums @pick_bias; x = the sum of the streams times their
     * weights; b = 0. Behind the layers there are no weights but these. */
    OP_BLEND,
    /* e = the token's rows of the table, one behind the other; for each stream, norms by stream:
     *   z = k_norm(w[0] e) . q_norm(s) / sqrt(n_embd)
     *   v = sigmoid(sign(z) sqrt(max(|z|, 1e-6))) w[1] e; c = post_norm v
     *   s += v + silu(sum over j of conv[.][j] c of token t - (kernel - 1 - j) ngram.n)
     * x and b are overwritten. State, at @more: the last tokens, the latest first, in NGRAM_STATE
     * floats; then c of the last (kernel - 1) ngram.n tokens, the oldest first. */
    OP_NGRAM,
    /* Chooses the keys that the rows see in the ATTEND that follows. A block's key, to the pages:
     * rope(k_norm(mean of w[1] x over its tokens)), by the block's first position. A row's
     * queries: q = rope(q_norm(w[0] x)) of each head. It sees, of the whole blocks up to its
     * position, the n_block with the largest sums of max(0, q . key) (ties: the first), and all
     * behind them. State, at @more: w[1] x of the tokens of the block that is not whole, by their
     * place in it. */
    OP_INDEX,
    /* r = q_norm(w[0] y), k = rope(k_norm(w[1] y)), t = w[2] y / sqrt(index_dim n_index), y = norm
     * x; no w[2]: the layer has no indexer. */
    OP_LEAN_IN,
    /* Keeps k in the window of the op's layer, for rows that have no queries there. */
    OP_LEAN_KEYS,
    /* q = rope(w[0] r / its rms), by head */
    OP_LEAN_Q,
    /* The keys of the blocks that end here, to the pages: for each channel the mean of u = w[0] y,
     * y = norm x, of the block's tokens, weighted by the softmax of w[1] y + weigh[place in the
     * block]; then rope(k_norm(mean)), by the block's first position. Of short blocks u and the
     * weights are twice as wide; the second half is of the tokens in a block of their own, the
     * first half of those in the block before, which count in the same softmax. State, at @more:
     * u and w[1] y of the last tokens, two blocks where they are short, by position. */
    OP_CONDENSE,
    /* Picks the short blocks that the rows see in the LEAN_ATTEND that follows: the n_block with
     * the largest sums over heads of t max(0, q . key), q = rope(w[0] r) (ties: the first). */
    OP_PICK,
    /* o = attention of q to k of the window's positions and to the keys of the whole blocks up to
     * the row's position; rotary values are turned back by the row's position. */
    OP_LEAN_ATTEND,
    /* d[part n, (part + 1) n) = w[0] times the part of o, n rows of w[0] */
    OP_LEAN_OUT,
    /* For the wanted rows: c = scale (w[0] norm x + b), then cap(c) if there is a cap; for
     * WANT_HIDDEN it stops after the norm. Without w[0] only WANT_HIDDEN may be asked for. */
    OP_LOGITS,
    OP_KINDS
};

struct kv_layer {   /* the pages of one layer; allocated by the backend at open */
    uint32_t layer; /* among the layers that have pages of this class */
    uint8_t cls;
    uint64_t at; /* values of a token that those before it have there */
};

/* Number of keys in a tile; a tile begins at a multiple of it. A row may read keys of the tile that
 * are before its window, but gives them no weight. */
enum { ATTEND_TILE = 32 };

/* Weighting of keys by attention: softmax of cap(scale q k). */
struct attn {
    float scale;
    uint32_t window; /* number of the last keys that it sees; 0: all */
    float cap;       /* cap(z) = cap tanh(z / cap); 0: cap(z) = z */
    /* A row sees the keys up to its sequence's last row in the step, also those behind it; a window
     * ends before it as without this. */
    bool whole;
    bool two_way; /* a picture's row sees its picture's rows behind it too; all are in one step */
    bool before;  /* the row's own key is excluded, although a window counts it */
    bool holes;   /* keys of HOLES weigh nothing: without a cap and slopes */
    bool sparse;  /* a row sees the keys of the INDEX before; all rows see keys up to their own */
    /* [heads.n] or NULL. Scores of head h are less by slope[h] times the distance of row and key
     * (ALiBi, Press et al. 2022). */
    const float *slope;
};

/* Queries of far positions are larger: times 1 + slope ln(1 + floor(position / span)). */
struct temper {
    float slope; /* 0: none */
    uint32_t span;
};

/* Returns the factor of a query at @pos. */
float temper_at(const struct temper *t, uint32_t pos);

/*
 * One op of a pass: its kind and operands. Only the members that the kind reads are set; NULL: the
 * model has no such tensor. A layer is a sequence of ops (engine/arch).
 */
struct model_op {
    enum op_kind kind;
    uint32_t layer;     /* number in the file, for messages */
    enum act_role in;   /* PROJ: ACT_O, ACT_H or ACT_D */
    uint32_t width;     /* width of x: n_embd, or less in pass 1 behind DRAFT_IN */
    struct kv_layer kv; /* QKV, KEYS, ATTEND: another layer's where a layer has none of its own */
    struct heads heads; /* QKV, KEYS, ATTEND, GATE */
    uint8_t rope;       /* QKV, KEYS: of model_shape.rope */
    uint32_t state; /* DELTA, KDA, CONV, MAMBA, LEAN_ATTEND: its layer among those with a state */
    uint32_t index; /* INDEX: its layer among those of model_shape.sparse */
    /* NGRAM, INDEX, CONDENSE, and of a block that drafts LEAN_KEYS, LEAN_ATTEND: where its part of
     * state_shape.n_more begins */
    uint64_t more;
    uint64_t first_value; /* CONDENSE, PICK, LEAN_ATTEND: values of a block before its key's */
    uint32_t part;        /* DEEP, LEAN_OUT, DRAFT_IN */
    uint32_t block;       /* CONDENSE, PICK, LEAN_ATTEND: positions of a block; 0: none */
    bool gated, v_unit;   /* QKV */
    bool norm_all;        /* QKV */
    struct temper temper; /* QKV */
    bool joined;          /* EXPERTS; DELTA: STATE_IN has no w[3] */
    bool branch;          /* PROJ, EXPERTS, SHARED */
    bool begins;          /* SPREAD */
    bool centred;         /* KEEP */
    bool streams;         /* KEEP, DRAFT_IN */
    bool sigmoid;         /* GATE; DELTA: silu(z) is sigmoid(z) instead */
    bool parts;           /* STATE_IN */
    uint8_t first;        /* STATE_IN */
    enum glu glu;         /* GATE_UP, GATE_IN, EXPERTS, SHARED */
    float scale;          /* EMBED, PROJ, JOIN, ROUTE, LOGITS */
    float gain;           /* PROJ */
    float post_eps;       /* PROJ: 0: the model's */
    float limit;          /* GATE_UP, EXPERTS of GLU_SILU: 0: none; of GLU_CUT */
    float cap;            /* LOGITS: 0: none */
    struct attn attn;     /* ATTEND */
    const struct tensor *sinks; /* ATTEND, LEAN_ATTEND: by head, a score of no value's */
    /* rms norm of the input: QKV, KEYS, KEEP, GATE_UP, ROUTE, EXPERTS, STATE_IN, LOGITS; DELTA,
     * MAMBA: of what comes out */
    /* post_norm: LAYER_INPUT, PROJ, JOIN, EXPERTS, NGRAM */
    const struct tensor *norm, *post_norm;
    /* NORM: that is (x - mean) / sqrt(variance + eps) * norm + norm_bias */
    const struct tensor *norm_bias;
    /* QKV: q, k, v; GATE_UP: gate, up; EXPERTS: gate, up, down, each [expert][out][in]; SHARED:
     * gate, up, down, and the gate of it all; STATE_IN: above; else the one */
    const struct tensor *w[OP_MATRICES];
    const struct tensor *bias[OP_MATRICES]; /* EXPERTS: [expert][out] */
    /* EXPERTS: a factor for each; ROUTE: by expert; BLEND, CONDENSE: above */
    const struct tensor *weigh, *pick_bias;
    /* QKV, KEYS, INDEX: rms per head, or of all, before RoPE; MIX, NGRAM: per stream */
    const struct tensor *q_norm, *k_norm;
    /* DELTA, CONV, MAMBA, NGRAM: [channels][kernel]; by channel */
    const struct tensor *conv, *conv_bias;
    const struct tensor *conv_more[2];      /* KDA: the channels behind those of conv */
    const struct tensor *dt, *decay, *skip; /* DELTA, MAMBA: by (value) head */
    /* NGRAM: stays in the file, of which few rows are read at a time; ROUTE: I32 */
    const struct tensor *table;
    struct weights *weights; /* set by load(); NULL before */
};

/* Reads the list engine_opts.devices. Returns the number of devices; 0: the list is not valid. */
static inline uint32_t devices_of(const struct engine_opts *o, uint32_t out[ENGINE_DEVICES]) {
    const char *p = o->devices ? o->devices : "0";
    uint32_t n = 0;

    for (;; p++) {
        char *end;

        if (*p < '0' || *p > '9' || n == ENGINE_DEVICES)
            return 0;
        out[n] = (uint32_t)strtoul(p, &end, 10);
        for (uint32_t i = 0; i < n; i++)
            if (out[i] == out[n])
                return 0;
        n++;
        p = end;
        if (*p != ',')
            return *p || out[n - 1] > 255 ? 0 : o->n_devices ? MIN(n, o->n_devices) : n;
    }
}

/* Returns the tensor that has the taps of channel *@c, and sets *@c to the row in that tensor. */
static inline const struct tensor *op_taps(const struct model_op *op, uint64_t *c) {
    uint64_t each = op->conv->ne[1] * op->conv->ne[2], part = *c / each;

    if (!op->conv_more[0])
        return op->conv;
    *c %= each;
    return part ? op->conv_more[part - 1] : op->conv;
}

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

/*
 * Experts whose weights lie in host memory, and which are computed there while a device computes
 * the rest of the model: those of shape.host_experts. A dense FFN is a layer of one expert. One
 * call at a time, from any thread.
 */
struct host_experts;
/* 0 or -errno. */
struct host_experts_ops {
    int (*open)(struct host_experts **out, const struct model_shape *shape,
                const struct engine_opts *opts, struct err *err);
    struct host_experts *(*close)(struct host_experts *h); /* accepts NULL, returns NULL */
    /* Loads the host's matrices of an EXPERTS op, in the order of the ops. @norm: norm of its rows,
     * the op's own or that of the ROUTE op. */
    int (*load)(struct host_experts *h, const struct model_op *op, const struct tensor *norm,
                struct err *err);
    /* y = e(norm x) of each pair, without the factor weigh[e], by the EXPERTS op that was loaded as
     * number @layer, from 0. x: [n_rows][n_embd]; expert, the picks: [n_rows][n_expert_used]; y:
     * [n_rows][n_expert_used][n_embd], unchanged where the picked expert is not the host's. */
    void (*run)(struct host_experts *h, uint32_t layer, uint32_t n_rows, const float *x,
                const uint32_t *expert, float *y);
};

/* Experts computed by the CPU backend's kernels. */
extern const struct host_experts_ops host_experts_cpu;

/* Options of a backend; the objects that they point to must stay until close(). */
struct be_opts {
    const struct model_shape *shape;
    const struct engine_opts *engine; /* n_threads, isa, max_rows, max_context (never 0), ... */
    uint32_t n_pages;
    uint64_t page_bytes;
    uint32_t n_states;      /* states of recurrent layers: the slots, then the snapshots */
    uint32_t n_host_states; /* the last of these states, which a device keeps in host memory */
    uint32_t n_windows;     /* pages of KV_WINDOW; 0: no op's layer is of that class */
    uint32_t n_slots;       /* slots for sequences whose hidden states are kept; 0: no KEEP */
    const struct host_experts_ops *host_experts; /* set for a shape with a host's part */
};

/* 0 or -errno; -EIO once a device is lost. */
struct be_ops {
    uint32_t abi;
    const char *name;
    uint8_t build_id[20]; /* must match the daemon's (cuda) */
    uint8_t
        sources[20]; /* ENGINE_SOURCES: a digest of the sources that the library was built from */
    uint32_t depth;
    int (*open)(struct be **out, const struct be_opts *o, struct err *err);
    struct be *(*close)(struct be *b); /* accepts NULL and half-built, returns NULL */
    const char *(*isa)(const struct be *b);
    uint32_t (*n_threads)(const struct be *b);
    /* Returns the bus address of the @i-th device; "": fewer devices. NULL: no device. */
    const char *(*address)(const struct be *b, uint32_t i);

    /* Loads the tensors of an op (repacks, uploads). Freed by close(). NULL: tensors are used as in
     * the file. */
    int (*load)(struct be *b, const struct model_op *op, struct weights **out, struct err *err);

    /* Called when every tensor has been loaded. NULL: there is nothing to do. */
    int (*loaded)(struct be *b, enum engine_weights *out, struct err *err);

    /* The step. begin() .. end() are called in this order for one batch; a host backend computes
     * inside the ops, a device backend enqueues. */
    int (*begin)(struct be *b, const struct engine_batch *batch, struct step **out);
    /* Functions by kind of op; NULL: not supported, and models that need it are refused. */
    int (*run[OP_KINDS])(struct step *s, const struct model_op *op);
    /* Names the part of an op that the backend does not compute although it has the op's kind;
     * models that need it are refused. Returns NULL if it computes all; the function is NULL if the
     * backend always computes all. */
    const char *(*lacks)(const struct model_shape *shape, const struct model_op *op);
    /* Table for one device, in the table for several, which may compute less; else NULL. */
    const struct be_ops *one;
    int (*mask)(struct step *s, uint32_t want, const uint32_t *bits);
    int (*sample)(struct step *s);
    int (*end)(struct step *s, struct engine_result *out); /* waits */

    /* false: the ops compute in the caller's thread, and the engine calls them inside
     * engine_wait(), with the tokens of `feed` filled in. true: they enqueue, are called inside
     * engine_launch() and engine_seal(), and resolve `feed` on the device. */
    bool device;
    bool hidden;      /* supports WANT_HIDDEN */
    bool latent_once; /* pages of latent attention hold a key once, not also as the value */
    const struct vis_ops *vision; /* image encoders on the device; NULL: the CPU computes them */
    /* Returns the bytes of a matrix of an op as it is stored. NULL: the bytes in the file. */
    uint64_t (*stored_bytes)(const struct tensor *t);
    /* Sets shape->cut, before room() and open(). NULL: layers are not divided. */
    int (*divide)(struct model_shape *shape, const struct engine_opts *o, struct err *err);
    /* Computes the bytes that pages may take of the device's free memory, beside weights and
     * buffers. NULL: the backend is not a device. */
    int (*room)(const struct model_shape *shape, const struct engine_opts *o, uint64_t *bytes,
                struct err *err);
    /* Copies page src to page dst (the whole page or its first n_tokens). Called between steps.
     * Host backends get only COPY_D2D: their host pages follow the other pages. NULL: batches with
     * copies are refused by assert. */
    int (*copy)(struct be *b, const struct engine_copy *c);
    /* Copies state @src to state @dst, between steps. NULL: there are no recurrent ops. */
    int (*copy_state)(struct be *b, uint32_t src, uint32_t dst);
    /* Returns the address of page @page of host memory (host backends: of any page), or NULL if it
     * is not in one piece. */
    void *(*host_page)(struct be *b, uint32_t page);
    /* Returns the address of state @state of those in host memory, or NULL. */
    void *(*host_state)(struct be *b, uint32_t state);
    /* Returns the logits of a want of the last ended step, before processors; NULL: they are no
     * longer available. For tests and proofs; the function may be NULL otherwise. */
    const float *(*peek)(const struct be *b, uint32_t want);
    /* For prove.h: variants are optional code paths with the same bits. Turns variant @i on or off;
     * returns false if there is no such variant. *name describes it. */
    bool (*variant)(struct be *b, uint32_t i, bool use, const char **name);
    /* Begins or ends a proof. Returns false if none is needed. NULL: none is ever needed. */
    bool (*proving)(struct be *b, bool on);
    /* Returns true if products round activations to eight bits, for which a proof leaves room.
     * NULL: they never do. */
    bool (*coarse)(const struct be *b);
    /* Returns one line about code paths that failed a check at open and are not used, with the
     * reason, and about measurements that chose between equal ones; "" or NULL: none. */
    const char *(*note)(const struct be *b);
    /* Returns why a device was lost: the call that failed first, and its error; "" while it works.
     * NULL: the backend is not a device. */
    const char *(*fault)(const struct be *b);
    /* With opts.experts_fd: how often the experts of the layers were picked since open(),
     * [n_layer][n_expert], as of the step that ended last, whose number is a multiple of
     * PICKS_STEPS; with shape.fetches then how many of these picks found their expert on the host.
     * NULL, also as the result: not known. */
    const uint64_t *(*picks)(const struct be *b);
    /* Checks that this machine can run the backend, and every device that @o names. Returns 0, or
     * -errno with @err. NULL: it always can. */
    int (*probe)(const struct engine_opts *o, struct err *err);
    /* Returns the table for the devices that @o names, more than one, or NULL with @err. The
     * function is NULL if the backend has no such table. */
    const struct be_ops *(*several)(const struct engine_opts *o, struct err *err);
};

/* weft-cuda.so exports its table under this name. */
#define BACKEND_CUDA_SYMBOL "weft_backend_cuda"

/* Computes the value that be_ops.build_id of a table from a library must have: a digest of this
 * header and of those that belong to it (engine/build_id.py). */
void backend_build_id(uint8_t out[20]);

/* Returns the table of @ops for the configured devices. NULL with @err: their number is unknown. */
const struct be_ops *backend_table(const struct be_ops *ops, const struct engine_opts *o,
                                   struct err *err);

/* Computes a digest of everything besides the model that the results of @ops depend on: the
 * sources, here and in the library, and the kind of device of @be. @be may be NULL if @ops has no
 * devices. */
void backend_sources(const struct be_ops *ops, const struct be *be, uint8_t out[20]);

extern const struct be_ops backend_reference;
extern const struct be_ops backend_cpu;

/* Returns the table for a configured name: linked in, or from weft-cuda.so. NULL with @err: the
 * name is unknown, or this machine cannot run the backend. "auto": CUDA if there is a device, else
 * the CPU; if the library exists but is of another build or finds no device, @err has the reason
 * although the CPU's table is returned. @o: the devices, or NULL. */
const struct be_ops *backend_find(const char *name, const struct engine_opts *o, struct err *err);

struct engine;

/* For tests: returns the logits of want @want of the last ended step, or NULL. */
const float *engine_peek(const struct engine *e, uint32_t want);
