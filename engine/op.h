#pragma once

/*
 * op - the ops of a model (engine/arch): their kinds and operands. They are fused as a fast GPU
 * needs them: five ops per dense layer. Private to engine/.
 *
 * For the model, activations are rows of f32; a backend may store them in any form.
 */

#include "engine/shape.h"

struct weights; /* tensors of one op in the backend's form */

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

/* Returns the tensor that has the taps of channel *@c, and sets *@c to the row in that tensor. */
static inline const struct tensor *op_taps(const struct model_op *op, uint64_t *c) {
    uint64_t each = op->conv->ne[1] * op->conv->ne[2], part = *c / each;

    if (!op->conv_more[0])
        return op->conv;
    *c %= each;
    return part ? op->conv_more[part - 1] : op->conv;
}
