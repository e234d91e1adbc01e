#pragma once

/* vec_avx2 - the vectors of vec.h with AVX2, FMA and F16C: a pair of registers each, lanes 0 to 7
 * in the first. */

#include <immintrin.h>

/* Columns that a kernel computes at a time. A vector takes two of the 16 registers. */
#define VEC_TILE 2

typedef struct {
    __m256i a, b;
} vi;
typedef struct {
    __m256 a, b;
} vf;
typedef vi vb;

#define I INLINE
/* clang-format off */
I vi vi_zero(void) { return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
I vi vi_set1(int32_t x) { __m256i v = _mm256_set1_epi32(x); return (vi){v, v}; }
I vi vi_add(vi x, vi y) { return (vi){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
I vi vi_mul(vi x, vi y) { return (vi){_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
I vi vi_load_i8(const void *p) {
    __m128i v = _mm_loadu_si128(p);
    return (vi){_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
}
I vi vi_low4(vi x) {
    return (vi){_mm256_srai_epi32(_mm256_slli_epi32(x.a, 28), 28),
                _mm256_srai_epi32(_mm256_slli_epi32(x.b, 28), 28)};
}
I vi vi_high4(vi x) { return (vi){_mm256_srai_epi32(x.a, 4), _mm256_srai_epi32(x.b, 4)}; }
I vi vi_load_pairs(const void *p) {
    return (vi){_mm256_cvtepu8_epi16(_mm_loadu_si128(p)),
                _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p + 1))};
}
I vi vi_dot_pairs(vi acc, vi w, int32_t a) {
    __m256i x = _mm256_set1_epi32(a);
    return (vi){_mm256_add_epi32(acc.a, _mm256_madd_epi16(w.a, x)),
                _mm256_add_epi32(acc.b, _mm256_madd_epi16(w.b, x))};
}
/* The weights are below 128, so a sum of two products fits into 16 bits. */
I vi vi_dot6(vi acc, vb w, int32_t a) {
    __m256i x = _mm256_set1_epi32(a), ones = _mm256_set1_epi16(1);
    return (vi){_mm256_add_epi32(acc.a, _mm256_madd_epi16(_mm256_maddubs_epi16(w.a, x), ones)),
                _mm256_add_epi32(acc.b, _mm256_madd_epi16(_mm256_maddubs_epi16(w.b, x), ones))};
}
/* Sums of two products in 16 bits: eight of them, of weights below 16, are at most 30,480. */
#define VD_WORDS 8
typedef vi vd;
I vd vd_begin(vi acc) { (void)acc; return vi_zero(); }
I vd vd_dot(vd x, vb w, int32_t a) {
    __m256i v = _mm256_set1_epi32(a);
    return (vd){_mm256_add_epi16(x.a, _mm256_maddubs_epi16(w.a, v)),
                _mm256_add_epi16(x.b, _mm256_maddubs_epi16(w.b, v))};
}
I vi vd_end(vi acc, vd x) {
    __m256i ones = _mm256_set1_epi16(1);
    return (vi){_mm256_add_epi32(acc.a, _mm256_madd_epi16(x.a, ones)),
                _mm256_add_epi32(acc.b, _mm256_madd_epi16(x.b, ones))};
}
/* Adds (w - 128) x, four products for each of 8 lanes: |w - 128| times x with the sign of w - 128.
 * The sum of two products fits into 16 bits because |x| is at most 127. */
I __m256i dot8_half(__m256i acc, __m256i w, __m256i x) {
    __m256i s = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    __m256i p = _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(x, s));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(p, _mm256_set1_epi16(1)));
}
/* Multiplies w - 128 directly, because two products of unsigned bytes up to 255 would not fit into
 * the 16 bits of maddubs. vi_dot8_init() therefore has no offset to correct. */
I vi vi_dot8(vi acc, vb w, int32_t a) {
    __m256i x = _mm256_set1_epi32(a);
    return (vi){dot8_half(acc.a, w.a, x), dot8_half(acc.b, w.b, x)};
}
I vi vi_dot8_init(int32_t neg128_sum) { (void)neg128_sum; return vi_zero(); }

#define VF2(name, f) I vf name(vf x, vf y) { return (vf){f(x.a, y.a), f(x.b, y.b)}; }
VF2(vf_add, _mm256_add_ps)
VF2(vf_sub, _mm256_sub_ps)
VF2(vf_mul, _mm256_mul_ps)
VF2(vf_div, _mm256_div_ps)
VF2(vf_max, _mm256_max_ps)
VF2(vf_min, _mm256_min_ps)
#undef VF2
I vf vf_zero(void) { return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
I vf vf_set1(float x) { __m256 v = _mm256_set1_ps(x); return (vf){v, v}; }
I vf vf_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
I void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
I vf vf_swap(vf a, int step) {
    if (step == 1)
        return (vf){_mm256_permute_ps(a.a, 0xB1), _mm256_permute_ps(a.b, 0xB1)};
    if (step == 2)
        return (vf){_mm256_permute_ps(a.a, 0x4E), _mm256_permute_ps(a.b, 0x4E)};
    if (step == 4)
        return (vf){_mm256_permute2f128_ps(a.a, a.a, 1), _mm256_permute2f128_ps(a.b, a.b, 1)};
    return (vf){a.b, a.a};
}
I vf vf_load_half(const void *p) {
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}
I void vf_store_half(uint16_t *p, vf x) {
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
/* Returns pairs [8 i, 8 i + 8) of BF16 at @p. */
I __m256i bf16_pairs(const void *p, int i) { return _mm256_loadu_si256((const __m256i *)p + i); }
I vf vf_load_bf16_low(const void *p) {
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(bf16_pairs(p, 0), 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(bf16_pairs(p, 1), 16))};
}
I vf vf_load_bf16_high(const void *p) {
    __m256i mask = _mm256_set1_epi32(-65536);
    return (vf){_mm256_castsi256_ps(_mm256_and_si256(bf16_pairs(p, 0), mask)),
                _mm256_castsi256_ps(_mm256_and_si256(bf16_pairs(p, 1), mask))};
}
/* Returns 2^(e - 128) as a product of two powers, as vec_generic.h does. */
I __m256 e8m0_half(__m256i e) {
    __m256i a = _mm256_srli_epi32(e, 1), b = _mm256_sub_epi32(e, a), n = _mm256_set1_epi32(63);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a, n), 23)),
                         _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(b, n), 23)));
}
I vf vf_load_e8m0_half(const void *p) {
    __m128i v = _mm_loadu_si128(p);
    return (vf){e8m0_half(_mm256_cvtepu8_epi32(v)),
                e8m0_half(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)))};
}
I vf vf_load_ue4m3_half(const void *p) {
    __m256i h = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(p)), 7);
    __m256 n = _mm256_set1_ps(128);
    return (vf){_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), n),
                _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)), n)};
}
/* Returns the table of 16 bytes in @high and @low, twice. */
I __m256i avx2_table(int64_t high, int64_t low) {
    return _mm256_broadcastsi128_si256(_mm_set_epi64x(high, low));
}
/* Returns the codes of E4M3 at @p as BF16: values 0 and 1 of the rows or, if @second, values 2 and
 * 3. The lower byte of a normal number is the lower half of its code, the upper byte is the upper
 * half plus 60. Tables correct the codes below 8. A product with 2^120, which does without them, is
 * slow where a code is below the normal ones. */
