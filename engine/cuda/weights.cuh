#pragma once

/*
 * weights - from the vectors of a tile (engine/shared/tiles.h) to operands of mma: the recipe is
 *
 *     w = half(fma(q, d * scale, -(dmin * min)))       Q4_K, Q5_K; d * scale and dmin * min rounded to f32
 *     w = half((d * scale) * q)                        Q6_K, IQ4_XS
 *     w = half(d * q)                                  Q8_0, Q4_0, IQ4_NL: exact before the rounding
 *
 * `half` rounds to nearest. Integers become floats by placing them into the low mantissa bits of 2^23 (f32) or
 * 1024 (half) and subtracting that: one logic and one add per weight or two, where a conversion instruction
 * would run at a quarter of the rate. What bounds a matrix-vector product on Hopper is this code: 4 to 5
 * instructions per weight are what its bandwidth leaves (research gpu 2.3).
 *
 * Tile<F>: load() takes a lane's share of a tile into registers (all loads first), block(kb) gives a0 .. a3 of
 * block kb of 16 columns. kb is a constant after unrolling.
 */

#include "engine/cuda/device.cuh"

#define MAGIC 0x4B000000u /* 2^23 */
#define MAGIC_F 8388608.0f
#define HALF_MAGIC 0x64646464u /* high bytes of 1024 */

DEVICE uint32_t word_of(const struct vec4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

DEVICE uint32_t byte_of(uint32_t w, int i) {
    return (w >> (8 * i)) & 255u;
}

/* Byte @i of @w as a float. */
DEVICE float float_of_byte(uint32_t w, int i) {
    return mx_float_of(byte_permute(w, MAGIC, 0x7540u | (uint32_t)i)) - MAGIC_F;
}

/* Bytes i and i + 1 of @w, plus 1024, as halves. */
DEVICE uint32_t halves_of_bytes(uint32_t w, int i) {
    return byte_permute(w, HALF_MAGIC, i ? 0x4342u : 0x4140u);
}

DEVICE float low_half(uint32_t w) {
    return half_to_float((uint16_t)w);
}

DEVICE float high_half(uint32_t w) {
    return half_to_float((uint16_t)(w >> 16));
}

DEVICE uint32_t twice(uint32_t half) {
    return (half & 0xFFFFu) * 0x10001u;
}

template <int F> struct Tile;

template <> struct Tile<TILE_F16> {
    struct vec4 v[4];

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        for (int i = 0; i < 4; i++)
            v[i] = load_stream(tile + i * 512 + lane * 16);
    }
    __device__ __forceinline__ void block(int kb, uint32_t a[4]) const {
        for (int i = 0; i < 4; i++)
            a[i] = word_of(v[kb], i);
    }
};

/* Scales of rows g and g + 8, both groups of 32 columns: [row][2] halves. */
struct PairScales {
    uint32_t s[2];

    __device__ __forceinline__ void load(const uint8_t *scales, uint32_t lane) {
        s[0] = *(const uint32_t *)(scales + lane / 4 * 4);
        s[1] = *(const uint32_t *)(scales + lane / 4 * 4 + 32);
    }
    /* d of row g + 8 @row for block @kb, twice. */
    __device__ __forceinline__ uint32_t of(int row, int kb) const {
        return twice(kb < 2 ? s[row] : s[row] >> 16);
    }
};

template <> struct Tile<TILE_Q8_0> {
    struct vec4 v[2];
    struct PairScales d;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        for (int i = 0; i < 2; i++)
            v[i] = load_stream(tile + i * 512 + lane * 16);
        d.load(tile + 1024, lane);
    }
    __device__ __forceinline__ void block(int kb, uint32_t a[4]) const {
        for (int row = 0; row < 2; row++) {
            uint32_t q = word_of(v[kb / 2], kb % 2 * 2 + row) ^ 0x80808080u, s = d.of(row, kb);

            for (int i = 0; i < 2; i++) /* 1024 + 128 + q */
                a[2 * i + row] = mul_halves(sub_halves(halves_of_bytes(q, 2 * i), 0x64806480u), s);
        }
    }
};

