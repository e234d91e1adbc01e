#pragma once

#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads @bytes, a multiple of 16. Grid: the number of blocks that run at a time. */
struct read_args {
    const uint8_t *data;
    size_t bytes;
    uint32_t *out;
};

extern const void *const kernel_read_all;

#ifdef __cplusplus
}
#endif
