#pragma once

/*
 * formats - the decoders of picture_decode(), one file each, and what they share. Each takes a
 * whole file and fills *out; errors are those of picture_decode(). On failure *out may be
 * half-built and is the caller's to free.
 */

#include "vision/picture.h"

/* Writes the orientation that the file asks for to *orientation, 1 to 8 as in EXIF, where it has
 * one. */
int decode_png(const uint8_t *data, size_t len, struct picture *out, int *orientation,
               struct err *err);
int decode_jpeg(const uint8_t *data, size_t len, struct picture *out, int *orientation,
                struct err *err);
int decode_webp(const uint8_t *data, size_t len, struct picture *out, int *orientation,
                struct err *err);
int decode_gif(const uint8_t *data, size_t len, struct picture *out, int *orientation,
               struct err *err);

/* Returns the orientation in @len bytes of EXIF data (a TIFF header and its directory), with or
 * without "Exif\0\0" before it; 1 where there is none. */
int exif_orientation(const uint8_t *data, size_t len);
/* Turns and mirrors the pixels as @orientation (1 to 8) says. 0 or -ENOMEM. */
int exif_turn(struct picture *p, int orientation);
