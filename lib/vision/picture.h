#pragma once

/*
 * picture - decodes image files to pixels: PNG, JPEG, WebP and GIF (the first frame), recognised by
 * their first bytes.
 *
 * The result is what Pillow's convert("RGB") gives after exif_transpose(), byte for byte where the
 * libraries are the same: colours as stored, without colour management; 16-bit samples keep their
 * upper byte; an EXIF orientation is applied. Transparent pixels lie on a background, as with
 * Pillow's paste() onto a picture of one colour, so that the colour stored beneath them is not
 * seen. A file that is cut off or has wrong checksums is refused.
 *
 * The sizes in a header are checked before any memory is allocated for the pixels.
 */

#include <stdbool.h>

#include "base/err.h"

#define PICTURE_SIDE_MAX 16384u
#define PICTURE_MEGAPIXELS_MAX 64u /* a megapixel has 1,048,576 pixels */
#define PICTURE_FILE_MAX (20u << 20)

/* The colour behind transparent pixels: 255, 128 or 0 in each channel. */
enum picture_background { BACKGROUND_WHITE, BACKGROUND_GREY, BACKGROUND_BLACK };

/* A picture: rows from the top, three bytes a pixel, without padding. A zeroed structure holds no
 * picture. */
struct picture {
    uint32_t width, height;
    uint8_t *rgb;
};

/* Returns the bytes of the pixels. */
static inline size_t picture_bytes(uint32_t width, uint32_t height) {
    return (size_t)width * height * 3;
}

/* Checks a size, of at most @max_megapixels. Returns 0, or -EINVAL with @err. */
int picture_check(uint64_t width, uint64_t height, uint32_t max_megapixels, struct err *err);
/* Allocates the pixels, which are black. Returns 0; -EINVAL with @err for a size beyond the limits;
 * or -ENOMEM. */
int picture_new(struct picture *out, uint64_t width, uint64_t height, struct err *err);
void picture_deinit(struct picture *p);

/* Returns the name of the file's type by its first bytes ("PNG"); NULL for an unknown one. */
const char *picture_type(const void *data, size_t len);

/* Returns what a file that is no picture of a known type is, by its first bytes, with an article
 * ("a BMP file"); NULL: unknown. */
const char *picture_other_type(const void *data, size_t len);

/* Decodes the file of @len bytes at @data in this process, on a white background; files from
 * clients belong in decoder_run(). Returns 0, -EINVAL with the reason in @err, or -ENOMEM. */
int picture_decode(const void *data, size_t len, struct picture *out, struct err *err);
