/* prove - the proof of an encoder on a device: computes the patches of some pixels and the first
 * layer, which covers all kernels but those of the projector, and compares with the reference. */

#include <assert.h>
#include <errno.h>
#include <math.h>

#include "base/try.h"
#include "engine/vision/encoder_private.h"

/* columns of patches; 8 x 6 patches are more than a tile of keys, and not a multiple of it */
#define COLUMNS 8u
#define LINES 6u

/* Returns the patches of a side: at most @most, an even number since windows are made of blocks,
 * and no more than a table of positions has. */
static uint32_t side_of(const struct image_encoder *e, uint32_t most) {
    uint32_t n = most;

    if (e->n_table)
        n = MIN(most, e->n_table);
    return MAX(n / 2 * 2, 1u);
}

/* Computes the first layer's rows of @rgb to @out. Returns 0 or -EIO. */
static int first_layer(struct image_encoder *e, const uint8_t *rgb, uint32_t width, uint32_t height,
                       float *out) {
    uint32_t n = width * height, patch = e->p.patch, all = n + vis_extra(e);

    assert(n <= e->max_patches && all <= VIS_CHUNK && !e->under_way.rgb);
    e->under_way = (struct vis_cursor){
        .rgb = rgb,
        .pixels = rgb,
        .pitch = (size_t)width * patch * 3,
        .l = {.width = width * patch, .height = height * patch},
    };
    vis_place(e);
    vis_embed(e, 0, n);
    if (e->p.n_layer) {
        vis_qkv(e, 0, all);
        vis_attend(e, 0,
                   vis_full_attention(e, 0) ? e->p.n_head * vis_head_blocks(all)
                                            : e->grid.n_windows);
        vis_out(e, 0, all);
        vis_ffn(e, 0, all);
    }
    e->ops->get(e->be, e->x, n, e->p.n_embd, out, e->p.n_embd);
    e->under_way = (struct vis_cursor){0};
    return e->ops->end(e->be);
}

int image_encoder_prove(struct image_encoder *e, const struct gguf *file, double *error,
                        struct err *err) {
    const struct image_encoder_opts o = {.backend = "reference", .max_rows = COLUMNS * LINES};
    CLEANUP(image_encoder_freep) struct image_encoder *judge = NULL;

    TRY(image_encoder_new(&judge, file, &o, err));
    uint32_t width = side_of(e, COLUMNS), height = side_of(e, LINES);
    while (width * height > MIN(e->max_patches, judge->max_patches))
        width = height = MAX(height, 2u) - 1;
    size_t n = (size_t)width * height * e->p.n_embd;
    size_t n_rgb = 3ul * width * height * e->p.patch * e->p.patch;
    CLEANUP(freep) uint8_t *rgb = malloc(n_rgb);
    CLEANUP(freep) float *x = malloc(2 * n * sizeof(*x));
    if (!rgb || !x)
        return -ENOMEM;
    for (size_t i = 0; i < n_rgb; i++)
        rgb[i] = (uint8_t)((i * i * 31 + i * 7) >> 5);
    TRY(first_layer(judge, rgb, width, height, x));
    TRY(first_layer(e, rgb, width, height, x + n));
    double most = 0, away = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)x[n + i] - (double)x[i]);

        most = fmax(most, fabs((double)x[i]));
        away = d <= away ? away : d; /* NaN too */
    }
    *error = away / most;
    return 0;
}
