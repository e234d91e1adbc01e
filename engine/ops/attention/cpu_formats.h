#pragma once

/*
 * cpu_formats - the formats of keys and values in pages of the CPU backend: how a key and a value
 * are written and loaded. cpu_tiles.c, which is compiled once for each instruction set, includes
 * it.
 */

#include "engine/cpu/kernels.h"

/* -- loading ----------------------------------------------------------------------------------- */

/* Loads dimensions @d (even) and @d + 1 of 16 keys. In q4_0 the two are the halves of a byte. */
INLINE void load_k(enum engine_kv_type type, const uint8_t *group, uint32_t d, vf out[2]) {
    if (type == ENGINE_KV_F16) {
        out[0] = vf_load_half(group + (size_t)d * LANES * 2);
        out[1] = vf_load_half(group + (size_t)(d + 1) * LANES * 2);
    } else if (type == ENGINE_KV_Q8_0) {
        out[0] = vf_of_i(vi_load_i8(group + (size_t)d * LANES));
        out[1] = vf_of_i(vi_load_i8(group + (size_t)(d + 1) * LANES));
    } else {
        vi both = vi_load_i8(group + (size_t)(d / 2) * LANES);

        out[0] = vf_of_i(vi_low4(both));
        out[1] = vf_of_i(vi_high4(both));
    }
}

/* Loads dimensions @d to @d + 15 of the value of key @j. In q4_0 they are half a block: @second if
 * @d is not a multiple of 32. */
INLINE vf load_v(const struct kv_view *v, enum engine_kv_type type, const struct attn_tile *t,
                 uint32_t j, uint32_t d, bool second) {
    const uint8_t *row = t->v[j / LANES] + kv_codes(type, (size_t)(j % LANES) * v->value_dim);

    if (type == ENGINE_KV_F16)
        return vf_load_half(row + 2 * (size_t)d);
    if (type == ENGINE_KV_Q8_0)
        return vf_of_i(vi_load_i8(row + d));
    vi both = vi_load_i8(row + d / 32 * LANES);
    if (second)
        return vf_of_i(vi_high4(both));
    return vf_of_i(vi_low4(both));
}

/* -- writing ----------------------------------------------------------------------------------- */

/* Quantises a block of 32 values to int8 (Q8_0). Returns the scale in half precision. */
static uint16_t quantize32(const float *x, int8_t *q) {
    vf most = vf_max(vf_abs(vf_load(x)), vf_abs(vf_load(x + LANES)));
    uint16_t d = mx_float_to_half(vf_reduce_max(most) / 127.0f);
    float scale = mx_half_to_float(d);
    vf inverse = vf_set1(scale > 0.0f ? 1.0f / scale : 0.0f), limit = vf_set1(127.0f);

    for (int i = 0; i < 32; i += LANES) {
        vf v = vf_max(vf_min(vf_mul(vf_load(x + i), inverse), limit), vf_neg(limit));

        vf_store_i8(q + i, vf_round(v));
    }
    return d;
}

/* Quantises a block of 32 values to codes from -8 to 7 (Q4_0), one in each byte. Returns the scale
 * in half precision: the value with the largest magnitude divided by -8. */
static uint16_t quantize32_4(const float *x, int8_t *q) {
    vf a = vf_load(x), b = vf_load(x + LANES);
    float high = vf_reduce_max(vf_max(a, b)), low = vf_reduce_max(vf_max(vf_neg(a), vf_neg(b)));
    uint16_t d = mx_float_to_half((high >= low ? high : -low) / -8.0f);
    float scale = mx_half_to_float(d);
    vf inverse = vf_set1(scale != 0.0f ? 1.0f / scale : 0.0f);

    for (int i = 0; i < 32; i += LANES) {
        vf v = vf_max(vf_min(vf_mul(vf_load(x + i), inverse), vf_set1(7.0f)), vf_set1(-8.0f));

        vf_store_i8(q + i, vf_round(v));
    }
    return d;
}

/* Returns a byte with the lower four bits of two numbers. */
static uint8_t join4(int8_t low, int8_t high) {
    return (uint8_t)((low & 15) | (high & 15) << 4);
}

/* Writes key @lane of a group of 16 keys as Q4_0. The group has codes [head_dim / 2][16 keys],
 * where byte i of a key has dimensions 2i and 2i + 1, then scales [head_dim / 32][16 keys]. */
