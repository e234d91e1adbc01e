#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum mistake {
    NO_MISTAKE,
    NO_BARRIER,          /* between a write and another thread's read */
    NO_BARRIER_REUSE,    /* between a read and another thread's write */
    SHUFFLE_AS_BARRIER,  /* a shuffle orders no memory */
    BLOCKS_WRITE_ALIKE,  /* two blocks, one address */
    UNWRITTEN_SHARED,    /* read before it was written */
    BEYOND_THE_END,      /* of an allocation */
    MISALIGNED,          /* a vector at an odd address */
    MISALIGNED_WORD,     /* likewise a word */
    MISALIGNED_DOUBLE,   /* likewise eight bytes at a multiple of four */
    HOST_MEMORY,         /* read by a kernel */
    OTHER_BARRIER,       /* threads at different barriers */
    OTHER_SHUFFLE,       /* lanes at different shuffles */
    HALF_A_WARP,         /* does not come to a shuffle */
    COPY_NOT_WAITED_FOR, /* read before copy_wait() */
    COPY_OVER_A_READER,  /* started while another warp reads its target */
    TOO_EARLY,           /* a read above wait_for_previous() */
    NO_ARRIVAL,          /* a read of what another block has written */
    NO_BARRIER_BEFORE,   /* the last block to come reads what was written beside the arrival */
    NO_BARRIER_BEHIND,   /* a thread of the last block reads before it was told */
    SHIFT_TOO_FAR,       /* by as many bits as the word has */
    BEYOND_AN_ARRAY,     /* of the thread's own */
    NOT_DEVICE_MEMORY,   /* shared memory is read as what no store to it can change */
    PREFETCH_BEYOND,     /* bytes that no allocation has are brought to the cache */
    PREFETCH_MISALIGNED,
    PREFETCH_ELSEWHERE,                 /* a line that no allocation has */
    NEVER_WAITS,                        /* a thread that ends above wait_for_previous() */
    WGMMA_MISTAKES,                     /* those of kernel_mistake_wgmma */
    WGMMA_NO_FENCE = WGMMA_MISTAKES,    /* no wgmma_begin() behind what the registers were given */
    WGMMA_NOT_PUBLISHED,                /* copies that products do not see */
    WGMMA_STORED_BEHIND,                /* likewise a store, behind what publishes the copies */
    WGMMA_NO_BARRIER,                   /* between another thread's copy and a product */
    WGMMA_NO_WAIT,                      /* what a product reads is written before it is done */
    WGMMA_REGISTERS,                    /* likewise its registers */
    WGMMA_NEVER_WAITED,                 /* for sums */
    WGMMA_STRIDE,                       /* a wrong one in the descriptor */
    WGMMA_SWIZZLE,                      /* of memory that is not written so */
    WGMMA_HALF_A_GROUP,                 /* two warps of four multiply */
    WGMMA_OTHER_OPERAND,                /* one of them by another operand */
    BULK_MISTAKES,                      /* those of kernel_mistake_bulk */
    BULK_NOT_PUBLISHED = BULK_MISTAKES, /* no fence behind the barrier's beginning */
    BULK_NOT_ORDERED,                   /* not behind the wait for the kernel before */
    BULK_NOT_INITIALISED,               /* a barrier that has none */
    BULK_NOT_WAITED_FOR,                /* what was copied is read at once */
    BULK_WAITED_BY_ANOTHER,             /* likewise, and another thread has waited */
    BULK_WRONG_PHASE,                   /* the one before */
    BULK_PHASE_TO_COME,                 /* the one behind */
    BULK_FEWER_BYTES,                   /* than announced */
    BULK_MORE_BYTES,
    BULK_TOO_MANY_BYTES,  /* for a barrier */
    BULK_ANNOUNCED_TWICE, /* in one phase */
    BULK_MISALIGNED,      /* where it goes to */
    BULK_ODD_BYTES,       /* no multiple of 16 */
    BULK_OVER_A_READER,   /* the next copy, while another warp reads what the one before brought */
    BULK_OVER_A_WRITER,   /* over what threads have written, without a fence */
    BULK_NOT_FENCED,      /* likewise over what they have read */
    BULK_OF_STORES,       /* of this kernel, without a fence */
    BULK_NEVER_WAITED,    /* for the last copy */
    N_MISTAKES
};

/* 64 threads; two blocks. @data: 256 words, of which the last is zero; @host: pinned. */
struct mistake_args {
    enum mistake what;
    uint32_t *data, *host;
};

extern const void *const kernel_mistake;
/* 128 threads, one block, WGMMA_SHARED bytes of shared memory, of which half is written. */
#define WGMMA_SHARED 4096u
extern const void *const kernel_mistake_wgmma;

/* 64 threads, one block, WGMMA_SHARED bytes of shared memory. */
extern const void *const kernel_mistake_bulk;

#ifdef __cplusplus
}
#endif
