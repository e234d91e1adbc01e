/*
 * panel - repacks weight matrices when a model is loaded.
 *
 * A panel has 16 consecutive rows of a matrix, interleaved so that each of the 16 lanes of a vector
 * computes one row. The unit of its quants (the integers that a format stores) is the group: 4
 * consecutive values of each of the 16 rows. With a byte for each value a group has 64 bytes, row r
 * in bytes 4r to 4r + 3, so that one multiply-add of bytes gives every lane the next 4 products of
 * its row. Narrower numbers of groups of the same block share bytes, so that a shift and a mask
 * extract a whole group:
 *
 *   4 bits   byte i of vector v:  group 2v | group 2v+1 << 4
 *   2 bits   byte i of vector v:  group 4v | 4v+1 << 2 | 4v+2 << 4 | 4v+3 << 6
 *   1 bit    byte i of vector v:  group 8v+j in bit j
 *
 * Layout of a block of each format: the quants, then, after the semicolon, the scales of the 16
 * rows, each number for all 16 lanes. A "pair" is two adjacent minimums of a lane. "4 bits, 1 bit"
 * means that the lower four bits of all values are followed by their fifth bits.
 *
 *   Q4K      4 bits; int8 scale[8], uint8 minimum pair[4], half d, half dmin
 *   Q5K      4 bits, 1 bit; scales as in Q4K
 *   Q6K      value + 32 in 4 bits, 2 bits; int8 scale[16], half d
 *   Q3K      value + 4 in 2 bits, 1 bit; int8 scale[16], half d
 *   Q2K      2 bits; int8 scale[16], uint8 minimum pair[8], half d, half dmin
 *   IQ4XS    4 bits, an index of a table; int8 scale[8], half d
 *   IQ2XXS   for each 32 values 64 bytes of grid indices, row r in bytes 4r to 4r + 3, and 64 bytes
 *            of signs; int8 scale[8], half d
 *   IQ1S     value + 1 in 2 bits; int8 scale[8], uint8 minimum pair[4] (7 or 9 times the scale),
 *            half d
 *   IQ1M     value + 1 in 2 bits, 1 bit set where the delta is negative; int8 scale[16], half d
 *   IQ2S     index of the magnitude in 2 bits, sign in 1 bit; int8 scale[16], half d
 *   IQ3XXS, IQ3S  index of the magnitude in the lower 3 of 4 bits, sign in the fourth; int8
 *            scale[8], half d
 *   TQ       value + 1 in 2 bits; half d
 *   Q8       value + 128 in 8 bits; half d
 *   Q5, Q5M  4 bits, 1 bit; half d, Q5M also half m
 *   Q4, Q4M, IQ4NL  4 bits; half d, Q4M also half m
 *   MXFP4    4 bits, an index of a table; the exponent as a byte
 *   NVFP4    block of 64: 4 bits, an index of a table; four bytes, a scale for each 16 values
 *   G4       block of 256, two groups of 128: 4 bits; half d[2], half negated zero point[2]
 *   FP8      block of 128: E4M3 codes; float scale. A group has values 0 and 1 of rows 0 to 3, then
 *            values 2 and 3 of these rows, then the same of rows 4 to 7, and so on: the order in
 *            which vectors of bytes are interleaved.
 *   F32, F16  block of 1: the value of the 16 rows; no scales
 *   BF16     block of 1; values 2i and 2i + 1 of a row are a pair of 4 bytes, and the pairs of the
 *            16 rows follow each other; the number of pairs is even, the last may be zeros
 *
 * Blocks are stored in units of one, two (blocks of 32, BF16) or four (MXFP4): the quants of all
 * blocks of a unit, then their scales. A unit is filled up to a multiple of 64 bytes. Vectors then
 * never straddle cache lines.
 *
 * FP8's values are the codes times the scale without the rounding to BF16 that the file's reader
 * applies (base/repack.h): the kernel multiplies a sum of 128 products by the scale.
 *
 * No number is rounded, but BF16's below 2^-55 become 0: a sum of products with activations that
 * are no smaller is never subnormal, which some processors take for 0. Where a format's scale is
 * not an integer, a constant factor is left to the kernel: IQ2_XXS has the scale d (0.5 + s) / 4 =
 * d / 8 (2s + 1); the panel stores 2s + 1, and the kernel multiplies d by 1 / 8 (gemm_k.h).
 */

