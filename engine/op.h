#pragma once

/*
 * op - the kinds of ops that a model consists of (engine/arch builds the list) and their operands.
 * An op is as large as a fused GPU kernel can make it: a dense layer is five ops. Private to
 * engine/.
 *
 * To the model, activations are rows of f32, one row for each token of the batch; a backend may
 * store them in any form.
 *
 * Letters in the formulas below: x is a row of the residual stream (ACT_X), y the row after the
 * op's norm (op.norm; y = x if it is NULL), t a temporary. The other letters are buffers of
 * enum act_role in lower case (q, o, h, d, b, p, s) or are defined where they are used. "w[0] y" is
 * the product of a matrix and a row.
 */

#include "engine/shape.h"

struct weights; /* tensors of one op, in the layout of the backend */

/* Activation buffers by role. A backend allocates [max_rows][width] of each at open; the widths, in
 * values, follow. */
enum act_role {
    /* residual stream, n_embd */
    ACT_X,
    /* queries, model_shape.widest.q */
    ACT_Q,
    /* output of attention, model_shape.widest.q */
    ACT_O,
    /* FFN hidden, n_ff */
    ACT_H,
    /* output of a recurrent op, state.n_out; of MLA_OUT, n_head * mla.n_value */
    ACT_D,
    /* output of an attention or FFN branch before it is added to x, n_embd; every PROJ writes it */
    ACT_B,
    /* per-layer inputs (LAYER_INPUT), n_layer * n_layer_input */
    ACT_P,
    /* residual streams (hyper-connections), one after the other, stream.n * n_embd */
    ACT_S,
    ACT_ROLES
};

/* Activation functions of a gated FFN: from the gate g and the up projection u. clamp(u) limits u
 * to [-limit, limit] of the op. */
enum glu {
    /* silu(g) u; if op.limit > 0: min(silu(g), limit) clamp(u) */
    GLU_SILU,
    /* gelu(g) u, gelu(g) = g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) */
    GLU_GELU,
    /* g' sigmoid(1.702 g') (u' + 1), g' = min(g, 7), u' = u limited to [-7, 7] */
    GLU_CLAMPED,
    /* max(g, 0) u; an FFN without a gate uses its up matrix as the gate too: max(u, 0)^2 */
    GLU_RELU,
    /* silu(min(g, limit)) clamp(u) */
    GLU_CUT,
    /* without an up value: xielu_at(g) with op_ffn.xielu */
    GLU_XIELU,
    GLUS
};

/* Least mean square by which a product is scaled to another's length (ALT_BEGIN, ALT_END). */
#define ALT_LEAST 1e-5

/* Parameters of xIELU (Huang and Schlag 2024). */
struct xielu {
    float square, below, linear, limit;
};

/* Returns square x^2 + linear x for x > 0, below (e^min(x, limit) - 1 - x) + linear x for other
 * x. */
float xielu_at(const struct xielu *p, float x);

/* Heads of an attention layer: @n query heads; n / n_kv successive query heads share a key head
 * (GQA). */
struct heads {
    uint32_t n, n_kv, dim;
};

