#pragma once

/* gemma4 - Gemma 4: dense, with experts beside the dense FFN (26B-A4B), and with inputs of the
 * layers and keys that layers share (E2B, E4B). */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(), and reads the hyperparameters that only these
 * models have. */
void gemma4_bind(struct binder *b, struct model *m, const struct decoder *d);
/* The last op of layer @l, which is the last of @m, scales all of x, where the file says so. */
void gemma4_scale_layer(struct binder *b, struct model *m, uint32_t l);
