#pragma once

/*
 * simt - runs the kernels of engine/cuda on the CPU. Included before everything else (-include), it
 * replaces the functions of engine/cuda/device.cuh. Each thread of a block is a fiber; at a barrier
 * or an instruction of the warp (mma, lane_xor), a fiber switches to the next until all have
 * arrived. Blocks run one after the other, so a block must not wait for another one, except within
 * a cluster, whose blocks run together; arrive() does not wait. Blocks of clusters have dynamic
 * shared memory only.
 *
 * It finds wrong arithmetic, wrong indices, and the faults that simt_check.h lists: races, early
 * reads, wrong addresses, divergence. Asynchronous copies are executed when they are waited for, as
 * late as possible. simt_order() changes the order of threads and blocks. It does not show the
 * order in which tensor cores add, nor speed.
 */

#define WEFT_SIMT 1
/* dynamic shared memory of a block on server devices, at most */
#define SIMT_DYNAMIC_MAX (227u << 10)
#define SIMT_DYNAMIC_LEAST (99u << 10) /* the same on the other supported devices */

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
    /* the same, not instrumented: where simt_looks is not set */
    void (*quick)(const void *args);
    const char *name;
    uint32_t n_threads;
    size_t args_size;
    /* blocks of a cluster, consecutive in x */
    uint32_t cluster;
};

/* Sets the order of threads and blocks: ascending for @seed 0, else pseudo-random for each block
 * and launch. */
void simt_order(uint64_t seed);
/* Blocks of a launch that have run ahead, and a digest of what each has read. */
#define SIMT_AHEAD 4u
struct simt_ahead {
    uint32_t n, block[SIMT_AHEAD];
    uint64_t seen[SIMT_AHEAD];
};
/* Runs some blocks of a launch up to wait_for_previous(), while launches before it have not run
 * yet, as they may on a device (PDL). The launch itself must follow, with simt_expect(ahead) in
 * front of it: it is a fault if its blocks read anything else before they wait. Only blocks that
 * simt_look() chooses run ahead, and none without the instrumentation. */
void simt_run_ahead(const struct simt_kernel *k, struct simt_dim grid, uint32_t shared,
                    const void *args, struct simt_ahead *ahead);
void simt_expect(const struct simt_ahead *ahead);
/* Runs all blocks of a launch, each with @shared bytes of dynamic_shared(). */
void simt_launch(const struct simt_kernel *k, struct simt_dim grid, uint32_t shared,
                 const void *args);
/* With @other, the sums of wgmma are rounded differently from those of mma. */
void simt_wgmma_other(bool other);
/* Returns the number of blocks that have run. */
uint64_t simt_blocks(void);

#ifdef __cplusplus
}

extern struct simt_dim simt_thread, simt_block, simt_grid;
extern uint32_t simt_rank; /* of the block in its cluster */

#define threadIdx simt_thread
#define blockIdx simt_block
#define gridDim simt_grid

#define SIMT_CLUSTER 8u /* blocks of a cluster, at most */
/* a part for each block of a cluster */
extern uint8_t simt_dynamic[SIMT_CLUSTER * SIMT_DYNAMIC_MAX];

static inline uint8_t *dynamic_shared() {
    return simt_dynamic + simt_rank * SIMT_DYNAMIC_MAX;
}

#define SHARED static __attribute__((section("simt_shared")))
#define DEVICE static inline
#define __device__
#define __forceinline__ inline

/* SIMT_QUICK: compiles the copy of a kernel without instrumentation. SIMT_TWICE: such a copy
 * exists. */
#define SIMT_RUN(LINKAGE, RUN, NAME, ARGS)                                                         \
    static void NAME(const ARGS &a);                                                               \
    LINKAGE void RUN##NAME(const void *args) {                                                     \
        NAME(*(const ARGS *)args);                                                                 \
    }
#ifdef SIMT_QUICK
#define SIMT_KERNEL(NAME, ARGS, threads, cluster)                                                  \
    SIMT_RUN(extern "C", simt_quick_, NAME, ARGS)                                                  \
    static void NAME(const ARGS &a)
