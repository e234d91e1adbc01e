#pragma once

/*
 * tiles_low - tiles of the formats with one to three bits per weight, for host and device: the
 * parts of tiles.h for formats from TILE_LOW on.
 *
 * A tile has 16 rows x 256 columns, in four slices of 64 columns, so that kernels loop over slices
 * with little code, and a lane reads its part of one slice. Below, lane 4 g + t has rows g and
 * g + 8 and four columns e (0..3) of each block j (0..3) of 16 columns of a slice; c is 2 j for
 * row g and 2 j + 1 for row g + 8. First come the codes, slice by slice:
 *
 *     IQ1    [16 pairs of lanes] byte c: lower 8 bits of the grid index of the pair's 8 columns
 *            [16] word, bits 4 c on: its upper 3 bits, and 8 if an eighth is added
 *     IQ2    [16] bytes as IQ1, [16] half-word, bits 2 c on: the upper 2 bits; [32] word: signs
 *     IQ3    [32 lanes] byte c: index of its 4 columns; [32] byte, bit c: the upper bit; [32]
 *            word: signs
 *     Q2_K   [32] 2 words of two blocks each, bits 16 e / 2 + 8 (j % 2) + 4 (e % 2) + 2 (c % 2) on
 *     Q3_K   as Q2_K, the lower bits; [32] word of upper bits: 16 e / 2 + 4 j + e % 2 + 2 (c % 2)
 *
 * Signs are placed so that a shift by c, and by 8 more for odd columns, moves them to the sign bits
 * of two halves: tile_sign_bit(). After the codes come the scales, slice by slice, of rows g and
 * g + 8:
 *
 *     IQ1, IQ2  [8 g] two half-words of nibbles s, one nibble for each block
 *     IQ3       [8] two bytes of nibbles, one nibble for each 32 columns
 *     Q2_K      [8] as IQ1, then the minima in the same order
 *     Q3_K      [8] four bytes of each row, with 128 added
 *
 * At the end are {d, d} of rows g and g + 8 for each g; in Q2_K {d, d, dmin, dmin}. The tiles hold
 * the same bits as the file, except for IQ1_S, TQ1_0, TQ2_0, IQ2_XXS, IQ2_XS, IQ3_XXS and Q3_K,
 * which are converted so that they need no formats of their own:
 *
 *     bits of a weight   IQ1 1.8125   IQ2 2.5625   IQ3 3.4375   Q2_K 2.625   Q3_K 3.5625
 */

#include "engine/formats/tile_formats.h"

#define TILE_SLICES 4u /* slices of a tile of 256 columns */

/* Grids in the form that a device reads. IQ1 and IQ2: a vector is two half-words of four nibbles; a
 * nibble is 4 plus the index of one of three magnitudes. IQ3: a vector is four bytes, the
 * magnitudes; half of the file's for IQ3_XXS, twice the file's for IQ3_S. */
struct tile_grids {
    uint16_t iq1[2 * 2048], iq2_xxs[2 * 256], iq2_xs[2 * 512], iq2_s[2 * 1024];
    uint32_t iq3_xxs[256], iq3_s[512];
};

/* Tables of the magnitudes that a nibble selects, one byte each: eight times the values of IQ1 plus
 * 16, with an eighth subtracted (LESS) or added (MORE); the magnitudes of IQ2. */
#define GRID_IQ1_LESS 0x00170F07u
#define GRID_IQ1_MORE 0x00191109u
#define GRID_IQ2 0x002B1908u

/* Converts the @n vectors of eight two-bit codes at @from to two half-words of nibbles each. */
MX_FN void grid_nibbles(uint16_t *to, const uint16_t *from, uint32_t n) {
    for (uint32_t i = 0; i < 8 * n; i++) {
        to[i / 4] = i % 4 ? to[i / 4] : 0;
        to[i / 4] |= (uint16_t)((4 | (from[i / 8] >> (2 * (i % 8)) & 3)) << (4 * (i % 4)));
    }
}

/* Converts the @n vectors of four three-bit codes c at @from to bytes: 2 + 4 c, but @last for c =
 * 7. */
