#pragma once

/*
 * cluster - blocks of a kernel that run together and may write to each other's shared memory
 * (KERNEL_CLUSTER). Available from sm_90 on. The tests emulate these functions
 * (tests/engine/cuda/simt.h).
 *
 * A block may write to another one's memory only after the cluster has met once, because the other
 * one may not have begun, and must let the cluster meet again afterwards, because that one must not
 * have ended. Kernels of clusters have no static shared memory, of which the emulator has one only.
 */

#include "engine/cuda/device.cuh"

#ifdef WEFT_SIMT
#define WEFT_CLUSTERS 1
#elif __CUDA_ARCH__ >= 900
#define WEFT_CLUSTERS 1

/* Arrives at the barrier of the cluster's threads, and waits until all have arrived: they see what
 * the others did before they arrived. All lanes of a warp call each of both, and in turns. */
DEVICE void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

DEVICE void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Returns the number of the block in its cluster. */
DEVICE uint32_t cluster_rank() {
    uint32_t rank;

    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Makes barriers that this thread has initialised known to the cluster: bulk_init(), this function,
 * then the cluster meets. */
DEVICE void cluster_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async;" ::: "memory");
}

/* Starts to copy @n bytes from global memory to the place of @to in each block of @ranks, a bit for
 * each. The barrier at @bar's place in each of them counts its bytes, also before it was told to
 * expect them in this phase. Addresses and @n are multiples of 16. */
DEVICE void cluster_copy(void *to, const void *from, uint32_t n, uint64_t *bar, uint32_t ranks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared_place(to)),
                 "l"(from), "r"(n), "r"(shared_place(bar)), "h"((uint16_t)ranks)
                 : "memory");
}

/* Arrives at the barrier at @bar's place in block @rank, whose threads wait for it by
 * cluster_bulk_wait(). */
DEVICE void cluster_bulk_arrive(uint64_t *bar, uint32_t rank) {
    asm volatile("{\n\t.reg .u32 to;\n\t"
                 "mapa.shared::cluster.u32 to, %0, %1;\n\t"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [to];\n\t}" ::"r"(
                     shared_place(bar)),
                 "r"(rank)
                 : "memory");
}

/* Waits as bulk_wait() does, for arrivals of other blocks, too. */
DEVICE void cluster_bulk_wait(uint64_t *bar, uint32_t phase) {
    uint32_t done;

    do
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(shared_place(bar)), "r"(phase & 1)
                     : "memory");
    while (!done);
}

/* Stores a float where block @rank has what is at @p in this block, in dynamic shared memory. */
DEVICE void cluster_store(float *p, uint32_t rank, float v) {
    asm volatile("{\n\t.reg .u32 to;\n\t"
                 "mapa.shared::cluster.u32 to, %0, %1;\n\t"
                 "st.shared::cluster.f32 [to], %2;\n\t}" ::"r"(shared_place(p)),
                 "r"(rank), "f"(v)
                 : "memory");
}
#endif
