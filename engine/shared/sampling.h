#pragma once

/*
 * sampling - the arithmetic of sampling that host and device share, so that the same logits give
 * the same token on both. All sums are sums of integers (2^-40 fixed point, or modulo 2^64), which
 * do not depend on the order, so neither the number of threads nor that of vector lanes matters.
 */

#include <float.h>

#include "base/mathx.h"
#include "base/rng.h"

/* Below this temperature the argmax is taken, since the noise would be smaller than rounding
 * errors. */
#define SAMP_T_MIN 1e-5f
/* Bound of mx_gumbel(), whose values lie in (-3.2, 22.9). */
#define SAMP_NOISE_MAX 22.9f
/* Replaces log 0, since JSON has no infinity. */
#define SAMP_LOGPROB_MIN (-9999.0f)

/* Returns a logit in the form that sampling uses: NaN becomes -inf, +inf the largest float, -0
 * +0. */
MX_FN float samp_clean(float x) {
    if (x != x)
        return -INFINITY;
    if (x > FLT_MAX)
        return FLT_MAX;
    return x + 0.0f;
}

/* Maps a float to an integer of the same order. */
MX_FN uint32_t samp_ordered(float f) {
    uint32_t u = mx_bits_of(f);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Returns the float that samp_ordered() maps to @o. */
MX_FN float samp_unordered(uint32_t o) {
    return mx_float_of(o & 0x80000000u ? o & 0x7FFFFFFFu : ~o);
}

/* Combines value and id in one number: a greater value is greater; of equal values, the lowest id
 * is. */
MX_FN uint64_t samp_rank(float f, uint32_t id) {
    return (uint64_t)samp_ordered(f) << 32 | (uint32_t)~id;
}

/* Returns the value of a samp_rank(). */
MX_FN float samp_rank_value(uint64_t r) {
    return samp_unordered((uint32_t)(r >> 32));
}

/* Returns the id of a samp_rank(). */
MX_FN uint32_t samp_rank_id(uint64_t r) {
    return ~(uint32_t)r;
}

/* Returns mx_expf(x) with the same bits, but without branches, so that loops over it vectorise. */
MX_FN float samp_expf(float x) {
    float c = x > -87.0f ? x : -87.0f;

    c = c < 88.0f ? c : 88.0f;
    float n = fmaf(c, 1.44269504088896341f, 12582912.0f) - 12582912.0f;
    float r = fmaf(n, -0.693359375f, c);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    p *= mx_float_of((uint32_t)((int32_t)n + 127) << 23);
    return x > -87.0f ? p : 0.0f;
}

/* Returns exp((l - max) / T) in 2^-40 fixed point, rounded to nearest. l and max must be clean, l
 * <= max, max finite. The addition of 2^52 rounds: the low bits of the sum are the integer part. */
MX_FN uint64_t samp_weight(float l, float max, float inv_t) {
    double e = (double)samp_expf((l - max) * inv_t) * 0x1p40;

    return mx_bits_of_double(e + 0x1p52) & 0xFFFFFFFFFFFFFu;
}

/* Returns the key that sampling maximises (Gumbel-max): l + T g. */
MX_FN double samp_key(float l, float temperature, uint32_t word) {
    return (double)l + (double)temperature * mx_gumbel(word);
}

/* Returns log(exp(l - max) / sum), where @sum is the sum of samp_weight(.., max, 1). */
MX_FN float samp_logprob(float l, float max, uint64_t sum) {
    if (!(l >= -FLT_MAX) || sum == 0)
        return SAMP_LOGPROB_MIN;
    double lp = (double)l - (double)max - mx_log((double)sum * 0x1p-40);
    return lp > (double)SAMP_LOGPROB_MIN ? (float)lp : SAMP_LOGPROB_MIN;
}

/* Returns a term of a row's digest. The digest is samp_digest_end() of the sum of the terms of all
 * logits modulo 2^64. A term mixes the bits of logit @i by a function that differs for every @i. */
MX_FN uint64_t samp_digest_term(uint32_t bits, uint32_t i) {
    uint32_t m = (bits ^ (i * 0x9E3779B1u)) * 0x85EBCA6Bu;

    m ^= m >> 15;
    uint32_t n = (m + i) * 0xC2B2AE35u;
    n ^= n >> 13;
    return (uint64_t)m * (n | 1u) + ((uint64_t)n << 32);
}

/* Returns the digest of @n logits from the sum of their terms, by the finalizer of SplitMix64. */
MX_FN uint64_t samp_digest_end(uint64_t sum, uint32_t n) {
    uint64_t z = sum ^ (uint64_t)n * 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
