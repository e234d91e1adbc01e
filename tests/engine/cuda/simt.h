#pragma once

/*
 * simt - runs the kernels of engine/cuda on the CPU. Included before everything else (-include), it
 * gives the names of engine/cuda/device.cuh another meaning: a thread of a block is a fiber,
 * instructions of a warp (mma, lane_xor) and barriers switch to the next one until all have come.
 * Blocks run one after the other, so a block that waits for another one would wait for ever;
 * arrive() does not wait.
 *
 * What it finds: wrong arithmetic, wrong indices, and what simt_check.h lists: races, early reads,
 * wrong addresses, lanes that do not meet. Asynchronous copies are done when they are waited for,
 * no sooner. The order of threads and of blocks changes with simt_order(). What it cannot find: the
 * order in which the tensor cores add, speed.
 */

#define WEFT_SIMT 1
#define SIMT_DYNAMIC_MAX (227u << 10)  /* what a block may have on devices for servers */
#define SIMT_DYNAMIC_LEAST (99u << 10) /* on the smallest of the devices */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "engine/cuda/kernels.h"
#include "tests/engine/cuda/simt_check.h"

#ifdef __cplusplus
extern "C" {
#endif

struct simt_dim {
    uint32_t x, y, z;
};

struct simt_kernel {
    void (*run)(const void *args);
    void (*quick)(const void *args); /* the same, not instrumented: where simt_looks is not set */
    const char *name;
    uint32_t n_threads;
    size_t args_size;
};

/* @seed 0: ascending order of threads and blocks; else an order of its own for each block and
 * launch. */
void simt_order(uint64_t seed);
/* Runs all blocks, each with @shared bytes of dynamic_shared(). */
void simt_launch(const struct simt_kernel *k, struct simt_dim grid, uint32_t shared,
                 const void *args);
/* wgmma with sums that are rounded otherwise than those of mma. */
void simt_wgmma_other(bool other);
/* The number of blocks that have run. */
uint64_t simt_blocks(void);

#ifdef __cplusplus
}

extern struct simt_dim simt_thread, simt_block, simt_grid;

#define threadIdx simt_thread
#define blockIdx simt_block
#define gridDim simt_grid

extern uint8_t simt_dynamic[SIMT_DYNAMIC_MAX];

static inline uint8_t *dynamic_shared() {
    return simt_dynamic;
}

#define SHARED static __attribute__((section("simt_shared")))
#define DEVICE static inline
#define __device__
#define __forceinline__ inline

/* SIMT_QUICK: the copy of a kernel that is not instrumented. SIMT_TWICE: there is one. */
#define SIMT_RUN(LINKAGE, RUN, NAME, ARGS)                                                         \
    static void NAME(const ARGS &a);                                                               \
    LINKAGE void RUN##NAME(const void *args) {                                                     \
        NAME(*(const ARGS *)args);                                                                 \
    }
#ifdef SIMT_QUICK
#define KERNEL(NAME, ARGS, threads, blocks)                                                        \
    SIMT_RUN(extern "C", simt_quick_, NAME, ARGS)                                                  \
    static void NAME(const ARGS &a)
/* What else a file of kernels defines is not wanted twice. */
#define attend_latent_built attend_latent_built_quick
#define matmul_wgmma_built matmul_wgmma_built_quick
#else
#ifdef SIMT_TWICE
#define SIMT_RUN_QUICK(NAME) simt_quick_##NAME
#else
#define SIMT_RUN_QUICK(NAME) run_##NAME
#endif
#define KERNEL(NAME, ARGS, threads, blocks)                                                        \
    extern "C" void simt_quick_##NAME(const void *args);                                           \
    SIMT_RUN(static, run_, NAME, ARGS)                                                             \
    static const struct simt_kernel simt_##NAME = {run_##NAME, SIMT_RUN_QUICK(NAME), #NAME,        \
                                                   threads, sizeof(ARGS)};                         \
    const void *const kernel_##NAME = &simt_##NAME;                                                \
    static void NAME(const ARGS &a)
#endif

struct vec4 {
    uint32_t x, y, z, w;
};

/* Where an instruction of all lanes stands: they must all be there. */
#define SIMT_TEXT(x) #x
#define SIMT_LINE(x) SIMT_TEXT(x)
#define SIMT_HERE __FILE__ ":" SIMT_LINE(__LINE__)

void simt_sync_block(const char *here);
void simt_sync_warp(const char *here);

#define sync_block() simt_sync_block(SIMT_HERE)
#define sync_warp() simt_sync_warp(SIMT_HERE)

