#pragma once

/*
 * tiles - the order in which the CUDA backend keeps weights, for host and device.
 *
 * A matrix is cut into tiles of 16 rows x tile_k() columns. A tile holds exactly the registers that the 32
 * lanes of a warp need for mma.m16n8k16, so that a lane takes its weights with 16-byte loads and no
 * exchange. Lane 4 g + t of a block of 16 columns has, of rows g and g + 8, the four columns 4 t .. 4 t + 3:
 *
 *     register   a0               a1               a2               a3
 *     row        g                g + 8            g                g + 8
 *     columns    4t, 4t + 1       4t, 4t + 1       4t + 2, 4t + 3   4t + 2, 4t + 3
 *
 * The instruction calls these columns 2t, 2t + 1, 2t + 8 and 2t + 9. The activations are taken in the same
 * order, so nothing but the order of a sum of sixteen products is changed.
 *
 *     format     columns  codes per lane                       after the codes            bits per weight
 *     F16        64       4 x 16 B: a0 .. a3 of a block        -                          16
 *     Q8_0       64       2 x 16 B: {g, g+8} of 2 blocks       [16 rows][2] d             8.5
 *     Q4_0       64       16 B, nibbles: see below             [16][2] d                  4.5
 *     IQ4_NL     64       as Q4_0                              as Q4_0                    4.5
 *     Q4_K       256      4 x 16 B as Q4_0                     [16][8 scales, 8 mins],    4.625
 *                                                              [16] {d, dmin}
 *     Q5_K       256      + 16 B: a byte per block             as Q4_K                    5.625
 *     Q6_K       256      + 2 x 16 B: two bytes per block      [16][16 scales], [16] d    6.5625
 *     IQ4_XS     256      as Q4_K                              [16][8 scales], [16] d     4.3125
 *
 * Nibbles: word w of a vector is block w of its 64 columns; byte e holds column 4 t + e, row g in the low nibble
 * and row g + 8 in the high one. The fifth bits of Q5_K: byte kb of the lane's vector, bit e row g, bit 4 + e
 * row g + 8. The fifth and sixth of Q6_K: half-word kb, bits 2 e row g, bits 8 + 2 e row g + 8.
 *
 * Other formats are kept as F16: rounding to half precision is what the recipe does with every weight anyway.
 * Rows and columns beyond the matrix are zero.
 */

#include "engine/shared/blocks.h"

enum tile_format {
    TILE_F16,
    TILE_Q8_0,
    TILE_Q4_0,
    TILE_IQ4_NL,
    TILE_Q4_K,
    TILE_Q5_K,
    TILE_Q6_K,
    TILE_IQ4_XS,
    TILE_FORMATS,
};

#define TILE_ROWS 16u
#define TILE_LANES 32u
#define TILE_SEGMENTS 8u

MX_FN enum tile_format tile_format_of(uint32_t type) {
    switch (type) {
    case TENSOR_Q8_0:
        return TILE_Q8_0;
    case TENSOR_Q4_0:
        return TILE_Q4_0;
    case TENSOR_IQ4_NL:
        return TILE_IQ4_NL;
    case TENSOR_Q4_K:
        return TILE_Q4_K;
    case TENSOR_Q5_K:
        return TILE_Q5_K;
    case TENSOR_Q6_K:
        return TILE_Q6_K;
    case TENSOR_IQ4_XS:
        return TILE_IQ4_XS;
    default:
        return TILE_F16;
    }
}

/* Columns of a tile. */
MX_FN uint32_t tile_k(uint32_t f) {
    return f >= TILE_Q4_K ? 256 : 64;
}

/* Bytes of a tile before its scales; whole vectors of 512 bytes. */
MX_FN uint32_t tile_code_bytes(uint32_t f) {
    switch (f) {
    case TILE_F16:
        return 2048;
    case TILE_Q8_0:
        return 1024;
    case TILE_Q4_0:
    case TILE_IQ4_NL:
        return 512;
    case TILE_Q5_K:
        return 2048 + 512;
    case TILE_Q6_K:
        return 2048 + 1024;
    default:
        return 2048;
    }
}

MX_FN uint32_t tile_bytes(uint32_t f) {
    switch (f) {
    case TILE_F16:
        return 2048;
    case TILE_Q8_0:
    case TILE_Q4_0:
    case TILE_IQ4_NL:
        return tile_code_bytes(f) + 64;
    case TILE_Q4_K:
    case TILE_Q5_K:
        return tile_code_bytes(f) + 320;
    case TILE_Q6_K:
        return tile_code_bytes(f) + 288;
    default:
        return tile_code_bytes(f) + 160;
    }
}

/* Tiles side by side in a row of tiles. */
MX_FN uint32_t tile_units(uint32_t f, uint32_t n_in) {
    return (n_in + tile_k(f) - 1) / tile_k(f);
}

/* The columns are summed in up to eight segments, from left to right inside each; their sums are added from
 * left to right. Segment @s begins with this tile; fixed by the shape, whatever the number of rows. */
MX_FN uint32_t tile_segment(uint32_t n_units, uint32_t s) {
    uint32_t n = n_units < TILE_SEGMENTS ? n_units : TILE_SEGMENTS;

    return s < n ? s * n_units / n : n_units;
}

MX_FN size_t tile_matrix_bytes(uint32_t f, uint32_t n_out, uint32_t n_in) {
    return (size_t)((n_out + TILE_ROWS - 1) / TILE_ROWS) * tile_units(f, n_in) * tile_bytes(f);
}

/* -- repacking: what the bytes of a tile are, from the file's rows -------------------------------------- */

