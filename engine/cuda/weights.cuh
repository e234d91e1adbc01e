#pragma once

/*
 * weights - from a tile in shared memory (engine/shared/tiles.h) to operands of mma. The recipe,
 * for each group of columns that share a scale (32; Q6_K and NVFP4 16):
 *
 *     sum += scale * (codes x activations) - minimum * (sum of the activations)
 *
 * The codes are integers and exact in half precision, their product with the activations is one or
 * two mma from zero, scale and minimum are f32 (d * scale, dmin * min: exact, or rounded once). F16
 * has no scale and adds up in the mma.
 *
 * A code becomes a half by placing it into the low mantissa bits of 1024 and subtracting that: a
 * mask takes the codes of two columns out of a word at a time. Codes of rows g + 8 stand four bits
 * higher and count 16 fold, which their scale takes back (exactly). What bounds a matrix-vector
 * product on Hopper is this code: it has about 3 instructions per weight of Q4_K, with the copies
 * 3.5 to 4, where 4.5 are what its bandwidth leaves (not measured).
 *
 * The codes of MXFP4 and NVFP4 are half precision numbers but for the width of their fields: their
 * bits are put where a half has them, and the scale takes back what other exponents mean there.
 *
 * Tile<F>: load() takes a lane's share of a tile into registers; codes(kb) gives a0 .. a3 of block
 * kb of 16 columns, scale(row, kb) and min(row, kb) those of row g + 8 row. kb is a constant after
 * unrolling.
 */

#include "engine/cuda/device.cuh"

#define MAGIC 0x4B000000u /* 2^23 */
#define MAGIC_F 8388608.0f
#define HALF_MAGIC 0x64006400u /* 1024 */

DEVICE uint32_t word_of(const struct vec4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Byte @i of @w as a float. */
DEVICE float float_of_byte(uint32_t w, int i) {
    return mx_float_of(byte_permute(w, MAGIC, 0x7540u | (uint32_t)i)) - MAGIC_F;
}

DEVICE float low_half(uint32_t w) {
    return half_to_float((uint16_t)w);
}

DEVICE float high_half(uint32_t w) {
    return half_to_float((uint16_t)(w >> 16));
}

/* Codes of four bits: @w of a block. @high: their upper bits, 0x00100010 or 0x00300030 of them;
 * @zero: what is taken off, 1024 + z in both halves, and 1024 + 16 z for rows g + 8. */
DEVICE void nibbles(uint32_t w, uint32_t high, uint32_t high_mask, uint32_t zero, uint32_t zero16,
                    uint32_t a[4]) {
    uint32_t v = w >> 8, up = high << 4, down = high >> 4;

    a[0] = sub_halves((w & 0x000F000Fu) | (high & high_mask) | HALF_MAGIC, zero);
    a[1] = sub_halves((w & 0x00F000F0u) | (high & high_mask << 4) | HALF_MAGIC, zero16);
    a[2] = sub_halves((v & 0x000F000Fu) | (up & high_mask) | HALF_MAGIC, zero);
    a[3] = sub_halves((v & 0x00F000F0u) | (down & high_mask << 4) | HALF_MAGIC, zero16);
}

/* What scale() is multiplied by for row g + 8 @row. */
DEVICE float sixteenth(int row) {
    return row ? 0x1p-4f : 1.0f;
}

template <int F> struct Tile;

template <> struct Tile<TILE_F16> {
    struct vec4 v[4];

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        for (int i = 0; i < 4; i++)
            v[i] = load16(tile + i * 512 + lane * 16);
    }
    __device__ __forceinline__ void codes(int kb, uint32_t a[4]) const {
        for (int i = 0; i < 4; i++)
            a[i] = word_of(v[kb], i);
    }
    __device__ __forceinline__ float scale(int row, int kb) const {
        return 1;
    }
    __device__ __forceinline__ float min(int row, int kb) const {
        return 0;
    }
};

