#pragma once

/*
 * ngram - the rows of a table of n-grams that a token has (OP_NGRAM). The tokens before a step are
 * part of the sequence's state, so that they follow every snapshot: behind a prefix hit, a
 * preemption or a draft that was wrong the same rows are found.
 */

#include "engine/backend.h"

/* The tokens of row @nth of sequence @q: out[0] its own, then those before it, ngram.n of all. Of
 * those before the step @last has the latest first. */
void ngram_tokens(const struct ngram_shape *g, const struct engine_batch *batch,
                  const struct engine_seq *q, uint32_t nth, const float *last, int32_t *out);
/* Rows of the table for such tokens: (n - 1) * n_head of them. */
void ngram_rows(const struct ngram_shape *g, const int32_t *token, uint64_t *row);
/* Makes @last what it is behind the rows of @q. */
void ngram_keep(const struct ngram_shape *g, const struct engine_batch *batch,
                const struct engine_seq *q, float *last);
