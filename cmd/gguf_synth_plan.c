#include "cmd/gguf_synth.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* general.file_type of a model whose matrices are all of one format; for the formats that llama.cpp
 * only knows in mixes, the number of the smallest mix. */
static const struct {
    const char *format;
    uint32_t file_type;
    enum tensor_type base, more; /* more: what the mix gives to the tensors that need more bits */
} types[] = {
    {"F32", 0, TENSOR_F32, TENSOR_F32},
    {"F16", 1, TENSOR_F16, TENSOR_F16},
    {"Q4_0", 2, TENSOR_Q4_0, TENSOR_Q4_0},
    {"Q4_1", 3, TENSOR_Q4_1, TENSOR_Q4_1},
    {"Q8_0", 7, TENSOR_Q8_0, TENSOR_Q8_0},
    {"Q5_0", 8, TENSOR_Q5_0, TENSOR_Q5_0},
    {"Q5_1", 9, TENSOR_Q5_1, TENSOR_Q5_1},
    {"Q2_K", 10, TENSOR_Q2_K, TENSOR_Q2_K},
    {"Q3_K", 11, TENSOR_Q3_K, TENSOR_Q3_K},
    {"Q4_K", 14, TENSOR_Q4_K, TENSOR_Q4_K},
    {"Q4_K_M", 15, TENSOR_Q4_K, TENSOR_Q6_K},
    {"Q5_K", 16, TENSOR_Q5_K, TENSOR_Q5_K},
    {"Q5_K_M", 17, TENSOR_Q5_K, TENSOR_Q6_K},
    {"Q6_K", 18, TENSOR_Q6_K, TENSOR_Q6_K},
    {"IQ2_XXS", 19, TENSOR_IQ2_XXS, TENSOR_IQ2_XXS},
    {"IQ4_NL", 25, TENSOR_IQ4_NL, TENSOR_IQ4_NL},
    {"IQ4_XS", 30, TENSOR_IQ4_XS, TENSOR_IQ4_XS},
    {"BF16", 32, TENSOR_BF16, TENSOR_BF16},
    {"MXFP4", 38, TENSOR_MXFP4, TENSOR_MXFP4},
    {"IQ2_XS", 20, TENSOR_IQ2_XS, TENSOR_IQ2_XS},
    {"IQ3_XXS", 23, TENSOR_IQ3_XXS, TENSOR_IQ3_XXS},
    {"IQ1_S", 24, TENSOR_IQ1_S, TENSOR_IQ1_S},
    {"IQ3_S", 26, TENSOR_IQ3_S, TENSOR_IQ3_S},
    {"IQ2_S", 28, TENSOR_IQ2_S, TENSOR_IQ2_S},
    {"IQ1_M", 31, TENSOR_IQ1_M, TENSOR_IQ1_M},
    {"TQ1_0", 36, TENSOR_TQ1_0, TENSOR_TQ1_0},
    {"TQ2_0", 37, TENSOR_TQ2_0, TENSOR_TQ2_0},
    {"NVFP4", 39, TENSOR_NVFP4, TENSOR_NVFP4},
};

/* Rows that do not fill a block of 256 take a format of 32 of about as many bits; rows that do not
 * fill that, F16. As llama.cpp's quantiser does. */
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

/* Which layers' attn_v and ffn_down get more bits in the K_M mixes. */
static bool use_more_bits(uint32_t layer, uint32_t n) {
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

enum { LAYER_TENSORS = 20 }; /* at most */

struct planner {
    struct synth_plan *plan;
    const struct synth_shape *shape;
    enum tensor_type base, more;
    uint32_t cap, layer;
};

static struct synth_tensor *add(struct planner *p, enum synth_role role, uint32_t n_dims,
                                uint64_t ne0, uint64_t ne1, const char *fmt, va_list ap) {
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors++];

    *t = (struct synth_tensor){.role = role, .n_dims = n_dims, .ne = {ne0, ne1, 1}};
    vsnprintf(t->name, sizeof(t->name), fmt, ap);
    return t;
}

/* Weights of standard deviation @gain / sqrt(@n_in): the product with a vector of unit size has
 * size @gain. */
static void matrix(struct planner *p, enum synth_role role, double gain, uint64_t n_in,
                   uint64_t n_out, const char *fmt, ...) PRINTF(6, 7);
static void matrix(struct planner *p, enum synth_role role, double gain, uint64_t n_in,
                   uint64_t n_out, const char *fmt, ...) {
    const struct synth_shape *s = p->shape;
    bool more = role == ROLE_OUTPUT || (role == ROLE_EMBED && s->tied) ||
                ((role == ROLE_V || role == ROLE_DOWN) && use_more_bits(p->layer, s->n_layer));
    va_list ap;

    va_start(ap, fmt);
    struct synth_tensor *t = add(p, role, 2, n_in, n_out, fmt, ap);
    va_end(ap);
    t->format = tensor_format(fit(more ? p->more : p->base, n_in));
    t->std = gain / sqrt((double)n_in);
    bool adds = role == ROLE_DOWN || strstr(t->name, "attn_output") || strstr(t->name, "ssm_out");
    if (adds && s->loud != 0)
        t->std *= s->loud;
}

/* A vector of @n values of @mean and standard deviation @std, in F32. */
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

/* The matrices of all experts as one tensor. */
static void matrices(struct planner *p, enum synth_role role, double gain, uint64_t n_in,
                     uint64_t n_out, const char *name) {
    assert(p->shape->n_expert > 0);
    matrix(p, role, gain, n_in, n_out, "blk.%u.%s.weight", p->layer, name);
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors - 1];
    t->n_dims = 3;
    t->ne[2] = p->shape->n_expert;
}

