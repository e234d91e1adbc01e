#pragma once

/*
 * bulk - bulk asynchronous copies from global to shared memory. One thread starts them; a barrier
 * in shared memory (mbarrier) counts the bytes that have arrived. Available on server devices from
 * sm_90 on. The tests emulate these functions (tests/engine/cuda/simt.h).
 */

#include "engine/cuda/device.cuh"

#ifdef WEFT_SIMT
#define WEFT_BULK 1
#elif __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
#define WEFT_BULK 1

/* Initialises barrier @bar and begins its first phase. One thread calls it. A phase ends when
 * bulk_expect() and bulk_arrive() were called @n times and the announced bytes have arrived. */
DEVICE void bulk_init(uint64_t *bar, uint32_t n = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_place(bar)), "r"(n)
                 : "memory");
}

/* Orders earlier accesses of threads to shared memory before later bulk copies. Bulk copies use the
 * async proxy, which a block barrier alone does not order against. Call it after bulk_init() and
 * before the sync_block() that publishes the barrier. The thread that starts a copy also calls it
 * after the sync_block() that ends the accesses of other threads to the destination. */
DEVICE void bulk_publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Announces that the copies of the current phase of @bar have @bytes bytes in all. One thread calls
 * it. */
DEVICE void bulk_expect(uint64_t *bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_place(bar)),
                 "r"(bytes)
                 : "memory");
}

/* Arrives at barrier @bar: a thread that waits for the phase sees what this thread did before. */
DEVICE void bulk_arrive(uint64_t *bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_place(bar)) : "memory");
}

/* Starts to copy @n bytes to shared memory; addresses and @n are multiples of 16. Accesses to the
 * destination must have ended: sync_block(), then bulk_publish(). sync_block() alone suffices if
 * only wgmma has read it, which uses the async proxy itself. */
DEVICE void bulk_copy(void *to, const void *from, uint32_t n, uint64_t *bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_place(to)),
        "l"(from), "r"(n), "r"(shared_place(bar))
        : "memory");
}

/* Waits for the end of phase @phase of @bar, counted from 0. The data is visible only to threads
 * that have waited themselves. A thread must not be two phases late, since the barrier tells phases
 * apart only by parity. */
DEVICE void bulk_wait(uint64_t *bar, uint32_t phase) {
    uint32_t done;

    do
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(shared_place(bar)), "r"(phase & 1)
                     : "memory");
    while (!done);
}
#endif
