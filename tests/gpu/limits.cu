/*
 * limits - kernels that reach what a Hopper can do (limits.h): the L2 cache by bulk copies, with
 * and without multicast in a cluster, and by coalesced loads; wgmma of random data, with A in
 * registers or in shared memory, that always has a group under way; the barrier of a cluster, and
 * reading another block's shared memory. Compiled for sm_90a; elsewhere they do nothing. Results
 * that do not depend on time are written, so that the interpreter of PTX can check them.
 */

#include "engine/cuda/bulk.cuh"
#include "engine/cuda/wgmma.cuh"
#include "tests/gpu/limits.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_HOPPER 1
#else
#define HAS_HOPPER 0
#endif

/* Defines a kernel whose clusters have @cluster blocks. */
#define LIMIT_KERNEL(NAME, ARGS, threads, cluster)                                                 \
    DEVICE void NAME##_kernel(const ARGS &a);                                                      \
    static __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, 1)           \
        NAME(const __grid_constant__ ARGS a, const uint32_t how) {                                 \
        NAME##_kernel(a);                                                                          \
    }                                                                                              \
    const void *const kernel_##NAME = (const void *)NAME;                                          \
    DEVICE void NAME##_kernel(const ARGS &a)

#if HAS_HOPPER
DEVICE uint32_t cluster_rank() {
    uint32_t r;

    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Starts to copy @n bytes to the same place in the shared memory of all C blocks of the cluster,
 * where each block's own barrier counts them. */
template <uint32_t C>
DEVICE void limit_copy(void *to, const void *from, uint32_t n, uint64_t *bar) {
    if (C == 1)
        return bulk_copy(to, from, n, bar);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared_place(to)),
                 "l"(from), "r"(n), "r"(shared_place(bar)), "h"((uint16_t)((1u << C) - 1))
                 : "memory");
}

/* Returns the exclusive or of the words of @n bytes of shared memory, in all threads of a block of
 * one warp or more; the caller adds up the threads. */
DEVICE uint32_t limit_fold(const uint8_t *p, uint32_t n) {
    uint32_t sum = 0;

    for (uint32_t i = threadIdx.x * 4; i < n; i += blockDim.x * 4)
        sum ^= *(const uint32_t *)(p + i);
    return sum;
}
#endif

/* Round t fills the ring's half t % 2 with LIMIT_STAGES chunks, of which each block of the cluster
 * copies its part to all. The other half is under way while the blocks meet: a half may be
 * overwritten when all blocks have waited for it. */
template <uint32_t C> DEVICE void limit_bulk(const struct limit_read_args &a) {
#if HAS_HOPPER
    constexpr uint32_t half = LIMIT_STAGES * LIMIT_CHUNK, part = LIMIT_CHUNK / C;
    SHARED uint64_t bar[2];
    uint8_t *ring = dynamic_shared();
    uint32_t rank = C == 1 ? 0 : cluster_rank(), n_chunks = a.bytes / LIMIT_CHUNK;
    uint32_t cluster = blockIdx.x / C, n_clusters = gridDim.x / C;

    auto fill = [&](uint32_t t) {
        bulk_expect(&bar[t % 2], half);
        for (uint32_t s = 0; s < LIMIT_STAGES; s++) {
            uint32_t chunk = ((t * LIMIT_STAGES + s) * n_clusters + cluster) % n_chunks;

            limit_copy<C>(ring + t % 2 * half + s * LIMIT_CHUNK + rank * part,
                          a.data + (size_t)chunk * LIMIT_CHUNK + rank * part, part, &bar[t % 2]);
        }
    };
    if (threadIdx.x == 0) {
        bulk_init(&bar[0]);
        bulk_init(&bar[1]);
        bulk_publish();
    }
    sync_block();
    if (C > 1)
        cluster_sync();
    for (uint32_t t = 0; t < 2 && t < a.n_times && threadIdx.x == 0; t++)
        fill(t);
    for (uint32_t t = 0; t < a.n_times; t++) {
        bulk_wait(&bar[t % 2], t / 2);
        if (t + 1 == a.n_times)
            break;
        if (C > 1)
            cluster_sync();
        else
            sync_block();
        if (threadIdx.x == 0 && t + 2 < a.n_times)
            fill(t + 2);
    }
    atomicXor(&a.out[blockIdx.x], limit_fold(ring + (a.n_times - 1) % 2 * half, half));
    if (C > 1)
        cluster_sync(); /* no block ends while another one copies to it */
#endif
}