MX_FN void grid_bytes(uint32_t *to, const uint16_t *from, uint32_t n, uint32_t last) {
    for (uint32_t i = 0; i < 4 * n; i++) {
        uint32_t c = from[i / 4] >> (3 * (i % 4)) & 7;

        to[i / 4] = i % 4 ? to[i / 4] : 0;
        to[i / 4] |= (c < 7 ? 2 + 4 * c : last) << (8 * (i % 4));
    }
}

/* Computes the grids of a device from the grids of the formats. */
MX_FN void tile_grids_fill(struct tile_grids *t, const struct blk_grids *g) {
    grid_nibbles(t->iq1, g->iq1, 2048);
    grid_nibbles(t->iq2_xxs, g->iq2_xxs, 256);
    grid_nibbles(t->iq2_xs, g->iq2_xs, 512);
    grid_nibbles(t->iq2_s, g->iq2_s, 1024);
    grid_bytes(t->iq3_xxs, g->iq3_xxs, 256, 31);
    grid_bytes(t->iq3_s, g->iq3_s, 512, 30);
}

/* Returns the grid of a tensor type, or NULL if it has none. */
MX_FN const void *tile_grid_of(uint32_t type, const struct tile_grids *t) {
    switch (type) {
    case TENSOR_IQ1_S:
    case TENSOR_IQ1_M:
        return t->iq1;
    case TENSOR_IQ2_XXS:
        return t->iq2_xxs;
    case TENSOR_IQ2_XS:
        return t->iq2_xs;
    case TENSOR_IQ2_S:
        return t->iq2_s;
    case TENSOR_IQ3_XXS:
        return t->iq3_xxs;
    case TENSOR_IQ3_S:
        return t->iq3_s;
    default:
        return NULL;
    }
}

/* Bytes of the parts of a slice: indices, or lower bits of codes (INDEX, of which LOWER and HIGH
 * are the lower eight bits of indices and the others; GRID: of formats with grids); signs, or upper
 * bits of Q3_K (SIGN); these together (CODE); scales (SCALE). HALVES: number of halves in a
 * tile. */
#define LOW_LOWER_BYTES(f) ((f) == TILE_IQ1 || (f) == TILE_IQ2 ? 128u : 256u)
#define LOW_GRID_HIGH_BYTES(f) ((f) == TILE_IQ1 ? 64u : 32u)
#define LOW_HIGH_BYTES(f) ((f) <= TILE_IQ3 ? LOW_GRID_HIGH_BYTES(f) : 0u)
#define LOW_INDEX_BYTES(f) (LOW_LOWER_BYTES(f) + LOW_HIGH_BYTES(f))
#define LOW_SIGN_BYTES(f) ((f) == TILE_IQ1 || (f) == TILE_Q2_K ? 0u : 128u)
#define LOW_CODE_BYTES(f) (LOW_INDEX_BYTES(f) + LOW_SIGN_BYTES(f))
#define LOW_GRID_SCALE_BYTES(f) ((f) == TILE_IQ3 ? 16u : 32u)
#define LOW_SCALE_BYTES(f) ((f) <= TILE_IQ3 ? LOW_GRID_SCALE_BYTES(f) : 64u)
#define LOW_HALVES(f) ((f) == TILE_Q2_K ? 32u : 16u)

/* Returns the bit in a word of signs of column @e (0..3): a shift by @c moves it to its place. */
MX_FN uint32_t tile_sign_bit(uint32_t e, uint32_t c) {
    return e / 2 * 16 + (e % 2 ? 7 : 15) - c;
}

/* Returns the scale, or the minimum, of group @group of 16 values, for types that are kept as
 * Q2_K. */
MX_FN uint32_t low_q2_scale(uint32_t type, const uint8_t *b, uint32_t group, bool min) {
    if (type != TENSOR_Q2_K)
        return 1;
    return min ? b[group] >> 4 : b[group] & 15u;
}

/* Returns the code of value @i of a block of such a type, 0..3. */
MX_FN uint32_t low_q2_code(uint32_t type, const uint8_t *b, uint32_t i) {
    switch (type) {
    case TENSOR_Q2_K:
        return (uint32_t)blk_q2_code(b, i);
    case TENSOR_TQ1_0:
        return (uint32_t)blk_tq1_code(b, i);
    default:
        return (uint32_t)blk_tq2_code(b, i);
    }
}

