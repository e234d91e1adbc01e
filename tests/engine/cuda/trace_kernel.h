#pragma once

/* trace_kernel - the kernel of test_trace.c. */

#include "engine/cuda/kernels.h"
#include "engine/cuda/trace.h"

struct traced_args {
    /* NULL: nothing is traced */
    struct trace_ring *ring;
    /* [blocks] */
    uint32_t *done;
};

#ifdef __cplusplus
extern "C" {
#endif
extern const void *const kernel_traced;
#ifdef __cplusplus
}
#endif
