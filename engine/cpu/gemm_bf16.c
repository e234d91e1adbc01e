/*
 * gemm_bf16 - multiplies panels of BF16 and FP8 by AVX-512's instruction for BF16. A word is a pair
 * of values; gemm_f.h has the order of operations. The codes of FP8 are looked up as BF16.
 *
 * The instruction multiplies two pairs of values and adds to a sum, the second product first. Each
 * of its two steps gives what fma gives: a product of two BF16 is exact in float, the addition
 * rounds to nearest, and the values with which this backend multiplies are so large that no sum is
 * subnormal (MX_BF16_LEAST), which the instruction would take for 0. gemm_f.c does the same with
 * two fmas. A processor on which bf16_is_exact() finds another result does not use this file.
 */

#include "engine/cpu/vec.h"

enum { WORDS = 2 };
#define WORD __m512bh
#define WORD_LOAD bf16_word
#define WORD_UNPACK(p, word) vb_store(p, (vb)(word))
#define WORD_UNPACKED(p) ((__m512bh)vb_load(p))
#define WORD_MULTIPLY bf16_multiply

/* Returns the codes of a group of FP8 as BF16: pairs 0 and 1 of the group's values. */
INLINE vb bf16_of_e4m3(vb codes, int pair) {
    vb low = _mm512_permutex2var_epi8(vb_load(cpu_e4m3[0]), codes, vb_load(cpu_e4m3[0] + 64));
    vb high = _mm512_permutex2var_epi8(vb_load(cpu_e4m3[1]), codes, vb_load(cpu_e4m3[1] + 64));

    high = vb_or(high, vb_and(codes, vb_set1(0x80)));
    if (pair == 0)
        return _mm512_unpacklo_epi8(low, high);
    return _mm512_unpackhi_epi8(low, high);
}

/* Returns word @i of the group at @p: a pair of each row. */
INLINE __m512bh bf16_word(int format, const uint8_t *p, int i) {
    if (format == PANEL_BF16)
        return (__m512bh)vb_load(p + 64 * i);
    return (__m512bh)bf16_of_e4m3(vb_load(p), i);
}

INLINE vf bf16_multiply(vf sum, __m512bh word, const uint8_t *acts, size_t row, int c, int i) {
    return _mm512_dpbf16_ps(sum, word, (__m512bh)vi_set1(cols_i(acts, row, c, i)));
}

#include "engine/cpu/gemm_f.h"

PANELS_H(DEFINE)
PANELS_H(DEFINE_WIDE)

const struct gemm gemm_h_avx512bf16[PANEL_FORMATS] = {PANELS_H(ROW)};
const struct gemm_wide gemm_wide_h_avx512bf16[PANEL_FORMATS] = {PANELS_H(ROW_WIDE)};

/* Writes values as they are, in BF16; the last group of four is filled up with zeros. */
void acts_store_h_avx512bf16(const float *x, uint32_t n_in, uint8_t *row) {
    uint16_t *out = (uint16_t *)row;

    for (uint32_t k = 0; k < n_in; k++)
        out[k] = mx_float_to_bf16(x[k]);
    for (uint32_t k = n_in; k % 4; k++)
        out[k] = 0;
}

bool bf16_is_exact(void) {
    uint32_t state = 1;
    bool same = true;

    for (int i = 0; i < 1000; i++) {
        uint32_t word[3];
        float sum, should;

        for (int j = 0; j < 3; j++) { /* exponents near each other, so that sums are rounded */
            state = state * 1664525u + 1013904223u;
            word[j] = (state & 0x83FF83FFu) | 0x3C003C00u;
        }
        sum = mx_float_of(word[2]);
        should = fmaf(mx_bf16_to_float((uint16_t)(word[0] >> 16)),
                      mx_bf16_to_float((uint16_t)(word[1] >> 16)), sum);
        should =
            fmaf(mx_bf16_to_float((uint16_t)word[0]), mx_bf16_to_float((uint16_t)word[1]), should);
        vf got = _mm512_dpbf16_ps(vf_set1(sum), (__m512bh)vi_set1((int32_t)word[0]),
                                  (__m512bh)vi_set1((int32_t)word[1]));
        same &= mx_bits_of(_mm512_cvtss_f32(got)) == mx_bits_of(should);
    }
    return same;
}
