#pragma once

/*
 * rows - arguments of the row functions of image encoders, for host backends and kernels. host.c
 * has the formulas.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VIS_HEAD_ROWS = 64 };

enum vis_act { VIS_GELU, VIS_SILU, VIS_QUICK_GELU, VIS_GELU_ERF }; /* enum projector_act */

/* A row or a column of a table of positions, and its weight. */
struct vis_tap {
    uint32_t at;
    float weight;
};

/* The rows, or the columns, of patches of a picture. */
struct vis_axis {
    /* [patches] row or column of each patch */
    const uint32_t *of;
    /* [head_dim / 4][2] cosines and sines of each row or column */
    const float *turn;
    /* first tap of each row or column, and the end */
    const uint32_t *first_tap;
    const struct vis_tap *tap;
};

/* Patches of a picture, in the order of computation. */
struct vis_places {
    struct vis_axis row, column;
    /* [patches] index of each patch when blocks are in raster order */
    const uint32_t *to;
    /* three bytes each, @pitch bytes from a line to the next */
    const uint8_t *pixel;
    size_t pitch;
    /* patches of a line */
    uint32_t width;
};

/* Functions of row r of @n rows, which is row first + r of all. */
enum vis_row_kind {
    /* out = in / rms(in) w, or with bias (in - mean) / deviation w + bias, both by the root of a
     * square plus eps; w NULL: 1; @moves: to row at.to[first + r] */
    VIS_NORM,
    /* out += in */
    VIS_ADD,
    /* out = in within [low, high] */
    VIS_CLAMP,
    /* out = act(in), up NULL, or act(in) up */
    VIS_ACT,
    /* out = (in factor - bias) w, or in factor where w is NULL */
    VIS_AFFINE,
    /* out = pixels of the patch by channel, line and column: (p / 255 - mean) / std, with @twice 2
     * p - 1 of that */
    VIS_PATCH,
    /* out += rows of the table @in: the sum over taps of the patch's row and column, rows of
     * @n_table places, or, @apart, that of its column and, n_table behind, of its row */
    VIS_POSITION,
    /* out = mean of the patches of a block, in raster order in @in */
    VIS_MEAN,
    /* out = all values of a block's patches, patch by patch or, with @channels, by channel */
    VIS_BLOCK,
};

struct vis_rows {
    enum vis_row_kind kind;
    enum vis_act act;
    /* width: values of a row of out, of BLOCK: of a patch */
    uint32_t n, first, width;
    uint32_t side, merge, n_table;
    const float *in, *up, *w, *bias;
    float *out;
    float eps, low, high, factor, mean[3], std[3];
    bool moves, twice, apart, channels;
    struct vis_places at;
};

/* Pairs of a head that are rotated: none, neighbours, values half a head apart, or within each
 * half; or neighbours that turn by the two coordinates in turn. */
enum vis_turn { VIS_STAY, VIS_NEIGHBOURS, VIS_HALVES, VIS_QUARTERS, VIS_ALTERNATE };

/* Prepares heads of patches [first, first + n) for attention: queries and keys are normed, if there
 * are weights, and rotated: the first half of pairs by the patch's row, the second by its column,
 * or with @swapped the other way round. ALTERNATE: pairs with even and odd numbers instead. */
struct vis_heads {
    /* queries, keys, values of the first patch; @stride values apart */
    const float *in[3];
    size_t stride;
    uint32_t n, first;
    /* weights of queries and keys; NULL: no norm */
    const float *w[2], *bias[2];
    /* values get a norm without weights */
    bool unit;
    bool swapped;
    enum vis_turn turn;
    float eps;
    struct vis_places at;
};
