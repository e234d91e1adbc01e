/*
 * load - from the file's blocks to tiles (engine/formats/tiles.h), on the device: a thread computes
 * whole words of a tile from whatever blocks hold its weights. Slow per weight, but the weights
 * come over PCIe anyway.
 */

#include "engine/cuda/device.cuh"

/* A weight or scale that half precision does not hold would be infinite in matmul. */
DEVICE bool fits_half(const struct repack_args &a, uint32_t k0, uint32_t i) {
    float v = tile_value_at(&a.source, i / tile_k(a.format), k0 + i % tile_k(a.format));

    return fabsf(v) < 65520.0f;
}

KERNEL(repack, struct repack_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t f = a.format, k0 = blockIdx.x * tile_k(f), n_codes = tile_code_bytes(f) / 4;
    uint32_t n_scales = tile_bytes(f) - tile_code_bytes(f);
    uint8_t *tile = a.tiles + ((size_t)blockIdx.y * a.n_units + blockIdx.x) * tile_bytes(f);
    struct tile_source s = a.source;
    uint32_t first = blockIdx.y * TILE_ROWS;
    struct repack_args b = a;
    float most = 0;
    bool ok = true;

    s.data += first * s.row_bytes;
    s.n_rows -= first;
    b.source = s;
    for (uint32_t i = threadIdx.x; i < n_codes; i += CUDA_THREADS)
        ((uint32_t *)tile)[i] = tile_code_word(f, &s, k0, i / 128, i / 4 % 32, i % 4);
    for (uint32_t i = threadIdx.x; i < n_scales; i += CUDA_THREADS)
        tile[tile_code_bytes(f) + i] = tile_scale_byte(f, &s, k0, i);
    for (uint32_t i = threadIdx.x; i < TILE_ROWS * tile_k(f); i += CUDA_THREADS)
        ok = ok && fits_half(b, k0, i);
    if (!ok)
        store_alike(&a.found->bad, 1);
    if (threadIdx.x >= 32)
        return;
    for (uint32_t i = threadIdx.x; i < TILE_SCALES(f); i += 32)
        most = fmaxf(most, tile_scale_size(f, &s, k0, i));
    most = warp_max(most);
    if (threadIdx.x == 0)
        max_global(&a.found->most, (uint64_t)mx_bits_of(most));
}

KERNEL(scale_tiles, struct scale_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t tile = blockIdx.x * (CUDA_THREADS / 32) + threadIdx.x / 32;

    if (tile >= a.n_tiles)
        return;
    uint8_t *at = a.tiles + (size_t)tile * tile_bytes(a.format);
    for (uint32_t i = threadIdx.x % 32; i < TILE_SCALES(a.format); i += 32) {
        uint8_t *exponent = at + tile_code_bytes(a.format) + i;
        uint16_t *half = (uint16_t *)(at + tile_half_at(a.format, i));

        if (a.format == TILE_MXFP4)
            *exponent = tile_scaled_exponent(*exponent, a.unit);
        else
            *half = tile_scaled_half(a.format, i, *half, a.unit);
    }
}
