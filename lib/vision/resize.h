#pragma once

/*
 * resize - resizes pictures to the same bytes as Pillow's Image.resize() (version 9.4): separable
 * filters that are widened when a picture shrinks, weights in fixed point with 22 bits, rows first,
 * rounded to 8 bits between the passes. Integer arithmetic makes the result equal on all machines.
 */

#include "vision/picture.h"

enum picture_filter { FILTER_BILINEAR, FILTER_BICUBIC, FILTER_LANCZOS };

/* Weights of one axis: place i of the result is the sum of n[i] values from first[i] on, multiplied
 * by the weights from weight[i * most] on. With `most` 1 each value is copied. */
struct taps {
    uint32_t most;
    uint32_t *first, *n;
    int32_t *weight;
};

/* A rectangle of a picture, in pixels. */
struct picture_place {
    uint32_t left, top, width, height;
};

/*
 * Resizes a picture while its rows arrive from the top, so that only the source rows for the next
 * row of the result are in memory. Applies an EXIF orientation on the way, with the same bytes as a
 * rotation before the resize: `across` is the axis of the source's columns, which is resized first
 * unless the orientation turns the picture by 90 degrees, and `down` the axis of its rows.
 */
struct resizer {
    /* sides of the source */
    uint32_t width, height;
    /* rows of the source are columns of the result */
    bool turns;
    bool mirrors_rows, mirrors_columns;
    /* numbers of places of the result along the axes */
    uint32_t n_across, n_down;
    /* n_seen: rows of the source so far; n_done: places of `down` that are written */
    uint32_t n_seen, n_done;
    struct taps across, down;
    /* row i of the source at i % down.most: [down.most][n_padded] */
    uint8_t *window;
    size_t n_row, n_padded;
    /* scratch */
    uint8_t *row, *column;
    /* uses AVX2 */
    bool wide;
    /* upper left corner of the result */
    uint8_t *to;
    size_t stride;
};

/* Begins to resize a picture of @width x @height pixels with @orientation (EXIF, 1 to 8) into the
 * place @to of @out, which must outlive the resizer. Returns 0 or -ENOMEM; the caller calls
 * resizer_deinit() in either case. */
int resizer_init(struct resizer *r, uint32_t width, uint32_t height, int orientation,
                 enum picture_filter filter, const struct picture *out, struct picture_place to);
void resizer_deinit(struct resizer *r); /* accepts a zeroed one */
/* Adds the next row, of 3 * width bytes. After the last one the result is complete. */
void resizer_add(struct resizer *r, const uint8_t *rgb);

/* Stretches @in to @width x @height pixels. Returns 0, -ENOMEM, or -EINVAL with @err for a size
 * beyond the limits. */
int picture_resize(const struct picture *in, uint32_t width, uint32_t height,
                   enum picture_filter filter, struct picture *out, struct err *err);

/* Resizes @in with its aspect kept and puts it in the middle of @width x @height black pixels, as
 * llama.cpp does where models were trained with stretched pictures. */
int picture_pad(const struct picture *in, uint32_t width, uint32_t height,
                enum picture_filter filter, struct picture *out, struct err *err);

/* Returns the place of a picture of @width x @height pixels that is padded to @to_width x
 * @to_height. */
struct picture_place picture_pad_place(uint32_t width, uint32_t height, uint32_t to_width,
                                       uint32_t to_height);
