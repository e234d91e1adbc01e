#pragma once

/* products - device functions that all kernels for y (+)= W x + bias share: panels (128 outputs by
 * the rows of a block), segments, and the output y. */

#include "engine/cuda/products/weights.cuh"

/* Returns the number of rows, at most as many as the launch was made for. */
DEVICE uint32_t product_count_rows(const struct matmul_args &a) {
    return a.count && *a.count < a.n_rows ? *a.count : a.n_rows;
}

/* Returns one element of W x + bias: @sum times the powers of two of matrix and row, plus the bias.
 * @scale: that of the row. */
DEVICE float product_scaled(const struct matrix &m, float scale, uint32_t out, float sum) {
    float v = sum * (scale * m.inverse);

    return m.bias ? v + m.bias[out] : v;
}

/* Returns product_scaled() with the scale of row @row. */
DEVICE float product_value(const struct matmul_args &a, const struct matrix &m, uint32_t row,
                           uint32_t out, float sum) {
    return product_scaled(m, a.scale[row], out, sum);
}

/* Stores product_value() of @sum in y at row @row and output @out, or with a.add adds it; does
 * nothing beyond @n_rows or the matrix. */
DEVICE void product_store(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows,
                          uint32_t row, uint32_t out, float sum) {
    if (row >= n_rows || out >= m.n_out)
        return;
    float *y = m.y + (size_t)row * m.n_out + out, v = product_value(a, m, row, out, sum);

    *y = a.add ? *y + v : v;
}

/* Returns the matrix of block *block, where each matrix has a block for each 128 outputs, and sets
 * *block to the block's number within the matrix. */
DEVICE const struct matrix &matrix_of_block(const struct matmul_args &a, uint32_t *block) {
    uint32_t i = 0;

    while (i + 1 < a.n_mats && *block >= (a.m[i].n_row_tiles + 7) / 8)
        *block -= (a.m[i++].n_row_tiles + 7) / 8;
    return a.m[i];
}

/* The part of the work of a block: segments @first .. @last - 1 of a panel. */
struct Part {
    uint32_t panel, first, last;
};

/* Returns the part of this block. Blocks that share a panel are adjacent in the grid. */
DEVICE struct Part part_of_block(const struct matmul_args &a) {
    uint32_t block = blockIdx.x, each = TILE_SEGMENTS / a.n_splits, k = block % a.n_splits;

    return {block / a.n_splits, k * each, (k + 1) * each};
}

/* Returns the address of the thread's first sum in the @i-th array of a block's sums. */
DEVICE float *first_sum(const struct matmul_args &a, uint32_t i) {
    uint32_t lane = threadIdx.x % 32, out = threadIdx.x / 32 * TILE_ROWS + lane / 4;

    return a.sums + ((size_t)i * WIDE_SUMS + lane % 4 * 2 * WIDE_OUT + out);
}

/* Returns the distance, in floats, from first_sum() to the thread's sum @k of a segment, in the
 * order of mma's accumulators. */
DEVICE constexpr uint32_t sum_place(uint32_t k) {
    return (k / 4 * PACK_ROWS + k % 2) * WIDE_OUT + k % 4 / 2 * 8;
}

/* Adds up four outputs of a row, from @out on, whose sums of the first segment are at @from, and
 * writes y. The loads of all segments are issued together: one block reads 256 KiB. */
DEVICE void store_segments(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows,
                           uint32_t row, uint32_t out, const float *from) {
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
        product_store(a, m, n_rows, row, out + j, sum);
    }
}

/* Adds up the sums of panel @panel, done by the last block to arrive of those that share its
 * segments, and writes y from row @row0 and output @out0 on. With a.leave no block does (residual()
 * will). A thread has four outputs of every eighth row. */
DEVICE void store_shared(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows,
                         uint32_t row0, uint32_t out0, uint32_t panel) {
    uint32_t out = threadIdx.x % 32 * 4, row = threadIdx.x / 32;
    const float *from =
        a.sums + ((size_t)panel * (TILE_SEGMENTS * WIDE_SUMS) + row * WIDE_OUT + out);

    if (a.leave || !last_of(a.arrived + panel, a.n_splits))
        return;
#pragma unroll 2
    for (; row < MATMUL_COLUMNS && row0 + row < n_rows; row += 8, from += 8 * WIDE_OUT)
        store_segments(a, m, n_rows, row0 + row, out0 + out, from);
}
