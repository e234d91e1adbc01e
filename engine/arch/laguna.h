#pragma once

/*
 * laguna - Laguna XS and S: three of four layers see a window and have more heads and rotary
 * positions of their own.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void laguna_bind(struct binder *b, struct model *m, const struct decoder *d);
