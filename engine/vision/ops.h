#pragma once

/*
 * ops - the products and functions that image encoders are made of, and the backends that compute
 * them: plain C in double (the judge), the kernels of engine/cpu, and those of engine/cuda/vision.
 * Private to engine/vision and the backends.
 *
 * Activations lie in buffers that only the backend reads, with consecutive rows. Operations
 * enqueued on a device run in order; end() reports whether they succeeded.
 */

#include "base/gguf.h"
#include "engine/vision/rows.h"
#include "vision/projector.h"

struct image_encoder_opts;

_Static_assert(VIS_GELU == (int)PROJECTOR_GELU && VIS_SILU == (int)PROJECTOR_SILU &&
                   VIS_QUICK_GELU == (int)PROJECTOR_QUICK_GELU,
               "one order");

struct vis_be;  /* a backend's state */
struct vis_mat; /* a matrix and its bias in the backend's layout */

/* Sizes that a backend allocates for. */
struct vis_sizes {
    /* rows of one linear() */
    uint32_t max_rows;
    /* values of its rows */
    uint32_t max_in;
    /* patches of a picture */
    uint32_t max_keys;
    uint32_t n_head, head_dim;
    /* most bytes of bring() and pixels() */
    size_t place_bytes, pixel_bytes;
};

/* Attention among the patches of a segment, on the data given to heads(). */
struct vis_attend {
    float scale;
    /* [patches][n_head head_dim] */
    float *out;
    /* attend(): segment s has the patches [start[s], start[s + 1]), @longest at most. */
    uint32_t n_segments, longest;
    const uint32_t *start;
    /* attend_blocks() */
    uint32_t n_patches;
};

/* Returns the number of row blocks of a head. */
static inline uint32_t vis_head_blocks(uint32_t n_patches) {
    return (n_patches + VIS_HEAD_ROWS - 1) / VIS_HEAD_ROWS;
}

struct vis_ops {
    const char *name;
    /* Returns the name of a feature of @p that the backend does not support, or NULL. */
    const char *(*lacks)(const struct projector *p);
    int (*open)(struct vis_be **out, const struct image_encoder_opts *opts,
                const struct vis_sizes *sizes, struct err *err);
    /* accepts NULL and half-built, returns NULL */
    struct vis_be *(*close)(struct vis_be *b);
    /* Largest memory in bytes of open(), of a buffer, and of a tensor of the file. */
    uint64_t (*open_bytes)(const struct vis_sizes *sizes, uint32_t n_threads);
    uint64_t (*buffer_bytes)(size_t n);
    uint64_t (*tensor_bytes)(const struct tensor *t);
    /* Allocates @n floats, valid until close(). Returns NULL if there is no memory. */
    float *(*buffer)(struct vis_be *b, size_t n);
    /* @bias: [t->ne[1]] or NULL. Tensor and bias stay until close(). */
    int (*load)(struct vis_be *b, const struct tensor *t, const float *bias, struct vis_mat **out,
                struct err *err);
    /* Sets *out to an address at which rows() and heads() read the @n values of @v; @v stays valid
     * until close(). Returns 0 or -errno. */
    int (*vector)(struct vis_be *b, const float *v, size_t n, const float **out, struct err *err);
    /* Returns the address at which the backend reads the @n bytes at @from, the positions of
     * patches; valid until the next call. */
    const void *(*bring)(struct vis_be *b, const void *from, size_t n);
    /* Returns the address at which the backend reads lines of pixels, of @n bytes each, valid until
     * the next call. *pitch is the distance of two lines in bytes: at @from before the call, at the
     * result after it. */
    const uint8_t *(*pixels)(struct vis_be *b, const uint8_t *from, size_t n, uint32_t n_lines,
                             size_t *pitch);

    /* Computes out = W x + bias for the rows x of @in, or with @add out += W x + bias. */
    void (*linear)(struct vis_be *b, const struct vis_mat *m, const float *in, uint32_t n_rows,
                   float *out, bool add);
    void (*rows)(struct vis_be *b, const struct vis_rows *a);
    void (*heads)(struct vis_be *b, const struct vis_heads *a);
    /* Computes all heads of all segments. */
    void (*attend)(struct vis_be *b, const struct vis_attend *a);
    /* Computes the blocks [first, first + n) of VIS_HEAD_ROWS rows with attention to all patches.
     * Blocks are numbered head by head, and the blocks of a head are computed in order. */
    void (*attend_blocks)(struct vis_be *b, const struct vis_attend *a, uint32_t first, uint32_t n);
    /* Copies @n_rows rows of @n values to the host, @stride values apart. */
    void (*get)(struct vis_be *b, const float *from, uint32_t n_rows, uint32_t n, float *to,
                size_t stride);
    /* Waits for all enqueued operations. Returns 0, or -EIO if the device, and with it the rows, is
     * lost. */
    int (*end)(struct vis_be *b);
};

extern const struct vis_ops vis_reference, vis_cpu; /* the third: vis_cuda, be_ops.vision */
