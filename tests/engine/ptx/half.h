#pragma once

/*
 * half - conversions between half precision and the host's floats.
 */

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float f) {
    uint32_t u;

    memcpy(&u, &f, 4);
    return u;
}

static inline float float_of(uint32_t u) {
    float f;

    memcpy(&f, &u, 4);
    return f;
}

/* Converts exactly. */
static inline float half_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3FF;

    if (e == 31)
        return float_of(sign | 0x7F800000 | m << 13);
    if (e == 0) {
        float f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    return float_of(sign | (e + 112) << 23 | m << 13);
}

/* Rounds to nearest, ties to even. */
static inline uint16_t float_half(float f) {
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFF;

    if (a > 0x7F800000)
        return 0x7FFF;
    if (a >= 0x477FF000)
        return (uint16_t)(sign | 0x7C00);
    if (a < 0x38800000) { /* below 2^-14: the last place of the sum is that of a subnormal half */
        float sum = float_of(a) + 0.5f;
        return (uint16_t)(sign | (bits_of(sum) - 0x3F000000));
    }
    a += 0xFFF + (a >> 13 & 1);
    return (uint16_t)(sign | (a - 0x38000000) >> 13);
}

/* Converts @n numbers, a multiple of 8. */
void halves_to_floats(float *f, const uint16_t *h, uint32_t n);
void floats_to_halves(uint16_t *h, const float *f, uint32_t n);
