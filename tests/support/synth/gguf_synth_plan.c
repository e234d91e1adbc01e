#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/synth/gguf_synth.h"

/* general.file_type of a model whose matrices are all of one format; for the formats that llama.cpp
 * only knows in mixes, the number of the smallest mix. */
static const struct {
    const char *format;
    uint32_t file_type;
    /* more: what the mix gives to the tensors that need more bits */
    enum tensor_type base, more;
    /* format of all experts' matrices; F32: `base` */
    enum tensor_type stack;
} types[] = {
    {"F32", 0, TENSOR_F32, TENSOR_F32, TENSOR_F32},
    {"F16", 1, TENSOR_F16, TENSOR_F16, TENSOR_F32},
    {"Q4_0", 2, TENSOR_Q4_0, TENSOR_Q4_0, TENSOR_F32},
    {"Q4_1", 3, TENSOR_Q4_1, TENSOR_Q4_1, TENSOR_F32},
    {"Q8_0", 7, TENSOR_Q8_0, TENSOR_Q8_0, TENSOR_F32},
    {"Q5_0", 8, TENSOR_Q5_0, TENSOR_Q5_0, TENSOR_F32},
    {"Q5_1", 9, TENSOR_Q5_1, TENSOR_Q5_1, TENSOR_F32},
    {"Q2_K", 10, TENSOR_Q2_K, TENSOR_Q2_K, TENSOR_F32},
    {"Q3_K", 11, TENSOR_Q3_K, TENSOR_Q3_K, TENSOR_F32},
    {"Q4_K", 14, TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_F32},
    {"Q4_K_M", 15, TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_F32},
    {"Q5_K", 16, TENSOR_Q5_K, TENSOR_Q5_K, TENSOR_F32},
    {"Q5_K_M", 17, TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_F32},
    {"Q6_K", 18, TENSOR_Q6_K, TENSOR_Q6_K, TENSOR_F32},
    {"IQ2_XXS", 19, TENSOR_IQ2_XXS, TENSOR_IQ2_XXS, TENSOR_F32},
    {"IQ4_NL", 25, TENSOR_IQ4_NL, TENSOR_IQ4_NL, TENSOR_F32},
    {"IQ4_XS", 30, TENSOR_IQ4_XS, TENSOR_IQ4_XS, TENSOR_F32},
    {"BF16", 32, TENSOR_BF16, TENSOR_BF16, TENSOR_F32},
    {"MXFP4", 38, TENSOR_MXFP4, TENSOR_MXFP4, TENSOR_F32},
    {"IQ2_XS", 20, TENSOR_IQ2_XS, TENSOR_IQ2_XS, TENSOR_F32},
    {"IQ3_XXS", 23, TENSOR_IQ3_XXS, TENSOR_IQ3_XXS, TENSOR_F32},
    {"IQ1_S", 24, TENSOR_IQ1_S, TENSOR_IQ1_S, TENSOR_F32},
    {"IQ3_S", 26, TENSOR_IQ3_S, TENSOR_IQ3_S, TENSOR_F32},
    {"IQ2_S", 28, TENSOR_IQ2_S, TENSOR_IQ2_S, TENSOR_F32},
    {"IQ1_M", 31, TENSOR_IQ1_M, TENSOR_IQ1_M, TENSOR_F32},
    {"TQ1_0", 36, TENSOR_TQ1_0, TENSOR_TQ1_0, TENSOR_F32},
    {"TQ2_0", 37, TENSOR_TQ2_0, TENSOR_TQ2_0, TENSOR_F32},
    {"NVFP4", 39, TENSOR_NVFP4, TENSOR_NVFP4, TENSOR_F32},
    {"MXFP4_MOE", 38, TENSOR_Q8_0, TENSOR_Q8_0, TENSOR_MXFP4},
};

/* Returns the format for rows that do not fill a block of 256: one of 32 values with about as many
 * bits; for rows that do not fill that, F16. llama.cpp's quantiser does the same. */
