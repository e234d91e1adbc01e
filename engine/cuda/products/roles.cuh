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
#endif
