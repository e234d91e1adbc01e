#pragma once

/* vec_avx512 - the vectors of vec.h with AVX-512, VNNI and VBMI: a register each. */

#include <immintrin.h>

#define VEC_TILE 8 /* columns that a kernel computes at a time */

typedef __m512i vi;
typedef __m512 vf;
typedef __m512i vb;

#define I INLINE
/* clang-format off */
I vi vi_zero(void) { return _mm512_setzero_si512(); }
I vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
I vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
I vi vi_mul(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
I vi vi_load_i8(const void *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(p)); }
I vi vi_low4(vi a) { return _mm512_srai_epi32(_mm512_slli_epi32(a, 28), 28); }
I vi vi_high4(vi a) { return _mm512_srai_epi32(a, 4); }
I vi vi_load_pairs(const void *p) { return _mm512_cvtepu8_epi16(_mm256_loadu_si256(p)); }
I vi vi_dot_pairs(vi acc, vi w, int32_t a) { return _mm512_dpwssd_epi32(acc, w, vi_set1(a)); }
I vi vi_dot6(vi acc, vb w, int32_t a) { return _mm512_dpbusd_epi32(acc, w, vi_set1(a)); }
#define VEC_FOUR
I vi vi_four(const uint8_t *p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)p));
}
I vi vd_dot_four(vi acc, vb w, const uint8_t *p, vi four, int k) {
    int32_t x;
    if (k == 2)
        return _mm512_dpbusd_epi32(acc, w, _mm512_shuffle_epi32(four, 0xAA));
    if (k == 3)
        return _mm512_dpbusd_epi32(acc, w, _mm512_shuffle_epi32(four, 0xFF));
    memcpy(&x, p + 4 * k, 4);
    return vi_dot6(acc, w, x);
}
I vi vi_dot8(vi acc, vb w, int32_t a) { return vi_dot6(acc, w, a); }
I vi vi_dot8_init(int32_t neg128_sum) { return vi_set1(neg128_sum); }

I vf vf_zero(void) { return _mm512_setzero_ps(); }
I vf vf_set1(float x) { return _mm512_set1_ps(x); }
I vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
I void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
I vf vf_swap(vf a, int step) {
    if (step == 1)
        return _mm512_permute_ps(a, 0xB1);
    if (step == 2)
        return _mm512_permute_ps(a, 0x4E);
    if (step == 4)
        return _mm512_shuffle_f32x4(a, a, 0xB1);
    return _mm512_shuffle_f32x4(a, a, 0x4E);
}
I vf vf_load_half(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
I void vf_store_half(uint16_t *p, vf a) {
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
I vf vf_load_bf16_low(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
I vf vf_load_bf16_high(const void *p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), vi_set1(-65536)));
}
/* Computes 2^(e - 128) as a product of two powers, as vec_generic.h does. */
I vf vf_load_e8m0_half(const void *p) {
    vi e = _mm512_cvtepu8_epi32(_mm_loadu_si128(p)), a = _mm512_srli_epi32(e, 1);
    vi b = _mm512_add_epi32(_mm512_sub_epi32(e, a), vi_set1(63));
    a = _mm512_add_epi32(a, vi_set1(63));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 23)),
                         _mm512_castsi512_ps(_mm512_slli_epi32(b, 23)));
}
I vf vf_load_ue4m3_half(const void *p) {
    __m256i h = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(p)), 7);
    return _mm512_mul_ps(_mm512_cvtph_ps(h), vf_set1(128));
}
/* Shifts the four bits of the exponent to those of a float and multiplies by 2^120, the difference
 * of the exponents' origins; numbers below the normal ones become right, too. */
I vf vf_load_e4m3(const uint8_t *p, int k) {
    __m512i v = _mm512_loadu_si512(p), zero = _mm512_setzero_si512();
    if (k < 2)
        v = _mm512_unpacklo_epi8(zero, v);
    else
        v = _mm512_unpackhi_epi8(zero, v);
    if (k % 2 == 0)
        v = _mm512_slli_epi32(v, 16);
    v = _mm512_and_si512(_mm512_srai_epi32(v, 4), vi_set1((int32_t)0x87F00000u));
    return _mm512_mul_ps(_mm512_castsi512_ps(v), vf_set1(0x1p120f));
}
I vf vf_of_i(vi a) { return _mm512_cvtepi32_ps(a); }
I vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
I vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
I vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
I vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
I vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
I vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
I vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
I vf vf_abs(vf a) { return _mm512_abs_ps(a); }
I vf vf_neg(vf a) {
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), vi_set1(INT32_MIN)));
}
I vf vf_keep_first(vf a, uint32_t n, vf other) {
    return _mm512_mask_mov_ps(other, (__mmask16)((1u << n) - 1), a);
}
I vf vf_keep_above(vf a, vf x, vf limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ), a);
}
I vf vf_exp2i(vf n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_add_epi32(_mm512_cvttps_epi32(n), vi_set1(127)), 23));
}
I void vf_store_i8(int8_t *p, vf a) {
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(a)));
}
I float vf_reduce_add(vf a) {
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
I float vf_reduce_max(vf a) {
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

I vb vb_load(const void *p) { return _mm512_loadu_si512(p); }
I void vb_store(void *p, vb a) { _mm512_storeu_si512(p, a); }
I vb vb_set1(uint8_t x) { return _mm512_set1_epi8((char)x); }
I vb vb_and(vb a, vb b) { return _mm512_and_si512(a, b); }
I vb vb_or(vb a, vb b) { return _mm512_or_si512(a, b); }
I vb vb_shr(vb a, unsigned n) { return _mm512_srli_epi16(a, n); }
I vb vb_shl(vb a, unsigned n) { return _mm512_slli_epi16(a, n); }
I vb vb_table(const uint8_t table[16]) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
}
I vb vb_lookup(vb table, vb index) { return _mm512_shuffle_epi8(table, index); }
/* clang-format on */
#undef I

/* Looks up value j of all 64 runs in a table of 256 bytes: one permutation for each half of the
 * table, and a choice by bit 7 of the index. */
INLINE void vb_iq2(const uint8_t *index, const uint8_t *sign, uint8_t *out) {
    vb x = vb_load(index), s = vb_load(sign);
    __mmask64 high = _mm512_movepi8_mask(x);

    for (int j = 0; j < 8; j++) {
        vb low =
            _mm512_permutex2var_epi8(vb_load(cpu_iq2_grid[j]), x, vb_load(cpu_iq2_grid[j] + 64));
        vb v = _mm512_permutex2var_epi8(vb_load(cpu_iq2_grid[j] + 128), x,
                                        vb_load(cpu_iq2_grid[j] + 192));

        v = _mm512_mask_mov_epi8(low, high, v);
        __mmask64 minus = _mm512_test_epi8_mask(s, vb_set1((uint8_t)(1u << j)));
        vb_store(out + 64 * j, _mm512_mask_sub_epi8(v, minus, vb_set1(128), v));
    }
}
