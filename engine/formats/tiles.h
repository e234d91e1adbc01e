#pragma once

/*
 * tiles - the layout of weights of the CUDA backend, for host and device.
 *
 * A matrix is cut into tiles of 16 rows x tile_k() columns. A tile holds exactly the registers that
 * the 32 lanes of a warp need for mma.m16n8k16, so that a lane reads its weights with 16-byte loads
 * and without exchange between lanes. In a block of 16 columns, lane 4 g + t has the four columns 4
 * t .. 4 t + 3 of rows g and g + 8:
 *
 *     register   a0               a1               a2               a3
 *     row        g                g + 8            g                g + 8
 *     columns    4t, 4t + 2       4t, 4t + 2       4t + 1, 4t + 3   4t + 1, 4t + 3
 *
 * The instruction calls these columns 2t, 2t + 1, 2t + 8 and 2t + 9. Activations are packed in the
 * same order, so only the order of a sum of sixteen products differs. Even and odd columns are
 * separated because a mask can then extract two codes from a word, each at the bottom of a
 * half-word.
 *
 *     format     columns  codes of a lane                  after the codes            bits of a
 *                                                                                     weight
 *     F16        64       4 x 16 B: a0 .. a3 of a block    -                          16
 *     Q8_0       64       2 x 16 B: {g, g+8} of 2 blocks   [16 rows][2] d             8.5
 *     Q4_0       64       16 B, nibbles: see below         [16][2] d                  4.5
 *     IQ4_NL     64       as Q4_0                          as Q4_0                    4.5
 *     MXFP4      64       16 B, FP4: see below             [16][2] exponents          4.25
 *     NVFP4      64       as MXFP4                         [16][4] scales             4.5
 *     Q5_0       64       16 B, 4 B: a byte of each block  as Q4_0                    5.5
 *     Q4_1       64       as Q4_0                          [16][2] d, [16][2] m       5
 *     Q5_1       64       as Q5_0                          as Q4_1                    6
 *     G4         64       as Q4_0                          [16] zero points, [16] d   4.375
 *     Q4_K       256      4 x 16 B as Q4_0                 [16][8 scales, 8 mins] x 4, 4.625
 *                                                          [16] {d, dmin}
 *     Q5_K       256      + 16 B: a byte of each block     as Q4_K                    5.625
 *     Q6_K       256      + 2 x 16 B: two bytes of each    [16][16 scales], [16] d    6.5625
 *                         block
 *     IQ4_XS     256      as Q4_K                          [16][8 scales], [16] d     4.3125
 *
 * Codes of Q8_0 and scales of Q6_K and IQ4_XS are stored with 128 added. d and dmin are multiplied
 * by a power of two: tile_scaled_half(). A weight of G4 is d (code - zero point): those blocks of
 * Q5_0 whose codes are nibbles less the zero point of their group (base/repack.h).
 *
 * Nibbles: word w of a vector of 16 bytes is block w of its 64 columns. Byte e has column 4 t + e,
 * row g in the low nibble and row g + 8 in the high one. The fifth bits of Q5_K, Q5_0 and Q5_1, and
 * the fifth and sixth bits of Q6_K, are placed so that a mask, directly or after a shift by four,
 * leaves them above their nibbles: tile_high_slot(). In Q5_K, word w of the vector has one bit for
 * each of the blocks 4 w .. 4 w + 3. In Q5_0 and Q5_1, a lane's word has one bit for each of its
 * four blocks. In Q6_K, word w of a vector has two bits for each of two blocks.
 *
 * FP4: word w of a vector is block w, too. One or two shifts and a mask move the four bits of a
 * column to the fields of a half, whose value is then 2^-15 of the code's: tile_fp4_bit().
 *
 * tiles_low.h describes the formats with fewer bits. F32 and BF16 are stored as F16, since the
 * kernels round every weight to half precision anyway (engine/cuda/products/weights.cuh). Rows and
 * columns beyond the matrix are zero.
 */

#include "engine/formats/tiles_low.h"

