#pragma once

/*
 * deepseek4 - DeepSeek-V4-Flash: attention to a window and to compressed keys of earlier blocks of
 * positions; experts, which in the first layers are picked by a table of tokens; and residual
 * streams (hyper-connections) around both.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(), and reads the hyperparameters that only these
 * models have. */
void deepseek4_bind(struct binder *b, struct model *m, const struct decoder *d);
/* Adds the first MTP block after the ops of @m, which end with LOGITS, and divides the ops into
 * passes. The block continues all residual streams and has its own window in the state. PASS_HOLES
 * equals PASS_MODEL and computes the block's keys, because omitting them would save almost no
 * time. */
void deepseek4_block(struct binder *b, struct model *m);
