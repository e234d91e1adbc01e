#pragma once

/* masks - compiles a source and walks random texts under its masks. */

#include <stddef.h>
#include <stdint.h>

#include "grammar/grammar.h"

/* Returns the limits of a compilation for an input of @len bytes. */
const struct grammar_limits *masks_limits(size_t len);
/* Compiles @len bytes of @text as @kind with a vocabulary of some 370 tokens. A refusal must be a
 * 400 with a reason. Otherwise @steps tokens are drawn under the masks, from @seed: each mask is
 * compared with the acceptance of every token alone, and tokens that are rolled back are accepted
 * again. */
void masks_check(enum grammar_kind kind, unsigned flags, const void *text, size_t len,
                 uint32_t steps, uint64_t seed);
