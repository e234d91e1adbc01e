#include "tests/support/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mathx.h"
#include "base/rng.h"
#include "engine/formats/quant.h"

enum { DELTA_KEY_HEADS = 2, DELTA_VALUE_HEADS = 4, DELTA_DIM = 64, DELTA_KERNEL = 4 };
enum { LATENT = 64 }; /* deepseek2: rank of the latent vectors, and values of a head without RoPE */

/* Positions of a block's scale and minimum (0: none), and the ratio of minimum to scale with which
 * the values have mean 0. */
static const struct {
    enum tensor_type type;
    uint32_t d, min;
    float ratio;
} scales[] = {
    {TENSOR_Q4_0, 0, 0, 0},      {TENSOR_Q4_1, 0, 2, -7.5f}, {TENSOR_Q5_0, 0, 0, 0},
    {TENSOR_Q5_1, 0, 2, -15.5f}, {TENSOR_Q8_0, 0, 0, 0},     {TENSOR_Q2_K, 80, 82, 1.5f},
    {TENSOR_Q3_K, 108, 0, 0},    {TENSOR_Q4_K, 0, 2, 7.5f},  {TENSOR_Q5_K, 0, 2, 15.5f},
    {TENSOR_Q6_K, 208, 0, 0},    {TENSOR_IQ2_XXS, 0, 0, 0},  {TENSOR_IQ4_NL, 0, 0, 0},
    {TENSOR_IQ4_XS, 0, 0, 0},    {TENSOR_MXFP4, 0, 0, 0},    {TENSOR_IQ1_S, 0, 0, 0},
    {TENSOR_IQ1_M, 0, 0, 0},     {TENSOR_IQ2_XS, 0, 0, 0},   {TENSOR_IQ2_S, 0, 0, 0},
    {TENSOR_IQ3_XXS, 0, 0, 0},   {TENSOR_IQ3_S, 0, 0, 0},    {TENSOR_TQ1_0, 52, 0, 0},
    {TENSOR_TQ2_0, 64, 0, 0},    {TENSOR_NVFP4, 0, 0, 0},
};

static float gauss(struct rng *r) {
    return (float)(rng_unit(r) + rng_unit(r) + rng_unit(r) + rng_unit(r) - 2.0) * 1.7320508f;
}

static void put_half(uint8_t *p, float f) {
    uint16_t h = mx_float_to_half(f);

    memcpy(p, &h, 2);
}

/* Stores the scale @d, at @at if it is a half float. */
static void put_scale(enum tensor_type type, uint8_t *block, uint32_t at, float d) {
    uint16_t h = mx_float_to_half(d);
    uint8_t e = 0;

    switch (type) {
    case TENSOR_MXFP4:
        block[0] = (uint8_t)(128 + lroundf(log2f(d)));
        break;
    case TENSOR_NVFP4:
        while (e < 0x7E && mx_ue4m3_half(e) < d)
            e++;
        memset(block, e, 4);
        break;
    case TENSOR_IQ1_M:
        for (int i = 0; i < 4; i++)
            block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (h >> (4 * i) & 15) << 4);
        break;
    default:
        memcpy(block + at, &h, 2);
    }
}

/* Makes a block of random bits whose values have a root mean square of about @rms. */
static void fill_block(const struct tensor_format *f, size_t k, float rms, struct rng *r,
                       uint8_t *block) {
    float y[256];
    double sum = 0;

    for (uint32_t i = 0; i < f->block_bytes; i++)
        block[i] = (uint8_t)(rng_next(r) >> 40);
    for (int pass = 0; pass < 2; pass++) {
        float d = pass ? rms / (float)sqrt(sum / f->block + 1e-9) : 1;

        put_scale(f->type, block, scales[k].d, d);
        if (scales[k].min)
            put_half(block + scales[k].min, d * scales[k].ratio);
        quant_decode(f->type, block, y, f->block);
        for (uint32_t i = 0; i < f->block && !pass; i++)
            sum += (double)y[i] * (double)y[i];
    }
}

static void fill(enum tensor_type type, float rms, struct rng *r, size_t n, uint8_t *out) {
    const struct tensor_format *f = tensor_format((uint32_t)type);

    for (size_t i = 0; i < n / f->block; i++, out += f->block_bytes) {
        float x = gauss(r) * rms;

        if (type == TENSOR_F32) {
            memcpy(out, &x, 4);
        } else if (type == TENSOR_F16) {
            put_half(out, x);
        } else if (type == TENSOR_BF16) {
            memcpy(out, (uint8_t *)&x + 2, 2);
        } else {
            size_t k = 0;

            while (scales[k].type != type)
                k++;
            fill_block(f, k, rms, r, out);
        }
    }
}

struct maker {
    const struct tiny_model *t;
    struct gguf_writer *w;
    struct rng rng;
};

static bool left_out(const struct maker *m, const char *name) {
    unsigned l;

    return (m->t->leave_out && strcmp(m->t->leave_out, name) == 0) ||
           (m->t->blocks_alone && sscanf(name, "blk.%u.", &l) == 1 && l < m->t->n_layer);
}

static void add(struct maker *m, const char *name, enum tensor_type type, uint32_t n_in,
                uint32_t n_out, float rms, float mean) {
    const struct tensor_format *f = tensor_format((uint32_t)type);
    uint64_t ne[3] = {n_in, n_out, 1};
    size_t n = (size_t)n_in * MAX(n_out, 1);
    uint8_t *data = malloc(n / f->block * f->block_bytes);

    if (!data)
        abort();
    fill(type, rms, &m->rng, n, data);
    for (size_t i = 0; i < n && mean != 0; i++) { /* F32 */
        float x;

        memcpy(&x, data + 4 * i, 4);
        x += mean;
        memcpy(data + 4 * i, &x, 4);
    }
    if (!left_out(m, name))
        gw_tensor(m->w, name, (uint32_t)type, n_out ? 2 : 1, ne, data);
    free(data);
}

/* Returns the scale of a matrix with @n_in inputs; matrices at the end of a branch determine how
 * much it adds. */
static float scale_of(const struct maker *m, const char *name, uint32_t n_in) {
    bool adds = strstr(name, "attn_output") || strstr(name, "ssm_out") || strstr(name, "ffn_down");

    return (adds ? m->t->loud : 1) / sqrtf((float)n_in);
}

/* Adds @n matrices of blocks whose scales are beside them as NAME.scale; decoded: their values in
 * F32 instead. */