/* Kinds of ops. A backend has one function for each kind. */
enum op_kind {
    /* x = scale * the token's row of w[0]; w[1], if present, adds its row of the token's position;
     * w[2], if present, adds its only row. A picture's row replaces x by its first n_embd values,
     * unscaled. */
    OP_EMBED,
    /* For rows of pictures only: x += values [part n_embd, (part + 1) n_embd) of the picture's row
     * (deepstack) */
    OP_DEEP,
    /* x = (x - mean) / sqrt(variance + eps) * norm + norm_bias; with @rms, x / sqrt(mean of x^2 +
     * eps) * norm, and without @norm the same without the factor */
    OP_NORM,
    /* p = (post_norm(w[0] x / sqrt(n_embd)) + sqrt(n) e) / sqrt(2), where e is the token's row of
     * w[1] (row 0 for a picture's row). p has n = n_layer_input values for each layer; post_norm is
     * applied to each layer's values separately. */
    OP_LAYER_INPUT,
    /* Writes q, and keys and values to the pages of @kv at the positions of the rows:
     *   q = temper rope(q_norm(w[0] y + b)), k = rope(k_norm(w[1] y + b)), v = w[2] y + b
     * With @v_unit, v gets an RMS norm without weights. w[2] NULL: v = w[1] y + b. w[1] and w[2]
     * NULL: only q is written. @gated: each head's rows of w[0] are followed by as many rows that
     * compute its gate. @norm_all: q_norm and k_norm are over all heads together, not per head.
     * @norm_late: they are applied after RoPE. */
    OP_QKV,
    /* Writes k (w[0]) and v (w[1]) as QKV does, with their biases, and no q: the layer's queries
     * have an op of their own. */
    OP_KEYS,
    /* Writes placeholder keys and values to the pages of @kv at the positions of the rows. The
     * scores of such a key are not finite, and ATTEND with attn.holes gives it no weight. */
    OP_HOLES,
    /* o = attention of q to the pages of @kv, as @attn says */
    OP_ATTEND,
    /* o *= sigmoid(gate), where the preceding QKV op with @gated computed the gate. With w[0]: o *=
     * softplus(w[0] y), or sigmoid(w[0] y) with @sigmoid; w[0] has one row for each head or one for
     * each value of o. */
    OP_GATE,
    /* x = (x + gain t) * scale, t = post_norm(w[0] in + b). @post_eps, if not 0, replaces the
     * epsilon of post_norm. @branch: b = t instead. */
    OP_PROJ,
    /* x = (x + post_norm(b)) * scale */
    OP_JOIN,
    /* h = glu(w[0] y + b, w[1] y + b). w[1] NULL: the up value is 1. @sparsity, if not 0: the gates
     * are max(g - (mean + sparsity * deviation), 0) before glu, with the mean and the standard
     * deviation (of a sample) of the row's gates g. */
    OP_GATE_UP,
    /* h = glu(w[0] x, u), where u is the layer's part of p */
    OP_GATE_IN,
    /* Picks n_expert_used experts for each row: p = gating of scale * (w[0] y + b); the experts
     * with the largest p + pick_bias are picked (ties: the lower number). Their weights are p
     * divided by the sum of the picked p; not divided if model_shape.unnormed. With @table, the
     * picks are the expert numbers in the token's row of @table instead. */
    OP_ROUTE,
    /* Follows ROUTE: x += post_norm(expert_scale * sum of p e(y)), summed in the order of the
     * picks, where e(y) = weigh[e] (down glu(gate y + b, up y + b) + b). y is that of ROUTE unless
     * the op has a norm. @early: e(p y) in place of p e(y). @joined: w[0] has each expert's gate
     * rows, then its up rows, and w[1] is NULL. w[1] NULL without @joined: the up value is 1.
     * @branch (also in SHARED): adds to b instead of x. */
    OP_EXPERTS,
    /* The shared expert. Follows EXPERTS: x += sigmoid(w[3] y) down (silu(gate y) * up y), with the
     * y of ROUTE; w[3] has one row. */
    OP_SHARED,
    /* Input products of the recurrent op that follows: in[first + i] = w[i] y. The recurrent op
     * computes d from them and from the state of the row's sequence, and updates the state. @parts:
     * the products of w[0], w[1] and w[2] are concatenated in in[0]; another STATE_IN computes the
     * rest. LOW_DOWN: l[i] = w[i] y instead, for the STATE_IN with LOW_UP that follows: in[first +
     * i] = w[i] l[i]. */
    OP_STATE_IN,
    /* A gated delta net. in: u, z, beta, alpha before their functions. @joined: in[3] is absent,
     * and in[2] has, for each key head, the betas of its value heads, then the alphas. For each
     * token in order:
     *   c = silu(sum over j of conv[.][j] u of token t - kernel + 1 + j); c is q, k, v of all heads
     *   q, k: scaled to unit length per head (eps of the norm under the root); q /= sqrt(dim)
     *   g = decay softplus(alpha + dt), b = sigmoid(beta)
     *   M = e^g M; M += k (b (v - M^T k))^T; d = norm(M^T q) silu(z), per value head */
    OP_DELTA,
    /* Kimi delta attention (Kimi Team 2025, "Kimi Linear"): a delta net with a decay for each
     * element of the key. in: u, z, raw decays, betas before the sigmoid. The rows of conv are
     * divided among three tensors (conv, conv_more). As DELTA, but per head and for each element i
     * of the key:
     *   g[i] = lower sigmoid(decay (raw[i] + dt[i])), b = sigmoid(beta); if lower is 0,
     *   g[i] = decay softplus(raw[i] + dt[i])
     *   M[i] = e^g[i] M[i]; M += k (b (v - M^T k))^T; d = norm(M^T q) sigmoid(z) */
    OP_KDA,
    /* A short convolution (LFM2). in: b, c, u. For each token: t = b u, d = c times the sum over j
     * of conv[.][j] t of token t - kernel + 1 + j */
    OP_CONV,
    /* Mamba-2. in: u, z, step before softplus. For each token in order, per head:
     *   c = silu(conv_bias + sum over j of conv[.][j] u of token t - kernel + 1 + j): x, B, C
     *   s = softplus(step + dt); M = e^(s decay) M + (s x) B^T; y = M C + skip x
     *   d = norm(y silu(z)), the norm over the heads of a group; without @norm y silu(z) */
    OP_MAMBA,
    /* Mamba-1. in: u, z. The convolution gives x, as that of MAMBA does. For each token in order,
     * with a step s, a row of M and a decay for each channel:
     *   t, B, C = the parts of w[0] x, each with its RMS norm
     *   s = softplus(w[1] t + dt); M = e^(s decay) M + (s x) B^T; y = M C + skip x
     *   d = y silu(z) */
    OP_SCAN,
    /* Down projections of latent attention: l = w[0] y (key), r = w[1] y (query). mla.q_rank 0:
     * w[1] y is q already, and MLA_Q is absent. */
    OP_MLA_IN,
    /* q = w[0] norm(r): for each head, n_nope values without RoPE, then n_rot values with RoPE */
    OP_MLA_Q,
    /* Writes the key, which is the value too, to the pages of @kv: (norm of the first mla.rank
     * values of l, rope of the rest). Writes the queries for ATTEND in absorbed form: temper
     * (w[0][head] times the head's first n_nope values of q, rope of the rest). */
    OP_MLA_KV,
    /* Follows ATTEND: for each head, d = w[0][head] times the first mla.rank values of o */
    OP_MLA_OUT,
    /* Keeps hidden states for DRAFT_IN. x = norm x; with @centred x = (x - mean) / sqrt(variance +
     * eps) * norm; without norm x stays. The hidden state is x, or w[0] x. It is kept for every row
     * of this step, and per slot for the last ENGINE_KEPT positions. A row with n_ahead counts as
     * position pos0 + n_ahead. @streams: the hidden state is all residual streams, and x stays. */
    OP_KEEP,
    /* Input of a draft block: x = w[0] (q_norm x, k_norm h), where the two vectors are concatenated
     * and h is the hidden state kept for the preceding position, or zeros if none is kept. A norm
     * that is NULL changes nothing. From here on x has as many values as w[0] has rows. Pass 0 has
     * one DRAFT_IN for each draft block; @part of them follow this one. @streams: each stream of h
     * yields one stream of s, and x is undefined afterwards. */
    OP_DRAFT_IN,
    /* copies x to part @part of the tap buffer, of n_taps parts */
    OP_TAP,
    /* x = w[0] t, where t is the tap buffer that TAP filled */
    OP_FUSE,
    /* Before a branch of a block drafter: c = norm x, the dynamic taps d = w[0] c, x = convolution
     * of c on side 0 with taps d and @weigh (engine/blocks.h). BLOCK_OUT needs the former x, which
     * is saved. */
    OP_BLOCK_IN,
    /* After the branch: x = (saved x + post_norm(c)) * scale, c = convolution of b on side 1 with
     * the taps d of BLOCK_IN and @weigh */
    OP_BLOCK_OUT,
    /* Follows LOGITS: g = w[0] y for the rows with a want; block_select() then chooses the tokens
     * with the tables w[1] of predecessors and w[2] of successors. */
    OP_SELECT,
    /* Follows LOGITS, whose output is c: for the wanted rows of each sequence from row first_draft
     * on, in order, c += w[0] (row a of w[1]), where a is the token before the one that c predicts
     * (block_before()). */
    OP_CHAIN,
    /* Adds a branch to the residual streams: s[i] += weight[i] b with the weights of the preceding
     * MIX, or s[i] = weight[i] b + the sum over j of share[j][i] s[j] with those of the preceding
     * HC_IN. @begins: s[i] = x. */
    OP_HC_OUT,
    /* f = q_norm of each stream; g = sigmoid(w[0] silu(w[1] f / n)), n streams; x = the mean of the
     * streams of f g; weight = 2 sigmoid(w[2] f / n), one for each stream; b = 0 */
    OP_MIX,
    /* Forms x from the residual streams: m = w[0] s / sqrt(mean of s^2 + eps), where s is all
     * streams concatenated; sinkhorn.h turns m into weights, with scales @weigh and biases
     * @pick_bias; x = weighted sum of the streams; b = 0. After the last layer, m has only the
     * weights of this sum, and none for HC_OUT. */
    OP_HC_IN,
    /* Alternating updates (AltUp, Baykal et al. 2023) of n residual streams. Begins them: s[0] = x,
     * s[i] = w[i - 1] x, scaled to the length of x (ALT_LEAST). */
    OP_ALT_BEGIN,
    /* r = tanh(w[0] y / n_embd), y = norm s[0]; s[i] += sum over j of (row i n + j of weigh . r)
     * s[j], with s[j] before the op; x = s[0] */
    OP_ALT_PREDICT,
    /* r = tanh(w[0] y / n_embd); s[i] += (1 + row i of weigh . r) (x - s[0]), with s[0] before the
     * op; x = pick_bias s[0], element by element. The next HC_OUT adds b to all streams but
     * s[0]. */
    OP_ALT_CORRECT,
    /* x = the mean of s[0] and of all w[i - 1] s[i], scaled to the length of s[0] */
    OP_ALT_END,
    /* Learned residual of low rank (LAuReL, Menghani et al. 2024): b += y + post_norm(w[1] w[0] y),
     * y = q_norm x */
    OP_LAUREL,
    /* e = the token's rows of the table, concatenated; for each stream, norms by stream:
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
     * keys after the whole blocks. State, at @more: w[1] x of the tokens of the block that is not
     * whole, by their place in it. */
    OP_INDEX,
    /* Down projections of attention to compressed keys: r = q_norm(w[0] y), k = rope(k_norm(w[1]
     * y)), and for the indexer t = w[2] y / sqrt(index_dim n_index). w[2] NULL: the layer has no
     * indexer. */
    OP_CSA_IN,
    /* Stores k in the window of the op's layer, for rows without queries in that layer. */
    OP_CSA_KEYS,
    /* q = rope(RMS norm, without weights, of w[0] r), per head */
    OP_CSA_Q,
    /* Writes the compressed keys of the blocks that end in this step to the pages. For each
     * channel: the mean of u = w[0] y over the block's tokens, weighted by the softmax of w[1] y +
     * weigh[index of the token in the block]; then rope(k_norm(mean)) at the block's first
     * position. For short blocks u and the weights are twice as wide, because a key covers two
     * blocks in one softmax: the second half belongs to tokens of the block itself, the first half
     * to tokens of the block before. State, at @more: u and w[1] y of the last tokens (two short
     * blocks or one long block), at index position % number of tokens. */
    OP_COMPRESS,
    /* Picks the short blocks that each row sees in the following CSA_ATTEND: the n_block blocks
     * with the largest sums over heads of t max(0, q . key), q = rope(w[0] r) (ties: the first
     * block). */
    OP_CSA_INDEX,
    /* o = attention of q to k of the positions in the window and to the keys of the complete blocks
     * up to the row's position. As keys are values too, the rotation of the output's rotary values
     * is undone by the row's position. */
    OP_CSA_ATTEND,
    /* d[part n, (part + 1) n) = w[0] times part @part of o; n is the number of rows of w[0] */
    OP_CSA_OUT,
    /* For the rows with a want: c = scale (w[0] y + b), then cap tanh(c / cap) if @cap is not 0. A
     * want of WANT_HIDDEN gets y instead. w[0] NULL: only WANT_HIDDEN may be asked for. */
    OP_LOGITS,
    OP_KINDS
};

