#pragma once

/*
 * encoder - computes the rows that a text model gets for a picture, with the projector files of
 * vision/projector.h.
 *
 * The rows are a function of the pixels, the file and the backend: the order of every sum depends
 * on the shapes only, so the bits are the same at any number of threads and, on the CPU, with any
 * instruction set. All memory is allocated by image_encoder_new(), for the largest picture.
 * Attention is computed for blocks of rows: there is no matrix of all pairs, and windows are
 * computed as windows.
 */

#include "vision/projector.h"

struct be;
struct image_encoder;
struct vis_ops;

/* Zeroed: the CPU backend with as many threads as there are processors. */
struct image_encoder_opts {
    /* "reference", or "cpu" */
    const char *backend;
    /* instructions of the CPU backend; NULL: the best */
    const char *isa;
    /* 0: all */
    uint32_t n_threads;
    /* rows of a picture or of its part; 0: the projector's limit */
    uint32_t max_rows;
    /* The text model, whose tokens mark tiles; NULL: the rows of marks are zeros. */
    const struct gguf *text;
    /* An open device and its backend for encoders, used instead of @backend; NULL: none. */
    const struct vis_ops *device;
    struct be *be;
};

/* Opens the projector in @file, which must stay open. Returns 0, -ENOMEM, or -EINVAL with @err if a
 * key or a tensor is missing or does not fit the projector's kind. */
int image_encoder_new(struct image_encoder **out, const struct gguf *file,
                      const struct image_encoder_opts *opts, struct err *err);
struct image_encoder *image_encoder_free(struct image_encoder *e);
DEFINE_FREEP(struct image_encoder, image_encoder)

/* Computes a few patches up to the first layer on @e and on the reference backend. *error is the
 * largest difference, relative to the largest value. Returns 0 or -errno. */
int image_encoder_prove(struct image_encoder *e, const struct gguf *file, double *error,
                        struct err *err);

/* Returns the header of the file. */
const struct projector *image_encoder_projector(const struct image_encoder *e);
/* Returns the number of values in a row for the text model: n_out * (1 + n_deep). */
uint32_t image_encoder_width(const struct image_encoder *e);

/* Memory of an open encoder in bytes, computed from the header and the list of tensors. */
struct image_encoder_fit {
    uint64_t weights, buffers;
};

/* Returns like image_encoder_new(). */
int image_encoder_fit(struct image_encoder_fit *out, const struct gguf *file,
                      const struct image_encoder_opts *opts, struct err *err);

/* Returns the work for a picture's rows, in multiply-adds. */
uint64_t image_encoder_work(const struct image_encoder *e, const struct picture_layout *l);
/* Begins a picture of l->width x l->height pixels, which must stay valid until its end. @out has
 * room for l->n_rows rows of image_encoder_width() values. Returns 0, or -EINVAL with @err for a
 * picture with more rows than the encoder's memory holds, or larger than its table of positions. */
int image_encoder_begin(struct image_encoder *e, const uint8_t *rgb, const struct picture_layout *l,
                        float *out, struct err *err);
/* Computes pieces until at least @work multiply-adds are done, and at least one piece. Sets *left
 * to the remaining work; 0: @out is complete. The division into pieces does not change the result.
 * Returns 0, or -EIO if the device, and with it the picture, is lost. */
int image_encoder_step(struct image_encoder *e, uint64_t work, uint64_t *left);
/* Drops the current picture, if any. */
void image_encoder_end(struct image_encoder *e);

/* Computes the rows of @p, which has the size in @l, to @out: l->n_rows rows of
 * image_encoder_width() values. Returns like image_encoder_begin(). */
int image_encoder_run(struct image_encoder *e, const struct picture *p,
                      const struct picture_layout *l, float *out, struct err *err);