static void add_scaled(struct maker *m, const char *name, const uint64_t ne[3], uint32_t n_dims,
                       uint8_t *data) {
    size_t each = ne[0] * ne[1], bytes = each / 64 * 36;
    char scale_name[64];
    float *value = malloc(each * ne[2] * sizeof(*value)), *scale = malloc(ne[2] * sizeof(*scale));

    if (!value || !scale)
        abort();
    for (size_t i = 0; i < ne[2]; i++) {
        scale[i] = 1.0f + 0.8f * (float)rng_unit(&m->rng);
        quant_decode(TENSOR_NVFP4, data + i * bytes, value + i * each, each);
        for (size_t j = 0; j < each; j++)
            value[i * each + j] *= scale[i];
    }
    snprintf(scale_name, sizeof(scale_name), "%.*s.scale", (int)(strlen(name) - strlen(".weight")),
             name);
    if (m->t->decoded) {
        gw_tensor(m->w, name, TENSOR_F32, n_dims, ne, value);
    } else {
        gw_tensor(m->w, name, TENSOR_NVFP4, n_dims, ne, data);
        if (!left_out(m, scale_name))
            gw_tensor(m->w, scale_name, TENSOR_F32, 1, (uint64_t[3]){ne[2], 1, 1}, scale);
    }
    free(value);
    free(scale);
}

static void put_matrices(struct maker *m, const char *name, const uint64_t ne[3], uint32_t n_dims,
                         float rms) {
    enum tensor_type type = m->t->up && strstr(name, "ffn_up.") ? m->t->up : m->t->type;
    const struct tensor_format *f = tensor_format((uint32_t)type);
    size_t n = ne[0] * ne[1] * ne[2];
    uint8_t *data = malloc(n / f->block * f->block_bytes);

    if (!data)
        abort();
    fill(type, rms, &m->rng, n, data);
    if (left_out(m, name))
        ;
    else if (type == TENSOR_NVFP4)
        add_scaled(m, name, ne, n_dims, data);
    else
        gw_tensor(m->w, name, (uint32_t)type, n_dims, ne, data);
    free(data);
}

static void matrix(struct maker *m, const char *name, uint32_t n_in, uint32_t n_out) {
    put_matrices(m, name, (uint64_t[3]){n_in, n_out, 1}, 2, scale_of(m, name, n_in));
}

/* Adds the matrices of all experts as one tensor. */
static void matrices(struct maker *m, const char *name, uint32_t n_in, uint32_t n_out) {
    put_matrices(m, name, (uint64_t[3]){n_in, n_out, m->t->n_expert}, 3, scale_of(m, name, n_in));
}

static void key(struct maker *m, const char *name, uint32_t v) {
    char s[64];

    snprintf(s, sizeof(s), "%s.%s", m->t->arch, name);
    if (!left_out(m, s))
        gw_u32(m->w, s, v);
}

static void norm(struct maker *m, const char *name, uint32_t n) {
    add(m, name, TENSOR_F32, n, 0, 0.1f, 1);
}

static const char *name_of(char buf[64], uint32_t layer, const char *part) {
    snprintf(buf, 64, "blk.%u.%s", layer, part);
    return buf;
}

static bool is_hybrid(const struct tiny_model *t) {
    return strcmp(t->arch, "qwen3next") == 0 || strncmp(t->arch, "qwen35", 6) == 0;
}

static bool is_gpt_oss(const struct tiny_model *t) {
    return strcmp(t->arch, "gpt-oss") == 0;
}

/* Adds a delta net; half of the heads forget within some tokens, half of them remember for long. */
static void delta_net(struct maker *m, uint32_t l) {
    uint32_t n_embd = m->t->n_embd, inner = DELTA_VALUE_HEADS * DELTA_DIM;
    uint32_t channels = 2 * DELTA_KEY_HEADS * DELTA_DIM + inner;
    char s[64];

    matrix(m, name_of(s, l, "attn_qkv.weight"), n_embd, channels);
    matrix(m, name_of(s, l, "attn_gate.weight"), n_embd, inner);
    add(m, name_of(s, l, "ssm_conv1d.weight"), TENSOR_F32, DELTA_KERNEL, channels, 0.5f, 0);
    add(m, name_of(s, l, "ssm_dt.bias"), TENSOR_F32, DELTA_VALUE_HEADS, 0, 1, 0);
    add(m, name_of(s, l, "ssm_a"), TENSOR_F32, DELTA_VALUE_HEADS, 0, 0.1f, -0.3f);
    if (strcmp(m->t->arch, "qwen3next") == 0) {
        matrix(m, name_of(s, l, "ssm_ba.weight"), n_embd, 2 * DELTA_VALUE_HEADS);
    } else {
        matrix(m, name_of(s, l, "ssm_beta.weight"), n_embd, DELTA_VALUE_HEADS);
        matrix(m, name_of(s, l, "ssm_alpha.weight"), n_embd, DELTA_VALUE_HEADS);
    }
    norm(m, name_of(s, l, "ssm_norm.weight"), DELTA_DIM);
    matrix(m, name_of(s, l, "ssm_out.weight"), inner, n_embd);
}

static bool is_llama4(const struct tiny_model *t) {
    return strcmp(t->arch, "llama4") == 0;
}

static bool is_olmo(const struct tiny_model *t) {
    return strcmp(t->arch, "olmo2") == 0;
}

static bool is_latent(const struct tiny_model *t) {
    return strcmp(t->arch, "deepseek2") == 0;
}

static void add_heads(struct maker *m, const char *name, uint32_t n_in, uint32_t n_out) {
    put_matrices(m, name, (uint64_t[3]){n_in, n_out, m->t->n_head}, 3, scale_of(m, name, n_in));
}

static void latent_attention(struct maker *m, uint32_t l) {
    const struct tiny_model *t = m->t;
    uint32_t n_rot = t->head_dim - LATENT;
    char s[64];

    matrix(m, name_of(s, l, "attn_q.weight"), t->n_embd, t->n_head * (LATENT + n_rot));
    matrix(m, name_of(s, l, "attn_kv_a_mqa.weight"), t->n_embd, t->head_dim);
    norm(m, name_of(s, l, "attn_kv_a_norm.weight"), LATENT);
    add_heads(m, name_of(s, l, "attn_k_b.weight"), LATENT, LATENT);
    add_heads(m, name_of(s, l, "attn_v_b.weight"), LATENT, LATENT);
    matrix(m, name_of(s, l, "attn_output.weight"), t->n_head * LATENT, t->n_embd);
}