struct kv_layer { /* place of one layer's keys and values in the pages */
    /* index among the layers that have pages of this class */
    uint32_t layer;
    uint8_t cls;
    /* values of a token that the layers before it take in a page */
    uint64_t at;
};

/* Number of keys in a tile of attention; tiles begin at multiples of it. A kernel may read the keys
 * of a tile that precede the row's window, but gives them no weight. */
enum { ATTEND_TILE = 32 };

/* Weights of keys in attention: softmax(cap(scale q . k)). */
struct attn {
    float scale;
    /* number of last keys that a row sees, its own included; 0: all */
    uint32_t window;
    /* a row sees the keys from the last multiple of @window on instead */
    bool chunked;
    /* cap(z) = cap tanh(z / cap); 0: cap(z) = z */
    float cap;
    /* Attention is not causal: a row also sees later rows of its sequence in the step. A
     * window begins where it would for causal attention. */
    bool whole;
    /* with @whole: largest distance between a row and the keys that it sees, on both sides; 0: it
     * sees all */
    uint32_t reach;
    /* a row of a picture also sees the picture's later rows, which are in the same step */
    bool two_way;
    /* the row's own key is excluded, although a window counts it */
    bool before;
    /* keys written by HOLES get no weight; not together with cap or slope */
    bool holes;
    /* a row sees only the keys that the preceding INDEX chose */
    bool sparse;
    /* [heads.n] or NULL. slope[h] times the distance between row and key is subtracted from the
     * scores of head h (ALiBi, Press et al. 2022). */
    const float *slope;
};

