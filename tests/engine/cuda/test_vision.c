/*
 * Tests image encoders on a device: errors against rows computed in float64, the same bits in
 * pieces of any size, and calls of the runtime that fail. Any text model will do, since only the
 * device's memory is used.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/try.h"
#include "engine/archs.h"
#include "engine/backend.h"
#include "engine/pictures.h"
#include "engine/vision/ops.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/vision_scene.h"
#include "tests/support/tiny_model.h"

/* Limit relative to the largest value of the rows; seen: 0.0011. Weights, activations and
 * probabilities are halves of 11 bits: a product of rounded numbers is off by 2.2e-4 to 3.1e-4
 * (docs/design/cuda.md), and a row passes about ten of them. */
#define HALVES 3e-3
/* Limit of gemma4v; seen: 0.016. It does not divide scores by the root of a head's size, so errors
 * of queries and keys weigh more. In single precision, too, it is off ten times as far as the
 * others (test_vision.c). */
#define HALVES_UNSCALED 3e-2
/* Limit for weights that are multiplied by 8-bit activations, if the kernels are those of such a
 * family (BYTES); seen: 0.013. */
#define BYTES_LIMIT 3e-2

/* A device that was opened with room for an encoder. */
struct bench {
    struct gguf *text;
    struct model model;
    struct engine_opts opts;
    const struct be_ops *ops;
    struct be *be;
    /* note if the CPU has the encoder; NULL: the device has it */
    const char *why;
    struct scene scene;
};

static void bench_close(struct bench *t) {
    image_encoder_free(t->scene.e);
    if (t->ops)
        t->ops->close(t->be);
    gguf_free(t->scene.file);
    model_deinit(&t->model);
    gguf_free(t->text);
}

/* Opens @k's encoder. Returns 0 or -errno. */
static int bench_open(struct bench *t, const struct kind *k, const char *format,
                      uint32_t max_rows) {
    struct image_encoder_fit fit;
    struct err err = {0};
    char path[64];

    *t = (struct bench){.scene.file = scene_file(k, format)};
    fake_small_model(path);
    cr_assert(gguf_open(&t->text, path, &err) == 0);
    unlink(path);
    t->opts = (struct engine_opts){.file = t->text,
                                   .backend = "cuda",
                                   .page_tokens = 16,
                                   .max_rows = 16,
                                   .max_seqs = 1,
                                   .max_wants = 1,
                                   .max_context = 64};
    cr_assert(arch_read(&t->model, &t->opts, false, &err) == 0, "%s", err.message);
    t->ops = backend_find("cuda", NULL, &err);
    if (!t->ops)
        return -ENODEV;
    const struct image_encoder_opts o = {.max_rows = max_rows, .device = t->ops->vision};
    cr_assert(image_encoder_fit(&fit, t->scene.file, &o, &err) == 0, "%s", err.message);
    t->model.shape.picture_weights = fit.weights;
    t->model.shape.picture_buffers = fit.buffers;
    const struct be_opts b = {
        .shape = &t->model.shape, .engine = &t->opts, .n_pages = 4, .page_bytes = 4096};
    TRY(t->ops->open(&t->be, &b, &err));
    t->opts.projector = t->scene.file;
    t->opts.picture_rows = max_rows;
    return pictures_open(&t->scene.e, t->ops, t->be, &t->opts, &t->why, &err);
}

static void near_rows(const struct kind *k, const char *format) {
    CLEANUP(bench_close) struct bench t = {0};
    CLEANUP(freep) float *should = NULL;
    size_t n, m;

    cr_assert(bench_open(&t, k, format, 64) == 0, "%s", k->name);
    CLEANUP(freep) float *rows = scene_encode(&t.scene, k->width, k->height, UINT64_MAX, &n);
    CLEANUP(freep) float *pieces = scene_encode(&t.scene, k->width, k->height, 20000, &m);
    if (strcmp(format, "F32") == 0 && k->rows) {
        should = scene_rows(k, n);
    } else {
        const struct image_encoder_opts o = {.backend = "reference", .max_rows = 64};
        CLEANUP(scene_close) struct scene s = scene_open(k, format, &o);

        should = scene_encode(&s, k->width, k->height, UINT64_MAX, &m);
    }
    cr_assert(rows && pieces && n == m && !t.why);
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)should[i]));
    double d = scene_difference(rows, should, n) / most;
    printf("# %s %s: %g of %g\n", k->name, format, d, most);
    double limit = strcmp(k->name, "gemma4v") == 0 ? HALVES_UNSCALED : HALVES;
