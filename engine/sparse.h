#pragma once

/*
 * sparse - which keys a row of sparse attention sees. By OP_INDEX and OP_POOL_INDEX: those of the
 * blocks with the largest scores, and all keys after the last complete block. By OP_HEAD_INDEX, for
 * each head of keys: those of the last blocks, and of others with the largest scores.
 */

#include "engine/backend.h"

/* tokens of a mean, at most: two short blocks, or a long one */
enum { SPARSE_TOKENS = 2 * BLOCK_SHORT + BLOCK_LONG };

/* Returns the number of tokens whose k and g the state of a POOL_KEYS has; that of position p is in
 * row p % rows. A draft block needs more rows, because drafts must not overwrite tokens before
 * them. */
static inline uint32_t pool_rows(const struct model_shape *s, const struct model_op *op) {
    return s->sparse.ratio + (op->layer >= s->n_layer ? ENGINE_DRAFT_MAX : 0);
}

/* Returns the number of keys of the indexer up to position @pos. */
static inline uint32_t sparse_whole(const struct sparse_shape *s, uint32_t pos) {
    return (pos + 1) / s->ratio;
}

/* Returns true if a row at @pos sees all earlier positions, whatever their scores. */
static inline bool sparse_sees_all(const struct sparse_shape *s, uint32_t pos) {
    return sparse_whole(s, pos) <= s->n_block * (sparse_block(s) / s->ratio);
}

/* Returns the number of words of a row's bits; a bit for each position. */
static inline uint32_t sparse_words(uint32_t max_context) {
    return max_context / 32 + 1;
}

/* Writes the indices of the @k largest of @n scores to @out, in ascending order (ties: the lower
 * index); all indices if @k >= @n. Returns how many. */
uint32_t sparse_best(const float *score, uint32_t n, uint32_t k, uint32_t *out);
/* The tokens over which the key of a block is averaged: of each its value, its score and what its
 * place in the block adds to the score. */
struct sparse_tokens {
    const float *value[SPARSE_TOKENS], *score[SPARSE_TOKENS], *place[SPARSE_TOKENS];
    uint32_t n;
};

/* Computes for each of @n channels the mean of the tokens' values, weighted by the softmax of their
 * scores. */
void sparse_mean(const struct sparse_tokens *t, uint32_t n, float *out);
/* Sets bit p % 32 of seen[p / 32] for each position p that a row at @pos sees, and clears the bits
 * of all other positions up to @pos. @score: a score for each complete block; not read if all
 * blocks are seen. */
void sparse_see(const struct sparse_shape *s, uint32_t pos, const float *score, uint32_t *seen);
/* Does the same for the blocks of HEAD_INDEX. @score: a score for each block up to that of @pos,
 * which need not be complete; those of the n_local last ones are overwritten. */
void sparse_see_blocks(const struct sparse_shape *s, uint32_t pos, float *score, uint32_t *seen);
