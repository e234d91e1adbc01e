#pragma once

/*
 * gated - the epilogue of products of many rows with a gate and an up matrix. Half of a block's
 * warps have row tiles of the gate, and the other half the same row tiles of the up matrix. Their
 * outputs meet in shared memory, from where all threads store glu(gate, up) in the order of y, or
 * pack it for the next product.
 */

#include "engine/cuda/products/products.cuh"
#include "engine/cuda/rows/rows.cuh"

#define GATED_OUT (WIDE_OUT / 2) /* rows of each matrix of a block */
/* floats of a row in shared memory, for @out rows of each matrix; padded so that rows begin in
 * different banks */
#define GATED_STRIDE(out) (2 * (out) + 4u)

/* Returns the warp's row tile, in block @block of its matrix m[threadIdx.x / 128]. */
DEVICE uint32_t gated_tile(uint32_t block) {
    return block * (GATED_OUT / TILE_ROWS) + threadIdx.x / 32 % (GATED_OUT / TILE_ROWS);
}

/* Stores the output of a thread's sum @k in shared memory, over the ring: all threads must have met
 * at a barrier since they read it. The block's rows begin with @row0, and it has OUT rows of each
 * matrix. */
template <uint32_t OUT = GATED_OUT>
DEVICE void keep_gated(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows,
                       uint32_t row0, uint32_t tile, uint32_t k, float sum) {
    uint32_t lane = threadIdx.x % 32, r = k / 4 * PACK_ROWS + lane % 4 * 2 + k % 2;
    uint32_t in_tile = lane / 4 + k % 4 / 2 * 8, row = row0 + r;
    uint32_t out = tile * TILE_ROWS + in_tile;

    if (row < n_rows && out < m.n_out)
        ((float *)
             dynamic_shared())[r * GATED_STRIDE(OUT) + threadIdx.x / 32 * TILE_ROWS + in_tile] =
            product_value(a, m, row, out, sum);
}

/* Packs columns @out to @out + 3 of row @row by the static scale; with CORES for wgmma. */
template <bool CORES>
DEVICE void gated_pack(const struct matmul_args &a, uint32_t row, uint32_t out, float (&h)[1][4]) {
    struct pack_args to = {};

    to.packed = a.packed;
    to.n_padded = a.m[0].n_out;
    to.cores = CORES;
    write_quads<0>(to, row, to.n_padded, out, a.fixed, h);
    if (out == 0)
        a.packed_scale[row] = 1.0f / a.fixed;
}

/* Writes y of the block's N rows by its first @n_threads threads, once they have met behind
 * keep_gated(), or packs it for a product by wgmma (CORES) or by mma. */
template <uint32_t N, bool CORES, uint32_t OUT = GATED_OUT>
DEVICE void put_gated_rows(const struct matmul_args &a, uint32_t n_rows, uint32_t row0,
                           uint32_t block, uint32_t n_threads) {
    uint32_t n = a.m[0].n_out;

    for (uint32_t i = threadIdx.x; i < N * (OUT / 4); i += n_threads) {
        uint32_t r = i / (OUT / 4), q = i % (OUT / 4) * 4, out = block * OUT + q;
        const float *v = (const float *)dynamic_shared() + r * GATED_STRIDE(OUT) + q;
        float *y = a.m[0].y + (size_t)(row0 + r) * n + out, h[1][4];

        if (row0 + r >= n_rows || out >= n)
            continue;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            h[0][j] = out + j < n ? gated(a.glu, v[j], v[OUT + j]) : 0;
        if (PACK_PLANES == 1 && a.packed) /* bytes have no static scales */
            gated_pack<CORES>(a, row0 + r, out, h);
        else if (n % 4 == 0)
            store_some<4>(y, h[0]);
        else
            for (uint32_t j = 0; out + j < n && j < 4; j++)
                y[j] = h[0][j];
    }
}
