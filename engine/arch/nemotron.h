#pragma once

/*
 * nemotron - Nemotron H and Nano 2 (nemotron_h), Nemotron 3 and 3.5 with experts (nemotron_h_moe).
 * A layer is either Mamba-2, or attention without RoPE, or an FFN, which is dense or has experts.
 * Experts may compute in a latent space (Super), and their number and width may differ by layer
 * (Puzzle).
 */

#include "engine/arch/decoder.h"

/* Reads the sizes of the Mamba-2 layers, bounded so that the number of floats of a state fits into
 * 64 bits. */
void nemotron_read_mamba(struct binder *b, struct model_shape *s);
/* Adds d = Mamba-2 of norm x. @norm: whether d has a norm (OP_MAMBA). */
void nemotron_mamba_in(struct binder *b, struct model *m, uint32_t l, enum bind_need norm);
/* Adds x += W (Mamba-2 of norm x). */
void nemotron_mamba(struct binder *b, struct model *m, uint32_t l);
/* Implements block_fn (mtp.h): attention, then experts with a norm of their own. */
void nemotron_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);
/* Binds the whole model, in place of decoder_bind(). A layer with an FFN width is an FFN, with
 * experts if the model has any; one with key heads is attention; the others are Mamba-2. */
void nemotron_bind(struct binder *b, struct model *m, const struct decoder *d);
