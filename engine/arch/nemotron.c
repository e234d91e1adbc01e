#include "engine/arch/nemotron.h"

#include <assert.h>

#include "engine/bind/meta.h"

void nemotron_read_mamba(struct binder *b, struct model_shape *s) {
    struct mamba_shape *d = &s->mamba;
    uint32_t inner = 0, kernel = 0;

    meta_u32(b, "ssm.conv_kernel", 2, 8, &kernel);
    meta_u32(b, "ssm.inner_size", 16, 1u << 18, &inner);
    meta_u32(b, "ssm.state_size", 4, 1024, &d->n_state);
    meta_u32(b, "ssm.group_count", 1, 1024, &d->n_group);
    meta_u32(b, "ssm.time_step_rank", 1, 4096, &d->n_head);
    if (b->r < 0)
        return;
    uint32_t channels = inner + 2 * d->n_group * d->n_state;
    d->dim = inner / d->n_head;
    if (inner % d->n_head || d->dim % 16)
        bind_refuse(b,
                    "'%s.ssm.inner_size' is %u; a multiple of 16 for each of the %u heads of "
                    "'%s.ssm.time_step_rank' is needed",
                    b->arch, inner, d->n_head, b->arch);
    else if (d->n_head % d->n_group || d->n_state % 4 || channels % 16)
        bind_refuse(b,
                    "%u heads of Mamba-2 in %u groups with states of %u are not supported; "
                    "groups of equal size, states of a multiple of 4 and %u channels that are "
                    "a multiple of 16 are needed",
                    d->n_head, d->n_group, d->n_state, channels);
    s->state = (struct state_shape){
        .kernel = kernel,
        .n_in = {channels, inner, d->n_head},
        .n_out = inner,
        .n_floats = (uint64_t)(kernel - 1) * channels + (uint64_t)inner * d->n_state,
    };
}

void nemotron_mamba_in(struct binder *b, struct model *m, uint32_t l, enum bind_need norm) {
    const struct model_shape *s = &m->shape;
    uint64_t inner = s->state.n_out, channels = s->state.n_in[0], heads = s->mamba.n_head;

    assert(inner == (uint64_t)s->mamba.n_head * s->mamba.dim);
    const struct tensor *in = layer_matrix(b, l, "ssm_in", s->n_embd, inner + channels + heads);

    model_add(m, &(struct model_op){
                     .kind = OP_STATE_IN,
                     .layer = l,
                     .norm = layer_vector(b, l, "attn_norm", s->n_embd),
                     .w = {bind_rows(b, in, inner, channels), bind_rows(b, in, 0, inner),
                           bind_rows(b, in, inner + channels, heads)},
                 });
    model_add(
        m,
        &(struct model_op){
            .kind = OP_MAMBA,
            .layer = l,
            .recurrent.state = m->shape.state.n_layer++,
            .norm = bind_flat(b, bind_vectors(b, norm, inner / s->mamba.n_group, s->mamba.n_group,
                                              "blk.%u.ssm_norm.weight", l)),
            .recurrent.conv = layer_matrix(b, l, "ssm_conv1d", s->state.kernel, channels),
            .recurrent.conv_bias = bind_vector(b, BIND_MAY, channels, "blk.%u.ssm_conv1d.bias", l),
            .recurrent.dt = bind_vector(b, BIND_MUST, heads, "blk.%u.ssm_dt.bias", l),
            .recurrent.decay =
                bind_flat(b, bind_vectors(b, BIND_MUST, 1, heads, "blk.%u.ssm_a", l)),
            .recurrent.skip = bind_flat(b, bind_vectors(b, BIND_MUST, 1, heads, "blk.%u.ssm_d", l)),
        });
}

void nemotron_mamba(struct binder *b, struct model *m, uint32_t l) {
    nemotron_mamba_in(b, m, l, BIND_MUST);
    decoder_project(b, m, l, ACT_D, m->shape.state.n_out, "ssm_out", false);
}

