#pragma once

/*
 * device - names for the machine instructions that kernels use. Tests compile the kernels for the
 * CPU: tests/engine/cuda/simt.h, included before everything else, defines WEFT_SIMT and its own
 * versions of these names.
 */

#include "engine/cuda/kernels.h"

/* Defined if the family multiplies 8-bit codes (BYTES_FAMILY); the tests define it themselves. */
#if !defined(WEFT_SIMT) && defined(__CUDA_ARCH__)
#if BYTES_FAMILY(__CUDA_ARCH__ / 10)
#define WEFT_BYTES 1
#endif
#endif
#ifdef WEFT_BYTES
#define PACK_PLANES 2u
#else
#define PACK_PLANES 1u
#endif

/* 1.5 * 2^23. Adding and subtracting it rounds to the nearest integer; its bits plus an integer of
 * up to 22 bits are the bits of the sum. */
#define TO_INTEGER 12582912.0f
#define TO_INTEGER_BITS 0x4B400000u

#define MEMBER __device__ __forceinline__ /* DEVICE for members of a struct */

#ifndef WEFT_SIMT

#include <float.h>
#include <stdint.h>

#define SHARED __shared__
/* Not static: nvcc would add a hash of the folder's name to the function's name in the object. */
#define DEVICE __device__ __forceinline__

/* Lets the next kernel start, if it is launched early: each of its blocks as soon as there is room
 * for it beside the blocks of this kernel. Once is enough; what has been let start remains so. */