#include "engine/formats/panel.h"

#include <assert.h>
#include <string.h>

#include "base/mathx.h"
#include "base/repack.h"
#include "engine/formats/quant.h"

/* Stores a number of half precision for row @lane of 16. */
static void store_half(uint8_t *meta, uint32_t lane, uint16_t half) {
    meta[2 * lane] = (uint8_t)half;
    meta[2 * lane + 1] = (uint8_t)(half >> 8);
}

/* Returns the eight bytes at @p, the first in the lowest byte. Packing handles eight values at a
 * time, because many gigabytes are packed at every start. */
static uint64_t get_u64(const uint8_t *p) {
    uint64_t v;

    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

#define EIGHT(byte) (0x0101010101010101u * (byte))

/* Ors @v into the four bytes at @p, lowest byte first. */
static void or_u32(uint8_t *p, uint32_t v) {
    uint32_t was;

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    memcpy(&was, p, 4);
    was |= v;
    memcpy(p, &was, 4);
}

/* put8(), put4(), put2() and put1() store eight values of 8, 4, 2 or 1 bits, one in each byte of
 * @v: values @k to @k + 7 of row @lane in a block that was zeroed. @k: a multiple of 8. */
static void put8(uint8_t *q, uint32_t lane, uint32_t k, uint64_t v) {
    or_u32(q + k / 4 * 64 + lane * 4, (uint32_t)v);
    or_u32(q + k / 4 * 64 + lane * 4 + 64, (uint32_t)(v >> 32));
}

static void put4(uint8_t *q, uint32_t lane, uint32_t k, uint64_t v) {
    or_u32(q + k / 8 * 64 + lane * 4, (uint32_t)v | (uint32_t)(v >> 32) << 4);
}

static void put2(uint8_t *q, uint32_t lane, uint32_t k, uint64_t v) {
    or_u32(q + k / 16 * 64 + lane * 4, ((uint32_t)v | (uint32_t)(v >> 32) << 2)
                                           << (4 * (k / 8 % 2)));
}

static void put1(uint8_t *q, uint32_t lane, uint32_t k, uint64_t v) {
    or_u32(q + k / 32 * 64 + lane * 4, ((uint32_t)v | (uint32_t)(v >> 32) << 1)
                                           << (2 * (k / 8 % 4)));
}

/* Stores minimum @s of a lane of 16; minimums 2i and 2i + 1 of a lane are adjacent. */
static void store_min(uint8_t *pairs, uint32_t lane, uint32_t s, uint32_t v) {
    pairs[s / 2 * 32 + lane * 2 + s % 2] = (uint8_t)v;
}

/* Packs Q4_K and Q5_K; @high: the fifth bits, or NULL. */
static void pack_k45(const uint8_t *p, const uint8_t *high, const uint8_t *qs, uint32_t lane,
                     uint8_t *q, uint8_t *meta) {
    for (uint32_t s = 0; s < 8; s++) {
        int scale, min;

        blk_k4_scale(p + 4, s, &scale, &min);
        meta[16 * s + lane] = (uint8_t)scale;
        store_min(meta + 128, lane, s, (uint32_t)min);
        for (uint32_t l = 0; l < 32; l += 8) {
            put4(q, lane, 32 * s + l, get_u64(qs + 32 * (s / 2) + l) >> (4 * (s % 2)) & EIGHT(15));
            if (high)
                put1(q + 2048, lane, 32 * s + l, get_u64(high + l) >> s & EIGHT(1));
        }
    }
    store_half(meta + 256, lane, blk_u16(p));
    store_half(meta + 288, lane, blk_u16(p + 2));
}

/* The functions pack_x() implement pack_fn, one for each format. engine/formats/blocks.h has the
 * blocks of the file, the top of this file those of a panel. */

static void pack_q4k(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    pack_k45(p, NULL, p + 16, lane, q, meta);
}

static void pack_q5k(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    pack_k45(p, p + 16, p + 48, lane, q, meta);
}

static void pack_q6k(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t i = 0; i < 256; i += 8) {
        uint32_t half = i / 128, quarter = i / 32 % 4, l = i % 32;
        uint64_t low = get_u64(p + 64 * half + 32 * (quarter % 2) + l) >> (4 * (quarter / 2));
        uint64_t high = get_u64(p + 128 + 32 * half + l) >> (2 * quarter);

        put4(q, lane, i, low & EIGHT(15));
        put2(q + 2048, lane, i, high & EIGHT(3));
    }
    for (uint32_t s = 0; s < 16; s++)
        meta[16 * s + lane] = p[192 + s];
    store_half(meta + 256, lane, blk_u16(p + 208));
}

