#pragma once

/*
 * vision_scene - projectors that `weft-synth` writes, a picture, and the expected rows.
 *
 * vision/NAME.f32 has the rows of the projectors for the picture that scene_picture() fills:
 * computed in float64 from the formulas by a program that agrees with llama.cpp 0.5.0, and rounded
 * to float32. Rows of marks, which need a text model, are zeros.
 */

#include "engine/vision/encoder.h"

struct kind {
    const char *name, *shape;
    /* of the picture; a kind with tiles gets another size */
    uint32_t width, height;
    /* file of the expected rows; NULL: golden-vision/ has them */
    const char *rows;
};

enum { SCENE_KINDS = 15, SCENE_LFM2 = 14 };
extern const struct kind scene_kinds[SCENE_KINDS];

/* An opened projector, whose file has been unlinked. */
struct scene {
    struct gguf *file;
    struct image_encoder *e;
};

void scene_close(struct scene *s);
/* Writes the projector of @k in @format to a new file in the temporary folder. */
void scene_write(const struct kind *k, const char *format, char path[64]);
/* Opens the projector, without an encoder. */
struct gguf *scene_file(const struct kind *k, const char *format);
struct scene scene_open(const struct kind *k, const char *format,
                        const struct image_encoder_opts *o);
struct picture scene_picture(uint32_t width, uint32_t height);
/* Computes the rows of a picture of the given size in pieces of @work multiply-adds; *n gets the
 * number of values. A picture in tiles is filled with the same pixels as if it were one of the size
 * of its grid and small picture. Returns NULL if the device was lost. */
float *scene_encode(const struct scene *s, uint32_t width, uint32_t height, uint64_t work,
                    size_t *n);
/* Returns the rows that were computed in float64, @n values. */
float *scene_rows(const struct kind *k, size_t n);
double scene_difference(const float *a, const float *b, size_t n);
