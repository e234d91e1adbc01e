#pragma once

/*
 * bailing3 - Ling 3.0: most layers have Kimi delta attention, the other layers latent attention
 * with a gate for each head. A few dense layers are followed by layers with experts in groups.
 */

#include "engine/arch/decoder.h"

/* Implements block_fn (mtp.h): latent attention and experts. Called after bailing3_bind(), which
 * reads the sizes. */
void bailing3_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
/* Rules in which models with both kinds of layers differ. */
struct kda_rules {
    /* decays must have a lower bound */
    bool bounded;
    /* the lower bound is used without the key kda.safe_gate, too */
    bool own_bound;
    /* heads of latent attention have values of another size than delta nets, and no rotary
     * positions */
    bool plain;
    /* delta_shape.eps; 0: that of the norms */
    float eps;
};

/* Reads the sizes of latent attention and of the delta nets, and the key heads of @n layers to
 * @n_kv: 0 for those with delta nets. */
void bailing3_read(struct binder *b, struct model *m, uint32_t n, const struct kda_rules *rules,
                   uint32_t n_kv[MODEL_LAYERS_MAX]);
/* Adds x += W (Kimi delta attention of norm x), or b = W (...) in a model whose branches go to
 * residual streams. @low: decays and output gates have matrices of rank delta.dim. */
void bailing3_kda(struct binder *b, struct model *m, uint32_t l, bool low);
/* Binds the whole model, in place of decoder_bind(). */
void bailing3_bind(struct binder *b, struct model *m, const struct decoder *d);
