/*
 * Pictures in text models: logits and greedy tokens of a computation in float64, from the rows of
 * the files and from pixels through the encoder; the same bits whatever else runs and however
 * prompts and pictures are cut; projectors that do not fit.
 */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "engine/backend.h"
#include "tests/engine/golden_pictures.h"
#include "tests/support/engine_driver.h"
#include "tests/support/few.h"
#include "tests/support/test_data.h"
#include "vision/projector.h"

/* By how much keys and values in half precision move the logits. */
static const struct {
    const char *name;
    double half;
} models[] = {{"qwen3vl", 0.05}, {"qwen25vl", 0.05}, {"qwen35", 0.05},  {"gemma3", 0.05},
              {"gemma4", 0.05},  {"gemma4u", 0.2},   {"mistral3", 0.05}};

#define EXACT 5e-3 /* seen: 2e-4 */

/* The reference's cache is exact, the CPU's is not. */
static const struct judge {
    const char *backend;
    enum engine_kv_type kv_type;
} reference = {"reference", ENGINE_KV_F32}, cpu = {"cpu", ENGINE_KV_F16};

/* A sequence that is watched. */
struct watch {
    const struct driver_seq *seq;
    const struct gp_case *c;
    double max;
    uint32_t n_wrong, n_rows;
};

static void look(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct watch *w = ctx;
    const struct gp_case *c = w->c;
    uint32_t first = c ? c->n_prompt - c->n_behind : 0;

    if (s != w->seq || !c || pos < first)
        return;
    for (uint32_t i = 0; pos - first < c->n_behind + GP_EXACT && i < c->n_vocab; i++) {
        double d =
            fabs((double)logits[i] - (double)c->logits[(size_t)(pos - first) * c->n_vocab + i]);

        w->max = d <= w->max ? w->max : d; /* NaN too */
    }
    w->n_rows++;
    if (pos + 1 >= c->n_prompt && pos + 1 - c->n_prompt < GP_GREEDY)
        w->n_wrong += out->token != c->greedy[pos + 1 - c->n_prompt];
}

static void open_driver(struct driver *d, const struct golden_pictures *g,
                        const struct judge *judge, struct watch *w) {
    struct err err = {0};
    const struct driver_opts o = {
        .path = g->model,
        .projector = g->projector,
        .backend = judge->backend,
        .kv_type = kv_both(judge->kv_type),
        .n_threads = 2,
        .n_pages = 128,
        .max_rows = 256,
        .picture_rows = 256,
        .n_snapshots = 2,
        .on_out = look,
        .ctx = w,
    };

    int r = driver_open(d, &o, &err);
    cr_assert(r == 0, "%s: %s", g->model, err.message);
}

/* The end of a chunk of @n rows that begins at @at: no picture of a two-way model is cut. */
static uint32_t chunk_of(const struct driver *d, const struct driver_seq *s, uint32_t n) {
    uint32_t end = MIN(s->n_computed + n, s->n_prompt);

    for (uint32_t i = 0; i < s->n_pictures && d->info->two_way; i++) {
        const struct engine_picture *p = &s->picture[i];

        if (end > p->at && end < p->at + p->n_rows)
            end = p->at + p->n_rows;
    }
    return end - s->n_computed;
}

/* A sequence of the case, whose pictures have @rows, or those of the file. */
static struct driver_seq *add_case(struct driver *d, const struct gp_case *c,
                                   const struct engine_picture *pictures) {
    struct driver_seq *s = driver_add(d, c->prompt, c->n_prompt, GP_GREEDY - 1, NULL);

    cr_assert(s != NULL, "pages");
    s->picture = pictures ? pictures : c->picture;
    s->n_pictures = c->n_pictures;
    s->forced = c->greedy;
    s->every_row = true;
    return s;
}

static void run_case(struct driver *d, struct watch *w, const struct gp_case *c,
                     const struct engine_picture *pictures, uint32_t chunk) {
    struct driver_seq *s = add_case(d, c, pictures);

    w->seq = s;
    w->c = c;
    while (s->n_computed < s->n_prompt)
        driver_step(d, &(struct driver_part){s, chunk_of(d, s, chunk)}, 1);
    driver_decode(d, &s, 1, GP_GREEDY - 1, false);
    w->seq = driver_drop(d, s);
}