DEVICE void trigger_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#ifdef WEFT_TRACE
/* Returns the time of the device's global timer in ns. */
DEVICE uint64_t trace_clock() {
    uint64_t t;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

/* Adds one to a count in device memory; returns the value before. */
DEVICE uint64_t trace_count(uint64_t *n) {
    return atomicAdd((unsigned long long *)n, 1ull);
}

#include "engine/cuda/trace.cuh"

static __device__ struct trace_ring *trace_to; /* NULL: nothing is traced */
/* Adds the variable trace_to of a file to those that trace_calls.start() sets. */
extern "C" void trace_add(const void *variable);
static const struct trace_file {
    trace_file() {
        trace_add(&trace_to);
    }
} trace_this_file;

/* Defines a kernel like the macro below; its body is between two calls of trace.cuh. */
#define KERNEL_BOUND(NAME, ARGS, BOUNDS)                                                           \
    DEVICE void NAME##_traced(const ARGS &a);                                                      \
    static __global__ void BOUNDS NAME(const __grid_constant__ ARGS a, const uint32_t how) {       \
        constexpr struct trace_name name = trace_name_of(#NAME);                                   \
        if (!(how & LAUNCH_LATE))                                                                  \
            trigger_next();                                                                        \
        trace_enter(trace_to);                                                                     \
        NAME##_traced(a);                                                                          \
        trace_end_block(trace_to, name);                                                           \
    }                                                                                              \
    const void *const kernel_##NAME = (const void *)NAME;                                          \
    DEVICE void NAME##_traced(const ARGS &a)
#else
/* Defines kernel NAME of one argument and its address kernel_NAME. The launch adds @how (enum
 * launch_how); the trigger comes first, so that the next kernel starts during all of this one. */
#define KERNEL_BOUND(NAME, ARGS, BOUNDS)                                                           \
    DEVICE void NAME##_kernel(const ARGS &a);                                                      \
    static __global__ void BOUNDS NAME(const __grid_constant__ ARGS a, const uint32_t how) {       \
        if (!(how & LAUNCH_LATE))                                                                  \
            trigger_next();                                                                        \
        NAME##_kernel(a);                                                                          \
    }                                                                                              \
    const void *const kernel_##NAME = (const void *)NAME;                                          \
    DEVICE void NAME##_kernel(const ARGS &a)
#endif
/* Defines a kernel whose blocks have @threads threads; it gets as few registers as if @blocks of
 * @allotted threads shared a multiprocessor. */
#define KERNEL_ALLOTTED(NAME, ARGS, threads, allotted, blocks)                                     \
    KERNEL_BOUND(NAME, ARGS, __launch_bounds__(allotted, blocks))
/* Defines a kernel with clusters of @cluster blocks (cluster.cuh), consecutive in x. */
#define KERNEL_CLUSTER(NAME, ARGS, threads, blocks, cluster)                                       \
    KERNEL_BOUND(NAME, ARGS, __launch_bounds__(threads, blocks) CLUSTER_OF(cluster))
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CLUSTER_OF(cluster)
#else
#define CLUSTER_OF(cluster) __cluster_dims__(cluster, 1, 1)
#endif
/* Defines a kernel of which at least @blocks blocks fit on a multiprocessor. */
#define KERNEL(NAME, ARGS, threads, blocks) KERNEL_ALLOTTED(NAME, ARGS, threads, threads, blocks)

/* Returns the dynamic shared memory of the launch. */
DEVICE uint8_t *dynamic_shared() {
    extern __shared__ __align__(128) uint8_t at_launch[];

    return at_launch;
}

struct vec4 {
    uint32_t x, y, z, w;
};

/* Loads the 16 bytes at @p, a multiple of 16. */
DEVICE struct vec4 load16(const void *p) {
    uint4 u = *(const uint4 *)p;
    struct vec4 v = {u.x, u.y, u.z, u.w};

    return v;
}

/* Loads 16 bytes of device memory that the kernel does not write. The compiler may move the load up
 * over stores to shared memory, which it could not tell apart by the address alone, but not over
 * wait_for_previous(): both are volatile. */
DEVICE struct vec4 load16_device(const void *p) {
    struct vec4 v;

    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Loads 16 bytes to @v as load16_device() does if @on is not 0, by one predicated instruction
 * instead of a branch over one, so that it is fetched in either case. */
DEVICE void load16_device_if(uint32_t on, const void *p, struct vec4 &v) {
    asm volatile("{\n\t.reg .pred on;\n\tsetp.ne.u32 on, %5, 0;\n\t"
                 "@on ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(p), "r"(on));
}

/* Loads 8 bytes, a multiple of 8, as load16_device() does. */
DEVICE void load8_device(const void *p, uint32_t v[2]) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(p));
}

/* Loads the 8 bytes at @p, a multiple of 8. */
DEVICE void load8(const void *p, uint32_t v[2]) {
    uint2 u = *(const uint2 *)p;

    v[0] = u.x;
    v[1] = u.y;
}

/* Stores 8 bytes at @p, a multiple of 8. */
DEVICE void store8(void *p, const uint32_t v[2]) {
    *(uint2 *)p = make_uint2(v[0], v[1]);
}

/* Stores 16 bytes at @p, a multiple of 16. */
DEVICE void store16(void *p, struct vec4 v) {
    *(uint4 *)p = make_uint4(v.x, v.y, v.z, v.w);
}

/* Rounds two floats to nearest halves; @low goes to the low half-word. */
DEVICE uint32_t pack_halves(float low, float high) {
    uint32_t u;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low));
    return u;
}

/* Returns the value of half precision @h; exact. */
DEVICE float half_to_float(uint16_t h) {
    float f;

    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

/* Multiplies two halves by two halves, rounded to nearest. */
DEVICE uint32_t mul_halves(uint32_t a, uint32_t b) {
    uint32_t u;

    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(u) : "r"(a), "r"(b));
    return u;
}

/* Multiplies two halves by two halves and adds two halves, rounded once. */
DEVICE uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t u;

    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(u) : "r"(a), "r"(b), "r"(c));
    return u;
}

/* Returns the lower half of @v twice; no instruction of its own, because an operand can name the
 * half. */
DEVICE uint32_t low_twice(uint32_t v) {
    uint32_t u;

    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tmov.b32 %0, {l, l};\n\t}"
        : "=r"(u)
        : "r"(v));
    return u;
}

/* Returns the upper half of @v twice, like low_twice(). */
DEVICE uint32_t high_twice(uint32_t v) {
    uint32_t u;

    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tmov.b32 %0, {h, h};\n\t}"
        : "=r"(u)
        : "r"(v));
    return u;
}

