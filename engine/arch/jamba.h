#pragma once

/*
 * jamba - Jamba: most layers are Mamba-1, the others attention without rotary positions; every
 * layer has an FFN, or experts where the file has a router.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void jamba_bind(struct binder *b, struct model *m, const struct decoder *d);
