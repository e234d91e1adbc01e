#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum mistake {
    NO_MISTAKE,
    NO_BARRIER,          /* missing between a write and another thread's read */
    NO_BARRIER_REUSE,    /* missing between a read and another thread's write */
    SHUFFLE_AS_BARRIER,  /* a shuffle orders no memory */
    BLOCKS_WRITE_ALIKE,  /* two blocks write one address */
    UNWRITTEN_SHARED,    /* shared memory is read before it was written */
    BEYOND_THE_END,      /* an access beyond the end of an allocation */
    MISALIGNED,          /* a vector at an odd address */
    MISALIGNED_WORD,     /* a word at an odd address */
    MISALIGNED_DOUBLE,   /* eight bytes at a multiple of four */
    HOST_MEMORY,         /* host memory is read by a kernel */
    OTHER_BARRIER,       /* threads at different barriers */
    OTHER_SHUFFLE,       /* lanes at different shuffles */
    HALF_A_WARP,         /* half of a warp does not execute a shuffle */
    COPY_NOT_WAITED_FOR, /* the target is read before copy_wait() */
    COPY_OVER_A_READER,  /* started while another warp reads its target */
    TOO_EARLY,           /* a read before wait_for_previous() */
    NO_ARRIVAL,          /* a read of data that another block has written, without arrive() */
    NO_BARRIER_BEFORE,   /* no barrier precedes arrive(): the last block may read too early */
    /* no barrier follows the answer of arrive(): a thread of the last block reads too early */
    NO_BARRIER_BEHIND,
    SHIFT_TOO_FAR,     /* a shift by as many bits as the word has */
    BEYOND_AN_ARRAY,   /* an access beyond the end of the thread's own array */
    NOT_DEVICE_MEMORY, /* shared memory is read by the function for device memory */
    PREFETCH_BEYOND,   /* a prefetch beyond the end of an allocation */
    PREFETCH_MISALIGNED,
    PREFETCH_ELSEWHERE,              /* a prefetch of a line outside every allocation */
    NEVER_WAITS,                     /* a thread ends without wait_for_previous() */
    WGMMA_MISTAKES,                  /* first mistake of kernel_mistake_wgmma */
    WGMMA_NO_FENCE = WGMMA_MISTAKES, /* registers are written and wgmma_begin() is not called */
    WGMMA_NOT_PUBLISHED,             /* no bulk_publish() after asynchronous copies */
    WGMMA_STORED_BEHIND,             /* a store after bulk_publish() */
    WGMMA_NO_BARRIER,                /* missing between another thread's copy and a product */
    /* an operand in shared memory is written before the product is waited for */
    WGMMA_NO_WAIT,
    /* an operand in registers is written before the product is waited for */
    WGMMA_REGISTERS,
    WGMMA_NEVER_WAITED, /* the sums are not waited for */
    WGMMA_STRIDE,       /* a wrong stride in the descriptor */
    /* a swizzle in the descriptor that the data does not have */
    WGMMA_SWIZZLE,
    WGMMA_HALF_A_GROUP,                 /* only two of four warps multiply */
    WGMMA_OTHER_OPERAND,                /* one warp multiplies by another operand */
    BULK_MISTAKES,                      /* first mistake of kernel_mistake_bulk */
    BULK_NOT_PUBLISHED = BULK_MISTAKES, /* no bulk_publish() after bulk_init() */
    BULK_NOT_ORDERED,                   /* a copy before wait_for_previous() */
    BULK_NOT_INITIALISED,               /* a barrier without bulk_init() */
    BULK_NOT_WAITED_FOR,                /* the target is read immediately */
    /* the target is read by a thread that has not waited, after another one has */
    BULK_WAITED_BY_ANOTHER,
    BULK_WRONG_PHASE,   /* a wait for the preceding phase */
    BULK_PHASE_TO_COME, /* a wait for the next phase */
    BULK_FEWER_BYTES,   /* fewer bytes are copied than announced */
    BULK_MORE_BYTES,
    BULK_TOO_MANY_BYTES,  /* more bytes are announced than a barrier counts */
    BULK_ANNOUNCED_TWICE, /* two announcements in one phase */
    BULK_MISALIGNED,      /* a misaligned target */
    BULK_ODD_BYTES,       /* a size that is not a multiple of 16 */
    /* the next copy starts while another warp reads the data of the last one */
    BULK_OVER_A_READER,
    BULK_OVER_A_WRITER, /* the target was written by threads, without a fence */
    BULK_NOT_FENCED,    /* the target was read by threads, without a fence */
    BULK_OF_STORES,     /* the source was written by the same kernel */
    BULK_NEVER_WAITED,  /* the last copy is not waited for */
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

#ifdef __cplusplus
}
#endif
