#include "engine/arch/window.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include "engine/rope.h"

void window_read(struct meta *m, uint32_t n_layer, uint32_t period, bool *in_window,
                 uint32_t *window) {
    char key[96];

    assert(m->r < 0 || n_layer <= MODEL_LAYERS_MAX);
    snprintf(key, sizeof(key), "%s.attention.sliding_window_pattern", m->arch);
    const struct gguf_array *a = gguf_array(m->file, key);
    meta_u32_opt(m, "attention.sliding_window", 0, 1u << 26, window);
    if (!a)
        meta_u32_opt(m, "attention.sliding_window_pattern", 0, MODEL_LAYERS_MAX, &period);
    if (m->r == 0 && a && (gguf_array_type(a) == GGUF_STRING || gguf_array_n(a) < n_layer))
        m->r = err_set(m->err, 0, NULL, "'%s' has no entry for some layers", key);
    for (uint32_t l = 0; l < n_layer && m->r == 0; l++)
        in_window[l] = *window > 0 && (a             ? gguf_array_num(a, l) != 0
                                       : period == 0 ? true
                                                     : l % period + 1 < period);
    for (uint32_t l = 0; l < n_layer && m->r == 0 && a && *window == 0; l++)
        if (gguf_array_num(a, l) != 0)
            m->r = err_set(m->err, 0, NULL,
                           "layer %u has a window, but the model file has no "
                           "'%s.attention.sliding_window'",
                           l, m->arch);
}

void window_ends(struct meta *m, struct model *model, bool scaled, struct model_op *logits) {
    double cap = 0;

    assert(model->r < 0 || model->op[0].kind == OP_EMBED);
    meta_f32_opt(m, "final_logit_softcapping", 0, 1e6, &cap);
    logits->cap = (float)cap;
    if (scaled && model->r == 0)
        model->op[0].scale = sqrtf((float)model->shape.n_embd);
}

/* Returns the scale of scores. The 27B models of Gemma 2 and 3 use the head size n_embd / n_head in
 * place of their own. */
static float attn_scale(const struct model_shape *s, const struct decoder *d) {
    return s->n_layer == d->wide_scores ? 1.0f / sqrtf((float)s->n_embd / (float)s->n_head)
                                        : s->attn_scale;
}

void window_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct meta meta = {.file = b->file, .arch = b->arch, .err = b->err};
    struct model_shape *s = &m->shape;
    bool in_window[MODEL_LAYERS_MAX];
    uint32_t window = d->window;
    struct model_op logits;
    double cap = 0, base = 10000, logit_scale = 0;
    uint32_t n_rot = s->head_dim;

    assert(m->n_ops == 0 && s->n_layer <= MODEL_LAYERS_MAX);
    if (d->same_base)
        meta_f32_opt(&meta, "rope.freq_base", 1.5, 1e12, &base);
    meta_u32_opt(&meta, "rope.dimension_count", 2, s->head_dim, &n_rot);
    window_read(&meta, s->n_layer, d->window_period, in_window, &window);
    meta_f32_opt(&meta, "attn_logit_softcapping", 0, 1e6, &cap);
    if (d->window_rope)
        rope_read(&meta,
                  &(struct rope_defaults){
                      .dim = n_rot, .context = s->max_context, .base = base, .suffix = "_swa"},
                  NULL, &s->rope[1]);
    decoder_ends(b, m, d, &logits);
    window_ends(&meta, m, d->scaled_embedding, &logits);
    if (d->unit_embedding)
        model_add(m, &(struct model_op){.kind = OP_NORM});
    if (d->scaled_logits)
        meta_f32_opt(&meta, "logit_scale", 0, 1e6, &logit_scale);
    logits.scale = logit_scale > 0 ? (float)logit_scale : logits.scale;
    b->r = b->r < 0 ? b->r : meta.r;
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);

        l.attn = (struct attn){
            .scale = attn_scale(s, d),
            .window = in_window[i] ? window : 0,
            .cap = (float)cap,
            .two_way = d->two_way && s->n_picture > 0,
        };
        l.rope = d->window_rope && in_window[i];
        decoder_attention(b, m, d, &l);
        if (s->n_expert)
            decoder_experts(b, m, d, i);
        else
            decoder_ffn(b, m, d, &l);
    }
    model_add(m, &logits);
}