LIMIT_KERNEL(limit_bulk_1, struct limit_read_args, LIMIT_THREADS, 1) {
    limit_bulk<1>(a);
}
LIMIT_KERNEL(limit_bulk_2, struct limit_read_args, LIMIT_THREADS, 2) {
    limit_bulk<2>(a);
}
LIMIT_KERNEL(limit_bulk_4, struct limit_read_args, LIMIT_THREADS, 4) {
    limit_bulk<4>(a);
}

/* Neighbouring threads load neighbouring 16 bytes, LIMIT_LOADS at a time. */
LIMIT_KERNEL(limit_loads, struct limit_read_args, LIMIT_THREADS, 1) {
#if HAS_HOPPER
    uint32_t step = gridDim.x * LIMIT_THREADS * 16, sum = 0;

    for (uint32_t t = 0; t < a.n_times; t++)
        for (uint32_t at = (blockIdx.x * LIMIT_THREADS + threadIdx.x) * 16; at < a.bytes;
             at += LIMIT_LOADS * step) {
            struct vec4 v[LIMIT_LOADS] = {};

#pragma unroll
            for (uint32_t i = 0; i < LIMIT_LOADS; i++)
                if (at + i * step < a.bytes)
                    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)
                                 : "l"(a.data + at + i * step));
#pragma unroll
            for (uint32_t i = 0; i < LIMIT_LOADS; i++)
                sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
        }
    atomicXor(&a.out[0], sum);
#endif
}

#if HAS_HOPPER
/* Returns two halves from -2 to 2, without zeros and subnormal numbers, from a number's hash. */
DEVICE uint32_t limit_halves(uint32_t i) {
    i = (i ^ i >> 16) * 0x7FEB352Du;
    i = (i ^ i >> 15) * 0x846CA68Bu;
    i ^= i >> 16;
    return (i & 0x87FF87FFu) | 0x38003800u;
}

#define LIMIT_SS(N, A, B)                                                                          \
    DEVICE void wgmma_shared_n##N(float d[N / 2], uint64_t a, uint64_t b) {                        \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" WGMMA_D##N         \
                     "}, " A ", " B ", 1, 1, 1, 0, 0;"                                             \
                     : WGMMA_F##N                                                                  \
                     : "l"(a), "l"(b));                                                            \
    }
LIMIT_SS(64, "%32", "%33")
LIMIT_SS(128, "%64", "%65")

template <int N> DEVICE void limit_product(float (&d)[N / 2], const uint32_t x[4], uint64_t b) {
    if constexpr (N == 64)
        wgmma_n64(d, x, b);
    else
        wgmma_n128(d, x, b);
}

template <int N> DEVICE void limit_product(float (&d)[N / 2], uint64_t a, uint64_t b) {
    if constexpr (N == 64)
        wgmma_shared_n64(d, a, b);
    else
        wgmma_shared_n128(d, a, b);
}
#endif

/* Multiplies by the LIMIT_STEPS slices of 16 columns of B in turn, for groups of LIMIT_STEPS
 * products of which one is always under way. FROM_SHARED: A comes from shared memory, too. Both
 * have the same operands, so their sums have the same bits; those of block 0 are written. */