static void pack_q3k(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t i = 0; i < 256; i += 8) {
        uint32_t half = i / 128, pair = i / 32 % 4, l = i % 32;

        put2(q, lane, i, get_u64(p + 32 + 32 * half + l) >> (2 * pair) & EIGHT(3));
        put1(q + 1024, lane, i, get_u64(p + l) >> (4 * half + pair) & EIGHT(1));
    }
    for (uint32_t s = 0; s < 16; s++)
        meta[16 * s + lane] = (uint8_t)blk_q3_scale(p, s);
    store_half(meta + 256, lane, blk_u16(p + 108));
}

static void pack_q2k(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t i = 0; i < 256; i += 8)
        put2(q, lane, i,
             get_u64(p + 16 + 32 * (i / 128) + i % 32) >> (2 * (i / 32 % 4)) & EIGHT(3));
    for (uint32_t s = 0; s < 16; s++) {
        meta[16 * s + lane] = p[s] & 15;
        store_min(meta + 256, lane, s, p[s] >> 4);
    }
    store_half(meta + 512, lane, blk_u16(p + 80));
    store_half(meta + 544, lane, blk_u16(p + 82));
}

/* Returns values @i to @i + 7 of a block of 32 values of four bits: byte j has value j in its lower
 * half and value j + 16 in its upper half. */
static uint64_t panel_nibbles(const uint8_t *qs, uint32_t i) {
    return get_u64(qs + i % 16) >> (4 * (i / 16)) & EIGHT(15);
}

static void pack_iq4xs(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t b = 0; b < 8; b++) {
        meta[16 * b + lane] = (uint8_t)blk_iq4_xs_scale(p, b);
        for (uint32_t j = 0; j < 32; j += 8)
            put4(q, lane, 32 * b + j, panel_nibbles(p + 8 + 16 * b, j));
    }
    store_half(meta + 128, lane, blk_u16(p));
}

static void pack_iq2xxs(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t b = 0; b < 8; b++) {
        const uint8_t *index = p + 2 + 8 * b;

        for (uint32_t l = 0; l < 4; l++) {
            q[128 * b + 4 * lane + l] = index[l];
            q[128 * b + 64 + 4 * lane + l] = (uint8_t)blk_iq_signs(TENSOR_IQ2_XXS, p, 4 * b + l);
        }
        meta[16 * b + lane] = (uint8_t)(2 * blk_iq_scale(TENSOR_IQ2_XXS, p, 4 * b) + 1);
    }
    store_half(meta + 128, lane, blk_u16(p));
}

/* Returns eight bits as bytes, the lowest bit in the lowest byte. */
static uint64_t spread_bits(uint8_t bits) {
    uint64_t x = bits;

    x = (x | x << 28) & 0x0000000F0000000Fu;
    x = (x | x << 14) & 0x0003000300030003u;
    return (x | x << 7) & 0x0101010101010101u;
}

/* Returns eight numbers of two bits as bytes, in the same order. */
static uint64_t spread2(uint32_t v) {
    uint64_t x = v;

    x = (x | x << 24) & 0x000000FF000000FFu;
    x = (x | x << 12) & 0x000F000F000F000Fu;
    return (x | x << 6) & 0x0303030303030303u;
}

/* Returns four numbers of three bits as bytes, in the same order. */
static uint32_t spread3(uint32_t v) {
    v = (v | v << 10) & 0x003F003Fu;
    return (v | v << 5) & 0x07070707u;
}

/* Stores run @r of eight values of PANEL_IQ2S or PANEL_IQ1M. @codes: eight numbers of two bits;
 * @bits: the third bits, one in each byte. */
