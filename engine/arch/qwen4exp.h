#pragma once

/*
 * qwen4exp - Qwen3.8-Flash-Next: layers of hybrid.h between residual streams, whose attention sees
 * the blocks that an indexer chooses, and a table of n-grams before one layer.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(), and reads the hyperparameters that only these
 * models have. */
void qwen4exp_bind(struct binder *b, struct model *m, const struct decoder *d);
