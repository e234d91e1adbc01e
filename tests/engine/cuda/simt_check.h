#pragma once

/*
 * simt_check - checks every memory access of a kernel in the emulator (simt.h), and aborts if a
 * device might have made the accesses in another order with another result. The kernels are
 * compiled with the instrumentation of -fsanitize=thread; this file provides the functions that it
 * calls.
 *
 * It reports, with kernel, block, thread and address:
 *
 *     races        Two threads of a block access a byte, one of them writes, and no sync_block()
 *                  separates the accesses, nor an arrival at a barrier and a wait for its phase.
 *                  Inside a warp sync_warp() suffices; shuffles and mma order nothing. Or two
 *                  blocks of a launch access a byte of device memory and one writes, unless the
 *                  first accessed it before the barrier that precedes its arrive(), and the second
 *                  after a barrier that follows the answer that it is last.
 *     early reads  A read of shared memory that this block has not written; of the target of an
 *                  asynchronous copy that has not been waited for, for a bulk copy by the thread
 *                  itself; before wait_for_previous(), of data that an earlier kernel may write,
 *                  or that was different when the block ran ahead (simt_run_ahead()).
 *     addresses    An address outside every allocation of the device, in freed memory, in a static
 *                  variable, or not aligned to the size of the access. Memory of another device,
 *                  except for reads by the kernels that exchange shares, if the device reaches it.
 *                  Pinned memory, except for the kernels in reaches_host().
 *     clusters     An access to the memory of another block of the cluster before the cluster has
 *                  met once, or that is not ordered before the end of that block. Static shared
 *                  memory, of which there is one only.
 *     divergence   Lanes of a warp at different instructions of the warp, or threads of a block at
 *                  different barriers.
 *
 * For each four bytes, a cell stores the last write and the last reads by two threads. So every
 * report is true, but an earlier reader may be forgotten. Without the instrumentation, as in builds
 * with a sanitizer, only divergence is checked.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct simt_kernel;

enum simt_space { SIMT_DEVICE, SIMT_PINNED };

#ifdef __cplusplus
extern "C" {
#endif

/* Registers memory that the runtime has allocated. From the first call on, addresses are
 * checked. */
void simt_memory_add(const void *p, size_t n, enum simt_space space);
void simt_memory_drop(const void *p);
/* Returns the space of @p, or -1 if it is in no allocation. */
int simt_memory_space(const void *p);
/* Sets the device, initially 0: memory added from now on belongs to it, and kernels launched run on
 * it. Kernels may not access memory of other devices, except for reads by the kernels that exchange
 * shares from devices that simt_reach() has connected. */
void simt_device(int device);
void simt_reach(int device, int other, bool reached);
/* Returns the device whose memory @p is in, or -1. */
int simt_memory_device(const void *p);
/* Tells that no kernel is still writing: the host has waited for the device, or a kernel is
 * launched without programmatic dependent launch. */
void simt_settled(void);
/* Sets how many blocks of each launch that follows are looked at, spread over its grid; reads of
 * what the others write count as ordered. */
void simt_look(uint32_t n_blocks);

#ifdef __cplusplus
}

#define SIMT_THREADS 2048u /* most threads of a cluster, 8 blocks of 256 */
#define SIMT_BARRIERS 32u  /* most barriers for bulk copies of a cluster */

struct simt_lane { /* the thread that runs */
    /* its stack, whose accesses are not checked; SIZE_MAX bytes: all memory */
    const uint8_t *stack;
    size_t stack_bytes;
    /* thread: counted over the blocks of its cluster */
    uint32_t thread, n_warp_syncs;
    /* has called wait_for_previous() */
    bool waited;
    /* has written shared memory since its last fence, so wgmma does not see the writes */
    bool hidden;
    /* time of its last bulk_publish(); of the last barrier of many threads at which it was */
    uint64_t fenced, met;
    /* phases of its cluster's barrier that it has waited for */
    uint32_t n_meetings;
    /* next phase to wait for, of each barrier */
    uint32_t phases[SIMT_BARRIERS];
};

extern struct simt_lane *simt_lane;
extern bool simt_looks; /* at the block that runs */
/* the block runs ahead of its launch: its accesses are not compared with those of others */
extern bool simt_is_ahead;
/* sum of digests of what the block has read before it waited; closed: not continued */
extern struct simt_seen {
    uint64_t sum;
    bool closed;
} simt_seen;

/* Message of a thread that arrives at a barrier to those that wait for it: its own accesses up to
 * time @own, and those of the warp's other lanes before @all, the time of the warp's last
 * sync_warp(). */
struct simt_arrival {
    uint64_t own, all;
    uint32_t thread;
};

enum simt_access { SIMT_READ, SIMT_WRITE, SIMT_ATOMIC };

[[noreturn]] void simt_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
void simt_check_launch(const struct simt_kernel *k, const void *args, uint32_t shared);
/* Returns true if block @block of @n will be looked at. */
bool simt_will_look(uint32_t block, uint32_t n);
/* Begins block @block of @n, or cluster. */
void simt_check_block(uint32_t block, uint32_t n);
void simt_check_barrier();
/* Return the time; record that all lanes of the running thread's warp are at sync_warp(), or that
 * @n threads from @first on are at a barrier. */
uint64_t simt_check_time();
void simt_check_warp();
void simt_check_some(uint32_t first, uint32_t n);
/* Returns what the running thread tells where it arrives; records that thread @thread has been
 * told. */
struct simt_arrival simt_check_leave();
void simt_check_learn(uint32_t thread, const struct simt_arrival *from);
/* Records that the lanes of the running thread's warp arrive at phase @phase of their cluster's
 * barrier, for which a thread has waited once its n_meetings is larger. */
void simt_check_cluster_arrival(uint32_t phase);
/* Checks that the thread, which ends, knows of all accesses of other blocks of the cluster to the
 * memory of its block, @rank. */
void simt_check_left(uint32_t rank);
void simt_check_access(const void *p, size_t n, enum simt_access kind, const void *pc);
/* Returns true if @p is in shared memory. */
bool simt_is_shared(const void *p);
/* Records that the thread has arrived at @count; @last is the answer. */
void simt_check_arrival(const void *count, bool last);
/* Records that an asynchronous copy to shared memory has started, or has completed. */
void simt_check_pending(const void *to, size_t n, bool pending, const void *pc);
/* Records a bulk_publish() of the thread. */
void simt_check_fence();
/* Checks that [p, p + n) is memory of the device, for a prefetch, which is no access. */
void simt_check_prefetch(const void *p, size_t n);
/* Records the start of a bulk copy; or its completion in phase @phase of barrier @bar. */
void simt_check_bulk(const void *to, const void *from, size_t n, const void *pc);
void simt_check_came(const void *to, size_t n, uint32_t bar, uint32_t phase);
/* Records that a wgmma product reads shared memory. */
void simt_check_product(const void *p, size_t n, const void *pc);
/* Returns true if bulk copies were the last to write all of it. */
bool simt_check_in_bulk(const void *p, size_t n);
#endif
