#pragma once

/*
 * encoder - BERT and similar models: rows see their whole sequence, a layer norm follows each
 * branch, and there are no logits.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void encoder_bind(struct binder *b, struct model *m, const struct decoder *d);
