#include "engine/vision/encoder.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/try.h"
#include "engine/vision/encoder_private.h"

static const struct vis_ops *const backends[] = {&vis_cpu, &vis_reference};

static const struct vis_ops *find_backend(const char *name, struct err *err) {
    for (size_t i = 0; i < ARRAY_SIZE(backends); i++)
        if (!name || strcmp(name, backends[i]->name) == 0)
            return backends[i];
    err_set(err, 0, "backend", "image encoders have no backend '%s' (known: cpu, reference)", name);
    return NULL;
}

/* Returns the number of patches of the largest picture or tile. */
static uint32_t most_patches(const struct projector *p, uint32_t max_rows) {
    uint32_t side = MAX(p->side, p->tile) / p->patch, rows = max_rows * p->merge * p->merge;

    if (p->side)
        return side * side;
    return MAX(rows, side * side);
}

/* Reads the header, and derives sizes from it and from the options. Returns 0 or -errno. */
static int image_encoder_prepare(struct image_encoder *e, const struct gguf *file,
                                 const struct image_encoder_opts *opts, struct err *err) {
    if (opts->device)
        e->ops = opts->device;
    else
        e->ops = find_backend(opts->backend, err);
    if (!e->ops)
        return -EINVAL;
    TRY(projector_read(&e->p, file, err));
    if (opts->max_rows)
        e->max_rows = opts->max_rows;
    else
        e->max_rows = e->p.most;
    e->max_patches = most_patches(&e->p, e->max_rows);
    return 0;
}

int image_encoder_fit(struct image_encoder_fit *out, const struct gguf *file,
                      const struct image_encoder_opts *opts, struct err *err) {
    struct image_encoder e = {0};

    TRY(image_encoder_prepare(&e, file, opts, err));
    return vis_fit(out, &e, file, opts->n_threads, err);
}

int image_encoder_new(struct image_encoder **out, const struct gguf *file,
                      const struct image_encoder_opts *opts, struct err *err) {
    CLEANUP(image_encoder_freep) struct image_encoder *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    TRY(image_encoder_prepare(e, file, opts, err));
    TRY(vis_load(e, file, opts, err));
    *out = STEAL(e);
    return 0;
}

/* Accepts an encoder that image_encoder_new() left half-built, too. */
struct image_encoder *image_encoder_free(struct image_encoder *e) {
    if (!e)
        return NULL;
    if (e->be)
        e->ops->close(e->be);
    for (struct floats *f = e->owned, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    for (struct tensors *t = e->made, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    for (struct vis_clip *k = e->clips, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    free(e->layer);
    free(e->grid.bytes);
    free(e);
    return NULL;
}

const struct projector *image_encoder_projector(const struct image_encoder *e) {
    return &e->p;
}

uint32_t image_encoder_width(const struct image_encoder *e) {
    return e->p.n_out * (1 + e->p.n_deep);
}

/* Checks the tiles of a picture. Returns 0, or -EINVAL: the small picture is too large, or a tile
 * has no mark in the text model. */
static int check_tiles(const struct image_encoder *e, const struct picture_layout *l, uint32_t n,
                       struct err *err) {
    if ((uint64_t)l->n_columns * l->n_lines * e->p.merge * e->p.merge > e->max_patches)
        return err_set(err, 0, NULL, "a picture of %u x %u pixels has more than %u rows", l->width,
                       l->height, e->max_rows);
    for (uint32_t i = 0; i < n && e->marks; i++) {
        const struct picture_part a = projector_part(&e->p, l, i);

        for (uint32_t k = 0; k < a.n_marks; k++)
            if (!e->has_mark[a.mark[k]])
                return err_set(err, 0, NULL, "the model has no token for tile %u of %u", i + 1, n);
    }
    return 0;
}

/* Checks that a picture has a size that the encoder supports. Returns 0 or -EINVAL. */
static int check_size(const struct image_encoder *e, const struct picture_layout *l,
                      struct err *err) {
    uint32_t align = e->p.patch * e->p.merge;
    uint64_t n = (uint64_t)(l->width / e->p.patch) * (l->height / e->p.patch);

    uint32_t n_parts = projector_parts(&e->p, l);
    if (n_parts > 0 && e->p.tile)
        return check_tiles(e, l, n_parts, err);
    if (n_parts == 0 || !l->width || !l->height || l->width % align || l->height % align)
        return err_set(err, 0, NULL, "a picture of %u x %u pixels has not the encoder's size",
                       l->width, l->height);
    if (n > e->max_patches)
        return err_set(err, 0, NULL, "a picture of %u x %u pixels has more than %u rows", l->width,
                       l->height, e->max_rows);
    bool two_tables = e->p.kind == PROJECTOR_GEMMA4V || e->p.kind == PROJECTOR_GEMMA4UV;
    if (two_tables && MAX(l->width, l->height) / e->p.patch > e->n_table)
        return err_set(err, 0, NULL, "a picture of %u x %u pixels is larger than the %u positions",
                       l->width, l->height, e->n_table);
    /* @out has the size of the layout. */
    uint32_t n_columns = l->width / align, n_lines = l->height / align;
    if (l->n_columns != n_columns || l->n_lines != n_lines ||
        l->n_rows != projector_rows(&e->p, n_columns, n_lines))
        return err_set(err, 0, NULL, "a picture of %u x %u pixels has not %u rows", l->width,
                       l->height, l->n_rows);
    return 0;
}

int image_encoder_begin(struct image_encoder *e, const uint8_t *rgb, const struct picture_layout *l,
                        float *out, struct err *err) {
    int r = check_size(e, l, err);

    assert(!e->under_way.rgb); /* one picture at a time */
    if (r == 0)
        vis_begin(e, rgb, l, out);
    return r;
}

int image_encoder_step(struct image_encoder *e, uint64_t work, uint64_t *left) {
    return vis_step(e, work, left);
}

uint64_t image_encoder_work(const struct image_encoder *e, const struct picture_layout *l) {
    return vis_work(e, l);
}

void image_encoder_end(struct image_encoder *e) {
    e->under_way = (struct vis_cursor){0};
}

int image_encoder_run(struct image_encoder *e, const struct picture *p,
                      const struct picture_layout *l, float *out, struct err *err) {
    uint64_t left;

    if (p->width != l->width || p->height != l->height)
        return err_set(err, 0, NULL, "a picture of %u x %u pixels has not the encoder's size",
                       p->width, p->height);
    TRY(image_encoder_begin(e, p->rgb, l, out, err));
    return image_encoder_step(e, UINT64_MAX, &left);
}