static void attention(struct maker *m, uint32_t l) {
    const struct tiny_model *t = m->t;
    uint32_t n_q = t->n_head * t->head_dim, n_kv = t->n_head_kv * t->head_dim;
    char s[64];

    matrix(m, name_of(s, l, "attn_q.weight"), t->n_embd, is_hybrid(t) ? 2 * n_q : n_q);
    matrix(m, name_of(s, l, "attn_k.weight"), t->n_embd, n_kv);
    matrix(m, name_of(s, l, "attn_v.weight"), t->n_embd, n_kv);
    if (strncmp(t->arch, "qwen2", 5) == 0 || is_gpt_oss(t)) {
        add(m, name_of(s, l, "attn_q.bias"), TENSOR_F32, n_q, 0, 0.5f, 0);
        add(m, name_of(s, l, "attn_k.bias"), TENSOR_F32, n_kv, 0, 0.5f, 0);
        add(m, name_of(s, l, "attn_v.bias"), TENSOR_F32, n_kv, 0, 0.5f, 0);
    }
    if (is_olmo(t)) {
        norm(m, name_of(s, l, "attn_q_norm.weight"), n_q);
        norm(m, name_of(s, l, "attn_k_norm.weight"), n_kv);
    }
    if (strncmp(t->arch, "qwen3", 5) == 0) { /* and qwen35 */
        norm(m, name_of(s, l, "attn_q_norm.weight"), t->head_dim);
        norm(m, name_of(s, l, "attn_k_norm.weight"), t->head_dim);
    }
    matrix(m, name_of(s, l, "attn_output.weight"), n_q, t->n_embd);
    if (is_gpt_oss(t)) {
        add(m, name_of(s, l, "attn_output.bias"), TENSOR_F32, t->n_embd, 0, 0.2f, 0);
        add(m, name_of(s, l, "attn_sinks.weight"), TENSOR_F32, t->n_head, 0, 1, 0);
    }
}

static void layer(struct maker *m, uint32_t l) {
    const struct tiny_model *t = m->t;
    char s[64];

    if (!is_olmo(t))
        norm(m, name_of(s, l, "attn_norm.weight"), t->n_embd);
    if (is_hybrid(t) && l % 2 == 0 && l < t->n_layer)
        delta_net(m, l);
    else if (is_latent(t))
        latent_attention(m, l);
    else
        attention(m, l);
    bool post = is_hybrid(t) || is_gpt_oss(t) || is_olmo(t) || strcmp(t->arch, "glm4moe") == 0;
    norm(m, name_of(s, l, post ? "post_attention_norm.weight" : "ffn_norm.weight"), t->n_embd);
    if (is_olmo(t))
        norm(m, name_of(s, l, "post_ffw_norm.weight"), t->n_embd);
    if (t->n_expert && (l % 2 || !is_llama4(t))) {
        add(m, name_of(s, l, "ffn_gate_inp.weight"), TENSOR_F32, t->n_embd, t->n_expert,
            1.0f / sqrtf((float)t->n_embd), 0);
        matrices(m, name_of(s, l, "ffn_gate_exps.weight"), t->n_embd, t->n_ff);
        matrices(m, name_of(s, l, "ffn_up_exps.weight"), t->n_embd, t->n_ff);
        matrices(m, name_of(s, l, "ffn_down_exps.weight"), t->n_ff, t->n_embd);
        if (is_gpt_oss(t)) {
            uint32_t n = t->n_expert;

            add(m, name_of(s, l, "ffn_gate_inp.bias"), TENSOR_F32, n, 0, 0.5f, 0);
            add(m, name_of(s, l, "ffn_gate_exps.bias"), TENSOR_F32, t->n_ff, n, 0.5f, 0);
            add(m, name_of(s, l, "ffn_up_exps.bias"), TENSOR_F32, t->n_ff, n, 0.5f, 0);
            add(m, name_of(s, l, "ffn_down_exps.bias"), TENSOR_F32, t->n_embd, n, 0.5f, 0);
        }
        if (!is_hybrid(t) && !is_llama4(t))
            return;
        if (is_hybrid(t))
            add(m, name_of(s, l, "ffn_gate_inp_shexp.weight"), TENSOR_F32, t->n_embd, 0,
                1.0f / sqrtf((float)t->n_embd), 0);
        matrix(m, name_of(s, l, "ffn_gate_shexp.weight"), t->n_embd, t->n_ff);
        matrix(m, name_of(s, l, "ffn_up_shexp.weight"), t->n_embd, t->n_ff);
        matrix(m, name_of(s, l, "ffn_down_shexp.weight"), t->n_ff, t->n_embd);
        return;
    }
    matrix(m, name_of(s, l, "ffn_gate.weight"), t->n_embd, t->n_ff);
    matrix(m, name_of(s, l, "ffn_up.weight"), t->n_embd, t->n_ff);
    matrix(m, name_of(s, l, "ffn_down.weight"), t->n_ff, t->n_embd);
}

/* Adds the layer behind the others, which begins with the token's embedding alone. */
static void block(struct maker *m, uint32_t l) {
    uint32_t n = m->t->n_embd;
    uint64_t ne[3] = {2ull * n, n, 1};
    float *project = calloc((size_t)n * 2 * n, sizeof(*project));
    char s[64];

    if (!project)
        abort();
    for (uint32_t i = 0; i < n; i++)
        project[(size_t)i * 2 * n + i] = 1;
    if (!left_out(m, name_of(s, l, "nextn.eh_proj.weight")))
        gw_tensor(m->w, s, TENSOR_F32, 2, ne, project);
    free(project);
    add(m, name_of(s, l, "nextn.enorm.weight"), TENSOR_F32, n, 0, 0, 1);
    norm(m, name_of(s, l, "nextn.hnorm.weight"), n);
    layer(m, l);
}

/* Encoders with norms before branches. */
static bool is_normed_encoder(const struct tiny_model *t) {
    return strcmp(t->arch, "modern-bert") == 0 || strcmp(t->arch, "gemma-embedding") == 0 ||
           strcmp(t->arch, "eurobert") == 0;
}

static bool is_encoder(const struct tiny_model *t) {
    return strstr(t->arch, "bert") != NULL || is_normed_encoder(t);
}

static void bias(struct maker *m, const char *name, uint32_t n) {
    add(m, name, TENSOR_F32, n, 0, 0.2f, 0);
}

static void layer_norm(struct maker *m, const char *name, uint32_t n) {
    char s[64];

    snprintf(s, sizeof(s), "%s.weight", name);
    norm(m, s, n);
    snprintf(s, sizeof(s), "%s.bias", name);
    bias(m, s, n);
}

