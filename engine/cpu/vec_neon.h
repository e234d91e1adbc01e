#pragma once

/*
 * vec_neon - the vectors of vec.h with NEON: four registers each, lanes 0 to 3 in the first. The
 * kernels are compiled three times: for every AArch64, with dot products of signed bytes
 * (FEAT_DotProd), and with dot products of unsigned and signed bytes (FEAT_I8MM). The instructions
 * for bfloat16 are not used, because they do not round sums as vec.h demands.
 */

#include <arm_neon.h>

/* Columns that a kernel computes at a time. A column takes eight of the 32 registers. */
#define VEC_TILE 2

typedef struct {
    int32x4_t r[4];
} vi;
typedef struct {
    float32x4_t r[4];
} vf;
typedef struct {
    uint8x16_t r[4];
} vb;

#define EACH_REGISTER _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++)
/* Returns from the function with the vector whose register k is @e. */
#define ALL(type, e)                                                                               \
    do {                                                                                           \
        type out;                                                                                  \
        EACH_REGISTER out.r[k] = e;                                                                \
        return out;                                                                                \
    } while (0)

#define I INLINE
/* clang-format off */
I vi vi_zero(void) { ALL(vi, vdupq_n_s32(0)); }
I vi vi_set1(int32_t x) { ALL(vi, vdupq_n_s32(x)); }
I vi vi_add(vi x, vi y) { ALL(vi, vaddq_s32(x.r[k], y.r[k])); }
I vi vi_mul(vi x, vi y) { ALL(vi, vmulq_s32(x.r[k], y.r[k])); }
I vi vi_load_i8(const void *p) {
    int8x16_t v = vld1q_s8(p);
    int16x8_t a = vmovl_s8(vget_low_s8(v)), b = vmovl_high_s8(v);
    return (vi){{vmovl_s16(vget_low_s16(a)), vmovl_high_s16(a),
                 vmovl_s16(vget_low_s16(b)), vmovl_high_s16(b)}};
}
I vi vi_low4(vi x) { ALL(vi, vshrq_n_s32(vshlq_n_s32(x.r[k], 28), 28)); }
I vi vi_high4(vi x) { ALL(vi, vshrq_n_s32(x.r[k], 4)); }
I vi vi_load_pairs(const void *p) {
    ALL(vi, vreinterpretq_s32_u16(vmovl_u8(vld1_u8((const uint8_t *)p + 8 * k))));
}
I int32x4_t dot_pairs(int32x4_t acc, int16x8_t w, int16x8_t a) {
    int32x4_t low = vmull_s16(vget_low_s16(w), vget_low_s16(a));
    return vaddq_s32(acc, vpaddq_s32(low, vmull_high_s16(w, a)));
}
I vi vi_dot_pairs(vi acc, vi w, int32_t a) {
    int16x8_t x = vreinterpretq_s16_s32(vdupq_n_s32(a));
    ALL(vi, dot_pairs(acc.r[k], vreinterpretq_s16_s32(w.r[k]), x));
}
/* Returns acc + the sum of four products of signed bytes for each lane. @w may be -128; @x may not,
 * so that the sum of two products fits into 16 bits. */
I int32x4_t dot_signed(int32x4_t acc, int8x16_t w, int8x16_t x) {
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(acc, w, x);
#else
    int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    return vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(w, x)));
#endif
}
/* The weights are below 128, so they are the same numbers as signed bytes. */
I vi vi_dot6(vi acc, vb w, int32_t a) {
    int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(a));
    ALL(vi, dot_signed(acc.r[k], vreinterpretq_s8_u8(w.r[k]), x));
}
#ifdef __ARM_FEATURE_MATMUL_INT8
I vi vi_dot8(vi acc, vb w, int32_t a) {
    int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(a));
    ALL(vi, vusdotq_s32(acc.r[k], w.r[k], x));
}
I vi vi_dot8_init(int32_t neg128_sum) { return vi_set1(neg128_sum); }
#else
/* Multiplies w - 128 directly, so vi_dot8_init() has no offset to correct. */
I vi vi_dot8(vi acc, vb w, int32_t a) {
    int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(a));
    ALL(vi, dot_signed(acc.r[k], vreinterpretq_s8_u8(veorq_u8(w.r[k], vdupq_n_u8(128))), x));
}
I vi vi_dot8_init(int32_t neg128_sum) { (void)neg128_sum; return vi_zero(); }
#endif