static enum tensor_type fit(enum tensor_type type, uint64_t row) {
    static const struct {
        enum tensor_type wide, narrow;
    } fallback[] = {
        {TENSOR_Q2_K, TENSOR_Q4_0},      {TENSOR_Q3_K, TENSOR_Q4_0},
        {TENSOR_Q4_K, TENSOR_Q5_0},      {TENSOR_Q5_K, TENSOR_Q5_1},
        {TENSOR_Q6_K, TENSOR_Q8_0},      {TENSOR_IQ4_XS, TENSOR_IQ4_NL},
        {TENSOR_IQ2_XXS, TENSOR_IQ4_NL}, {TENSOR_IQ1_S, TENSOR_IQ4_NL},
        {TENSOR_IQ1_M, TENSOR_IQ4_NL},   {TENSOR_IQ2_XS, TENSOR_IQ4_NL},
        {TENSOR_IQ2_S, TENSOR_IQ4_NL},   {TENSOR_IQ3_XXS, TENSOR_IQ4_NL},
        {TENSOR_IQ3_S, TENSOR_IQ4_NL},   {TENSOR_TQ1_0, TENSOR_Q4_0},
        {TENSOR_TQ2_0, TENSOR_Q4_0},
    };

    for (size_t i = 0; row % 256 && i < ARRAY_SIZE(fallback); i++)
        if (type == fallback[i].wide) {
            type = fallback[i].narrow;
            break;
        }
    return row % tensor_format(type)->block ? TENSOR_F16 : type;
}

/* Returns whether attn_v, attn_qkv and ffn_down of layer @i of @n get more bits in the K_M
 * mixes. */
static bool use_more_bits(uint32_t i, uint32_t n) {
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

enum { LAYER_TENSORS = 34 }; /* most tensors of a layer */

/* State of the functions below, which add tensors in the order of the file. */
struct planner {
    struct synth_plan *plan;
    const struct synth_shape *shape;
    enum tensor_type base, more, stack;
    /* n_v: tensors of ROLE_V so far */
    uint32_t layer, n_v;
};

/* Counts the tensors of ROLE_V in all layers. */
static uint32_t count_v(const struct synth_shape *s) {
    uint32_t n = s->n_layer + s->n_mtp;

    bool none = s->arch == SYNTH_DEEPSEEK2 || s->arch == SYNTH_DEEPSEEK4;

    if (s->arch == SYNTH_BAILING3)
        return s->n_layer - s->n_layer / s->period;
    return s->arch == SYNTH_GEMMA4 ? n - n / s->period : none ? 0 : n;
}

static struct synth_tensor *add(struct planner *p, enum synth_role role, uint32_t n_dims,
                                uint64_t ne0, uint64_t ne1, const char *fmt, va_list ap) {
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors++];

    *t = (struct synth_tensor){.role = role, .n_dims = n_dims, .ne = {ne0, ne1, 1, 1}};
    vsnprintf(t->name, sizeof(t->name), fmt, ap);
    return t;
}

/* Adds weights of standard deviation @gain / sqrt(@n_in): the product with a vector of unit size
 * has size @gain. */
static void matrix(struct planner *p, enum synth_role role, double gain, uint64_t n_in,
                   uint64_t n_out, const char *fmt, ...) PRINTF(6, 7);
static void matrix(struct planner *p, enum synth_role role, double gain, uint64_t n_in,
                   uint64_t n_out, const char *fmt, ...) {
    const struct synth_shape *s = p->shape;
    bool more = role == ROLE_OUTPUT || (role == ROLE_EMBED && s->tied) ||
                (role == ROLE_V && use_more_bits(p->n_v++, count_v(s))) ||
                (role == ROLE_DOWN && use_more_bits(p->layer, s->n_layer));
    va_list ap;

    va_start(ap, fmt);
    struct synth_tensor *t = add(p, role, 2, n_in, n_out, fmt, ap);
    va_end(ap);
    t->format = tensor_format(fit(more ? p->more : p->base, n_in));
    assert(gain > 0 && n_in > 0);
    t->std = gain / sqrt((double)n_in);
    bool adds = role == ROLE_DOWN || strstr(t->name, "attn_output") || strstr(t->name, "ssm_out");
    if (adds && s->loud != 0)
        t->std *= s->loud;
}

/* Adds a vector of @n values of @mean and standard deviation @std in F32. */
static void vector(struct planner *p, double mean, double std, uint64_t n, const char *fmt, ...)
    PRINTF(5, 6);
static void vector(struct planner *p, double mean, double std, uint64_t n, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    struct synth_tensor *t = add(p, ROLE_VECTOR, 1, n, 1, fmt, ap);
    va_end(ap);
    t->format = tensor_format(TENSOR_F32);
    t->mean = mean;
    t->std = std;
}