static void encoder_layer(struct maker *m, uint32_t l) {
    const struct tiny_model *t = m->t;
    bool nomic = strcmp(t->arch, "nomic-bert") == 0, moe = strcmp(t->arch, "nomic-bert-moe") == 0;
    bool fused = nomic || moe || strcmp(t->arch, "jina-bert-v3") == 0;
    bool ungated = strcmp(t->arch, "bert") == 0 || (fused && !nomic);
    static const char *const parts[] = {"attn_q", "attn_k", "attn_v"};
    char s[64], part[24];

    if (fused)
        matrix(m, name_of(s, l, "attn_qkv.weight"), t->n_embd, 3 * t->n_embd);
    if (fused && !nomic)
        bias(m, name_of(s, l, "attn_qkv.bias"), 3 * t->n_embd);
    for (int i = 0; i < 3 && !fused; i++) {
        snprintf(part, sizeof(part), "%s.weight", parts[i]);
        matrix(m, name_of(s, l, part), t->n_embd, t->n_embd);
        snprintf(part, sizeof(part), "%s.bias", parts[i]);
        bias(m, name_of(s, l, part), t->n_embd);
    }
    matrix(m, name_of(s, l, "attn_output.weight"), t->n_embd, t->n_embd);
    if (!nomic)
        bias(m, name_of(s, l, "attn_output.bias"), t->n_embd);
    layer_norm(m, name_of(s, l, "attn_output_norm"), t->n_embd);
    if (moe && l % 2) {
        add(m, name_of(s, l, "ffn_gate_inp.weight"), TENSOR_F32, t->n_embd, t->n_expert, 1, 0);
        matrices(m, name_of(s, l, "ffn_up_exps.weight"), t->n_embd, t->n_ff);
        matrices(m, name_of(s, l, "ffn_down_exps.weight"), t->n_ff, t->n_embd);
        layer_norm(m, name_of(s, l, "layer_output_norm"), t->n_embd);
        return;
    }
    if (!ungated)
        matrix(m, name_of(s, l, "ffn_gate.weight"), t->n_embd, t->n_ff);
    matrix(m, name_of(s, l, "ffn_up.weight"), t->n_embd, t->n_ff);
    if (ungated)
        bias(m, name_of(s, l, "ffn_up.bias"), t->n_ff);
    matrix(m, name_of(s, l, "ffn_down.weight"), t->n_ff, t->n_embd);
    if (!nomic)
        bias(m, name_of(s, l, "ffn_down.bias"), t->n_embd);
    layer_norm(m, name_of(s, l, "layer_output_norm"), t->n_embd);
}

/* Adds a layer with norms before its branches; the first one of modern-bert has none before
 * attention. */
static void normed_layer(struct maker *m, uint32_t l) {
    const struct tiny_model *t = m->t;
    bool modern = strcmp(t->arch, "modern-bert") == 0, gemma = t->arch[0] == 'g';
    uint32_t n_q = t->n_head * t->head_dim, n_kv = t->n_head_kv * t->head_dim;
    char s[64];

    if (!modern || l > 0)
        norm(m, name_of(s, l, "attn_norm.weight"), t->n_embd);
    if (modern) {
        matrix(m, name_of(s, l, "attn_qkv.weight"), t->n_embd, 3 * t->n_embd);
    } else {
        matrix(m, name_of(s, l, "attn_q.weight"), t->n_embd, n_q);
        matrix(m, name_of(s, l, "attn_k.weight"), t->n_embd, n_kv);
        matrix(m, name_of(s, l, "attn_v.weight"), t->n_embd, n_kv);
    }
    if (gemma) {
        norm(m, name_of(s, l, "attn_q_norm.weight"), t->head_dim);
        norm(m, name_of(s, l, "attn_k_norm.weight"), t->head_dim);
        norm(m, name_of(s, l, "post_attention_norm.weight"), t->n_embd);
        norm(m, name_of(s, l, "post_ffw_norm.weight"), t->n_embd);
    }
    matrix(m, name_of(s, l, "attn_output.weight"), n_q, t->n_embd);
    norm(m, name_of(s, l, "ffn_norm.weight"), t->n_embd);
    if (!modern)
        matrix(m, name_of(s, l, "ffn_gate.weight"), t->n_embd, t->n_ff);
    matrix(m, name_of(s, l, "ffn_up.weight"), t->n_embd, (modern ? 2 : 1) * t->n_ff);
    matrix(m, name_of(s, l, "ffn_down.weight"), t->n_ff, t->n_embd);
}

/* Adds what encoders with norms before branches have; rows see the 3 keys on both sides in every
 * layer of modern-bert but the first, and in every second layer of gemma-embedding. */
static void normed_encoder(struct maker *m) {
    const struct tiny_model *t = m->t;
    bool modern = strcmp(t->arch, "modern-bert") == 0;
    char s[64];

    snprintf(s, sizeof(s), "%s.rope.freq_base", t->arch);
    gw_f32(m->w, s, 16000);
    snprintf(s, sizeof(s), "%s.attention.layer_norm_rms_epsilon", t->arch);
    if (!modern)
        gw_f32(m->w, s, 1e-6f);
    if (strcmp(t->arch, "eurobert") != 0) {
        key(m, "attention.sliding_window", 7);
        key(m, "attention.sliding_window_pattern", modern ? 3 : 2);
        snprintf(s, sizeof(s), "%s.rope.freq_base_swa", t->arch);
        gw_f32(m->w, s, 1000);
    }
    add(m, "token_embd.weight", t->type, t->n_embd, t->n_vocab, modern ? 1 : 0.1f, 0);
    if (modern)
        norm(m, "token_embd_norm.weight", t->n_embd);
    norm(m, "output_norm.weight", t->n_embd);
    for (uint32_t l = 0; l < t->n_layer; l++)
        normed_layer(m, l);
    if (t->arch[0] != 'g')
        return;
    key(m, "dense_2_feat_in", t->n_embd); /* behind the pooling */
    key(m, "dense_2_feat_out", 80);
    key(m, "dense_3_feat_in", 80);
    key(m, "dense_3_feat_out", t->n_embd);
    matrix(m, "dense_2.weight", t->n_embd, 80);
    matrix(m, "dense_3.weight", 80, t->n_embd);
}