static void check_watch(const struct judge *judge, const char *model, double most,
                        const struct watch *w, const char *from) {
    printf("# %s %s from %s: max %.2g, %u wrong of %u rows\n", judge->backend, model, from, w->max,
           w->n_wrong, w->n_rows);
    cr_expect(w->n_rows > 0 && w->max <= most, "%s %s: logits differ by %g", judge->backend, model,
              w->max);
    cr_expect(w->n_wrong == 0, "%s %s: %u tokens differ", judge->backend, model, w->n_wrong);
}

/* The layout of the resized picture @i of @c. */
static struct picture_layout layout_of(const struct gp_case *c, uint32_t i,
                                       const struct projector *p) {
    struct picture_budget any = {.least = 1, .most = 1u << 16};
    struct picture_layout l;

    projector_layout(p, c->pixels[i].width, c->pixels[i].height, &any, &l);
    cr_assert(l.n_rows == c->picture[i].n_rows && l.width == c->pixels[i].width, "%s", c->name);
    cr_assert(l.n_positions == c->picture[i].n_positions, "%s", c->name);
    return l;
}

/* Computes the rows of @c's picture @i in pieces of @work. */
static float *encode(struct driver *d, const struct gp_case *c, uint32_t i, uint64_t work) {
    struct projector p;
    struct err err = {0};

    cr_assert(projector_read(&p, d->projector, &err) == 0);
    struct picture_layout l = layout_of(c, i, &p);
    float *rows = malloc((size_t)l.n_rows * c->width * sizeof(*rows));
    uint64_t left = engine_picture_work(d->engine, &l);
    cr_assert(engine_picture_begin(d->engine, c->pixels[i].rgb, &l, rows, &err) == 0, "%s",
              err.message);
    for (uint64_t before = left; left; before = left) {
        left = engine_picture_step(d->engine, work);
        cr_assert(left < before);
    }
    return rows;
}

/* Pictures whose rows are computed here. */
struct encoded {
    struct engine_picture picture[GP_PICTURES];
    uint32_t n;
};

static void encoded_free(struct encoded *e) {
    for (uint32_t i = 0; i < e->n; i++)
        free((void *)e->picture[i].rows);
}

static void encode_all(struct driver *d, const struct gp_case *c, uint64_t work,
                       struct encoded *out) {
    out->n = c->n_pictures;
    for (uint32_t i = 0; i < c->n_pictures; i++) {
        out->picture[i] = c->picture[i];
        out->picture[i].rows = encode(d, c, i, work);
    }
}

static void check_model(const struct judge *judge, const char *name, double most) {
    CLEANUP(gp_freep) struct golden_pictures *g = gp_load(name);
    struct watch w = {0}, together = {0};
    struct driver d;

    open_driver(&d, g, judge, &w);
    cr_expect(d.info->picture_width == g->cases[0].width);
    for (uint32_t i = 0; i < g->n_cases; i++)
        run_case(&d, &w, &g->cases[i], NULL, 50);
    check_watch(judge, name, most, &w, "rows");
    driver_close(&d);
    open_driver(&d, g, judge, &together);
    for (uint32_t i = 0; i < g->n_cases; i++) {
        CLEANUP(encoded_free) struct encoded e = {0};

        encode_all(&d, &g->cases[i], 1u << 20, &e);
        run_case(&d, &together, &g->cases[i], e.picture, 256);
    }
    check_watch(judge, name, most, &together, "pixels");
    driver_close(&d);
}

Test(pictures, reference_agrees_with_float64) {
    for (size_t i = 0; i < ARRAY_SIZE(models); i++)
        check_model(&reference, models[i].name, EXACT);
}

Test(pictures, cpu_agrees_with_float64) {
    for (size_t i = 0; i < ARRAY_SIZE(models); i++)
        check_model(&cpu, models[i].name, models[i].half);
}
