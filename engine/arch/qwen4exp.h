#pragma once

/*
 * qwen4exp - Qwen3.8-Flash-Next: the layers of hybrid.h with residual streams (hyper-connections)
 * around each branch; attention sees the blocks of keys that an indexer chooses; and a table of
 * n-grams precedes one layer.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(), and reads the hyperparameters that only these
 * models have. */
void qwen4exp_bind(struct binder *b, struct model *m, const struct decoder *d);
