/*
 * gemm_bf16 - multiplies panels of BF16 by AVX-512's instruction for it.
 *
 * The instruction multiplies two pairs of values and adds to a sum, the second product first. Each
 * of its two steps gives what fma gives: a product of two BF16 is exact in float, the addition
 * rounds to nearest, and the values with which this backend multiplies are so large that no sum is
 * subnormal (MX_BF16_LEAST), which the instruction would take for 0. gemm_f.c does the same with
 * two fmas. A processor on which bf16_is_exact() finds another result does not use this file.
 */

#include "engine/cpu/kernels.h"

/* Returns the @i-th pair of column @c. */
INLINE __m512bh bf16_pair(const uint8_t *acts, size_t row, int c, int i) {
    return (__m512bh)_mm512_set1_epi32(cols_i(acts, row, c, i));
}

/* Implements gemm.run. */
INLINE void bf16_run(const struct mat *m, const uint8_t *panel, const uint8_t *acts, int n,
                     float *out) {
    const size_t row = acts_bytes(ACTS_H, m->n_in, 1);
    vf even[TILE_MAX], odd[TILE_MAX];

    UNROLL
    for (int c = 0; c < n; c++)
        even[c] = odd[c] = vf_zero();
    for (uint32_t k = 0; k < m->n_in; k += 4, acts += 8, panel += 128) {
        __builtin_prefetch(panel + VEC_AHEAD);
        __builtin_prefetch(panel + VEC_AHEAD + 64);
        __m512bh w0 = (__m512bh)vb_load(panel), w1 = (__m512bh)vb_load(panel + 64);

        UNROLL
        for (int c = 0; c < n; c++) {
            even[c] = _mm512_dpbf16_ps(even[c], w0, bf16_pair(acts, row, c, 0));
            odd[c] = _mm512_dpbf16_ps(odd[c], w1, bf16_pair(acts, row, c, 1));
        }
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, vf_add(even[c], odd[c]));
}

#define CALL(n, col)                                                                               \
    bf16_run(m, panel, acts + acts_bytes(ACTS_H, m->n_in, col), n, acc + LANES * (col))

static void bf16_run_tile(const struct mat *m, const uint8_t *panel, const uint8_t *acts,
                          uint32_t n, uint32_t b0, uint32_t b1, float *acc) {
    FOR_WIDTH(n, CALL);
}

const struct gemm gemm_h_avx512bf16 = {bf16_run_tile};
const struct gemm_wide gemm_wide_h_avx512bf16 = {0};

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
