#pragma once

/*
 * vec - the vectors in which the kernels are written. They have 16 lanes on every machine; a lane
 * is a row of a panel, a key or a dimension.
 *
 * The files with kernels are compiled once for each instruction set, with CPU_AVX512, CPU_AVX2,
 * CPU_NEON or none of these defined, and each time this header includes another implementation.
 * Every function is either an exact integer operation or the same IEEE operation in each lane, so
 * all copies of a kernel compute the same bits. vec_generic.h is the definition in plain C.
 *
 *   vi  16 x int32      vf  16 x float      vb  64 bytes: 4 bytes for each of 16 lanes
 *   vd  16 sums of a run of dot products, in the width that suits the instructions
 *
 * Functions whose names do not explain them; operations are by lane unless a horizontal one is
 * named:
 *
 *   vi_load_i8(p)       16 signed bytes as int32
 *   vi_low4, vi_high4   the lower and the upper half of 16 signed bytes, as signed 4-bit numbers
 *   vi_load_pairs(p)    32 unsigned bytes as two 16-bit numbers for each lane
 *   vi_dot_pairs(acc, w, a)  acc + the sum of two products: 16-bit numbers of w, and of the word a
 *   vi_dot6(acc, w, a)  acc + the sum of four products: unsigned bytes of w, all below 128, and the
 *                       signed bytes of the word a
 *   vi_dot8(acc, w, a)  the same for any unsigned bytes w; acc begins with vi_dot8_init(-128 times
 *                       the sum of all signed bytes a), and the result is the sum of (w - 128) a
 *   vd_begin(acc), vd_dot(x, w, a), vd_end(acc, x)  vi_dot6 for a run of words: x = vd_begin(acc),
 *                       then x = vd_dot(x, w, a) for at most VD_WORDS words, or half as many for
 *                       each bit that bytes of w have above four, then acc = vd_end(acc, x)
 *   vd_dot_four(x, w, p, four, k)  vd_dot of word k of the four at p; four is vi_four(p)
 *   vf_load_half        16 numbers of half precision as floats
 *   vf_load_bf16_low, vf_load_bf16_high  the first, or the second, numbers of 16 pairs of bfloat16
 *   vf_load_e8m0_half, vf_load_ue4m3_half  half the value of 16 scales of one byte (E8M0: 2^(byte -
 *                       127); UE4M3: bytes below 128)
 *   vf_load_e4m3(p, k)  value k of a group of E4M3 codes (engine/formats/panel.c)
 *   vf_max, vf_min      the second operand if one of them is not a number, as on x86
 *   vf_swap(a, step)    exchanges lanes i and i ^ step; step is 1, 2, 4 or 8
 *   vf_keep_first(a, n, other)  lanes below n of a, the others of other
 *   vf_keep_above(a, x, limit)  a where x > limit, else 0
 *   vf_exp2i(n)         2^n of integers from -126 to 127
 *   vf_store_i8(p, a)   stores integers from -127 to 127 as bytes
 *   vf_reduce_add, vf_reduce_max  horizontal sum or maximum, by folding halves: lane i with lane i
 *                       + 8, then + 4, + 2 and + 1
 *   vb_shl, vb_shr      shift units of 8, 16 or 32 bits, so bits may move into the neighbouring
 *                       byte; a mask must follow
 *   vb_lookup(t, i)     entry (i & 15) of a table of 16 for each byte i below 128
 *   vb_iq2(index, sign, out)  decodes 64 runs of the IQ2_XXS grid: out[64 j + i] = 64 + value j of
 *                       entry index[i], negated before the addition if bit j of sign[i] is set
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/cpu/cpu.h"

#define INLINE static inline __attribute__((always_inline, unused))

/* Unrolls a loop over the columns of a tile or the groups of a block. In plain C such loops stay
 * loops: unrolled code would take twice as long to compile and would not run faster. */
#if defined CPU_AVX512 || defined CPU_AVX2 || defined CPU_NEON
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL _Pragma("GCC unroll 1")
#endif

#if defined CPU_AVX512
#include "engine/cpu/vec_avx512.h"
#define CPU_NAME(name) name##_avx512
#define CPU_ISA "avx512"
#elif defined CPU_AVX2
#include "engine/cpu/vec_avx2.h"
#define CPU_NAME(name) name##_avx2
#define CPU_ISA "avx2"
#elif defined CPU_NEON
#include "engine/cpu/vec_neon.h"
#if defined __ARM_FEATURE_MATMUL_INT8
#define CPU_NAME(name) name##_i8mm
#define CPU_ISA "i8mm"
#elif defined __ARM_FEATURE_DOTPROD
#define CPU_NAME(name) name##_dotprod
#define CPU_ISA "dotprod"
#else
#define CPU_NAME(name) name##_neon
#define CPU_ISA "neon"
#endif
#else
#include "engine/cpu/vec_generic.h"
#define VEC_PLAIN
#define CPU_NAME(name) name##_generic
#define CPU_ISA "generic"
#endif