#define TILE_SEGMENTS 8u
/* largest exponent of MXFP4 that is kept: half of 2^(150 - 127) exceeds half precision */
#define TILE_FP4_MAX 150u

/* Sizes in a row of TILE_EACH. */
struct tile_sizes {
    uint32_t columns, code_bytes, scale_bytes, n_halves;
    int top, zero;
};

/* Returns the row of format @f. A constant format costs nothing in a kernel. */
MX_FN struct tile_sizes tile_sizes(uint32_t f) {
    struct tile_sizes none = {0, 0, 0, 0, 0, 0};

#define TILE_CASE(f, columns, codes, scales, halves, top, kind, upper, zero, minima)               \
    case TILE_##f: {                                                                               \
        struct tile_sizes row = {columns, codes, scales, halves, top, zero};                       \
        return row;                                                                                \
    }
    switch (f) {
        TILE_EACH(TILE_CASE)
    default:
        return none;
    }
#undef TILE_CASE
}

/* Returns the number of columns of a tile: one comparison where a kernel reads the format at run
 * time, which would make the switch of tile_sizes() a table of branches. */
MX_FN uint32_t tile_k(uint32_t f) {
    return f >= TILE_Q4_K ? 256 : 64;
}

/* Returns the bytes of a tile before its scales: whole vectors of 512 bytes for formats before
 * TILE_LOW, plus 128 bytes of fifth bits in Q5_0 and Q5_1. */
MX_FN uint32_t tile_code_bytes(uint32_t f) {
    return tile_sizes(f).code_bytes;
}

/* Returns the bytes of a tile, scales included. */
MX_FN uint32_t tile_bytes(uint32_t f) {
    return tile_sizes(f).code_bytes + tile_sizes(f).scale_bytes;
}

/* Returns the number of halves among a tile's scales: d, or d and dmin, of all rows. */
MX_FN uint32_t tile_n_halves(uint32_t f) {
    return tile_sizes(f).n_halves;
}

/* Sets of formats, a bit for each, from their rows. A constant format costs nothing in a kernel,
 * another a shift. */
