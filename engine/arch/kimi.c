#include "engine/arch/kimi.h"

#include "engine/arch/bailing3.h"
#include "engine/arch/deepseek2.h"

void kimi_bind(struct binder *b, struct model *m, const struct decoder *d) {
    uint32_t n_kv[MODEL_LAYERS_MAX], n = m->shape.n_layer;
    struct model_op logits;

    bailing3_read(b, m, n, &(struct kda_rules){0}, n_kv);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < n && b->r == 0; i++) {
        const struct layer l = decoder_layer(m, i);

        if (n_kv[i] > 0)
            deepseek2_attention(b, m, i, &(struct latent){0});
        else
            bailing3_kda(b, m, i, true);
        decoder_mlp(b, m, d, &l);
    }
    model_add(m, &logits);
}
