#pragma once

/*
 * quant - exact decoding of every tensor format to f32, plain and slow on purpose: fast kernels are
 * tested against it, and the reference backend computes with it. The block layouts are those of
 * ggml (engine/formats/blocks.h). Every product is rounded to f32 in the order written there, so
 * that other implementations agree bit for bit.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/gguf.h"
#include "engine/formats/blocks.h"

/* Decodes @n values (a multiple of the format's block) starting at @src, which need not be
 * aligned. */
void quant_decode(enum tensor_type type, const void *src, float *dst, size_t n);

/* Decodes row @r of a matrix: t->ne[0] values. */
void quant_decode_row(const struct tensor *t, uint64_t r, float *dst);

extern const struct blk_grids quant_grids;
