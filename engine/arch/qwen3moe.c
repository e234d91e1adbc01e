/* qwen3moe - Qwen 3 with experts (30B-A3B, 235B-A22B, Coder): qwen3 with a mixture of experts in every layer. */

#include "engine/bind.h"

static void bind(struct binder *b) {
    bind_ends(b);
    bind_dense_layers(b, &(struct bind_dense){.qkv_bias = BIND_MAY, .qk_norm = BIND_MUST});
}

/* x: residual stream; per layer x += Wo attention(qkv(norm x)), x += the picked experts' sum of norm x. */
static int forward(const struct model *m, const struct be_ops *ops, struct step *s) {
    const struct attn attn = {.scale = m->shape.attn_scale};
    const struct act x = {ACT_X}, q = {ACT_Q}, o = {ACT_O};
    int r = ops->embed(s, x, model_embed(m));

    for (uint32_t l = 0; l < m->shape.n_layer && r == 0; l++) {
        const struct kv_layer kv = {.layer = l, .cls = KV_GLOBAL};

        r = ops->qkv(s, q, x, model_layer(m, l, L_QKV), &kv);
        r = r < 0 ? r : ops->attend(s, o, q, &kv, &attn);
        r = r < 0 ? r : ops->proj(s, x, o, model_layer(m, l, L_ATTN_OUT));
        r = r < 0 ? r : ops->route(s, x, model_layer(m, l, L_ROUTE));
        r = r < 0 ? r : ops->experts(s, x, model_layer(m, l, L_EXPERTS));
    }
    return r < 0 ? r : ops->logits(s, x, model_logits(m));
}

const struct arch arch_qwen3moe = {.name = "qwen3moe",
                                   .rope = ROPE_NEOX,
                                   .experts = EXPERTS_MUST,
                                   .bind = bind,
                                   .forward = forward};
