#pragma once

/*
 * dflash - a block drafter in a separate file, which drafts a whole block of tokens at once. Its
 * layers have the model's width and keys of their own.
 */

#include "engine/arch/decoder.h"

#define DFLASH_ARCH "dflash" /* general.architecture */

/* Adds pass 1 to @m, whose last op is LOGITS, from @b, the drafter's file, and adds the ops that
 * compute the keys of the drafter's layers to pass 0. Sets -EINVAL in the binder if the drafter
 * does not fit the model. */
void dflash_bind(struct binder *b, struct model *m);
