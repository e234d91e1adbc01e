#pragma once

/*
 * fit - resizes pictures to the size that a model needs while they are decoded. The decoder
 * delivers row after row, and only the result is kept: a screenshot of 8K has 95 MiB of pixels, and
 * a model gets at most 12 MiB.
 */

#include "vision/projector.h"

/* Rules for the size of the pictures that a model gets. */
struct picture_fit {
    /* fields of the projector; its name is not used */
    struct projector projector;
    struct picture_budget budget;
    /* picture_pad() is used instead of picture_resize() */
    bool pads;
    enum picture_background background;
    /* most megapixels of a file, up to PICTURE_MEGAPIXELS_MAX */
    uint32_t max_megapixels;
    /* Bytes by which the cost of the request's pictures may still exceed the share that their files
     * pay for. Each decoded picture reduces it. NULL: this picture is the only one. */
    uint64_t *free_bytes;
};

/*
 * A picture's cost must be in proportion to the size of its file, or a file of a few kilobytes in
 * one colour could occupy a core for a second. The cost is counted in bytes, each about 3 ns of
 * decoding: four a pixel, and more where decoding takes longer. Each byte of compressed pixels pays
 * for PICTURE_BYTES_PAID bytes of cost; bytes of texts and profiles do not count. A picture that
 * costs at most PICTURE_BYTES_FREE, such as any screenshot of 4K, may leave part of its cost
 * unpaid, up to PICTURE_REQUEST_FREE for all pictures of a request; a larger picture must be paid
 * for as a whole (docs/measurements/pictures.md).
 */
#define PICTURE_BYTES_PAID 880u
#define PICTURE_BYTES_FREE (32ull << 20)
#define PICTURE_REQUEST_FREE (256ull << 20)

/* Returns the bytes that a decoder may hold of a picture whose rows do not arrive in order: two for
 * each allowed pixel. */
static inline uint64_t picture_fit_held_max(const struct picture_fit *f) {
    return (uint64_t)f->max_megapixels << 21;
}

/* Computes the size and the layout that a picture of @width x @height pixels gets. */
void picture_fit_layout(const struct picture_fit *f, uint32_t width, uint32_t height,
                        struct picture_layout *out);

/* Decodes like picture_decode() and resizes the picture for the encoder, into tiles and the small
 * picture if the layout has tiles. */
int picture_decode_fit(const void *data, size_t len, const struct picture_fit *f,
                       struct picture *out, struct picture_layout *layout, struct err *err);

/* Type of functions that decode like picture_decode_fit(), in this process or in another one. @ctx:
 * the state of the implementation. */
typedef int (*picture_decode_fn)(void *ctx, const void *data, size_t len,
                                 const struct picture_fit *f, struct picture *out,
                                 struct picture_layout *layout, struct err *err);

/* Makes a picture from the rows of a file. Zeroed except for `fit`, it has not begun. */
struct fitter {
    /* NULL: the pixels are not resized */
    const struct picture_fit *fit;
    /* the fit's, if there is one */
    enum picture_background background;
    /* n_data: bytes of compressed pixels; n_counted: cost of the picture so far */
    uint64_t n_data, n_counted;
    /* sides of the picture after its orientation was applied */
    uint32_t width, height;
    struct picture out;
    /* layout, if there is a fit */
    struct picture_layout layout;
    /* in tiles: [0] the grid, [1] the small picture */
    struct resizer part[2];
    uint32_t n_parts;
};

/* Begins a file of @width x @height pixels, which @orientation (1 to 8) turns, and counts the
 * pixels; the decoder has set n_data. Returns 0; -EINVAL with @err for a size beyond the limits;
 * -ENOMEM. */
int fitter_begin(struct fitter *f, uint64_t width, uint64_t height, int orientation,
                 struct err *err);
/* Adds @bytes to the cost, besides four bytes for each pixel. Returns 0, or -EINVAL with @err if
 * n_data does not pay for them. */
int fitter_count(struct fitter *f, uint64_t bytes, struct err *err);
/* Returns the largest cost that the picture may have, in bytes. */
uint64_t fitter_count_max(const struct fitter *f);
/* Returns the bytes that a decoder may hold of the picture. */
uint64_t fitter_held_max(const struct fitter *f);
/* Checks that a decoder may hold @bytes of the picture. Returns 0, or -EINVAL with @err. */
int fitter_hold(const struct fitter *f, uint64_t bytes, struct err *err);
/* Returns the value of each channel of the background. */
uint8_t fitter_background(const struct fitter *f);
/* Adds the next row from the top, with three bytes a pixel. */
void fitter_add(struct fitter *f, const uint8_t *rgb);
/* Adds the next row of @width pixels, with four bytes a pixel, the last of which is alpha. Puts it
 * on the background, in place: @rgba has the three bytes of each pixel afterwards. */
void fitter_add_rgba(struct fitter *f, uint8_t *rgba, uint32_t width);
/* Frees the memory of the fitter, including the result. */
void fitter_deinit(struct fitter *f);

/* Decodes the file into @out, which has not begun, and takes what the file did not pay for from the
 * fit's free bytes. Returns like picture_decode(). */
int picture_decode_rows(const void *data, size_t len, struct fitter *out, struct err *err);

/* Resizes @in for the encoder: stretches it to the size of the layout or, if @pads, keeps its
 * aspect ratio between black borders, as llama.cpp does. Returns like picture_resize(). */
int projector_fit(const struct projector *p, const struct picture *in,
                  const struct picture_layout *l, bool pads, struct picture *out, struct err *err);