#define TILE_IF(f, is) | (uint32_t)(is) << TILE_##f
#define TILE_IF_BYTES(f, c, n, s, h, t, kind, ...)                                                 \
    TILE_IF(f, CODES_##kind >= CODES_BYTE && CODES_##kind <= CODES_INDEX)
#define TILE_IF_NIBBLE(f, c, n, s, h, t, kind, ...) TILE_IF(f, CODES_##kind == CODES_NIBBLE)
#define TILE_IF_INDEX(f, c, n, s, h, t, kind, ...) TILE_IF(f, CODES_##kind == CODES_INDEX)
#define TILE_IF_FP4(f, c, n, s, h, t, kind, ...) TILE_IF(f, CODES_##kind == CODES_FP4)
#define TILE_IF_FIFTH(f, c, n, s, h, t, kind, upper, ...) TILE_IF(f, (upper) == 1)
#define TILE_IF_MINIMA(f, c, n, s, h, t, kind, upper, zero, minima) TILE_IF(f, minima)
#define TILE_IS(f, which) (((0u TILE_EACH(TILE_IF_##which)) & 1u << (f)) != 0)

/* Formats whose codes some device families multiply as bytes (engine/cuda). */
#define BYTES_FORMAT(f) TILE_IS(f, BYTES)

/* Number of consecutive tiles of a row that are fetched together: about 2 to 3 KiB. */
#define TILE_STAGE_TWO(f)                                                                          \
    ((f) == TILE_Q8_0 || (f) == TILE_IQ1 || (f) == TILE_IQ2 || (f) == TILE_Q2_K)
#define TILE_STAGE_OTHERS(f) ((f) > TILE_Q8_0 && (f) < TILE_Q4_K ? 4u : 1u)
#define TILE_STAGE_UNITS(f) (TILE_STAGE_TWO(f) ? 2u : TILE_STAGE_OTHERS(f))

/* Returns TILE_STAGE_UNITS(), for callers whose format is not a constant. */
MX_FN uint32_t tile_stage_units(uint32_t f) {
    return TILE_STAGE_UNITS(f);
}

/* Returns the bytes of the tiles that are fetched together. */
MX_FN uint32_t tile_stage_bytes(uint32_t f) {
    return tile_stage_units(f) * tile_bytes(f);
}

/* Returns the number of tiles in a row of tiles. */
MX_FN uint32_t tile_units(uint32_t f, uint32_t n_in) {
    return (n_in + tile_k(f) - 1) / tile_k(f);
}

/* Returns the first tile of segment @s of a row of @n_units tiles. The columns are summed in up to
 * TILE_SEGMENTS segments: from left to right within each, then the sums of segments from left to
 * right. The division depends only on the shape, so the number of rows has no effect on the
 * result. */
MX_FN uint32_t tile_segment(uint32_t n_units, uint32_t s) {
    if (n_units < TILE_SEGMENTS)
        return s < n_units ? s : n_units;
    return s * n_units / TILE_SEGMENTS;
}

/* Returns the bytes of a matrix of [n_out][n_in] weights, filled up to whole tiles. */
MX_FN size_t tile_matrix_bytes(uint32_t f, uint32_t n_out, uint32_t n_in) {
    return (size_t)((n_out + TILE_ROWS - 1) / TILE_ROWS) * tile_units(f, n_in) * tile_bytes(f);
}

/* -- repacking: the bytes of a tile from the rows of a file ------------------------------------ */

/* Returns the least code of row @r, at most 16, in the blocks of Q5_0 that make the tile of G4 from
 * column @k0 on. It becomes nibble 0, so 16 less it is the zero point. */
MX_FN uint32_t tile_least_code(const struct tile_source *s, uint32_t r, uint32_t k0) {
    uint32_t least = 16;

    for (uint32_t i = 0; i < tile_k(TILE_G4); i++) {
        const uint8_t *b = tile_block_at(s, r, k0 + i);
        uint32_t code = b ? (uint32_t)blk_q5_code(b + 2, i % 32) : least;

        if (code < least)
            least = code;
    }
    return least;
}

/* Returns the code of a weight, an unsigned integer; the format has codes. 0 beyond the matrix. */
MX_FN uint32_t tile_code_at(uint32_t f, const struct tile_source *s, uint32_t r, uint32_t k) {
    const uint8_t *b = tile_block_at(s, r, k);
    unsigned i = k % s->block;

    if (!b)
        return 0;
    switch (f) {
    case TILE_Q8_0:
        return b[2 + i] ^ 0x80u;
    case TILE_Q4_K:
        return (uint32_t)blk_k45_code(b, false, i);
    case TILE_Q5_K:
        return (uint32_t)blk_k45_code(b, true, i);
    case TILE_Q6_K:
        return (uint32_t)blk_q6_code(b, i);
    case TILE_IQ4_XS:
        return (uint32_t)blk_nibble(b + 8 + 16 * (i / 32), i % 32);
    case TILE_MXFP4:
        return (uint32_t)blk_nibble(b + 1, i);
    case TILE_NVFP4:
        return (uint32_t)blk_nvfp4_code(b, i);
    case TILE_G4:
        return (uint32_t)blk_q5_code(b + 2, i) - tile_least_code(s, r, k / 64 * 64);
    default: /* nibbles and perhaps fifth bits, after d and perhaps a minimum */
        b += TILE_IS(f, MINIMA) ? 4 : 2;
        if (TILE_IS(f, FIFTH))
            return (uint32_t)blk_q5_code(b, i);
        return (uint32_t)blk_nibble(b, i);
    }
}

/* Returns columns @k and @k + 2 of row @r as halves, the first in the lower half-word. */
MX_FN uint32_t tile_halves_at(const struct tile_source *s, uint32_t r, uint32_t k) {
    return mx_float_to_half(tile_value_at(s, r, k)) |
           (uint32_t)mx_float_to_half(tile_value_at(s, r, k + 2)) << 16;
}

/* Returns the index of the group of four bits in a word that has the upper bits of column @e (0..3)
 * of row g (@high 0) or g + 8 (@high 1). */
MX_FN uint32_t tile_high_slot(uint32_t e, uint32_t high) {
    return (0x74653021u >> (8 * e + 4 * high)) & 15;
}

/* Returns the position in a word of bit @bit of the FP4 code of column @e (0..3) of row g (@high 0)
 * or g + 8 (@high 1). The target is a half's fields: bits 9 to 11 are the lower exponent and the
 * upper mantissa bits, bit 15 is the sign. Columns 0 and 1 are in the lower half-word, columns 2
 * and 3 in the upper one. In even columns, row g is in place and row g + 8 is three bits lower. In
 * odd columns, the lower three bits are 6 and 9 bits lower, the signs 2 and 1. */
MX_FN uint32_t tile_fp4_bit(uint32_t e, uint32_t high, uint32_t bit) {
    uint32_t at = (e % 2 ? 3u : 9u) - 3 * high + bit;

    if (bit == 3)
        at = e % 2 ? 13 + high : 15 - 3 * high;
    return e / 2 * 16 + at;
}

/* Returns word @w (0..3) of vector @v of lane @lane of the tile whose first column is @k0. */
MX_FN uint32_t tile_code_word(uint32_t f, const struct tile_source *s, uint32_t k0, uint32_t v,
                              uint32_t lane, uint32_t w) {
    uint32_t g = lane / 4, t = lane % 4, out = 0, o = v * 512 + lane * 16 + w * 4;

    if (f >= TILE_LOW)
        return tile_low_word(f, s, k0, o / LOW_CODE_BYTES(f), o % LOW_CODE_BYTES(f));
    bool fp4 = TILE_IS(f, FP4), fifth = TILE_IS(f, FIFTH);

    if (f == TILE_F16)
        return tile_halves_at(s, g + (w & 1) * 8, k0 + v * 16 + 4 * t + w / 2);
    if (f == TILE_Q8_0) {
        for (uint32_t e = 0; e < 4; e++)
            out |= tile_code_at(f, s, g + (w & 1) * 8, k0 + v * 32 + (w / 2) * 16 + 4 * t + e)
                   << (8 * e);
        return out;
    }
    bool five = fifth && v == 4, six = f == TILE_Q6_K && v >= 4;
    bool word = fifth && v == 1 && tile_k(f) == 64; /* one word for each lane */
    if (five || six || word) {
        uint32_t n = six ? 2 : 4, mask = six ? 3 : 1; /* blocks that a word covers */
        uint32_t block = 0;

        if (word) {
            g = lane;
            t = w;
        } else if (five) {
            block = 4 * w;
        } else {
            block = (v - 4) * 8 + 2 * w;
        }
        for (uint32_t i = 0; i < 8 * n; i++) {
            uint32_t e = i & 3, high = i >> 2 & 1, b = i / 8;
            uint32_t code = tile_code_at(f, s, g + 8 * high, k0 + (block + b) * 16 + 4 * t + e);

            out |= (code >> 4 & mask) << (4 * tile_high_slot(e, high) + 4 / n * b);
        }
        return out;
    }
    uint32_t of = f, least[2] = {0, 0};

    if (f == TILE_G4) { /* the codes of blocks of Q5_0 */
        of = TILE_Q5_0;
        least[0] = tile_least_code(s, g, k0);
        least[1] = tile_least_code(s, g + 8, k0);
    }
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t code = tile_code_at(of, s, g + (i & 1) * 8, k0 + v * 64 + w * 16 + 4 * t + i / 2);

        code -= least[i & 1];
        for (uint32_t bit = 0; fp4 && bit < 4; bit++)
            out |= (code >> bit & 1) << tile_fp4_bit(i / 2, i & 1, bit);
        out |= fp4 ? 0 : (code & 15) << (4 * i);
    }
    return out;
}

