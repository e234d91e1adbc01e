#include "engine/arch/window.h"

#include <assert.h>
#include <math.h>

#include "engine/rope.h"

void window_read(struct binder *b, uint32_t n_layer, uint32_t period, bool *in_window,
                 uint32_t *window) {
    static const char key[] = "attention.sliding_window_pattern";

    assert(b->r < 0 || n_layer <= MODEL_LAYERS_MAX);
    meta_u32_opt(b, "attention.sliding_window", 0, 1u << 26, window);
    bool listed = meta_numbers(b, BIND_MAY, key, GGUF_BOOL, n_layer, in_window);
    if (!listed)
        meta_u32_opt(b, key, 0, MODEL_LAYERS_MAX, &period);
    for (uint32_t l = 0; l < n_layer && b->r == 0; l++) {
        if (!listed)
            in_window[l] = period == 0 || l % period + 1 < period;
        if (listed && in_window[l] && *window == 0)
            bind_refuse(b,
                        "layer %u has a window, but the model file has no "
                        "'%s.attention.sliding_window'",
                        l, b->arch);
        in_window[l] = in_window[l] && *window > 0;
    }
}

void window_check_shared(struct binder *b, const bool *in_window, uint32_t n_own,
                         uint32_t n_shared) {
    if (b->r < 0 || n_shared == 0)
        return;
    if (n_own < 2 || !in_window[n_own - 2] || in_window[n_own - 1])
        bind_refuse(b,
                    "%u layers share keys, but the two before them are not one with a window "
                    "and one without",
                    n_shared);
}

void window_rope(struct binder *b, struct model_shape *s, uint32_t dim, double base) {
    const struct rope_defaults d = {
        .dim = dim, .context = s->max_context, .base = base, .suffix = "_swa"};

    rope_read(b, &d, NULL, &s->rope[1]);
}

void window_ends(struct binder *b, struct model *model, bool scaled, struct model_op *logits) {
    double cap = 0;

    assert(model->r < 0 || model->op[0].kind == OP_EMBED);
    meta_f32_opt(b, "final_logit_softcapping", 0, 1e6, &cap);
    logits->cap = (float)cap;
    if (scaled && model->r == 0)
        model->op[0].scale = sqrtf((float)model->shape.n_embd);
}

/* Returns the scale of scores. The 27B models of Gemma 2 and 3 use the head size n_embd / n_head in
 * place of their own. */
static float attn_scale(const struct model_shape *s, const struct decoder *d) {
    if (s->n_layer == d->wide_scores)
        return 1.0f / sqrtf((float)s->n_embd / (float)s->n_head);
    return s->attn_scale;
}

void window_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_shape *s = &m->shape;
    bool in_window[MODEL_LAYERS_MAX];
    uint32_t window = d->window;
    struct model_op logits;
    double cap = 0, base = 10000, logit_scale = 0;
    uint32_t n_rot = s->head_dim;

    assert(m->n_ops == 0 && s->n_layer <= MODEL_LAYERS_MAX);
    if (d->same_base)
        meta_f32_opt(b, "rope.freq_base", 1.5, 1e12, &base);
    meta_u32_opt(b, "rope.dimension_count", 2, s->head_dim, &n_rot);
    window_read(b, s->n_layer, d->window_period, in_window, &window);
    meta_f32_opt(b, "attn_logit_softcapping", 0, 1e6, &cap);
    if (d->window_rope)
        window_rope(b, s, n_rot, base);
    decoder_ends(b, m, d, &logits);
    window_ends(b, m, d->scaled_embedding, &logits);
    if (d->unit_embedding)
        model_add(m, &(struct model_op){.kind = OP_NORM});
    if (d->scaled_logits)
        meta_f32_opt(b, "logit_scale", 0, 1e6, &logit_scale);
    if (logit_scale > 0)
        logits.scale = (float)logit_scale;
    if (d->halves && m->n_ff_common)
        s->expert_scale *= 0.5f;
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);

        l.attn = (struct attn){
            .scale = attn_scale(s, d),
            .window = in_window[i] ? window : 0,
            .cap = (float)cap,
            .two_way = d->two_way && s->n_picture > 0,
        };
        if (d->lead_rope && i < m->n_lead)
            l.rope = 0;
        else if (d->window_only_rope)
            l.rope = window > 0 && !in_window[i]; /* set 1 is empty */
        else
            l.rope = d->window_rope && in_window[i];
        decoder_block(b, m, d, &l);
    }
    model_add(m, &logits);
}