/* Subtracts two halves from two halves, rounded to nearest. */
DEVICE uint32_t sub_halves(uint32_t a, uint32_t b) {
    uint32_t u;

    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(u) : "r"(a), "r"(b));
    return u;
}

/* Computes c += A B, 16 x 16 times 16 x 8 with f32 sums (mma.m16n8k16). Lane 4 g + t has a0 (row g,
 * columns 2t, 2t + 1), a1 (row g + 8), a2 (row g, columns 2t + 8, 2t + 9), a3 (row g + 8); b0 (rows
 * 2t, 2t + 1, column g), b1 (rows 2t + 8, 2t + 9); c[0], c[1] (row g, columns 2t, 2t + 1), c[2],
 * c[3] (row g + 8). */
DEVICE void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Computes c += A B as mma() does of 16 x 8 times 8 x 8 (mma.m16n8k8): a0, a1, b0. */
DEVICE void mma_8(float c[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(b0));
}

/* Computes c = A B, with operands as in mma(). */
DEVICE void mma_first(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                      uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
}

/* TO_INTEGER in four registers. With @kept the compiler keeps them for all products, since it does
 * not know that blockIdx.z is 0; otherwise it would write the constant again for each product
 * (since CUDA 12.0 in half as many instructions). */
struct integers {
    uint32_t v[4];

    __device__ __forceinline__ void set(bool kept) {
        for (int i = 0; i < 4; i++)
#if __CUDA_ARCH__ < 900
            v[i] = TO_INTEGER_BITS + (kept ? blockIdx.z : 0);
#else
            v[i] = TO_INTEGER_BITS;
#endif
    }
};

/* Computes c = A B + TO_INTEGER for signed bytes, 16 x 32 times 32 x 8; the 32-bit sums are the
 * bits of floats. Lane 4 g + t has a0 (row g, columns 4t .. 4t + 3), a1 (row g + 8), a2, a3
 * (columns + 16); b0 (rows 4t .. 4t + 3, column g), b1 (rows + 16); c as in mma(). */
DEVICE void mma_bytes(float c[4], const struct integers &z, const uint32_t a[4], uint32_t b0,
                      uint32_t b1) {
    uint32_t d[4];

    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(z.v[0]),
                   "r"(z.v[1]), "r"(z.v[2]), "r"(z.v[3]));
    for (int i = 0; i < 4; i++)
        c[i] = mx_float_of(d[i]);
}

/* Computes d = A B with operands as in mma_bytes(). */
DEVICE void mma_integers(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

/* Computes mma_integers() of 16 columns: a0 and a1, b0. */
DEVICE void mma_integers_16(int32_t d[4], const uint32_t a[2], uint32_t b0) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b0), "r"(0));
}

/* Returns @v, in a way that stops the compiler from computing dependent values earlier, where they
 * would occupy registers. */
DEVICE uint32_t anew(uint32_t v) {
    asm volatile("" : "+r"(v));
    return v;
}

/* Returns bytes selected from 0 .. 3 of @a and 4 .. 7 of @b: nibble i of @selector, 0 to 7, selects
 * byte i. */
DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    return __byte_perm(a, b, selector);
}

/* Returns bytes of @a: nibble i of the lower half of @picks, 4 to 7, selects byte i. With this
 * operand order a constant @a is part of the instruction, and unlike __byte_perm() the compiler
 * does not mask @picks first. */
DEVICE uint32_t pick_bytes(uint32_t a, uint32_t picks) {
    uint32_t u;

    asm("prmt.b32 %0, 0, %1, %2;" : "=r"(u) : "r"(a), "r"(picks));
    return u;
}

/* Returns @p, hiding from the compiler how it was computed. Otherwise the compiler would keep the
 * part common to all lanes separate and add it again for each load, in four instructions instead of
 * one. */
DEVICE const uint16_t *own_pointer(const uint16_t *p) {
    asm("" : "+l"(p));
    return p;
}

/* Loads a half-word that the kernel does not write, through the read-only cache. */
DEVICE uint32_t load_constant(const uint16_t *p) {
    uint16_t u;

    asm("ld.global.nc.u16 %0, [%1];" : "=h"(u) : "l"(p));
    return u;
}

