/*
 * matmul - matrix products with quantised weights, y (+)= W x + bias, where x is (rows, columns), W
 * (outputs, columns) and y (rows, outputs).
 *
 * Weights are stored as tiles of 16 outputs by 64 or 256 columns (engine/formats/tiles.h), in the
 * order of the registers of a warp's 32 lanes: a lane loads 16 bytes and decodes them to the half
 * precision operand A of mma.m16n8k16 (weights.cuh), without a shuffle. Activations are packed by
 * the kernel before: half precision, each row scaled by a power of two (pack_args). An output is
 * summed as follows:
 *
 *     columns     are divided into up to eight segments, by the shape of W alone
 *     segment     mma accumulates from left to right, in single precision
 *     y           the sum of the segments from left to right, times the powers of two, plus bias,
 *                 plus the former y
 *
 * This is split-K with a fixed order. Columns of mma are independent of each other, so the bits of
 * a row depend neither on the other rows, nor on the kernel, nor on how many blocks share the
 * segments.
 *
 * matvec, matvec_16   up to 8 or 16 rows: decode. Bound by the bytes of the weights.
 *
 *     Warp s of a block computes segment s of a row of tiles; the block then adds the eight sums
 *     and continues with its next row of tiles. Each warp has a ring of two or three stages of 2
 *     to 3 KiB in shared memory, filled by cp.async across the ends of tiles and matrices: while
 *     one stage is used, the others are in flight, 80 to 110 KiB for a multiprocessor. With
 *     programmatic dependent launch (PDL) the ring starts to fill before the preceding kernel has
 *     ended, since that does not change weights.
 *
 *         warp 0  [segment 0 of tile 5][segment 0 of tile 137] ...   ring: | used | 1 | 2 |
 *         warp 1  [segment 1 of tile 5][segment 1 of tile 137] ...   ring: | used | 1 | 2 |
 *
 *     Epilogue: gate and up become glu(gate, up).
 *
 * matvec_norm         one or two rows, which each block normalises and packs for itself while its
 *     ring fills, instead of a kernel in front that packs them once.
 *
 * matmul_wide         64 rows per block: prompts and large batches. Bound by the tensor cores.
 *
 *     Each of 8 warps has its own row of tiles and goes over all columns, so a block computes 128
 *     outputs of 64 rows. cp.async copies slices of 64 columns of the activations to shared memory
 *     for all warps, and each warp's weights to its own ring. If the device has more
 *     multiprocessors than there are such blocks, 2, 4 or 8 blocks share the segments (split-K);
 *     the last of them, or residual(), adds up their sums.
 *
 * On Hopper, matmul_wgmma.cu replaces matmul_wide and gives the same bits.
 */

#include "engine/cuda/products/matvec_walk.cuh"
#include "engine/cuda/products/wide.cuh"

/* -- matvec ------------------------------------------------------------------------------------ */

KERNEL(matvec, struct matmul_args, CUDA_THREADS, MATVEC_BLOCKS) {
    SHARED float sums[8][CUDA_THREADS], gate[TILE_LANES * 4];

    matvec_groups<1>(a, Rows<1>{}, sums, gate);
}

KERNEL(matvec_norm, struct matvec_norm_args, CUDA_THREADS, MATVEC_BLOCKS) {
    SHARED float sums[8][CUDA_THREADS], gate[TILE_LANES * 4];

    static_assert(MATVEC_NORM_ROWS * PACK_SHARED <= CUDA_THREADS, "settle() uses sums[0]");
    matvec_groups<1>(a.product, OwnRows{a.norm, 0}, sums, gate);
}

KERNEL(matvec_16, struct matmul_args, CUDA_THREADS, 2) {
    SHARED float sums[16][CUDA_THREADS], gate[TILE_LANES * 4 * 2];

    matvec_groups<2, MATVEC_16_AHEAD>(a, Rows<2>{}, sums, gate);
}

/* -- matmul_wide ------------------------------------------------------------------------------- */

/* Writes y of a thread's sum @k, which belongs to column k / 4 of eight rows of the activations. */
DEVICE void store_wide(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows,
                       uint32_t row0, uint32_t tile, uint32_t k, float sum) {
    uint32_t lane = threadIdx.x % 32;

    product_store(a, m, n_rows, row0 + k / 4 * PACK_ROWS + lane % 4 * 2 + k % 2,
                  tile * TILE_ROWS + lane / 4 + k % 4 / 2 * 8, sum);
}

DEVICE void multiply_wide(const struct matmul_args &a, struct Part part) {
    uint32_t block = part.panel / a.n_columns, n_rows = product_count_rows(a);
    uint32_t row0 = part.panel % a.n_columns * MATMUL_COLUMNS;
    float total[WIDE_GROUPS * 4] = {}, *shared = NULL;
    struct Supply supply;

    if (row0 >= n_rows)
        return;
    const struct matrix &m = a.gated ? a.m[threadIdx.x / 128] : matrix_of_block(a, &block);
    uint32_t tile = a.gated ? gated_tile(block) : block * 8 + threadIdx.x / 32;

    if (a.n_splits > 1)
        shared = first_sum(a, part.panel * TILE_SEGMENTS);
    /* rows beyond n_rows: any row, since their results are not stored */
    for (uint32_t k = 0; k < SLICE_VECTORS; k++) {
        uint32_t row = row0 + Supply::row_of(k);

        supply.take_row(k, m, a.x, a.n_blocks, row / PACK_ROWS * PACK_ROWS < n_rows ? row : row0);
    }
    supply.start(m, m.tiles, tile, n_rows - row0, part.first, part.last);
    walk_of(m.format, WideWalk{supply, m, total, shared, false});
    copy_wait<0>();
    if (shared)
        return store_shared(a, m, n_rows, row0, block * WIDE_OUT, part.panel);
    if (a.gated) {
        sync_block();
#pragma unroll
        for (uint32_t k = 0; k < WIDE_GROUPS * 4; k++)
            keep_gated(a, m, n_rows, row0, tile, k, total[k]);
        sync_block();
        return put_gated_rows<MATMUL_COLUMNS, false>(a, n_rows, row0, block, CUDA_THREADS);
    }
    if (!supply.tiles)
        return;
#pragma unroll
    for (uint32_t k = 0; k < WIDE_GROUPS * 4; k++)
        store_wide(a, m, n_rows, row0, tile, k, total[k]);
}

KERNEL(matmul_wide, struct matmul_args, CUDA_THREADS, 1) {
    wait_for_previous();
    multiply_wide(a, part_of_block(a));
}
