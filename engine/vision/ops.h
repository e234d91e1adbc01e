#pragma once

/*
 * ops - the products and functions that image encoders are made of, and the two backends that
 * compute them: plain C in double (the judge) and the kernels of engine/cpu. Private to
 * engine/vision and engine/cpu.
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
    uint32_t max_keys; /* of an attention */
    uint32_t head_dim;
};

/* Attention among the rows of a segment: segment s has the rows [start[s], start[s + 1]). Row r has
 * its queries, keys and values of all heads at qkv + r * 3 * n_embd, one part behind the other. */
struct vis_attend {
    const float *qkv;
    uint32_t n_head, head_dim;
    float scale;
    uint32_t n_segments;
    const uint32_t *start;
    float *out; /* [rows][n_embd] */
};

typedef void (*vis_row_fn)(void *ctx, uint32_t row);

struct vis_ops {
    const char *name;
    int (*open)(struct vis_be **out, const struct image_encoder_opts *opts,
                const struct vis_sizes *sizes, struct err *err);
    struct vis_be *(*close)(struct vis_be *b); /* accepts NULL and half-built, returns NULL */
    /* @bias: [t->ne[1]] or NULL. Tensor and bias stay until close(). */
    int (*load)(struct vis_be *b, const struct tensor *t, const float *bias, struct vis_mat **out,
                struct err *err);
    /* Row r of @out is (@add: increased by) W x + bias, x at @in + r * in_stride. */
    void (*linear)(struct vis_be *b, const struct vis_mat *m, const float *in, size_t in_stride,
                   uint32_t n_rows, float *out, size_t out_stride, bool add);
    /* All rows and heads of all segments. */
    void (*attend)(struct vis_be *b, const struct vis_attend *a);
    /* Rows [first, first + n) of head @head in the first segment, as their places in it; @first is
     * a multiple of VIS_HEAD_ROWS, and so is n but at the end. The rows of a head are done from the
     * first to the last, without another call in between. */
    void (*attend_head)(struct vis_be *b, const struct vis_attend *a, uint32_t head, uint32_t first,
                        uint32_t n);
    /* Calls @fn once for each row of @n, in any order and from any thread. */
    void (*each)(struct vis_be *b, uint32_t n, vis_row_fn fn, void *ctx);

    /* Functions of one row, from any thread. y = x / rms(x) * w, or with a bias (x - mean) /
     * deviation * w + bias; w NULL: 1. y may be x. */
    void (*norm)(const struct vis_be *b, const float *x, const float *w, const float *bias,
                 float eps, uint32_t n, float *y);
    /* x = act(x), with @up times that. */
    void (*act)(const struct vis_be *b, enum projector_act act, float *x, const float *up,
                uint32_t n);
};

extern const struct vis_ops vis_reference, vis_cpu;
