/*
 * micro - kernels of micro.c: an empty kernel, a reader of the L2 cache, products by mma.sync and
 * by wgmma, and a comparison of both bit for bit. Compiled for sm_90a if the device is a Hopper;
 * otherwise the kernels with wgmma do nothing.
 */

#include "engine/cuda/device.cuh"
#include "tests/gpu/micro.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

KERNEL(nothing, struct nothing_args, CUDA_THREADS, 2) {
    wait_for_previous();
    if (a.never)
        *a.never = 1;
}

KERNEL(reread, struct reread_args, CUDA_THREADS, 2) {
    uint32_t sum = 0, step = gridDim.x * CUDA_THREADS * 64;

    for (uint32_t t = 0; t < a.n_times; t++)
        for (uint32_t at = (blockIdx.x * CUDA_THREADS + threadIdx.x) * 64; at < a.bytes;
             at += step) {
            struct vec4 v[4];

#pragma unroll
            for (int i = 0; i < 4; i++)
                asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)
                             : "l"(a.data + at + 16 * i));
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
        }
    if (sum == 0x12345678u)
        *a.out = sum;
}

/* Computes, in each warp, eight independent products of 16 x 16 by 16 x 8 at a time. */
KERNEL(mma_rate, struct rate_args, MICRO_THREADS, 4) {
    float c[8][4] = {};
    uint32_t x = 0x3C003C00u + threadIdx.x;

    for (uint32_t i = 0; i < a.n; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            mma(c[j], x, x, x, x, x, x);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
        sum += c[j][0] + c[j][1] + c[j][2] + c[j][3];
    if (sum == 1.2345f)
        *a.out = sum;
}

#if HAS_WGMMA
/* Accumulators of a thread: N / 2 floats d[4 j + i], where i has the meaning of c[i] of mma() in
 * column block j. */
#define D8 "%0, %1, %2, %3"
#define D16 D8 ", %4, %5, %6, %7"
#define D32 D16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define D64 D32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D128                                                                                       \
    D64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, "  \
        "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D256                                                                                       \
    D128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
         "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "   \
         "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
         "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "    \
         "%126, %127"
#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F8 F4(0)
#define F16 F8, F4(4)
#define F32 F16, F4(8), F4(12)
#define F64 F32, F4(16), F4(20), F4(24), F4(28)
#define F128 F64, F4(32), F4(36), F4(40), F4(44), F4(48), F4(52), F4(56), F4(60)
#define F256                                                                                       \
    F128, F4(64), F4(68), F4(72), F4(76), F4(80), F4(84), F4(88), F4(92), F4(96), F4(100),         \
        F4(104), F4(108), F4(112), F4(116), F4(120), F4(124)

template <int N> struct wgmma;
#define WGMMA(N, A0, A1, A2, A3, B)                                                                \
    template <> struct wgmma<N> {                                                                  \
        static __device__ __forceinline__ void add(float *d, const uint32_t x[4], uint64_t b) {    \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" D##N           \
                         "}, "                                                                     \
                         "{" A0 ", " A1 ", " A2 ", " A3 "}, " B ", 1, 1, 1, 0;"                    \
                         : F##N                                                                    \
                         : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(b));                    \
        }                                                                                          \
    }
WGMMA(8, "%4", "%5", "%6", "%7", "%8");
WGMMA(16, "%8", "%9", "%10", "%11", "%12");
WGMMA(32, "%16", "%17", "%18", "%19", "%20");
WGMMA(64, "%32", "%33", "%34", "%35", "%36");
WGMMA(128, "%64", "%65", "%66", "%67", "%68");
WGMMA(256, "%128", "%129", "%130", "%131", "%132");

DEVICE void wgmma_begin() {
    asm volatile("fence.proxy.async;\n\twgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void wgmma_end() {
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::
                     : "memory");
}

/* Returns the descriptor of matrix B in shared memory, K-major, without swizzle. B consists of
 * cores of 8 columns by 8 numbers of half precision, 128 bytes each; the next core along K is
 * @along_k bytes further, the next one along N @along_n bytes (PTX ISA, "Matrix Descriptor"). */
DEVICE uint64_t wgmma_descriptor(const void *p, uint32_t along_k, uint32_t along_n) {
    uint64_t at = (uint32_t)__cvta_generic_to_shared(p);

    return (at & 0x3FFFF) >> 4 | (uint64_t)(along_k >> 4) << 16 | (uint64_t)(along_n >> 4) << 32;
}
#endif

template <int N> DEVICE void wgmma_rate(const struct rate_args &a) {
#if HAS_WGMMA
    SHARED __align__(128) uint16_t b[N * 16];
    float d[N / 2] = {};
    uint32_t x[4] = {0x3C003C00u + threadIdx.x, 0x3C003C00u, 0x3C003C00u, 0x3C003C00u};

    for (uint32_t i = threadIdx.x; i < N * 16; i += MICRO_THREADS)
        b[i] = 0x3C00;
    sync_block();
    uint64_t at = wgmma_descriptor(b, 128, 256);
    for (uint32_t i = 0; i < a.n; i += 8) {
        wgmma_begin();
#pragma unroll
        for (int j = 0; j < 8; j++)
            wgmma<N>::add(d, x, at);
        wgmma_end();
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sum += d[i];
    if (sum == 1.2345f)
        *a.out = sum;
#endif
}

template <int N> DEVICE void wgmma_bits(const struct wgmma_bits_args &a) {
#if HAS_WGMMA
    SHARED __align__(128) uint16_t shared[MICRO_K / 16][N * 16];
    const uint16_t *rows = a.a + (size_t)blockIdx.x * 64 * MICRO_K;
    const uint16_t *columns = a.b + (size_t)blockIdx.x * N * MICRO_K;
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, row = threadIdx.x / 32 * 16 + g;
    float d[N / 2] = {};

    for (uint32_t i = threadIdx.x; i < N * MICRO_K; i += MICRO_THREADS) {
        uint32_t n = i / MICRO_K, k = i % MICRO_K, core = n / 8 * 2 + k % 16 / 8;

        shared[k / 16][core * 64 + n % 8 * 8 + k % 8] = columns[i];
    }
    sync_block();
    uint32_t x[MICRO_K / 16][4], k_bytes = a.swap ? 256 : 128, n_bytes = a.swap ? 128 : 256;
#pragma unroll
    for (int i = 0; i < MICRO_K / 4; i++)
        x[i / 4][i % 4] = *(const uint32_t *)(rows + (row + i % 2 * 8) * MICRO_K + i / 4 * 16 +
                                              i % 4 / 2 * 8 + 2 * t);
    wgmma_begin();
#pragma unroll
    for (int s = 0; s < MICRO_K / 16; s++)
        wgmma<N>::add(d, x[s], wgmma_descriptor(shared[s], k_bytes, n_bytes));
    wgmma_end();
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float c[4] = {};

        for (int s = 0; s < MICRO_K / 16; s++) {
            const uint16_t *r = rows + row * MICRO_K + s * 16 + 2 * t;
            const uint16_t *col = columns + (j * 8 + g) * MICRO_K + s * 16 + 2 * t;

            mma(c, *(const uint32_t *)r, *(const uint32_t *)(r + 8 * MICRO_K),
                *(const uint32_t *)(r + 8), *(const uint32_t *)(r + 8 * MICRO_K + 8),
                *(const uint32_t *)col, *(const uint32_t *)(col + 8));
        }
        for (int i = 0; i < 4; i++) {
            float sum = 0, size = 0;

            for (int k = 0; k < MICRO_K; k++) {
                float p = half_to_float(rows[(row + i / 2 * 8) * MICRO_K + k]) *
                          half_to_float(columns[(j * 8 + 2 * t + i % 2) * MICRO_K + k]);
                sum += p;
                size += fabsf(p);
            }
            add_global(a.n_different, mx_bits_of(c[i]) != mx_bits_of(d[j * 4 + i]));
            add_global(a.n_wrong, !(fabsf(d[j * 4 + i] - sum) <= 1e-4f * size));
        }
    }
#endif
}

KERNEL(wgmma_rate_16, struct rate_args, MICRO_THREADS, 1) {
    wgmma_rate<16>(a);
}
KERNEL(wgmma_rate_64, struct rate_args, MICRO_THREADS, 1) {
    wgmma_rate<64>(a);
}
KERNEL(wgmma_rate_128, struct rate_args, MICRO_THREADS, 1) {
    wgmma_rate<128>(a);
}
KERNEL(wgmma_rate_256, struct rate_args, MICRO_THREADS, 1) {
    wgmma_rate<256>(a);
}
KERNEL(wgmma_bits_8, struct wgmma_bits_args, MICRO_THREADS, 1) {
    wgmma_bits<8>(a);
}
KERNEL(wgmma_bits_16, struct wgmma_bits_args, MICRO_THREADS, 1) {
    wgmma_bits<16>(a);
}
KERNEL(wgmma_bits_32, struct wgmma_bits_args, MICRO_THREADS, 1) {
    wgmma_bits<32>(a);
}
KERNEL(wgmma_bits_64, struct wgmma_bits_args, MICRO_THREADS, 1) {
    wgmma_bits<64>(a);
}
KERNEL(wgmma_bits_128, struct wgmma_bits_args, MICRO_THREADS, 1) {
    wgmma_bits<128>(a);
}
KERNEL(wgmma_bits_256, struct wgmma_bits_args, MICRO_THREADS, 1) {
    wgmma_bits<256>(a);
}
