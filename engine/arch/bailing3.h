#pragma once

/*
 * bailing3 - Ling 3.0: most layers have Kimi delta attention, the other layers latent attention
 * with a gate for each head. A few dense layers are followed by layers with experts in groups.
 */

#include "engine/arch/decoder.h"

/* Implements block_fn (mtp.h): latent attention and experts. Called after bailing3_bind(), which
 * reads the sizes. */
void bailing3_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
/* Binds the whole model, in place of decoder_bind(). */
void bailing3_bind(struct binder *b, struct model *m, const struct decoder *d);
