#pragma once

/*
 * simt_check - looks at every access of a kernel, in the order in which the emulator happens to
 * make it, and aborts when a device might have seen it otherwise. The kernels are compiled with the
 * hooks of -fsanitize=thread; this is what they call, in place of its library.
 *
 * What stops a test, with kernel, block, thread and address:
 *
 *     races        two threads of a block touch a byte, one writes, and no sync_block() lies
 *     between them (sync_warp()
 *                  is enough inside a warp; shuffles and mma are not: they order nothing); two
 *                  blocks of a launch touch a byte of device memory and one writes, unless the
 *                  first did so before the barrier in front of its arrive() and the second behind a
 *                  barrier after it was told that it is the last
 *     early reads  shared memory that this block has not written; the target of an asynchronous
 *     copy that has
 *                  not been waited for, of one in bulk by the thread itself; above
 *                  wait_for_previous(), what a kernel may still be writing
 *     addresses    outside every allocation of the device, in freed memory or static variables, of
 *                  another device (but that kernels of shares read those which theirs
 *                  reaches), in pinned memory (but for copy_page, hand_over, combine, residual,
 *                  ngram_ask, and those that make, bring and multiply experts), not a multiple of
 *                  the size of the access
 *     divergence   lanes of a warp (threads of a block) at different instructions of the warp
 *     (barriers)
 *
 * A cell stands for four bytes and remembers the last write and the last reads by two threads: what
 * it reports is true, but an earlier reader may be forgotten. Without the hooks, as in builds with
 * a sanitizer, there is none of this but divergence.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum simt_space { SIMT_DEVICE, SIMT_PINNED };

#ifdef __cplusplus
extern "C" {
#endif

/* What the runtime has allocated: with the first call addresses are checked. */
void simt_memory_add(const void *p, size_t n, enum simt_space space);
void simt_memory_drop(const void *p);
/* The space of @p, -1: neither. */
int simt_memory_space(const void *p);
/* What is added from now on is memory of that device, and what is launched runs there: kernels
 * reach no other's, but that the one which is made for it reads what its device reaches. 0 at
 * first. */
void simt_device(int device);
void simt_reach(int device, int other, bool reached);
/* Whose memory @p is, -1: none. */
int simt_memory_device(const void *p);
/* Says that nothing is being written: the host has waited for the device, or a kernel is not
 * launched early. */
void simt_settled(void);
/* Sets how many blocks of each launch that follows are looked at, spread over its grid; reads of
 * what the others write count as ordered. */
void simt_look(uint32_t n_blocks);

#ifdef __cplusplus
}

#define SIMT_BARRIERS 16u /* of copies in bulk, that a block has at most */

struct simt_lane {        /* the thread that runs */
    const uint8_t *stack; /* what is in it is not looked at: the thread's own, or all memory */
    size_t stack_bytes;
    uint32_t thread, n_warp_syncs;
    bool waited;     /* for the kernel before */
    bool hidden;     /* has written shared memory that products of wgmma do not see yet */
    uint64_t fenced; /* when it was at its last bulk_publish() */
    uint32_t phases[SIMT_BARRIERS]; /* of each barrier that it has waited for */
};

extern struct simt_lane *simt_lane;
extern bool simt_looks; /* at the block that runs */

enum simt_access { SIMT_READ, SIMT_WRITE, SIMT_ATOMIC };

[[noreturn]] void simt_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
void simt_check_launch(const char *kernel, const void *args, size_t args_size, uint32_t shared);
/* Begins block @block of @n. */
void simt_check_block(uint32_t block, uint32_t n);
void simt_check_barrier();
void simt_check_access(const void *p, size_t n, enum simt_access kind, const void *pc);
/* Whether @p lies in shared memory. */
bool simt_is_shared(const void *p);
/* The thread has arrived at @count, and is the last or not. */
void simt_check_arrival(const void *count, bool last);
/* An asynchronous copy to shared memory is under way, or there. */
void simt_check_pending(const void *to, size_t n, bool pending, const void *pc);
/* The thread's bulk_publish(). */
void simt_check_fence();
/* @n bytes from @p on are asked for: not an access, but they must be the device's. */
void simt_check_prefetch(const void *p, size_t n);
/* A copy in bulk is under way, or has come with phase @phase of barrier @bar. */
void simt_check_bulk(const void *to, const void *from, size_t n, const void *pc);
void simt_check_came(const void *to, size_t n, uint32_t bar, uint32_t phase);
/* Products of wgmma read it. */
void simt_check_product(const void *p, size_t n, const void *pc);
/* Returns true if copies in bulk wrote all of it last. */
bool simt_check_in_bulk(const void *p, size_t n);
#endif
