#pragma once

/*
 * formats - the decoders of picture_decode(), one source file each, and the functions that they
 * share. A decoder takes a whole file, sets n_data of @out, begins @out with the orientation in the
 * file, and adds all rows. It asks fitter_hold() before it keeps further pixels in memory. Errors
 * are those of picture_decode().
 */

#include "vision/fit.h"

/* Decodes a PNG file. The functions below decode the other formats. */
int decode_png(const uint8_t *data, size_t len, struct fitter *out, struct err *err);
int decode_jpeg(const uint8_t *data, size_t len, struct fitter *out, struct err *err);
int decode_webp(const uint8_t *data, size_t len, struct fitter *out, struct err *err);
int decode_gif(const uint8_t *data, size_t len, struct fitter *out, struct err *err);

/* Returns the orientation in @len bytes of EXIF data (a TIFF header and its directory), with or
 * without "Exif\0\0" before it: 1 to 8, and 1 where there is none. */
int exif_orientation(const uint8_t *data, size_t len);
