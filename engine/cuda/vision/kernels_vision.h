#pragma once

/*
 * kernels_vision - arguments, grids and addresses of the kernels of image encoders. vis_row takes
 * struct vis_rows (engine/vision/rows.h); its grid is x rows, with CUDA_THREADS threads.
 */

#include "engine/cuda/kernels.h"
#include "engine/vision/rows.h"

#define VIS_THREADS 128u /* threads of a block of vis_attend: four warps with 16 queries each */
#define VIS_WIDEST 128u  /* most values of a head */

/* Input of attention in half precision: queries, keys and values consecutively, each
 * [n_head][max_keys][padded]. Each head is padded with zeros from dim to padded values. */
struct vis_stored {
    uint16_t *half;
    uint32_t n_head, dim, padded, max_keys;
};

/* Argument of vis_head, which normalises and rotates heads, one warp for each. Grid: x rows, y 3
 * n_head / 8, rounded up; CUDA_THREADS threads. */
struct vis_head_args {
    struct vis_heads of;
    struct vis_stored to;
};

/* Argument of vis_attend: softmax attention in blocks of VIS_HEAD_ROWS queries. With @start, the
 * grid is x n_blocks blocks for each segment, y heads. Without, the blocks of all heads are
 * numbered head by head, n_blocks each, and the grid is x blocks from @first on, y 1. */
struct vis_attend_args {
    struct vis_stored from;
    /* first patch of each segment, and the end; NULL: one segment of @n_patches */
    const uint32_t *start;
    /* [patches][n_head][dim] */
    float *out;
    /* factor of the scores, including log2(e) */
    float scale;
    uint32_t n_patches, n_blocks, first;
};
