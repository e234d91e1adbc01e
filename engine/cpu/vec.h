#pragma once

/*
 * vec - the vectors that the kernels are written in: 16 lanes, a lane for each row of a panel (or
 * key, or dimension). The kernels are compiled once an instruction set, CPU_AVX512, CPU_AVX2,
 * CPU_NEON or none of them being defined; every function here is either an exact integer operation
 * or the same IEEE operation in each lane, so the copies agree bit for bit.
 *
 *   vi  16 x int32      vf  16 x float      vb  64 bytes: 4 bytes for each of 16 lanes
 *
 * vi_low4() and vi_high4() give the halves of 16 signed bytes as signed numbers.
 * vb shifts may move bits between neighbouring bytes: mask after shifting. vf_load_e8m0_half() and
 * vf_load_ue4m3_half() give half of 16 one-byte scales, those of the latter below 128.
 * vf_swap() exchanges the lanes that are 1, 2, 4 or 8 apart, i and i ^ step.
 * vf_reduce_*() fold halves: lane i with i + 8, then 4, 2, 1.
 * vb_iq2() decodes entries @index of the IQ2 grid for 64 runs: value j of run i, negated where bit
 * j of sign[i] is set, plus 64 goes to out[64 j + i].
 */

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "base/mathx.h"
#include "engine/cpu/cpu.h"

#define INLINE static inline __attribute__((always_inline, unused))

/* Loops over a tile's columns and a block's groups are unrolled. In plain C they stay loops: -O3
 * would unroll them into code that takes twice as long to compile and runs no faster. */
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

/* Kernels exist for every width of a tile: FOR_WIDTH calls the one for (columns, first column).
 * AVX2 and NEON take two columns at a time in a loop: a copy for each place would only cost compile
 * time, as all of it would in plain C. */
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

/* Activations of up to eight rows, from one block on. */
struct cols {
    const uint8_t *q;    /* int8, or floats */
    const uint8_t *sums; /* numbers of 4 bytes */
    size_t row;
};

/* Returns number @i of four bytes of column @c; columns are @row bytes apart. */
INLINE int32_t cols_i(const uint8_t *p, size_t row, int c, int i) {
    int32_t v;

    memcpy(&v, p + (size_t)c * row + 4 * (size_t)i, 4);
    return v;
}

/* Returns number @i of column @c as a float; columns are @row bytes apart. */
INLINE float cols_f(const uint8_t *p, size_t row, int c, int i) {
    float v;

    memcpy(&v, p + (size_t)c * row + 4 * (size_t)i, 4);
    return v;
}

/* Returns 2 x modulo 2^32, because unused columns of a tile may contain any value. */
INLINE int32_t twice(int32_t x) {
    return (int32_t)(2u * (uint32_t)x);
}

/* Distance in bytes by which the kernels prefetch weights, which are read once as one stream:
 * without it a single core gets a third of the possible bandwidth (docs/design/cpu-kernels.md). The
 * panels of a matrix are contiguous, so the prefetch reaches into the next one; past the end of the
 * last panel it has no effect. */
enum { VEC_AHEAD = 12 * 1024 };

/* Returns the nearest integer of |x| < 2^22, ties to even. */
INLINE vf vf_round(vf x) {
    vf magic = vf_set1(12582912.0f);

    return vf_sub(vf_add(x, magic), magic);
}

/* Computes mx_expf() in every lane; 0 for NaN. */
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