I __m256i e4m3_pairs(const uint8_t *p, bool second) {
    const __m256i low_fix = avx2_table(0, 0x10207040F0A01000);
    const __m256i high_fix = avx2_table(0, 0x000000000707073C);
    const __m256i upper = avx2_table((int64_t)0xC3C2C1C0BFBEBDBC, 0x434241403F3E3D3C);
    __m256i v = _mm256_loadu_si256((const void *)p), halves = _mm256_set1_epi8(15);
    __m256i small = _mm256_min_epu8(_mm256_and_si256(v, _mm256_set1_epi8(127)), halves);
    __m256i low = _mm256_andnot_si256(halves, _mm256_slli_epi16(v, 4));
    __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), halves);
    low = _mm256_xor_si256(low, _mm256_shuffle_epi8(low_fix, small));
    high = _mm256_xor_si256(_mm256_shuffle_epi8(upper, high), _mm256_shuffle_epi8(high_fix, small));
    if (second)
        return _mm256_unpackhi_epi8(low, high);
    return _mm256_unpacklo_epi8(low, high);
}
I __m256 e4m3_half(const uint8_t *p, int k) {
    __m256i v = e4m3_pairs(p, k >= 2);
    if (k % 2)
        return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(-65536)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}
I vf vf_load_e4m3(const uint8_t *p, int k) {
    return (vf){e4m3_half(p, k), e4m3_half(p + 32, k)};
}
I vf vf_of_i(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
I vf vf_fma(vf x, vf y, vf z) {
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
I vf vf_abs(vf x) {
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
    return (vf){_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
I vf vf_neg(vf x) {
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MIN));
    return (vf){_mm256_xor_ps(x.a, m), _mm256_xor_ps(x.b, m)};
}
I vf vf_keep_first(vf x, uint32_t n, vf other) {
    __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), limit = _mm256_set1_epi32((int)n);
    __m256i j = _mm256_add_epi32(i, _mm256_set1_epi32(8));
    return (vf){
        _mm256_blendv_ps(other.a, x.a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, i))),
        _mm256_blendv_ps(other.b, x.b, _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, j)))};
}
I vf vf_keep_above(vf a, vf x, vf limit) {
    return (vf){_mm256_and_ps(a.a, _mm256_cmp_ps(x.a, limit.a, _CMP_GT_OQ)),
                _mm256_and_ps(a.b, _mm256_cmp_ps(x.b, limit.b, _CMP_GT_OQ))};
}
/* Returns 2^n of eight integers from -126 to 127. */
I __m256 exp2i_half(__m256 n) {
    __m256i i = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(i, 23));
}
I vf vf_exp2i(vf n) { return (vf){exp2i_half(n.a), exp2i_half(n.b)}; }
I void vf_store_i8(int8_t *p, vf x) {
    __m256i v = _mm256_packs_epi32(_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b));
    v = _mm256_permute4x64_epi64(v, 0xD8);
    _mm_storeu_si128((void *)p,
                     _mm_packs_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}
