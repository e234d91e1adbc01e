#pragma once

/*
 * Residual streams that are mixed (OP_MIX) and the table of n-grams (OP_NGRAM): the arguments of
 * the kernels and the buffers. Formulas and letters: engine/op.h.
 */

#include <stddef.h>
#include <stdint.h>
#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A mix in three kernels that share their argument; products come between them.
 *   mix_norm  f, the streams' norms, by their part of the weights; grid x rows, y n_stream
 *   mix_bend  low = silu(low / n_stream), weight = 2 sigmoid(weight / n_stream); grid x rows
 *   mix_mean  x = the mean over the streams of f sigmoid(gate), b = 0; grid x rows, y n /
 *             CUDA_THREADS, rounded up */
struct mix_args {
    const struct batch_head *batch;
    const float *s, *norm, *gate; /* [rows][n_stream][n], [n_stream][n], [rows][n_stream][n] */
    float *f, *low, *weight;      /* as s, [rows][n_low], [rows][n_stream] or NULL */
    float *x, *b;                 /* [rows][n] */
    uint32_t n, n_stream, n_low;
    float eps;
};

#define NGRAM_KNOWN 4u /* NGRAM_TOKENS */

/* Tokens of a sequence that the host does not know: those before the step, the latest first, as the
 * state has them, and the one that the step before has sampled. */
struct ngram_known {
    float last[NGRAM_KNOWN];
    int32_t fed;
};

/* Writes these to pinned memory. State of slot s at state + s stride. Grid: sequences /
 * CUDA_THREADS, rounded up. */
struct ngram_ask_args {
    const struct batch_head *batch;
    const int32_t *sampled;
    const float *state;
    size_t stride;
    struct ngram_known *known; /* [sequences] */
};

/* The use of the table in four kernels that share their argument; the products of e come behind
 * ngram_decode. Channels are n n_stream. State of slot s at state + s stride: the last tokens, then
 * [(n_taps - 1) apart][channels] of c, the oldest first. Sequences that begin do not read it.
 *   ngram_decode  e of the rows of the table, one behind the other; grid x rows
 *   ngram_weigh   c (the product with the keys) and value to v and c; grid x rows, y n_stream
 *   ngram_add     s += v + the silu of the convolution of c; grid x rows, y channels /
 *                 CUDA_THREADS, rounded up
 *   ngram_keep    the state; grid x sequences, or more, y as above */
struct ngram_args {
    const struct batch_head *batch;
    struct tile_source table;              /* [rows][n_rows] rows of the step's */
    const float *k_norm, *q_norm, *c_norm; /* [channels] */
    const float *taps;                     /* [n_taps][channels] */
    const int32_t *sampled;
    float *e;           /* [rows][n] */
    const float *value; /* [rows][n] */
    float *s, *v, *c;   /* [rows][channels] */
    float *state;       /* state of the op */
    size_t stride;      /* values from a slot to the next */
    uint32_t n, n_stream;
    uint32_t n_rows; /* rows of the table of a token */
    uint32_t n_taps, apart;
    int32_t eos;
    float eps;
};

/* Buffers for the largest batch. */
struct streams {
    float *f, *gate;           /* of a MIX: [max_rows][streams][n_embd] each */
    uint8_t *rows;             /* of the table, [max_rows][rows of a token], as in the file */
    uint8_t *host_rows[2];     /* likewise, pinned, used in turn */
    struct ngram_known *known; /* [max_seqs], pinned */
    struct ngram_find *find;   /* [max_rows][rows of a token] */
    uint32_t turn;
};

struct be;
struct model_op;
struct ngram_find;

/* Returns where product @i of such an op goes; NULL: it is of another family. */
float *streams_target(const struct be *b, const struct model_op *op, int i);

struct model_shape;
struct step;

/* Returns the op that uses a table of n-grams, or NULL; and how many rows of it a token has. */
const struct model_op *ngram_op(const struct model_shape *s);
uint32_t ngram_n_rows(const struct model_shape *s);
/* Brings the rows of the table for the step's tokens to the device, behind the upload of the batch.
 * Waits for all that was enqueued. Returns 0 or -EIO. */
int ngram_bring(struct step *s);

#ifdef __cplusplus
}
#endif