/* Returns @v of the lane whose number is this one's xor @mask; all 32 lanes of a warp take part. */
DEVICE float lane_xor(float v, int mask) {
    return __shfl_xor_sync(0xFFFFFFFFu, v, mask);
}

/* Returns @v of lane @from; all 32 lanes of a warp take part. */
DEVICE uint32_t lane_from(uint32_t v, uint32_t from) {
    return __shfl_sync(0xFFFFFFFFu, v, (int)from);
}

/* Exchanges 64 bits, as lane_xor(float) does. */
DEVICE uint64_t lane_xor(uint64_t v, int mask) {
    return __shfl_xor_sync(0xFFFFFFFFu, v, mask);
}

/* Returns the largest @v of the warp's 32 lanes, which all take part. */
DEVICE uint32_t lanes_max(uint32_t v) {
    return __reduce_max_sync(0xFFFFFFFFu, v);
}

/* Returns the sum over the lanes of a warp, in a fixed order, to every lane; or the sum over those
 * lanes whose numbers differ in no other bits than FIRST to END / 2. All 32 lanes take part. */
template <int END = 32, int FIRST = 1, class T> DEVICE T warp_sum(T v) {
    for (int m = FIRST; m < END; m *= 2)
        v += lane_xor(v, m);
    return v;
}

/* Returns the maximum over the same lanes. */
template <int END = 32, int FIRST = 1> DEVICE float warp_max(float v) {
    for (int m = FIRST; m < END; m *= 2)
        v = fmaxf(v, lane_xor(v, m));
    return v;
}

template <int END = 32> DEVICE uint64_t warp_max(uint64_t v) {
    for (int m = 1; m < END; m *= 2) {
        uint64_t other = lane_xor(v, m);

        v = other > v ? other : v;
    }
    return v;
}

/* Programmatic dependent launch: a kernel that is launched early (cuda_api.launch) runs beside the
 * preceding kernels until it waits here; in other kernels this does nothing. Before it, a kernel
 * may read only data written before the step's last launch that is not early: weights, the step's
 * upload, lists and angles, which such a launch follows (step_start(), attend_plan()), and pages
 * of earlier steps. A block without work may end without it, except for block (0, 0): a grid of
 * which one thread waits ends after the preceding one, and so after all earlier ones. */
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
#ifdef WEFT_TRACE
    trace_wait(trace_to);
#endif
}

/* Orders the thread's writes to device memory before bulk copies that read them in a later
 * kernel, after wait_for_previous(): bulk copies use another path to memory (the async proxy).
 * The copying kernel has no such fence, because there it would wait for the weights that
 * cp.async is loading. */
DEVICE void fence_bulk() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

/* Prefetches the cache line of @p. */
DEVICE void prefetch(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* Prefetches @n bytes from @p on to the L2 cache, by a warp; both are multiples of 16. */
DEVICE void prefetch_bytes(const uint8_t *p, uint32_t n) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0)
        asm volatile(
            "cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(p)),
            "r"(n));
#else
    for (uint32_t i = threadIdx.x % 32 * 128; i < n; i += 32 * 128)
        prefetch(p + i);
#endif
}

/* Barrier of the block's threads; each sees earlier writes of the others. */
DEVICE void sync_block() {
    __syncthreads();
}

/* Barrier of the warp's lanes; each sees earlier writes of the others. */
DEVICE void sync_warp() {
    __syncwarp();
}

/* Adds to a sum in shared memory that threads of the block share. */
DEVICE void add_shared(uint64_t *p, uint64_t v) {
    atomicAdd((unsigned long long *)p, (unsigned long long)v);
}

/* Adds to 32 bits of shared memory; returns the value before. */
DEVICE uint32_t add_shared(uint32_t *p, uint32_t v) {
    return atomicAdd(p, v);
}

/* Adds to a sum in device memory that blocks of a launch share; returns the value before. */
DEVICE uint32_t add_global(uint32_t *p, uint32_t v) {
    return atomicAdd(p, v);
}

/* Adds to 64 bits of device memory, as above. */
DEVICE void add_global(uint64_t *p, uint64_t v) {
    atomicAdd((unsigned long long *)p, (unsigned long long)v);
}

