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

/* Sum @k over the segments. */
DEVICE float add_shared_segments(const float *first, uint32_t k) {
    float sum = first[sum_place(k)];

#pragma unroll
    for (uint32_t s = 1; s < TILE_SEGMENTS; s++)
        sum += first[s * WIDE_SUMS + sum_place(k)];
    return sum;
}
