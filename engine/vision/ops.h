#pragma once

/*
 * ops - the products and functions that image encoders are made of, and the backends that compute
 * them: plain C in double (the judge), the kernels of engine/cpu, and those of engine/cuda/vision.
 * Private to engine/vision and the backends.
 *
 * Activations lie in buffers of the backend, which nothing else reads: a buffer's rows lie one
 * behind the other. What is enqueued on a device runs in order; end() says whether it did.
 */

#include <stdbool.h>
#include "base/gguf.h"
#include "vision/projector.h"

struct image_encoder_opts;

enum { VIS_HEAD_ROWS = 64 };

struct vis_be;  /* a backend's state */
struct vis_mat; /* what a backend made of a matrix and its bias */

/* Sizes that a backend allocates for. */
struct vis_sizes {
    uint32_t max_rows; /* of one linear() */
    uint32_t max_in;   /* values of its rows */
    uint32_t max_keys; /* patches of a picture */
    uint32_t n_head, head_dim;
    size_t place_bytes, pixel_bytes; /* most that bring() and pixels() get */
};

/* A row or a column of a table of positions, and how much of it. */
struct vis_tap {
    uint32_t at;
    float weight;
};

/* The rows, or the columns, of patches of a picture. */
struct vis_axis {
    const uint32_t *of;        /* [patches] which one a patch is in */
    const float *turn;         /* of each, [head_dim / 4][2]: cosines and sines */
    const uint32_t *first_tap; /* of each, and one behind */
    const struct vis_tap *tap;
};

/* Patches of a picture, in the order of computation. */
struct vis_places {
    struct vis_axis row, column;
    const uint32_t *to;   /* [patches] their places where blocks are rows in raster order */
    const uint8_t *pixel; /* three bytes each, @pitch bytes from a line to the next */
    size_t pitch;
    uint32_t width; /* patches of a line */
};

/* Functions of row r of @n rows, which is row first + r of all. */
enum vis_row_kind {
    VIS_NORM,     /* out = in / rms(in) w, or with bias (in - mean) / deviation w + bias, both by
                     the root of a square plus eps; w NULL: 1; @moves: to row at.to[first + r] */
    VIS_ADD,      /* out += in */
    VIS_CLAMP,    /* out = in within [low, high] */
    VIS_ACT,      /* out = act(in), up NULL, or act(in) up */
    VIS_AFFINE,   /* out = (in factor - bias) w, or in factor where w is NULL */
    VIS_PATCH,    /* out = pixels of the patch by channel, line and column: (p / 255 - mean) / std,
                     with @twice 2 p - 1 of that */
    VIS_POSITION, /* out += rows of the table @in: the sum over taps of the patch's row and column,
                     rows of @n_table places, or, @apart, that of its column and, n_table behind, of
                     its row */
    VIS_MEAN,     /* out = mean of the patches of a block, in raster order in @in */
    VIS_BLOCK,    /* out = all values of these, patch by patch or, @channels, by channel */
};

struct vis_rows {
    enum vis_row_kind kind;
    enum projector_act act;
    uint32_t n, first, width; /* width: values of a row of out, of BLOCK: of a patch */
    uint32_t side, merge, n_table;
    const float *in, *up, *w, *bias;
    float *out;
    float eps, low, high, factor, mean[3], std[3];
    bool moves, twice, apart, channels;
    struct vis_places at;
};

/* Pairs of a head that turn: none, neighbours, values half a head apart, or half of each half. */
enum vis_turn { VIS_STAY, VIS_NEIGHBOURS, VIS_HALVES, VIS_QUARTERS };

/* Heads of patches [first, first + n) on their way to attention: queries and keys are normed, where
 * there are weights, and turn; the first quarter of values turns by the patch's row, the second by
 * its column, @swapped the other way round. */
struct vis_heads {
    const float *in[3]; /* queries, keys, values of the first patch; @stride values apart */
    size_t stride;
    uint32_t n, first;
    const float *w[2], *bias[2]; /* of queries and keys; NULL: no norm */
    bool unit;                   /* values get a norm without weights */
    bool swapped;
    enum vis_turn turn;
    float eps;
    struct vis_places at;
};

/* Attention among the patches of a segment, of what heads() got. */
struct vis_attend {
    float scale;
    float *out; /* [patches][n_head head_dim] */
    /* attend(): segment s has the patches [start[s], start[s + 1]), @longest at most. */
    uint32_t n_segments, longest;
    const uint32_t *start;
    uint32_t n_patches; /* attend_blocks() */
};

/* Blocks of rows of a head. */
static inline uint32_t vis_head_blocks(uint32_t n_patches) {
    return (n_patches + VIS_HEAD_ROWS - 1) / VIS_HEAD_ROWS;
}

struct vis_ops {
    const char *name;
    int (*open)(struct vis_be **out, const struct image_encoder_opts *opts,
                const struct vis_sizes *sizes, struct err *err);
    struct vis_be *(*close)(struct vis_be *b); /* accepts NULL and half-built, returns NULL */
    /* Bytes that open() takes, a buffer, and a tensor of the file, at most. */
    uint64_t (*open_bytes)(const struct vis_sizes *sizes, uint32_t n_threads);
    uint64_t (*buffer_bytes)(size_t n);
    uint64_t (*tensor_bytes)(const struct tensor *t);
    /* Returns room for @n floats until close(); NULL: there is none. */
    float *(*buffer)(struct vis_be *b, size_t n);
    /* @bias: [t->ne[1]] or NULL. Tensor and bias stay until close(). */
    int (*load)(struct vis_be *b, const struct tensor *t, const float *bias, struct vis_mat **out,
                struct err *err);
    /* Sets *out to @n values where rows() and heads() read them; @v stays until close(). 0 or
     * -errno. */
    int (*vector)(struct vis_be *b, const float *v, size_t n, const float **out, struct err *err);
    /* Returns where the backend reads the @n bytes at @from, places of patches, which stay until
     * the next ones. */
    const void *(*bring)(struct vis_be *b, const void *from, size_t n);
    /* Returns where it reads lines of pixels, likewise, each of @n bytes, *pitch bytes apart here
     * and, behind the call, there. */
    const uint8_t *(*pixels)(struct vis_be *b, const uint8_t *from, size_t n, uint32_t n_lines,
                             size_t *pitch);

    /* out is (@add: increased by) W x + bias, of rows x of @in. */
    void (*linear)(struct vis_be *b, const struct vis_mat *m, const float *in, uint32_t n_rows,
                   float *out, bool add);
    void (*rows)(struct vis_be *b, const struct vis_rows *a);
    void (*heads)(struct vis_be *b, const struct vis_heads *a);
    /* All heads of all segments. */
    void (*attend)(struct vis_be *b, const struct vis_attend *a);
    /* Blocks [first, first + n) of VIS_HEAD_ROWS rows, of one head after the other, among all
     * patches. Those of a head are done from the first to the last. */
    void (*attend_blocks)(struct vis_be *b, const struct vis_attend *a, uint32_t first, uint32_t n);
    /* Copies @n_rows rows of @n values to the host, @stride values apart. */
    void (*get)(struct vis_be *b, const float *from, uint32_t n_rows, uint32_t n, float *to,
                size_t stride);
    /* Waits for all that was called. 0, or -EIO: a device is lost, and so are the rows. */
    int (*end)(struct vis_be *b);
};

extern const struct vis_ops vis_reference, vis_cpu;
