#pragma once

/*
 * encoder - BERT and its kin: rows see their whole sequence, norms with a mean stand behind what a
 * branch adds, and there are no logits.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void encoder_bind(struct binder *b, struct model *m, const struct decoder *d);
