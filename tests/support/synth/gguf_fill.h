#pragma once

/*
 * gguf_fill - random weights, built directly in the bytes of a tensor format.
 */

#include "base/gguf.h"
#include "base/rng.h"

#define FILL_LEVELS 4096 /* distinct values of F16 and BF16 weights */

/* Invariants: std > 0; scale and min are set where there is a recipe, level where there is none and
 * the format is not F32. */
struct gguf_fill {
    const struct tensor_format *format;
    /* NULL: F32, F16 or BF16 */
    const struct fill_recipe *recipe;
    double std;
    struct rng rng;
    /* scales and minima of blocks, as half floats */
    uint16_t scale[256], min[256];
    uint16_t level[FILL_LEVELS];
};

/* Prepares weights of mean 0 and standard deviation @std (F16, BF16 and blocks: up to the format's
 * rounding). */
void gguf_fill_init(struct gguf_fill *f, const struct tensor_format *format, double std,
                    uint64_t seed);
/* Writes the next @n blocks. The bytes depend on the sizes of the calls, which must be the same
 * each time. */
void gguf_fill_blocks(struct gguf_fill *f, void *dst, size_t n);
