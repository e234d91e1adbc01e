#pragma once

/*
 * deepseek2 - models with multi-head latent attention: GLM-4.7-Flash, DeepSeek V2 and V3, Kimi K2,
 * Mistral Small 4 and Large 3.
 */

#include "engine/arch/decoder.h"
#include "engine/bind/meta.h"

/* Reads the sizes of the latent vectors, the scale of the scores and the temperature of queries. */
void deepseek2_read(struct binder *b, struct model *m);
/* Adds x += Wo (latent attention of norm x). @gated: each head's output is multiplied by
 * sigmoid(attn_gate y). */
void deepseek2_attention(struct binder *b, struct model *m, uint32_t layer, bool gated);

/* Implements block_fn (mtp.h). Called after deepseek2_bind(), which reads the sizes. */
void deepseek2_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
/* Binds the whole model, in place of decoder_bind(). */
void deepseek2_bind(struct binder *b, struct model *m, const struct decoder *d);
