#include "vision/fit.h"

#include <assert.h>

#include "base/try.h"

void picture_fit_layout(const struct picture_fit *f, uint32_t width, uint32_t height,
                        struct picture_layout *out) {
    projector_layout(&f->projector, width, height, &f->budget, out);
}

/* Finds the places of f->out to which layout @l resizes the picture. Returns their number. */
static uint32_t find_places(const struct fitter *f, const struct projector *p,
                            const struct picture_layout *l, bool pads,
                            struct picture_place out[2]) {
    uint32_t n = projector_parts(p, l), width = l->width, height = l->height;

    assert(n > 0);
    if (n > 1) { /* the grid of tiles, and below it the small picture */
        const struct picture_part a = projector_part(p, l, n - 1);

        width = (n - 1) / a.line * p->tile;
        height = a.top;
        out[1] = (struct picture_place){0, a.top, a.width, a.height};
    }
    out[0] = (struct picture_place){0, 0, width, height};
    if (pads && (n > 1 || !p->tile)) /* llama.cpp stretches only pictures without tiles */
        out[0] = picture_pad_place(f->width, f->height, width, height);
    if (n > 1)
        return 2;
    return 1;
}

/* Begins with layout @l; @p NULL: pixels are not resized. @width and @height are those of the
 * file's rows. */
static int fitter_start(struct fitter *f, uint32_t width, uint32_t height, int orientation,
                        const struct projector *p, const struct picture_layout *l, bool pads,
                        struct err *err) {
    struct picture_place to[2] = {{0, 0, f->width, f->height}};
    uint32_t n = p ? find_places(f, p, l, pads, to) : 1;

    TRY(picture_new(&f->out, p ? l->width : f->width, p ? l->height : f->height, err));
    while (f->n_parts < n) {
        struct resizer *r = &f->part[f->n_parts];

        TRY(resizer_init(r, width, height, orientation, p ? p->filter : FILTER_BILINEAR, &f->out,
                         to[f->n_parts++]));
    }
    return 0;
}

uint64_t fitter_count_max(const struct fitter *f) {
    uint64_t paid = f->n_data * PICTURE_BYTES_PAID, free_bytes = PICTURE_BYTES_FREE;

    if (!f->fit)
        return UINT64_MAX;
    if (f->fit->free_bytes)
        free_bytes = MIN(free_bytes, paid + *f->fit->free_bytes);
    return MAX(paid, free_bytes);
}

int fitter_count(struct fitter *f, uint64_t bytes, struct err *err) {
    uint64_t most = fitter_count_max(f);

    f->n_counted += bytes;
    if (f->n_counted <= most)
        return 0;
    return err_set(err, 0, NULL,
                   "%u x %u pixels of its kind count %llu MiB, and %llu KiB of compressed pixels "
                   "may have %llu MiB: send fewer pixels, or fewer pictures that are nearly empty",
                   f->width, f->height, (unsigned long long)(f->n_counted >> 20),
                   (unsigned long long)(f->n_data >> 10), (unsigned long long)(most >> 20));
}

int fitter_begin(struct fitter *f, uint64_t width, uint64_t height, int orientation,
                 struct err *err) {
    const struct picture_fit *fit = f->fit;

    assert(f->n_parts == 0);
    TRY(picture_check(width, height, fit ? fit->max_megapixels : PICTURE_MEGAPIXELS_MAX, err));
    f->width = (uint32_t)(orientation > 4 ? height : width);
    f->height = (uint32_t)(orientation > 4 ? width : height);
    TRY(fitter_count(f, 4 * width * height, err));
    if (fit)
        picture_fit_layout(fit, f->width, f->height, &f->layout);
    return fitter_start(f, (uint32_t)width, (uint32_t)height, orientation,
                        fit ? &fit->projector : NULL, &f->layout, fit && fit->pads, err);
}

uint64_t fitter_held_max(const struct fitter *f) {
    if (!f->fit)
        return UINT64_MAX;
    return picture_fit_held_max(f->fit);
}

int fitter_hold(const struct fitter *f, uint64_t bytes, struct err *err) {
    uint64_t most = fitter_held_max(f);

    if (bytes <= most)
        return 0;
    return err_set(err, 0, NULL,
                   "a file of this kind is decoded as a whole, which takes %llu MiB for %u x %u "
                   "pixels; at most %llu MiB are allowed",
                   (unsigned long long)(bytes >> 20), f->width, f->height,
                   (unsigned long long)(most >> 20));
}

uint8_t fitter_background(const struct fitter *f) {
    static const uint8_t values[] = {
        [BACKGROUND_WHITE] = 255,
        [BACKGROUND_GREY] = 128,
        [BACKGROUND_BLACK] = 0,
    };

    return values[f->fit ? f->fit->background : f->background];
}

/* Returns colour @c with @alpha of 255 on @background, rounded to the nearest. */
static uint8_t blend(uint8_t c, uint8_t alpha, uint8_t background) {
    uint32_t sum = (uint32_t)c * alpha + (uint32_t)background * (255u - alpha);

    return (uint8_t)((sum + 127) / 255);
}

void fitter_add_rgba(struct fitter *f, uint8_t *rgba, uint32_t width) {
    uint8_t background = fitter_background(f);

    for (size_t x = 0; x < width; x++) {
        const uint8_t *from = rgba + 4 * x;
        uint8_t alpha = from[3];

        for (size_t i = 0; i < 3; i++)
            rgba[3 * x + i] = blend(from[i], alpha, background);
    }
    fitter_add(f, rgba);
}

void fitter_add(struct fitter *f, const uint8_t *rgb) {
    for (uint32_t i = 0; i < f->n_parts; i++)
        resizer_add(&f->part[i], rgb);
}

void fitter_deinit(struct fitter *f) {
    for (uint32_t i = 0; i < f->n_parts; i++)
        resizer_deinit(&f->part[i]);
    picture_deinit(&f->out);
}

int projector_fit(const struct projector *p, const struct picture *in,
                  const struct picture_layout *l, bool pads, struct picture *out, struct err *err) {
    CLEANUP(fitter_deinit) struct fitter f = {.width = in->width, .height = in->height};

    TRY(fitter_start(&f, in->width, in->height, 1, p, l, pads, err));
    for (uint32_t y = 0; y < in->height; y++)
        fitter_add(&f, in->rgb + (size_t)y * in->width * 3);
    *out = f.out;
    f.out = (struct picture){0};
    return 0;
}
