#pragma once

/*
 * kernels_streams - arguments and grids of the kernels for mixed residual streams (OP_MIX), for
 * alternating updates of streams (OP_ALT_BEGIN to OP_LAUREL) and for the table of n-grams
 * (OP_NGRAM). engine/op.h gives the formulas and names their symbols.
 */

#include <stddef.h>
#include <stdint.h>

#include "engine/cuda/kernels.h"

/* Argument of the three kernels of a mix. Products run between them.
 *   mix_norm  f = norm of each stream by its part of the weights; grid x rows, y n_stream
 *   mix_bend  low = silu(low / n_stream), weight = 2 sigmoid(weight / n_stream); grid x rows
 *   mix_mean  x = mean over the streams of f sigmoid(gate), b = 0; grid x rows, y n /
 *             CUDA_THREADS, rounded up */
struct mix_args {
    const struct batch_head *batch;
    /* [rows][n_stream][n], [n_stream][n], [rows][n_stream][n] */
    const float *s, *norm, *gate;
    /* [rows][n_stream][n], [rows][n_low], [rows][n_stream] or NULL */
    float *f, *low, *weight;
    /* [rows][n] */
    float *x, *b;
    uint32_t n, n_stream, n_low;
    float eps;
};

#define ALT_STREAMS 5u /* most streams that are updated: a matrix for each but the first */

/* Argument of the kernels of alternating updates. Products run before them.
 *   alt_begin    s from x and f; grid x rows, y n_stream
 *   alt_predict  s and x from low; grid x rows, y n / CUDA_THREADS, rounded up
 *   alt_correct  s, x and weight, of the next HC_OUT, from low; grid as of alt_predict
 *   alt_end      x from s and f; grid x rows */
struct alt_args {
    const struct batch_head *batch;
    /* products of the streams behind the first, [rows][n] each, @apart values from one to the
     * next */
    const float *f;
    size_t apart;
    /* [rows][n_stream]; predict: [n_stream][n_stream][n_stream], correct: [n_stream][n_stream] */
    const float *low, *weigh;
    /* [n] factors of x */
    const float *scale;
    /* [rows][n_stream][n], [rows][n], [rows][n_stream] */
    float *s, *x, *weight;
    uint32_t n, n_stream;
};

/* Argument of laurel: b += norm of x + post_norm of t. Grid: rows. */
struct laurel_args {
    const struct batch_head *batch;
    /* [rows][n], [rows][n]: w[1] w[0] of the norm of x; [n] each */
    const float *x, *t, *norm, *post_norm;
    float *b;
    uint32_t n;
    float eps;
};

#define NGRAM_KNOWN 4u /* equals NGRAM_TOKENS */

/* Tokens that only the device knows: the last tokens before the step, from the sequence's state,
 * latest first; and the token that the previous step sampled, or -1. */
struct ngram_known {
    float last[NGRAM_KNOWN];
    int32_t fed;
};

/* Argument of ngram_ask, which writes struct ngram_known of each sequence to pinned memory. The
 * state of slot s is at state + s stride. Grid: x sequences / CUDA_THREADS, rounded up. */
struct ngram_ask_args {
    const struct batch_head *batch;
    const int32_t *sampled;
    const float *state;
    size_t stride;
    /* [sequences] */
    struct ngram_known *known;
};

/* Argument of the four kernels of an OP_NGRAM. Products of e follow ngram_decode. There are
 * n n_stream channels. The state of slot s is at state + s stride: the last tokens, then
 * [(n_taps - 1) apart][channels] of c, oldest first. A new sequence does not read it.
 *   ngram_decode  e = the token's rows of the table, concatenated; grid x rows
 *   ngram_weigh   v and c, from the keys' product (in c) and value; grid x rows, y n_stream
 *   ngram_add     s += v + silu of the convolution of c; grid x rows, y channels / CUDA_THREADS,
 *                 rounded up
 *   ngram_keep    updates the state; grid x sequences, or more, y as for ngram_add */
struct ngram_args {
    const struct batch_head *batch;
    /* [rows][n_rows] rows of the step's tokens */
    struct tile_source table;
    /* [channels] */
    const float *k_norm, *q_norm, *c_norm;
    /* [n_taps][channels] */
    const float *taps;
    const int32_t *sampled;
    /* [rows][n] */
    float *e;
    /* [rows][n] */
    const float *value;
    /* [rows][channels] */
    float *s, *v, *c;
    /* state of the op */
    float *state;
    /* values from a slot to the next */
    size_t stride;
    uint32_t n, n_stream;
    /* rows of the table for each token */
    uint32_t n_rows;
    uint32_t n_taps, apart;
    int32_t eos;
    float eps;
};