/* Scales of rows g and g + 8, both groups of 32 columns: [row][2] halves. */
struct PairScales {
    uint32_t s[2];

    __device__ __forceinline__ void load(const uint8_t *scales, uint32_t lane) {
        s[0] = *(const uint32_t *)(scales + lane / 4 * 4);
        s[1] = *(const uint32_t *)(scales + lane / 4 * 4 + 32);
    }
    __device__ __forceinline__ float of(int row, int kb) const {
        return kb < 2 ? low_half(s[row]) : high_half(s[row]);
    }
};

template <> struct Tile<TILE_Q8_0> {
    struct vec4 v[2];
    struct PairScales d;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        for (int i = 0; i < 2; i++)
            v[i] = load16(tile + i * 512 + lane * 16);
        d.load(tile + 1024, lane);
    }
    __device__ __forceinline__ void codes(int kb, uint32_t a[4]) const {
        for (int row = 0; row < 2; row++) {
            uint32_t q = word_of(v[kb / 2], kb % 2 * 2 + row) ^ 0x80808080u;

            for (int i = 0; i < 2; i++) /* 1024 + 128 + q */
                a[2 * i + row] =
                    sub_halves(byte_permute(q, HALF_MAGIC, i ? 0x5351u : 0x5250u), 0x64806480u);
        }
    }
    __device__ __forceinline__ float scale(int row, int kb) const {
        return d.of(row, kb);
    }
    __device__ __forceinline__ float min(int row, int kb) const {
        return 0;
    }
};

template <> struct Tile<TILE_Q4_0> {
    struct vec4 v;
    struct PairScales d;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load16(tile + lane * 16);
        d.load(tile + 512, lane);
    }
    __device__ __forceinline__ void codes(int kb, uint32_t a[4]) const {
        nibbles(word_of(v, kb), 0, 0, 0x64086408u, 0x64806480u, a);
    }
    __device__ __forceinline__ float scale(int row, int kb) const {
        return d.of(row, kb) * sixteenth(row);
    }
    __device__ __forceinline__ float min(int row, int kb) const {
        return 0;
    }
};

/* The values (plus 128) of four nibbles of IQ4: nibble i of the low half of @q gives byte i. */
DEVICE uint32_t iq4_values(uint32_t q) {
    uint32_t pick = q & 0x7777u;
    uint32_t low = byte_permute(0x3F2D1801u, 0x766A5D4Fu, pick);
    uint32_t high = byte_permute(0xA6998D81u, 0xF1D9C5B5u, pick);

    return byte_permute(low, high, 0x3210u | (q & 0x8888u) >> 1);
}

/* Nibbles of @w in order: columns 4t (rows g, g + 8), 4t + 1, 4t + 2, 4t + 3. */
DEVICE void iq4_codes(uint32_t w, uint32_t a[4]) {
    uint32_t q0 = iq4_values(w & 0xFFFFu), q1 = iq4_values(w >> 16);

    for (uint32_t i = 0; i < 4; i++) /* bytes i of both */
        a[i] = sub_halves((byte_permute(q0, q1, 0x0400u + 0x0101u * i) & 0x00FF00FFu) | HALF_MAGIC,
                          0x64806480u);
}

template <> struct Tile<TILE_IQ4_NL> {
    struct vec4 v;
    struct PairScales d;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load16(tile + lane * 16);
        d.load(tile + 512, lane);
    }
    __device__ __forceinline__ void codes(int kb, uint32_t a[4]) const {
        iq4_codes(word_of(v, kb), a);
    }
    __device__ __forceinline__ float scale(int row, int kb) const {
        return d.of(row, kb);
    }
    __device__ __forceinline__ float min(int row, int kb) const {
        return 0;
    }
};

