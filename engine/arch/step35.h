#pragma once

/*
 * step35 - Step 3.5 and 3.7 Flash: heads by layer, windows as the file says, gates of heads,
 * experts after a few dense layers, and limits of the activations of single layers.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void step35_bind(struct binder *b, struct model *m, const struct decoder *d);
/* A block_fn (mtp.h): a layer of these, which is dense where it has no router. */
void step35_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