template <> struct Tile<TILE_Q4_0> {
    struct vec4 v;
    struct PairScales d;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load_stream(tile + lane * 16);
        d.load(tile + 512, lane);
    }
    __device__ __forceinline__ void block(int kb, uint32_t a[4]) const {
        for (int row = 0; row < 2; row++) {
            uint32_t q = (word_of(v, kb) >> (4 * row)) & 0x0F0F0F0Fu, s = d.of(row, kb);

            for (int i = 0; i < 2; i++) /* 1024 + 8 + q */
                a[2 * i + row] = mul_halves(sub_halves(halves_of_bytes(q, 2 * i), 0x64086408u), s);
        }
    }
};

/* The values (plus 128) of four nibbles of IQ4: nibble i of the low half of @q gives byte i. */
DEVICE uint32_t iq4_values(uint32_t q) {
    uint32_t pick = q & 0x7777u;
    uint32_t low = byte_permute(0x3F2D1801u, 0x766A5D4Fu, pick);
    uint32_t high = byte_permute(0xA6998D81u, 0xF1D9C5B5u, pick);

    return byte_permute(low, high, 0x3210u | (q & 0x8888u) >> 1);
}

template <> struct Tile<TILE_IQ4_NL> {
    struct vec4 v;
    struct PairScales d;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load_stream(tile + lane * 16);
        d.load(tile + 512, lane);
    }
    __device__ __forceinline__ void block(int kb, uint32_t a[4]) const {
        for (int i = 0; i < 2; i++) { /* columns 2 i, 2 i + 1: bytes g, g + 8, g, g + 8 */
            uint32_t q = iq4_values(word_of(v, kb) >> (16 * i));

            for (int row = 0; row < 2; row++) {
                uint32_t h = byte_permute(q, HALF_MAGIC, row ? 0x4341u : 0x4240u);

                a[2 * i + row] = mul_halves(sub_halves(h, 0x64806480u), d.of(row, kb));
            }
        }
    }
};

/* Scales of Q4_K and Q5_K: bytes of rows g and g + 8, and their d and dmin. */
struct K45Scales {
    struct vec4 sm[2];
    uint32_t dm[2];

    __device__ __forceinline__ void load(const uint8_t *scales, uint32_t lane) {
        uint32_t g = lane / 4;

        for (int row = 0; row < 2; row++) {
            sm[row] = load16(scales + (g + 8 * row) * 16);
            dm[row] = *(const uint32_t *)(scales + 256 + (g + 8 * row) * 4);
        }
    }
    __device__ __forceinline__ float scale(int row, int kb) const {
        return low_half(dm[row]) * float_of_byte(kb < 8 ? sm[row].x : sm[row].y, kb / 2 % 4);
    }
    __device__ __forceinline__ float min(int row, int kb) const {
        return high_half(dm[row]) * float_of_byte(kb < 8 ? sm[row].z : sm[row].w, kb / 2 % 4);
    }
};

template <> struct Tile<TILE_Q4_K> {
    struct vec4 v[4];
    struct K45Scales s;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        for (int i = 0; i < 4; i++)
            v[i] = load_stream(tile + i * 512 + lane * 16);
        s.load(tile + 2048, lane);
    }
    /* A nibble at bit 4 n of a half-word is q 16^n in the mantissa; the scale takes 16^n back, exactly. */
    __device__ __forceinline__ void block(int kb, uint32_t a[4]) const {
        uint32_t w = word_of(v[kb / 4], kb % 4);

        for (int row = 0; row < 2; row++) {
            float scale = s.scale(row, kb), min = s.min(row, kb);

            for (int i = 0; i < 2; i++) {
                uint32_t half = i ? w >> 16 : w;
                float q0 = mx_float_of((half & (15u << (4 * row))) | MAGIC) - MAGIC_F;
                float q1 = mx_float_of((half & (15u << (8 + 4 * row))) | MAGIC) - MAGIC_F;

                a[2 * i + row] = pack_halves(fmaf(q0, scale * (row ? 0x1p-4f : 1.0f), -min),
                                             fmaf(q1, scale * (row ? 0x1p-12f : 0x1p-8f), -min));
            }
        }
    }
};

