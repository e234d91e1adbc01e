#pragma once

/*
 * bailing3 - Ling 3.0: Kimi delta attention in most layers, latent attention with gates of heads in
 * the others, experts in groups after a few dense layers.
 */

#include "engine/arch/decoder.h"

/* A block_fn (mtp.h): latent attention and experts, once bailing3_bind() has read the sizes. */
void bailing3_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
/* Binds the whole model, in place of decoder_bind(). */
void bailing3_bind(struct binder *b, struct model *m, const struct decoder *d);
