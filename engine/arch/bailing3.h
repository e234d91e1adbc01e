#pragma once

/*
 * bailing3 - Ling 3.0: Kimi delta attention in most layers, latent attention with gates of heads in
 * the others, experts in groups behind a few dense layers.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void bailing3_bind(struct binder *b, struct model *m, const struct decoder *d);
