#pragma once

/*
 * codes - the coded formats of keys and values in pages (enum page_format): values are rounded to
 * codes that share a scale, and codes become halves. The layout of codes in a page depends on their
 * bits alone (engine/shared/pages.h).
 */

#include "engine/cuda/device.cuh"
#include "engine/shared/pages.h"

/* Largest scale of Q8_0 for which 127 times the scale is finite in half precision: the next half,
 * 516, times 127 rounds to infinity. */
#define Q8_SCALE_MAX 515.5f

/* Rounds 32 values, one of each lane, to codes of Q8_0, -127 to 127. The scale is max / 127. */
DEVICE float round_to_8(float x, uint16_t *scale) {
    float max = warp_max(fabsf(x)), inverse = max > 0 ? 127.0f / max : 0;

    *scale = (uint16_t)pack_half(fminf(max / 127.0f, Q8_SCALE_MAX));
    return fminf(fmaxf(x * inverse + TO_INTEGER - TO_INTEGER, -127.0f), 127.0f);
}

/* Rounds 32 values, one of each lane, to codes of Q4_0, with 8 added. The value furthest from 0
 * becomes -8 times the scale. */
DEVICE float round_to_4(float x, uint16_t *scale) {
    float high = warp_max(x), low = -warp_max(-x);

    *scale = (uint16_t)pack_half((high >= -low ? high : low) / -8.0f);
    float step = half_to_float(*scale), inverse = step != 0 ? 1.0f / step : 0;
    return fminf(fmaxf(x * inverse, -8.0f), 7.0f) + TO_INTEGER - TO_INTEGER + 8;
}

/* Rounds 32 values, one of each lane, to codes of @format, as bytes or nibbles have them. */
DEVICE float round_to_code(uint32_t format, float x, uint16_t *scale) {
    if (format == PAGE_Q8_0)
        return round_to_8(x, scale);
    return round_to_4(x, scale);
}

/* Converts four bytes of a word, each minus @more, to two words of halves; exact. */
DEVICE void byte_halves(uint32_t q, uint32_t more, uint32_t *h0, uint32_t *h1) {
    uint32_t less = (0x6400u + more) * 0x10001u; /* 1024 + more */

    *h0 = sub_halves(byte_permute(q, 0x64646464u, 0x4140u), less);
    *h1 = sub_halves(byte_permute(q, 0x64646464u, 0x4342u), less);
}

/* Returns the products of the halves of @v and @s. */
DEVICE struct vec4 scale_halves(struct vec4 v, struct vec4 s) {
    return {mul_halves(v.x, s.x), mul_halves(v.y, s.y), mul_halves(v.z, s.z), mul_halves(v.w, s.w)};
}

/* Returns eight signed codes of 8 bits, in two words, times the halves of @s. */
template <int F> DEVICE struct vec4 scale_words(const uint32_t q[2], struct vec4 s) {
    static_assert(F == PAGE_Q8_0, "the only format of bytes");
    struct vec4 v;

    byte_halves(q[0] ^ 0x80808080u, 128, &v.x, &v.y);
    byte_halves(q[1] ^ 0x80808080u, 128, &v.z, &v.w);
    return scale_halves(v, s);
}

/* Returns eight codes of 4 bits in a word as halves: first the low nibbles of the bytes, then the
 * high ones. */
template <int F> DEVICE struct vec4 nibble_halves(uint32_t q) {
    static_assert(F == PAGE_Q4_0, "the only format of nibbles");
    struct vec4 v;

    byte_halves(q & 0x0F0F0F0Fu, 8, &v.x, &v.y);
    byte_halves(q >> 4 & 0x0F0F0F0Fu, 8, &v.z, &v.w);
    return v;
}

/* Returns four codes, one of each byte of @q, as halves; of nibbles the low or the @high ones. */
template <int F> DEVICE void four_halves(uint32_t q, bool high, uint32_t h[2]) {
    if constexpr (PAGE_BITS(F) == 8)
        byte_halves(q ^ 0x80808080u, 128, &h[0], &h[1]);
    else
        byte_halves(q >> (high ? 4 : 0) & 0x0F0F0F0Fu, 8, &h[0], &h[1]);
}

/* Decodes two values of eight keys, codes of 4 bits in two words, times the halves of @s. */
template <int F>
DEVICE void scale_pair(const uint32_t q[2], struct vec4 s, struct vec4 *low, struct vec4 *high) {
    struct vec4 a = nibble_halves<F>(q[0]), b = nibble_halves<F>(q[1]);

    *low = scale_halves({a.x, a.y, b.x, b.y}, s);
    *high = scale_halves({a.z, a.w, b.z, b.w}, s);
}

/* Returns eight codes of format F times one scale. */
template <int F> DEVICE struct vec4 scale_key_words(const uint32_t *q, uint32_t scale) {
    uint32_t twice = scale * 0x10001u;
    struct vec4 s = {twice, twice, twice, twice};

    if constexpr (PAGE_BITS(F) == 4)
        return scale_halves(nibble_halves<F>(q[0]), s);
    else
        return scale_words<F>(q, s);
}

/* Reads eight codes of format F at @codes, as words. */
template <int F> DEVICE void load_codes(const void *codes, uint32_t *q) {
    if constexpr (PAGE_BITS(F) == 4)
        q[0] = *(const uint32_t *)codes;
    else
        load8(codes, q);
}

/* Reads eight codes of format F at @codes and scales them. */
template <int F> DEVICE struct vec4 scale_key(const void *codes, uint16_t scale) {
    uint32_t q[2];

    load_codes<F>(codes, q);
    return scale_key_words<F>(q, scale);
}