/* Returns byte @i of a Q4_K or Q5_K tile's scales. */
MX_FN uint8_t tile_k45_scale(const struct tile_source *s, uint32_t k0, uint32_t i) {
    uint32_t r = i < 256 ? i / 16 : (i - 256) / 4;
    const uint8_t *b = tile_block_at(s, r, k0);
    int scale, min;

    if (!b)
        return 0;
    if (i >= 256)
        return b[i % 4];
    blk_k4_scale(b + 4, i % 8, &scale, &min);
    return (uint8_t)(4 * (i % 16 < 8 ? scale : min));
}

/* Returns byte @i of the scales, which follow the codes of a tile. */
MX_FN uint8_t tile_scale_byte(uint32_t f, const struct tile_source *s, uint32_t k0, uint32_t i) {
    const uint8_t *b;

    if (f >= TILE_LOW)
        return tile_low_scale(f, s, k0, i);
    switch (f) {
    case TILE_Q4_K:
    case TILE_Q5_K:
        return tile_k45_scale(s, k0, i);
    case TILE_Q6_K:
        b = tile_block_at(s, i < 256 ? i / 16 : (i - 256) / 2, k0);
        if (!b)
            return 0;
        return i < 256 ? b[192 + i % 16] ^ 0x80 : b[208 + i % 2];
    case TILE_IQ4_XS:
        b = tile_block_at(s, i < 128 ? i / 8 : (i - 128) / 2, k0);
        if (!b)
            return 0;
        return i < 128 ? (uint8_t)blk_iq4_xs_scale(b, i % 8) ^ 0x80 : b[i % 2];
    /* larger exponents are clamped: only zeros have such scales and fit half precision */
    case TILE_MXFP4:
        b = tile_block_at(s, i / 2, k0 + i % 2 * 32);
        if (!b)
            return 0;
        return b[0] < TILE_FP4_MAX ? b[0] : TILE_FP4_MAX;
    case TILE_NVFP4: /* a scale of NaN becomes 0 */
        b = tile_block_at(s, i / 4, k0);
        return !b || b[i % 4] == 0x7F ? 0 : b[i % 4] & 0x7F;
    case TILE_G4:
        if (i < TILE_ROWS)
            return (uint8_t)(16 - tile_least_code(s, i, k0));
        b = tile_block_at(s, i / 2 - TILE_ROWS / 2, k0);
        return b ? b[i % 2] : 0;
    /* Q8_0, Q4_0, IQ4_NL, Q5_0: [row][2] d; Q4_1 and Q5_1 then have minima in the same order */
    default:
        b = tile_block_at(s, i % 64 / 4, k0 + (i / 2 % 2) * 32);
        return b ? b[i / 64 * 2 + i % 2] : 0;
    }
}

