/* A kernel with the calls that WEFT_TRACE puts around each kernel, for the emulator. */

#include "engine/cuda/device.cuh"
#include "tests/engine/cuda/trace_kernel.h"

static uint64_t now; /* in place of the device's timer */

DEVICE uint64_t trace_clock() {
    return ++now;
}

DEVICE uint64_t trace_count(uint64_t *n) {
    uint64_t before = get_global(n);

    store_global(n, before + 1);
    return before;
}

#include "engine/cuda/trace.cuh"

KERNEL(traced, struct traced_args, 64, 1) {
    trace_enter(a.ring);
    wait_for_previous();
    trace_wait(a.ring);
    trace_wait(a.ring); /* a second wait changes nothing */
    if (threadIdx.x == 0)
        a.done[blockIdx.x] = 1;
    trace_end_block(a.ring, trace_name_of("a name of thirty-two characters, and more"));
}