/* Returns the grid index of a run of columns, eight (IQ1, IQ2) or four (IQ3). In IQ1, bit 11 is set
 * if an eighth is added. */
MX_FN uint32_t low_index(uint32_t f, uint32_t type, const uint8_t *b, uint32_t column) {
    if (!b)
        return 0;
    uint32_t index = blk_iq_index(type, b, column / (f == TILE_IQ3 ? 4 : 8));

    return f == TILE_IQ1 && !blk_iq_signs(type, b, column / 8) ? index | 1u << 11 : index;
}

/* Returns the upper bits of the grid indices of a lane or a pair of lanes: bits [8, 8 + @bits) of
 * each of its eight indices, from the blocks of rows g and g + 8. Indices are computed one by one,
 * since a device would keep an array in local memory. */
MX_FN uint32_t low_index_high(uint32_t f, uint32_t type, const uint8_t *b, const uint8_t *b8,
                              uint32_t column, uint32_t bits) {
    uint32_t out = 0;

    for (uint32_t c = 0; c < 8; c++) {
        uint32_t index = low_index(f, type, c % 2 ? b8 : b, column + c / 2 * 16);

        out |= (index >> 8 & ((1u << bits) - 1)) << (bits * c);
    }
    return out;
}

/* Returns the lower two bits of code @i of a block of Q3_K, or the code of another type. */
MX_FN uint32_t low_code(uint32_t f, uint32_t type, const uint8_t *b, uint32_t i) {
    if (f == TILE_Q3_K)
        return (uint32_t)blk_q3_code(b, i) & 3;
    return low_q2_code(type, b, i);
}

/* Returns a word of codes of a lane: the upper bits of Q3_K (@upper), or the lower bits of two
 * blocks of Q2_K or Q3_K from column @k on. */
MX_FN uint32_t tile_low_codes(uint32_t f, const struct tile_source *s, uint32_t g, uint32_t k,
                              bool upper) {
    uint32_t out = 0;

    for (uint32_t i = 0; i < (upper ? 32u : 16u); i++) {
        uint32_t e = i % 4, high = i / 4 % 2, j = i / 8;
        const uint8_t *b = tile_block_at(s, g + 8 * high, k);
        uint32_t at = (k + 16 * j + e) % 256;

        if (!b)
            continue;
        if (upper)
            out |= (uint32_t)blk_q3_code(b, at) >> 2 << (e / 2 * 16 + 4 * j + e % 2 + 2 * high);
        else
            out |= low_code(f, s->type, b, at) << (e / 2 * 16 + 8 * j + e % 2 * 4 + 2 * high);
    }
    return out;
}

/* Returns the signs of a lane, of four blocks from @column of the tile on. */
MX_FN uint32_t tile_low_signs(const struct tile_source *s, uint32_t k0, uint32_t g,
                              uint32_t column) {
    const uint8_t *b = tile_block_at(s, g, k0), *b8 = tile_block_at(s, g + 8, k0);
    uint32_t out = 0;

    for (uint32_t i = 0; i < 32; i++) {
        uint32_t e = i % 4, c = i / 4, at = column + c / 2 * 16 + e;
        const uint8_t *of = c % 2 ? b8 : b;

        if (of)
            out |= (blk_iq_signs(s->type, of, at / 8) >> (at % 8) & 1) << tile_sign_bit(e, c);
    }
    return out;
}

/* Returns the number of bits of an index above the lower eight. */
MX_FN uint32_t low_index_bits(uint32_t f) {
    switch (f) {
    case TILE_IQ1:
        return 4;
    case TILE_IQ2:
        return 2;
    default:
        return 1;
    }
}

/* Returns bytes @o to @o + 3 of a slice's indices; the slice begins at column @first of the
 * tile. */
