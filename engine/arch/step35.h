#pragma once

/*
 * step35 - Step 3.5 and 3.7 Flash, MiMo V2. Layers differ in their numbers of heads and in their
 * windows; in Step also in the limits of their activations (limits.h), and attention has a gate for
 * each head; in MiMo values are shorter than keys. A few layers are dense, the others have experts.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void step35_bind(struct binder *b, struct model *m, const struct decoder *d);
/* Implements block_fn (mtp.h): a layer like the model's. */
void step35_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
