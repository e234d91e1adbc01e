#pragma once

/*
 * deepseek2 - models with multi-head latent attention: GLM-4.7-Flash, DeepSeek V2 and V3, Kimi K2.
 */

#include "engine/arch/decoder.h"

/* A block_fn (mtp.h), once deepseek2_bind() has read the sizes. */
void deepseek2_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
/* Binds the whole model, in place of decoder_bind(). */
void deepseek2_bind(struct binder *b, struct model *m, const struct decoder *d);
