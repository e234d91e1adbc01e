#include "engine/arch/hybrid.h"

#include <assert.h>
#include <stdio.h>

/* Sizes are bounded so that the number of floats of a state fits into 64 bits. */
void hybrid_read_delta(struct meta *m, bool tiled, struct model_shape *s) {
    struct delta_shape *d = &s->delta;
    uint32_t inner = 0;

    d->tiled = tiled;
    meta_u32(m, "ssm.conv_kernel", 2, 8, &s->state.kernel);
    meta_u32(m, "ssm.state_size", 16, 512, &d->dim);
    meta_u32(m, "ssm.group_count", 1, 1024, &d->n_key_head);
    meta_u32(m, "ssm.time_step_rank", 1, 1024, &d->n_value_head);
    meta_u32(m, "ssm.inner_size", 1, 1u << 20, &inner);
    if (m->r < 0)
        return;
    if (d->dim % 16)
        m->r = err_set(m->err, 0, NULL, "'%s.ssm.state_size' is %u, not a multiple of 16", m->arch,
                       d->dim);
    else if (d->n_value_head % d->n_key_head)
        m->r = err_set(m->err, 0, NULL, "%u value heads cannot share %u key heads evenly",
                       d->n_value_head, d->n_key_head);
    else if (inner != d->n_value_head * d->dim)
        m->r =
            err_set(m->err, 0, NULL, "'%s.ssm.inner_size' is %u, but %u heads of %u values are %u",
                    m->arch, inner, d->n_value_head, d->dim, d->n_value_head * d->dim);
    if (m->r < 0)
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

void hybrid_read_kinds(struct meta *m, const struct model_shape *s, bool *is_delta) {
    char key[96];
    uint32_t interval = 4, n = 0;

    snprintf(key, sizeof(key), "%s.attention.recurrent_layers", m->arch);
    const struct gguf_array *a = gguf_array(m->file, key);
    meta_u32_opt(m, "full_attention_interval", 1, MODEL_LAYERS_MAX, &interval);
    if (m->r == 0 && a && (gguf_array_type(a) == GGUF_STRING || gguf_array_n(a) < s->n_layer))
        m->r = err_set(m->err, 0, NULL, "'%s' has no entry for some layers", key);
    for (uint32_t l = 0; l < s->n_layer && m->r == 0; l++) {
        is_delta[l] = a ? gguf_array_num(a, l) != 0 : (l + 1) % interval != 0;
        n += is_delta[l];
    }
    if (m->r == 0 && (n == 0 || n == s->n_layer))
        m->r = err_set(m->err, 0, NULL, "%u of %u layers are recurrent: %s models have both kinds",
                       n, s->n_layer, m->arch);
}

void hybrid_delta(struct binder *b, struct model *m, const struct decoder *d, uint32_t l) {
    const struct model_shape *s = &m->shape;
    const struct delta_shape *t = &s->delta;
    uint64_t inner = (uint64_t)t->n_value_head * t->dim, n = t->n_value_head;

    assert(s->state.n_out == inner && n % t->n_key_head == 0);
    const struct tensor *both =
        bind_matrix(b, BIND_MAY, s->n_embd, 2 * n, "blk.%u.ssm_ba.weight", l);
    enum bind_need apart = both ? BIND_NEVER : BIND_MUST;
    const struct tensor *beta = bind_matrix(b, apart, s->n_embd, n, "blk.%u.ssm_beta.weight", l);
    const struct tensor *alpha = bind_matrix(b, apart, s->n_embd, n, "blk.%u.ssm_alpha.weight", l);

    model_add(m,
              &(struct model_op){
                  .kind = OP_STATE_IN,
                  .layer = l,
                  .norm = bind_vector(b, d->unnormed ? BIND_NEVER : BIND_MUST, s->n_embd,
                                      "blk.%u.attn_norm.weight", l),
                  .w = {bind_matrix(b, BIND_MUST, s->n_embd, s->state.n_in[0],
                                    "blk.%u.attn_qkv.weight", l),
                        bind_matrix(b, BIND_MUST, s->n_embd, inner, "blk.%u.attn_gate.weight", l),
                        both ? both : beta, alpha},
              });
    model_add(m, &(struct model_op){
                     .kind = OP_DELTA,
                     .layer = l,
                     .state = m->shape.state.n_layer++,
                     .joined = both != NULL,
                     .sigmoid = d->streams,
                     .norm = bind_vector(b, BIND_MUST, t->dim, "blk.%u.ssm_norm.weight", l),
                     .conv = bind_matrix(b, BIND_MUST, s->state.kernel, s->state.n_in[0],
                                         "blk.%u.ssm_conv1d.weight", l),
                     .dt = bind_vector(b, BIND_MUST, n, "blk.%u.ssm_dt.bias", l),
                     .decay = bind_vector(b, BIND_MUST, n, "blk.%u.ssm_a", l),
                 });
    model_add(m, &(struct model_op){
                     .kind = OP_PROJ,
                     .layer = l,
                     .in = ACT_D,
                     .branch = d->streams,
                     .w = {bind_matrix(b, BIND_MUST, inner, s->n_embd, "blk.%u.ssm_out.weight", l)},
                 });
}

void hybrid_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct meta meta = {.file = b->file, .arch = b->arch, .err = b->err};
    struct model_shape *s = &m->shape;
    bool is_delta[MODEL_LAYERS_MAX];
    struct model_op logits;

    assert(m->n_ops == 0 && d->gated);
    hybrid_read_delta(&meta, d->tiled, s);
    hybrid_read_kinds(&meta, s, is_delta);
    b->r = meta.r;
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
