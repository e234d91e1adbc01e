#include <math.h>

#include "tests/engine/ptx/half.h"
#include "tests/engine/ptx/lanes.h"
#include "tests/engine/ptx/parse.h"
#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
#endif

/* Instructions on floats. The host rounds to nearest and keeps subnormal numbers, as PTX does
 * without .ftz. */

void halves_to_floats(float *f, const uint16_t *h, uint32_t n) {
#if defined(__F16C__) && defined(__AVX__)
    for (uint32_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(f + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(h + i))));
#else
    for (uint32_t i = 0; i < n; i++)
        f[i] = half_float(h[i]);
#endif
}

void floats_to_halves(uint16_t *h, const float *f, uint32_t n) {
#if defined(__F16C__) && defined(__AVX__)
    for (uint32_t i = 0; i < n; i += 8)
        _mm_storeu_si128((void *)(h + i), _mm256_cvtps_ph(_mm256_loadu_ps(f + i), 0));
#else
    for (uint32_t i = 0; i < n; i++)
        h[i] = float_half(f[i]);
#endif
}

OP2(add_f32, float, float, float, a + b)
OP2(sub_f32, float, float, float, a - b)
OP2(mul_f32, float, float, float, a *b)
OP2(div_f32, float, float, float, a / b)
OP3(fma_f32, float, float, float, float, __builtin_fmaf(a, b, c))
OP2(add_f64, double, double, double, a + b)
OP2(sub_f64, double, double, double, a - b)
OP2(mul_f64, double, double, double, a *b)
OP2(div_f64, double, double, double, a / b)
OP3(fma_f64, double, double, double, double, __builtin_fma(a, b, c))
OP1(rcp_f32, float, float, 1.0f / a)
OP1(rcp_f64, double, double, 1.0 / a)
OP1(sqrt_f32, float, float, __builtin_sqrtf(a))
OP1(sqrt_f64, double, double, __builtin_sqrt(a))
OP1(rsqrt_f32, float, float, 1.0 / __builtin_sqrt((double)a))
OP1(abs_f32, uint32_t, uint32_t, a & 0x7FFFFFFF)
OP1(neg_f32, uint32_t, uint32_t, a ^ 0x80000000)
OP1(abs_f64, uint64_t, uint64_t, a & ~(1ull << 63))
OP1(neg_f64, uint64_t, uint64_t, a ^ 1ull << 63)

/* If one operand is NaN, the result is the other one; -0 is less than +0. */
static inline uint32_t min_bits(uint32_t x, uint32_t y) {
    float a = float_of(x), b = float_of(y);

    x = a == b ? x | y : a < b ? x : y;
    x = b != b ? bits_of(a) : x;
    return a != a ? (b != b ? 0x7FFFFFFF : y) : x;
}
static inline uint32_t max_bits(uint32_t x, uint32_t y) {
    float a = float_of(x), b = float_of(y);

    x = a == b ? x & y : a > b ? x : y;
    x = b != b ? bits_of(a) : x;
    return a != a ? (b != b ? 0x7FFFFFFF : y) : x;
}
OP2(min_f32, uint32_t, uint32_t, uint32_t, min_bits(a, b))
OP2(max_f32, uint32_t, uint32_t, uint32_t, max_bits(a, b))
OP2(min_f64, double, double, double,
    a != a   ? b
    : b != b ? a
    : a == b ? (signbit(a) ? a : b)
    : a < b  ? a
             : b)
OP2(max_f64, double, double, double,
    a != a   ? b
    : b != b ? a
    : a == b ? (signbit(a) ? b : a)
    : a > b  ? a
             : b)

/* Returns a + b rounded towards zero: the sum in double precision and its error tell on which side
 * of the float the exact sum is. */
static float added_to_zero(float a, float b) {
    double x = a, y = b, s = x + y, z = s - x, e = (x - (s - z)) + (y - z);
    float f = (float)s;

    if (!(fabs(s) < INFINITY))
        return isinf(a) || isinf(b) || isnan(s) ? f : copysignf(0x1.fffffep127f, f);
    double over = (double)f - s;
    bool away = s > 0 ? over > 0 || (over == 0 && e < 0) : over < 0 || (over == 0 && e > 0);

    if (isinf(f))
        return copysignf(0x1.fffffep127f, f);
    return away && s != 0 ? nextafterf(f, 0) : f;
}
OP2(add_rz_f32, float, float, float, added_to_zero(a, b))
OP2(sub_rz_f32, float, float, float, added_to_zero(a, -b))

