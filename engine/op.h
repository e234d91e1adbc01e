#pragma once

/*
 * op - the operands of the ops that a model consists of (engine/arch builds the list). Their kinds
 * and formulas are in op_list.h. An op is as large as a fused GPU kernel can make it: a dense layer
 * is five ops. Private to engine/.
 *
 * To the model, activations are rows of f32, one row for each token of the batch; a backend may
 * store them in any form.
 *
 * Letters in these formulas: x is a row of the residual stream (ACT_X), y the row after the op's
 * norm (op.norm; y = x if it is NULL), t a temporary. The other letters are buffers of enum
 * act_role in lower case (q, o, h, d, b, p, s) or are defined where they are used. "w[0] y" is the
 * product of a matrix and a row.
 */

#include "engine/shape.h"
#include "engine/shared/xielu.h"

struct weights; /* tensors of one op, in the layout of the backend */

/* Activation buffers by role. A backend allocates [max_rows][width] of each at open; the widths, in
 * values, follow. */
enum act_role {
    /* residual stream, n_embd */
    ACT_X,
    /* queries, model_shape.widest.q */
    ACT_Q,
    /* output of attention, heads_value() of each head, model_shape.widest.q */
    ACT_O,
    /* FFN hidden, n_ff */
    ACT_H,
    /* output of a recurrent op, state.n_out; of MLA_OUT, n_head * mla.n_value; input and output of
     * experts in a latent space, n_latent */
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

/* Heads of an attention layer: @n query heads; n / n_kv successive query heads share a key head
 * (GQA). */
struct heads {
    /* dim: values of a query and of a key */
    uint32_t n, n_kv, dim;
    /* values of a value, at most dim; 0: as many. A page has room for dim. */
    uint32_t value;
};

/* Returns the number of values of a head's value, and of its part of o. */
static inline uint32_t heads_value(const struct heads *h) {
    if (h->value)
        return h->value;
    return h->dim;
}

/* Kinds of ops. A backend has one function for each kind. */
enum op_kind {
#define OP(kind, name, feature, cost) OP_##kind,
#include "engine/op_list.h"
#undef OP
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
    if (pos < a->window)
        return 0;
    return pos - a->window + 1;
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
    /* each head has weights of its own in q_norm and k_norm, [heads][dim] */
    bool norm_each;
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
    bool joined, early, latent;
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
    /* SCAN */
    bool by_head;
    /* DELTA, MAMBA, SCAN by head: for each (value) head; SCAN: for each channel, decay
     * [channels][n_state] */
    const struct tensor *dt, *decay, *skip;
    /* SCAN: weights of the norms of the parts, in their order */
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
    /* From this op on, each row depends on itself alone, and only rows with a want are read. */
    bool narrows;
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
    /* ROUTE, EXPERTS: experts that a row picks; model_add() sets it to n_expert_used */
    uint32_t n_used;
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
    /* NGRAM, INDEX, POOL_KEYS, COMPRESS; CSA_KEYS and CSA_ATTEND of a draft pass: offset of its
     * part of state_shape.n_more, in floats */
    uint64_t more;
    /* ATTEND, CSA_ATTEND: attention sinks: a score for each head that takes part in the softmax
     * and has no value */
    const struct tensor *sinks;
    /* Weights of the norm of the input: QKV, KEYS, KEEP, GATE_UP, ROUTE, EXPERTS, STATE_IN,
     * LOGITS; of the output: DELTA, MAMBA */
    /* post_norm of LAYER_INPUT, PROJ, JOIN, EXPERTS, NGRAM */
    const struct tensor *norm, *post_norm;
    /* of NORM, of k_norm of POOL_KEYS, and of norms of the input if model_shape.layer_norm; NULL:
     * zeros */
    const struct tensor *norm_bias;
    /* QKV: q, k, v; GATE_UP: gate, up; EXPERTS: gate, up, down, each [expert][out][in]; SHARED:
     * gate, up, down, and the gate of the output; STATE_IN: see above; other kinds: w[0], or see
     * above */
    const struct tensor *w[OP_MATRICES];
    /* EXPERTS: [expert][out] */
    const struct tensor *bias[OP_MATRICES];
    /* EXPERTS: weigh, a factor for each expert; ROUTE: pick_bias, for each expert; HC_IN, COMPRESS,
     * POOL_KEYS: see above */
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
        /* INDEX, POOL_KEYS, POOL_INDEX, HEAD_INDEX: index of the layer among those of
         * model_shape.sparse */
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

/* Returns true for the GATE_UP and the PROJ of an FFN that the host computes. */
static inline bool op_is_hosts(const struct model_shape *s, const struct model_op *op) {
    if (op->kind != OP_GATE_UP && !(op->kind == OP_PROJ && op->in == ACT_H))
        return false;
    return ffn_is_hosts(s, op->layer);
}

/* Returns the buffer to which the result of PROJ, EXPERTS or SHARED is added. */
static inline enum act_role op_sum(const struct model_op *op) {
    if (op->kind == OP_EXPERTS && op->ffn.latent)
        return ACT_D;
    if (op->branch)
        return ACT_B;
    return ACT_X;
}

/* Returns the buffer of the hidden states of KEEP and DRAFT_IN. */
static inline enum act_role op_hidden(const struct model_op *op) {
    if (op->keep.streams)
        return ACT_S;
    return ACT_X;
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
    if (part)
        return r->conv_more[part - 1];
    return r->conv;
}