static void vocabulary(const struct tiny_model *t, struct gguf_writer *w) {
    static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    static const char inside[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    const char **token = calloc(t->n_vocab, sizeof(*token));
    char(*text)[16] = calloc(t->n_vocab, sizeof(*text));
    int32_t *type = calloc(t->n_vocab, sizeof(*type));

    if (!token || !text || !type)
        abort();
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        type[i] = i < 5 ? 3 : 1;
        if (i < 5)
            snprintf(text[i], sizeof(text[i]), "%s", special[i]);
        else if (i < 99)
            snprintf(text[i], sizeof(text[i]), "\xE2\x96\x81%c", (char)(33 + i - 5));
        else if (i < 135)
            snprintf(text[i], sizeof(text[i]), "%c", inside[i - 99]);
        else
            snprintf(text[i], sizeof(text[i]),
                     "\xE2\x96\x81"
                     "w%u",
                     i);
        token[i] = text[i];
    }
    gw_string(w, "tokenizer.ggml.model", "bert");
    gw_string(w, "tokenizer.ggml.pre", "default");
    gw_u32(w, "tokenizer.ggml.token_type_count", 2);
    gw_strings(w, "tokenizer.ggml.tokens", t->n_vocab, token);
    gw_array(w, "tokenizer.ggml.token_type", GGUF_I32, t->n_vocab, type,
             t->n_vocab * sizeof(*type));
    gw_u32(w, "tokenizer.ggml.padding_token_id", 0);
    gw_u32(w, "tokenizer.ggml.unknown_token_id", 1);
    gw_u32(w, "tokenizer.ggml.cls_token_id", 2);
    gw_u32(w, "tokenizer.ggml.bos_token_id", 2);
    gw_u32(w, "tokenizer.ggml.seperator_token_id", 3); /* spelling of the key in all files */
    gw_u32(w, "tokenizer.ggml.mask_token_id", 4);
    free(token);
    free(text);
    free(type);
}

static void encoder(struct maker *m) {
    const struct tiny_model *t = m->t;
    char s[64];

    snprintf(s, sizeof(s), "%s.attention.causal", t->arch);
    gw_bool(m->w, s, 0);
    snprintf(s, sizeof(s), "%s.attention.layer_norm_epsilon", t->arch);
    gw_f32(m->w, s, 1e-5f);
    if (t->pooling) {
        snprintf(s, sizeof(s), "%s.pooling_type", t->arch);
        gw_u32(m->w, s, t->pooling);
    }
    if (strcmp(t->arch, "nomic-bert-moe") == 0)
        key(m, "moe_every_n_layers", 2);
    if (strstr(t->arch, "nomic-bert") || strcmp(t->arch, "jina-bert-v3") == 0) {
        snprintf(s, sizeof(s), "%s.rope.freq_base", t->arch);
        gw_f32(m->w, s, 1000);
    }
    vocabulary(t, m->w);
    if (is_normed_encoder(t)) {
        normed_encoder(m);
        return;
    }
    add(m, "token_embd.weight", t->type, t->n_embd, t->n_vocab, 1, 0);
    add(m, "token_types.weight", TENSOR_F32, t->n_embd, 2, 0.3f, 0);
    if (strcmp(t->arch, "bert") == 0)
        add(m, "position_embd.weight", TENSOR_F32, t->n_embd, t->max_context, 0.3f, 0);
    layer_norm(m, "token_embd_norm", t->n_embd);
    for (uint32_t l = 0; l < t->n_layer; l++)
        encoder_layer(m, l);
    if (t->n_labels) {
        matrix(m, "cls.weight", t->n_embd, t->n_embd);
        bias(m, "cls.bias", t->n_embd);
        add(m, "cls.output.weight", TENSOR_F32, t->n_embd, t->n_labels, 0.3f, 0);
        bias(m, "cls.output.bias", t->n_labels);
    }
}

static bool is_gemma4(const struct tiny_model *t) {
    return strncmp(t->arch, "gemma4", 6) == 0;
}

static bool is_assistant(const struct tiny_model *t) {
    return strcmp(t->arch, "gemma4-assistant") == 0;
}

/* Adds a matrix of which a model and its assistant have the first half of each row in common: the
 * assistant has only this half, the model @more random values of that scale. */
static void common_half(struct maker *m, const char *name, const char *of_assistant, float rms,
                        bool more) {
    uint32_t n = m->t->n_embd / 2, width = is_assistant(m->t) ? n : 2 * n;
    struct rng both = {m->t->seed + (uint64_t)strlen(name)};
    uint64_t ne[3] = {width, m->t->n_vocab, 1};
    float *data = calloc((size_t)width * m->t->n_vocab, sizeof(*data));

    if (!data)
        abort();
    for (size_t r = 0; r < m->t->n_vocab; r++)
        for (uint32_t i = 0; i < width; i++)
            data[r * width + i] = i < n ? gauss(&both) * rms : more ? gauss(&m->rng) * rms : 0;
    name = is_assistant(m->t) ? of_assistant : name;
    if (!left_out(m, name))
        gw_tensor(m->w, name, TENSOR_F32, 2, ne, data);
    free(data);
}

/* Adds the projection from the model's width to the assistant's: the first half of the embedding,
 * and a little of the hidden state. */
static void pre_projection(struct maker *m) {
    uint32_t n = m->t->n_embd / 2;
    uint64_t ne[3] = {4ull * n, n, 1};
    float *data = calloc((size_t)4 * n * n, sizeof(*data));

    if (!data)
        abort();
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < 4ul * n; i++)
            data[r * 4 * n + i] = i < 2 * n ? i == r : gauss(&m->rng) * 0.05f * m->t->loud;
    if (!left_out(m, "nextn.pre_projection.weight"))
        gw_tensor(m->w, "nextn.pre_projection.weight", TENSOR_F32, 2, ne, data);
    free(data);
}

/* Adds experts beside the dense FFN, each branch with its own norms. */
static void gemma4_experts(struct maker *m, uint32_t l) {
    const struct tiny_model *t = m->t;
    char s[64];

    add(m, name_of(s, l, "ffn_gate_inp.weight"), TENSOR_F32, t->n_embd, t->n_expert, 1, 0);
    norm(m, name_of(s, l, "ffn_gate_inp.scale"), t->n_embd);
    norm(m, name_of(s, l, "pre_ffw_norm_2.weight"), t->n_embd);
    norm(m, name_of(s, l, "post_ffw_norm_1.weight"), t->n_embd);
    norm(m, name_of(s, l, "post_ffw_norm_2.weight"), t->n_embd);
    matrices(m, name_of(s, l, "ffn_gate_up_exps.weight"), t->n_embd, 2 * t->n_ff);
    matrices(m, name_of(s, l, "ffn_down_exps.weight"), t->n_ff, t->n_embd);
    add(m, name_of(s, l, "ffn_down_exps.scale"), TENSOR_F32, t->n_expert, 0, 0.3f, 1);
}

