#include "engine/arch/bailing3.h"

#include <assert.h>
#include <stdio.h>

#include "engine/arch/deepseek2.h"
#include "engine/arch/limits.h"

static void bailing3_read_kda(struct binder *b, struct model_shape *s,
                              const struct kda_rules *rules) {
    struct delta_shape *d = &s->delta;
    double lower = 0;

    meta_u32(b, "ssm.conv_kernel", 2, 8, &s->state.kernel);
    meta_u32(b, "kda.head_dim", 16, 512, &d->dim);
    meta_f32_opt(b, "kda.gate_lower_bound", -1e3, 0, &lower);
    if (b->r < 0)
        return;
    if (rules->plain && d->dim % 16)
        bind_refuse(b, "'%s.kda.head_dim' is %u; a multiple of 16 is needed", b->arch, d->dim);
    else if (!rules->plain && (d->dim % 16 || d->dim != s->mla.n_value))
        bind_refuse(b,
                    "'%s.kda.head_dim' is %u; a multiple of 16 is needed, and the values of a "
                    "latent head, %u",
                    b->arch, d->dim, s->mla.n_value);
    bool bound = (meta_bool(b, "kda.safe_gate") || rules->own_bound) && lower < 0;
    if (rules->bounded && !bound)
        bind_refuse(b, "decays without '%s.kda.gate_lower_bound' are not supported", b->arch);
    d->elementwise = true;
    if (bound)
        d->lower = (float)lower;
    else
        d->lower = 0;
    d->eps = s->rms_eps;
    if (rules->eps > 0)
        d->eps = rules->eps;
    d->n_key_head = d->n_value_head = s->n_head;
    uint32_t inner = s->n_head * d->dim;
    s->state = (struct state_shape){
        .kernel = s->state.kernel,
        .n_in = {3 * inner, inner, inner, s->n_head},
        .n_out = inner,
        .n_floats = (uint64_t)(s->state.kernel - 1) * 3 * inner + (uint64_t)inner * d->dim,
    };
}

/* Binds the convolution taps of the queries', keys' or values' channels. */
static const struct tensor *taps(struct binder *b, const struct model_shape *s, uint32_t l,
                                 char which) {
    return bind_matrices(b, BIND_MUST, s->state.kernel, 1, s->state.n_out,
                         "blk.%u.ssm_conv1d_%c.weight", l, which);
}

/* Binds the decays of @n heads: a vector, or a matrix with a row for each head. */
static const struct tensor *bind_decays(struct binder *b, uint32_t l, uint64_t n) {
    char name[32];

    snprintf(name, sizeof(name), "blk.%u.ssm_a", l);
    const struct tensor *found = gguf_find(b->file, name);
    if (found && found->ne[0] == n)
        return bind_vector(b, BIND_MUST, n, "%s", name);
    return bind_flat(b, bind_vectors(b, BIND_MUST, 1, n, "%s", name));
}

/* Adds in[1] to in[3] of Kimi delta attention: gates of the output, raw decays and betas. */
static void bind_gates(struct binder *b, struct model *m, uint32_t l, const struct tensor *norm) {
    const struct model_shape *s = &m->shape;

    model_add(m, &(struct model_op){
                     .kind = OP_STATE_IN,
                     .layer = l,
                     .state_in.first = 1,
                     .norm = norm,
                     .w = {layer_matrix(b, l, "ssm_g_a", s->n_embd, s->state.n_out),
                           layer_matrix(b, l, "ssm_f_a", s->n_embd, s->state.n_out),
                           layer_matrix(b, l, "ssm_beta", s->n_embd, s->n_head)},
                 });
}

/* Adds what bind_gates() adds, where gates and decays are products of two matrices. */
static void bind_low_gates(struct binder *b, struct model *m, uint32_t l,
                           const struct tensor *norm) {
    const struct model_shape *s = &m->shape;
    uint64_t n_low = m->shape.state.n_low = s->delta.dim;

    model_add(m, &(struct model_op){
                     .kind = OP_STATE_IN,
                     .layer = l,
                     .state_in.low = LOW_DOWN,
                     .norm = norm,
                     .w = {layer_matrix(b, l, "ssm_g_a", s->n_embd, n_low),
                           layer_matrix(b, l, "ssm_f_a", s->n_embd, n_low)},
                 });
    model_add(m, &(struct model_op){
                     .kind = OP_STATE_IN,
                     .layer = l,
                     .state_in.low = LOW_UP,
                     .state_in.first = 1,
                     .w = {layer_matrix(b, l, "ssm_g_b", n_low, s->state.n_out),
                           layer_matrix(b, l, "ssm_f_b", n_low, s->state.n_out)},
                 });
    model_add(m, &(struct model_op){
                     .kind = OP_STATE_IN,
                     .layer = l,
                     .state_in.first = 3,
                     .norm = norm,
                     .w = {layer_matrix(b, l, "ssm_beta", s->n_embd, s->n_head)},
                 });
}