/* Adds x += W (attention of norm x), with @n_kv key heads. */
static void bind_attention(struct binder *b, struct model *m, const struct decoder *d,
                           uint32_t index, uint32_t n_kv) {
    struct layer l = decoder_layer(m, index);

    l.heads.n_kv = n_kv;
    l.rope = 1; /* this set is empty, so heads are not rotated */
    decoder_attention(b, m, d, &l);
}

/* Experts by layer: how many a row picks, and their width. */
struct plan {
    uint32_t n_used[MODEL_LAYERS_MAX], n_ff[MODEL_LAYERS_MAX];
};

/* Reads the plan of the layers and of the MTP block. A layer without experts may have zeros. */
static void nemotron_read_plan(struct binder *b, const struct model *m, struct plan *p) {
    const struct model_shape *s = &m->shape;
    uint32_t n = s->n_layer + m->n_mtp;

    if (b->r < 0 || s->n_expert == 0)
        return;
    meta_u32_layers(b, "expert_used_count", 0, s->n_expert, n, p->n_used);
    for (uint32_t i = 0; i < n; i++)
        p->n_ff[i] = s->n_ff_expert;
    if (gguf_array(b->file, meta_key(b, "expert_feed_forward_length").s))
        meta_u32_layers(b, "expert_feed_forward_length", 0, 1u << 20, n, p->n_ff);
}

/* Adds the experts of layer @l, whose shape differs from that of other layers. */
static void nemotron_experts(struct binder *b, struct model *m, const struct decoder *d,
                             const struct plan *p, uint32_t l) {
    struct model_shape *s = &m->shape, most = *s;

    if (p->n_used[l] == 0 || p->n_ff[l] == 0) {
        bind_refuse(b,
                    "layer %u has experts, but '%s.expert_used_count' or "
                    "'%s.expert_feed_forward_length' is 0",
                    l, b->arch, b->arch);
        return;
    }
    s->n_expert_used = p->n_used[l];
    s->n_ff_expert = p->n_ff[l];
    decoder_experts(b, m, d, l);
    s->n_expert_used = most.n_expert_used;
    s->n_ff_expert = most.n_ff_expert;
}

void nemotron_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index) {
    uint32_t n_kv[MODEL_LAYERS_MAX];
    struct decoder own = *d;
    struct plan p = {0};

    assert(index < MODEL_LAYERS_MAX);
    own.ffn_norm = "post_attention_norm";
    meta_u32_layers(b, "attention.head_count_kv", 0, m->shape.n_head, m->shape.n_layer + m->n_mtp,
                    n_kv);
    nemotron_read_plan(b, m, &p);
    if (b->r < 0)
        return;
    bind_attention(b, m, &own, index, n_kv[index]);
    if (b->r == 0)
        nemotron_experts(b, m, &own, &p, index);
}

void nemotron_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_shape *s = &m->shape;
    uint32_t n_kv[MODEL_LAYERS_MAX], n_ff[MODEL_LAYERS_MAX], n = s->n_layer + m->n_mtp;
    struct model_op logits;
    struct plan p = {0};

    assert(m->n_ops == 0);
    nemotron_read_mamba(b, s);
    nemotron_read_plan(b, m, &p);
    meta_u32_opt(b, "moe_latent_size", 0, s->n_embd, &s->n_latent);
    meta_u32_layers(b, "attention.head_count_kv", 0, s->n_head, n, n_kv);
    meta_u32_layers(b, "feed_forward_length", 0, 1u << 20, n, n_ff);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++) {
        struct layer ffn = decoder_layer(m, i);

        ffn.n_ff = n_ff[i];
        if (n_ff[i] > 0 && s->n_expert > 0)
            nemotron_experts(b, m, d, &p, i);
        else if (n_ff[i] > 0)
            decoder_ffn(b, m, d, &ffn);
        else if (n_kv[i] == 0)
            nemotron_mamba(b, m, i);
        else
            bind_attention(b, m, d, i, n_kv[i]);
    }
    model_add(m, &logits);
}