/* Four integers in the bytes of @q, less @less, times @scale, less @min: a[row] and a[2 + row]. */
DEVICE void scale_bytes(uint32_t q, float less, float scale, float min, int row, uint32_t a[4]) {
    for (int i = 0; i < 2; i++) {
        float q0 = mx_float_of(byte_permute(q, MAGIC, 0x7540u + 2 * i)) - (MAGIC_F + less);
        float q1 = mx_float_of(byte_permute(q, MAGIC, 0x7541u + 2 * i)) - (MAGIC_F + less);

        a[2 * i + row] = pack_halves(fmaf(q0, scale, -min), fmaf(q1, scale, -min));
    }
}

template <> struct Tile<TILE_Q5_K> {
    struct vec4 v[5];
    struct K45Scales s;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        for (int i = 0; i < 5; i++)
            v[i] = load_stream(tile + i * 512 + lane * 16);
        s.load(tile + 2560, lane);
    }
    __device__ __forceinline__ void block(int kb, uint32_t a[4]) const {
        uint32_t w = word_of(v[kb / 4], kb % 4), fifth = byte_of(word_of(v[4], kb / 4), kb % 4);

        for (int row = 0; row < 2; row++) { /* bit e of four to bit 8 e */
            uint32_t high = (((fifth >> (4 * row)) & 15u) * 0x00204081u) & 0x01010101u;

            scale_bytes(((w >> (4 * row)) & 0x0F0F0F0Fu) | high << 4, 0.0f, s.scale(row, kb),
                        s.min(row, kb), row, a);
        }
    }
};

template <> struct Tile<TILE_Q6_K> {
    struct vec4 v[6], sc[2];
    uint16_t d[2];

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        uint32_t g = lane / 4;

        for (int i = 0; i < 6; i++)
            v[i] = load_stream(tile + i * 512 + lane * 16);
        for (int row = 0; row < 2; row++) {
            sc[row] = load16(tile + 3072 + (g + 8 * row) * 16);
            d[row] = *(const uint16_t *)(tile + 3328 + (g + 8 * row) * 2);
        }
    }
    __device__ __forceinline__ void block(int kb, uint32_t a[4]) const {
        uint32_t w = word_of(v[kb / 4], kb % 4);
        uint32_t top = word_of(v[4 + kb / 8], kb / 2 % 4) >> (16 * (kb % 2));

        for (int row = 0; row < 2; row++) { /* bits 2 e of a byte to bits 8 e */
            uint32_t high = (byte_of(top, row) * 0x1001u) & 0x000F000Fu;
            uint32_t signs = word_of(sc[row], kb / 4) ^ 0x80808080u;
            float scale = half_to_float(d[row]) * (float_of_byte(signs, kb % 4) - 128.0f);

            high = (high * 0x41u) & 0x03030303u;
            scale_bytes(((w >> (4 * row)) & 0x0F0F0F0Fu) | high << 4, 32.0f, scale, 0.0f, row, a);
        }
    }
};

template <> struct Tile<TILE_IQ4_XS> {
    struct vec4 v[4];
    uint32_t sc[2][2];
    uint16_t d[2];

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        uint32_t g = lane / 4;

        for (int i = 0; i < 4; i++)
            v[i] = load_stream(tile + i * 512 + lane * 16);
        for (int row = 0; row < 2; row++) {
            for (int i = 0; i < 2; i++)
                sc[row][i] = *(const uint32_t *)(tile + 2048 + (g + 8 * row) * 8 + 4 * i);
            d[row] = *(const uint16_t *)(tile + 2176 + (g + 8 * row) * 2);
        }
    }
    __device__ __forceinline__ void block(int kb, uint32_t a[4]) const {
        uint32_t w = word_of(v[kb / 4], kb % 4), q[2] = {iq4_values(w), iq4_values(w >> 16)};

        for (int row = 0; row < 2; row++) {
            uint32_t bytes = byte_permute(q[0], q[1], row ? 0x7531u : 0x6420u);
            uint32_t signs = sc[row][kb / 8] ^ 0x80808080u;
            float scale = half_to_float(d[row]) * (float_of_byte(signs, kb / 2 % 4) - 128.0f);

            scale_bytes(bytes, 128.0f, scale, 0.0f, row, a);
        }
    }
};
