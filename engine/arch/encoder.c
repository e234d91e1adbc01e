#include "engine/arch/encoder.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/arch/window.h"
#include "engine/bind/bind.h"

#define ALIBI_BIAS 8 /* the smallest slope is 2^-8; files cannot give another number */

/* Adds x = layer norm x, with the tensors @name.weight and @name.bias. */
static void encoder_add_norm(struct binder *b, struct model *m, uint32_t layer, const char *name) {
    uint32_t n = m->shape.n_embd;

    model_add(m, &(struct model_op){
                     .kind = OP_NORM,
                     .layer = layer,
                     .norm = bind_vector(b, BIND_MUST, n, "%s.weight", name),
                     .norm_bias = bind_vector(b, BIND_MUST, n, "%s.bias", name),
                 });
}

/* Adds the layer norm @part of a layer. */
static void add_layer_norm(struct binder *b, struct model *m, uint32_t layer, const char *part) {
    char name[64];

    snprintf(name, sizeof(name), "blk.%u.%s", layer, part);
    encoder_add_norm(b, m, layer, name);
}

/* Adds the embedding: tokens, positions if the model has them, and token types. Every token has the
 * first type, because GGUF files do not say which text of a pair has the second one. */
static void add_embedding(struct binder *b, struct model *m, const struct decoder *d) {
    const struct model_shape *s = &m->shape;
    const struct tensor *types = bind_any(b, "token_types.weight");

    if (b->r == 0 && types && (types->ne[0] != s->n_embd || types->ne[2] * types->ne[3] != 1))
        bind_refuse(b, "tensor '%s' has rows of %llu values, not %u", types->name,
                    (unsigned long long)types->ne[0], s->n_embd);
    const struct tensor *position = bind_matrix(b, bind_if(d->positions, BIND_MUST), s->n_embd,
                                                s->max_context, "position_embd.weight");
    model_add(m, &(struct model_op){
                     .kind = OP_EMBED,
                     .w = {bind_matrix(b, BIND_MUST, s->n_embd, s->n_vocab, "token_embd.weight"),
                           position, bind_rows(b, types, 0, 1)},
                 });
    encoder_add_norm(b, m, 0, "token_embd_norm");
}

/* Returns the slope of each head (ALiBi, Press et al. 2022): with w the largest power of two that
 * is at most the number of heads, 2^(-8 (h + 1) / w) for the first w heads, and 2^(-8 (2 (h - w) +
 * 1) / (2 w)) for the others. Returns NULL with -ENOMEM in m->r if there is no memory. */
static const float *make_slopes(struct model *m) {
    uint32_t n = m->shape.n_head, whole = 1;

    while (2 * whole <= n)
        whole *= 2;
    m->slopes = calloc(n, sizeof(*m->slopes));
    if (!m->slopes)
        m->r = -ENOMEM;
    for (uint32_t h = 0; h < n && m->slopes; h++) {
        double power = h < whole ? h + 1.0 : (2 * (h - whole) + 1) / 2.0;

        m->slopes[h] = (float)mx_pow(2, -ALIBI_BIAS * power / whole);
    }
    return m->slopes;
}

/* Adds x += down glu(gate x, up x), where the gate is the tensor ffn_gate or the first half of
 * ffn_up; in models without a gate x += down gelu(up x). */
static void add_ffn(struct binder *b, struct model *m, const struct decoder *d, uint32_t l) {
    uint32_t n_embd = m->shape.n_embd, n = m->shape.n_ff;
    char name[64];

    snprintf(name, sizeof(name), "blk.%u.ffn_gate.weight", l);
    bool apart = gguf_find(b->file, name) != NULL, fused = !d->no_gate && !apart;
    const struct tensor *up = layer_matrix(b, l, "ffn_up", n_embd, fused ? 2ull * n : n);
    const struct tensor *up_bias =
        bind_vector(b, bind_if(d->no_gate, BIND_MAY), n, "blk.%u.ffn_up.bias", l);
    struct model_op op = {.kind = OP_GATE_UP, .layer = l, .ffn.glu = d->glu};

    if (d->no_gate) {
        op.w[0] = up;
        op.bias[0] = up_bias;
    } else if (fused) {
        op.w[0] = bind_rows(b, up, 0, n);
        op.w[1] = bind_rows(b, up, n, n);
    } else {
        op.w[0] = layer_matrix(b, l, "ffn_gate", n_embd, n);
        op.w[1] = up;
    }
    model_add(m, &op);
    model_add(m, &(struct model_op){
                     .kind = OP_PROJ,
                     .layer = l,
                     .in = ACT_H,
                     .w = {layer_matrix(b, l, "ffn_down", n, n_embd)},
                     .bias = {bind_vector(b, BIND_MAY, n_embd, "blk.%u.ffn_down.bias", l)},
                 });
}