MX_FN uint32_t tile_low_index(uint32_t f, const struct tile_source *s, uint32_t k0, uint32_t first,
                              uint32_t o) {
    uint32_t per = f == TILE_IQ3 ? 4 : 2; /* lanes, or pairs of lanes, that share a row */
    uint32_t bits = low_index_bits(f), lower = 64 * per, out = 0;
    uint32_t at = o < lower ? o / 8 : (o - lower) / bits, n = o < lower ? 1 : 4 / bits;

    for (uint32_t i = 0; i < n; i++, at++) {
        uint32_t g = at / per, column = first + at % per * (16 / per);
        const uint8_t *b = tile_block_at(s, g, k0), *b8 = tile_block_at(s, g + 8, k0);

        if (o >= lower)
            out |= low_index_high(f, s->type, b, b8, column, bits) << (i * 8 * bits);
        for (uint32_t c = o % 8; o < lower && c < o % 8 + 4; c++)
            out |= (low_index(f, s->type, c % 2 ? b8 : b, column + c / 2 * 16) & 255)
                   << (c % 4 * 8);
    }
    return out;
}

/* Returns bytes @o to @o + 3 of the codes of slice @slice of the tile whose first column is @k0. */
MX_FN uint32_t tile_low_word(uint32_t f, const struct tile_source *s, uint32_t k0, uint32_t slice,
                             uint32_t o) {
    bool upper = o >= LOW_INDEX_BYTES(f); /* signs or upper bits: one word for each lane */
    uint32_t lane = upper ? (o - LOW_INDEX_BYTES(f)) / 4 : o / 8, first = slice * 64;
    uint32_t column = first + lane % 4 * 4;

    if (f > TILE_IQ3)
        return tile_low_codes(f, s, lane / 4, k0 + column + (upper ? 0 : o % 8 / 4 * 32), upper);
    if (upper)
        return tile_low_signs(s, k0, lane / 4, column);
    return tile_low_index(f, s, k0, first, o);
}

/* Returns byte @i of the halves of a tile. */
MX_FN uint8_t tile_low_half(uint32_t f, const struct tile_source *s, uint32_t k0, uint32_t i) {
    uint32_t half = i / 2, n = f == TILE_Q2_K ? 4 : 2;
    const uint8_t *b = tile_block_at(s, half / n + half % 2 * 8, k0);

    if (!b)
        return 0;
    if (f <= TILE_IQ3)
        return (uint8_t)(blk_iq_half(s->type, b) >> (i % 2 * 8));
    switch (s->type) {
    case TENSOR_Q2_K:
        return b[(half % 4 < 2 ? 80 : 82) + i % 2];
    case TENSOR_TQ1_0:
        return b[52 + i % 2];
    case TENSOR_TQ2_0:
        return b[64 + i % 2];
    default:
        return b[108 + i % 2];
    }
}

/* Returns byte @i of the scales of a tile, which follow its codes. */
MX_FN uint8_t tile_low_scale(uint32_t f, const struct tile_source *s, uint32_t k0, uint32_t i) {
    uint32_t slice = i / LOW_SCALE_BYTES(f), o = i % LOW_SCALE_BYTES(f);
    /* bytes of rows g and g + 8 */
    uint32_t per = LOW_SCALE_BYTES(f) / 8, g = o / per, at = o % per;

    if (slice >= TILE_SLICES)
        return tile_low_half(f, s, k0, i - TILE_SLICES * LOW_SCALE_BYTES(f));
    bool min = f == TILE_Q2_K && at >= 4;
    at -= min ? 4 : 0;
    uint32_t row = at / (f == TILE_Q2_K ? 2 : per / 2), n = at % (f == TILE_Q2_K ? 2 : per / 2);
    const uint8_t *b = tile_block_at(s, g + 8 * row, k0);

    if (!b)
        return 0;
    if (f == TILE_Q3_K)
        return (uint8_t)(blk_q3_scale(b, slice * 4 + n) + 128);
    uint32_t group = slice * 4 + 2 * n; /* group of 16 columns in the lower nibble */
    if (f == TILE_Q2_K)
        return (uint8_t)(low_q2_scale(s->type, b, group, min) |
                         low_q2_scale(s->type, b, group + 1, min) << 4);
    return (uint8_t)(blk_iq_scale(s->type, b, 2 * group) |
                     blk_iq_scale(s->type, b, 2 * group + (f == TILE_IQ3 ? 4 : 2)) << 4);
}