I float vf_reduce_add(vf x) {
    __m256 b = _mm256_add_ps(x.a, x.b);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
I float vf_reduce_max(vf x) {
    __m256 b = _mm256_max_ps(x.a, x.b);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

I vb vb_load(const void *p) {
    return (vb){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
I void vb_store(void *p, vb x) {
    _mm256_storeu_si256(p, x.a);
    _mm256_storeu_si256((__m256i *)p + 1, x.b);
}
I vb vb_set1(uint8_t x) { __m256i v = _mm256_set1_epi8((char)x); return (vb){v, v}; }
I vb vb_and(vb x, vb y) { return (vb){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
I vb vb_or(vb x, vb y) { return (vb){_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
I vb vb_shr(vb x, int n) { return (vb){_mm256_srli_epi16(x.a, n), _mm256_srli_epi16(x.b, n)}; }
I vb vb_shl(vb x, int n) { return (vb){_mm256_slli_epi16(x.a, n), _mm256_slli_epi16(x.b, n)}; }
I vb vb_table(const uint8_t table[16]) {
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
    return (vb){t, t};
}
I vb vb_lookup(vb t, vb x) {
    return (vb){_mm256_shuffle_epi8(t.a, x.a), _mm256_shuffle_epi8(t.b, x.b)};
}
/* clang-format on */
#undef I

/*
 * vb_iq2() loads each entry of the grid, 8 bytes, as a whole and transposes the entries by
 * interleaving bytes. A half of a register handles 16 runs. iq2_pair() interleaves the entries of
 * runs k and k + 8. Three more rounds interleave the registers that are 4, 2 and 1 apart. Each
 * round moves one bit of a byte's index in its entry from its place in the register to the number
 * of the register; after the last round register j has value j of the 16 runs in their order.
 */

/* Returns the interleaved entries index[0] and index[8] of the grid. */
INLINE __m128i iq2_pair(const uint8_t *index) {
    return _mm_unpacklo_epi8(_mm_loadl_epi64((const void *)cpu_iq2_runs[index[0]]),
                             _mm_loadl_epi64((const void *)cpu_iq2_runs[index[8]]));
}

INLINE void vb_iq2(const uint8_t *index, const uint8_t *sign, uint8_t *out) {
    for (int half = 0; half < 64; half += 32) {
        __m256i s = _mm256_loadu_si256((const void *)(sign + half)), r[8];

        UNROLL
        for (int k = 0; k < 8; k++)
            r[k] = _mm256_set_m128i(iq2_pair(index + half + 16 + k), iq2_pair(index + half + k));
        UNROLL
        for (int apart = 4; apart > 0; apart /= 2) {
            UNROLL
            for (int k = 0; k < 8; k++) {
                __m256i low = r[k];

                if (k & apart)
                    continue;
                r[k] = _mm256_unpacklo_epi8(low, r[k + apart]);
                r[k + apart] = _mm256_unpackhi_epi8(low, r[k + apart]);
            }
        }
        /* Shift bit j of each byte to its sign bit, and set bit 0 so that the byte is not 0:
         * _mm256_sign_epi8() negates where the byte is negative. */
        UNROLL
        for (int j = 0; j < 8; j++) {
            __m256i minus = _mm256_or_si256(_mm256_slli_epi16(s, 7 - j), _mm256_set1_epi8(1));
            __m256i v = _mm256_sign_epi8(r[j], minus);

            _mm256_storeu_si256((void *)(out + 64 * j + half),
                                _mm256_add_epi8(v, _mm256_set1_epi8(64)));
        }
    }
}