/* The expert of all rows, and its gate. */
static void plan_shared(struct planner *p, uint32_t i) {
    uint64_t E = p->shape->n_embd, F = p->shape->n_shared;

    vector(p, 0, 1.5 / sqrt((double)E), E, "blk.%u.ffn_gate_inp_shexp.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, F, "blk.%u.ffn_gate_shexp.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, F, "blk.%u.ffn_up_shexp.weight", i);
    matrix(p, ROLE_DOWN, 1.2, F, E, "blk.%u.ffn_down_shexp.weight", i);
}

/* The feed-forward part of layer @i: experts with their router, or one network. */
static void plan_ffn(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    uint64_t E = s->n_embd, F = s->n_ff;

    if (s->n_expert) {
        matrix(p, ROLE_MATRIX, 1.5, E, s->n_expert, "blk.%u.ffn_gate_inp.weight", i);
        p->plan->tensor[p->plan->n_tensors - 1].format = tensor_format(TENSOR_F32);
        matrices(p, ROLE_MATRIX, 1.5, E, F, "ffn_gate_exps");
        matrices(p, ROLE_MATRIX, 1.5, E, F, "ffn_up_exps");
        matrices(p, ROLE_DOWN, 1.2, F, E, "ffn_down_exps");
        if (synth_is_hybrid(s))
            plan_shared(p, i);
        return;
    }
    matrix(p, ROLE_MATRIX, 1.5, E, F, "blk.%u.ffn_gate.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, F, "blk.%u.ffn_up.weight", i);
    matrix(p, ROLE_DOWN, 1.2, F, E, "blk.%u.ffn_down.weight", i);
}

/* A gated delta net; heads forget half within about 1 to 100 tokens. */
static void plan_delta(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    uint64_t E = s->n_embd, inner = (uint64_t)s->n_value * s->n_state;
    uint64_t channels = 2ull * s->n_key * s->n_state + inner;

    matrix(p, ROLE_MATRIX, 1.5, E, channels, "blk.%u.attn_qkv.weight", i);
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

static void plan_attention(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    uint64_t E = s->n_embd, D = s->head_dim, Q = s->n_head * D, KV = s->n_kv * D;

    matrix(p, ROLE_MATRIX, 1.5, E, synth_is_hybrid(s) ? 2 * Q : Q, "blk.%u.attn_q.weight", i);
    matrix(p, ROLE_MATRIX, 1.5, E, KV, "blk.%u.attn_k.weight", i);
    matrix(p, ROLE_V, 1, E, KV, "blk.%u.attn_v.weight", i);
    if (s->arch == SYNTH_QWEN2) {
        vector(p, 0, 0.5, Q, "blk.%u.attn_q.bias", i);
        vector(p, 0, 0.5, KV, "blk.%u.attn_k.bias", i);
        vector(p, 0, 0.3, KV, "blk.%u.attn_v.bias", i);
    }
    if (s->arch >= SYNTH_QWEN3) {
        vector(p, 1.4, 0.2, D, "blk.%u.attn_q_norm.weight", i);
        vector(p, 1.4, 0.2, D, "blk.%u.attn_k_norm.weight", i);
    }
    matrix(p, ROLE_MATRIX, 1.5, Q, E, "blk.%u.attn_output.weight", i);
}

/* The gains keep every branch at about unit size and give logits of a standard deviation near 3:
 * clear winners, few near ties. */
static void plan_layer(struct planner *p, uint32_t i) {
    const struct synth_shape *s = p->shape;
    bool hybrid = synth_is_hybrid(s);

    p->layer = i;
    vector(p, 1, 0.1, s->n_embd, "blk.%u.attn_norm.weight", i);
    if (hybrid && (i + 1) % 4 != 0 && i < s->n_layer)
        plan_delta(p, i);
    else
        plan_attention(p, i);
    vector(p, 1, 0.1, s->n_embd, "blk.%u.%s.weight", i,
           hybrid ? "post_attention_norm" : "ffn_norm");
    plan_ffn(p, i);
}

/* The layer behind the others, and what it begins with. */
static void plan_block(struct planner *p, uint32_t i) {
    uint64_t E = p->shape->n_embd;

    matrix(p, ROLE_PASS, 1, 2 * E, E, "blk.%u.nextn.eh_proj.weight", i);
    p->plan->tensor[p->plan->n_tensors - 1].format = tensor_format(TENSOR_F32);
    vector(p, 1, 0, E, "blk.%u.nextn.enorm.weight", i);
    vector(p, 1, 0.1, E, "blk.%u.nextn.hnorm.weight", i);
    plan_layer(p, i);
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
            plan.file_type = types[i].file_type;
        }
    if (!found)
        return err_set(err, 0, NULL, "unknown format \"%s\"", format);
    plan.tensor = calloc(3 + LAYER_TENSORS * ((size_t)s->n_layer + s->n_mtp), sizeof(*plan.tensor));
    if (!plan.tensor)
        return -ENOMEM;

    matrix(&p, ROLE_EMBED, 3, s->n_embd, s->n_vocab, "token_embd.weight");
    vector(&p, 1, 0.1, s->n_embd, "output_norm.weight");
    if (!s->tied)
        matrix(&p, ROLE_OUTPUT, 3, s->n_embd, s->n_vocab, "output.weight");
    for (uint32_t i = 0; i < s->n_layer; i++)
        plan_layer(&p, i);
    for (uint32_t i = s->n_layer; i < s->n_layer + s->n_mtp; i++)
        plan_block(&p, i);
    assert(plan.n_tensors <= 3 + LAYER_TENSORS * ((size_t)s->n_layer + s->n_mtp));
    *out = plan;
    return 0;
}

void synth_plan_deinit(struct synth_plan *p) {
    free(p->tensor);
    *p = (struct synth_plan){0};
}