/* Adds @n matrices, of all experts or heads, as one tensor. */
static void matrices(struct planner *p, enum synth_role role, double gain, uint64_t n_in,
                     uint64_t n_out, uint32_t n, const char *name) {
    assert(n > 0);
    matrix(p, role, gain, n_in, n_out, "blk.%u.%s.weight", p->layer, name);
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors - 1];
    t->n_dims = 3;
    t->ne[2] = n;
    if (p->stack != TENSOR_F32)
        t->format = tensor_format(fit(p->stack, n_in));
}

/* Adds a vector for each of @n experts as one tensor. */
static void vectors(struct planner *p, double std, uint64_t n_values, uint32_t n,
                    const char *name) {
    vector(p, 0, std, n_values, "blk.%u.%s.bias", p->layer, name);
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors - 1];
    t->n_dims = 2;
    t->ne[1] = n;
}

/* Returns the mean of the weights of norms behind branches: the shape's, or 1. */
static double quiet(const struct synth_shape *s) {
    return s->loud != 0 ? s->loud : 1;
}

/* Adds the expert of all rows; in hybrid models also its gate. */
static void plan_shared(struct planner *p, uint32_t i) {
    uint64_t E = p->shape->n_embd, F = p->shape->n_shared;

    if (synth_is_hybrid(p->shape))
        vector(p, 0, 1.5 / sqrt((double)E), E, "blk.%u.ffn_gate_inp_shexp.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, F, "blk.%u.ffn_gate_shexp.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, F, "blk.%u.ffn_up_shexp.weight", i);
    matrix(p, ROLE_DOWN, 1.2, F, E, "blk.%u.ffn_down_shexp.weight", i);
}

static void plan_dense(struct planner *p, uint32_t i, uint64_t F) {
    uint64_t E = p->shape->n_embd;

    matrix(p, ROLE_MATRIX, 1.5, E, F, "blk.%u.ffn_gate.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, F, "blk.%u.ffn_up.weight", i);
    matrix(p, ROLE_DOWN, 1.2, F, E, "blk.%u.ffn_down.weight", i);
}

/* Adds the router, whose matrix is not quantised. */
static void plan_router(struct planner *p, uint32_t i) {
    matrix(p, ROLE_MATRIX, 1.5, p->shape->n_embd, p->shape->n_expert, "blk.%u.ffn_gate_inp.weight",
           i);
    p->plan->tensor[p->plan->n_tensors - 1].format = tensor_format(TENSOR_F32);
}

/* Adds the table of the experts of each token. */
static void plan_picks(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;

    vector(p, s->n_expert, 0, s->n_used, "blk.%u.ffn_gate_tid2eid.weight", i);
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors - 1];
    t->role = ROLE_PICKS;
    t->format = tensor_format(TENSOR_I32);
    t->n_dims = 2;
    t->ne[1] = s->n_vocab;
}

static void plan_experts(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    uint64_t E = s->n_embd, F = s->n_ff;
    uint32_t n = s->n_expert;

    plan_router(p, i);
    matrices(p, ROLE_MATRIX, 1.5, E, F, n, "ffn_gate_exps");
    matrices(p, ROLE_MATRIX, 1.5, E, F, n, "ffn_up_exps");
    matrices(p, ROLE_DOWN, 1.2, F, E, n, "ffn_down_exps");
    if (s->arch == SYNTH_GPT_OSS) {
        vector(p, 0, 0.5, n, "blk.%u.ffn_gate_inp.bias", i);
        vectors(p, 0.3, F, n, "ffn_gate_exps");
        vectors(p, 0.3, F, n, "ffn_up_exps");
        vectors(p, 0.3, E, n, "ffn_down_exps");
    }
    if (s->arch == SYNTH_DEEPSEEK4 && i < SYNTH_BY_TOKEN)
        plan_picks(p, i);
    else if (synth_is_latent(s) || s->arch == SYNTH_DEEPSEEK4 || s->arch == SYNTH_STEP35 ||
             s->arch == SYNTH_MINIMAX)
        vector(p, 0, 0.05, n, "blk.%u.exp_probs_b.bias", i);
    if (s->n_shared)
        plan_shared(p, i);
}

/* Experts beside a dense FFN, each with norms before and behind it. The router divides its input by
 * sqrt(E). */
