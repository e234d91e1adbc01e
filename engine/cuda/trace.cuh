#pragma once

/* trace - device functions of trace.h; included by device.cuh with WEFT_TRACE. */

#include "engine/cuda/trace.h"

/* Returns the first characters of @text, at compile time. */
DEVICE constexpr struct trace_name trace_name_of(const char *text) {
    struct trace_name name = {};

    for (uint32_t i = 0; i < TRACE_NAME && text[i]; i++)
        name.word[i / 8] |= (uint64_t)(uint8_t)text[i] << (8 * (i % 8));
    return name;
}

/* Returns the times of the block that runs. */
DEVICE uint64_t *trace_times() {
    SHARED uint64_t times[2];

    return times;
}

/* Returns true for the thread that notes times in @ring; NULL: nothing is traced. */
DEVICE bool trace_notes(const struct trace_ring *ring) {
    return ring && threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0;
}

/* Notes the beginning of the block. */
DEVICE void trace_enter(const struct trace_ring *ring) {
    if (!trace_notes(ring))
        return;
    trace_times()[0] = trace_clock();
    trace_times()[1] = 0;
}

/* Notes the end of the block's first wait. */
DEVICE void trace_wait(const struct trace_ring *ring) {
    if (trace_notes(ring) && trace_times()[1] == 0)
        trace_times()[1] = trace_clock();
}

/* Adds the times of the block, which ends, to @ring (may be NULL) under @name. */
DEVICE void trace_end_block(struct trace_ring *ring, const struct trace_name &name) {
    if (!trace_notes(ring))
        return;
    uint64_t left = trace_clock(), i = trace_count(&ring->n);
    struct trace_slot *s = &ring->slot[i % TRACE_SLOTS];
    s->name = name;
    s->grid_x = gridDim.x;
    s->grid_y = gridDim.y;
    s->entered = trace_times()[0];
    s->waited = trace_times()[1];
    s->left = left;
}
