/*
 * llama - Llama 1 to 3, Mistral, TinyLlama, SmolLM, Mixtral: grouped-query attention and SwiGLU, or experts. The files hold q
 * and k with their rows permuted, so that RoPE turns neighbours (research llamacpp-facts c.2). Biases
 * occur in a few derived models.
 */

#include "engine/bind.h"

static void bind(struct binder *b) {
    bind_ends(b);
    bind_dense_layers(b, &(struct bind_dense){
                             .qkv_bias = BIND_MAY,
                             .out_bias = BIND_MAY,
                             .ffn_bias = BIND_MAY,
                         });
}

/* x: residual stream; per layer x += Wo attention(qkv(norm x)), x += Wdown (silu(gate) up)(norm x). */
static int forward(const struct model *m, const struct be_ops *ops, struct step *s) {
    const struct attn attn = {.scale = m->shape.attn_scale};
    const struct act x = {ACT_X}, q = {ACT_Q}, o = {ACT_O}, h = {ACT_H};
    int r = ops->embed(s, x, model_embed(m));

    for (uint32_t l = 0; l < m->shape.n_layer && r == 0; l++) {
        const struct kv_layer kv = {.layer = l, .cls = KV_GLOBAL};

        r = ops->qkv(s, q, x, model_layer(m, l, L_QKV), &kv);
        r = r < 0 ? r : ops->attend(s, o, q, &kv, &attn);
        r = r < 0 ? r : ops->proj(s, x, o, model_layer(m, l, L_ATTN_OUT));
        if (m->shape.n_expert) {
            r = r < 0 ? r : ops->route(s, x, model_layer(m, l, L_ROUTE));
            r = r < 0 ? r : ops->experts(s, x, model_layer(m, l, L_EXPERTS));
            continue;
        }
        r = r < 0 ? r : ops->gate_up(s, h, x, model_layer(m, l, L_GATE_UP));
        r = r < 0 ? r : ops->proj(s, x, h, model_layer(m, l, L_DOWN));
    }
    return r < 0 ? r : ops->logits(s, x, model_logits(m));
}

const struct arch arch_llama = {
    .name = "llama", .rope = ROPE_NORM, .experts = EXPERTS_MAY, .bind = bind, .forward = forward};
