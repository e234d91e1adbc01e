#pragma once

/*
 * falcon - Falcon-H1: every layer has attention and Mamba-2 beside each other, which read the same
 * norm, and then an FFN. The multipliers of the published model are in the file's weights.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void falcon_bind(struct binder *b, struct model *m, const struct decoder *d);
