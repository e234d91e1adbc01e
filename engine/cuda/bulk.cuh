#pragma once

/*
 * bulk - copies to shared memory that one lane starts and that a barrier in shared memory counts
 * (mbarrier). On servers' devices from sm_90 on. The tests have meanings of their own for these
 * names (tests/engine/cuda/simt.h).
 */

#include "engine/cuda/device.cuh"

#ifdef WEFT_SIMT
#define WEFT_BULK 1
#elif __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
#define WEFT_BULK 1

/* By one thread: @bar's first phase begins. A phase ends when bulk_expect() was called once and as
 * many bytes have come as it said. */
DEVICE void bulk_init(uint64_t *bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_place(bar)) : "memory");
}

/* Puts what threads did with shared memory before what copies in bulk do with it, which reach it
 * another way: behind bulk_init(), in front of the sync_block() that tells the others; and, by who
 * starts a copy to what threads have read or written, behind the sync_block() in front of it. */
DEVICE void bulk_publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* By one thread: what the phase of @bar brings is so many bytes in all. */
DEVICE void bulk_expect(uint64_t *bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_place(bar)),
                 "r"(bytes)
                 : "memory");
}

/* Starts to copy @n bytes to shared memory; places and @n are multiples of 16. No thread may still
 * read what lay there: a sync_block() and a bulk_publish() are between, or a sync_block() alone
 * where only products of wgmma read it. */
DEVICE void bulk_copy(void *to, const void *from, uint32_t n, uint64_t *bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_place(to)),
        "l"(from), "r"(n), "r"(shared_place(bar))
        : "memory");
}

/* Waits for the end of phase @phase of @bar, 0, 1, ..; only what the thread has waited for itself
 * may it read. Not two phases late: the barrier knows the parity alone. */
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