/* -- scaling: the scales of a tile once those of the whole tensor are known -------------------- */

/* Returns the offset of half @i < tile_n_halves() in a tile. The halves are at the end of the
 * tile. */
MX_FN uint32_t tile_half_at(uint32_t f, uint32_t i) {
    return tile_bytes(f) - 2 * tile_n_halves(f) + 2 * i;
}

/* Returns true if a tile has halves m beside each d. */
MX_FN bool tile_has_minima(uint32_t f) {
    return TILE_IS(f, MINIMA) && tile_k(f) == 64;
}

/* Returns true if half @i is a minimum (m or dmin) and not a scale. */
MX_FN bool tile_half_is_min(uint32_t f, uint32_t i) {
    return (tile_has_minima(f) && i >= 2 * TILE_ROWS) ||
           ((f == TILE_Q4_K || f == TILE_Q5_K) && i % 2 == 1) || (f == TILE_Q2_K && i % 4 >= 2);
}

/* Returns 2^e for e in -126..127. */
MX_FN float tile_power_of_two(int e) {
    return mx_float_of((uint32_t)(e + 127) << 23);
}

/* Returns the exponent e of the factor 2^(unit + e) by which half @i of the file is multiplied in
 * the tile. It compensates the way kernels read codes, as subnormal halves: a code is 2^-24 of its
 * value; a nibble of row g + 8, which stays four bits higher, 2^-20; a pair of bits of row g + 8,
 * two bits higher, 2^-22. A minimum is multiplied by 2^-20 of its byte, in Q2_K by 2^-16 of its
 * nibble, and in Q4_1 and Q5_1 by nothing. Values of grids are in units of an eighth in IQ1 and
 * IQ2, a half in IQ3. */
