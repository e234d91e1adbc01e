#pragma once

/*
 * encoder - models without logits, whose rows see their whole sequence or the keys around them. In
 * BERT and its relatives a layer norm follows each branch; later encoders have norms before
 * branches, as decoders have.
 */

#include "engine/arch/decoder.h"

/* Bind the whole model, in place of decoder_bind(): with norms after branches, and before them. */
void encoder_bind(struct binder *b, struct model *m, const struct decoder *d);
void encoder_bind_normed(struct binder *b, struct model *m, const struct decoder *d);