template <int N, bool FROM_SHARED> DEVICE void limit_wgmma(const struct limit_rate_args &a) {
#if HAS_HOPPER
    uint32_t *b = (uint32_t *)dynamic_shared(), *rows = b + LIMIT_STEPS * N * 8;
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4;
    float d[N / 2] = {};
    uint32_t x[LIMIT_STEPS][4];

    for (uint32_t i = threadIdx.x; i < LIMIT_STEPS * N * 8; i += blockDim.x)
        b[i] = limit_halves(i);
    /* Cores of 8 rows by 8 halves, two along K, then the next 8 rows. */
    for (uint32_t i = threadIdx.x; i < LIMIT_STEPS * 64 * 8; i += blockDim.x)
        rows[i] = limit_halves(i + 77777);
#pragma unroll
    for (uint32_t s = 0; s < LIMIT_STEPS; s++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t core = (warp * 2 + i % 2) * 2 + i / 2;

            x[s][i] = limit_halves(s * 512 + core * 32 + g * 4 + t + 77777);
        }
    bulk_publish(); /* wgmma reads through the async proxy */
    sync_block();
    uint32_t at_b = wgmma_place(0), at_a = wgmma_place(LIMIT_STEPS * N * 32);
    for (uint32_t n = 0; n < a.n; n++) {
        wgmma_hold(d);
#pragma unroll
        for (uint32_t s = 0; s < LIMIT_STEPS; s++)
            wgmma_hold(x[s]);
        wgmma_begin();
#pragma unroll
        for (uint32_t s = 0; s < LIMIT_STEPS; s++) {
            uint64_t columns = wgmma_operand(at_b + s * N * 2, 128, 256);

            if (FROM_SHARED)
                limit_product<N>(d, wgmma_operand(at_a + s * 128, 128, 256), columns);
            else
                limit_product<N>(d, x[s], columns);
        }
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    wgmma_hold(d);
    if (blockIdx.x == 0 && threadIdx.x < 128)
#pragma unroll
        for (uint32_t i = 0; i < N / 2; i++)
            a.out[threadIdx.x * (N / 2) + i] = d[i];
#endif
}

LIMIT_KERNEL(limit_registers_64, struct limit_rate_args, 256, 1) {
    limit_wgmma<64, false>(a);
}
LIMIT_KERNEL(limit_registers_128, struct limit_rate_args, 256, 1) {
    limit_wgmma<128, false>(a);
}
LIMIT_KERNEL(limit_shared_64, struct limit_rate_args, 256, 1) {
    limit_wgmma<64, true>(a);
}
LIMIT_KERNEL(limit_shared_128, struct limit_rate_args, 256, 1) {
    limit_wgmma<128, true>(a);
}

/* Meets @n times; the blocks of a cluster count their rounds. */
template <uint32_t C> DEVICE void limit_meet(const struct limit_meet_args &a) {
#if HAS_HOPPER
    for (uint32_t i = 0; i < a.n; i++)
        cluster_sync();
    if (threadIdx.x == 0)
        atomicAdd(&a.out[blockIdx.x / C], a.n);
#endif
}

LIMIT_KERNEL(limit_meet_2, struct limit_meet_args, LIMIT_THREADS, 2) {
    limit_meet<2>(a);
}
LIMIT_KERNEL(limit_meet_8, struct limit_meet_args, LIMIT_THREADS, 8) {
    limit_meet<8>(a);
}

/* Reads the LIMIT_CHUNK bytes of the next block's shared memory @n times. */
LIMIT_KERNEL(limit_far, struct limit_meet_args, LIMIT_THREADS, 2) {
#if HAS_HOPPER
    uint32_t *own = (uint32_t *)dynamic_shared(), far, sum = 0;

    for (uint32_t i = threadIdx.x; i < LIMIT_CHUNK / 4; i += LIMIT_THREADS)
        own[i] = i * 2654435761u + blockIdx.x;
    cluster_sync();
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(far)
                 : "r"(shared_place(own)), "r"(cluster_rank() ^ 1));
    for (uint32_t n = 0; n < a.n; n++)
#pragma unroll
        for (uint32_t i = 0; i < LIMIT_CHUNK / 16 / LIMIT_THREADS; i++) {
            struct vec4 v;

            asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "r"(far + (i * LIMIT_THREADS + threadIdx.x) * 16));
            sum += v.x ^ v.y ^ v.z ^ v.w;
        }
    atomicXor(&a.out[blockIdx.x], sum);
    cluster_sync(); /* the next block's memory must live until it was read */
#endif
}
