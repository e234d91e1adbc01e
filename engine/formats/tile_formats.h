#pragma once

/* tile_formats - the formats of tiles (tiles.h), and access to the rows of a file that are repacked
 * to tiles. */

#include <stdbool.h>

#include "engine/formats/blocks.h"

/* Formats of tiles. Code compares them by order, as the comments below state. */
enum tile_format {
    TILE_F16,
    TILE_Q8_0,
    TILE_Q4_0,
    TILE_IQ4_NL,
    TILE_MXFP4,
    TILE_NVFP4,
    TILE_Q5_0,
    /* this and the next format have minima */
    TILE_Q4_1,
    TILE_Q5_1,
    /* from here on tiles have 256 columns */
    TILE_Q4_K,
    TILE_Q5_K,
    TILE_Q6_K,
    TILE_IQ4_XS,
    /* from here on: tiles_low.h */
    TILE_IQ1,
    TILE_IQ2,
    TILE_IQ3,
    TILE_Q2_K,
    TILE_Q3_K,
    TILE_FORMATS,
};

#define TILE_LOW TILE_IQ1

/* Rows of the formats: columns of a tile, bytes of its codes and of its scales, halves among the
 * scales, and the exponent t for which scales must satisfy 2^24 scale < 2^t. Then all products of
 * the scale with its integers stay within half precision. */
#define TILE_EACH(X)                                                                               \
    X(F16, 64, 2048, 0, 0, 15)                                                                     \
    X(Q8_0, 64, 1024, 64, 32, 15)                                                                  \
    X(Q4_0, 64, 512, 64, 32, 15)                                                                   \
    X(IQ4_NL, 64, 512, 64, 32, 15)                                                                 \
    X(MXFP4, 64, 512, 32, 0, 15)                                                                   \
    X(NVFP4, 64, 512, 64, 0, 15)                                                                   \
    X(Q5_0, 64, 640, 64, 32, 15)                                                                   \
    X(Q4_1, 64, 512, 128, 64, 15)                                                                  \
    X(Q5_1, 64, 640, 128, 64, 15)                                                                  \
    X(Q4_K, 256, 2048, 320, 32, 8)                                                                 \
    X(Q5_K, 256, 2560, 320, 32, 8)                                                                 \
    X(Q6_K, 256, 3072, 288, 16, 8)                                                                 \
    X(IQ4_XS, 256, 2048, 160, 16, 8)                                                               \
    X(IQ1, 256, 768, 160, 16, 14)                                                                  \
    X(IQ2, 256, 1152, 160, 16, 14)                                                                 \
    X(IQ3, 256, 1664, 96, 16, 12)                                                                  \
    X(Q2_K, 256, 1024, 320, 32, 12)                                                                \
    X(Q3_K, 256, 1536, 288, 16, 11)

#define TILE_ROWS 16u
#define TILE_LANES 32u
/* Returns the format that a tensor type is repacked to: its own, one that can represent it, or half
 * precision. */
MX_FN enum tile_format tile_format_of(uint32_t type) {
    switch (type) {
    case TENSOR_Q8_0:
        return TILE_Q8_0;
    case TENSOR_Q4_0:
        return TILE_Q4_0;
    case TENSOR_IQ4_NL:
        return TILE_IQ4_NL;
    case TENSOR_MXFP4:
        return TILE_MXFP4;
    case TENSOR_NVFP4:
        return TILE_NVFP4;
    case TENSOR_Q5_0:
        return TILE_Q5_0;
    case TENSOR_Q4_1:
        return TILE_Q4_1;
    case TENSOR_Q5_1:
        return TILE_Q5_1;
    case TENSOR_Q4_K:
        return TILE_Q4_K;
    case TENSOR_Q5_K:
        return TILE_Q5_K;
    case TENSOR_Q6_K:
        return TILE_Q6_K;
    case TENSOR_IQ4_XS:
        return TILE_IQ4_XS;
    case TENSOR_IQ1_S:
    case TENSOR_IQ1_M:
        return TILE_IQ1;
    case TENSOR_IQ2_XXS:
    case TENSOR_IQ2_XS:
    case TENSOR_IQ2_S:
        return TILE_IQ2;
    case TENSOR_IQ3_XXS:
    case TENSOR_IQ3_S:
        return TILE_IQ3;
    case TENSOR_Q2_K:
    case TENSOR_TQ1_0:
    case TENSOR_TQ2_0:
        return TILE_Q2_K;
    case TENSOR_Q3_K:
        return TILE_Q3_K;
    default:
        return TILE_F16;
    }
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
