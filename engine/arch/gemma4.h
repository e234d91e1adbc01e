#pragma once

/* gemma4 - Gemma 4: dense, with experts beside the dense FFN (26B-A4B), and with per-layer inputs
 * and keys that layers share (E2B, E4B). */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(), and reads the hyperparameters that only these
 * models have. */
void gemma4_bind(struct binder *b, struct model *m, const struct decoder *d);
/* Lets the last op of layer @l, which is the last of @m, scale x, if the file has such a factor. */
void gemma4_scale_layer(struct binder *b, struct model *m, uint32_t l);