/* Adds a layer; the norms behind the branches determine how much these add. */
static void gemma4_layer(struct maker *m, uint32_t l) {
    const struct tiny_model *t = m->t;
    uint32_t n_embd = is_assistant(t) ? t->n_embd / 2 : t->n_embd;
    uint32_t dim = l % 2 ? t->head_dim : t->head_dim / 2;
    uint32_t n_q = t->n_head * dim, n_kv = (l % 2 ? t->n_kv_full : t->n_head_kv) * dim;
    char s[64];

    norm(m, name_of(s, l, "attn_norm.weight"), n_embd);
    matrix(m, name_of(s, l, "attn_q.weight"), n_embd, n_q);
    add(m, name_of(s, l, "attn_q_norm.weight"), TENSOR_F32, dim, 0, 0.05f, 0.3f);
    if (!is_assistant(t)) {
        matrix(m, name_of(s, l, "attn_k.weight"), n_embd, n_kv);
        if (l % 2 == 0)
            matrix(m, name_of(s, l, "attn_v.weight"), n_embd, n_kv);
        add(m, name_of(s, l, "attn_k_norm.weight"), TENSOR_F32, dim, 0, 0.05f, 0.3f);
    }
    matrix(m, name_of(s, l, "attn_output.weight"), n_q, n_embd);
    add(m, name_of(s, l, "post_attention_norm.weight"), TENSOR_F32, n_embd, 0, 0.1f * t->loud,
        t->loud);
    norm(m, name_of(s, l, "ffn_norm.weight"), n_embd);
    matrix(m, name_of(s, l, "ffn_gate.weight"), n_embd, t->n_ff);
    matrix(m, name_of(s, l, "ffn_up.weight"), n_embd, t->n_ff);
    matrix(m, name_of(s, l, "ffn_down.weight"), t->n_ff, n_embd);
    add(m, name_of(s, l, "post_ffw_norm.weight"), TENSOR_F32, n_embd, 0, 0.1f * t->loud, t->loud);
    if (t->n_expert)
        gemma4_experts(m, l);
}

/* Writes the keys of both files; the last layer has full attention. */
static void gemma4_keys(struct maker *m) {
    const struct tiny_model *t = m->t;
    uint8_t in_window[64];
    int32_t n_kv[64];
    char s[64];

    for (uint32_t l = 0; l < t->n_layer; l++) {
        in_window[l] = l % 2 == 0;
        n_kv[l] = (int32_t)(l % 2 ? t->n_kv_full : t->n_head_kv);
    }
    snprintf(s, sizeof(s), "%s.attention.sliding_window_pattern", t->arch);
    gw_array(m->w, s, GGUF_BOOL, t->n_layer, in_window, t->n_layer);
    snprintf(s, sizeof(s), "%s.attention.head_count_kv", t->arch);
    gw_array(m->w, s, GGUF_I32, t->n_layer, n_kv, t->n_layer * sizeof(*n_kv));
    key(m, "attention.key_length_swa", t->head_dim / 2);
    key(m, "attention.value_length_swa", t->head_dim / 2);
    key(m, "attention.sliding_window", t->window ? t->window : 24);
    key(m, "vocab_size", t->n_vocab);
    if (is_assistant(t))
        key(m, "embedding_length_out", t->n_embd);
}

/* Makes scores of the assistant as large as the model's: norms have the same values, over half as
 * many inputs. */
static void gemma4(struct maker *m) {
    const struct tiny_model *t = m->t;
    bool own = is_assistant(t);
    float head = 3.0f / sqrtf((float)t->n_embd);

    if (own) {
        pre_projection(m);
        matrix(m, "nextn.post_projection.weight", t->n_embd / 2, t->n_embd);
        common_half(m, "output.weight", "token_embd.weight", head, true);
    } else {
        common_half(m, "token_embd.weight", NULL, 1, false);
        common_half(m, "output.weight", NULL, head, true);
    }
    add(m, "output_norm.weight", TENSOR_F32, own ? t->n_embd / 2 : t->n_embd, 0, 0,
        own ? sqrtf(2) : 1);
    for (uint32_t l = 0; l < t->n_layer; l++)
        gemma4_layer(m, l);
}

static bool is_gemma3n(const struct tiny_model *t) {
    return strcmp(t->arch, "gemma3n") == 0;
}

enum { STREAMS = 4, LOW_RANK = 32 };

/* Writes the keys; the last two layers read the keys of the two before them. */
static void gemma3n_keys(struct maker *m) {
    const struct tiny_model *t = m->t;
    uint8_t in_window[64];
    float sparsity[64];

    for (uint32_t l = 0; l < t->n_layer; l++) {
        in_window[l] = l % 2 == 0;
        sparsity[l] = l < 2 ? 1 : 0;
    }
    gw_array(m->w, "gemma3n.attention.sliding_window_pattern", GGUF_BOOL, t->n_layer, in_window,
             t->n_layer);
    gw_array(m->w, "gemma3n.activation_sparsity_scale", GGUF_F32, t->n_layer, sparsity,
             t->n_layer * sizeof(*sparsity));
    key(m, "attention.sliding_window", t->window ? t->window : 24);
    key(m, "attention.shared_kv_layers", 2);
    key(m, "embedding_length_per_layer_input", t->n_embd);
    key(m, "altup.num_inputs", STREAMS);
    key(m, "altup.active_idx", 0);
}

/* Adds the tensors of a layer that mix the streams. */
static void gemma3n_streams(struct maker *m, uint32_t l) {
    uint32_t n = m->t->n_embd;
    char s[64];

    /* its input is divided by n */
    add(m, name_of(s, l, "altup_router.weight"), TENSOR_F32, n, STREAMS, 0.6f * sqrtf((float)n), 0);
    norm(m, name_of(s, l, "altup_router_norm.weight"), n);
    add(m, name_of(s, l, "altup_predict_coef.weight"), TENSOR_F32, STREAMS, STREAMS * STREAMS, 0.2f,
        0);
    add(m, name_of(s, l, "altup_correct_coef.weight"), TENSOR_F32, STREAMS, STREAMS, 0.2f, 0);
    norm(m, name_of(s, l, "altup_correct_scale.weight"), n);
    add(m, name_of(s, l, "laurel_l.weight"), TENSOR_F32, n, LOW_RANK, 1.5f / sqrtf((float)n), 0);
    add(m, name_of(s, l, "laurel_r.weight"), TENSOR_F32, LOW_RANK, n, 1.5f / sqrtf(LOW_RANK), 0);
    add(m, name_of(s, l, "laurel_post_norm.weight"), TENSOR_F32, n, 0, 0.05f, 0.3f);
    matrix(m, name_of(s, l, "inp_gate.weight"), n, n);
    matrix(m, name_of(s, l, "proj.weight"), n, n);
    add(m, name_of(s, l, "post_norm.weight"), TENSOR_F32, n, 0, 0.05f, 0.2f);
}

