#pragma once

/*
 * blocks - ops of block drafters that the host backends share: convolutions over a block with a
 * selector (DFlash2), or a chain of tokens (DSpark). Plain loops, since they have few rows and
 * tokens.
 */

#include "engine/host.h"

/* Writes to @out the convolution of row @row over its block, the rows of its sequence in this step:
 * channel c is the sum over taps t of (@d of the row at [side][t][c / group] + @base[side][t][c])
 * times channel c of the row that is t rows before it in @in; rows before the block are zero. @in:
 * rows of n_embd values; @d: rows of block_values(). */
void block_convolve(const struct host_step *h, const struct model_shape *s, uint32_t row,
                    uint32_t side, const float *in, const float *d, const float *base, float *out);

/* Returns the number of values of @d of block_convolve() for a row. */
static inline size_t block_values(const struct model_shape *s) {
    if (!s->block.kernel)
        return 0;
    return (size_t)2 * s->block.kernel * (s->n_embd / s->block.group);
}

/* A candidate: its token and logit. */
struct block_pick {
    int32_t token;
    float logit;
};

/* Finds the block.top_k largest of the logits of the @i-th scored want, ties by lowest token, and
 * writes them to @out, best first. */
void block_candidates(const struct host_step *h, const struct model_shape *s, uint32_t i,
                      const float *logits, struct block_pick *out);

/* For the scored wants of each sequence after the first row of its block, in order: adds to the
 * logits of the candidates the sum over r of successor[candidate][r] predecessor[a][r] g[r], where
 * a is the sequence's last token for the first such want, and then the best candidate of the want
 * before. The logits of all other tokens become less than those of any candidate. @g: block.rank
 * values for each scored want; @candidate: block.top_k for each; @row: room for 2 block.rank
 * values. */
void block_select(const struct host_step *h, const struct model_shape *s,
                  const struct tensor *predecessor, const struct tensor *successor, const float *g,
                  const struct block_pick *candidate, float *row, float *logits);

/* Sets *token to the token before the one that the @i-th scored want predicts: the best token of
 * the want before, whose @logits are final (ties: the lowest token), or for the first draft of a
 * block the sequence's last token. Returns false if the want's row is not a draft. */
bool block_before(const struct host_step *h, const struct model_shape *s, uint32_t i,
                  const float *logits, int32_t *token);