static void store_run(uint8_t *q, uint32_t lane, uint32_t r, uint32_t codes, uint64_t bits) {
    put2(q, lane, 8 * r, spread2(codes));
    put1(q + 1024, lane, 8 * r, bits);
}

/* Stores run @r of eight values of an IQ3 format: two entries of its grid, and the signs in the
 * bits of @signs. */
static void store_iq3(uint8_t *q, uint32_t lane, uint32_t r, uint32_t first, uint32_t second,
                      uint8_t signs) {
    put4(q, lane, 8 * r,
         spread3(first) | (uint64_t)spread3(second) << 32 | spread_bits(signs) << 3);
}

/* Packs IQ1_M, IQ2_XS, IQ2_S and the formats of IQ3. */
static inline void pack_grid(enum tensor_type type, const uint8_t *p, uint32_t lane, uint8_t *q,
                             uint8_t *meta) {
    const uint16_t *grid = blk_iq_grid(type, &quant_grids);
    uint32_t runs = 2; /* runs of eight values that share a scale */

    if (blk_is_iq3(type))
        runs = 4;
    for (uint32_t r = 0; r < 32; r++) {
        uint8_t signs = (uint8_t)blk_iq_signs(type, p, r);

        if (blk_is_iq3(type))
            store_iq3(q, lane, r, grid[blk_iq_index(type, p, 2 * r)],
                      grid[blk_iq_index(type, p, 2 * r + 1)], signs);
        else
            store_run(q, lane, r, grid[blk_iq_index(type, p, r)], spread_bits(signs));
        meta[r / runs * 16 + lane] = (uint8_t)(2 * blk_iq_scale(type, p, r) + 1);
    }
    store_half(meta + 512 / runs, lane, blk_iq_half(type, p));
}

#define PACK_GRID(name, type)                                                                      \
    static void pack_##name(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {          \
        pack_grid(type, p, lane, q, meta);                                                         \
    }

PACK_GRID(iq1m, TENSOR_IQ1_M)
PACK_GRID(iq2xs, TENSOR_IQ2_XS)
PACK_GRID(iq2s, TENSOR_IQ2_S)
PACK_GRID(iq3xxs, TENSOR_IQ3_XXS)
PACK_GRID(iq3s, TENSOR_IQ3_S)

/* Packs IQ1_S, whose delta is 1/8 or -1/8, as a format with minimums: d (2s + 1) (q - 1 + delta) =
 * d (2s + 1) q - d / 8 (2s + 1) (8 - 8 delta), and 8 - 8 delta is 7 or 9. */
static void pack_iq1s(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t b = 0; b < 8; b++) {
        uint32_t scale = 2 * blk_iq_scale(TENSOR_IQ1_S, p, 4 * b) + 1;

        for (uint32_t r = 4 * b; r < 4 * b + 4; r++)
            put2(q, lane, 8 * r, spread2(quant_grids.iq1[blk_iq_index(TENSOR_IQ1_S, p, r)]));
        meta[16 * b + lane] = (uint8_t)scale;
        bool minus = blk_iq_signs(TENSOR_IQ1_S, p, 4 * b);
        store_min(meta + 128, lane, b, scale * (7 + 2 * minus));
    }
    store_half(meta + 256, lane, blk_u16(p));
}

static void pack_tq1(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t i = 0; i < 256; i += 8) {
        uint64_t v = 0;

        for (uint32_t j = 0; j < 8; j++)
            v |= (uint64_t)blk_tq1_code(p, i + j) << (8 * j);
        put2(q, lane, i, v);
    }
    store_half(meta, lane, blk_u16(p + 52));
}

static void pack_tq2(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t i = 0; i < 256; i += 8)
        put2(q, lane, i, get_u64(p + i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & EIGHT(3));
    store_half(meta, lane, blk_u16(p + 64));
}

static void pack_q8_0(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t i = 0; i < 32; i += 8)
        put8(q, lane, i, get_u64(p + 2 + i) ^ EIGHT(0x80));
    store_half(meta, lane, blk_u16(p));
}

