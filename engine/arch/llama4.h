#pragma once

/*
 * llama4 - Llama 4: Scout, Maverick. Of four layers, three have rotary positions and see the keys
 * of their chunk alone; the fourth has no rotary positions, sees all keys, and its queries have a
 * temperature. Layers have experts with a shared expert, or in Maverick every second layer.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void llama4_bind(struct binder *b, struct model *m, const struct decoder *d);