static void plan_beside(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    uint64_t E = s->n_embd;
    double root = sqrt((double)E);

    plan_dense(p, i, s->n_dense);
    plan_router(p, i);
    vector(p, root, 0.1 * root, E, "blk.%u.ffn_gate_inp.scale", i);
    matrices(p, ROLE_MATRIX, 1.5, E, 2ull * s->n_ff, s->n_expert, "ffn_gate_up_exps");
    matrices(p, ROLE_DOWN, 1.2, s->n_ff, E, s->n_expert, "ffn_down_exps");
    vector(p, 1, 0.1, s->n_expert, "blk.%u.ffn_down_exps.scale", i);
    vector(p, 1, 0.1, E, "blk.%u.pre_ffw_norm_2.weight", i);
    vector(p, 0.7, 0.1, E, "blk.%u.post_ffw_norm_1.weight", i);
    vector(p, 0.7, 0.1, E, "blk.%u.post_ffw_norm_2.weight", i);
}

/* Adds the feed-forward part of layer @i: experts with their router, or one network. */
static void plan_ffn(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;

    if (s->arch == SYNTH_GEMMA4)
        plan_beside(p, i);
    else if (s->n_expert && i >= s->n_lead)
        plan_experts(p, i);
    else
        plan_dense(p, i, s->n_lead ? s->n_dense : s->n_ff);
    if (synth_is_gemma4(s) || s->arch == SYNTH_MUSE)
        vector(p, quiet(s), 0.1 * quiet(s), s->n_embd, "blk.%u.post_ffw_norm.weight", i);
    if (synth_is_gemma4(s))
        vector(p, 1, 0, 1, "blk.%u.layer_output_scale.weight", i);
}

