#pragma once

/*
 * step35 - Step 3.5 and 3.7 Flash. Layers differ in their number of heads, in their windows and in
 * the limits of their activations (limits.h). Attention has a gate for each head, and a few dense
 * layers are followed by layers with experts.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void step35_bind(struct binder *b, struct model *m, const struct decoder *d);
/* Implements block_fn (mtp.h): a layer like the model's, with a dense FFN if it has no router. */
void step35_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
