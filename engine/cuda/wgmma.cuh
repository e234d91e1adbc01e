#pragma once

/*
 * wgmma - Hopper's asynchronous products of a warpgroup (four warps): d += A B, 64 x 16 by 16 x N.
 * A comes from registers, in the layout of mma, 16 rows for each warp; B from shared memory. Until
 * wgmma_wait() covers a product, its operands must not be written and d must not be read. Tests on
 * the CPU define these names differently (tests/engine/cuda/simt.h).
 */

#include "engine/cuda/device.cuh"

#ifndef WEFT_SIMT

/* The accumulators of a thread: N / 2 floats d[4 j + i], where column block j is like c[i] of
 * mma. */
#define WGMMA_D24 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"
#define WGMMA_D32 WGMMA_D24 ", %12, %13, %14, %15"
#define WGMMA_D48 WGMMA_D32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_D64 WGMMA_D48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_D96                                                                                  \
    WGMMA_D64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_D128                                                                                 \
    WGMMA_D96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_F24 WGMMA_F4(0), WGMMA_F4(4), WGMMA_F4(8)
#define WGMMA_F32 WGMMA_F24, WGMMA_F4(12)
#define WGMMA_F48 WGMMA_F32, WGMMA_F4(16), WGMMA_F4(20)
#define WGMMA_F64 WGMMA_F48, WGMMA_F4(24), WGMMA_F4(28)
#define WGMMA_F96 WGMMA_F64, WGMMA_F4(32), WGMMA_F4(36), WGMMA_F4(40), WGMMA_F4(44)
#define WGMMA_F128 WGMMA_F96, WGMMA_F4(48), WGMMA_F4(52), WGMMA_F4(56), WGMMA_F4(60)
#define WGMMA(N, A0, A1, A2, A3, B)                                                                \
    DEVICE void wgmma_n##N(float d[N / 2], const uint32_t a[4], uint64_t b) {                      \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" WGMMA_D##N         \
                     "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", 1, 1, 1, 0;"                     \
                     : WGMMA_F##N                                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }
/* d = a b: what d was does not matter. */
#define WGMMA_W4(i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3])
#define WGMMA_W32 WGMMA_W4(0), WGMMA_W4(4), WGMMA_W4(8), WGMMA_W4(12)
#define WGMMA_W64 WGMMA_W32, WGMMA_W4(16), WGMMA_W4(20), WGMMA_W4(24), WGMMA_W4(28)
#define WGMMA_FIRST(N, A0, A1, A2, A3, B)                                                          \
    DEVICE void wgmma_first_n##N(float d[N / 2], const uint32_t a[4], uint64_t b) {                \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" WGMMA_D##N         \
                     "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", 0, 1, 1, 0;"                     \
                     : WGMMA_W##N                                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }

/* Only sm_90a has these instructions. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
WGMMA_FIRST(32, "%16", "%17", "%18", "%19", "%20")
WGMMA_FIRST(64, "%32", "%33", "%34", "%35", "%36")
WGMMA(24, "%12", "%13", "%14", "%15", "%16")
WGMMA(32, "%16", "%17", "%18", "%19", "%20")
WGMMA(48, "%24", "%25", "%26", "%27", "%28")
WGMMA(64, "%32", "%33", "%34", "%35", "%36")
WGMMA(96, "%48", "%49", "%50", "%51", "%52")
WGMMA(128, "%64", "%65", "%66", "%67", "%68")

/* Compiler barrier for registers. The compiler believes that a product is complete where it is
 * issued, and might move accesses to its registers across. wgmma_hold() keeps writes of @v before
 * it and reads of @v after it: it belongs between writing operands and wgmma_begin(), and between
 * wgmma_wait() and reading sums. */
template <uint32_t N> DEVICE void wgmma_hold(uint32_t (&v)[N]) {
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        asm volatile("" : "+r"(v[i])::"memory");
}

template <uint32_t N> DEVICE void wgmma_hold(float (&v)[N]) {
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        asm volatile("" : "+f"(v[i])::"memory");
}

/* Orders earlier writes of registers before the products that follow. */
DEVICE void wgmma_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Makes a group of the products since the last commit. */
DEVICE void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until all but the last N groups are complete. The sums of the complete ones may then be
 * read, and their operands be written. */
template <int N> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Lowers the number of registers of a thread to N, a multiple of 8; called by all warps of a
 * warpgroup. */
template <int N> DEVICE void wgmma_fewer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* Raises the number of registers likewise, and waits until enough are free. */
template <int N> DEVICE void wgmma_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* Barrier of @n threads of the block, those of its first warps. */
DEVICE void wgmma_sync(uint32_t n) {
    asm volatile("bar.sync 1, %0;" ::"r"(n) : "memory");
}
#endif
#endif

/* Returns the address of offset @at of the dynamic shared memory in units of 16 bytes, as a
 * descriptor of B has it. */
DEVICE uint32_t wgmma_place(uint32_t at) {
    return (shared_start() + at) >> 4; /* below 2^14 */
}

/* Returns the descriptor of B at @place: K-major without swizzle, core matrices of 8 columns by 8
 * halves of 128 bytes each. The next core along K is @along_k bytes further, along N @along_n. */
DEVICE uint64_t wgmma_operand(uint32_t place, uint32_t along_k, uint32_t along_n) {
    return (uint64_t)(along_n >> 4) << 32 | (place + (along_k >> 4 << 16));
}
