#pragma once

/*
 * plamo2 - PLaMo 2: every second layer has attention, the others Mamba-1 whose steps are those of
 * heads. Norms of queries and keys have weights for each head; branches have norms on both sides.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void plamo2_bind(struct binder *b, struct model *m, const struct decoder *d);
