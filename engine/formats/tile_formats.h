#pragma once

/* tile_formats - the formats of tiles (tiles.h), and access to the rows of a file that are repacked
 * to tiles. */

#include <stdbool.h>

#include "engine/formats/blocks.h"

/* Kinds of codes: none, the weights themselves (HALF); bytes; nibbles, perhaps with bits above
 * them; nibbles that stand for bytes (INDEX); small floating point numbers (FP4); those of
 * tiles_low.h (LOW). */
enum tile_codes { CODES_HALF, CODES_BYTE, CODES_NIBBLE, CODES_INDEX, CODES_FP4, CODES_LOW };

/* Rows of the formats: columns of a tile, bytes of its codes and of its scales, halves among the
 * scales, and the exponent t for which scales must satisfy 2^24 scale < 2^t. Then all products of
 * the scale with its integers stay within half precision. After these the kind of its codes, the
 * bits above nibbles, the code of a weight of 0 (G4: each row of a tile has its own), and 1 if
 * groups have minima. Code compares formats by this order: those of 64 columns, those of 256, those
 * of tiles_low.h. */
#define TILE_EACH(X)                                                                               \
    X(F16, 64, 2048, 0, 0, 15, HALF, 0, 0, 0)                                                      \
    X(Q8_0, 64, 1024, 64, 32, 15, BYTE, 0, 128, 0)                                                 \
    X(Q4_0, 64, 512, 64, 32, 15, NIBBLE, 0, 8, 0)                                                  \
    X(IQ4_NL, 64, 512, 64, 32, 15, INDEX, 0, 128, 0)                                               \
    X(MXFP4, 64, 512, 32, 0, 15, FP4, 0, 0, 0)                                                     \
    X(NVFP4, 64, 512, 64, 0, 15, FP4, 0, 0, 0)                                                     \
    X(Q5_0, 64, 640, 64, 32, 15, NIBBLE, 1, 16, 0)                                                 \
    X(Q4_1, 64, 512, 128, 64, 15, NIBBLE, 0, 0, 1)                                                 \
    X(Q5_1, 64, 640, 128, 64, 15, NIBBLE, 1, 0, 1)                                                 \
    X(G4, 64, 512, 48, 16, 15, NIBBLE, 0, 0, 0)                                                    \
    X(Q4_K, 256, 2048, 320, 32, 8, NIBBLE, 0, 0, 1)                                                \
    X(Q5_K, 256, 2560, 320, 32, 8, NIBBLE, 1, 0, 1)                                                \
    X(Q6_K, 256, 3072, 288, 16, 8, NIBBLE, 2, 32, 0)                                               \
    X(IQ4_XS, 256, 2048, 160, 16, 8, INDEX, 0, 128, 0)                                             \
    X(IQ1, 256, 768, 160, 16, 14, LOW, 0, 0, 0)                                                    \
    X(IQ2, 256, 1152, 160, 16, 14, LOW, 0, 0, 0)                                                   \
    X(IQ3, 256, 1664, 96, 16, 12, LOW, 0, 0, 0)                                                    \
    X(Q2_K, 256, 1024, 320, 32, 12, LOW, 0, 0, 1)                                                  \
    X(Q3_K, 256, 1536, 288, 16, 11, LOW, 0, 0, 0)

/* Formats of tiles, in the order of their rows. */
#define TILE_NAME(name, ...) TILE_##name,
enum tile_format { TILE_EACH(TILE_NAME) TILE_FORMATS };
#undef TILE_NAME

#define TILE_LOW TILE_IQ1

/* Rows of the tensor types that have tiles other than halves: the type, and its own format or one
 * that can represent it. Q5_0 made of 4-bit codes in groups may have G4 (load_tile_format()). */
#define TILE_TYPES(X)                                                                              \
    X(Q8_0, Q8_0)                                                                                  \
    X(Q4_0, Q4_0)                                                                                  \
    X(IQ4_NL, IQ4_NL)                                                                              \
    X(MXFP4, MXFP4)                                                                                \
    X(NVFP4, NVFP4)                                                                                \
    X(Q5_0, Q5_0)                                                                                  \
    X(Q4_1, Q4_1)                                                                                  \
    X(Q5_1, Q5_1)                                                                                  \
    X(Q4_K, Q4_K)                                                                                  \
    X(Q5_K, Q5_K)                                                                                  \
    X(Q6_K, Q6_K)                                                                                  \
    X(IQ4_XS, IQ4_XS)                                                                              \
    X(IQ1_S, IQ1)                                                                                  \
    X(IQ1_M, IQ1)                                                                                  \
    X(IQ2_XXS, IQ2)                                                                                \
    X(IQ2_XS, IQ2)                                                                                 \
    X(IQ2_S, IQ2)                                                                                  \
    X(IQ3_XXS, IQ3)                                                                                \
    X(IQ3_S, IQ3)                                                                                  \
    X(Q2_K, Q2_K)                                                                                  \
    X(TQ1_0, Q2_K)                                                                                 \
    X(TQ2_0, Q2_K)                                                                                 \
    X(Q3_K, Q3_K)

#define TILE_ROWS 16u
#define TILE_LANES 32u

/* Returns the format that a tensor type is repacked to: that of its row, or half precision. */
MX_FN enum tile_format tile_format_of(uint32_t type) {
#define TILE_OF(type, format)                                                                      \
    case TENSOR_##type:                                                                            \
        return TILE_##format;
    switch (type) {
        TILE_TYPES(TILE_OF)
    default:
        return TILE_F16;
    }
#undef TILE_OF
}

/* Rows of a tensor in the format of the file. Row r, counted from the first row of the tile, is at
 * @data + r * row_bytes; the matrix has @n_rows rows from there on, and @n_in columns. */
struct tile_source {
    const uint8_t *data;
    const struct blk_grids *grids;
    size_t row_bytes;
    uint32_t type, block, block_bytes, n_rows, n_in;
};

/* Returns the block that holds column @k of row @r, or NULL. */
MX_FN const uint8_t *tile_block_at(const struct tile_source *s, uint32_t r, uint32_t k) {
    if (r >= s->n_rows || k >= s->n_in)
        return NULL;
    return s->data + r * s->row_bytes + (size_t)(k / s->block) * s->block_bytes;
}

/* Returns the value of column @k of row @r; 0 beyond the matrix. */
MX_FN float tile_value_at(const struct tile_source *s, uint32_t r, uint32_t k) {
    const uint8_t *b = tile_block_at(s, r, k);

    return b ? blk_value(s->type, b, k % s->block, s->grids) : 0;
}
