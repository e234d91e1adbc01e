#pragma once

/*
 * kernels_ranks - arguments, grids and contracts of the kernels for several devices, as in
 * kernels.h.
 */

#include "engine/cuda/kernels.h"

/* Rows of @n columns that are divided among devices: in each period of @period columns, the shares
 * have consecutive columns in order. Each share may be in the memory of any device that can be
 * accessed. */
struct shares {
    /* period: divides n */
    uint32_t n, n_shares, period;
    struct share {
        /* row r is at `at` + r n_row: the columns from @first on of each period */
        const float *at;
        uint32_t first, n_row;
    } share[RANKS]; /* share[0].first is 0 */
};

/* Copies such rows to one buffer; grid: x n / GATHER_COLUMNS, rounded up, y rows. */
#define GATHER_COLUMNS (4 * CUDA_THREADS)
struct gather_args {
    /* number of rows, or NULL */
    const uint32_t *count;
    /* [rows][n] */
    float *to;
    struct shares from;
};

/* Packs such rows of the batch, kind PLAIN; pack.x is not read. */
struct pack_shares_args {
    struct pack_args pack;
    struct shares from;
};

/* Computes residual() of such rows; residual.t is scratch memory, and residual.left has no sums. */
struct residual_shares_args {
    struct residual_args residual;
    struct shares from;
};

/* Computes the function @kind (an enum pack_kind of two operands) of gate and up, [rows][n], in
 * place of the gate; grid: @each blocks for every row of the batch. */
struct glu_args {
    const struct batch_head *batch;
    float *gate;
    const float *up;
    uint32_t n, kind, each;
};