MX_FN int tile_half_power(uint32_t f, uint32_t i) {
    if (f == TILE_IQ1 || f == TILE_IQ2)
        return 21;
    if (f == TILE_IQ3)
        return 23;
    if (f >= TILE_LOW && tile_half_is_min(f, i))
        return 16;
    if (f >= TILE_LOW)
        return i % 2 ? 22 : 24;
    if (tile_has_minima(f) && tile_half_is_min(f, i))
        return 0;
    if (tile_has_minima(f))
        return i >= TILE_ROWS ? 20 : 24;
    return tile_half_is_min(f, i) || (TILE_IS(f, NIBBLE) && i >= tile_n_halves(f) / 2) ? 20 : 24;
}

#define TILE_SCALES(f) ((f) == TILE_MXFP4 ? 2 * TILE_ROWS : tile_n_halves(f))

/* Returns the size of scale @i < TILE_SCALES() of the tile at column @k0, of which tile_unit()
 * takes the largest. */
MX_FN float tile_scale_size(uint32_t f, const struct tile_source *s, uint32_t k0, uint32_t i) {
    uint32_t at = tile_half_at(f, i) - tile_code_bytes(f);

    if (f == TILE_MXFP4)
        return tile_scale_byte(f, s, k0, i);
    uint32_t low = tile_scale_byte(f, s, k0, at), high = tile_scale_byte(f, s, k0, at + 1) & 0x7F;
    float size = mx_half_to_float((uint16_t)(low | high << 8));

    if (!tile_half_is_min(f, i))
        return size;
    return size * (tile_has_minima(f) ? 0x1p-24f : 0x1p-11f);
}

/* Returns the unit of a tensor: kernels compute with 2^unit times the weights of the file
 * (engine/cuda/products/weights.cuh). @most is the largest tile_scale_size() of the tensor; the
 * unit brings it just below the largest scale that half precision allows. */
MX_FN int tile_unit(uint32_t f, float most) {
    int e = (int)(mx_bits_of(most) >> 23) - 126; /* most < 2^e */

    if (f == TILE_NVFP4)
        return -7;
    if (f == TILE_MXFP4)
        return 128 - (most > 2 ? (int)most : 2);
    return f == TILE_F16 || most == 0 ? 0 : tile_sizes(f).top - 24 - e;
}

/* Returns half @i of a tile from its value @h in the file; @unit is the result of tile_unit(). */
MX_FN uint16_t tile_scaled_half(uint32_t f, uint32_t i, uint16_t h, int unit) {
    return mx_float_to_half(mx_half_to_float(h) * tile_power_of_two(unit + tile_half_power(f, i)));
}

/* Returns a scale of MXFP4 in the tile: the upper byte of a power of two in half precision, 2^15
 * for the largest scale of the tensor. 0 stands for 2^-30 of that and all smaller scales. */
MX_FN uint8_t tile_scaled_exponent(uint8_t e, int unit) {
    int field = e + unit - 98;

    return (uint8_t)(field > 0 ? 4 * field : 0);
}

/* -- reading: weights of a tile with the bits of the file -------------------------------------- */

/* Returns true if tiles of this tensor type allow to restore the weights of the file exactly,
 * provided that no scale exceeds 16. MXFP4 loses blocks that are 2^-30 of others; small minima of
 * Q4_1 and Q5_1 are rounded. */
MX_FN bool tile_is_legible(uint32_t type) {
    uint32_t f = tile_format_of(type);

    return (f != TILE_F16 && f < TILE_LOW && type != TENSOR_MXFP4 && !tile_has_minima(f)) ||
           type == TENSOR_F16;
}

