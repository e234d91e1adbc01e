#pragma once

/*
 * kernels_compressed - arguments and grids of the kernels for blended residual streams (OP_HC_OUT,
 * OP_HC_IN, OP_HC_MEAN) and attention to compressed keys (OP_CSA_IN to OP_CSA_OUT). engine/op.h
 * gives the formulas and names their symbols.
 */

#include <stddef.h>
#include <stdint.h>

#include "engine/cuda/kernels.h"

#define HC_STREAMS 8u    /* most residual streams */
#define PICK_ROWS 64u    /* rows whose blocks are scored at a time */
#define PICK_HEADS 256u  /* most queries of an indexer */
#define PICK_DIM 128u    /* most values of a query */
#define PICK_QUERY 8192u /* most values of a row's queries, padded to 16 queries of 32 values */
#define CSA_TILE 32u     /* keys in shared memory at a time */
#define CSA_HEADS 16u    /* heads of a block */
#define CSA_DIM 512u     /* most values of a head */

/* Argument of hc_in: x = sum of a row's streams times their weights, b = 0; the weights that HC_OUT
 * needs are stored in @weight. Weights come from low, the product of the streams, by division by
 * the rms of all streams together and Sinkhorn's rounds (engine/sinkhorn.h). Grid: x rows. */
struct hc_in_args {
    const struct batch_head *batch;
    /* [rows][n_stream][n] */
    const float *s;
    /* [rows][n_low] */
    const float *low;
    /* a scale for each part of low; [n_low] */
    const float *scale, *base;
    /* [rows][n] */
    float *x, *b;
    /* [rows][n_stream + n_stream^2] */
    float *weight;
    uint32_t n, n_stream, rounds;
    /* n_stream: only the weights of x exist; else n_stream (n_stream + 2) */
    uint32_t n_low;
    float eps, rms_eps;
};

/* Argument of hc_out: s[i] = weight[i] x + sum over j of weight[n_stream + j n_stream + i] s[j].
 * Without @shares: s[i] += weight[i] x, with weights [rows][n_stream]. Without weights: s[i] = x.
 * Kernel hc_mean: mean = the mean of all s[i]. Grid: x rows, y n / CUDA_THREADS, rounded up. */
struct hc_out_args {
    const struct batch_head *batch;
    /* [rows][n]; hc_in_args.weight or NULL */
    const float *x, *weight;
    /* [rows][n] */
    float *s, *mean;
    uint32_t n, n_stream, shares;
};

/* Rotary embedding of @n_rot of the @dim values of a head, from @first on. */
struct csa_rope {
    uint32_t dim, first, n_rot, neox;
};

/* Argument of turn_heads, in place: each head of x is divided by its rms if @normed, multiplied by
 * norm if there is one, then rotated. Grid: x rows, y n_head / 8, rounded up. */
struct turn_args {
    const struct batch_head *batch;
    /* [rows][n_head][dim] */
    float *x;
    /* [dim], by_head [n_head][dim], or NULL; [rows][n_rot / 2][2] */
    const float *norm, *rope;
    struct csa_rope turn;
    uint32_t n_head, normed, by_head;
    float eps;
};

/* Place of the keys of blocks in the pages, in units of halves (compressed_at()). */
struct block_keys {
    uint8_t *pages;
    /* at: place of the layer's keys in a page */
    size_t page_bytes, at;
    /* n: values of a key */
    uint32_t page_tokens, block, n;
};

/* Operands of the steps from a block's mean to its key: norm, rotation by the block's first
 * position, place in the page. */
struct key_end {
    /* [keys.n]; NULL: the mean is the key */
    const float *norm;
    /* [turn.n_rot / 2] */
    const double *freq;
    struct block_keys keys;
    struct csa_rope turn;
    float eps, mscale;
};

/* Argument of compress, which stores the keys of the blocks that end at a row in their pages.
 * Tokens before the step are read from the state: for slot s at state + s stride, position p at 2
 * (p % n_kept) width, u and then g. Grid: x rows. */
struct compress_args {
    const struct batch_head *batch;
    /* [rows][width] */
    const float *u, *g;
    /* [width][block] */
    const float *place;
    const float *state;
    size_t stride;
    struct key_end end;
    /* overlaps: a key covers the preceding block, too */
    uint32_t width, n_kept, overlaps;
};

/* Argument of keep_rows, which stores the last @n_kept rows of each sequence in its state: position
 * p at place p % n_kept, with @width values of each of @n_from arrays. Grid: x sequences, or more,
 * y n_kept. */
struct keep_rows_args {
    const struct batch_head *batch;
    /* [rows][width] */
    const float *from[2];
    float *state;
    /* values from a slot to the next */
    size_t stride;
    uint32_t n_from, width, n_kept;
};

/* Argument of the choice of blocks for rows [row0, row0 + PICK_ROWS). All heads choose together, or
 * each for itself (n_set n_head).
 *   score_blocks   score[row - row0][block] = sum over heads of weight max(0, q . key), for rows
 *                  with more whole blocks than they choose; grid x PICK_ROWS, or fewer, y any
 *   score_heads    score[row - row0][head][block] = the largest q . key of the block's positions,
 *                  each of which has a key (keys.block 1); infinite for the last n_local blocks;
 *                  grid as for score_blocks
 *   choose_blocks  pick[row][set] = the blocks with the largest scores (ties: the first), in
 *                  ascending order; n_pick, their number: n_best, or with n_local one fewer if the
 *                  last block is not whole; grid x as for score_blocks, y n_set */
struct pick_args {
    const struct batch_head *batch;
    /* [rows][n_head][keys.n]; [rows][n_head] or NULL: all are 1 */
    const float *q, *weight;
    /* [PICK_ROWS][n_set][stride] */
    float *score;
    /* [rows][n_set][n_best], [rows] */
    uint32_t *pick, *n_pick;
    struct block_keys keys;
    /* block: positions of one that is chosen */
    uint32_t row0, n_head, n_best, stride, block, n_set, n_local;
    /* factor of the weights */
    float by;
};

/* Argument of attend_compressed: o = attention of q to the last @window keys, of the state and of
 * the step, and to the row's blocks, the chosen ones or, if pick is NULL, all; then rotated back. A
 * key is also its value. Grid: x rows, y n_head / CSA_HEADS, rounded up. */
struct csa_args {
    const struct batch_head *batch;
    /* [rows][n_head][dim], [rows][dim], [n_head] */
    const float *q, *key, *sinks;
    /* keep_rows_args.state; [rows][n_rot / 2][2] */
    const float *state, *rope;
    /* [rows][n_head][dim] */
    float *o;
    const uint32_t *pick, *n_pick;
    size_t stride;
    /* block 0: no blocks */
    struct block_keys keys;
    struct csa_rope turn;
    /* n_kept: keys of the window in the state */
    uint32_t n_head, window, n_best, n_kept;
    float scale;
};