/* Returns the first position that a row at @pos sees. */
static inline uint32_t attn_first(const struct attn *a, uint32_t pos) {
    if (a->reach)
        return pos - MIN(pos, a->reach);
    if (a->window == 0)
        return 0;
    if (a->chunked)
        return pos - pos % a->window;
    return pos >= a->window ? pos - a->window + 1 : 0;
}

/* Temperature of queries by position: a factor of 1 + slope ln(1 + floor((position + ahead) /
 * span)). */
struct temper {
    /* 0: the factor is 1 */
    float slope;
    uint32_t span, ahead;
};

/* Returns the factor of a query at @pos. */
float temper_at(const struct temper *t, uint32_t pos);

/* -- arguments: what only some kinds of ops have ----------------------------------------------- */

struct op_qkv { /* QKV, KEYS */
    /* QKV */
    bool gated, v_unit;
    /* q_norm and k_norm are over all heads together */
    bool norm_all;
    /* q_norm and k_norm are applied after RoPE */
    bool norm_late;
    /* QKV */
    struct temper temper;
};

struct op_ffn { /* GATE_UP, GATE_IN, EXPERTS, SHARED */
    enum glu glu;
    /* GATE_UP, EXPERTS: limit of GLU_SILU (0: none) and GLU_CUT */
    float limit;
    /* EXPERTS */
    bool joined, early;
    /* GATE_UP with GLU_GELU */
    float sparsity;
    /* GATE_UP with GLU_XIELU */
    struct xielu xielu;
};

