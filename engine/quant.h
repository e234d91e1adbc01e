#pragma once

/*
 * quant - exact decoding of every tensor format to f32, plain and slow on purpose: fast kernels are
 * tested against it, and the reference backend computes with it. quant.c writes out the block
 * layouts of ggml. Every product is rounded to f32 in the order written there, so that other
 * implementations agree bit for bit.
 */

#include <stddef.h>
#include <stdint.h>
#include "base/gguf.h"
#include "engine/shared/blocks.h"

/* Decodes @n values (a multiple of the format's block) starting at @src, which need not be
 * aligned. */
void quant_decode(enum tensor_type type, const void *src, float *dst, size_t n);

/* Decodes row @r of a matrix: t->ne[0] values. */
void quant_decode_row(const struct tensor *t, uint64_t r, float *dst);

extern const int8_t quant_iq4_values[16]; /* values of IQ4_NL and IQ4_XS */
extern const int8_t quant_fp4_values[16]; /* values of MXFP4 and NVFP4: twice those of E2M1 */
extern const struct blk_grids quant_grids;

/* Unpacks the scale and the minimum (6 bits each) of sub-block @j (0..7) of a Q4_K or Q5_K block;
 * @s: its 12 packed bytes. */
static inline void quant_k4_scale(const uint8_t *s, unsigned j, uint8_t *scale, uint8_t *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (uint8_t)((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
        *min = (uint8_t)((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
    }
}

/* Returns the scale (-32..31) of sub-block @j (0..15) of a Q3_K block; @s: its 12 packed bytes. */
static inline int quant_q3k_scale(const uint8_t *s, unsigned j) {
    int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4, high = (s[8 + j % 4] >> (2 * (j / 4))) & 3;

    return (low | high << 4) - 32;
}

/* Returns the eight sign bits (1: minus) of a 7-bit code of the IQ formats: bit 7 makes the number
 * of set bits even. */
static inline uint8_t quant_iq_signs(unsigned code) {
    return (uint8_t)(code | (unsigned)__builtin_parity(code) << 7);
}
