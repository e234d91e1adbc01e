#pragma once

/*
 * sparse - the keys that a row of sparse attention sees (OP_INDEX): the blocks with the largest
 * scores and all keys behind the last whole block.
 */

#include "engine/backend.h"

/* Returns the number of whole blocks up to @pos. */
static inline uint32_t sparse_whole(const struct sparse_shape *s, uint32_t pos) {
    return (pos + 1) / s->ratio;
}

/* Returns the words of a row's bits, one for each position of a context. */
static inline uint32_t sparse_words(uint32_t max_context) {
    return max_context / 32 + 1;
}

/* Writes the numbers of the @k largest of @n scores, in ascending order; ties: the first. All
 * where @k is @n or more. Returns how many. */
uint32_t sparse_best(const float *score, uint32_t n, uint32_t k, uint32_t *out);
/* Sets bit p % 32 of seen[p / 32] for each position p that a row at @pos sees, and clears the
 * others up to @pos. @score: of the whole blocks, none less than 0; not read where all are seen. */
void sparse_see(const struct sparse_shape *s, uint32_t pos, const float *score, uint32_t *seen);
