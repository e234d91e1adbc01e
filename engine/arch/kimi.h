#pragma once

/*
 * kimi - Kimi Linear: most layers have Kimi delta attention whose decays have no lower bound, the
 * other layers latent attention without rotary positions. Dense first layers, then experts.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). A layer without key heads has Kimi delta
 * attention. */
void kimi_bind(struct binder *b, struct model *m, const struct decoder *d);
