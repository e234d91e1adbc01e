#pragma once

/*
 * glm5 - GLM-5.3-Flash: most layers have Kimi delta attention, the others latent attention without
 * rotary positions, which sees the blocks of keys that an indexer chooses. Residual streams around
 * both, and around the dense FFNs of the first layers and the experts of the others.
 */

#include "engine/arch/decoder.h"

/* Implements block_fn (mtp.h): a layer with an indexer of its own, without residual streams. Called
 * after glm5_bind(). */
void glm5_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
/* Binds the whole model, in place of decoder_bind(). A layer without key heads has Kimi delta
 * attention. */
void glm5_bind(struct binder *b, struct model *m, const struct decoder *d);