/* Renames the other definitions of a file of kernels, which would be duplicates. */
#define attend_latent_built attend_latent_built_quick
#define matmul_wgmma_built matmul_wgmma_built_quick
#else
#ifdef SIMT_TWICE
#define SIMT_RUN_QUICK(NAME) simt_quick_##NAME
#else
#define SIMT_RUN_QUICK(NAME) run_##NAME
#endif
#define SIMT_KERNEL(NAME, ARGS, threads, cluster)                                                  \
    extern "C" void simt_quick_##NAME(const void *args);                                           \
    SIMT_RUN(static, run_, NAME, ARGS)                                                             \
    static const struct simt_kernel simt_##NAME = {run_##NAME, SIMT_RUN_QUICK(NAME), #NAME,        \
                                                   threads,    sizeof(ARGS),         cluster};     \
    const void *const kernel_##NAME = &simt_##NAME;                                                \
    static void NAME(const ARGS &a)
#endif
#define KERNEL_ALLOTTED(NAME, ARGS, threads, allotted, blocks) SIMT_KERNEL(NAME, ARGS, threads, 1u)
#define KERNEL_CLUSTER(NAME, ARGS, threads, blocks, cluster)                                       \
    SIMT_KERNEL(NAME, ARGS, threads, cluster)
#define KERNEL(NAME, ARGS, threads, blocks) KERNEL_ALLOTTED(NAME, ARGS, threads, threads, blocks)

struct vec4 {
    uint32_t x, y, z, w;
};

/* Place of an instruction of the warp or of a barrier in the source; all lanes must be at the
 * same. */
#define SIMT_TEXT(x) #x
#define SIMT_LINE(x) SIMT_TEXT(x)
#define SIMT_HERE __FILE__ ":" SIMT_LINE(__LINE__)

void simt_sync_block(const char *here);
void simt_sync_warp(const char *here);

#define sync_block() simt_sync_block(SIMT_HERE)
#define sync_warp() simt_sync_warp(SIMT_HERE)

/* Accesses by these functions are checked like others (simt_check.h). */
void simt_take(const void *p, size_t n, void *to);
void simt_take_device(const void *p, size_t n, void *to); /* refuses shared memory */
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

