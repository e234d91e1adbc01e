#pragma once

/*
 * host - what the host keeps of mixed and blended residual streams, of attention to condensed
 * and to sparse keys, and of tables of n-grams: parts of struct be, and what their files offer to
 * the rest of the backend.
 */

#include <stddef.h>
#include <stdint.h>

#include "engine/cuda/condensed/kernels_condensed.h"
#include "engine/cuda/sparse/kernels_sparse.h"
#include "engine/cuda/streams/kernels_streams.h"
#include "engine/op.h"

struct be;
struct step;

/* Residual streams and attention to condensed keys. in: the weights of the last CSA_IN. */
struct condensed {
    /* of the streams */
    float *s, *low, *weight;
    /* results of CSA_IN; r and t before norm and factor */
    float *r, *key, *t;
    /* [max_rows][2 widest key] */
    float *u, *g;
};

/* The indexer of attention to condensed or to sparse keys. */
struct indexer {
    /* [max_rows][n_head][dim]; [PICK_ROWS][max_blocks] */
    float *q, *score;
    /* [max_rows][most], [max_rows] */
    uint32_t *pick, *n_pick;
    /* blocks of the longest context */
    uint32_t max_blocks;
    /* most blocks that a row attends to; n_best: fewer during the proof */
    uint32_t most, n_best;
};

/* Attention to sparse keys. */
struct sparse {
    /* keys of the indexer */
    float *k;
    /* most parts of the keys of a row */
    uint32_t n_parts;
    /* rows for whose parts be.attention.partial has room */
    uint32_t n_rows;
};

/* Mixed residual streams, and a table of n-grams. */
struct streams {
    /* of a MIX: [max_rows][streams][n_embd] each */
    float *f, *gate;
    /* of the table, [max_rows][rows of a token], as in the file */
    uint8_t *rows;
    /* likewise, pinned, used in turn */
    uint8_t *host_rows[2];
    /* [max_seqs], pinned */
    struct ngram_known *known;
    /* the host's list of rows to read, [max_rows][rows of a token] */
    struct ngram_find *find;
    /* number of steps that have used host_rows */
    uint32_t turn;
};

/* Return the name of a property of an op of condensed or sparse keys, or of an indexer of @n_head
 * queries of @dim values, that is not supported, or NULL. */
const char *condensed_lacks(const struct model_shape *s, const struct model_op *op);
const char *sparse_lacks(const struct model_shape *s, const struct model_op *op);
const char *indexer_lacks(uint32_t n_head, uint32_t dim);
/* Sets be.sparse.n_rows from be.attention.partial_bytes, which it raises to at least the room of
 * one row. */
void sparse_divide(struct be *b);
/* Returns the bytes of the blocks' keys of all layers in a page. They are stored after the pages of
 * the layers' keys and values, as if they were one more layer. */
size_t sparse_page_bytes(const struct be *b);
/* Returns the op that uses a table of n-grams, or NULL. ngram_n_rows() returns how many rows of the
 * table each token reads, 0 without a table. */
const struct model_op *ngram_op(const struct model_shape *s);
uint32_t ngram_n_rows(const struct model_shape *s);
/* Copies the rows of the table for the step's tokens to the device, after the upload of the batch.
 * Waits for all enqueued work. Returns 0 or -EIO. */
int ngram_bring(struct step *s);
