#pragma once

/*
 * weights - from a tile in shared memory (engine/shared/tiles.h) to operands of mma. The recipe: a
 * weight is one half-precision number,
 *
 *     w = round(code * s - m)
 *
 * by one fused multiply-add, s and m the scale and minimum of its group of columns, rounded to half
 * precision. All of it is 2^unit times the file's weight (tile_unit()): the largest scale of a
 * tensor then stands high in the range, so that small ones are not subnormal. The mma of a segment
 * add up by themselves.
 *
 * A code needs no conversion: a mask leaves its bits in the lower mantissa of a half, a subnormal
 * of 2^-24 (2^-20 where it stands four bits higher) of the code, exactly; the scale is as many
 * times larger. A scale's byte is put below an exponent by a byte_permute: 256 + byte; a fused
 * multiply-add takes the 256 off and multiplies. Machine code, sm_90: 9 instructions for the 8
 * weights of a lane of a word of nibbles.
 *
 * The codes of MXFP4 and NVFP4 are half precision numbers but for the width of their fields: their
 * bits are put where a half has them, and the scale takes back what other exponents mean there.
 *
 * Tile<F>: load() takes a lane's share of a tile into registers; weights(kb) gives a0 .. a3 of
 * block kb of 16 columns. kb is a constant after unrolling. load_half() takes half of a tile of 256
 * columns, whose blocks are 0 .. 7 then: for loops with less code and fewer registers.
 */

#include "engine/cuda/device.cuh"

/* Returns the lower (@i even) or the upper half of @v twice. */
DEVICE uint32_t half_of(uint32_t v, int i) {
    return i % 2 ? high_twice(v) : low_twice(v);
}

/* Bytes @i and @i + 1 of @w, each below @above, the upper byte of a half in all four of its. */
DEVICE uint32_t below(uint32_t w, int i, uint32_t above) {
    return byte_permute(w, above, 0x4040u | (uint32_t)(i | (i + 1) << 8));
}

/* Words of nibbles: @w of a block. @high: their upper bits, 0x00100010 or 0x00300030 of them. */
DEVICE void nibbles(uint32_t w, uint32_t high, uint32_t high_mask, uint32_t a[4]) {
    uint32_t v = w >> 8, up = high << 4, down = high >> 4;

    a[0] = (w & 0x000F000Fu) | (high & high_mask);
    a[1] = (w & 0x00F000F0u) | (high & high_mask << 4);
    a[2] = (v & 0x000F000Fu) | (up & high_mask);
    a[3] = (v & 0x00F000F0u) | (down & high_mask << 4);
}

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
        a[i] = byte_permute(q0, q1, 0x0400u + 0x0101u * i) & 0x00FF00FFu;
}

/* Halves of 2^-15 of the codes. */
DEVICE void fp4_codes(uint32_t w, uint32_t a[4]) {
    a[0] = w & 0x8E008E00u;
    a[1] = w << 3 & 0x8E008E00u;
    a[2] = (w << 6 & 0x0E000E00u) | (w << 2 & 0x80008000u);
    a[3] = (w << 9 & 0x0E000E00u) | (w << 1 & 0x80008000u);
}

/* Codes, then weights: a[0], a[2] of row g, a[1], a[3] of row g + 8. */
DEVICE void scale_codes(uint32_t a[4], const uint32_t s[2], const uint32_t m[2]) {
    for (int i = 0; i < 4; i++)
        a[i] = fma_halves(a[i], s[i % 2], m[i % 2]);
}

template <int F> struct Tile;

template <> struct Tile<TILE_F16> {
    struct vec4 v[4];

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        for (int i = 0; i < 4; i++)
            v[i] = load16(tile + i * 512 + lane * 16);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
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
    /* @zero: -z 2^-24 and -z 2^-20 (or -24) in half precision, z the code of a weight of 0. */
    __device__ __forceinline__ void apply(int kb, const uint32_t zero[2], uint32_t a[4]) const {
        uint32_t scale[2], min[2];

        for (int row = 0; row < 2; row++) {
            scale[row] = half_of(s[row], kb / 2);
            min[row] = half_of(mul_halves(s[row], zero[row]), kb / 2);
        }
        scale_codes(a, scale, min);
    }
};

