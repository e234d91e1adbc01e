#pragma once

/* fast - what determinism = fast keeps besides the tiles (fast.c). */

#include "engine/cuda/fast_api.h"

#define FAST_ROWS 128u /* steps of more rows; as many as the largest step that is a graph */
#define FAST_SHAPES 16u
#define FAST_SIZES 24u

struct fast {
    bool on;
    const struct fast_api *api;
    void *library;
    uint32_t above; /* this many rows */
    uint8_t *memory, *copies;
    size_t x_bytes, bytes, used, wanted; /* bytes: of copies */
    uint32_t n_matrices, n_copied;
    uint16_t *x;
    float *scalars; /* device: alpha, 0, 1 */
    void *workspace;
    uint32_t n_shapes, n_sizes, size[FAST_SIZES]; /* ascending */
    struct {
        struct fast_shape shape;
        void *plan[FAST_SIZES]; /* for up to size[i] rows; NULL: strict */
    } plans[FAST_SHAPES];
    char why[160], recipe[320];
};