static inline void load16_device_if(uint32_t on, const void *p, struct vec4 &v) {
    if (on)
        v = load16_device(p);
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

/* Emulates cp.async; @to is in shared memory. */
void copy_async(void *to, const void *from);
void copy_async4(void *to, const void *from);
static inline uint32_t anew(uint32_t v) {
    return v;
}
/* Start of dynamic shared memory: not 0, as on a device, where the driver's part and static
 * variables precede it. */
#define SIMT_START 1280u
static inline uint32_t shared_start() {
    return SIMT_START;
}
template <int OFFSET> static inline void copy_async_at(uint32_t to, const void *from) {
    copy_async(dynamic_shared() + (to - SIMT_START) + OFFSET, (const uint8_t *)from + OFFSET);
}

void copy_commit();
void simt_copy_wait(uint32_t n_left);

template <int N> static inline void copy_wait() {
    simt_copy_wait(N);
}

#ifdef __F16C__
/* Defined here, because <immintrin.h> takes longer to compile than most kernels. */
typedef short simt_halves __attribute__((vector_size(16)));
typedef float simt_floats __attribute__((vector_size(16)));

static inline float half_to_float(uint16_t h) {
    return __builtin_ia32_vcvtph2ps(simt_halves{(short)h})[0];
}

static inline uint16_t simt_half(float f) {
    return (uint16_t)__builtin_ia32_vcvtps2ph(simt_floats{f}, 0)[0]; /* 0: rounds to nearest */
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

/* Products and sums of two halves are exact in single precision, so each is rounded only once. */
static inline uint32_t mul_halves(uint32_t a, uint32_t b) {
    return pack_halves(half_to_float((uint16_t)a) * half_to_float((uint16_t)b),
                       half_to_float((uint16_t)(a >> 16)) * half_to_float((uint16_t)(b >> 16)));
}

static inline uint32_t sub_halves(uint32_t a, uint32_t b) {
    return pack_halves(half_to_float((uint16_t)a) - half_to_float((uint16_t)b),
                       half_to_float((uint16_t)(a >> 16)) - half_to_float((uint16_t)(b >> 16)));
}

/* Returns a b + c, rounded only once: bits that double precision loses are kept as the last bit of
 * the float (rounding to odd). */
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
#define mma_8(c, a0, a1, b0) simt_mma(SIMT_HERE, c, a0, a1, 0, 0, b0, 0)

/* Multiplies @k columns of bytes, 16 or 32; a has two registers for 16, four for 32. */
void simt_mma_bytes(const char *here, uint32_t k, float c[4], const uint32_t a[4], uint32_t b0,
                    uint32_t b1);
#define mma_bytes(c, z, a, b0, b1) simt_mma_bytes(SIMT_HERE, 32, c, a, b0, b1)
static inline void simt_mma_integers(const char *here, uint32_t k, int32_t d[4],
                                     const uint32_t a[4], uint32_t b0, uint32_t b1) {
    float c[4];

    simt_mma_bytes(here, k, c, a, b0, b1);
    memcpy(d, c, sizeof(c));
    for (uint32_t i = 0; i < 4; i++)
        d[i] -= 0x4B400000; /* as multiply_bytes() begins */
}
#define mma_integers(d, a, b0, b1) simt_mma_integers(SIMT_HERE, 32, d, a, b0, b1)
#define mma_integers_16(d, a, b0) simt_mma_integers(SIMT_HERE, 16, d, a, b0, 0)
struct integers {
    void set(bool) {}
};

/* Emulates engine/cuda/wgmma.cuh. Products are executed when they are waited for. Until
 * then d is NaN, and their operands in shared memory must not change. @first: d = a b. */
void simt_wgmma(const char *here, uint32_t n, float *d, const uint32_t a[4], uint64_t b,
                bool first = false);
void simt_wgmma_begin(const char *here);
void wgmma_commit();
void simt_wgmma_wait(const char *here, uint32_t n_left);
#define wgmma_n24(d, a, b) simt_wgmma(SIMT_HERE, 24, d, a, b)
#define wgmma_n32(d, a, b) simt_wgmma(SIMT_HERE, 32, d, a, b)
#define wgmma_n48(d, a, b) simt_wgmma(SIMT_HERE, 48, d, a, b)
#define wgmma_n64(d, a, b) simt_wgmma(SIMT_HERE, 64, d, a, b)
#define wgmma_n96(d, a, b) simt_wgmma(SIMT_HERE, 96, d, a, b)
#define wgmma_n128(d, a, b) simt_wgmma(SIMT_HERE, 128, d, a, b)
#define wgmma_first_n32(d, a, b) simt_wgmma(SIMT_HERE, 32, d, a, b, true)
#define wgmma_first_n64(d, a, b) simt_wgmma(SIMT_HERE, 64, d, a, b, true)
#define wgmma_begin() simt_wgmma_begin(SIMT_HERE)
#define wgmma_hold(v) ((void)(v))

struct simt_wgmma_at {
    const char *here;
    template <int N> void left() const {
        simt_wgmma_wait(here, N);
    }
};
#define wgmma_wait simt_wgmma_at{SIMT_HERE}.template left

/* Registers are not counted here, but all warps of a warpgroup must ask for the same number. */
void simt_registers(const char *here, uint32_t n);
struct simt_registers_at {
    const char *here;
    template <int N> void set() const {
        static_assert(N >= 24 && N <= 256 && N % 8 == 0, "a number of registers");
        simt_registers(here, N);
    }
};
#define wgmma_fewer simt_registers_at{SIMT_HERE}.template set
#define wgmma_more simt_registers_at{SIMT_HERE}.template set
/* Barrier of the threads below @n. */
void simt_sync_first(const char *here, uint32_t n);
#define wgmma_sync(n) simt_sync_first(SIMT_HERE, n)

/* Emulates engine/cuda/cluster.cuh. */
void simt_cluster_arrive(const char *here);
void simt_cluster_wait(const char *here);
void *simt_shared_of(void *p, uint32_t rank);
#define cluster_arrive() simt_cluster_arrive(SIMT_HERE)
#define cluster_wait() simt_cluster_wait(SIMT_HERE)

static inline void cluster_store(float *p, uint32_t rank, float v) {
    simt_put(simt_shared_of(p, rank), sizeof(v), &v);
}

static inline uint32_t cluster_rank() {
    return simt_rank;
}

void cluster_copy(void *to, const void *from, uint32_t n, uint64_t *bar, uint32_t ranks);
#define cluster_publish() bulk_publish()
#define cluster_bulk_arrive(bar, rank) bulk_arrive((uint64_t *)simt_shared_of(bar, rank))
#define cluster_bulk_wait(bar, phase) bulk_wait(bar, phase)

/* Emulates engine/cuda/bulk.cuh. Copies are executed when their phase is first waited for. */
void bulk_init(uint64_t *bar, uint32_t n = 1);
void bulk_arrive(uint64_t *bar);
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

        if (s & 8) /* sign replication, which no kernel uses */
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

/* Lanes meet once, not once for each bit of their numbers. */
float simt_warp_sum(const char *here, float v, uint32_t first, uint32_t end);
uint64_t simt_warp_sum(const char *here, uint64_t v, uint32_t first, uint32_t end);
float simt_warp_max(const char *here, float v, uint32_t first, uint32_t end);
uint64_t simt_warp_max(const char *here, uint64_t v, uint32_t first, uint32_t end);

struct simt_reduction_at {
    const char *here;
    template <int END = 32, int FIRST = 1, class T> T sum(T v) const {
        return simt_warp_sum(here, v, FIRST, END);
    }
    template <int END = 32, int FIRST = 1, class T> T max(T v) const {
        return simt_warp_max(here, v, FIRST, END);
    }
};
#define warp_sum simt_reduction_at{SIMT_HERE}.sum
#define warp_max simt_reduction_at{SIMT_HERE}.max

void wait_for_previous();
void fence_bulk();

static inline void prefetch(const void *p) {
    simt_check_prefetch(p, 1);
}

void prefetch_bytes(const uint8_t *p, uint32_t n);

/* Accesses that are ordered between blocks: since blocks run one after the other, these see all
 * earlier ones. */
void simt_atomic_get(const void *p, size_t n, void *to);
void simt_atomic_put(void *p, size_t n, const void *from);

template <typename T> static inline T get_global(const T *p) {
    T v;

    simt_atomic_get(p, sizeof(T), &v);
    return v;
}

template <typename T> static inline void store_global(T *p, T v) {
    simt_atomic_put(p, sizeof(T), &v);
}

static inline uint32_t add_global(uint32_t *p, uint32_t v) {
    uint32_t old = get_global(p);

    store_global(p, old + v);
    return old;
}

static inline void add_global(uint64_t *p, uint64_t v) {
    store_global(p, get_global(p) + v);
}

static inline void max_global(uint64_t *p, uint64_t v) {
    uint64_t old = get_global(p);

    store_global(p, old > v ? old : v);
}

static inline uint32_t add_shared(uint32_t *p, uint32_t v) {
    return add_global(p, v);
}

void add_shared(uint64_t *p, uint64_t v);
bool arrive(uint32_t *count, uint32_t k, uint32_t n);
void store_alike(uint32_t *p, uint32_t v);

static inline float exp2_fast(float x) {
    float y = exp2f(x);

    return y < FLT_MIN ? 0 : y; /* flushes subnormal results to zero, as ex2.approx.ftz */
}

/* Equals fmaxf() of a device, where -0 is less than 0, without a library call. */
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

/* With errors as large as the device's. */
static inline float approximate_log(float x) {
    return logf(x) * (1.0f + 2e-7f);
}

static inline float approximate_log1p(float x) {
    return log1pf(x) * (1.0f - 1e-7f);
}
#endif
