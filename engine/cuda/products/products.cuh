#pragma once

/* products - what the kernels for y (+)= W x + bias share: panels, segments and y. */

#include "engine/cuda/products/weights.cuh"

/* Returns the number of rows: no more than the launch was made for. */
DEVICE uint32_t count_rows(const struct matmul_args &a) {
    return a.count && *a.count < a.n_rows ? *a.count : a.n_rows;
}

/* Returns y of one element without what was there: @sum times both powers of two, plus bias.
 * @scale: the row's. */
DEVICE float scaled(const struct matrix &m, float scale, uint32_t out, float sum) {
    float v = sum * (scale * m.inverse);

    return m.bias ? v + m.bias[out] : v;
}

/* Returns scaled() with the scale of row @row. */
DEVICE float value_of(const struct matmul_args &a, const struct matrix &m, uint32_t row,
                      uint32_t out, float sum) {
    return scaled(m, a.scale[row], out, sum);
}

/* y of row @row and output @out becomes, or with add grows by, what value_of() makes of @sum;
 * nothing beyond @n_rows or the matrix. */
DEVICE void put(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows, uint32_t row,
                uint32_t out, float sum) {
    if (row >= n_rows || out >= m.n_out)
        return;
    float *y = m.y + (size_t)row * m.n_out + out, v = value_of(a, m, row, out, sum);

    *y = a.add ? *y + v : v;
}

/* The matrix of a block of 128 rows of one, the @block'th of all; *block: the first such of it. */
DEVICE const struct matrix &matrix_of_block(const struct matmul_args &a, uint32_t *block) {
    uint32_t i = 0;

    while (i + 1 < a.n_mats && *block >= (a.m[i].n_row_tiles + 7) / 8)
        *block -= (a.m[i++].n_row_tiles + 7) / 8;
    return a.m[i];
}

/* Share of a block: segments @first .. @last - 1 of a panel. */
struct Part {
    uint32_t panel, first, last;
};

/* The panels of a launch stand side by side, the blocks that share one's segments too. */
DEVICE struct Part part_of_block(const struct matmul_args &a) {
    uint32_t block = blockIdx.x, each = TILE_SEGMENTS / a.n_splits, k = block % a.n_splits;

    return {block / a.n_splits, k * each, (k + 1) * each};
}

/* A thread's first sum in the @i'th place for those of a block. */
DEVICE float *first_sum(const struct matmul_args &a, uint32_t i) {
    uint32_t lane = threadIdx.x % 32, out = threadIdx.x / 32 * TILE_ROWS + lane / 4;

    return a.sums + ((size_t)i * WIDE_SUMS + lane % 4 * 2 * WIDE_OUT + out);
}

/* Returns the distance, in floats, from first_sum() to the thread's sum @k of a segment, in the
 * order of mma's accumulators. */
DEVICE constexpr uint32_t sum_place(uint32_t k) {
    return (k / 4 * PACK_ROWS + k % 2) * WIDE_OUT + k % 4 / 2 * 8;
}

/* The last of the blocks that share the segments of panel @panel adds up the sums that they have
 * left, and puts y of its rows from @row0 on and outputs from @out0 on; with leave none does. A
 * thread has four outputs of every eighth row, and asks for all segments of them together: one
 * block reads 256 KiB, so its loads must overlap. */
DEVICE void put_shared(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows,
                       uint32_t row0, uint32_t out0, uint32_t panel) {
    uint32_t out = threadIdx.x % 32 * 4, row = threadIdx.x / 32;
    const float *from =
        a.sums + ((size_t)panel * (TILE_SEGMENTS * WIDE_SUMS) + row * WIDE_OUT + out);

    if (a.leave || !last_of(a.arrived + panel, a.n_splits))
        return;
#pragma unroll 2
    for (; row < MATMUL_COLUMNS && row0 + row < n_rows; row += 8, from += 8 * WIDE_OUT) {
        float v[TILE_SEGMENTS][4];

#pragma unroll
        for (uint32_t s = 0; s < TILE_SEGMENTS; s++)
            load_four(from + s * WIDE_SUMS, v[s]);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            float sum = v[0][j];

#pragma unroll
            for (uint32_t s = 1; s < TILE_SEGMENTS; s++)
                sum += v[s][j];
            put(a, m, n_rows, row0 + row, out0 + out + j, sum);
        }
    }
}
