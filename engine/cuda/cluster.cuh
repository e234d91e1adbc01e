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

/* Stores a float where block @rank has what is at @p in this block, in dynamic shared memory. */
DEVICE void cluster_store(float *p, uint32_t rank, float v) {
    asm volatile("{\n\t.reg .u32 to;\n\t"
                 "mapa.shared::cluster.u32 to, %0, %1;\n\t"
                 "st.shared::cluster.f32 [to], %2;\n\t}" ::"r"(shared_place(p)),
                 "r"(rank), "f"(v)
                 : "memory");
}
#endif