#define MINUS_8                                                                                    \
    { 0x80088008u, 0x80808080u } /* -8 2^-24, -8 2^-20 */
#define MINUS_16                                                                                   \
    { 0x80108010u, 0x81008100u } /* -16 2^-24, -16 2^-20 */
#define MINUS_32                                                                                   \
    { 0x80208020u, 0x82008200u } /* -32 2^-24, -32 2^-20 */
#define MINUS_128                                                                                  \
    { 0x80808080u, 0x80808080u } /* -128 2^-24 */

template <> struct Tile<TILE_Q8_0> {
    struct vec4 v[2];
    struct PairScales d;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        for (int i = 0; i < 2; i++)
            v[i] = load16(tile + i * 512 + lane * 16);
        d.load(tile + 1024, lane);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        const uint32_t zero[2] = MINUS_128;

        for (int row = 0; row < 2; row++) {
            uint32_t q = word_of(v[kb / 2], kb % 2 * 2 + row);

            a[row] = q & 0x00FF00FFu;
            a[2 + row] = byte_permute(q, 0, 0x4341u);
        }
        d.apply(kb, zero, a);
    }
};

template <> struct Tile<TILE_Q4_0> {
    struct vec4 v;
    struct PairScales d;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load16(tile + lane * 16);
        d.load(tile + 512, lane);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        const uint32_t zero[2] = MINUS_8;

        nibbles(word_of(v, kb), 0, 0, a);
        d.apply(kb, zero, a);
    }
};

/* Scales the codes of Q4_1 and Q5_1, @a, of block @kb by what follows them in a tile. */
DEVICE void scale_pairs(const struct PairScales &d, const struct PairScales &m, int kb,
                        uint32_t a[4]) {
    const uint32_t scale[2] = {half_of(d.s[0], kb / 2), half_of(d.s[1], kb / 2)};
    const uint32_t min[2] = {half_of(m.s[0], kb / 2), half_of(m.s[1], kb / 2)};

    scale_codes(a, scale, min);
}

template <> struct Tile<TILE_Q4_1> {
    struct vec4 v;
    struct PairScales d, m;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load16(tile + lane * 16);
        d.load(tile + 512, lane);
        m.load(tile + 576, lane);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        nibbles(word_of(v, kb), 0, 0, a);
        scale_pairs(d, m, kb, a);
    }
};

/* Nibbles and fifth bits of a lane. */
struct FiveBits {
    struct vec4 v;
    uint32_t high;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load16(tile + lane * 16);
        high = *(const uint32_t *)(tile + 512 + lane * 4);
    }
    __device__ __forceinline__ void codes(int kb, uint32_t a[4]) const {
        nibbles(word_of(v, kb), high >> kb, 0x00100010u, a);
    }
};

template <> struct Tile<TILE_Q5_0> {
    struct FiveBits q;
    struct PairScales d;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        q.load(tile, lane);
        d.load(tile + 640, lane);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        const uint32_t zero[2] = MINUS_16;

        q.codes(kb, a);
        d.apply(kb, zero, a);
    }
};

template <> struct Tile<TILE_Q5_1> {
    struct FiveBits q;
    struct PairScales d, m;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        q.load(tile, lane);
        d.load(tile + 640, lane);
        m.load(tile + 704, lane);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        q.codes(kb, a);
        scale_pairs(d, m, kb, a);
    }
};

template <> struct Tile<TILE_IQ4_NL> {
    struct vec4 v;
    struct PairScales d;

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load16(tile + lane * 16);
        d.load(tile + 512, lane);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        const uint32_t zero[2] = MINUS_128;

        iq4_codes(word_of(v, kb), a);
        d.apply(kb, zero, a);
    }
};

/* Scales of rows g and g + 8, both groups of 32 columns: [row][2] upper bytes of halves. */
template <> struct Tile<TILE_MXFP4> {
    struct vec4 v;
    uint32_t e[2];

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load16(tile + lane * 16);
        for (int row = 0; row < 2; row++)
            e[row] = *(const uint16_t *)(tile + 512 + (lane / 4 + 8 * row) * 2);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        fp4_codes(word_of(v, kb), a);
        for (int i = 0; i < 4; i++)
            a[i] = mul_halves(a[i], byte_permute(e[i % 2], 0, kb < 2 ? 0x0404u : 0x1414u));
    }
};