/* Calls @call(columns, first column) for the @n columns of a tile, with a constant number of
 * columns, so that each width has a kernel of its own. AVX2 and NEON compute two columns at a time,
 * in a loop. Plain C has one kernel with a variable number of columns. */
#ifdef VEC_PLAIN
#define FOR_WIDTH(n, call) call((int)(n), 0)
#else
#define FOR_WIDTH(n, call)                                                                         \
    do {                                                                                           \
        if ((n) == 1) {                                                                            \
            call(1, 0);                                                                            \
        } else if (VEC_TILE == 2) {                                                                \
            for (int first_ = 0; first_ < (int)(n); first_ += 2)                                   \
                call(2, first_);                                                                   \
        } else if ((n) == 2) {                                                                     \
            call(2, 0);                                                                            \
        } else if ((n) == 4) {                                                                     \
            call(4, 0);                                                                            \
        } else {                                                                                   \
            call(8, 0);                                                                            \
        }                                                                                          \
    } while (0)
#endif

/* Addresses of the activations of a block in the first column of a tile. */
struct cols {
    /* int8 values */
    const uint8_t *q;
    /* the block's numbers of 4 bytes (AK_..., AB_...) */
    const uint8_t *sums;
    /* bytes from a column to the next */
    size_t row;
};

/* Returns the @i-th word of 4 bytes of column @c; columns are @row bytes apart. */
INLINE int32_t cols_i(const uint8_t *p, size_t row, int c, int i) {
    int32_t v;

    memcpy(&v, p + (size_t)c * row + 4 * (size_t)i, 4);
    return v;
}

/* Returns the @i-th float of column @c; columns are @row bytes apart. */
INLINE float cols_f(const uint8_t *p, size_t row, int c, int i) {
    float v;

    memcpy(&v, p + (size_t)c * row + 4 * (size_t)i, 4);
    return v;
}

#ifndef VD_WORDS
#define VD_WORDS 32
typedef vi vd;
INLINE vd vd_begin(vi acc) {
    return acc;
}

INLINE vd vd_dot(vd x, vb w, int32_t a) {
    return vi_dot6(x, w, a);
}

INLINE vi vd_end(vi acc, vd x) {
    return x;
}
#endif

#ifndef VEC_FOUR
INLINE vi vi_four(const uint8_t *p) {
    return vi_zero();
}

INLINE vd vd_dot_four(vd x, vb w, const uint8_t *p, vi four, int k) {
    return vd_dot(x, w, cols_i(p, 0, 0, k));
}
#endif

/* Returns 2 x modulo 2^32. Unused columns of a tile may contain any value, for which 2 * x would be
 * a signed overflow. */
INLINE int32_t twice(int32_t x) {
    return (int32_t)(2u * (uint32_t)x);
}

/* Distance in bytes by which the kernels prefetch weights ahead. Weights are read once, as one
 * stream, and without this prefetch a core reaches a third of its bandwidth
 * (docs/design/cpu-kernels.md). The panels of a matrix are contiguous, so the prefetch reaches into
 * the next panel; beyond the last panel it has no effect. */
enum { VEC_AHEAD = 12 * 1024 };

/* Returns the nearest integer, ties to even, for |x| < 2^22. Adding 1.5 * 2^23 leaves no bits for a
 * fraction. */
INLINE vf vf_round(vf x) {
    vf magic = vf_set1(12582912.0f);

    return vf_sub(vf_add(x, magic), magic);
}

/* Computes mx_expf() (base/mathx.h) in every lane; 0 for NaN. */
INLINE vf vf_exp(vf x) {
    vf lowest = vf_set1(-87.0f), y = vf_min(vf_max(x, lowest), vf_set1(88.0f));
    vf magic = vf_set1(12582912.0f);
    vf n = vf_sub(vf_fma(y, vf_set1(1.44269504088896341f), magic), magic);
    vf r = vf_fma(n, vf_set1(-0.693359375f), y);

    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
    return vf_keep_above(vf_mul(p, vf_exp2i(n)), x, lowest);
}

/* Computes mx_soft_cap() in every lane. */
INLINE vf vf_soft_cap(vf x, float cap) {
    vf e = vf_exp(vf_mul(vf_set1(2.0f / cap), x)), one = vf_set1(1.0f);

    return vf_mul(vf_set1(cap), vf_div(vf_sub(e, one), vf_add(e, one)));
}