/* What the kernel touches through these is seen by simt_check.h. */
void simt_take(const void *p, size_t n, void *to);
void simt_take_device(const void *p, size_t n, void *to); /* not from shared memory */
void simt_put(void *p, size_t n, const void *from);

static inline struct vec4 load16(const void *p) {
    struct vec4 v;

    simt_take(p, 16, &v);
    return v;
}

static inline void load8(const void *p, uint32_t v[2]) {
    simt_take(p, 8, v);
}

static inline struct vec4 load16_device(const void *p) {
    struct vec4 v;

    simt_take_device(p, 16, &v);
    return v;
}

static inline void load8_device(const void *p, uint32_t v[2]) {
    simt_take_device(p, 8, v);
}

static inline void store8(void *p, const uint32_t v[2]) {
    simt_put(p, 8, v);
}

static inline void store16(void *p, struct vec4 v) {
    simt_put(p, 16, &v);
}

/* cp.async: @to in shared memory. */
void copy_async(void *to, const void *from);
void copy_async4(void *to, const void *from);
static inline uint32_t anew(uint32_t v) {
    return v;
}
/* Not 0: shared memory begins with what the driver and the kernel have there. */
#define SIMT_START 1280u
static inline uint32_t shared_start() {
    return SIMT_START;
}
template <int OFFSET> static inline void copy_async_at(uint32_t to, const void *from) {
    copy_async(simt_dynamic + (to - SIMT_START) + OFFSET, (const uint8_t *)from + OFFSET);
}

void copy_commit();
void simt_copy_wait(uint32_t n_left);

template <int N> static inline void copy_wait() {
    simt_copy_wait(N);
}

#ifdef __F16C__
/* Not with <immintrin.h>, which takes longer to read than most kernels to compile. */
typedef short simt_halves __attribute__((vector_size(16)));
typedef float simt_floats __attribute__((vector_size(16)));

static inline float half_to_float(uint16_t h) {
    return __builtin_ia32_vcvtph2ps(simt_halves{(short)h})[0];
}

static inline uint16_t simt_half(float f) {
    return (uint16_t)__builtin_ia32_vcvtps2ph(simt_floats{f}, 0)[0]; /* 0: to nearest */
}
#else
static inline float half_to_float(uint16_t h) {
    return mx_half_to_float(h);
}

static inline uint16_t simt_half(float f) {
    return mx_float_to_half(f);
}
#endif

static inline uint32_t pack_halves(float low, float high) {
    return simt_half(low) | (uint32_t)simt_half(high) << 16;
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

/* Rounded once: what double precision does not hold goes into the last bit of a float (to odd). */
static inline uint16_t simt_fma_half(uint16_t a, uint16_t b, uint16_t c) {
    double p = (double)half_to_float(a) * (double)half_to_float(b), z = half_to_float(c);
    double s = p + z, t = s - p, rest = (p - (s - t)) + (z - t);
    float f = (float)s;
    uint32_t u = mx_bits_of(f);

    rest += s - (double)f;
    if (rest != 0 && s - s == 0 && !(u & 1))
        f = mx_float_of((rest > 0) == (f > 0) ? u + 1 : u - 1);
    return simt_half(f);
}

static inline uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
    return simt_fma_half((uint16_t)a, (uint16_t)b, (uint16_t)c) |
           (uint32_t)simt_fma_half((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16))
               << 16;
}

static inline uint32_t low_twice(uint32_t v) {
    return (v & 0xFFFFu) * 0x10001u;
}

static inline uint32_t high_twice(uint32_t v) {
    return (v >> 16) * 0x10001u;
}

void simt_mma(const char *here, float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
              uint32_t b0, uint32_t b1);
#define mma(...) simt_mma(SIMT_HERE, __VA_ARGS__)
#define mma_first(c, ...) (memset(c, 0, 16), simt_mma(SIMT_HERE, c, __VA_ARGS__))

/* Multiplies @k columns, 16 or 32: two registers of a for 16, four for 32. */
void simt_mma_bytes(const char *here, uint32_t k, float c[4], const uint32_t a[4], uint32_t b0,
                    uint32_t b1);
#define mma_bytes(c, z, a, b0, b1) simt_mma_bytes(SIMT_HERE, 32, c, a, b0, b1)
#define mma_bytes_16(c, z, a, b0) simt_mma_bytes(SIMT_HERE, 16, c, a, b0, 0)
struct integers {
    void set(bool) {}
};

/* engine/cuda/products/wgmma.cuh. Products are done when they are waited for; until then d is not a
 * number, and what they read of shared memory may not change. */
