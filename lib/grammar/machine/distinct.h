#pragma once

/* distinct - items that must differ (uniqueItems): distinct.c has how they are read. */

#include "grammar/machine/machine.h"

/* When a grammar is compiled: sets n_texts and doubles where it has such items. */
int distinct_new(struct build *b, struct grammar *g);
/* Returns a lower bound of the number of texts of at most @n characters that the loop rule @rule
 * has. */
uint64_t distinct_loop_texts(const struct grammar *g, uint32_t rule, uint32_t n);
