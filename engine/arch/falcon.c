#include "engine/arch/falcon.h"

#include <assert.h>

#include "engine/arch/nemotron.h"

/* Adds x += W (attention of norm x) + W (Mamba-2 of norm x). d is computed before x changes. */
static void bind_mixers(struct binder *b, struct model *m, const struct decoder *d, uint32_t i) {
    const struct layer l = decoder_layer(m, i);

    nemotron_mamba_in(b, m, i, BIND_MAY);
    decoder_attention(b, m, d, &l);
    decoder_project(b, m, i, ACT_D, m->shape.state.n_out, "ssm_out", false);
    decoder_ffn(b, m, d, &l);
}

void falcon_bind(struct binder *b, struct model *m, const struct decoder *d) {
    struct model_op logits;

    assert(m->n_ops == 0);
    nemotron_read_mamba(b, &m->shape);
    decoder_ends(b, m, d, &logits);
    for (uint32_t i = 0; i < m->shape.n_layer && b->r == 0; i++)
        bind_mixers(b, m, d, i);
    model_add(m, &logits);
}
