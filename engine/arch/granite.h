#pragma once

/*
 * granite - Granite 4 H (granitehybrid): every layer is Mamba-2 or attention, followed by an FFN,
 * or by experts and a shared expert. The factors are those of Granite 3.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). A layer without key heads is Mamba-2. */
void granite_bind(struct binder *b, struct model *m, const struct decoder *d);