struct op_state_in { /* STATE_IN */
    bool parts;
    uint8_t first;
    enum state_low { LOW_NONE, LOW_DOWN, LOW_UP } low;
};

struct op_recurrent { /* DELTA, KDA, CONV, MAMBA, SCAN */
    /* index of the layer among those with a state */
    uint32_t state;
    /* DELTA: STATE_IN has no w[3] */
    bool joined;
    /* DELTA: silu(z) is sigmoid(z) instead */
    bool sigmoid;
    /* [channels][kernel], and [channels] */
    const struct tensor *conv, *conv_bias;
    /* KDA: the channels that follow those of conv */
    const struct tensor *conv_more[2];
    /* DELTA, MAMBA: for each (value) head; SCAN: for each channel, decay [channels][n_state] */
    const struct tensor *dt, *decay, *skip;
    /* SCAN: weights of the norms of t, B and C */
    const struct tensor *part_norm[3];
};

struct op_ngram { /* NGRAM */
    /* [channels][kernel] */
    const struct tensor *conv;
    /* stays in the file, from which the rows of each step are read */
    const struct tensor *table;
};

struct op_csa { /* COMPRESS, CSA_INDEX, CSA_ATTEND, CSA_KEYS */
    /* CSA_ATTEND, CSA_KEYS: index of the layer among those with a state */
    uint32_t state;
    /* positions of a block; 0: no blocks */
    uint32_t block;
    /* values that the keys of earlier layers take of a block */
    uint64_t first_value;
};