/* Returns the little-endian word at @p. */
MX_FN uint32_t tile_word(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Returns the code at row @r and column @k of a tile; the format is not F16. */
MX_FN int tile_read_code(uint32_t f, const uint8_t *tile, uint32_t r, uint32_t k) {
    uint32_t lane = r % 8 * 4 + k % 16 / 4, high = r / 8, e = k % 4, kb = k / 16;
    uint32_t slot = 4 * tile_high_slot(e, high);
    const uint8_t *v = tile + lane * 16;

    if (f == TILE_Q8_0)
        return v[kb / 2 * 512 + kb % 2 * 8 + high * 4 + e];
    if (TILE_IS(f, FP4)) {
        uint32_t word = tile_word(v + kb * 4), code = 0;

        for (uint32_t bit = 0; bit < 4; bit++)
            code |= (word >> tile_fp4_bit(e, high, bit) & 1) << bit;
        return (int)code;
    }
    int q = (v[kb / 4 * 512 + kb % 4 * 4 + e] >> (4 * high)) & 15;

    if (TILE_IS(f, FIFTH) && tile_k(f) == 64)
        q |= (int)(tile_word(tile + 512 + lane * 4) >> (slot + kb) & 1) << 4;
    else if (TILE_IS(f, FIFTH))
        q |= (int)(tile_word(v + 2048 + kb / 4 * 4) >> (slot + kb % 4) & 1) << 4;
    if (f == TILE_Q6_K)
        q |= (int)(tile_word(v + 2048 + kb / 8 * 512 + kb % 8 / 2 * 4) >> (slot + kb % 2 * 2) & 3)
             << 4;
    return q;
}

/* Returns half @i as it is in the file; @inverse is 2^-unit. */
MX_FN float tile_read_half(uint32_t f, const uint8_t *tile, uint32_t i, float inverse) {
    return blk_half(tile + tile_half_at(f, i)) *
           (inverse * tile_power_of_two(-tile_half_power(f, i)));
}

/* Returns weight [r][k] of a tile as it is in the file, for the embedding of a model whose output
 * matrix is the embedding. @inverse is 2^-unit. */
MX_FN float tile_read(uint32_t f, const uint8_t *tile, uint32_t r, uint32_t k, float inverse) {
    const uint8_t *s = tile + tile_code_bytes(f);
    uint32_t lane = r % 8 * 4 + k % 16 / 4;
    int q = f == TILE_F16 ? 0 : tile_read_code(f, tile, r, k), scale;

    switch (f) {
    case TILE_F16:
        return blk_half(tile + k / 16 * 512 + lane * 16 + k % 2 * 8 + r / 8 * 4 + k % 4 / 2 * 2);
    case TILE_IQ4_NL:
        return tile_read_half(f, tile, r * 2 + k / 32, inverse) * (float)blk_iq4_value(q);
    case TILE_MXFP4:
        scale = s[r * 2 + k / 32] / 4;
        return scale ? tile_power_of_two(scale - 30) * inverse * (float)blk_fp4_value(q) : 0;
    case TILE_NVFP4:
        return mx_ue4m3_half(s[r * 4 + k / 16] | 0x80) * (float)blk_fp4_value(q);
    case TILE_G4:
        return tile_read_half(f, tile, r, inverse) * (float)(q - s[r]);
    case TILE_IQ4_XS:
        scale = s[r * 8 + k / 32] - 128;
        return tile_read_half(f, tile, r, inverse) * (float)scale * (float)blk_iq4_value(q);
    case TILE_Q6_K:
        scale = s[r * 16 + k / 16] - 128;
        return tile_read_half(f, tile, r, inverse) * (float)scale * (float)(q - 32);
    case TILE_Q4_K:
    case TILE_Q5_K: {
        float d = tile_read_half(f, tile, 2 * r, inverse);
        float dmin = tile_read_half(f, tile, 2 * r + 1, inverse);
        float scaled = d * (float)(s[r * 16 + k / 32] / 4) * (float)q;

        return scaled - dmin * (float)(s[r * 16 + 8 + k / 32] / 4);
    }
    default: {
        float d = tile_read_half(f, tile, r * 2 + k / 32, inverse);
        float scaled = d * (float)(q - tile_sizes(f).zero);

        if (!TILE_IS(f, MINIMA))
            return scaled;
        return scaled + tile_read_half(f, tile, 2 * TILE_ROWS + r * 2 + k / 32, inverse);
    }
    }
}