/* Computes *p = max(*p, v) atomically. */
DEVICE void max_global(uint64_t *p, uint64_t v) {
    atomicMax((unsigned long long *)p, (unsigned long long)v);
}

/* Reads a value that other blocks write: from the L2 cache, past the L1 cache. */
template <typename T> DEVICE T get_global(const T *p) {
    return *(const volatile T *)p;
}

/* Writes a value that other blocks read with get_global(). */
template <typename T> DEVICE void store_global(T *p, T v) {
    *(volatile T *)p = v;
}

/* Stores a value that several threads may store, all the same. */
DEVICE void store_alike(uint32_t *p, uint32_t v) {
    *(volatile uint32_t *)p = v;
}

/* Starts an asynchronous copy of 16 bytes to shared memory; both addresses are multiples of 16. */
DEVICE void copy_async(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}

/* Starts an asynchronous copy of 4 bytes, like copy_async(). */
DEVICE void copy_async4(void *to, const void *from) {
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

/* Returns the address of dynamic_shared() as copy_async_at() takes it, found once for many
 * copies. */
DEVICE uint32_t shared_start() {
    return (uint32_t)__cvta_generic_to_shared(dynamic_shared());
}

/* Starts an asynchronous copy of 16 bytes to shared memory, @OFFSET bytes after both addresses. */
template <int OFFSET> DEVICE void copy_async_at(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0 + %2], [%1 + %2], 16;" ::"r"(to),
                 "l"(from), "n"(OFFSET)
                 : "memory");
}

/* Returns the address @p in shared memory as instructions take it. */
DEVICE uint32_t shared_place(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Loads four blocks of 8 rows by 8 halves, transposed (ldmatrix): lane i passes the address of row
 * i % 8 of block i / 8, 16 bytes of shared memory. As word j, lane 4 g + t gets rows 2 t and 2 t +
 * 1 of column g of block j. */
DEVICE struct vec4 load_transposed(const void *row) {
    struct vec4 v;

    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(shared_place(row))
                 : "memory");
    return v;
}
/* Makes the thread's copies since the last call a group. */
DEVICE void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until all but the last N groups of this thread have completed, as seen by this thread. */
template <int N> DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Adds @k to a count that ends at @n. Returns true, and resets the count to 0, if this reaches @n.
 * Data that blocks wrote before a block barrier and this call are visible to the block that gets
 * true, after its next block barrier. */
DEVICE bool arrive(uint32_t *count, uint32_t k, uint32_t n) {
    __threadfence();
    bool last = atomicAdd(count, k) + k == n;

    if (last)
        *(volatile uint32_t *)count = 0;
    __threadfence();
    return last;
}

