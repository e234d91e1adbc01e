#pragma once

/*
 * kernels_sparse - arguments and grids of the kernels for attention to the keys that an indexer
 * chooses (OP_INDEX, OP_POOL_INDEX, OP_HEAD_INDEX, OP_ATTEND). The indexer rotates queries by
 * turn_heads, weighs keys by compress and chooses by score_blocks and choose_blocks, kernels of
 * compressed/.
 */

#include "engine/ops/attention/kernels_attention.h"
#include "engine/ops/compressed/kernels_compressed.h"

#define SPARSE_PART 128u /* keys of a row in one block's part */
#define SPARSE_DIM 256u  /* most values of a head */

/* Argument of mean_keys, which stores the keys of the blocks that end at a row in their pages.
 * Tokens before the step are read from the state: for slot s at state + s stride, position p at p %
 * block. Grid: x rows. */
struct mean_args {
    const struct batch_head *batch;
    /* [rows][end.keys.n] */
    const float *k;
    const float *state;
    size_t stride;
    struct key_end end;
};

/* Argument of attention for rows [row0, row0 + n_rows). A row attends to the keys of its chosen
 * blocks, in ascending order, then to all keys after the last whole block. This list is divided
 * into parts of SPARSE_PART keys (split-K).
 *   attend_sparse  computes each part: o without its divisor, then m and l (attention.cu); grid x
 *                  n_parts, y rows times key heads times groups of CSA_HEADS heads
 *   attend_sparse_latent  the same for latent attention
 *   merge_sparse   merges the parts from left to right into o; grid x rows, y n_head n_value / 4 /
 *                  CUDA_THREADS, rounded up */
struct sparse_args {
    /* partial: [n_rows][n_head][n_parts][n_value + 4] */
    struct attend_args of;
    /* as in pick_args */
    const uint32_t *pick, *n_pick;
    /* block: positions of one; n_set: lists for each row, one or one for each key head */
    uint32_t row0, block, n_best, n_parts, n_set;
};
