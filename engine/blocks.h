#pragma once

/*
 * blocks - functions shared by the host backends for block drafters with convolutions and a
 * selector (DFlash2) or a chain of tokens (DSpark): plain loops over a few rows and tokens.
 */

#include "engine/host.h"

/* Writes the convolution of row @row of the block that the row's sequence has in this step: channel
 * c is the sum over taps t of (@d of the row at [side][t][c / group] + @base[side][t][c]) times
 * channel c of the row t before it in @in; rows before the block are zero. @in: rows of n_embd
 * values; @d: rows of block_values(). */
void block_convolve(const struct host_step *h, const struct model_shape *s, uint32_t row,
                    uint32_t side, const float *in, const float *d, const float *base, float *out);

/* Returns the number of values of d for a row. */
static inline size_t block_values(const struct model_shape *s) {
    return s->block.kernel ? (size_t)2 * s->block.kernel * (s->n_embd / s->block.group) : 0;
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

/* For the scored wants of each sequence behind the first row of its block, in their order: adds to
 * the logits of the candidates the sum over r of successor[candidate][r] predecessor[a][r] g[r], a
 * the sequence's last token, then the best candidate of the want before; all other tokens' logits
 * become less than any candidate's. @g: of scored wants, block.rank values; @candidate: block.top_k
 * of each; @row: room for 2 block.rank values. */
void block_select(const struct host_step *h, const struct model_shape *s,
                  const struct tensor *predecessor, const struct tensor *successor, const float *g,
                  const struct block_pick *candidate, float *row, float *logits);

/* Finds the token before the one that the logits of the @i-th scored want are for: the best of the
 * want before (ties: the lowest), whose @logits are final, or of a block's first draft the
 * sequence's last token. Returns false if the want's row has no draft. */
bool block_before(const struct host_step *h, const struct model_shape *s, uint32_t i,
                  const float *logits, int32_t *token);