static void key_q4(const struct kv_view *v, uint8_t *k_group, uint32_t lane, const float *k) {
    uint8_t *scale = k_group + (size_t)LANES * v->head_dim / 2;

    for (uint32_t b = 0; b < v->head_dim / 32; b++) {
        int8_t q[32];
        uint16_t d = quantize32_4(k + 32 * b, q);

        memcpy(scale + (b * LANES + lane) * 2, &d, 2);
        for (uint32_t i = 0; i < 32; i += 2)
            k_group[(32 * b + i) / 2 * LANES + lane] = join4(q[i], q[i + 1]);
    }
}

/* Writes the value of position @slot as Q4_0. The kv head has codes [page_tokens][value_dim / 2],
 * where a byte has dimensions i and i + 16 of a block, then scales [page_tokens][value_dim / 32].
 */
static void value_q4(const struct kv_view *v, uint8_t *v_head, uint32_t slot, const float *val) {
    uint32_t hd = v->value_dim;
    uint8_t *row = v_head + (size_t)slot * hd / 2;
    uint8_t *scale = v_head + (size_t)v->page_tokens * hd / 2 + (size_t)slot * (hd / 32) * 2;

    for (uint32_t b = 0; b < hd / 32; b++) {
        int8_t q[32];
        uint16_t d = quantize32_4(val + 32 * b, q);

        memcpy(scale + 2 * b, &d, 2);
        for (uint32_t i = 0; i < LANES; i++)
            row[b * LANES + i] = join4(q[i], q[i + LANES]);
    }
}

/* Writes a key as Q8_0: codes [head_dim][16 keys], then scales as in key_q4(). */
static void key_q8(const struct kv_view *v, uint8_t *k_group, uint32_t lane, const float *k) {
    uint8_t *scale = k_group + (size_t)LANES * v->head_dim;

    for (uint32_t b = 0; b < v->head_dim / 32; b++) {
        int8_t q[32];
        uint16_t d = quantize32(k + 32 * b, q);

        memcpy(scale + (b * LANES + lane) * 2, &d, 2);
        for (uint32_t i = 0; i < 32; i++)
            k_group[(32 * b + i) * LANES + lane] = (uint8_t)q[i];
    }
}

/* Writes a value as Q8_0: codes [page_tokens][value_dim], then scales as in value_q4(). */
static void value_q8(const struct kv_view *v, uint8_t *v_head, uint32_t slot, const float *val) {
    uint32_t hd = v->value_dim;
    uint8_t *scale = v_head + (size_t)v->page_tokens * hd + (size_t)slot * (hd / 32) * 2;

    for (uint32_t b = 0; b < hd / 32; b++) {
        int8_t q[32];
        uint16_t d = quantize32(val + 32 * b, q);

        memcpy(scale + 2 * b, &d, 2);
        memcpy(v_head + (size_t)slot * hd + 32 * b, q, 32);
    }
}

/* Rounds @n values, at most 16, to half precision. */
static void kv_halves(const float *x, uint32_t n, uint16_t half[LANES]) {
    float part[LANES] = {0};

    memcpy(part, x, n * sizeof(float));
    vf_store_half(half, vf_load(part));
}

/* Writes a key in half precision: [head_dim][16 keys]. */
static void key_f16(const struct kv_view *v, uint8_t *k_group, uint32_t lane, const float *k) {
    for (uint32_t d = 0; d < v->head_dim; d += LANES) {
        uint32_t n = v->head_dim - d < LANES ? v->head_dim - d : LANES;
        uint16_t half[LANES];

        kv_halves(k + d, n, half);
        for (uint32_t i = 0; i < n; i++)
            memcpy(k_group + ((d + i) * LANES + lane) * 2, &half[i], 2);
    }
}

/* Writes a value in half precision: [page_tokens][value_dim]. */
static void value_f16(const struct kv_view *v, uint8_t *v_head, uint32_t slot, const float *val) {
    uint32_t hd = v->value_dim;

    for (uint32_t d = 0; d < hd; d += LANES) {
        uint32_t n = hd - d < LANES ? hd - d : LANES;
        uint16_t half[LANES];

        kv_halves(val + d, n, half);
        memcpy(v_head + ((size_t)slot * hd + d) * 2, half, 2 * n);
    }
}

/* Functions by enum engine_kv_type. */
static void (*const write_key[])(const struct kv_view *v, uint8_t *k_group, uint32_t lane,
                                 const float *k) = {
    [ENGINE_KV_F16] = key_f16, [ENGINE_KV_Q8_0] = key_q8, [ENGINE_KV_Q4_0] = key_q4};
static void (*const write_value[])(const struct kv_view *v, uint8_t *v_head, uint32_t slot,
                                   const float *val) = {
    [ENGINE_KV_F16] = value_f16, [ENGINE_KV_Q8_0] = value_q8, [ENGINE_KV_Q4_0] = value_q4};