/* Stores a block of 32 values of five bits: @qs has the lower four, @high the fifth ones. */
static void put5(const uint8_t *high, const uint8_t *qs, uint32_t lane, uint8_t *q) {
    for (uint32_t i = 0; i < 32; i += 8) {
        put4(q, lane, i, panel_nibbles(qs, i));
        put1(q + 256, lane, i, spread_bits(high[i / 8]));
    }
}

static void pack_q5_0(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    put5(p + 2, p + 6, lane, q);
    store_half(meta, lane, blk_u16(p));
}

static void pack_q5_1(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    put5(p + 4, p + 8, lane, q);
    store_half(meta, lane, blk_u16(p));
    store_half(meta + 32, lane, blk_u16(p + 2));
}

/* Packs Q4_0 and IQ4_NL. */
static void pack_q4_0(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t i = 0; i < 32; i += 8)
        put4(q, lane, i, panel_nibbles(p + 2, i));
    store_half(meta, lane, blk_u16(p));
}

static void pack_q4_1(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t i = 0; i < 32; i += 8)
        put4(q, lane, i, panel_nibbles(p + 4, i));
    store_half(meta, lane, blk_u16(p));
    store_half(meta + 32, lane, blk_u16(p + 2));
}

static void pack_mxfp4(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t i = 0; i < 32; i += 8)
        put4(q, lane, i, panel_nibbles(p + 1, i));
    meta[lane] = p[0];
}

/* Packs NVFP4. The scales are UE4M3, of seven bits: the eighth is dropped, and 0x7F, which means 0
 * as in the reference decoder, becomes 0. */
static void pack_nvfp4(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t s = 0; s < 4; s++) {
        uint64_t v = get_u64(p + 4 + 8 * s);

        put4(q, lane, 16 * s, v & EIGHT(15));
        put4(q, lane, 16 * s + 8, v >> 4 & EIGHT(15));
        meta[16 * s + lane] = p[s] & 0x7F;
        if (p[s] == 0x7F)
            meta[16 * s + lane] = 0;
    }
}

static void pack_f32(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    memcpy(q + 4 * lane, p, 4);
}

static void pack_f16(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    memcpy(q + 2 * lane, p, 2);
}

static void pack_bf16(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    uint16_t v = (uint16_t)(p[0] | p[1] << 8);

    if ((v & 0x7FFF) >= MX_BF16_LEAST)
        memcpy(q + 4 * lane, p, 2);
}

/* Adds group @i of a block of G4: the scale and the negated zero point. */
static void pack_g4_scales(uint8_t *meta, uint32_t lane, uint32_t i, uint16_t d, int zero) {
    store_half(meta + 32 * i, lane, d);
    store_half(meta + 64 + 32 * i, lane, mx_float_to_half((float)-zero));
}

/* Adds eight blocks of Q4_0, of which each four have the same scale. */
static void pack_g4_q4_0(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t i = 0; i < 256; i += 8)
        put4(q + 256 * (i / 32), lane, i % 32, panel_nibbles(p + 18 * (i / 32) + 2, i % 32));
    for (uint32_t i = 0; i < 2; i++)
        pack_g4_scales(meta, lane, i, blk_u16(p + 72 * i), 8);
}

/* Adds eight blocks of Q5_0, of which each four have the same scale. Their codes less 16 are those
 * of 4 bits less a zero point, so the least of them may stand for code 0. */
static void pack_g4_q5_0(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta) {
    for (uint32_t i = 0; i < 2; i++, p += 4 * 22, q += 4 * 256) {
        uint8_t code[128], least = 16;

        for (uint32_t k = 0; k < 128; k++) {
            code[k] = (uint8_t)blk_q5_code(p + 22 * (k / 32) + 2, k % 32);
            least = MIN(least, code[k]);
        }
        for (uint32_t k = 0; k < 128; k += 8)
            put4(q + 256 * (k / 32), lane, k % 32, get_u64(code + k) - EIGHT(least));
        pack_g4_scales(meta, lane, i, blk_u16(p), 16 - least);
    }
}

