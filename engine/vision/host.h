#pragma once

/*
 * host - the common part of the image encoders' backends in host memory: buffers, and the entries
 * of struct vis_ops, which call each backend's own functions of one row.
 */

#include "engine/vision/ops.h"

typedef void (*vis_row_fn)(void *ctx, uint32_t row);

/* The first member of struct vis_be. */
struct vis_host {
    /* Calls @fn once for each row of @n, in any order and from any thread. */
    void (*each)(struct vis_be *b, uint32_t n, vis_row_fn fn, void *ctx);
    /* Functions of one row of VIS_NORM and VIS_ACT, from any thread; y may be x. */
    void (*norm)(const struct vis_be *b, const float *x, const float *w, const float *bias,
                 float eps, uint32_t n, float *y);
    void (*act)(const struct vis_be *b, enum projector_act act, float *x, const float *up,
                uint32_t n);
    struct vis_sizes sizes;
    /* Queries, keys and values of all heads: [max_keys][3][n_head][head_dim]. */
    float *qkv;
    struct vis_buffer {
        struct vis_buffer *next;
        float v[];
    } * buffers;
};

/* Allocates qkv after the functions are set. Returns 0 or -ENOMEM; vis_host_close() frees the
 * memory. */
int vis_host_open(struct vis_host *h, const struct vis_sizes *sizes);
void vis_host_close(struct vis_host *h);
uint64_t vis_host_bytes(const struct vis_sizes *sizes);

/* Entries of struct vis_ops. */
uint64_t vis_host_buffer_bytes(size_t n);
uint64_t vis_host_tensor_bytes(const struct tensor *t);
float *vis_host_buffer(struct vis_be *b, size_t n);
int vis_host_vector(struct vis_be *b, const float *v, size_t n, const float **out, struct err *err);
const void *vis_host_bring(struct vis_be *b, const void *from, size_t n);
const uint8_t *vis_host_pixels(struct vis_be *b, const uint8_t *from, size_t n, uint32_t n_lines,
                               size_t *pitch);
void vis_host_rows(struct vis_be *b, const struct vis_rows *a);
void vis_host_heads(struct vis_be *b, const struct vis_heads *a);
void vis_host_get(struct vis_be *b, const float *from, uint32_t n_rows, uint32_t n, float *to,
                  size_t stride);
int vis_host_end(struct vis_be *b);

/* Members of struct vis_ops that the host backends share. */
#define VIS_HOST_OPS                                                                               \
    .buffer_bytes = vis_host_buffer_bytes, .tensor_bytes = vis_host_tensor_bytes,                  \
    .buffer = vis_host_buffer, .vector = vis_host_vector, .bring = vis_host_bring,                 \
    .pixels = vis_host_pixels, .rows = vis_host_rows, .heads = vis_host_heads,                     \
    .get = vis_host_get, .end = vis_host_end
