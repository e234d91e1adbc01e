#pragma once

/*
 * nemotron - Nemotron 3 and 3.5 with experts (nemotron_h_moe): every block is one of Mamba-2,
 * attention without positions, and experts.
 */

#include "engine/arch/decoder.h"

/* A block_fn (mtp.h): attention, then experts with a norm of their own. */
void nemotron_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
/* Binds the whole model, in place of decoder_bind(). The file gives the kind of each block. */
void nemotron_bind(struct binder *b, struct model *m, const struct decoder *d);
