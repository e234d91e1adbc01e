/*
 * matvec_dry - matvec and matvec_16 with a dry run (dry.cuh): while the preceding kernel ends, each
 * warp multiplies its first stage of weights by zeros, which are no activations, and the block goes
 * through the sum over the segments and the epilogue without storing y.
 */

#include "engine/cuda/products/matvec_walk.cuh"

KERNEL(matvec_dry, struct matmul_args, CUDA_THREADS, MATVEC_BLOCKS) {
    SHARED float sums[8][CUDA_THREADS], gate[TILE_LANES * 4];

    if constexpr (WEFT_DRY)
        matvec_groups<1>(a, DryRows<1>{}, sums, gate);
}

KERNEL(matvec_16_dry, struct matmul_args, CUDA_THREADS, 2) {
    SHARED float sums[16][CUDA_THREADS], gate[TILE_LANES * 4 * 2];

    if constexpr (WEFT_DRY)
        matvec_groups<2, MATVEC_16_AHEAD>(a, DryRows<2>{}, sums, gate);
}