/* Adds block @b of row @row of a matrix of FP8. A code that is no number makes the scale none. */
static void pack_fp8_block(const struct tensor *t, uint64_t row, uint32_t b, uint32_t lane,
                           uint8_t *q) {
    const uint32_t block = panel_infos[PANEL_FP8].block;
    float scale;
    const uint8_t *codes = tensor_fp8_codes(t, row, (uint64_t)b * block, &scale);
    float *scales = (float *)(q + panel_infos[PANEL_FP8].quant_bytes);
    uint8_t *to = q + lane / 4 * 16 + lane % 4 * 2;
    bool numbers = true;

    for (uint32_t k = 0; k < block; k++)
        numbers &= (codes[k] & 0x7F) != 0x7F;
    for (uint32_t k = 0; k < block; k += 4, to += 64) {
        memcpy(to, codes + k, 2);
        memcpy(to + 8, codes + k + 2, 2);
    }
    if (!numbers)
        scale = mx_float_of(0x7FC00000u);
    memcpy(&scales[lane], &scale, sizeof(scale));
}

/* Writes panel @panel of a matrix of FP8, which was zeroed. */
static void pack_fp8(const struct mat *m, const struct tensor *t, uint32_t panel, uint8_t *out) {
    const uint32_t n = MIN(LANES, m->n_out - panel * LANES);

    for (uint32_t b = 0; b < m->n_blocks; b++, out += panel_infos[PANEL_FP8].unit_bytes)
        for (uint32_t lane = 0; lane < n; lane++)
            pack_fp8_block(t, (uint64_t)panel * LANES + lane, b, lane, out);
}

/* Adds the block of the file at @p as row @lane of a zeroed block of a panel, whose quants are at
 * @q and whose scales are at @meta. */
typedef void (*pack_fn)(const uint8_t *p, uint32_t lane, uint8_t *q, uint8_t *meta);

static const struct {
    enum tensor_type type;
    enum panel_format format;
    pack_fn pack;
} sources[] = {
    {TENSOR_F32, PANEL_F32, pack_f32},       {TENSOR_F16, PANEL_F16, pack_f16},
    {TENSOR_BF16, PANEL_BF16, pack_bf16},    {TENSOR_Q4_0, PANEL_Q4, pack_q4_0},
    {TENSOR_Q4_1, PANEL_Q4M, pack_q4_1},     {TENSOR_Q5_0, PANEL_Q5, pack_q5_0},
    {TENSOR_Q5_1, PANEL_Q5M, pack_q5_1},     {TENSOR_Q8_0, PANEL_Q8, pack_q8_0},
    {TENSOR_Q2_K, PANEL_Q2K, pack_q2k},      {TENSOR_Q3_K, PANEL_Q3K, pack_q3k},
    {TENSOR_Q4_K, PANEL_Q4K, pack_q4k},      {TENSOR_Q5_K, PANEL_Q5K, pack_q5k},
    {TENSOR_Q6_K, PANEL_Q6K, pack_q6k},      {TENSOR_IQ2_XXS, PANEL_IQ2XXS, pack_iq2xxs},
    {TENSOR_IQ4_NL, PANEL_IQ4NL, pack_q4_0}, {TENSOR_IQ4_XS, PANEL_IQ4XS, pack_iq4xs},
    {TENSOR_MXFP4, PANEL_MXFP4, pack_mxfp4}, {TENSOR_IQ1_S, PANEL_IQ1S, pack_iq1s},
    {TENSOR_IQ1_M, PANEL_IQ1M, pack_iq1m},   {TENSOR_IQ2_XS, PANEL_IQ2S, pack_iq2xs},
    {TENSOR_IQ2_S, PANEL_IQ2S, pack_iq2s},   {TENSOR_IQ3_XXS, PANEL_IQ3XXS, pack_iq3xxs},
    {TENSOR_IQ3_S, PANEL_IQ3S, pack_iq3s},   {TENSOR_TQ1_0, PANEL_TQ, pack_tq1},
    {TENSOR_TQ2_0, PANEL_TQ, pack_tq2},      {TENSOR_NVFP4, PANEL_NVFP4, pack_nvfp4},
    {TENSOR_Q4_0, PANEL_G4, pack_g4_q4_0},   {TENSOR_Q5_0, PANEL_G4, pack_g4_q5_0},
    {TENSOR_BF16, PANEL_FP8, NULL}, /* pack_fp8() */
};

