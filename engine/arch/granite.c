#include "engine/arch/granite.h"

#include <assert.h>

#include "engine/arch/nemotron.h"
#include "engine/bind/meta.h"

void granite_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_shape *s = &m->shape;
    uint32_t n_kv[MODEL_LAYERS_MAX];
    struct model_op logits;

    assert(m->n_ops == 0 && s->n_layer <= MODEL_LAYERS_MAX);
    nemotron_read_mamba(b, s);
    meta_u32_layers(b, "attention.head_count_kv", 0, s->n_head, s->n_layer, n_kv);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);

        l.heads.n_kv = n_kv[i];
        if (n_kv[i] == 0)
            nemotron_mamba(b, m, i);
        else
            decoder_attention(b, m, d, &l);
        decoder_mlp(b, m, d, &l);
    }
    model_add(m, &logits);
}