void simt_wgmma(const char *here, uint32_t n, float *d, const uint32_t a[4], uint64_t b);
void simt_wgmma_begin(const char *here);
void wgmma_commit();
void simt_wgmma_wait(const char *here, uint32_t n_left);
#define wgmma_n64(d, a, b) simt_wgmma(SIMT_HERE, 64, d, a, b)
#define wgmma_n128(d, a, b) simt_wgmma(SIMT_HERE, 128, d, a, b)
#define wgmma_begin() simt_wgmma_begin(SIMT_HERE)
#define wgmma_hold(v) ((void)(v))

struct simt_wgmma_at {
    const char *here;
    template <int N> void left() const {
        simt_wgmma_wait(here, N);
    }
};
#define wgmma_wait simt_wgmma_at{SIMT_HERE}.template left

/* engine/cuda/bulk.cuh. A copy is done when its phase is first waited for. */
void bulk_init(uint64_t *bar);
void bulk_publish();
void bulk_expect(uint64_t *bar, uint32_t bytes);
void bulk_copy(void *to, const void *from, uint32_t n, uint64_t *bar);
void simt_bulk_wait(const char *here, uint64_t *bar, uint32_t phase);
struct vec4 simt_load_transposed(const char *here, const void *row);
#define bulk_wait(bar, phase) simt_bulk_wait(SIMT_HERE, bar, phase)
#define load_transposed(row) simt_load_transposed(SIMT_HERE, row)

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

static inline uint32_t pick_bytes(uint32_t a, uint32_t picks) {
    return byte_permute(0, a, picks);
}

static inline const uint16_t *own_pointer(const uint16_t *p) {
    return p;
}

static inline uint32_t load_constant(const uint16_t *p) {
    return *p;
}

float simt_lane_xor(const char *here, float v, int mask);
uint64_t simt_lane_xor(const char *here, uint64_t v, int mask);
#define lane_xor(v, mask) simt_lane_xor(SIMT_HERE, v, mask)
uint32_t simt_lane_from(const char *here, uint32_t v, uint32_t from);
#define lane_from(v, from) simt_lane_from(SIMT_HERE, v, from)

uint32_t simt_lanes_max(const char *here, uint32_t v);
#define lanes_max(v) simt_lanes_max(SIMT_HERE, v)

void wait_for_previous();
void fence_bulk();

static inline void prefetch(const void *p) {
    simt_check_prefetch(p, 1);
}

void prefetch_bytes(const uint8_t *p, uint32_t n);

/* Between blocks, which run one after the other: what one has put or added is there for the
 * next. */
void simt_atomic_get(const void *p, size_t n, void *to);
void simt_atomic_put(void *p, size_t n, const void *from);

template <typename T> static inline T get_global(const T *p) {
    T v;

    simt_atomic_get(p, sizeof(T), &v);
    return v;
}

template <typename T> static inline void put_global(T *p, T v) {
    simt_atomic_put(p, sizeof(T), &v);
}

static inline uint32_t add_global(uint32_t *p, uint32_t v) {
    uint32_t old = get_global(p);

    put_global(p, old + v);
    return old;
}

static inline void add_global(uint64_t *p, uint64_t v) {
    put_global(p, get_global(p) + v);
}

static inline void max_global(uint64_t *p, uint64_t v) {
    uint64_t old = get_global(p);

    put_global(p, old > v ? old : v);
}

static inline uint32_t add_shared(uint32_t *p, uint32_t v) {
    return add_global(p, v);
}

void add_shared(uint64_t *p, uint64_t v);
bool arrive(uint32_t *count, uint32_t k, uint32_t n);
void put_alike(uint32_t *p, uint32_t v);

static inline float exp2_fast(float x) {
    float y = exp2f(x);

    return y < FLT_MIN ? 0 : y; /* ftz */
}

/* Without a call; -0 is less than 0, as it is for a device. */
static inline float simt_max(float a, float b) {
    if (a == b)
        return mx_float_of(mx_bits_of(a) & mx_bits_of(b));
    return a > b || b != b ? a : b;
}

static inline float simt_min(float a, float b) {
    if (a == b)
        return mx_float_of(mx_bits_of(a) | mx_bits_of(b));
    return a < b || b != b ? a : b;
}
#define fmaxf simt_max
#define fminf simt_min

/* As coarse as the device's. */
static inline float approximate_log(float x) {
    return logf(x) * (1.0f + 2e-7f);
}

static inline float approximate_log1p(float x) {
    return log1pf(x) * (1.0f - 1e-7f);
}
#endif
