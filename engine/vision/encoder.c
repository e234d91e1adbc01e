#include "engine/vision/encoder.h"

#include <errno.h>
#include <string.h>
#include "engine/vision/encoder_private.h"

static const struct vis_ops *const backends[] = {&vis_cpu, &vis_reference};

static const struct vis_ops *find_backend(const char *name, struct err *err) {
    for (size_t i = 0; i < ARRAY_SIZE(backends); i++)
        if (!name || strcmp(name, backends[i]->name) == 0)
            return backends[i];
    err_set(err, 0, "backend", "image encoders have no backend '%s' (known: cpu, reference)", name);
    return NULL;
}

/* The patches of the largest picture. */
static uint32_t most_patches(const struct projector *p, uint32_t max_rows) {
    return p->side ? (p->side / p->patch) * (p->side / p->patch) : max_rows * p->merge * p->merge;
}

int image_encoder_new(struct image_encoder **out, const struct gguf *file,
                      const struct image_encoder_opts *opts, struct err *err) {
    CLEANUP(image_encoder_freep) struct image_encoder *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    e->ops = find_backend(opts->backend, err);
    if (!e->ops)
        return -EINVAL;
    int r = projector_read(&e->p, file, err);
    if (r < 0)
        return r;
    e->max_rows = opts->max_rows ? opts->max_rows : e->p.most;
    e->max_patches = most_patches(&e->p, e->max_rows);
    r = vis_load(e, file, opts, err);
    if (r == 0)
        *out = STEAL(e);
    return r;
}

/* Accepts what image_encoder_new() left half-built. */
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
    free(e->x);
    free(e->o);
    free(e->qkv);
    free(e->in);
    free(e->ffn);
    free(e->clipped);
    free(e->rope);
    free(e->grid.row);
    free(e->grid.column);
    free(e->grid.window);
    free(e);
    return NULL;
}

const struct projector *image_encoder_projector(const struct image_encoder *e) {
    return &e->p;
}

uint32_t image_encoder_width(const struct image_encoder *e) {
    return e->p.n_out * (1 + e->p.n_deep);
}

int image_encoder_run(struct image_encoder *e, const struct picture *p,
                      const struct picture_layout *l, float *out, struct err *err) {
    uint32_t align = e->p.patch * e->p.merge;
    uint64_t n = (uint64_t)(p->width / e->p.patch) * (p->height / e->p.patch);

    if (p->width != l->width || p->height != l->height || p->width % align || p->height % align)
        return err_set(err, 0, NULL, "a picture of %u x %u pixels has not the encoder's size",
                       p->width, p->height);
    if (n > e->max_patches)
        return err_set(err, 0, NULL, "a picture of %u x %u pixels has more than %u rows", p->width,
                       p->height, e->max_rows);
    bool two_tables = e->p.kind == PROJECTOR_GEMMA4V || e->p.kind == PROJECTOR_GEMMA4UV;
    if (two_tables && MAX(p->width, p->height) / e->p.patch > e->n_table)
        return err_set(err, 0, NULL, "a picture of %u x %u pixels is larger than the %u positions",
                       p->width, p->height, e->n_table);
    vis_place(e, l);
    vis_embed(e, p);
    vis_layers(e, out);
    vis_project(e, l, out);
    return 0;
}
