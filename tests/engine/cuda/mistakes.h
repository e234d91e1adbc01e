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
    N_MISTAKES
};

/* 64 threads; two blocks. @data: 256 words, of which the last is zero; @host: pinned. */
struct mistake_args {
    enum mistake what;
    uint32_t *data, *host;
};

extern const void *const kernel_mistake;

#ifdef __cplusplus
}
#endif
