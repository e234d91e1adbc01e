#pragma once

/*
 * gated - the ends of products of many rows that are a gate and an up: half of a block's warps has
 * tiles of the one, half the same tiles of the other. Their values meet in shared memory, and all
 * threads make glu(gate, up) of them, in the order in which they lie in y.
 */

#include "engine/cuda/products/products.cuh"
#include "engine/cuda/rows/rows.cuh"

#define GATED_OUT (WIDE_OUT / 2)     /* rows of each matrix of a block */
#define GATED_STRIDE (WIDE_OUT + 4u) /* floats of a row in shared memory: in different banks */

/* The warp's row tile of block @block, of its matrix m[threadIdx.x / 128]. */
DEVICE uint32_t gated_tile(uint32_t block) {
    return block * (GATED_OUT / TILE_ROWS) + threadIdx.x / 32 % (GATED_OUT / TILE_ROWS);
}

/* Keeps y of sum @k of a thread's, of the block's rows from @row0 on; behind a barrier that all
 * threads have met since they read the ring. */
DEVICE void keep_gated(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows,
                       uint32_t row0, uint32_t tile, uint32_t k, float sum) {
    uint32_t lane = threadIdx.x % 32, r = k / 4 * PACK_ROWS + lane % 4 * 2 + k % 2;
    uint32_t in_tile = lane / 4 + k % 4 / 2 * 8, row = row0 + r;
    uint32_t out = tile * TILE_ROWS + in_tile;

    if (row < n_rows && out < m.n_out)
        ((float *)dynamic_shared())[r * GATED_STRIDE + threadIdx.x / 32 * TILE_ROWS + in_tile] =
            value_of(a, m, row, out, sum);
}

/* y of the block's N rows, once all threads have kept theirs. */
template <uint32_t N>
DEVICE void put_gated_rows(const struct matmul_args &a, uint32_t n_rows, uint32_t row0,
                           uint32_t block) {
    uint32_t n = a.m[0].n_out;

    sync_block();
    for (uint32_t i = threadIdx.x; i < N * (GATED_OUT / 4); i += CUDA_THREADS) {
        uint32_t r = i / (GATED_OUT / 4), q = i % (GATED_OUT / 4) * 4, out = block * GATED_OUT + q;
        const float *v = (const float *)dynamic_shared() + r * GATED_STRIDE + q;
        float *y = a.m[0].y + (size_t)(row0 + r) * n + out, h[4];

        if (row0 + r >= n_rows || out >= n)
            continue;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            h[j] = out + j < n ? gated(a.glu, v[j], v[GATED_OUT + j]) : 0;
        if (n % 4 == 0)
            store_some<4>(y, h);
        else
            for (uint32_t j = 0; out + j < n && j < 4; j++)
                y[j] = h[j];
    }
}
