#pragma once

/*
 * laguna - Laguna XS and S. Three of four layers have a window, more heads, and a RoPE set of their
 * own.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void laguna_bind(struct binder *b, struct model *m, const struct decoder *d);