void bailing3_kda(struct binder *b, struct model *m, uint32_t l, bool low) {
    const struct model_shape *s = &m->shape;
    uint64_t e = s->n_embd, inner = s->state.n_out, n = s->n_head;
    const struct tensor *norm = layer_vector(b, l, "attn_norm", e);

    assert(inner == n * s->delta.dim);
    model_add(
        m, &(struct model_op){
               .kind = OP_STATE_IN,
               .layer = l,
               .state_in.parts = true,
               .norm = norm,
               .w = {layer_matrix(b, l, "attn_q", e, inner), layer_matrix(b, l, "attn_k", e, inner),
                     layer_matrix(b, l, "attn_v", e, inner)},
           });
    if (low)
        bind_low_gates(b, m, l, norm);
    else
        bind_gates(b, m, l, norm);
    model_add(m, &(struct model_op){
                     .kind = OP_KDA,
                     .layer = l,
                     .recurrent.state = m->shape.state.n_layer++,
                     .norm = layer_vector(b, l, "ssm_norm", s->delta.dim),
                     .recurrent.conv = taps(b, s, l, 'q'),
                     .recurrent.conv_more = {taps(b, s, l, 'k'), taps(b, s, l, 'v')},
                     .recurrent.dt = bind_vector(b, BIND_MUST, inner, "blk.%u.ssm_dt.bias", l),
                     .recurrent.decay = bind_decays(b, l, n),
                 });
    decoder_project(b, m, l, ACT_D, inner, "attn_output", s->stream.n > 0);
}

/* Binds layer @i: latent attention or Kimi delta attention, then the FFN or experts. */
static void bailing3_bind_layer(struct binder *b, struct model *m, const struct decoder *d,
                                const struct limits *limits, uint32_t i, bool latent) {
    const struct layer l = decoder_layer(m, i);

    if (latent)
        deepseek2_attention(b, m, i, &(struct latent){.gated = true});
    else
        bailing3_kda(b, m, i, false);
    uint32_t first = m->n_ops;
    decoder_mlp(b, m, d, &l);
    limits_set(m, first, limits, i);
}

void bailing3_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index) {
    struct limits limits;

    if (b->r < 0)
        return;
    limits_read(b, index + 1, &limits);
    if (b->r == 0)
        bailing3_bind_layer(b, m, d, &limits, index, true);
}

void bailing3_read(struct binder *b, struct model *m, uint32_t n, const struct kda_rules *rules,
                   uint32_t n_kv[MODEL_LAYERS_MAX]) {
    assert(m->n_ops == 0 && n <= MODEL_LAYERS_MAX);
    meta_u32_layers(b, "attention.head_count_kv", 0, m->shape.n_head, n, n_kv);
    m->shape.n_head_kv = 1; /* some files count the key heads before absorption */
    deepseek2_read(b, m, !rules->plain);
    bailing3_read_kda(b, &m->shape, rules);
}

void bailing3_bind(struct binder *b, struct model *m, const struct decoder *d) {
    uint32_t n_kv[MODEL_LAYERS_MAX];
    uint32_t n_all = m->shape.n_layer + m->n_mtp; /* the array has numbers for MTP blocks too */
    struct limits limits;
    struct model_op logits;

    bailing3_read(b, m, n_all, &(struct kda_rules){.bounded = true}, n_kv);
    limits_read(b, m->shape.n_layer, &limits);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < m->shape.n_layer && b->r == 0; i++)
        bailing3_bind_layer(b, m, d, &limits, i, n_kv[i] > 0);
    if (b->r == 0 && !m->shape.state.n_layer)
        bind_refuse(b, "no layer has Kimi delta attention");
    model_add(m, &logits);
}
