#pragma once

/*
 * mathx - exp, log, sin and cos with the same bits on every machine and device.
 *
 * libm gives other last bits on other CPUs and in other versions; the results of a model must not
 * depend on that. Every function here is a fixed sequence of IEEE operations with explicit fma, so
 * a vectorised copy that performs the same operations lane by lane agrees bit for bit. Compile with
 * -ffp-contract=off (nvcc: --fmad=false where these are used). Polynomials: Cephes (expf) and
 * fdlibm (double); errors: expf < 2 ulp, the double functions < 1 ulp on the ranges stated.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MX_FN __host__ __device__ static inline
#else
#define MX_FN static inline
#endif

/* Returns the float with these bits. */
MX_FN float mx_float_of(uint32_t bits) {
    float f;

    memcpy(&f, &bits, 4);
    return f;
}

/* Returns the bits of a float. */
MX_FN uint32_t mx_bits_of(float f) {
    uint32_t u;

    memcpy(&u, &f, 4);
    return u;
}

/* Returns the double with these bits. */
MX_FN double mx_double_of(uint64_t bits) {
    double f;

    memcpy(&f, &bits, 8);
    return f;
}

/* Returns the bits of a double. */
MX_FN uint64_t mx_bits_of_double(double f) {
    uint64_t u;

    memcpy(&u, &f, 8);
    return u;
}

/* Returns e^x. Below -87 the result is 0, above 88 it is e^88 (finite): callers subtract the
 * maximum. */
MX_FN float mx_expf(float x) {
    if (!(x > -87.0f))
        return x == x ? 0.0f : x;
    x = x < 88.0f ? x : 88.0f;
    float n = fmaf(x, 1.44269504088896341f, 12582912.0f) - 12582912.0f; /* nearest integer */
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    return p * mx_float_of((uint32_t)((int32_t)n + 127) << 23);
}

/* Returns 1 / (1 + e^-x). */
MX_FN float mx_sigmoid(float x) {
    return 1.0f / (1.0f + mx_expf(-x));
}

/* Returns x / (1 + e^-x). */
MX_FN float mx_silu(float x) {
    return x / (1.0f + mx_expf(-x));
}

/* Returns x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). */
MX_FN float mx_gelu(float x) {
    return x / (1.0f + mx_expf(-1.5957691216057308f * fmaf(0.044715f * x * x, x, x)));
}

/* Returns x / 2 (1 + erf(x / sqrt(2))), with 1 - erf by formula 7.1.26 of Abramowitz and Stegun,
 * whose absolute error is below 1.5e-7. */
MX_FN float mx_gelu_erf(float x) {
    float y = fabsf(x) * 0.70710678118654752f, t = 1.0f / fmaf(0.3275911f, y, 1.0f);
    float p = 1.061405429f;

    p = fmaf(p, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f);
    float tail = 0.5f * fabsf(x) * p * t * mx_expf(-y * y);
    return x < 0 ? -tail : x - tail;
}

/* Returns cap tanh(x / cap). */
MX_FN float mx_soft_cap(float x, float cap) {
    float e = mx_expf(2.0f / cap * x);

    return cap * ((e - 1.0f) / (e + 1.0f));
}