/* Returns true if @t has codes of FP8 and each block of a panel one scale. */
static bool panel_has_fp8(const struct tensor *t) {
    const struct repack *r = t->repack;
    const uint32_t block = panel_infos[PANEL_FP8].block;

    if (!r || r->kind != REPACK_FP8 || t->ne[0] % block)
        return false;
    return r->group % block == 0 || r->group >= t->ne[0];
}

/* Returns the format of panels that a layout of parts has, or PANEL_FORMATS if its blocks are those
 * of any file. */
static enum panel_format panel_of_parts(const struct tensor *t) {
    if (repack_has_groups(t, 128) && t->ne[0] % panel_infos[PANEL_G4].block == 0)
        return PANEL_G4;
    if (panel_has_fp8(t))
        return PANEL_FP8;
    return PANEL_FORMATS;
}

/* Returns the index of the layout of @t in sources[], or ARRAY_SIZE(sources) if it has no panels.
 * */
static size_t panel_find_source(const struct tensor *t) {
    const enum panel_format parts = panel_of_parts(t);
    size_t i = 0;

    for (; i < ARRAY_SIZE(sources); i++) {
        enum panel_format format = sources[i].format;
        bool fits = parts == PANEL_FORMATS;

        if (format == PANEL_G4 || format == PANEL_FP8)
            fits = format == parts;
        if (fits && sources[i].type == t->format->type)
            break;
    }
    return i;
}

int panel_plan(struct mat *m, const struct tensor *t, struct err *err) {
    size_t i = panel_find_source(t);

    if (i == ARRAY_SIZE(sources))
        return err_set(err, 0, NULL, "tensor %s: the cpu backend does not support type %s", t->name,
                       t->format->name);
    const struct panel_info *info = &panel_infos[sources[i].format];
    assert(t->ne[0] % info->block == 0 && t->ne[0] <= UINT32_MAX && t->ne[1] <= UINT32_MAX - LANES);
    *m = (struct mat){
        .format = sources[i].format,
        .n_in = (uint32_t)t->ne[0],
        .n_out = (uint32_t)t->ne[1],
        .n_blocks = (uint32_t)t->ne[0] / info->block,
        .n_panels = (uint32_t)(round_up(t->ne[1], LANES) / LANES),
    };
    size_t bytes = (m->n_blocks + info->unit - 1u) / info->unit * (size_t)info->unit_bytes;
    m->panel_bytes = round_up(bytes, 64);
    if (m->format == PANEL_BF16)
        m->panel_bytes = round_up(bytes, 128);
    return 0;
}

/* Bytes of blocks that are made at once, of files that have codes and scales apart. */
#define PACK_ROOM 2048u

/* Rows from n_out on stay zero; write_out() in matmul.c drops the results of their lanes. */
void panel_pack(const struct mat *m, const struct tensor *t, uint32_t panel, uint8_t *out) {
    const struct panel_info *info = &panel_infos[m->format];
    size_t source = panel_find_source(t);

    assert(source < ARRAY_SIZE(sources) && sources[source].format == m->format);
    assert(panel < m->n_panels && t->ne[0] == m->n_in && t->ne[1] == m->n_out);
    memset(out, 0, m->panel_bytes);
    if (m->format == PANEL_FP8) {
        pack_fp8(m, t, panel, out);
        return;
    }
    pack_fn pack = sources[source].pack;
    uint8_t room[PACK_ROOM];
    /* blocks of the file in one of the panel, and their bytes */
    uint32_t per = info->block / t->format->block;
    size_t bytes = per * t->format->block_bytes;
    uint32_t at_once = (uint32_t)(sizeof(room) / bytes);
    const uint8_t *p = room;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        uint32_t row = panel * LANES + lane;

        if (row >= m->n_out)
            break;
        for (uint32_t b = 0; b < m->n_blocks; b++, p += bytes) {
            if (b % at_once == 0)
                p = tensor_blocks(t, row, b * per, MIN(m->n_blocks - b, at_once) * per, room);
            uint8_t *unit = out + (size_t)(b / info->unit) * info->unit_bytes;
            uint32_t i = b % info->unit;

            pack(p, lane, unit + i * info->quant_bytes,
                 unit + info->unit * info->quant_bytes + i * info->meta_bytes);
        }
    }
}
