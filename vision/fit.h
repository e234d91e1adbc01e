#pragma once

/*
 * fit - pictures in the size in which a model is shown them, made while they are decoded: a decoder
 * hands over row after row, and only the result is kept. A screenshot of 8K has 95 MiB of pixels,
 * and a model sees 12 of them.
 */

#include "vision/projector.h"

/* Rules by which a model is shown pictures. */
struct picture_fit {
    struct projector projector; /* without its name */
    struct picture_budget budget;
    bool pads;               /* picture_pad() in place of picture_resize() */
    uint32_t max_megapixels; /* limit of a file; at most PICTURE_MEGAPIXELS_MAX */
    /* Bytes that the request's pictures may still count beyond what their files pay for; reduced
     * by each picture that is decoded. NULL: this picture is the only one. */
    uint64_t *free_bytes;
};

/*
 * A picture's cost must be in proportion to its file's bytes, or a few kilobytes of one colour
 * would be inflated for a second. It counts four bytes a pixel, and more where decoding takes more:
 * about 3 ns each. Each byte of compressed pixels pays for PICTURE_BYTES_PAID of them; texts and
 * profiles pay for nothing. A picture that counts
 * at most PICTURE_BYTES_FREE, such as any screenshot of 4K, may leave some unpaid, and those of a
 * request PICTURE_REQUEST_FREE together; a larger one must be paid for as a whole
 * (docs/measurements/pictures.md).
 */
#define PICTURE_BYTES_PAID 880u
#define PICTURE_BYTES_FREE (32ull << 20)
#define PICTURE_REQUEST_FREE (256ull << 20)

/* Bytes that a decoder may hold of a picture whose rows do not come one after the other: two for
 * each pixel that is allowed. */
static inline uint64_t picture_fit_held_max(const struct picture_fit *f) {
    return (uint64_t)f->max_megapixels << 21;
}

/* Computes the size and the layout that a picture of @width x @height pixels gets. */
void picture_fit_layout(const struct picture_fit *f, uint32_t width, uint32_t height,
                        struct picture_layout *out);

/* Decodes like picture_decode() and makes the pixels that the encoder gets: of tiles and the small
 * picture, where the layout has them. */
int picture_decode_fit(const void *data, size_t len, const struct picture_fit *f,
                       struct picture *out, struct picture_layout *layout, struct err *err);

/* Stands for picture_decode_fit() or the same in another process; @ctx is its own. */
typedef int (*picture_decode_fn)(void *ctx, const void *data, size_t len,
                                 const struct picture_fit *f, struct picture *out,
                                 struct picture_layout *layout, struct err *err);

/* A picture that is made from the rows of a file. Zeroed but for `fit`, it has not begun. */
struct fitter {
    const struct picture_fit *fit; /* NULL: the pixels are kept as they are */
    uint64_t n_data, n_counted;    /* bytes of compressed pixels, and what the picture counts */
    uint32_t width, height;        /* sides of the turned picture */
    struct picture out;
    struct picture_layout layout; /* with a fit */
    struct resizer part[2];       /* in tiles: the grid and the small picture */
    uint32_t n_parts;
};

/* Begins a file of @width x @height pixels, which @orientation (1 to 8) turns, and counts the
 * pixels; the decoder has set n_data. Returns 0; -EINVAL with @err for a size beyond the limits;
 * -ENOMEM. */
int fitter_begin(struct fitter *f, uint64_t width, uint64_t height, int orientation,
                 struct err *err);
/* Counts @bytes more than four a pixel. Returns 0, or -EINVAL with @err: n_data does not pay for
 * them. */
int fitter_count(struct fitter *f, uint64_t bytes, struct err *err);
/* Returns the bytes that the picture may count. */
uint64_t fitter_count_max(const struct fitter *f);
/* Returns the bytes that a decoder may hold of the picture. */
uint64_t fitter_held_max(const struct fitter *f);
/* Checks that a decoder may hold @bytes of the picture. Returns 0, or -EINVAL with @err. */
int fitter_hold(const struct fitter *f, uint64_t bytes, struct err *err);
/* Adds the next row, from the top: three bytes a pixel. */
void fitter_add(struct fitter *f, const uint8_t *rgb);
/* Frees what it has, the result included. */
void fitter_deinit(struct fitter *f);

/* Decodes the file into @out, which has not begun, and takes what the file did not pay for from the
 * fit's free bytes. Returns like picture_decode(). */
int picture_decode_rows(const void *data, size_t len, struct fitter *out, struct err *err);

/* Makes the pixels that the encoder gets: @in stretched to the size; if @pads, with its aspect kept
 * between black borders, as llama.cpp does. Returns like picture_resize(). */
int projector_fit(const struct projector *p, const struct picture *in,
                  const struct picture_layout *l, bool pads, struct picture *out, struct err *err);