/* Returns 2^x by a polynomial in double precision, more exactly than the 2^-22 of ex2.approx. */
static inline float exponential(float x) {
    double y = x < -200 ? -200 : x > 200 ? 200 : (double)x, n, f, p = 1, step;
    union {
        uint64_t u;
        double d;
    } scale;

    n = __builtin_floor(y + 0.5);
    f = (y - n) * 0.69314718055994530942;
    step = f;
    p += step;
    step *= f * (1.0 / 2), p += step;
    step *= f * (1.0 / 3), p += step;
    step *= f * (1.0 / 4), p += step;
    step *= f * (1.0 / 5), p += step;
    step *= f * (1.0 / 6), p += step;
    step *= f * (1.0 / 7), p += step;
    step *= f * (1.0 / 8), p += step;
    step *= f * (1.0 / 9), p += step;
    step *= f * (1.0 / 10), p += step;
    scale.u = (uint64_t)(int64_t)((int32_t)n + 1023) << 52;
    return (float)(p * scale.d);
}

/* Replaces subnormal numbers by 0 with their sign. */
static inline float flushed(float f) {
    uint32_t u = bits_of(f);

    return (u & 0x7F800000) == 0 ? float_of(u & 0x80000000) : f;
}
static inline float exponential_of(float x) {
    return x != x ? x : exponential(x);
}
OP1(ex2_ftz, float, float, flushed(exponential_of(flushed(a))))
OP1(ex2, float, float, exponential_of(a))
OP1(lg2, float, float, log2((double)a))
OP1(lg2_ftz, float, float, flushed((float)log2((double)flushed(a))))
OP1(sin_f32, float, float, sin((double)a))
OP1(cos_f32, float, float, cos((double)a))
OP1(tanh_f32, float, float, tanh((double)a))

/* ---- pairs of halves ---- */

struct pairs {
    _Alignas(32) float v[2 * LANES];
};

static struct pairs pairs_of(const struct warp *w, int32_t at) {
    struct pairs p;

    halves_to_floats(p.v, place(w, at), 2 * LANES);
    return p;
}

static void put_pairs(struct warp *w, const struct op *o, uint32_t m, const struct pairs *p) {
    uint16_t h[2 * LANES];
    uint32_t *d = place(w, o->r[0]);

    floats_to_halves(h, p->v, 2 * LANES);
    EACH_LANE(m, memcpy(&d[l], &h[2 * l], 4));
}

/* A float has more than twice the bits of a half plus two, so rounding first to float and then to
 * half equals rounding once. */
#define PAIRS(NAME, EXPR)                                                                          \
    static void NAME(struct warp *w, const struct op *o, uint32_t m) {                             \
        struct pairs x = pairs_of(w, o->r[1]), y = pairs_of(w, o->r[2]);                           \
        for (uint32_t i = 0; i < 2 * LANES; i++) {                                                 \
            float a = x.v[i], b = y.v[i];                                                          \
            x.v[i] = (EXPR);                                                                       \
        }                                                                                          \
        put_pairs(w, o, m, &x);                                                                    \
    }
PAIRS(add_f16x2, a + b)
PAIRS(sub_f16x2, a - b)
PAIRS(mul_f16x2, a *b)

/* Rounds to odd, so that rounding the float to half later is right. The double d is exact, except
 * where the half is c in any case. */
static inline float odd_float(double d) {
    float f = (float)d;
    uint32_t u = bits_of(f);
    bool exact = (double)f == d || d != d || __builtin_isinf(f);
    bool away = __builtin_fabs((double)f) > __builtin_fabs(d);

    return exact ? f : float_of((u - away) | 1);
}
static void fma_f16x2(struct warp *w, const struct op *o, uint32_t m) {
    struct pairs a = pairs_of(w, o->r[1]), b = pairs_of(w, o->r[2]), c = pairs_of(w, o->r[3]);

    for (uint32_t i = 0; i < 2 * LANES; i++)
        a.v[i] = odd_float((double)a.v[i] * (double)b.v[i] + (double)c.v[i]);
    put_pairs(w, o, m, &a);
}

/* The first source becomes the upper half. */
static void cvt_f16x2_f32(struct warp *w, const struct op *o, uint32_t m) {
    const float *a = place(w, o->r[1]), *b = place(w, o->r[2]);
    struct pairs p;

    for (uint32_t l = 0; l < LANES; l++) {
        p.v[2 * l] = b[l];
        p.v[2 * l + 1] = a[l];
    }
    put_pairs(w, o, m, &p);
}