struct op_keep { /* KEEP, DRAFT_IN */
    bool centred, streams;
};

/*
 * Links of an op to others of its pass, where a backend computes neighbours together: results that
 * it takes from them or leaves to them. fuse.h sets them before the weights are loaded. Ops that
 * are computed alone have no links.
 */
struct op_links {
    /* The op before, whose addition to x this op computes together with its own norm; a DEEP among
     * them has links of its own. */
    const struct model_op *adds;
    /* The op whose intermediate result this op completes: a PROJ that of the op that computed its
     * input, EXPERTS that of ROUTE, SHARED that of EXPERTS */
    const struct model_op *from;
    /* op with this op as @adds or @from; NULL: nothing is left */
    const struct model_op *into;
    /* bits of the passes in which it makes the work list that later ops use, too */
    uint32_t first;
    /* KEEP: a DRAFT_IN precedes it in the pass */
    bool paired;
    /* LOGITS: a KEEP precedes it in the pass */
    bool kept;
};

/*
 * One op of a pass: its kind and operands. Only the members that the kind reads are set; comments
 * name the main ones of these kinds. NULL: the model has no such tensor. A layer is a sequence of
 * ops (engine/arch).
 */
struct model_op {
    enum op_kind kind;
    /* number of the layer in the file */
    uint32_t layer;
    /* PROJ: ACT_O, ACT_H or ACT_D */
    enum act_role in;
    /* width of x: n_embd, or less in pass 1 after DRAFT_IN */
    uint32_t width;
    /* DEEP, CSA_OUT, DRAFT_IN, TAP */
    uint32_t part;
    /* ops that rotate: index into model_shape.rope */
    uint8_t rope;
    /* PROJ, EXPERTS, SHARED */
    bool branch;
    /* EMBED, PROJ, JOIN, ROUTE, LOGITS */
    float scale;
    /* PROJ */
    float gain;
    /* PROJ: 0: model_shape.rms_eps */
    float post_eps;
    /* QKV, KEYS, ATTEND: may be that of an earlier layer whose keys this layer shares */
    struct kv_layer kv;
    /* QKV, KEYS, ATTEND, GATE */
    struct heads heads;
    /* NGRAM, INDEX, COMPRESS; CSA_KEYS and CSA_ATTEND of a draft pass: offset of its part of
     * state_shape.n_more, in floats */
    uint64_t more;
    /* ATTEND, CSA_ATTEND: attention sinks: a score for each head that takes part in the softmax
     * and has no value */
    const struct tensor *sinks;
    /* Weights of the norm of the input: QKV, KEYS, KEEP, GATE_UP, ROUTE, EXPERTS, STATE_IN,
     * LOGITS; of the output: DELTA, MAMBA */
    /* post_norm of LAYER_INPUT, PROJ, JOIN, EXPERTS, NGRAM */
    const struct tensor *norm, *post_norm;
    /* of NORM, and of norms of the input if model_shape.layer_norm; NULL: zeros */
    const struct tensor *norm_bias;
    /* QKV: q, k, v; GATE_UP: gate, up; EXPERTS: gate, up, down, each [expert][out][in]; SHARED:
     * gate, up, down, and the gate of the output; STATE_IN: see above; other kinds: w[0], or see
     * above */
    const struct tensor *w[OP_MATRICES];
    /* EXPERTS: [expert][out] */
    const struct tensor *bias[OP_MATRICES];
    /* EXPERTS: weigh, a factor for each expert; ROUTE: pick_bias, for each expert; HC_IN, COMPRESS:
     * see above */
    const struct tensor *weigh, *pick_bias;
    /* Weights of the RMS norm before RoPE: QKV, KEYS (per head, or all heads together), INDEX; MIX,
     * NGRAM: per stream */
    const struct tensor *q_norm, *k_norm;
    union { /* by kind */
        struct op_qkv qkv;
        /* ATTEND */
        struct attn attn;
        /* NORM */
        bool rms;
        /* MLA_KV */
        struct temper temper;
        /* GATE */
        bool sigmoid;
        struct op_ffn ffn;
        struct op_state_in state_in;
        struct op_recurrent recurrent;
        /* ROUTE: the table of picks, I32 */
        const struct tensor *picks;
        struct op_ngram ngram;
        /* INDEX: index of the layer among those of model_shape.sparse */
        uint32_t index;
        struct op_csa csa;
        /* HC_OUT */
        bool begins;
        struct op_keep keep;
        /* LOGITS: 0: no cap */
        float cap;
    };
    struct op_links links;
    /* set by load(); NULL before */
    struct weights *weights;
};

