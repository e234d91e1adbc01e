#pragma once

/*
 * kernels_vision - arguments, grids and addresses of the kernels of image encoders. vis_row takes
 * struct vis_rows (engine/vision/rows.h): grid x rows, CUDA_THREADS threads.
 */

#include "engine/cuda/kernels.h"
#include "engine/vision/rows.h"

#define VIS_THREADS 128u /* threads of a block of vis_attend: a warp has 16 queries */
#define VIS_WIDEST 128u  /* values of a head, at most */

/* Heads as attention takes them, in half precision: queries, keys and values one behind the other,
 * each [n_head][max_keys][padded]; behind a head's values zeros. */
struct vis_stored {
    uint16_t *half;
    uint32_t n_head, dim, padded, max_keys;
};

/* Norms and rotation of heads, a warp each. Grid: x rows, y 3 n_head / 8, rounded up; CUDA_THREADS
 * threads. */
struct vis_head_args {
    struct vis_heads of;
    struct vis_stored to;
};

/* Softmax attention of blocks of VIS_HEAD_ROWS rows. With @start: grid x n_blocks blocks of each
 * segment, y heads; else x blocks of all heads from @first on, n_blocks of a head, y 1. */
struct vis_attend_args {
    struct vis_stored from;
    const uint32_t *start; /* borders of segments; NULL: one of @n_patches */
    float *out;            /* [patches][n_head][dim] */
    float scale;           /* factor of scores, times log2 e */
    uint32_t n_patches, n_blocks, first;
};
