#include "engine/arch/kimi.h"

#include <assert.h>

#include "engine/arch/bailing3.h"
#include "engine/arch/deepseek2.h"
#include "engine/meta.h"

void kimi_bind(struct binder *b, struct model *m, const struct decoder *d) {
    uint32_t n_kv[MODEL_LAYERS_MAX], n = m->shape.n_layer;
    struct model_op logits;

    assert(m->n_ops == 0 && n <= MODEL_LAYERS_MAX);
    meta_u32_layers(b, "attention.head_count_kv", 0, m->shape.n_head, n, n_kv);
    m->shape.n_head_kv = 1; /* some files count the key heads before absorption */
    deepseek2_read(b, m);
    bailing3_read_kda(b, &m->shape, false);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < n && b->r == 0; i++) {
        const struct layer l = decoder_layer(m, i);

        if (n_kv[i] > 0)
            deepseek2_attention(b, m, i, false);
        else
            bailing3_kda(b, m, i, true);
        decoder_mlp(b, m, d, &l);
    }
    model_add(m, &logits);
}