/* Returns the arguments of a recurrent op; NULL: the op has another kind. */
static inline const struct op_recurrent *op_recurrent(const struct model_op *op) {
    switch (op->kind) {
    case OP_DELTA:
    case OP_KDA:
    case OP_CONV:
    case OP_MAMBA:
    case OP_SCAN:
        return &op->recurrent;
    default:
        return NULL;
    }
}

/* Returns the temperature of the op's queries; NULL: its kind has none. */
static inline const struct temper *op_temper(const struct model_op *op) {
    switch (op->kind) {
    case OP_QKV:
        return &op->qkv.temper;
    case OP_MLA_KV:
        return &op->temper;
    default:
        return NULL;
    }
}

/* Returns true if the op has weights to load. */
static inline bool op_has_weights(const struct model_op *op) {
    return op->w[0] || op->norm || op->sinks || op->post_norm || op->weigh || op_recurrent(op) ||
           op->kind == OP_NORM || op->kind == OP_KEEP;
}

/* Returns the number of the op of the model @op that has the weights of op @i: @i, or an earlier
 * one, since passes share their embedding and logits, and layers that run several times share their
 * weights. */
static inline uint32_t op_weights_of(const struct model_op *op, uint32_t i) {
    static const uint64_t kinds = 1ull << OP_EMBED | 1ull << OP_LOGITS | 1ull << OP_QKV |
                                  1ull << OP_PROJ | 1ull << OP_GATE_UP;

    for (uint32_t k = 0; k < i && kinds >> op[i].kind & 1; k++)
        if (op[k].kind == op[i].kind && op[k].w[0] == op[i].w[0] && op[k].norm == op[i].norm)
            return k;
    return i;
}

/* Returns the tensor that has the taps of channel *@c, and sets *@c to the row in that tensor. */
static inline const struct tensor *op_taps(const struct op_recurrent *r, uint64_t *c) {
    uint64_t each = r->conv->ne[1] * r->conv->ne[2], part = *c / each;

    if (!r->conv_more[0])
        return r->conv;
    *c %= each;
    return part ? r->conv_more[part - 1] : r->conv;
}
