#pragma once

/* limits - kernels that reach what a Hopper can do (limits.cu). */

#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LIMIT_THREADS 128u
#define LIMIT_CHUNK 16384u /* bytes of a bulk copy to a block, or to all blocks of a cluster */
#define LIMIT_STAGES 3u    /* copies of a half of the ring */
#define LIMIT_LOADS 8u     /* loads of 16 bytes of a thread that are under way together */
#define LIMIT_STEPS 4u     /* products of a group, of 16 columns each */

/* Reads @data of @bytes, a multiple of LIMIT_CHUNK. limit_bulk_C, clusters of C blocks: @n_times
 * rounds of LIMIT_STAGES chunks of a cluster; out[block] ^= the words of the last round.
 * limit_loads: everything @n_times; out[0] ^= all words. Dynamic shared memory of limit_bulk_C:
 * 2 LIMIT_STAGES chunks. */
struct limit_read_args {
    const uint8_t *data;
    uint32_t *out;
    uint32_t bytes, n_times;
};

/* Computes, in each of two warpgroups of a block, @n groups of LIMIT_STEPS products of 64 x 16 by
 * 16 x N. out: [128][N / 2] sums of the first warpgroup of block 0, as wgmma has them. Dynamic
 * shared memory: LIMIT_STEPS (N + 64) 32. */
struct limit_rate_args {
    float *out;
    uint32_t n;
};

/* limit_meet_C: blocks of clusters of C meet @n times; out[cluster] += n in each block.
 * limit_far: blocks of clusters of two read each other's shared memory @n times; out[block] ^= a
 * sum of it for each thread. Dynamic shared memory: LIMIT_CHUNK. */
struct limit_meet_args {
    uint32_t *out;
    uint32_t n;
};

extern const void *const kernel_limit_bulk_1,
    *const kernel_limit_bulk_2, *const kernel_limit_bulk_4, *const kernel_limit_loads;
extern const void *const kernel_limit_registers_64, *const kernel_limit_registers_128,
                                                        *const kernel_limit_shared_64,
                                                            *const kernel_limit_shared_128;
extern const void *const kernel_limit_meet_2, *const kernel_limit_meet_8, *const kernel_limit_far;

#ifdef __cplusplus
}
#endif
