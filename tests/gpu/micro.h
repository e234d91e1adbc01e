#pragma once

/* micro - kernels that measure properties of a device (micro.cu). */

#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MICRO_THREADS 128 /* threads of a warpgroup */
#define MICRO_K 64        /* depth of the products that are compared bit for bit */

struct nothing_args {
    /* written if it is not NULL */
    uint32_t *never;
};

/* Reads @bytes, a multiple of 64, @n_times. */
struct reread_args {
    const uint8_t *data;
    uint32_t bytes, n_times;
    uint32_t *out;
};

/* Computes @n products of 64 x 16 by 16 x N in each block. */
struct rate_args {
    uint32_t n;
    /* [1]: keeps the compiler from removing the products */
    float *out;
};

/*
 * Block i multiplies 64 x MICRO_K by MICRO_K x N numbers of half precision by wgmma and by
 * mma.sync, in the same order of K, and counts results. @swap: exchanges the two offsets of the
 * descriptor of shared memory.
 */
struct wgmma_bits_args {
    /* [blocks][64][MICRO_K], [blocks][N][MICRO_K] */
    const uint16_t *a, *b;
    /* results whose bits differ */
    uint32_t *n_different;
    /* results whose error is too large for a product */
    uint32_t *n_wrong;
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