/* Halves of 2^-15 of the codes. */
DEVICE void fp4_codes(uint32_t w, uint32_t a[4]) {
    a[0] = w & 0x8E008E00u;
    a[1] = w << 3 & 0x8E008E00u;
    a[2] = (w << 6 & 0x0E000E00u) | (w << 2 & 0x80008000u);
    a[3] = (w << 9 & 0x0E000E00u) | (w << 1 & 0x80008000u);
}

/* Exponents of rows g and g + 8, both groups of 32 columns: [row][2] bytes. */
template <> struct Tile<TILE_MXFP4> {
    struct vec4 v;
    uint32_t e[2];

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load16(tile + lane * 16);
        for (int row = 0; row < 2; row++)
            e[row] = *(const uint16_t *)(tile + 512 + (lane / 4 + 8 * row) * 2);
    }
    __device__ __forceinline__ void codes(int kb, uint32_t a[4]) const {
        fp4_codes(word_of(v, kb), a);
    }
    __device__ __forceinline__ float scale(int row, int kb) const {
        return mx_float_of(((e[row] >> kb / 2 * 8 & 255) + 14) << 23); /* 2^15 2^(e - 128) */
    }
    __device__ __forceinline__ float min(int row, int kb) const {
        return 0;
    }
};

/* Scales of rows g and g + 8: [row][4] bytes, lower exponent and upper mantissa bits of a float. */
template <> struct Tile<TILE_NVFP4> {
    struct vec4 v;
    uint32_t d[2];

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load16(tile + lane * 16);
        for (int row = 0; row < 2; row++)
            d[row] = *(const uint32_t *)(tile + 512 + (lane / 4 + 8 * row) * 4);
    }
    __device__ __forceinline__ void codes(int kb, uint32_t a[4]) const {
        fp4_codes(word_of(v, kb), a);
    }
    /* 2^15 mx_ue4m3_half(), also of what is subnormal. */
    __device__ __forceinline__ float scale(int row, int kb) const {
        return mx_float_of((d[row] >> kb * 8 & 255) << 20) * 0x1p67f * 0x1p67f;
    }
    __device__ __forceinline__ float min(int row, int kb) const {
        return 0;
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
        return low_half(dm[row]) * sixteenth(row) *
               float_of_byte(kb < 8 ? sm[row].x : sm[row].y, kb / 2 % 4);
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
            v[i] = load16(tile + i * 512 + lane * 16);
        s.load(tile + 2048, lane);
    }
    __device__ __forceinline__ void codes(int kb, uint32_t a[4]) const {
        nibbles(word_of(v[kb / 4], kb % 4), 0, 0, HALF_MAGIC, HALF_MAGIC, a);
    }
    __device__ __forceinline__ float scale(int row, int kb) const {
        return s.scale(row, kb);
    }
    __device__ __forceinline__ float min(int row, int kb) const {
        return s.min(row, kb);
    }
};

template <> struct Tile<TILE_Q5_K> {
    struct vec4 v[5];
    struct K45Scales s;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        for (int i = 0; i < 5; i++)
            v[i] = load16(tile + i * 512 + lane * 16);
        s.load(tile + 2560, lane);
    }
    __device__ __forceinline__ void codes(int kb, uint32_t a[4]) const {
        nibbles(word_of(v[kb / 4], kb % 4), word_of(v[4], kb / 4) >> (kb % 4), 0x00100010u,
                HALF_MAGIC, HALF_MAGIC, a);
    }
    __device__ __forceinline__ float scale(int row, int kb) const {
        return s.scale(row, kb);
    }
    __device__ __forceinline__ float min(int row, int kb) const {
        return s.min(row, kb);
    }
};

