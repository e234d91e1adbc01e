#include "engine/arch/step35.h"

#include <assert.h>
#include <stdio.h>

#include "engine/arch/limits.h"
#include "engine/arch/window.h"

/* Hyperparameters that differ by layer. */
struct plan {
    uint32_t n_head[MODEL_LAYERS_MAX], n_kv[MODEL_LAYERS_MAX], window;
    bool in_window[MODEL_LAYERS_MAX];
    struct limits limits;
    /* factor of attention's output; 0: none */
    double gain;
};

/* Reads the plan of the layers and of the MTP blocks after them. */
static void step35_read_plan(struct binder *b, const struct model *model, struct plan *p) {
    const struct model_shape *s = &model->shape;
    uint32_t n = s->n_layer + model->n_mtp;

    meta_u32_layers(b, "attention.head_count", 1, s->n_head, n, p->n_head);
    meta_u32_layers(b, "attention.head_count_kv", 1, s->n_head, n, p->n_kv);
    window_read(b, n, 4, p->in_window, &p->window);
    limits_read(b, n, &p->limits);
    meta_f32_opt(b, "attention.value_scale", 0, 1e3, &p->gain);
    decoder_check_heads(b, n, p->n_head, p->n_kv);
}

/* Reads RoPE of layers with a window (set 1), whose default base is that of the other layers. */
static void read_window_rope(struct binder *b, struct model_shape *s) {
    uint32_t n_rot = s->head_dim;
    double base = 10000;

    meta_u32_opt(b, "rope.dimension_count", 2, s->head_dim, &n_rot);
    meta_f32_opt(b, "rope.freq_base", 1.5, 1e12, &base);
    window_rope(b, s, n_rot, base);
}

/* Adds layer @i, or an MTP block. The keys of a block are in KV_GLOBAL even if it has a window. A
 * layer with the gates of a dense FFN has no experts. */
static void step35_bind_layer(struct binder *b, struct model *m, const struct decoder *d,
                              const struct plan *p, uint32_t i) {
    bool block = i >= m->shape.n_layer;
    struct layer l = decoder_layer(m, i);
    char gates[48];

    l.heads.n = p->n_head[i];
    l.heads.n_kv = p->n_kv[i];
    if (p->in_window[i] && !block)
        l.attn.window = p->window;
    l.rope = p->in_window[i];
    l.gain = (float)p->gain;
    uint32_t first = m->n_ops;
    decoder_attention(b, m, d, &l);
    for (uint32_t k = first; k < m->n_ops && block && p->in_window[i]; k++)
        if (m->op[k].kind == OP_ATTEND)
            m->op[k].attn.window = p->window;
    first = m->n_ops;
    snprintf(gates, sizeof(gates), "blk.%u.ffn_gate.weight", i);
    if (gguf_find(b->file, gates))
        decoder_ffn(b, m, d, &l);
    else
        decoder_mlp(b, m, d, &l);
    limits_set(m, first, &p->limits, i);
}

void step35_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index) {
    struct plan p = {0};

    if (b->r < 0)
        return;
    step35_read_plan(b, m, &p);
    if (b->r == 0)
        step35_bind_layer(b, m, d, &p, index);
}

void step35_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct plan p = {0};
    struct model_op logits;

    assert(m->n_ops == 0 && m->shape.n_layer + m->n_mtp <= MODEL_LAYERS_MAX);
    step35_read_plan(b, m, &p);
    read_window_rope(b, &m->shape);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < m->shape.n_layer && b->r == 0; i++)
        step35_bind_layer(b, m, d, &p, i);
    model_add(m, &logits);
}
