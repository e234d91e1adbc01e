/*
 * fast - operands for products that a library computes: a row of the matrix, or of the activations,
 * is n_padded halves one after the other. Both have their columns in the order of pack_place()
 * inside each 32, which a product does not notice, so activations are moved 16 bytes at a time.
 * Bound by memory.
 */

#include "engine/cuda/device.cuh"

/* A block has a tile. */
KERNEL(fast_copy, struct fast_copy_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t columns = tile_k(a.format);
    const uint8_t *tile =
        a.tiles + ((size_t)blockIdx.y * a.n_units + blockIdx.x) * tile_bytes(a.format);

    for (uint32_t i = threadIdx.x; i < TILE_ROWS * columns; i += CUDA_THREADS) {
        uint32_t r = i / columns, k = i % columns, at = blockIdx.x * columns + k;
        size_t row = (size_t)blockIdx.y * TILE_ROWS + r;

        if (row < a.n_out && at < a.n_padded)
            a.copy[row * a.n_padded + at / 32 * 32 + pack_place(at % 32)] =
                (uint16_t)pack_half(tile_read(a.format, tile, r, k));
    }
}

DEVICE uint32_t scale_halves(uint32_t h, float factor) {
    return pack_halves(half_to_float((uint16_t)h) * factor,
                       half_to_float((uint16_t)(h >> 16)) * factor);
}

/* A block has 8 rows; a warp takes 32 columns of them at a time, as they lie in memory. */
KERNEL(fast_rows, struct fast_rows_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float shared[CUDA_THREADS / 32];
    uint32_t tid = threadIdx.x, row = blockIdx.x * PACK_ROWS + tid / 4 % PACK_ROWS;
    uint32_t n_pairs = a.n_padded / 32;
    float greatest = 0;

    for (uint32_t r = tid; r < a.n_rows; r += CUDA_THREADS)
        greatest = fmaxf(greatest, a.scale[r]);
    greatest = block_max<CUDA_THREADS / 32>(greatest, shared);
    if (tid == 0 && blockIdx.x == 0 && blockIdx.y == 0)
        *a.alpha = greatest;
    if (row >= a.n_rows)
        return;
    float factor = a.scale[row] / greatest;
    for (uint32_t p = blockIdx.y * (CUDA_THREADS / 32) + tid / 32; p < n_pairs;
         p += gridDim.y * (CUDA_THREADS / 32)) {
        const uint16_t *from = a.packed + ((size_t)blockIdx.x * n_pairs + p) * 256 + tid % 32 * 8;
        struct vec4 v = load16(from);

        v.x = scale_halves(v.x, factor);
        v.y = scale_halves(v.y, factor);
        v.z = scale_halves(v.z, factor);
        v.w = scale_halves(v.w, factor);
        store16(a.x + (size_t)row * a.n_padded + p * 32 + tid % 4 * 8, v);
    }
}
