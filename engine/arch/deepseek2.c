/*
 * deepseek2 - latent attention in absorbed form, at all lengths: the keys and values of a token are
 * one latent vector for all heads; attn_k_b maps queries to it, and attn_v_b maps the output back.
 * Expanding keys and values would take less time for long prompts, but rounds differently, so the
 * bits of a token would depend on how its prompt is divided into chunks.
 */

#include "engine/arch/deepseek2.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/bind/meta.h"

/* Returns the scale of scores, which includes YaRN's factor. The file has YaRN's multiplier times
 * 0.1. */
static float score_scale(struct binder *b, uint32_t key_length) {
    double scale = 1 / sqrt((double)key_length), factor = 1, multiplier = 0;
    char type[16];

    meta_string(b, "rope.scaling.type", type, sizeof(type));
    meta_f32_opt(b, "rope.scaling.factor", 1e-3, 1e6, &factor);
    meta_f32_opt(b, "rope.scaling.yarn_log_multiplier", -1e3, 1e3, &multiplier);
    if (strcmp(type, "yarn") == 0) {
        double by = 1 + (multiplier != 0 ? multiplier : 0.1) * mx_log(factor);

        scale *= by * by;
    }
    return (float)scale;
}

/* Reads the temperature of queries, for Mistral's models. */
static void read_temper(struct binder *b, struct temper *t) {
    double slope = 0;

    meta_f32_opt(b, "attention.temperature_scale", 0, 1e3, &slope);
    if (slope > 0)
        meta_u32(b, "attention.temperature_length", 1, 1u << 30, &t->span);
    t->slope = (float)slope;
}

void deepseek2_read(struct binder *b, struct model *m, bool rotates) {
    struct model_shape *s = &m->shape;
    struct mla_shape *d = &s->mla;
    uint32_t n_rot = 0, key_length = 0, func = 0;

    if (rotates)
        meta_u32(b, "rope.dimension_count", 2, s->head_dim, &n_rot);
    else
        meta_u32(b, "rope.dimension_count", 0, 0, &n_rot);
    meta_u32(b, "attention.kv_lora_rank", 1, 1024, &d->rank);
    meta_u32(b, "attention.key_length_mla", n_rot + 1, 1024, &key_length);
    meta_u32(b, "attention.value_length_mla", 1, 1024, &d->n_value);
    meta_u32_opt(b, "attention.q_lora_rank", 0, 1u << 16, &d->q_rank);
    meta_u32_opt(b, "expert_gating_func", 0, 2, &func);
    read_temper(b, &m->temper);
    if (b->r < 0)
        return;
    if (s->n_head_kv != 1 || s->head_dim != d->rank + n_rot)
        bind_refuse(b, "latent attention needs one key head of %u + %u values, not %u of %u",
                    d->rank, n_rot, s->n_head_kv, s->head_dim);
    d->n_nope = key_length - n_rot;
    s->attn_scale = score_scale(b, key_length);
    if (func == 0 && s->n_vocab == 154880) /* the first files of GLM-4.7-Flash lack the key */
        s->gating = GATING_SIGMOID;
}

void deepseek2_attention(struct binder *b, struct model *m, uint32_t l, const struct latent *of) {
    const struct model_shape *s = &m->shape;
    const struct mla_shape *d = &s->mla;
    const struct heads heads = {.n = s->n_head, .n_kv = 1, .dim = s->head_dim};
    uint64_t n_q = (uint64_t)s->n_head * (d->n_nope + s->head_dim - d->rank);
    const struct kv_layer kv = model_add_kv(m, KV_GLOBAL, &heads);

    assert(d->rank > 0 && d->rank <= s->head_dim && d->n_nope > 0);
    const struct tensor *q;
    if (d->q_rank)
        q = layer_matrix(b, l, "attn_q_a", s->n_embd, d->q_rank);
    else
        q = layer_matrix(b, l, "attn_q", s->n_embd, n_q);

    model_add(m, &(struct model_op){
                     .kind = OP_MLA_IN,
                     .layer = l,
                     .norm = layer_vector(b, l, "attn_norm", s->n_embd),
                     .w = {layer_matrix(b, l, "attn_kv_a_mqa", s->n_embd, s->head_dim), q},
                 });
    if (of->choose)
        of->choose(b, m, l);
    if (d->q_rank)
        model_add(m, &(struct model_op){
                         .kind = OP_MLA_Q,
                         .layer = l,
                         .norm = layer_vector(b, l, "attn_q_a_norm", d->q_rank),
                         .w = {layer_matrix(b, l, "attn_q_b", d->q_rank, n_q)},
                     });
    model_add(m, &(struct model_op){
                     .kind = OP_MLA_KV,
                     .layer = l,
                     .kv = kv,
                     .heads = heads,
                     .temper = m->temper,
                     .norm = layer_vector(b, l, "attn_kv_a_norm", d->rank),
                     .w = {layer_matrices(b, l, "attn_k_b", d->n_nope, d->rank, s->n_head)},
                 });
    model_add(m, &(struct model_op){
                     .kind = OP_ATTEND,
                     .layer = l,
                     .kv = kv,
                     .heads = heads,
                     .attn = {.scale = s->attn_scale, .sparse = of->choose != NULL},
                 });
    if (of->gated)
        model_add(m, &(struct model_op){
                         .kind = OP_GATE,
                         .sigmoid = true,
                         .layer = l,
                         .heads = heads,
                         .norm = layer_vector(b, l, "attn_norm", s->n_embd),
                         .w = {layer_matrix(b, l, "attn_gate", s->n_embd, s->n_head)},
                     });
    model_add(m, &(struct model_op){
                     .kind = OP_MLA_OUT,
                     .layer = l,
                     .heads = heads,
                     .w = {layer_matrices(b, l, "attn_v_b", d->rank, d->n_value, s->n_head)},
                 });
    decoder_project(b, m, l, ACT_D, (uint64_t)s->n_head * d->n_value, "attn_output",
                    s->stream.n > 0 && l < s->n_layer);
}

void deepseek2_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index) {
    const struct layer l = decoder_layer(m, index);

    deepseek2_attention(b, m, index, &(struct latent){0});
    decoder_mlp(b, m, d, &l);
}

void deepseek2_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_op logits;

    assert(m->n_ops == 0);
    deepseek2_read(b, m, true);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < m->shape.n_layer && b->r == 0; i++)
        deepseek2_block(b, m, d, i);
    model_add(m, &logits);
}
