#pragma once

/*
 * ngram - finds the rows of an n-gram embedding table that a token reads (OP_NGRAM). The tokens
 * before a step are part of the sequence's state, and therefore of every snapshot, so the same rows
 * are found after a prefix hit, a preemption or a wrong draft.
 */

#include "base/gguf.h"
#include "engine/backend.h"

/* Collects the ngram.n tokens that end with row @nth of sequence @q: out[0] is the row's own token,
 * then those before it. @last holds the tokens before the step, the latest first. */
void ngram_tokens(const struct ngram_shape *g, const struct engine_batch *batch,
                  const struct engine_seq *q, uint32_t nth, const float *last, int32_t *out);
/* Computes the rows of the table for the tokens @token: (n - 1) * n_head numbers. */
void ngram_rows(const struct ngram_shape *g, const int32_t *token, uint64_t *row);
/* Reads row @row of the table as the file has it to @bytes. Returns false if it cannot be read. */
bool ngram_read(const struct gguf *file, const struct tensor *table, uint64_t row, void *bytes);

/* A row of the table, and the place of its copy in units of rows. missed: it is not in memory. */
struct ngram_find {
    uint64_t row;
    uint32_t to;
    bool missed;
};

/* Sorts @find and reads its rows to their places in @bytes, equal rows once. Rows that the
 * system has in memory are copied while it fetches the others. Returns false if one cannot be
 * read. */
bool ngram_read_all(const struct gguf *file, const struct tensor *table, struct ngram_find *find,
                    size_t n, uint8_t *bytes);
/* Updates @last to the last tokens after the rows of @q in this step. */
void ngram_keep(const struct ngram_shape *g, const struct engine_batch *batch,
                const struct engine_seq *q, float *last);
