#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum mistake {
    NO_MISTAKE,
    /* missing between a write and another thread's read */
    NO_BARRIER,
    /* missing between a read and another thread's write */
    NO_BARRIER_REUSE,
    /* a shuffle orders no memory */
    SHUFFLE_AS_BARRIER,
    /* two blocks write one address */
    BLOCKS_WRITE_ALIKE,
    /* shared memory is read before it was written */
    UNWRITTEN_SHARED,
    /* an access beyond the end of an allocation */
    BEYOND_THE_END,
    /* a vector at an odd address */
    MISALIGNED,
    /* a word at an odd address */
    MISALIGNED_WORD,
    /* eight bytes at a multiple of four */
    MISALIGNED_DOUBLE,
    /* host memory is read by a kernel */
    HOST_MEMORY,
    /* threads at different barriers */
    OTHER_BARRIER,
    /* lanes at different shuffles */
    OTHER_SHUFFLE,
    /* half of a warp does not execute a shuffle */
    HALF_A_WARP,
    /* the target is read before copy_wait() */
    COPY_NOT_WAITED_FOR,
    /* started while another warp reads its target */
    COPY_OVER_A_READER,
    /* a read before wait_for_previous() */
    TOO_EARLY,
    /* a read of data that another block has written, without arrive() */
    NO_ARRIVAL,
    /* no barrier precedes arrive(): the last block may read too early */
    NO_BARRIER_BEFORE,
    /* no barrier follows the answer of arrive(): a thread of the last block reads too early */
    NO_BARRIER_BEHIND,
    /* a shift by as many bits as the word has */
    SHIFT_TOO_FAR,
    /* an access beyond the end of the thread's own array */
    BEYOND_AN_ARRAY,
    /* shared memory is read by the function for device memory */
    NOT_DEVICE_MEMORY,
    /* a prefetch beyond the end of an allocation */
    PREFETCH_BEYOND,
    PREFETCH_MISALIGNED,
    /* a prefetch of a line outside every allocation */
    PREFETCH_ELSEWHERE,
    /* a thread ends without wait_for_previous() */
    NEVER_WAITS,
    /* first mistake of kernel_mistake_wgmma */
    WGMMA_MISTAKES,
    /* registers are written and wgmma_begin() is not called */
    WGMMA_NO_FENCE = WGMMA_MISTAKES,
    /* no bulk_publish() after asynchronous copies */
    WGMMA_NOT_PUBLISHED,
    /* a store after bulk_publish() */
    WGMMA_STORED_BEHIND,
    /* missing between another thread's copy and a product */
    WGMMA_NO_BARRIER,
    /* an operand in shared memory is written before the product is waited for */
    WGMMA_NO_WAIT,
    /* an operand in registers is written before the product is waited for */
    WGMMA_REGISTERS,
    /* the sums are not waited for */
    WGMMA_NEVER_WAITED,
    /* a product adds to a part of another one's sums */
    WGMMA_SUMS_OF_OTHERS,
    /* a wrong stride in the descriptor */
    WGMMA_STRIDE,
    /* a swizzle in the descriptor that the data does not have */
    WGMMA_SWIZZLE,
    /* only two of four warps multiply */
    WGMMA_HALF_A_GROUP,
    /* one warp multiplies by another operand */
    WGMMA_OTHER_OPERAND,
    /* first mistake of kernel_mistake_bulk */
    BULK_MISTAKES,
    /* no bulk_publish() after bulk_init() */
    BULK_NOT_PUBLISHED = BULK_MISTAKES,
    /* a copy before wait_for_previous() */
    BULK_NOT_ORDERED,
    /* a barrier without bulk_init() */
    BULK_NOT_INITIALISED,
    /* the target is read immediately */
    BULK_NOT_WAITED_FOR,
    /* the target is read by a thread that has not waited, after another one has */
    BULK_WAITED_BY_ANOTHER,
    /* a wait for the preceding phase */
    BULK_WRONG_PHASE,
    /* a wait for the next phase */
    BULK_PHASE_TO_COME,
    /* fewer bytes are copied than announced */
    BULK_FEWER_BYTES,
    BULK_MORE_BYTES,
    /* more bytes are announced than a barrier counts */
    BULK_TOO_MANY_BYTES,
    /* two announcements in one phase */
    BULK_ANNOUNCED_TWICE,
    /* a misaligned target */
    BULK_MISALIGNED,
    /* a size that is not a multiple of 16 */
    BULK_ODD_BYTES,
    /* the next copy starts while another warp reads the data of the last one */
    BULK_OVER_A_READER,
    /* the target was written by threads, without a fence */
    BULK_OVER_A_WRITER,
    /* the target was read by threads, without a fence */
    BULK_NOT_FENCED,
    /* the source was written by the same kernel */
    BULK_OF_STORES,
    /* the last copy is not waited for */
    BULK_NEVER_WAITED,
    /* first mistake of kernel_mistake_roles */
    ROLES_MISTAKES,
    /* the ring's barrier counts more arrivals than there are; fewer */
    ROLES_MORE_ARRIVALS = ROLES_MISTAKES,
    ROLES_FEWER_ARRIVALS,
    /* the second copy does not wait for the readers of the first */
    ROLES_COPIES_AT_ONCE,
    /* nor is there a fence */
    ROLES_NOT_FENCED,
    /* a warp tells that it has read before it reads */
    ROLES_TELLS_EARLY,
    /* one lane tells while others read */
    ROLES_NO_WARP_BARRIER,
    /* missing between a write and another warp's read */
    ROLES_NO_BARRIER,
    /* a warp is at a barrier of the first two */
    ROLES_BARRIER_OF_OTHERS,
    /* a block without whole warpgroups asks for registers */
    ROLES_REGISTERS,
    /* first mistake of kernel_mistake_cluster */
    CLUSTER_MISTAKES,
    /* a store to the other block before the cluster has met */
    CLUSTER_NOT_MET = CLUSTER_MISTAKES,
    /* what the other block stores is read between the arrival and the wait */
    CLUSTER_READ_EARLY,
    /* a store behind the arrival that should tell of it */
    CLUSTER_STORED_LATE,
    /* the block's barrier instead of the cluster's */
    CLUSTER_OWN_BARRIER,
    /* a store behind the last meeting, when the other block may end */
    CLUSTER_NOT_LEFT,
    CLUSTER_TWO_ARRIVALS,
    CLUSTER_NO_ARRIVAL,
    /* a thread ends between its arrival and the wait */
    CLUSTER_NEVER_WAITS,
    /* a block that the cluster does not have */
    CLUSTER_OTHER_RANK,
    /* static shared memory */
    CLUSTER_STATIC,
    /* first mistake of kernel_mistake_copies */
    COPIES_MISTAKES,
    /* a copy to the other block before the cluster has met */
    COPIES_NOT_MET = COPIES_MISTAKES,
    /* the second copies do not wait for the readers of the other block */
    COPIES_OVER_READERS,
    /* to a block that the cluster does not have; to none */
    COPIES_OTHER_RANK,
    COPIES_NO_RANK,
    /* a block's own copy alone is announced */
    COPIES_FEWER_BYTES,
    N_MISTAKES
};

/* Argument of a kernel with 64 threads and two blocks. @data: 256 words, the last one zero; @host:
 * pinned memory. */
struct mistake_args {
    enum mistake what;
    uint32_t *data, *host;
};

extern const void *const kernel_mistake;
/* A kernel with 128 threads, one block and WGMMA_SHARED bytes of shared memory, half of which is
 * written. */
#define WGMMA_SHARED 4096u
extern const void *const kernel_mistake_wgmma;

/* A kernel with 64 threads, one block and WGMMA_SHARED bytes of shared memory. */
extern const void *const kernel_mistake_bulk;

/* A kernel with 64 threads, a cluster of two blocks and WGMMA_SHARED bytes of shared memory. */
extern const void *const kernel_mistake_cluster;

/* The same; each block copies for both. */
extern const void *const kernel_mistake_copies;

/* A kernel with 96 threads, one block and WGMMA_SHARED bytes of shared memory. */
extern const void *const kernel_mistake_roles;

#ifdef __cplusplus
}
#endif