/* Scales of rows g and g + 8: [row][4] bytes, lower exponent and upper mantissa bits of a half. */
template <> struct Tile<TILE_NVFP4> {
    struct vec4 v;
    uint32_t d[2];

    __device__ __forceinline__ void load(const uint8_t *tile, uint32_t lane) {
        v = load16(tile + lane * 16);
        for (int row = 0; row < 2; row++)
            d[row] = *(const uint32_t *)(tile + 512 + (lane / 4 + 8 * row) * 4);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        uint32_t s[2];

        for (int row = 0; row < 2; row++) /* 2^7 of the scale, also of what is subnormal */
            s[row] = mul_halves(byte_permute(d[row], 0, 0x4040u + 0x0101u * (uint32_t)kb) << 7,
                                0x78007800u);
        fp4_codes(word_of(v, kb), a);
        for (int i = 0; i < 4; i++)
            a[i] = mul_halves(a[i], s[i % 2]);
    }
};

/* Scales of Q4_K and Q5_K: bytes of rows g and g + 8, four times what they say, and their d and
 * dmin. */
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
    /* Loads what half @half of the columns needs. */
    __device__ __forceinline__ void load_half(const uint8_t *scales, uint32_t lane, uint32_t half) {
        uint32_t g = lane / 4;

        for (int row = 0; row < 2; row++) {
            const uint8_t *of_row = scales + (g + 8 * row) * 16 + half * 4;

            sm[row].x = *(const uint32_t *)of_row;
            sm[row].z = *(const uint32_t *)(of_row + 8);
            dm[row] = *(const uint32_t *)(scales + 256 + (g + 8 * row) * 4);
        }
    }
    /* Scales and minima of block @kb. */
    __device__ __forceinline__ void halves(int kb, uint32_t s[2], uint32_t m[2]) const {
        int i = kb / 4 * 2 % 4; /* bytes i and i + 1: two groups at a time */

        for (int row = 0; row < 2; row++) {
            uint32_t base = mul_halves(dm[row], 0x0C00DC00u); /* d * -256, dmin * 2^-12 */
            uint32_t scales = below(kb < 8 ? sm[row].x : sm[row].y, i, 0x5C5C5C5Cu);
            uint32_t mins = below(kb < 8 ? sm[row].z : sm[row].w, i, 0x8C8C8C8Cu);

            scales = fma_halves(scales, low_twice(dm[row]), low_twice(base));
            mins = fma_halves(mins, high_twice(dm[row]), high_twice(base));
            s[row] = half_of(scales, kb / 2);
            m[row] = half_of(mins, kb / 2);
        }
    }
    __device__ __forceinline__ void apply(int kb, uint32_t a[4]) const {
        uint32_t s[2], m[2];

        halves(kb, s, m);
        scale_codes(a, s, m);
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
    __device__ __forceinline__ void load_half(const uint8_t *tile, uint32_t lane, uint32_t half) {
        for (uint32_t i = 0; i < 2; i++)
            v[i] = load16(tile + (half * 2 + i) * 512 + lane * 16);
        s.load_half(tile + 2048, lane, half);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        nibbles(word_of(v[kb / 4], kb % 4), 0, 0, a);
        s.apply(kb, a);
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
    __device__ __forceinline__ void load_half(const uint8_t *tile, uint32_t lane, uint32_t half) {
        uint32_t high[2];

        for (uint32_t i = 0; i < 2; i++)
            v[i] = load16(tile + (half * 2 + i) * 512 + lane * 16);
        load8(tile + 2048 + lane * 16 + half * 8, high);
        v[4].x = high[0];
        v[4].y = high[1];
        s.load_half(tile + 2560, lane, half);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        nibbles(word_of(v[kb / 4], kb % 4), word_of(v[4], kb / 4) >> (kb % 4), 0x00100010u, a);
        s.apply(kb, a);
    }
};

/* Two signed scales (plus 128) from byte @i of @w on, times @d. */
DEVICE uint32_t signed_scales(uint32_t w, int i, uint32_t d) {
    return mul_halves(sub_halves(below(w, i, 0x64646464u), 0x64806480u), low_twice(d));
}

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
    __device__ __forceinline__ void load_half(const uint8_t *tile, uint32_t lane, uint32_t half) {
        uint32_t g = lane / 4, scales[2];

        for (uint32_t i = 0; i < 2; i++)
            v[i] = load16(tile + (half * 2 + i) * 512 + lane * 16);
        v[4] = load16(tile + (4 + half) * 512 + lane * 16);
        for (int row = 0; row < 2; row++) {
            load8(tile + 3072 + (g + 8 * row) * 16 + half * 8, scales);
            sc[row].x = scales[0];
            sc[row].y = scales[1];
            d[row] = *(const uint16_t *)(tile + 3328 + (g + 8 * row) * 2);
        }
    }
    __device__ __forceinline__ uint32_t scale(int kb, int row) const {
        return half_of(signed_scales(word_of(sc[row], kb / 4), kb / 2 * 2 % 4, d[row]), kb);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        const uint32_t zero[2] = MINUS_32;
        uint32_t s[2], m[2];

        for (int row = 0; row < 2; row++) {
            uint32_t two = signed_scales(word_of(sc[row], kb / 4), kb / 2 * 2 % 4, d[row]);

            s[row] = half_of(two, kb);
            m[row] = half_of(mul_halves(two, zero[row]), kb);
        }
        nibbles(word_of(v[kb / 4], kb % 4), word_of(v[4 + kb / 8], kb / 2 % 4) >> (kb % 2 * 2),
                0x00300030u, a);
        scale_codes(a, s, m);
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
    __device__ __forceinline__ void load_half(const uint8_t *tile, uint32_t lane, uint32_t half) {
        uint32_t g = lane / 4;

        for (uint32_t i = 0; i < 2; i++)
            v[i] = load16(tile + (half * 2 + i) * 512 + lane * 16);
        for (int row = 0; row < 2; row++) {
            sc[row][0] = *(const uint32_t *)(tile + 2048 + (g + 8 * row) * 8 + 4 * half);
            d[row] = *(const uint16_t *)(tile + 2176 + (g + 8 * row) * 2);
        }
    }
    __device__ __forceinline__ uint32_t scale(int kb, int row) const {
        return half_of(signed_scales(sc[row][kb / 8], kb / 4 * 2 % 4, d[row]), kb / 2);
    }
    __device__ __forceinline__ void weights(int kb, uint32_t a[4]) const {
        const uint32_t zero[2] = MINUS_128;
        uint32_t s[2], m[2];

        for (int row = 0; row < 2; row++) {
            uint32_t two = signed_scales(sc[row][kb / 8], kb / 4 * 2 % 4, d[row]);

            s[row] = half_of(two, kb / 2);
            m[row] = half_of(mul_halves(two, zero[row]), kb / 2);
        }
        iq4_codes(word_of(v[kb / 4], kb % 4), a);
        scale_codes(a, s, m);
    }
};

#include "engine/cuda/products/weights_low.cuh"

/* Loads what slice @slice of 64 columns needs of a tile; returns its first pair in t. */
template <int F>
DEVICE int load_slice(struct Tile<F> &t, const uint8_t *tile, uint32_t slice, const void *grid) {
    if constexpr (F >= TILE_LOW) {
        t.load(tile, threadIdx.x % 32, slice, grid);
        return 0;
    } else {
        t.load(tile, threadIdx.x % 32);
        return (int)(slice * 2);
    }
}

/* 32 columns, ready to be multiplied. */
template <int F> struct Halves {
    uint32_t a[2][4];

    /* Takes pair @pair of @t, for many groups of rows or for a few. */
    __device__ __forceinline__ void take(const struct Tile<F> &t, int pair, bool) {
        t.weights(2 * pair, a[0]);
        t.weights(2 * pair + 1, a[1]);
    }
    /* @x: the lane's activations of both blocks. */
    __device__ __forceinline__ void add(const struct vec4 &x, float c[4]) const {
        mma(c, a[0][0], a[0][1], a[0][2], a[0][3], x.x, x.y);
        mma(c, a[1][0], a[1][1], a[1][2], a[1][3], x.z, x.w);
    }
};

/* Returns true if the family multiplies the codes of format @f as bytes. */
DEVICE constexpr bool has_bytes(uint32_t f) {
    return PACK_PLANES == 2 && BYTES_FORMAT(f);
}

/* Returns the bytes of the halves of eight rows of the activations, behind which their codes lie;
 * @n_blocks of 16 columns. */
DEVICE uint32_t plane_bytes(uint32_t n_blocks) {
    return n_blocks * 256;
}

/* Returns the bytes from eight rows of the activations to the next eight. */
DEVICE size_t group_bytes(uint32_t n_blocks) {
    return (size_t)n_blocks * (256 * PACK_PLANES);
}

#ifdef WEFT_BYTES
#include "engine/cuda/products/weights_bytes.cuh"
#else
template <int F> using Pair = Halves<F>;
#endif

/* Many rows take them with slices of 64 columns of the activations. */
#define SLICE_PAIRS 2u

/* Sizes of a format: slices of a unit, units of a stage, slices of a stage. */
template <int F> struct Steps {
    static constexpr uint32_t slices = F >= TILE_Q4_K ? 4 : 1;
    static constexpr uint32_t units = TILE_STAGE_UNITS(F);
    static constexpr uint32_t of_stage = slices * units;
    static constexpr uint32_t unroll = F >= TILE_LOW ? 1 : slices; /* unrolled slices of a tile */
};

/* Starts a warp's copy of @n bytes, a multiple of 16 and at most 3584: no stage is larger. @to: of
 * shared_start() on; @to and @from are the lane's, 16 bytes a lane. Where @n is a constant nothing
 * but the last 512 bytes is asked for. */
template <int AT = 0> DEVICE void fetch_bytes(uint32_t to, const uint8_t *from, uint32_t n) {
    if (threadIdx.x % 32 * 16 + AT < n)
        copy_async_at<AT>(to, from);
    if constexpr (AT + 512 < 3584)
        fetch_bytes<AT + 512>(to, from, n);
}

/* Copies @n bytes as fetch_bytes() does, with less code and, for many bytes, more instructions. */
DEVICE void fetch_few(uint32_t to, const uint8_t *from, uint32_t n) {
#pragma unroll 1
    for (uint32_t at = threadIdx.x % 32 * 16; at < n; at += 512) {
        copy_async_at<0>(to, from);
        to += 512;
        from += 512;
    }
}

/* Starts to copy a stage of format F, or the @n bytes that are left of a row of tiles. */
template <int F> DEVICE void fetch_stage(uint32_t to, const uint8_t *from, uint32_t n) {
    const uint32_t bytes = tile_stage_bytes(F);

    if (TILE_STAGE_UNITS(F) == 1 || n >= bytes)
        fetch_bytes(to, from, bytes);
    else
        fetch_few(to, from, n);
}

/* WALK::of<F>() of format @format. */
template <class WALK> DEVICE void walk_of(uint32_t format, const WALK &walk) {
    switch (format) {
    case TILE_F16:
        return walk.template of<TILE_F16>();
    case TILE_Q8_0:
        return walk.template of<TILE_Q8_0>();
    case TILE_Q4_0:
        return walk.template of<TILE_Q4_0>();
    case TILE_IQ4_NL:
        return walk.template of<TILE_IQ4_NL>();
    case TILE_MXFP4:
        return walk.template of<TILE_MXFP4>();
    case TILE_NVFP4:
        return walk.template of<TILE_NVFP4>();
    case TILE_Q5_0:
        return walk.template of<TILE_Q5_0>();
    case TILE_Q4_1:
        return walk.template of<TILE_Q4_1>();
    case TILE_Q5_1:
        return walk.template of<TILE_Q5_1>();
    case TILE_Q4_K:
        return walk.template of<TILE_Q4_K>();
    case TILE_Q5_K:
        return walk.template of<TILE_Q5_K>();
    case TILE_Q6_K:
        return walk.template of<TILE_Q6_K>();
    case TILE_IQ4_XS:
        return walk.template of<TILE_IQ4_XS>();
    case TILE_IQ1:
        return walk.template of<TILE_IQ1>();
    case TILE_IQ2:
        return walk.template of<TILE_IQ2>();
    case TILE_IQ3:
        return walk.template of<TILE_IQ3>();
    case TILE_Q2_K:
        return walk.template of<TILE_Q2_K>();
    case TILE_Q3_K:
        return walk.template of<TILE_Q3_K>();
    }
}
