#include "engine/arch/arch.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "engine/arch/decoder.h"
#include "engine/arch/hybrid.h"
#include "engine/rope.h"

/* What is particular to an architecture. */
struct arch {
    const char *name; /* general.architecture */
    enum rope_type rope;
    enum { EXPERTS_NEVER, EXPERTS_MAY, EXPERTS_MUST } experts;
    /* Adds the model's ops, its hyperparameters read; errors stay in the binder. */
    void (*bind)(struct binder *b, struct model *m, const struct decoder *d);
    struct decoder decoder;
};

static const struct arch archs[] = {
    /* Llama 1 to 3, Mistral, TinyLlama, SmolLM; Mixtral with experts. The files hold q and k with
     * their rows permuted, so that RoPE rotates neighbours. Biases occur in a few derived
     * models. */
    {
        .name = "llama",
        .rope = ROPE_NORM,
        .experts = EXPERTS_MAY,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .out_bias = BIND_MAY, .ffn_bias = BIND_MAY},
    },
    /* Qwen 2 and 2.5. */
    {
        .name = "qwen2",
        .rope = ROPE_NEOX,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MUST},
    },
    /* Qwen 3: heads x head size need not be the embedding length. */
    {
        .name = "qwen3",
        .rope = ROPE_NEOX,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .qk_norm = BIND_MUST},
    },
    /* Qwen 3 with experts: 30B-A3B, 235B-A22B, Coder. */
    {
        .name = "qwen3moe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .qk_norm = BIND_MUST},
    },
    /* Qwen3-Next, Qwen3-Coder-Next. */
    {
        .name = "qwen3next",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .bind = hybrid_bind,
        .decoder = {.qk_norm = BIND_MUST, .ffn_norm = "post_attention_norm", .gated = true},
    },
    /* Qwen 3.5, 3.6 and 3.8. Text has one position a token: RoPE in three is that of one. */
    {
        .name = "qwen35",
        .rope = ROPE_NEOX,
        .bind = hybrid_bind,
        .decoder =
            {.qk_norm = BIND_MUST, .ffn_norm = "post_attention_norm", .gated = true, .tiled = true},
    },
    {
        .name = "qwen35moe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .bind = hybrid_bind,
        .decoder =
            {.qk_norm = BIND_MUST, .ffn_norm = "post_attention_norm", .gated = true, .tiled = true},
    },
};

/* The row of general.architecture. -EINVAL with the known names in @err. */
static int find_arch(const struct gguf *file, const struct arch **out, struct err *err) {
    struct gguf_str name;
    char known[160] = "";

    if (gguf_string(file, "general.architecture", &name) < 0)
        return err_set(err, 0, NULL, "the model file has no 'general.architecture'");
    for (size_t i = 0; i < ARRAY_SIZE(archs); i++) {
        size_t n = strlen(known);

        if (name.len == strlen(archs[i].name) && !memcmp(name.data, archs[i].name, name.len)) {
            *out = &archs[i];
            return 0;
        }
        snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "", archs[i].name);
    }
    for (size_t i = 0; i < name.len; i++)
        if (name.data[i] < 0x20 || name.data[i] > 0x7E)
            return err_set(err, 0, NULL, "'general.architecture' is not a name (known: %s)", known);
    return err_set(err, 0, NULL, "architecture '%.*s' is not supported (known: %s)",
                   (int)MIN(name.len, 64u), name.data, known);
}

/* A key that must say @allowed, or nothing, or 0: what it would ask for is not computed here. */
static void refuse_other(struct meta *m, const char *key, uint32_t allowed) {
    uint32_t v = 0;

    meta_u32_opt(m, key, 0, UINT32_MAX, &v);
    if (m->r == 0 && v != 0 && v != allowed)
        m->r = err_set(m->err, 0, NULL, "'%s.%s' is %u, which is not supported", m->arch, key, v);
}

/* Experts: how many, and that they are picked as backend.h says. */
static void read_experts(struct meta *m, const struct arch *arch, struct model_shape *s) {
    double scale = 0;

    s->expert_scale = 1;
    meta_u32_opt(m, "expert_count", 0, MODEL_EXPERTS_MAX, &s->n_expert);
    if (m->r < 0 || (s->n_expert == 0 && arch->experts != EXPERTS_MUST))
        return;
    if (arch->experts == EXPERTS_NEVER) {
        m->r = err_set(m->err, 0, NULL, "%s models with experts (%u here) are not supported",
                       m->arch, s->n_expert);
        return;
    }
    meta_u32(m, "expert_count", 1, MODEL_EXPERTS_MAX, &s->n_expert);
    meta_u32(m, "expert_used_count", 1, s->n_expert, &s->n_expert_used);
    meta_u32_opt(m, "expert_feed_forward_length", 1, 1u << 20, &s->n_ff);
    meta_f32_opt(m, "expert_weights_scale", 0, 1e3, &scale);
    refuse_other(m, "expert_gating_func", 1);
    if (arch->bind == hybrid_bind) {
        meta_u32_opt(m, "expert_shared_feed_forward_length", 0, 1u << 20, &s->n_ff_shared);
        refuse_other(m, "expert_shared_count", 1);
    } else {
        refuse_other(m, "expert_shared_count", 0);
    }
    refuse_other(m, "expert_group_count", 1);
    refuse_other(m, "leading_dense_block_count", 0);
    if (scale > 0)
        s->expert_scale = (float)scale;
}