I vf vf_zero(void) { ALL(vf, vdupq_n_f32(0)); }
I vf vf_set1(float x) { ALL(vf, vdupq_n_f32(x)); }
I vf vf_load(const float *p) { ALL(vf, vld1q_f32(p + 4 * k)); }
I void vf_store(float *p, vf x) {
    EACH_REGISTER
        vst1q_f32(p + 4 * k, x.r[k]);
}
I vf vf_swap(vf x, int step) {
    if (step == 1)
        ALL(vf, vrev64q_f32(x.r[k]));
    if (step == 2)
        ALL(vf, vextq_f32(x.r[k], x.r[k], 2));
    ALL(vf, x.r[k ^ (step / 4)]);
}
I vf vf_load_half(const void *p) {
    ALL(vf, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p + 4 * k))));
}
I void vf_store_half(uint16_t *p, vf x) {
    EACH_REGISTER
        vst1_u16(p + 4 * k, vreinterpret_u16_f16(vcvt_f16_f32(x.r[k])));
}
I vf vf_load_bf16_low(const void *p) {
    ALL(vf, vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32((const uint32_t *)p + 4 * k), 16)));
}
I vf vf_load_bf16_high(const void *p) {
    ALL(vf, vreinterpretq_f32_u32(
        vandq_u32(vld1q_u32((const uint32_t *)p + 4 * k), vdupq_n_u32(0xFFFF0000u))));
}
/* Returns 2^(e - 128) as a product of two powers, as vec_generic.h does. */
I float32x4_t e8m0_half(uint32x4_t e) {
    uint32x4_t a = vshrq_n_u32(e, 1), b = vsubq_u32(e, a), n = vdupq_n_u32(63);
    return vmulq_f32(vreinterpretq_f32_u32(vshlq_n_u32(vaddq_u32(a, n), 23)),
                     vreinterpretq_f32_u32(vshlq_n_u32(vaddq_u32(b, n), 23)));
}
I vf vf_load_e8m0_half(const void *p) {
    uint8x16_t v = vld1q_u8(p);
    uint16x8_t a = vmovl_u8(vget_low_u8(v)), b = vmovl_high_u8(v);
    return (vf){{e8m0_half(vmovl_u16(vget_low_u16(a))), e8m0_half(vmovl_high_u16(a)),
                 e8m0_half(vmovl_u16(vget_low_u16(b))), e8m0_half(vmovl_high_u16(b))}};
}
I vf vf_load_ue4m3_half(const void *p) {
    uint8x16_t v = vld1q_u8(p);
    uint16_t h[16];
    vst1q_u16(h, vshll_n_u8(vget_low_u8(v), 7));
    vst1q_u16(h + 8, vshll_n_u8(vget_high_u8(v), 7));
    vf x = vf_load_half(h);
    ALL(vf, vmulq_f32(x.r[k], vdupq_n_f32(128)));
}
/* Returns value @k of the four rows whose codes are at @p, as vec_avx512.h does. */
I float32x4_t e4m3_quarter(const uint8_t *p, int k) {
    uint8x16_t v = vld1q_u8(p), zero = vdupq_n_u8(0);
    int32x4_t x;
    if (k < 2)
        x = vreinterpretq_s32_u8(vzip1q_u8(zero, v));
    else
        x = vreinterpretq_s32_u8(vzip2q_u8(zero, v));
    if (k % 2 == 0)
        x = vshlq_n_s32(x, 16);
    x = vandq_s32(vshrq_n_s32(x, 4), vdupq_n_s32((int32_t)0x87F00000u));
    return vmulq_f32(vreinterpretq_f32_s32(x), vdupq_n_f32(0x1p120f));
}
I vf vf_load_e4m3(const uint8_t *p, int i) { ALL(vf, e4m3_quarter(p + 16 * k, i)); }
I vf vf_of_i(vi x) { ALL(vf, vcvtq_f32_s32(x.r[k])); }
I vf vf_add(vf x, vf y) { ALL(vf, vaddq_f32(x.r[k], y.r[k])); }
I vf vf_sub(vf x, vf y) { ALL(vf, vsubq_f32(x.r[k], y.r[k])); }
I vf vf_mul(vf x, vf y) { ALL(vf, vmulq_f32(x.r[k], y.r[k])); }
I vf vf_div(vf x, vf y) { ALL(vf, vdivq_f32(x.r[k], y.r[k])); }
I vf vf_fma(vf x, vf y, vf z) { ALL(vf, vfmaq_f32(z.r[k], x.r[k], y.r[k])); }
/* Returns the maximum, or @y if one operand is not a number; vmaxq_f32() would return NaN then. */
I float32x4_t max_of(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
I vf vf_max(vf x, vf y) { ALL(vf, max_of(x.r[k], y.r[k])); }
I vf vf_min(vf x, vf y) { ALL(vf, vbslq_f32(vcltq_f32(x.r[k], y.r[k]), x.r[k], y.r[k])); }
I vf vf_abs(vf x) { ALL(vf, vabsq_f32(x.r[k])); }
I vf vf_neg(vf x) { ALL(vf, vnegq_f32(x.r[k])); }
I vf vf_keep_first(vf x, uint32_t n, vf other) {
    const uint32x4_t lane = {0, 1, 2, 3};
    ALL(vf, vbslq_f32(vcltq_u32(vaddq_u32(lane, vdupq_n_u32(4 * (uint32_t)k)), vdupq_n_u32(n)),
                      x.r[k], other.r[k]));
}
I vf vf_keep_above(vf a, vf x, vf limit) {
    ALL(vf, vbslq_f32(vcgtq_f32(x.r[k], limit.r[k]), a.r[k], vdupq_n_f32(0)));
}
I vf vf_exp2i(vf n) {
    ALL(vf, vreinterpretq_f32_s32(
                vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.r[k]), vdupq_n_s32(127)), 23)));
}
I void vf_store_i8(int8_t *p, vf x) {
    int16x8_t a = vcombine_s16(vmovn_s32(vcvtq_s32_f32(x.r[0])), vmovn_s32(vcvtq_s32_f32(x.r[1])));
    int16x8_t b = vcombine_s16(vmovn_s32(vcvtq_s32_f32(x.r[2])), vmovn_s32(vcvtq_s32_f32(x.r[3])));
    vst1q_s8(p, vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
}
I float vf_reduce_add(vf x) {
    float32x4_t a = vaddq_f32(vaddq_f32(x.r[0], x.r[2]), vaddq_f32(x.r[1], x.r[3]));
    float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
}
I float vf_reduce_max(vf x) {
    float32x4_t a = max_of(max_of(x.r[0], x.r[2]), max_of(x.r[1], x.r[3]));
    a = max_of(a, vextq_f32(a, a, 2));
    return vgetq_lane_f32(max_of(a, vrev64q_f32(a)), 0);
}

I vb vb_load(const void *p) { ALL(vb, vld1q_u8((const uint8_t *)p + 16 * k)); }
I void vb_store(void *p, vb x) {
    EACH_REGISTER
        vst1q_u8((uint8_t *)p + 16 * k, x.r[k]);
}
I vb vb_set1(uint8_t x) { ALL(vb, vdupq_n_u8(x)); }
I vb vb_and(vb x, vb y) { ALL(vb, vandq_u8(x.r[k], y.r[k])); }
I vb vb_or(vb x, vb y) { ALL(vb, vorrq_u8(x.r[k], y.r[k])); }
I vb vb_shr(vb x, int n) { ALL(vb, x.r[k] >> n); }
I vb vb_shl(vb x, int n) { ALL(vb, x.r[k] << n); }
I vb vb_table(const uint8_t table[16]) { ALL(vb, vld1q_u8(table)); }
I vb vb_lookup(vb t, vb x) { ALL(vb, vqtbl1q_u8(t.r[k], vandq_u8(x.r[k], vdupq_n_u8(15)))); }
/* clang-format on */
#undef ALL
#undef EACH_REGISTER
#undef I

/* Returns the interleaved entries index[0] and index[8] of the grid. vec_avx2.h explains how
 * vb_iq2() transposes entries. */
INLINE uint8x16_t iq2_pair(const uint8_t *index) {
    const uint8x8_t none = vdup_n_u8(0);
    uint8x16_t a = vcombine_u8(vld1_u8(cpu_iq2_runs[index[0]]), none);

    return vzip1q_u8(a, vcombine_u8(vld1_u8(cpu_iq2_runs[index[8]]), none));
}

INLINE void vb_iq2(const uint8_t *index, const uint8_t *sign, uint8_t *out) {
    for (int first = 0; first < 64; first += 16) {
        uint8x16_t s = vld1q_u8(sign + first), n = vdupq_n_u8(64), r[8];

        UNROLL
        for (int k = 0; k < 8; k++)
            r[k] = iq2_pair(index + first + k);
        UNROLL
        for (int apart = 4; apart > 0; apart /= 2) {
            UNROLL
            for (int k = 0; k < 8; k++) {
                uint8x16_t low = r[k];

                if (k & apart)
                    continue;
                r[k] = vzip1q_u8(low, r[k + apart]);
                r[k + apart] = vzip2q_u8(low, r[k + apart]);
            }
        }
        UNROLL
        for (int j = 0; j < 8; j++) {
            uint8x16_t minus = vtstq_u8(s, vdupq_n_u8((uint8_t)(1 << j)));

            vst1q_u8(out + 64 * j + first, vbslq_u8(minus, vsubq_u8(n, r[j]), vaddq_u8(n, r[j])));
        }
    }
}