/* Returns 2^x within 2^-22; 0 for -infinity. All kernels use the same instruction. */
DEVICE float exp2_fast(float x) {
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Returns ln x for x > 0, within 2^-21.4 between 1/2 and 2, and 3 ulp elsewhere (CUDA's guide,
 * __logf); to be used for bounds only. */
DEVICE float approximate_log(float x) {
    return __logf(x);
}

/* Returns ln(1 + x) for x > -1, within 1 ulp (CUDA's guide, log1pf); to be used for bounds only. */
DEVICE float approximate_log1p(float x) {
    return log1pf(x);
}
#endif

/* Returns true if the block is the last of @n to arrive at @count; it then sees what the others
 * wrote before they arrived. */
DEVICE bool last_of(uint32_t *count, uint32_t n) {
    SHARED uint32_t is_last;

    sync_block();
    if (threadIdx.x == 0)
        is_last = arrive(count, 1, n);
    sync_block();
    return is_last;
}

/* Computes c += A B for 32 columns: @a0 and @a1 are the halves of A, @b the lane's part of B. */
DEVICE void mma_32(float c[4], const struct vec4 &a0, const struct vec4 &a1, const struct vec4 &b) {
    mma(c, a0.x, a0.y, a0.z, a0.w, b.x, b.y);
    mma(c, a1.x, a1.y, a1.z, a1.w, b.z, b.w);
}

/* Computes c = A B like mma_32(). */
DEVICE void mma_32_first(float c[4], const struct vec4 &a0, const struct vec4 &a1,
                         const struct vec4 &b) {
    mma_first(c, a0.x, a0.y, a0.z, a0.w, b.x, b.y);
    mma(c, a1.x, a1.y, a1.z, a1.w, b.z, b.w);
}

/* Returns word @i (0 .. 3) of @v. */
DEVICE uint32_t word_of(const struct vec4 &v, int i) {
    uint32_t low = i == 0 ? v.x : v.y, high = i == 2 ? v.z : v.w;

    return i < 2 ? low : high;
}

/* Loads four consecutive floats; @p is a multiple of 16 bytes. */
DEVICE void load_four(const float *p, float v[4]) {
    struct vec4 u = load16(p);

    v[0] = mx_float_of(u.x);
    v[1] = mx_float_of(u.y);
    v[2] = mx_float_of(u.z);
    v[3] = mx_float_of(u.w);
}

/* Loads two consecutive floats; @p is a multiple of 8 bytes. */
DEVICE void load_floats(const float *p, float v[2]) {
    uint32_t u[2];

    load8(p, u);
    v[0] = mx_float_of(u[0]);
    v[1] = mx_float_of(u[1]);
}

/* Loads N consecutive floats, two or four, in one access. */
template <int N> DEVICE void load_some(const float *p, float v[N]) {
    if constexpr (N == 4)
        load_four(p, v);
    else
        load_floats(p, v);
}

/* Stores N floats to @p. */
template <int N> DEVICE void store_some(float *p, const float v[N]) {
    if constexpr (N == 4) {
        store16(p, {mx_bits_of(v[0]), mx_bits_of(v[1]), mx_bits_of(v[2]), mx_bits_of(v[3])});
    } else {
        uint32_t two[2] = {mx_bits_of(v[0]), mx_bits_of(v[1])};

        store8(p, two);
    }
}

/* Returns @f rounded to half precision in the lower half-word; the upper one is 0. */
DEVICE uint32_t pack_half(float f) {
    return pack_halves(f, 0.0f) & 0xFFFFu;
}

/* Returns the larger of @x and @y. */
DEVICE uint64_t larger(uint64_t x, uint64_t y) {
    return y > x ? y : x;
}

/* Combines @v of the W warps of a block with @join, in a fixed order; @v is equal in all lanes of a
 * warp. Every thread gets the result. shared: [W]. */
template <int W, class T, class JOIN> DEVICE T join_warps(T v, T *shared, const JOIN &join) {
    sync_block();
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = v;
    sync_block();
    v = shared[0];
    for (int i = 1; i < W; i++)
        v = join(v, shared[i]);
    return v;
}

/* Returns the sum of a value over the 32 W threads of a block. */
template <int W> DEVICE float block_sum(float v, float *shared) {
    return join_warps<W>(warp_sum(v), shared, [](float x, float y) { return x + y; });
}

/* Returns the largest value of the 32 W threads of a block. */
template <int W> DEVICE uint64_t block_max(uint64_t v, uint64_t *shared) {
    return join_warps<W>(warp_max(v), shared, larger);
}

/* Returns true for a block that may end before wait_for_previous() if it has no work. */
DEVICE bool may_exit() {
    return blockIdx.x + blockIdx.y > 0;
}

/* Defines a kernel whose block blockIdx.x works on the row of that number of the batch, which its
 * body has as `r`; blocks beyond the batch do nothing. */
#define ROW_KERNEL(NAME, ARGS, threads, blocks)                                                    \
    DEVICE void NAME##_body(const ARGS &a, uint32_t r);                                            \
    KERNEL(NAME, ARGS, threads, blocks) {                                                          \
        bool works = blockIdx.x < a.batch->n_rows;                                                 \
                                                                                                   \
        if (!works && may_exit())                                                                  \
            return;                                                                                \
        wait_for_previous();                                                                       \
        if (works)                                                                                 \
            NAME##_body(a, blockIdx.x);                                                            \
    }                                                                                              \
    DEVICE void NAME##_body(const ARGS &a, uint32_t r)
