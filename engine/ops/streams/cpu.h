#pragma once

/* streams - buffers that the files of residual streams share (cpu.c, cpu_alt.c). */

#include "engine/cpu/state.h"

/* Buffers for the largest batch. */
struct streams {
    /* [max_rows][streams][n_embd]; gate NULL: the model uses HC_IN */
    float *mixed, *gate;
    /* [max_rows][n_low] */
    float *low;
    /* [max_rows][n_weights()] weights of the preceding MIX, HC_IN or ALT_CORRECT */
    float *weight;
};

/* Returns the number of floats of all streams of a row. */
static inline size_t streams_width(const struct be *b) {
    return (size_t)b->shape.stream.n * b->shape.n_embd;
}