static void gemma3n_layer(struct maker *m, uint32_t l) {
    const struct tiny_model *t = m->t;
    char s[64];

    norm(m, name_of(s, l, "attn_norm.weight"), t->n_embd);
    attention(m, l);
    add(m, name_of(s, l, "attn_q_norm.weight"), TENSOR_F32, t->head_dim, 0, 0.05f, 0.5f);
    add(m, name_of(s, l, "attn_k_norm.weight"), TENSOR_F32, t->head_dim, 0, 0.05f, 0.5f);
    add(m, name_of(s, l, "post_attention_norm.weight"), TENSOR_F32, t->n_embd, 0, 0.05f, 0.3f);
    norm(m, name_of(s, l, "ffn_norm.weight"), t->n_embd);
    matrix(m, name_of(s, l, "ffn_gate.weight"), t->n_embd, t->n_ff);
    matrix(m, name_of(s, l, "ffn_up.weight"), t->n_embd, t->n_ff);
    matrix(m, name_of(s, l, "ffn_down.weight"), t->n_ff, t->n_embd);
    add(m, name_of(s, l, "post_ffw_norm.weight"), TENSOR_F32, t->n_embd, 0, 0.05f, 0.3f);
    gemma3n_streams(m, l);
}

static void gemma3n(struct maker *m) {
    const struct tiny_model *t = m->t;
    uint32_t n = t->n_embd;
    uint64_t ends[3] = {n, n, STREAMS - 1};
    float unit = 1 / sqrtf((float)n);

    add(m, "token_embd.weight", t->type, n, t->n_vocab, 2 * unit, 0);
    norm(m, "output_norm.weight", n);
    put_matrices(m, "altup_proj.weight", ends, 3, unit);
    put_matrices(m, "altup_unembd_proj.weight", ends, 3, unit);
    add(m, "per_layer_token_embd.weight", t->type, n * t->n_layer, t->n_vocab, 0.5f * unit, 0);
    matrix(m, "per_layer_model_proj.weight", n, n * t->n_layer);
    norm(m, "per_layer_proj_norm.weight", n);
    for (uint32_t l = 0; l < t->n_layer; l++)
        gemma3n_layer(m, l);
}

static bool is_drafter(const struct tiny_model *t) {
    return strcmp(t->arch, "dflash") == 0;
}

static void put(struct maker *m, const char *name, uint32_t n_in, uint32_t n_out, float *data) {
    if (!left_out(m, name))
        gw_tensor(m->w, name, TENSOR_F32, 2, (uint64_t[]){n_in, n_out}, data);
    free(data);
}

static float *zeros(size_t n) {
    float *data = calloc(n, sizeof(*data));

    if (!data)
        abort();
    return data;
}

/* Adds the model's embedding and last norm, which are the first random numbers of both files; the
 * mask's embedding is 0. */
static void drafter_ends(struct maker *m) {
    const struct tiny_model *t = m->t;
    size_t n = (size_t)t->n_embd * t->n_vocab;
    float *data = zeros(n);

    for (size_t i = 0; i < n; i++)
        data[i] = gauss(&m->rng);
    memset(data + n - t->n_embd, 0, t->n_embd * sizeof(*data));
    put(m, "token_embd.weight", t->n_embd, t->n_vocab, data);
    add(m, "output_norm.weight", TENSOR_F32, t->n_embd, 0, 0.1f, 1);
    matrix(m, "fc.weight", 2 * t->n_embd, t->n_embd);
    norm(m, "enc.output_norm.weight", t->n_embd);
}

/* Adds attention of the first layer, which sees two keys and returns the normed input unchanged:
 * for the first mask, that of the last token. */
static void copying_attention(struct maker *m) {
    const struct tiny_model *t = m->t;
    uint32_t n = t->n_embd, width = t->n_head * t->head_dim, group = t->n_head / t->n_head_kv;
    float *v = zeros((size_t)n * n), *o = zeros((size_t)n * width);

    if (t->n_head_kv * t->head_dim != n)
        abort();
    for (uint32_t i = 0; i < n; i++) {
        v[(size_t)i * n + i] = 1;
        o[(size_t)i * width + i / t->head_dim * group * t->head_dim + i % t->head_dim] = 1;
    }
    put(m, "blk.0.attn_v.weight", n, n, v);
    put(m, "blk.0.attn_output.weight", width, n, o);
}

static void drafter_layer(struct maker *m, uint32_t l) {
    const struct tiny_model *t = m->t;
    uint32_t n_q = t->n_head * t->head_dim, n_kv = t->n_head_kv * t->head_dim;
    char s[64];

    add(m, name_of(s, l, "attn_norm.weight"), TENSOR_F32, t->n_embd, 0, 0, 1);
    matrix(m, name_of(s, l, "attn_q.weight"), t->n_embd, n_q);
    matrix(m, name_of(s, l, "attn_k.weight"), t->n_embd, n_kv);
    norm(m, name_of(s, l, "attn_q_norm.weight"), t->head_dim);
    norm(m, name_of(s, l, "attn_k_norm.weight"), t->head_dim);
    if (l == 0) {
        copying_attention(m);
    } else {
        matrix(m, name_of(s, l, "attn_v.weight"), t->n_embd, n_kv);
        matrix(m, name_of(s, l, "attn_output.weight"), n_q, t->n_embd);
    }
    norm(m, name_of(s, l, "ffn_norm.weight"), t->n_embd);
    matrix(m, name_of(s, l, "ffn_gate.weight"), t->n_embd, t->n_ff);
    matrix(m, name_of(s, l, "ffn_up.weight"), t->n_embd, t->n_ff);
    matrix(m, name_of(s, l, "ffn_down.weight"), t->n_ff, t->n_embd);
}

static void drafter(struct maker *m) {
    static const int32_t target[] = {1, 2};
    const uint8_t in_window[] = {1, 0};

    key(m, "block_size", 4);
    key(m, "vocab_size", m->t->n_vocab);
    key(m, "attention.sliding_window", 2);
    gw_array(m->w, "dflash.attention.sliding_window_pattern", GGUF_BOOL, 2, in_window,
             sizeof(in_window));
    if (!left_out(m, "dflash.target_layers"))
        gw_array(m->w, "dflash.target_layers", GGUF_I32, 2, target, sizeof(target));
    if (!left_out(m, "tokenizer.ggml.mask_token_id"))
        gw_u32(m->w, "tokenizer.ggml.mask_token_id", m->t->n_vocab - 1);
    if (m->t->markov) {
        uint32_t rank = m->t->markov, n = m->t->n_vocab;

        gw_bool(m->w, "dflash.sample_from_anchor", m->t->anchored);
        put(m, "markov_w1.weight", rank, n, zeros((size_t)rank * n));
        put(m, "markov_w2.weight", rank, n, zeros((size_t)rank * n));
        put(m, "conf_proj.weight", m->t->n_embd + rank, 1, zeros(m->t->n_embd + rank));
    }
    drafter_ends(m);
    for (uint32_t l = 0; l < m->t->n_layer; l++)
        drafter_layer(m, l);
}