/* Adds a gated delta net; heads forget half within about 1 to 100 tokens. */
static void plan_delta(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    uint64_t E = s->n_embd, inner = (uint64_t)s->n_value * s->n_state;
    uint64_t channels = 2ull * s->n_key * s->n_state + inner;

    matrix(p, ROLE_V, 1.5, E, channels, "blk.%u.attn_qkv.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, inner, "blk.%u.attn_gate.weight", i);
    matrix(p, ROLE_MATRIX, 1, 4, channels, "blk.%u.ssm_conv1d.weight", i);
    p->plan->tensor[p->plan->n_tensors - 1].format = tensor_format(TENSOR_F32);
    vector(p, -2, 1.5, s->n_value, "blk.%u.ssm_dt.bias", i);
    vector(p, -0.3, 0.05, s->n_value, "blk.%u.ssm_a", i);
    if (s->arch == SYNTH_QWEN3NEXT) {
        matrix(p, ROLE_MATRIX, 1, E, 2ull * s->n_value, "blk.%u.ssm_ba.weight", i);
    } else {
        matrix(p, ROLE_MATRIX, 1, E, s->n_value, "blk.%u.ssm_beta.weight", i);
        matrix(p, ROLE_MATRIX, 1, E, s->n_value, "blk.%u.ssm_alpha.weight", i);
    }
    vector(p, 1, 0.1, s->n_state, "blk.%u.ssm_norm.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, inner, E, "blk.%u.ssm_out.weight", i);
}

/* Latent attention: queries and keys through vectors of q_rank and kv_rank values. */
static void plan_latent(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    uint64_t E = s->n_embd, Q = (uint64_t)s->n_head * s->head_dim, R = s->kv_rank;
    uint64_t nope = s->head_dim - s->n_rot;

    if (s->q_rank) {
        matrix(p, ROLE_MATRIX, 1.5, E, s->q_rank, "blk.%u.attn_q_a.weight", i);
        vector(p, 1, 0.1, s->q_rank, "blk.%u.attn_q_a_norm.weight", i);
        matrix(p, ROLE_MATRIX, 1.5, s->q_rank, Q, "blk.%u.attn_q_b.weight", i);
    } else {
        matrix(p, ROLE_MATRIX, 1.5, E, Q, "blk.%u.attn_q.weight", i);
    }
    matrix(p, ROLE_MATRIX, 1.5, E, R + s->n_rot, "blk.%u.attn_kv_a_mqa.weight", i);
    vector(p, 1, 0.1, R, "blk.%u.attn_kv_a_norm.weight", i);
    matrices(p, ROLE_MATRIX, 1, nope, R, s->n_head, "attn_k_b");
    matrices(p, ROLE_MATRIX, 1, R, s->v_dim, s->n_head, "attn_v_b");
    if (s->arch == SYNTH_BAILING3)
        matrix(p, ROLE_MATRIX, 1.5, E, s->n_head, "blk.%u.attn_gate.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, (uint64_t)s->n_head * s->v_dim, E, "blk.%u.attn_output.weight", i);
}

/* Taps of the convolution of queries, keys or values, @which. */
static void plan_taps(struct planner *p, uint32_t i, uint64_t inner, char which) {
    matrix(p, ROLE_MATRIX, 1, 4, 1, "blk.%u.ssm_conv1d_%c.weight", i, which);
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors - 1];
    t->format = tensor_format(TENSOR_F32);
    t->n_dims = 3;
    t->ne[2] = inner;
}

/* Adds Kimi delta attention; a channel forgets half within about 1 to 100 tokens. */
static void plan_kda(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    uint64_t E = s->n_embd, inner = (uint64_t)s->n_head * s->v_dim;

    matrix(p, ROLE_MATRIX, 1.5, E, inner, "blk.%u.attn_q.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, inner, "blk.%u.attn_k.weight", i);
    matrix(p, ROLE_V, 1.5, E, inner, "blk.%u.attn_v.weight", i);
    plan_taps(p, i, inner, 'q');
    plan_taps(p, i, inner, 'k');
    plan_taps(p, i, inner, 'v');
    matrix(p, ROLE_MATRIX, 1, E, inner, "blk.%u.ssm_f_a.weight", i);
    vector(p, -4, 1.5, inner, "blk.%u.ssm_dt.bias", i);
    vector(p, 1, 0.2, 1, "blk.%u.ssm_a", i);
    p->plan->tensor[p->plan->n_tensors - 1].n_dims = 2;
    p->plan->tensor[p->plan->n_tensors - 1].ne[1] = s->n_head;
    matrix(p, ROLE_MATRIX, 1, E, s->n_head, "blk.%u.ssm_beta.weight", i);
    vector(p, 1, 0.1, s->v_dim, "blk.%u.ssm_norm.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, inner, "blk.%u.ssm_g_a.weight", i);
    matrix(p, ROLE_MATRIX, 2.5, inner, E, "blk.%u.attn_output.weight", i);
}

/* Adds the tensors that make one key of @dim values of a block of tokens, in two halves for short
 * blocks, which overlap. */
static void plan_compress(struct planner *p, uint32_t i, uint32_t dim, const char *what) {
    uint32_t block = synth_block(p->shape, i);
    uint64_t E = p->shape->n_embd, width = block == 4 ? 2ull * dim : dim;

    matrix(p, ROLE_MATRIX, 1.5, E, width, "blk.%u.%s_kv.weight", i, what);
    matrix(p, ROLE_MATRIX, 1, E, width, "blk.%u.%s_gate.weight", i, what);
    vector(p, 0, 0.3, width, "blk.%u.%s_ape.weight", i, what);
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors - 1];
    t->n_dims = 2;
    t->ne[1] = block;
    vector(p, 1.4, 0.2, dim, "blk.%u.%s_norm.weight", i, what);
}

/* Attention to a window and to compressed keys. */
static void plan_compressed(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    uint64_t E = s->n_embd, Q = (uint64_t)s->n_head * s->head_dim, R = s->q_rank;
    uint64_t out = (uint64_t)s->n_group * s->out_rank;

    matrix(p, ROLE_MATRIX, 1.5, E, R, "blk.%u.attn_q_a.weight", i);
    vector(p, 1, 0.1, R, "blk.%u.attn_q_a_norm.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, R, Q, "blk.%u.attn_q_b.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, s->head_dim, "blk.%u.attn_kv.weight", i);
    vector(p, 1.4, 0.2, s->head_dim, "blk.%u.attn_kv_a_norm.weight", i);
    vector(p, 0, 1, s->n_head, "blk.%u.attn_sinks.weight", i);
    if (synth_block(s, i))
        plan_compress(p, i, s->head_dim, "attn_compressor");
    if (synth_block(s, i) == 4) {
        plan_compress(p, i, s->index_dim, "indexer_compressor");
        matrix(p, ROLE_MATRIX, 1, E, s->n_index, "blk.%u.indexer.proj.weight", i);
        matrix(p, ROLE_MATRIX, 1, R, (uint64_t)s->n_index * s->index_dim,
               "blk.%u.indexer.attn_q_b.weight", i);
    }
    matrix(p, ROLE_MATRIX, 1.5, Q / s->n_group, out, "blk.%u.attn_output_a.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, out, E, "blk.%u.attn_output_b.weight", i);
}

static void plan_biases(struct planner *p, uint32_t i, uint64_t q, uint64_t kv) {
    vector(p, 0, 0.5, q, "blk.%u.attn_q.bias", i);
    vector(p, 0, 0.5, kv, "blk.%u.attn_k.bias", i);
    vector(p, 0, 0.3, kv, "blk.%u.attn_v.bias", i);
}

static void plan_attention(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    bool gemma = synth_is_gemma4(s), in_window = gemma && synth_in_window(s, i);
    uint64_t E = s->n_embd, D = in_window ? s->window_dim : s->head_dim, Q = synth_n_head(s, i) * D;
    uint64_t KV = (in_window ? s->n_kv_window : s->n_kv) * D;
    /* gemma4 does not scale scores. */
    double norm = gemma ? 1.4 / sqrt(sqrt((double)D)) : 1.4;
    bool all = s->arch == SYNTH_MINIMAX; /* norms are over all heads together */

    matrix(p, ROLE_MATRIX, 1.5, E, synth_is_hybrid(s) ? 2 * Q : Q, "blk.%u.attn_q.weight", i);
    if (s->arch != SYNTH_ASSISTANT)
        matrix(p, ROLE_MATRIX, 1.5, E, KV, "blk.%u.attn_k.weight", i);
    if (!gemma ||
        (in_window && s->arch == SYNTH_GEMMA4)) /* otherwise values are keys before their norm */
        matrix(p, ROLE_V, 1, E, KV, "blk.%u.attn_v.weight", i);
    if (s->arch == SYNTH_QWEN2 || s->arch == SYNTH_GPT_OSS)
        plan_biases(p, i, Q, KV);
    if (s->arch >= SYNTH_QWEN3 || gemma)
        vector(p, norm, norm / 7, all ? Q : D, "blk.%u.attn_q_norm.weight", i);
    if (s->arch >= SYNTH_QWEN3 || s->arch == SYNTH_GEMMA4) {
        vector(p, norm, norm / 7, all ? KV : D, "blk.%u.attn_k_norm.weight", i);
    }
    matrix(p, ROLE_MATRIX, 1.5, Q, E, "blk.%u.attn_output.weight", i);
    if (s->arch == SYNTH_MUSE || s->arch == SYNTH_STEP35)
        matrix(p, ROLE_MATRIX, 1.5, E, s->arch == SYNTH_MUSE ? Q : synth_n_head(s, i),
               "blk.%u.attn_gate.weight", i);
    if (s->arch == SYNTH_GPT_OSS) {
        vector(p, 0, 0.3, E, "blk.%u.attn_output.bias", i);
        vector(p, 0, 1, s->n_head, "blk.%u.attn_sinks.weight", i);
    }
}

/* The mix of residual streams, of whose products all but the last are divided by their number. */
static void plan_mix(struct planner *p, const char *name, bool ends) {
    const struct synth_shape *s = p->shape;
    uint64_t width = (uint64_t)s->n_stream * s->n_embd;

    vector(p, ends ? 2 : 1, 0.1, width, "%s_norm.weight", name);
    matrix(p, ROLE_MATRIX, 2.0 * s->n_stream, width, s->n_low, "%s_down.weight", name);
    matrix(p, ROLE_MATRIX, 2, s->n_low, width, "%s_up.weight", name);
    if (!ends)
        matrix(p, ROLE_MATRIX, 1.5 * s->n_stream, width, s->n_stream, "%s_inject.weight", name);
}

/* The mixes of a layer of qwen4exp, its indexer, and the use of the table of n-grams. */
static void plan_streams(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    uint64_t E = s->n_embd, width = s->n_stream * E;
    char name[32];

    snprintf(name, sizeof(name), "blk.%u.hc_attn", i);
    plan_mix(p, name, false);
    snprintf(name, sizeof(name), "blk.%u.hc_ffn", i);
    plan_mix(p, name, false);
    if ((i + 1) % 4 == 0) {
        matrix(p, ROLE_MATRIX, 1, E, (uint64_t)s->n_index * s->index_dim,
               "blk.%u.indexer.q_proj.weight", i);
        matrix(p, ROLE_MATRIX, 1, E, s->index_dim, "blk.%u.indexer.k_proj.weight", i);
        vector(p, 1.2, 0.2, s->index_dim, "blk.%u.indexer.q_norm.weight", i);
        vector(p, 1.2, 0.2, s->index_dim, "blk.%u.indexer.k_norm.weight", i);
    }
    if (i != 1)
        return;
    matrix(p, ROLE_MATRIX, 1, E, width, "blk.%u.ple_key.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, E, "blk.%u.ple_value.weight", i);
    vector(p, 1, 0.1, width, "blk.%u.ple_norm_key.weight", i);
    vector(p, 1, 0.1, width, "blk.%u.ple_norm_query.weight", i);
    vector(p, 1, 0.1, width, "blk.%u.ple_norm_conv.weight", i);
    matrix(p, ROLE_MATRIX, 1, 4, width, "blk.%u.ple_conv1d.weight", i);
    p->plan->tensor[p->plan->n_tensors - 1].format = tensor_format(TENSOR_F32);
}

/* The weights of the streams of deepseek4, @n for a row. They are not quantised. */
static void plan_hc_in(struct planner *p, const char *name, uint32_t n, bool ends) {
    uint64_t width = (uint64_t)p->shape->n_stream * p->shape->n_embd;

    matrix(p, ROLE_MATRIX, 1, width, n, "%s_fn.weight", name);
    p->plan->tensor[p->plan->n_tensors - 1].format = tensor_format(TENSOR_F32);
    vector(p, 0, 0.5, n, "%s_base.weight", name);
    vector(p, 1, 0.1, ends ? 1 : 3, "%s_scale.weight", name);
}

static void plan_hc_ins(struct planner *p, uint32_t i) {
    uint32_t n = p->shape->n_stream;
    char name[32];

    snprintf(name, sizeof(name), "blk.%u.hc_attn", i);
    plan_hc_in(p, name, n * (n + 2), false);
    snprintf(name, sizeof(name), "blk.%u.hc_ffn", i);
    plan_hc_in(p, name, n * (n + 2), false);
}

/* The gains keep every branch at about unit size and give logits of a standard deviation near 3:
 * clear winners, few near ties. */
static void plan_layer(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    bool hybrid = synth_is_hybrid(s), quiets = synth_is_gemma4(s) || s->arch == SYNTH_MUSE;
    double post = quiets ? quiet(s) : 1;

    p->layer = i;
    if (s->arch == SYNTH_QWEN4EXP)
        plan_streams(p, i);
    else
        vector(p, 1, 0.1, s->n_embd, "blk.%u.attn_norm.weight", i);
    if (s->arch == SYNTH_DEEPSEEK4)
        plan_hc_ins(p, i);
    if (hybrid && (i + 1) % 4 != 0 && i < s->n_layer)
        plan_delta(p, i);
    else if (s->arch == SYNTH_DEEPSEEK4)
        plan_compressed(p, i);
    else if (s->arch == SYNTH_BAILING3 && synth_has_kda(s, i))
        plan_kda(p, i);
    else if (synth_is_latent(s))
        plan_latent(p, i);
    else
        plan_attention(p, i);
    if ((hybrid && s->arch != SYNTH_QWEN4EXP) || quiets || s->arch == SYNTH_GPT_OSS)
        vector(p, post, 0.1 * post, s->n_embd, "blk.%u.post_attention_norm.weight", i);
    if (!hybrid && s->arch != SYNTH_GPT_OSS)
        vector(p, 1, 0.1, s->n_embd, "blk.%u.ffn_norm.weight", i);
    plan_ffn(p, i);
}

/* Adds a matrix that lets the first of two inputs pass. */
static void let_pass(struct planner *p, const char *name, uint64_t n_in, uint64_t n_out) {
    matrix(p, ROLE_PASS, 1, 2 * n_in, n_out, "%s", name);
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors - 1];
    bool plain = t->format->block == 1 || 2 * n_in % 32;
    t->format = tensor_format(plain ? TENSOR_F32 : TENSOR_Q8_0);
}

/* Adds the layer behind the others, and the tensors at its beginning. */
static void plan_block(struct planner *p, uint32_t i) {
    uint64_t E = p->shape->n_embd;
    char name[64];

    snprintf(name, sizeof(name), "blk.%u.nextn.eh_proj.weight", i);
    let_pass(p, name, E, E);
    vector(p, 1, 0, E, "blk.%u.nextn.enorm.weight", i);
    vector(p, 1, 0.1, E, "blk.%u.nextn.hnorm.weight", i);
    if (p->shape->arch == SYNTH_BAILING3)
        vector(p, 1, 0.1, E, "blk.%u.layer_output_norm.weight", i);
    plan_layer(p, i);
}

/* Adds the tensors outside the layers. gemma4's embedding, which is also its output matrix, is
 * scaled by sqrt(E). It is small here, so that it does not dominate what the layers add; the
 * output norm is large instead. */
static void plan_ends(struct planner *p) {
    const struct synth_shape *s = p->shape;
    double loud = synth_is_gemma4(s) ? 30 : 1;

    matrix(p, ROLE_EMBED, 3 / loud, s->n_embd, s->n_vocab, "token_embd.weight");
    if (s->arch == SYNTH_QWEN4EXP) {
        plan_mix(p, "output_hc", true);
        matrix(p, ROLE_MATRIX, sqrt(s->n_embd / 16.0), s->n_embd / 16, 16ull * s->n_table,
               "per_layer_token_embd.weight");
    } else {
        vector(p, loud, 0.1 * loud, s->n_embd, "output_norm.weight");
    }
    if (s->arch == SYNTH_DEEPSEEK4)
        plan_hc_in(p, "output_hc", s->n_stream, true);
    if (!s->tied)
        matrix(p, ROLE_OUTPUT, 3, s->n_embd, s->n_vocab, "output.weight");
    if (s->arch == SYNTH_ASSISTANT) {
        let_pass(p, "nextn.pre_projection.weight", s->n_embd_out, s->n_embd);
        matrix(p, ROLE_MATRIX, 1, s->n_embd, s->n_embd_out, "nextn.post_projection.weight");
    }
    if (synth_is_gemma4(s)) {
        vector(p, 1, 0, s->head_dim / 2, "rope_freqs.weight");
        p->plan->tensor[p->plan->n_tensors - 1].role = ROLE_DIVISORS;
    }
}

/* The factor of an NVFP4 matrix, one for each expert; its mean is 1. Rows that are looked up and
 * the matrices of heads have none. */
static void plan_scales(struct planner *p) {
    uint32_t n = p->plan->n_tensors;

    for (uint32_t i = 0; i < n; i++) {
        const struct synth_tensor *t = &p->plan->tensor[i];
        int length = (int)(strlen(t->name) - strlen(".weight"));

        if (t->format->type == TENSOR_NVFP4 && t->role != ROLE_EMBED &&
            !strstr(t->name, "attn_k_b") && !strstr(t->name, "attn_v_b"))
            vector(p, 1, 0.2, t->ne[2], "%.*s.scale", length, t->name);
    }
}

int synth_plan_new(struct synth_plan *out, const struct synth_shape *s, const char *format,
                   struct err *err) {
    struct synth_plan plan = {0};
    struct planner p = {.plan = &plan, .shape = s};
    bool found = false;

    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (strcasecmp(types[i].format, format) == 0) {
            found = true;
            p.base = types[i].base;
            p.more = types[i].more;
            p.stack = types[i].stack;
            plan.file_type = types[i].file_type;
        }
    if (!found)
        return err_set(err, 0, NULL, R"(unknown format "%s")", format);
    size_t room = 6 + LAYER_TENSORS * ((size_t)s->n_layer + s->n_mtp);
    plan.tensor = calloc(2 * room, sizeof(*plan.tensor));
    if (!plan.tensor)
        return -ENOMEM;

    plan_ends(&p);
    for (uint32_t i = 0; i < s->n_layer; i++)
        plan_layer(&p, i);
    for (uint32_t i = s->n_layer; i < s->n_layer + s->n_mtp; i++)
        plan_block(&p, i);
    assert(plan.n_tensors <= room); /* as many again have room for factors */
    plan_scales(&p);
    *out = plan;
    return 0;
}

void synth_plan_deinit(struct synth_plan *p) {
    free(p->tensor);
    *p = (struct synth_plan){0};
}
