#include "engine/arch/hybrid.h"

#include <assert.h>

/* Sizes are bounded so that the number of floats of a state fits into 64 bits. */
void hybrid_read_delta(struct binder *b, bool tiled, struct model_shape *s) {
    struct delta_shape *d = &s->delta;
    uint32_t inner = 0;

    d->tiled = tiled;
    d->eps = s->rms_eps;
    meta_u32(b, "ssm.conv_kernel", 2, 8, &s->state.kernel);
    meta_u32(b, "ssm.state_size", 16, 512, &d->dim);
    meta_u32(b, "ssm.group_count", 1, 1024, &d->n_key_head);
    meta_u32(b, "ssm.time_step_rank", 1, 1024, &d->n_value_head);
    meta_u32(b, "ssm.inner_size", 1, 1u << 20, &inner);
    if (b->r < 0)
        return;
    if (d->dim % 16)
        bind_refuse(b, "'%s.ssm.state_size' is %u, not a multiple of 16", b->arch, d->dim);
    else if (d->n_value_head % d->n_key_head)
        bind_refuse(b, "%u value heads cannot share %u key heads evenly", d->n_value_head,
                    d->n_key_head);
    else if (inner != d->n_value_head * d->dim)
        bind_refuse(b, "'%s.ssm.inner_size' is %u, but %u heads of %u values are %u", b->arch,
                    inner, d->n_value_head, d->dim, d->n_value_head * d->dim);
    if (b->r < 0)
        return;
    uint32_t channels = d->dim * (2 * d->n_key_head + d->n_value_head);
    s->state = (struct state_shape){
        .kernel = s->state.kernel,
        .n_in = {channels, inner, 2 * d->n_value_head, d->n_value_head},
        .n_out = inner,
        .n_floats = (uint64_t)(s->state.kernel - 1) * channels +
                    (uint64_t)d->n_value_head * d->dim * d->dim,
    };
}

void hybrid_read_kinds(struct binder *b, const struct model_shape *s, bool *is_delta) {
    uint32_t interval = 4, n = 0;

    meta_u32_opt(b, "full_attention_interval", 1, MODEL_LAYERS_MAX, &interval);
    bool listed =
        meta_numbers(b, BIND_MAY, "attention.recurrent_layers", GGUF_BOOL, s->n_layer, is_delta);
    for (uint32_t l = 0; l < s->n_layer && b->r == 0; l++) {
        if (!listed)
            is_delta[l] = (l + 1) % interval != 0;
        n += is_delta[l];
    }
    if (b->r == 0 && (n == 0 || n == s->n_layer))
        bind_refuse(b, "%u of %u layers are recurrent: %s models have both kinds", n, s->n_layer,
                    b->arch);
}

void hybrid_delta(struct binder *b, struct model *m, const struct decoder *d, uint32_t l) {
    const struct model_shape *s = &m->shape;
    const struct delta_shape *t = &s->delta;
    uint64_t inner = (uint64_t)t->n_value_head * t->dim, n = t->n_value_head;

    assert(s->state.n_out == inner && n % t->n_key_head == 0);
    const struct tensor *both =
        bind_matrix(b, BIND_MAY, s->n_embd, 2 * n, "blk.%u.ssm_ba.weight", l);
    enum bind_need apart = bind_if(!both, BIND_MUST);
    const struct tensor *beta = bind_matrix(b, apart, s->n_embd, n, "blk.%u.ssm_beta.weight", l);
    const struct tensor *alpha = bind_matrix(b, apart, s->n_embd, n, "blk.%u.ssm_alpha.weight", l);

    model_add(
        m, &(struct model_op){
               .kind = OP_STATE_IN,
               .layer = l,
               .norm = bind_vector(b, bind_if(!d->unnormed, BIND_MUST), s->n_embd,
                                   "blk.%u.attn_norm.weight", l),
               .w = {layer_matrix(b, l, "attn_qkv", s->n_embd, s->state.n_in[0]),
                     layer_matrix(b, l, "attn_gate", s->n_embd, inner), both ? both : beta, alpha},
           });
    model_add(m, &(struct model_op){
                     .kind = OP_DELTA,
                     .layer = l,
                     .recurrent.state = m->shape.state.n_layer++,
                     .recurrent.joined = both != NULL,
                     .recurrent.sigmoid = d->streams,
                     .norm = layer_vector(b, l, "ssm_norm", t->dim),
                     .recurrent.conv =
                         layer_matrix(b, l, "ssm_conv1d", s->state.kernel, s->state.n_in[0]),
                     .recurrent.dt = bind_vector(b, BIND_MUST, n, "blk.%u.ssm_dt.bias", l),
                     .recurrent.decay = bind_vector(b, BIND_MUST, n, "blk.%u.ssm_a", l),
                 });
    decoder_project(b, m, l, ACT_D, inner, "ssm_out", d->streams);
}

void hybrid_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_shape *s = &m->shape;
    bool is_delta[MODEL_LAYERS_MAX];
    struct model_op logits;

    assert(m->n_ops == 0 && d->gated);
    /* folders of safetensors (lib/checkpoint) have the order of transformers */
    hybrid_read_delta(b, d->tiled && !meta_bool(b, "ssm.grouped_heads"), s);
    hybrid_read_kinds(b, s, is_delta);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++) {
        const struct layer l = decoder_layer(m, i);

        if (is_delta[i])
            hybrid_delta(b, m, d, i);
        else
            decoder_attention(b, m, d, &l);
        if (s->n_expert)
            decoder_experts(b, m, d, i);
        else
            decoder_ffn(b, m, d, &l);
    }
    model_add(m, &logits);
}
