#pragma once

/*
 * minimax3 - MiniMax M3: in layers with experts each head of keys attends to blocks that an indexer
 * chooses for it. The dense first layers see all keys. Activations are limited as in gpt-oss.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void minimax3_bind(struct binder *b, struct model *m, const struct decoder *d);
