#pragma once

/*
 * encoder - BERT and its kin: rows see their whole sequence, norms with a mean stand behind what a
 * branch adds, and there are no logits.
 */

#include "engine/arch/decoder.h"

/* What decoder_bind() is for other models. */
void encoder_bind(struct binder *b, struct model *m, const struct decoder *d);