OP1(cvt_f32_f16, float, uint16_t, half_float(a))
OP1(cvt_f16_f32, uint16_t, float, float_half(a))

/* ---- frequent conversions; all others are in convert.c ---- */

OP1(cvt_64_u32, uint64_t, uint32_t, a)
OP1(cvt_64_s32, int64_t, int32_t, a)
OP1(cvt_32_64, uint32_t, uint64_t, a)
OP1(cvt_f32_s32, float, int32_t, a)
OP1(cvt_f32_u32, float, uint32_t, a)

/* Round towards zero, and to the nearest integer that the type has; NaN gives 0. */
static inline int32_t truncated(float a) {
    return a != a                ? 0
           : a >= 2147483648.0f  ? INT32_MAX
           : a <= -2147483648.0f ? INT32_MIN
                                 : (int32_t)a;
}
OP1(cvt_s32_f32, int32_t, float, truncated(a))

const struct form ptx_float_forms[] = {
    {"add.f32", add_f32, "444"},
    {"add.rn.f32", add_f32, "444"},
    {"sub.f32", sub_f32, "444"},
    {"sub.rn.f32", sub_f32, "444"},
    {"mul.f32", mul_f32, "444"},
    {"mul.rn.f32", mul_f32, "444"},
    {"add.rz.f32", add_rz_f32, "444"},
    {"sub.rz.f32", sub_rz_f32, "444"},
    {"div.rn.f32", div_f32, "444"},
    {"fma.rn.f32", fma_f32, "4444"},
    {"rcp.rn.f32", rcp_f32, "44"},
    {"sqrt.rn.f32", sqrt_f32, "44"},
    {"rsqrt.approx.f32", rsqrt_f32, "44"},
    {"abs.f32", abs_f32, "44"},
    {"neg.f32", neg_f32, "44"},
    {"min.f32", min_f32, "444"},
    {"max.f32", max_f32, "444"},
    {"ex2.approx.ftz.f32", ex2_ftz, "44"},
    {"ex2.approx.f32", ex2, "44"},
    {"lg2.approx.f32", lg2, "44"},
    {"lg2.approx.ftz.f32", lg2_ftz, "44"},
    {"sin.approx.f32", sin_f32, "44"},
    {"cos.approx.f32", cos_f32, "44"},
    {"tanh.approx.f32", tanh_f32, "44"},
    {"add.f64", add_f64, "888"},
    {"add.rn.f64", add_f64, "888"},
    {"sub.f64", sub_f64, "888"},
    {"sub.rn.f64", sub_f64, "888"},
    {"mul.f64", mul_f64, "888"},
    {"mul.rn.f64", mul_f64, "888"},
    {"div.rn.f64", div_f64, "888"},
    {"fma.rn.f64", fma_f64, "8888"},
    {"rcp.rn.f64", rcp_f64, "88"},
    {"sqrt.rn.f64", sqrt_f64, "88"},
    {"abs.f64", abs_f64, "88"},
    {"neg.f64", neg_f64, "88"},
    {"min.f64", min_f64, "888"},
    {"max.f64", max_f64, "888"},
    {"add.f16x2", add_f16x2, "444"},
    {"add.rn.f16x2", add_f16x2, "444"},
    {"sub.f16x2", sub_f16x2, "444"},
    {"sub.rn.f16x2", sub_f16x2, "444"},
    {"mul.f16x2", mul_f16x2, "444"},
    {"mul.rn.f16x2", mul_f16x2, "444"},
    {"fma.rn.f16x2", fma_f16x2, "4444"},
    {"cvt.rn.f16x2.f32", cvt_f16x2_f32, "444"},
    {"cvt.f32.f16", cvt_f32_f16, "42"},
    {"cvt.rn.f16.f32", cvt_f16_f32, "24"},
    {"cvt.u64.u32", cvt_64_u32, "84"},
    {"cvt.s64.s32", cvt_64_s32, "84"},
    {"cvt.u32.u64", cvt_32_64, "48"},
    {"cvt.rn.f32.s32", cvt_f32_s32, "44"},
    {"cvt.rn.f32.u32", cvt_f32_u32, "44"},
    {"cvt.rzi.s32.f32", cvt_s32_f32, "44"},
};
const uint32_t ptx_n_float_forms = sizeof(ptx_float_forms) / sizeof(*ptx_float_forms);