template <> struct Tile<TILE_Q6_K> {
    struct vec4 v[6], sc[2];
    uint16_t d[2];

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        uint32_t g = lane / 4;

        for (int i = 0; i < 6; i++)
            v[i] = load16(tile + i * 512 + lane * 16);
        for (int row = 0; row < 2; row++) {
            sc[row] = load16(tile + 3072 + (g + 8 * row) * 16);
            d[row] = *(const uint16_t *)(tile + 3328 + (g + 8 * row) * 2);
        }
    }
    __device__ __forceinline__ void codes(int kb, uint32_t a[4]) const {
        nibbles(word_of(v[kb / 4], kb % 4), word_of(v[4 + kb / 8], kb / 2 % 4) >> (kb % 2 * 2),
                0x00300030u, 0x64206420u, 0x66006600u, a);
    }
    __device__ __forceinline__ float scale(int row, int kb) const {
        uint32_t signs = word_of(sc[row], kb / 4) ^ 0x80808080u;

        return half_to_float(d[row]) * sixteenth(row) * (float_of_byte(signs, kb % 4) - 128.0f);
    }
    __device__ __forceinline__ float min(int row, int kb) const {
        return 0;
    }
};

template <> struct Tile<TILE_IQ4_XS> {
    struct vec4 v[4];
    uint32_t sc[2][2];
    uint16_t d[2];

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        uint32_t g = lane / 4;

        for (int i = 0; i < 4; i++)
            v[i] = load16(tile + i * 512 + lane * 16);
        for (int row = 0; row < 2; row++) {
            for (int i = 0; i < 2; i++)
                sc[row][i] = *(const uint32_t *)(tile + 2048 + (g + 8 * row) * 8 + 4 * i);
            d[row] = *(const uint16_t *)(tile + 2176 + (g + 8 * row) * 2);
        }
    }
    __device__ __forceinline__ void codes(int kb, uint32_t a[4]) const {
        iq4_codes(word_of(v[kb / 4], kb % 4), a);
    }
    __device__ __forceinline__ float scale(int row, int kb) const {
        uint32_t signs = sc[row][kb / 8] ^ 0x80808080u;

        return half_to_float(d[row]) * (float_of_byte(signs, kb / 2 % 4) - 128.0f);
    }
    __device__ __forceinline__ float min(int row, int kb) const {
        return 0;
    }
};

/* 32 columns, ready to be multiplied. */
template <int F> struct Pair {
    uint32_t a[2][4];
    float scale[2][2], min[2]; /* scale: of the blocks; row g, g + 8 */

    static constexpr bool by_16 = F == TILE_Q6_K || F == TILE_NVFP4;
    static constexpr bool has_min = F == TILE_Q4_K || F == TILE_Q5_K;

    __device__ __forceinline__ void take(const struct Tile<F> &t, int pair) {
        for (int i = 0; i < 2; i++) {
            t.codes(2 * pair + i, a[i]);
            for (int row = 0; row < 2; row++)
                scale[i][row] = t.scale(row, 2 * pair + (by_16 ? i : 0));
        }
        for (int row = 0; row < 2; row++)
            min[row] = t.min(row, 2 * pair);
    }
    /* @x: the lane's activations of both blocks; @sum: the sums of rows 2t and 2t + 1 of them. */
    __device__ __forceinline__ void add(const struct vec4 &x, const float sum[2],
                                        float c[4]) const {
        float d[4];

        if (F == TILE_F16) {
            mma(c, a[0][0], a[0][1], a[0][2], a[0][3], x.x, x.y);
            mma(c, a[1][0], a[1][1], a[1][2], a[1][3], x.z, x.w);
            return;
        }
        mma_new(d, a[0][0], a[0][1], a[0][2], a[0][3], x.x, x.y);
        if (by_16) {
            for (int j = 0; j < 4; j++)
                c[j] = fmaf(d[j], scale[0][j / 2], c[j]);
            mma_new(d, a[1][0], a[1][1], a[1][2], a[1][3], x.z, x.w);
        } else {
            mma(d, a[1][0], a[1][1], a[1][2], a[1][3], x.z, x.w);
        }
        for (int j = 0; j < 4; j++) {
            c[j] = fmaf(d[j], scale[1][j / 2], c[j]);
            if (has_min)
                c[j] = fmaf(-min[j / 2], sum[j % 2], c[j]);
        }
    }
};