/* Finds the layers whose rows see near keys only. Returns the largest distance of such a key, half
 * of the window that the file gives; 0: rows see all keys. */
static uint32_t find_near(struct binder *b, const struct model *m, const struct decoder *d,
                          bool near[MODEL_LAYERS_MAX]) {
    static const char key[] = "attention.sliding_window_pattern";
    uint32_t n = m->shape.n_layer, window = 0;

    if (d->window_period == 0)
        return 0;
    window_read(b, n, d->window_period, near, &window);
    if (b->r < 0 || window == 0)
        return 0;
    if (d->lead_whole && !gguf_array(b->file, meta_key(b, key).s)) {
        memmove(near + 1, near, (n - 1) * sizeof(*near));
        near[0] = false;
    }
    return MAX(window / 2, 1u);
}

/* Adds attention to the keys of the whole sequence, or to those within @reach. */
static void add_attention(struct binder *b, struct model *m, const struct decoder *d, uint32_t i,
                          uint32_t reach) {
    struct decoder own = *d;
    struct layer l = decoder_layer(m, i);

    l.attn.whole = true;
    l.attn.reach = reach;
    l.rope = d->window_rope && reach;
    own.unnormed = i == 0 && d->lead_unnormed;
    decoder_attention(b, m, &own, &l);
}

void encoder_bind_normed(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_shape *s = &m->shape;
    bool near[MODEL_LAYERS_MAX] = {false};
    uint32_t reach = find_near(b, m, d, near);

    assert(m->n_ops == 0 && !d->unnormed);
    s->encoder = true;
    if (d->window_rope)
        window_rope(b, s, s->head_dim, 10000);
    model_add(m, &(struct model_op){
                     .kind = OP_EMBED,
                     .w = {bind_matrix(b, BIND_MUST, s->n_embd, s->n_vocab, "token_embd.weight")},
                     .scale = d->scaled_embedding ? sqrtf((float)s->n_embd) : 0,
                 });
    if (d->embed_norm)
        model_add(m, &(struct model_op){
                         .kind = OP_NORM,
                         .norm = bind_vector(b, BIND_MUST, s->n_embd, "%s.weight", d->embed_norm),
                     });
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);

        add_attention(b, m, d, i, near[i] ? reach : 0);
        decoder_mlp(b, m, d, &l);
    }
    model_add(m, &(struct model_op){
                     .kind = OP_LOGITS,
                     .norm = bind_vector(b, BIND_MUST, s->n_embd, "output_norm.weight"),
                 });
}

void encoder_bind(struct binder *b, struct model *m, const struct decoder *d) {
    const float *slope = NULL;
    uint32_t every = 0;

    if (d->alibi)
        slope = make_slopes(m);
    assert(m->n_ops == 0 && d->unnormed);
    m->shape.encoder = true;
    if (m->shape.n_expert) /* every n-th layer has experts, from the second one on */
        meta_u32(b, "moe_every_n_layers", 2, MODEL_LAYERS_MAX, &every);
    add_embedding(b, m, d);
    for (uint32_t i = 0; i < m->shape.n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);

        l.attn.whole = true;
        l.attn.slope = slope;
        decoder_attention(b, m, d, &l);
        add_layer_norm(b, m, i, "attn_output_norm");
        if (every && i % every == 1)
            decoder_experts(b, m, d, i);
        else
            add_ffn(b, m, d, i);
        add_layer_norm(b, m, i, "layer_output_norm");
    }
    model_add(m, &(struct model_op){.kind = OP_LOGITS});
}
