#pragma once

/*
 * kernels_ranks - argument, grid and contract of the kernels of several devices, as kernels.h.
 */

#include "engine/cuda/kernels.h"

#define RANKS 8u /* devices that share a model, at most */

/* Rows of @n columns, of each @period of which the shares have some in their order, in the memory
 * of any device that is reached. */
struct shares {
    uint32_t n, n_shares, period; /* period: divides n */
    struct share {
        const float *at; /* row r at + r n_row: columns from @first on, of each period in turn */
        uint32_t first, n_row;
    } share[RANKS]; /* the first one's @first is 0 */
};

/* Such rows to one place; grid: x n / GATHER_COLUMNS, rounded up, y rows. */
#define GATHER_COLUMNS (4 * CUDA_THREADS)
struct gather_args {
    const uint32_t *count; /* NULL, or how many rows there are */
    float *to;             /* [rows][n] */
    struct shares from;
};

/* pack of such rows of the batch: PLAIN; pack.x is not read. */
struct pack_shares_args {
    struct pack_args pack;
    struct shares from;
};

/* residual of such rows, for which residual.t is room; residual.left is none. */
struct residual_shares_args {
    struct residual_args residual;
    struct shares from;
};

/* gate = what @kind, from PACK_GATE on, makes of gate and up, [rows][n]: in place; grid: @each for
 * every row of the batch. */
struct glu_args {
    const struct batch_head *batch;
    float *gate;
    const float *up;
    uint32_t n, kind, each;
};
