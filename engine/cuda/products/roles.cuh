#pragma once

/* roles - what products by warps with roles share (matmul_roles.cu, roles_wide.cuh). */

#include "engine/cuda/bulk.cuh"
#include "engine/cuda/products/gated.cuh"
#include "engine/cuda/wgmma.cuh"

#define ROLES_BLOCKS (2 * SLICE_PAIRS) /* blocks of 16 columns of a slice */

#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Issue d += a b for as many rows as @d has sums for: twice the sums of a thread. */
DEVICE void roles_wgmma(float (&d)[12], const uint32_t a[4], uint64_t b) {
    wgmma_n24(d, a, b);
}

DEVICE void roles_wgmma(float (&d)[16], const uint32_t a[4], uint64_t b) {
    wgmma_n32(d, a, b);
}

DEVICE void roles_wgmma(float (&d)[24], const uint32_t a[4], uint64_t b) {
    wgmma_n48(d, a, b);
}

DEVICE void roles_wgmma(float (&d)[32], const uint32_t a[4], uint64_t b) {
    wgmma_n64(d, a, b);
}

DEVICE void roles_wgmma(float (&d)[48], const uint32_t a[4], uint64_t b) {
    wgmma_n96(d, a, b);
}

DEVICE void roles_wgmma(float (&d)[64], const uint32_t a[4], uint64_t b) {
    wgmma_n128(d, a, b);
}

/* Decodes the weights of the slice that begins with block @block of the loaded part @tile. */
template <int F>
DEVICE void roles_decode(const struct Tile<F> &tile, uint32_t block,
                         uint32_t (&w)[ROLES_BLOCKS][4]) {
#pragma unroll
    for (uint32_t k = 0; k < ROLES_BLOCKS; k++) {
        weights_of<F>(tile, (int)(block + k), w[k]);
        wgmma_hold(w[k]);
    }
}

/* Issues c += w x for a slice, whose activations are at @operand (wgmma_place()). */
template <uint32_t SUMS>
DEVICE void roles_slice(float (&c)[SUMS], const uint32_t (&w)[ROLES_BLOCKS][4], uint32_t operand) {
    wgmma_begin();
#pragma unroll
    for (uint32_t k = 0; k < ROLES_BLOCKS; k++)
        roles_wgmma(c, w[k], wgmma_operand(operand + k * 16, 128, 1024));
    wgmma_commit();
}
#endif