/* The hyperparameters that every architecture has. Sizes are bounded so that products of two of
 * them fit 64 bits, and a head's values 32. */
static void read_shape(struct meta *m, struct model_shape *s) {
    double eps = -1, scale = 0;
    uint32_t value_length;

    meta_u32(m, "block_count", 1, MODEL_LAYERS_MAX, &s->n_layer);
    meta_u32(m, "embedding_length", 1, 1u << 18, &s->n_embd);
    meta_u32(m, "attention.head_count", 1, 1u << 12, &s->n_head);
    meta_u32_opt(m, "feed_forward_length", 1, 1u << 20, &s->n_ff);
    meta_u32(m, "context_length", 1, 1u << 26, &s->max_context);
    s->n_head_kv = s->n_head;
    s->head_dim = s->n_head ? s->n_embd / s->n_head : 0;
    meta_u32_opt(m, "attention.head_count_kv", 1, s->n_head, &s->n_head_kv);
    meta_u32_opt(m, "attention.key_length", 1, 1024, &s->head_dim);
    value_length = s->head_dim;
    meta_u32_opt(m, "attention.value_length", 1, 1024, &value_length);
    meta_f32_opt(m, "attention.layer_norm_rms_epsilon", 0, 0.1, &eps);
    meta_f32_opt(m, "attention.scale", 0, 1e3, &scale);
    if (m->r < 0)
        return;
    if (eps < 0)
        m->r = err_set(m->err, 0, NULL, "the model file has no '%s.%s'", m->arch,
                       "attention.layer_norm_rms_epsilon");
    else if (s->n_head % s->n_head_kv)
        m->r = err_set(m->err, 0, NULL, "%u heads cannot share %u key heads evenly", s->n_head,
                       s->n_head_kv);
    else if (s->head_dim < 2 || s->head_dim > 1024 || s->head_dim % 2)
        m->r = err_set(m->err, 0, NULL,
                       "heads of %u values: an even number from 2 to 1024 is needed", s->head_dim);
    else if (value_length != s->head_dim)
        m->r = err_set(m->err, 0, NULL, "keys of %u and values of %u numbers are not supported",
                       s->head_dim, value_length);
    s->rms_eps = (float)eps;
    s->attn_scale = scale > 0 ? (float)scale : (float)(1.0 / sqrt((double)s->head_dim));
}

/* The vocabulary is as large as the embedding says; the tokenizer must not know more tokens. */
static void read_vocab(struct meta *m, struct model_shape *s) {
    const struct tensor *t = gguf_find(m->file, "token_embd.weight");
    const struct gguf_array *tokens = gguf_array(m->file, "tokenizer.ggml.tokens");

    if (m->r < 0)
        return;
    if (!t)
        m->r = err_set(m->err, 0, NULL, "the model file has no tensor 'token_embd.weight'");
    else if (t->ne[1] > 1u << 24)
        m->r = err_set(m->err, 0, NULL, "a vocabulary of %llu tokens is not supported",
                       (unsigned long long)t->ne[1]);
    else if (tokens && gguf_array_n(tokens) > t->ne[1])
        m->r = err_set(m->err, 0, NULL, "the tokenizer has %llu tokens, the model %llu",
                       (unsigned long long)gguf_array_n(tokens), (unsigned long long)t->ne[1]);
    else
        s->n_vocab = (uint32_t)t->ne[1];
}

/* Hyperparameters before tensors: their shapes are checked against them. Scaling of RoPE comes
 * last, since a tensor of divisors may be part of it. */
static int bind_all(struct model *m, const struct arch *a, const struct gguf *file,
                    struct err *err) {
    struct meta meta = {.file = file, .arch = a->name, .err = err};
    struct binder b;

    read_shape(&meta, &m->shape);
    read_experts(&meta, a, &m->shape);
    if (!m->shape.n_ff) /* where all are experts, theirs is enough */
        meta_u32(&meta, "feed_forward_length", 1, 1u << 20, &m->shape.n_ff);
    read_vocab(&meta, &m->shape);
    if (meta.r < 0)
        return meta.r;
    if (bind_init(&b, file, a->name, err) < 0)
        return -ENOMEM;
    a->bind(&b, m, &a->decoder);
    meta.r = b.r;
    rope_read(&meta, bind_any(&b, "rope_freqs.weight"), &m->shape);
    b.r = meta.r;
    bind_rest(&b);
    assert(b.r < 0 || m->r < 0 || m->op[m->n_ops - 1].kind == OP_LOGITS);
    m->weight_bytes = b.weight_bytes;
    m->n_params = b.n_params;
    bind_deinit(&b);
    return b.r < 0 ? b.r : m->r;
}

int arch_read(struct model *m, const struct gguf *file, struct err *err) {
    const struct arch *a = NULL;
    int r = find_arch(file, &a, err);

    *m = (struct model){0};
    if (r < 0)
        return r;
    m->arch = a->name;
    m->shape.rope = a->rope;
    r = bind_all(m, a, file, err);
    if (r < 0)
        model_deinit(m);
    return r;
}
