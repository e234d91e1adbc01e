#pragma once

/*
 * simt - runs the kernels of engine/cuda on the CPU. Included before everything else (-include), it gives the
 * names of engine/cuda/device.cuh another meaning: a thread of a block is a fiber, instructions of a warp (mma,
 * lane_xor) and barriers switch to the next one until all have come. Blocks run one after the other.
 *
 * What it finds: wrong indices (every allocation of the fake device is one of its own: AddressSanitizer sees reads
 * beyond it), shared memory that is read before it is written (it is filled with NaN before each block), warps that
 * do not meet (abort), missing barriers, most of the time (the order of threads changes with simt_order()),
 * wrong arithmetic. What it cannot: the order in which the tensor cores add, memory consistency, speed.
 */

#define WEFT_SIMT 1

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct simt_dim {
    uint32_t x, y, z;
};

struct simt_kernel {
    void (*run)(const void *args);
    const char *name;
    uint32_t n_threads;
    size_t args_size;
};

/* @seed 0: ascending order of threads; else an order of its own for each block. */
void simt_order(uint64_t seed);
/* Runs all blocks. */
void simt_launch(const struct simt_kernel *k, struct simt_dim grid, const void *args);
/* The number of blocks that have run. */
uint64_t simt_blocks(void);

#ifdef __cplusplus
}

extern struct simt_dim simt_thread, simt_block, simt_grid;

#define threadIdx simt_thread
#define blockIdx simt_block
#define gridDim simt_grid

#define SHARED static __attribute__((section("simt_shared")))
#define DEVICE static inline
#define __device__
#define __forceinline__ inline

#define KERNEL(NAME, ARGS, threads, blocks)                                                        \
    static void NAME(const ARGS &a);                                                               \
    static void run_##NAME(const void *args) {                                                     \
        NAME(*(const ARGS *)args);                                                                 \
    }                                                                                              \
    static const struct simt_kernel simt_##NAME = {run_##NAME, #NAME, threads, sizeof(ARGS)};      \
    const void *const kernel_##NAME = &simt_##NAME;                                                \
    static void NAME(const ARGS &a)

struct vec4 {
    uint32_t x, y, z, w;
};

/* What the lanes of a warp show each other: every lane gives 40 bytes and, once all have, sees those of all. */
struct simt_gift {
    union {
        float f[10];
        uint32_t u[10];
        uint64_t u64[5];
    };
};
const struct simt_gift *simt_exchange(const struct simt_gift *mine);

void sync_block();

static inline void sync_warp() {
    struct simt_gift none = {};

    simt_exchange(&none);
}

static inline struct vec4 load16(const void *p) {
    struct vec4 v;

    if ((uintptr_t)p % 16)
        __builtin_trap();
    memcpy(&v, p, 16);
    return v;
}

static inline struct vec4 load_stream(const void *p) {
    return load16(p);
}

static inline void load8(const void *p, uint32_t v[2]) {
    if ((uintptr_t)p % 8)
        __builtin_trap();
    memcpy(v, p, 8);
}

static inline void store16(void *p, struct vec4 v) {
    if ((uintptr_t)p % 16)
        __builtin_trap();
    memcpy(p, &v, 16);
}

static inline float half_to_float(uint16_t h) {
    return mx_half_to_float(h);
}

static inline uint32_t pack_halves(float low, float high) {
    return mx_float_to_half(low) | (uint32_t)mx_float_to_half(high) << 16;
}

/* The results are exact in f32, so there is one rounding. */
static inline uint32_t mul_halves(uint32_t a, uint32_t b) {
    return pack_halves(half_to_float((uint16_t)a) * half_to_float((uint16_t)b),
                       half_to_float((uint16_t)(a >> 16)) * half_to_float((uint16_t)(b >> 16)));
}

static inline uint32_t sub_halves(uint32_t a, uint32_t b) {
    return pack_halves(half_to_float((uint16_t)a) - half_to_float((uint16_t)b),
                       half_to_float((uint16_t)(a >> 16)) - half_to_float((uint16_t)(b >> 16)));
}

void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1);

static inline uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;

    for (int i = 0; i < 4; i++) {
        uint32_t s = selector >> (4 * i);

        if (s & 8) /* copies of the sign: not used */
            __builtin_trap();
        r |= (uint32_t)(both >> (8 * (s & 7)) & 255) << (8 * i);
    }
    return r;
}

static inline float lane_xor(float v, int mask) {
    struct simt_gift mine = {};

    mine.f[0] = v;
    return simt_exchange(&mine)[(threadIdx.x % 32) ^ (uint32_t)mask].f[0];
}

static inline uint64_t lane_xor(uint64_t v, int mask) {
    struct simt_gift mine = {};

    mine.u64[0] = v;
    return simt_exchange(&mine)[(threadIdx.x % 32) ^ (uint32_t)mask].u64[0];
}

static inline void wait_for_previous() {}

static inline void prefetch(const void *p) {
    (void)*(const volatile uint8_t *)p;
}

static inline void add_shared(uint64_t *p, uint64_t v) {
    *p += v;
}

/* As coarse as the device's. */
static inline float approximate_log(float x) {
    return logf(x) * (1.0f + 2e-7f);
}

static inline float approximate_log1p(float x) {
    return log1pf(x) * (1.0f - 1e-7f);
}
#endif
