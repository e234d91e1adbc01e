#include "engine/arch/laguna.h"

#include <assert.h>

#include "engine/arch/window.h"

void laguna_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_shape *s = &m->shape;
    uint32_t n_head[MODEL_LAYERS_MAX], n_kv[MODEL_LAYERS_MAX], window = 0;
    struct model_op logits;

    assert(m->n_ops == 0 && s->n_layer <= MODEL_LAYERS_MAX);
    meta_u32_layers(b, "attention.head_count", 1, s->n_head, s->n_layer, n_head);
    meta_u32_layers(b, "attention.head_count_kv", 1, s->n_head, s->n_layer, n_kv);
    meta_u32(b, "attention.sliding_window", 1, 1u << 26, &window);
    window_rope(b, s, s->head_dim, 10000);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);

        l.heads.n = n_head[i];
        l.heads.n_kv = n_kv[i];
        if (i % 4)
            l.attn.window = window;
        l.rope = i % 4 != 0;
        decoder_attention(b, m, d, &l);
        decoder_mlp(b, m, d, &l);
    }
    model_add(m, &logits);
}