#ifdef BYTES
    limit = strcmp(format, "Q8_0") == 0 ? BYTES_LIMIT : limit;
#endif
    cr_expect(d <= limit, "%s %s: differs by %g", k->name, format, d);
    cr_expect(memcmp(rows, pieces, n * sizeof(*rows)) == 0, "%s: pieces have other bits", k->name);
}

/* More keys than a tile, rows of several blocks and chunks, the last of which are not full. */
Test(cuda_vision, large_pictures_are_near_the_reference) {
    static const struct kind large = {"qwen3vl_merger", "n_deep=2", 288, 160, NULL};

    near_rows(&large, "F16");
}

#ifndef PTX /* the interpreter would take minutes */
Test(cuda_vision, rows_are_near_those_of_float64_in_one_piece_and_in_many) {
    for (uint32_t i = 0; i < SCENE_KINDS; i++)
        near_rows(&scene_kinds[i], "F32");
    near_rows(&scene_kinds[0], "Q8_0");
    near_rows(&scene_kinds[4], "BF16");
    cr_expect(fake_find()->n_live == 0);
}

/* Opens and encodes. Returns 0 or -errno. */
static int try_all(void) {
    const struct kind *k = &scene_kinds[4];
    CLEANUP(bench_close) struct bench t = {0};
    size_t n;

    TRY(bench_open(&t, k, "F16", 64));
    CLEANUP(freep) float *rows = scene_encode(&t.scene, k->width, k->height, 100000, &n);
    if (!rows)
        cr_expect(t.ops->fault(t.be)[0], "no reason");
    return rows ? 0 : -EIO;
}

/* Lets some of the calls fail, once or with all later ones. */
Test(cuda_vision, calls_may_fail) {
    uint32_t n_failed = 0;

    fake_find()->n_calls = 0;
    cr_assert(try_all() == 0);
    uint32_t n = fake_find()->n_calls;
    for (uint32_t i = 1; i < n; i += 7) {
        fake_find()->n_calls = 0;
        fake_find()->fail_at = i;
        fake_find()->sticky = i % 2;
        int r = try_all();

        n_failed += r < 0;
        cr_expect(r < 0 || i + 3 >= n, "call %u of %u", i, n);
        cr_expect(fake_find()->n_live == 0, "call %u: %d left", i, fake_find()->n_live);
    }
    fake_find()->fail_at = 0;
    cr_expect(n_failed > 20, "%u", n_failed);
}

/* If the kernels of an encoder compute nothing, the CPU gets it; others stay on the device. */
Test(cuda_vision, a_device_that_is_wrong_leaves_the_encoder_to_the_cpu) {
    static const char *const broken[] = {NULL, "vis_row", "vis_head", "vis_attend_64"};

    setenv("WEFT_CUDA_CHECK", "1", 1);
    for (size_t i = 0; i < ARRAY_SIZE(broken) + SCENE_KINDS; i++) {
        const struct kind *k = &scene_kinds[i < SCENE_KINDS ? i : 0];
        CLEANUP(bench_close) struct bench t = {0};
        size_t n;

        fake_find()->broken = i < SCENE_KINDS ? NULL : broken[i - SCENE_KINDS];
        bool whole = !fake_find()->broken;
        cr_assert(bench_open(&t, k, "F32", 64) == 0);
        cr_expect(whole ? !t.why : t.why != NULL, "%s: %s", k->name, whole ? t.why : "not found");
        CLEANUP(freep) float *rows = scene_encode(&t.scene, k->width, k->height, UINT64_MAX, &n);
        CLEANUP(freep) float *should = k->rows ? scene_rows(k, n) : NULL;
        if (!whole)
            cr_expect(scene_difference(rows, should, n) < 1e-4);
    }
    fake_find()->broken = NULL;
}
#endif
