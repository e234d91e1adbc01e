#pragma once

/*
 * deepseek4 - DeepSeek-V4-Flash: attention to a window and to condensed keys of the blocks before
 * it, experts that in the first layers follow from the token, and residual streams around both.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(), and reads the hyperparameters that only these
 * models have. */
void deepseek4_bind(struct binder *b, struct model *m, const struct decoder *d);
/* Adds the first MTP block after the ops of @m, which end with LOGITS, and divides the ops into
 * passes. The block continues all residual streams and has its own window in the state. A pass with
 * holes would save almost nothing, so every pass computes the block's keys. */
void deepseek4_block(struct binder *b, struct model *m);
