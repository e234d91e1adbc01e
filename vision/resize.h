#pragma once

/*
 * resize - pictures in another size, byte for byte as Pillow's Image.resize() makes them (version
 * 9.4): separable filters that are widened when a picture shrinks, weights in fixed point with 22
 * bits, rows first, rounded to 8 bits between the passes. Integer arithmetic, so equal everywhere.
 */

#include "vision/picture.h"

enum picture_filter { FILTER_BILINEAR, FILTER_BICUBIC, FILTER_LANCZOS };

/* Stretches @in to the size. 0, -ENOMEM, or -EINVAL with @err for a size beyond the limits. */
int picture_resize(const struct picture *in, uint32_t width, uint32_t height,
                   enum picture_filter filter, struct picture *out, struct err *err);

/* Resizes @in with its aspect kept and puts it in the middle of @width x @height black pixels, as
 * llama.cpp does where models were trained with stretched pictures. */
int picture_pad(const struct picture *in, uint32_t width, uint32_t height,
                enum picture_filter filter, struct picture *out, struct err *err);