/* Rows of the file: row r (of the tile) at @data + r * row_bytes; beyond @n_rows and @n_in there is nothing. */
struct tile_source {
    const uint8_t *data;
    const uint64_t *grid; /* quant_iq2_xxs_grid */
    size_t row_bytes;
    uint32_t type, block, block_bytes, n_rows, n_in;
};

/* The block that holds column @k of row @r, or NULL. */
MX_FN const uint8_t *tile_block_at(const struct tile_source *s, uint32_t r, uint32_t k) {
    if (r >= s->n_rows || k >= s->n_in)
        return NULL;
    return s->data + r * s->row_bytes + (size_t)(k / s->block) * s->block_bytes;
}

MX_FN float tile_value_at(const struct tile_source *s, uint32_t r, uint32_t k) {
    const uint8_t *b = tile_block_at(s, r, k);

    return b ? blk_value(s->type, b, k % s->block, s->grid) : 0;
}

/* The integer of a weight of the formats with codes. */
MX_FN uint32_t tile_code_at(uint32_t f, const struct tile_source *s, uint32_t r, uint32_t k) {
    const uint8_t *b = tile_block_at(s, r, k);
    unsigned i = k % s->block;

    if (!b)
        return 0;
    switch (f) {
    case TILE_Q8_0:
        return b[2 + i];
    case TILE_Q4_K:
        return (uint32_t)blk_k45_code(b, false, i);
    case TILE_Q5_K:
        return (uint32_t)blk_k45_code(b, true, i);
    case TILE_Q6_K:
        return (uint32_t)blk_q6_code(b, i);
    case TILE_IQ4_XS:
        return (uint32_t)blk_nibble(b + 8 + 16 * (i / 32), i % 32);
    default: /* Q4_0, IQ4_NL */
        return (uint32_t)blk_nibble(b + 2, i);
    }
}

MX_FN uint32_t tile_halves_at(const struct tile_source *s, uint32_t r, uint32_t k) {
    return mx_float_to_half(tile_value_at(s, r, k)) |
           (uint32_t)mx_float_to_half(tile_value_at(s, r, k + 1)) << 16;
}

/* Word @w (0..3) of vector @v of lane @lane of the tile whose first column is @k0. */
MX_FN uint32_t tile_code_word(uint32_t f, const struct tile_source *s, uint32_t k0, uint32_t v,
                              uint32_t lane, uint32_t w) {
    uint32_t g = lane / 4, t = lane % 4, out = 0;

    if (f == TILE_F16)
        return tile_halves_at(s, g + (w & 1) * 8, k0 + v * 16 + 4 * t + (w & 2));
    if (f == TILE_Q8_0) {
        for (uint32_t e = 0; e < 4; e++)
            out |= tile_code_at(f, s, g + (w & 1) * 8, k0 + v * 32 + (w / 2) * 16 + 4 * t + e)
                   << (8 * e);
        return out;
    }
    if (f == TILE_Q5_K && v == 4) {
        for (uint32_t i = 0; i < 32; i++) /* byte i / 8: block 4 w + i / 8 */
            out |=
                (tile_code_at(f, s, g + (i & 4) * 2, k0 + (4 * w + i / 8) * 16 + 4 * t + (i & 3)) >>
                 4)
                << i;
        return out;
    }
    if (f == TILE_Q6_K && v >= 4) {
        for (uint32_t i = 0; i < 16; i++) /* half-word i / 8 */
            out |= (tile_code_at(f, s, g + (i & 4) * 2,
                                 k0 + ((v - 4) * 8 + 2 * w + i / 8) * 16 + 4 * t + (i & 3)) >>
                    4)
                   << (2 * i);
        return out;
    }
    for (uint32_t i = 0; i < 8; i++)
        out |= (tile_code_at(f, s, g + (i & 1) * 8, k0 + v * 64 + w * 16 + 4 * t + i / 2) & 15)
               << (4 * i);
    return out;
}

/* Byte @i of a Q4_K or Q5_K tile's scales. */
MX_FN uint8_t tile_k45_scale(const struct tile_source *s, uint32_t k0, uint32_t i) {
    uint32_t r = i < 256 ? i / 16 : (i - 256) / 4;
    const uint8_t *b = tile_block_at(s, r, k0);
    int scale, min;

    if (!b)
        return 0;
    if (i >= 256)
        return b[i % 4];
    blk_k4_scale(b + 4, i % 8, &scale, &min);
    return (uint8_t)(i % 16 < 8 ? scale : min);
}

/* Byte @i of what follows the codes. */
MX_FN uint8_t tile_scale_byte(uint32_t f, const struct tile_source *s, uint32_t k0, uint32_t i) {
    const uint8_t *b;

    switch (f) {
    case TILE_Q4_K:
    case TILE_Q5_K:
        return tile_k45_scale(s, k0, i);
    case TILE_Q6_K:
        b = tile_block_at(s, i < 256 ? i / 16 : (i - 256) / 2, k0);
        return !b ? 0 : i < 256 ? b[192 + i % 16] : b[208 + i % 2];
    case TILE_IQ4_XS:
        b = tile_block_at(s, i < 128 ? i / 8 : (i - 128) / 2, k0);
        return !b ? 0 : i < 128 ? (uint8_t)blk_iq4_xs_scale(b, i % 8) : b[i % 2];
    default: /* Q8_0, Q4_0, IQ4_NL: [row][2] halves */
        b = tile_block_at(s, i / 4, k0 + (i / 2 % 2) * 32);
        return b ? b[i % 2] : 0;
    }
}
