#pragma once

/* micro - kernels that measure what the device itself can do (micro.cu). */

#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MICRO_THREADS 128 /* a warpgroup */
#define MICRO_K 64        /* depth of the products that are compared by bits */

struct nothing_args {
    uint32_t *never; /* written if it is not NULL */
};

/* Reads @bytes (a multiple of 16) @n_times over. */
struct reread_args {
    const uint8_t *data;
    uint32_t bytes, n_times;
    uint32_t *out;
};

/* @n products of 64 x 16 by 16 x N in each block. */
struct rate_args {
    uint32_t n;
    float *out; /* [1]: keeps the results alive */
};

/*
 * Block i: 64 x MICRO_K by MICRO_K x N of halves, once by wgmma and once by mma.sync in the same
 * order of K. @swap: the other reading of the shared memory descriptor's two offsets.
 */
struct wgmma_bits_args {
    const uint16_t *a, *b; /* [blocks][64][MICRO_K], [blocks][N][MICRO_K] */
    uint32_t *n_different; /* results whose bits differ */
    uint32_t *n_wrong;     /* results that are not the product at all */
    uint32_t swap;
};

extern const void *const kernel_nothing, *const kernel_reread, *const kernel_mma_rate;
extern const void *const kernel_wgmma_rate_16,
    *const kernel_wgmma_rate_64, *const kernel_wgmma_rate_128, *const kernel_wgmma_rate_256;
extern const void *const kernel_wgmma_bits_8,
    *const kernel_wgmma_bits_16, *const kernel_wgmma_bits_32, *const kernel_wgmma_bits_64,
                                                                  *const kernel_wgmma_bits_128,
                                                                      *const kernel_wgmma_bits_256;

#ifdef __cplusplus
}
#endif