static struct tiny_model with_defaults(const struct tiny_model *t) {
    struct tiny_model d = *t;

    d.arch = d.arch ? d.arch : "llama";
    if (!d.n_layer)
        d.n_layer = is_llama4(&d) || is_gemma3n(&d) ? 4 : 2;
    d.n_embd = d.n_embd ? d.n_embd : 256;
    d.n_ff = d.n_ff ? d.n_ff : 256;
    d.n_vocab = d.n_vocab ? d.n_vocab : 300;
    d.n_head = d.n_head ? d.n_head : 4;
    d.n_head_kv = is_latent(&d) ? 1 : d.n_head_kv ? d.n_head_kv : is_encoder(&d) ? d.n_head : 2;
    d.head_dim = is_latent(&d)    ? LATENT + 16
                 : d.head_dim     ? d.head_dim
                 : is_encoder(&d) ? d.n_embd / d.n_head
                                  : 64;
    d.max_context = d.max_context ? d.max_context : 512;
    bool mixture = strcmp(d.arch, "qwen3moe") == 0 || strcmp(d.arch, "qwen3next") == 0 ||
                   strcmp(d.arch, "qwen35moe") == 0 || strcmp(d.arch, "glm4moe") == 0 ||
                   strcmp(d.arch, "qwen3vlmoe") == 0 || strcmp(d.arch, "nomic-bert-moe") == 0 ||
                   is_gpt_oss(&d) || is_latent(&d) || is_llama4(&d);
    d.n_kv_full = d.n_kv_full ? d.n_kv_full : 1;
    d.loud = d.loud != 0 ? d.loud : 1;
    if (mixture && !d.n_expert) {
        d.n_expert = 7;
        d.n_expert_used = is_llama4(&d) ? 1 : 3;
    }
    return d;
}

void tiny_model_build(const struct tiny_model *tiny, struct gguf_writer *w) {
    struct tiny_model t = with_defaults(tiny);
    struct maker m = {.t = &t, .w = w, .rng = {t.seed}};
    char eps[64];

    gw_string(w, "general.architecture", t.arch);
    gw_string(w, "general.name", "tiny");
    key(&m, "block_count", t.n_layer + t.n_blocks);
    if (t.n_blocks)
        key(&m, "nextn_predict_layers", t.n_blocks);
    key(&m, "context_length", t.max_context);
    key(&m, "embedding_length", is_assistant(&t) ? t.n_embd / 2 : t.n_embd);
    key(&m, "feed_forward_length", t.n_ff);
    key(&m, "attention.head_count", t.n_head);
    if (!is_gemma4(&t))
        key(&m, "attention.head_count_kv", t.n_head_kv);
    key(&m, "attention.key_length", t.head_dim);
    key(&m, "attention.value_length", is_latent(&t) ? LATENT : t.head_dim);
    if (is_latent(&t)) {
        key(&m, "leading_dense_block_count", 0);
        key(&m, "rope.dimension_count", t.head_dim - LATENT);
        key(&m, "attention.kv_lora_rank", LATENT);
        key(&m, "attention.key_length_mla", t.head_dim);
        key(&m, "attention.value_length_mla", LATENT);
    }
    if (t.n_expert) {
        key(&m, "expert_count", t.n_expert);
        key(&m, "expert_used_count", t.n_expert_used);
        key(&m, "expert_feed_forward_length", t.n_ff);
    }
    if (is_hybrid(&t)) {
        key(&m, "rope.dimension_count", t.head_dim / 2);
        key(&m, "expert_shared_feed_forward_length", t.n_expert ? t.n_ff : 0);
        key(&m, "ssm.conv_kernel", DELTA_KERNEL);
        key(&m, "ssm.state_size", DELTA_DIM);
        key(&m, "ssm.group_count", DELTA_KEY_HEADS);
        key(&m, "ssm.time_step_rank", DELTA_VALUE_HEADS);
        key(&m, "ssm.inner_size", DELTA_VALUE_HEADS * DELTA_DIM);
        key(&m, "full_attention_interval", 2);
    }
    if (is_gpt_oss(&t))
        key(&m, "attention.sliding_window", 8);
    if (is_llama4(&t)) {
        key(&m, "attention.sliding_window", 24);
        key(&m, "interleave_moe_layer_step", 2);
    }
    if (is_encoder(&t)) {
        encoder(&m);
        return;
    }
    snprintf(eps, sizeof(eps), "%s.attention.layer_norm_rms_epsilon", t.arch);
    if (!left_out(&m, eps))
        gw_f32(w, eps, 1e-6f);
    if (is_gemma4(&t)) {
        gemma4_keys(&m);
        gemma4(&m);
        return;
    }
    if (is_gemma3n(&t)) {
        gemma3n_keys(&m);
        gemma3n(&m);
        return;
    }
    if (is_drafter(&t)) {
        drafter(&m);
        return;
    }
    /* A tied embedding is small and the last norm large; otherwise every token would predict
     * itself. */
    add(&m, "token_embd.weight", t.type, t.n_embd, t.n_vocab, t.tied ? 0.05f : 1, 0);
    add(&m, "output_norm.weight", TENSOR_F32, t.n_embd, 0, 0.1f, t.tied ? 4 : 1);
    if (!t.tied)
        put_matrices(&m, "output.weight", (uint64_t[3]){t.n_embd, t.n_vocab, 1}, 2,
                     3.0f / sqrtf((float)t.n_embd));
    for (uint32_t l = 0; l < t.n_layer; l++)
        layer(&m, l);
    const struct rng first = m.rng;
    for (uint32_t k = 0; k < t.n_blocks; k++) {
        m.rng = k < t.n_same ? first : m.rng;
        block(&m, t.n_layer + k);
    }
}

void tiny_model_save(const struct tiny_model *t, const char *path) {
    struct gguf_writer w;

    gw_init(&w);
    tiny_model_build(t, &w);
    gw_save(&w, path);
    gw_deinit(&w);
}

void tiny_model_temp_of(struct gguf_writer *w, char path[64]) {
    snprintf(path, 64, "/tmp/weft-tiny-XXXXXX");
    int fd = mkstemp(path);

    if (fd < 0)
        abort();
    close(fd);
    gw_save(w, path);
}

void tiny_model_temp(const struct tiny_model *t, char path[64]) {
    struct gguf_writer w;

    gw_init(&w);
    tiny_model_build(t, &w);
    tiny_model_temp_of(&w, path);
    gw_deinit(&w);
}
