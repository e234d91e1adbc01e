#pragma once

/*
 * lfm2 - LFM2 and LFM2.5, dense and with experts: short convolutions, and attention in some layers.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). A layer without key heads is a convolution. */
void lfm2_bind(struct binder *b, struct model *m, const struct decoder *d);
