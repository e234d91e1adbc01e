#pragma once

/*
 * dflash - a block drafter in a separate file. Its layers have the model's width and their own
 * keys, and draft a whole block of tokens at once.
 */

#include "engine/arch/decoder.h"

#define DFLASH_ARCH "dflash" /* general.architecture */

/* Returns true if @file is a block drafter, by the name of its architecture. */
bool dflash_found(const struct gguf *file);
/* Adds from @b, the drafter's file, the keys of its layers to pass 0 of @m, whose last op is
 * LOGITS, and pass 1. Sets -EINVAL in the binder if it does not fit the model. */
void dflash_bind(struct binder *b, struct model *m);
