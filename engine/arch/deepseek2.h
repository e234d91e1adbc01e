#pragma once

/*
 * deepseek2 - models with multi-head latent attention: GLM-4.7-Flash, DeepSeek V2 and V3, Kimi K2,
 * Mistral Small 4 and Large 3.
 */

#include "engine/arch/decoder.h"
#include "engine/bind/meta.h"

/* Parts of latent attention that only some models have. */
struct latent {
    /* each head's output is multiplied by sigmoid(attn_gate y) */
    bool gated;
    /* Sparse attention: adds the ops by which a layer chooses keys, behind MLA_IN. NULL: rows see
     * all keys. */
    decoder_mixer *choose;
};

/* Reads the sizes of the latent vectors, the scale of the scores and the temperature of queries.
 * @rotates: some values of a head have rotary positions; else none must have. */
void deepseek2_read(struct binder *b, struct model *m, bool rotates);
/* Adds x += Wo (latent attention of norm x), or b = Wo (...) in a model whose branches go to
 * residual streams. */
void deepseek2_attention(struct binder *b, struct model *m, uint32_t layer,
                         const struct latent *of);

/* Implements block_fn (mtp.h). Called after deepseek2_bind(), which reads the sizes. */
void deepseek2_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
/* Binds the whole model, in place of decoder_bind(). */
void deepseek2_bind(struct binder *b, struct model *m, const struct decoder *d);
