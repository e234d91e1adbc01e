#pragma once

/*
 * trace - times of kernels by the clock of the device, in a weft-cuda.so that is compiled with
 * WEFT_TRACE (models --trace); otherwise no kernel has an instruction of it. Thread 0 of
 * block 0 of each kernel notes when the block began, when its wait for the previous kernel ended,
 * and when the thread ended. The slots are in the order of the launches of a stream, because a
 * kernel waits before it ends. The time from the end of one wait to the end of the next one is what
 * a kernel costs its step.
 */

#include <stdint.h>

#define TRACE_SLOTS (1u << 16) /* kernels whose times are kept; older ones are overwritten */
#define TRACE_NAME 32u

struct trace_name {
    uint64_t word[TRACE_NAME / 8]; /* characters, filled up with zeros */
};

/* Times in ns of the device's global timer, which steps by 32 ns on an H100. */
struct trace_slot {
    struct trace_name name;
    uint32_t grid_x, grid_y;
    /* waited: the first wait of the block; 0: there was none */
    uint64_t entered, waited, left;
};

struct trace_ring {
    /* number of kernels that have ended */
    uint64_t n;
    struct trace_slot slot[TRACE_SLOTS];
};

/* State of a traced module, found by dlsym("weft_trace"). */
struct trace_calls {
    /* Begins a trace on the current device; returns 0 or an error of the runtime. */
    int (*start)(void);
    /* Copies the kernels since start(), at most TRACE_SLOTS, the oldest first, to @slot and sets *n
     * to their number; the device must be idle. */
    int (*read)(struct trace_slot *slot, uint32_t *n);
};