/* Returns the natural logarithm of a normal positive double. */
MX_FN double mx_log(double x) {
    uint64_t u = mx_bits_of_double(x);
    int k = (int)(u >> 52) - 1023;
    u = (u & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u;
    double m = mx_double_of(u); /* in [1, 2) */

    if (m > 1.4142135623730951) {
        m *= 0.5;
        k++;
    }
    double f = m - 1.0, s = f / (2.0 + f), z = s * s;
    double p = 1.479819860511658591e-01;
    p = fma(p, z, 1.531383769920937332e-01);
    p = fma(p, z, 1.818357216161805012e-01);
    p = fma(p, z, 2.222219843214978396e-01);
    p = fma(p, z, 2.857142874366239149e-01);
    p = fma(p, z, 3.999999999940941908e-01);
    p = fma(p, z, 6.666666666666735130e-01);
    double h = 0.5 * f * f;
    double r = fma(s, fma(p, z, h), (double)k * 1.90821492927058770002e-10);
    return fma((double)k, 6.93147180369123816490e-01, f - (h - r));
}

/* Returns e^x for |x| < 700. */
MX_FN double mx_exp(double x) {
    double n = fma(x, 1.44269504088896338700, 6755399441055744.0) - 6755399441055744.0;
    double hi = fma(n, -6.93147180369123816490e-01, x), lo = n * 1.90821492927058770002e-10;
    double r = hi - lo, t = r * r;
    double p = 4.13813679705723846039e-08;
    p = fma(p, t, -1.65339022054652515390e-06);
    p = fma(p, t, 6.61375632143793436117e-05);
    p = fma(p, t, -2.77777777770155933842e-03);
    p = fma(p, t, 1.66666666666666019037e-01);
    double c = r - p * t;
    double y = 1.0 - ((lo - (r * c) / (2.0 - c)) - hi);
    return y * mx_double_of((uint64_t)((int64_t)n + 1023) << 52);
}

/* Returns ln(1 + e^x); above 20, where the difference is less than 1e-8, x. */
MX_FN float mx_softplus(float x) {
    return x > 20 ? x : (float)mx_log(1.0 + (double)mx_expf(x));
}

/* Returns @base^@y for base > 0. */
MX_FN double mx_pow(double base, double y) {
    return mx_exp(y * mx_log(base));
}

/* Computes sin and cos of @x, |x| < 2^27 (a position times a frequency). */
MX_FN void mx_sincos(double x, double *sin_out, double *cos_out) {
    double n = fma(x, 6.36619772367581382433e-01, 6755399441055744.0) - 6755399441055744.0;
    double r = fma(n, -1.57079632673412561417e+00, x);
    r = fma(n, -6.07710050630396597660e-11, r);
    r = fma(n, -2.02226624879595063154e-21, r);
    double z = r * r;
    double s = 1.58969099521155010221e-10;
    s = fma(s, z, -2.50507602534068634195e-08);
    s = fma(s, z, 2.75573137070700676789e-06);
    s = fma(s, z, -1.98412698298579493134e-04);
    s = fma(s, z, 8.33333333332248946124e-03);
    s = fma(s, z, -1.66666666666666324348e-01);
    s = fma(s * z, r, r);
    double c = -1.13596475577881948265e-11;
    c = fma(c, z, 2.08757232129817482790e-09);
    c = fma(c, z, -2.75573143513906633035e-07);
    c = fma(c, z, 2.48015872894767294178e-05);
    c = fma(c, z, -1.38888888888741095749e-03);
    c = fma(c, z, 4.16666666666666019037e-02);
    c = fma(z * z, c, fma(-0.5, z, 1.0));
    switch ((int)((int64_t)n & 3)) {
    case 0:
        *sin_out = s, *cos_out = c;
        break;
    case 1:
        *sin_out = c, *cos_out = -s;
        break;
    case 2:
        *sin_out = -s, *cos_out = -c;
        break;
    default:
        *sin_out = -c, *cos_out = s;
        break;
    }
}

/* Returns the Gumbel noise of a random word: -log(-log1p(-(x + 0.5) 2^-32)),
 * docs/design/architecture.md 7. 1 - u is exact in double, so log(1 - u) needs no log1p. */
MX_FN double mx_gumbel(uint32_t x) {
    double u = ((double)x + 0.5) * 0x1p-32;

    return -mx_log(-mx_log(1.0 - u));
}

/* Converts exactly. */
MX_FN float mx_half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3FFu;

    if (e == 0) /* zero and subnormal: m * 2^-24 is exact */
        return mx_float_of(mx_bits_of((float)m * 0x1p-24f) | sign);
    if (e == 31)
        return mx_float_of(sign | 0x7F800000u | (m << 13));
    return mx_float_of(sign | ((e + 112) << 23) | (m << 13));
}

/* Rounds to nearest even, as the hardware conversions do. */
MX_FN uint16_t mx_float_to_half(float f) {
    uint32_t u = mx_bits_of(f), sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;

    if (a > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u);
    if (a >= 0x47800000u) /* 65536 and above; 65520..65535 round up below */
        return (uint16_t)(sign | 0x7C00u);
    if (a < 0x38800000u) { /* below 2^-14: subnormal, let the FPU round at 2^-24 */
        float r = mx_float_of(a) + 0.5f;

        return (uint16_t)(sign | (mx_bits_of(r) - 0x3F000000u));
    }
    a += 0xFFFu + ((a >> 13) & 1u);
    return (uint16_t)(sign | ((a >> 13) - (112u << 10)));
}

/* Converts exactly: bfloat16 is the upper half of a float. */
MX_FN float mx_bf16_to_float(uint16_t h) {
    return mx_float_of((uint32_t)h << 16);
}

/* The least bfloat16 above 0 with which the CPU backend multiplies: 2^-55. */
#define MX_BF16_LEAST ((127u - 55u) << 7)

/* Rounds to the nearest bfloat16, ties to even; 0 if that is below MX_BF16_LEAST. */
MX_FN uint16_t mx_float_to_bf16(float f) {
    uint32_t x = mx_bits_of(f), a = x & 0x7FFFFFFFu;
    uint32_t rounded = (x + 0x7FFFu + (x >> 16 & 1u)) >> 16;

    if (a > 0x7F800000u)
        return (uint16_t)(x >> 16 | 0x40u);
    return (uint16_t)((rounded & 0x7FFFu) < MX_BF16_LEAST ? 0 : rounded);
}

/* Returns the value of a code of E4M3, which has no infinities; 0x7F and 0xFF are not numbers. */
MX_FN float mx_e4m3_to_float(uint8_t x) {
    uint32_t sign = (uint32_t)(x & 0x80) << 24, e = x >> 3 & 15, m = x & 7;

    if ((x & 0x7F) == 0x7F)
        return mx_float_of(0x7FC00000u);
    if (e == 0)
        return mx_float_of(sign | mx_bits_of((float)m * 0x1p-9f));
    return mx_float_of(sign | (e + 120) << 23 | m << 20);
}

/* Returns half of an E8M0 scale: 2^(e - 128). */
MX_FN float mx_e8m0_half(uint8_t e) {
    return mx_float_of(e < 2 ? 0x200000u << e : (e - 1u) << 23);
}

/* Returns half of an unsigned scale with four bits of exponent and three of mantissa. */
MX_FN float mx_ue4m3_half(uint8_t x) {
    unsigned e = (x >> 3) & 15, m = x & 7;

    if (x == 0x7F)
        return 0;
    return e ? mx_float_of((e + 119) << 23 | m << 20) : (float)m * 0x1p-10f;
}
