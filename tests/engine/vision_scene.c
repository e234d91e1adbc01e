#include "tests/engine/vision_scene.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/synth/synth.h"

const struct kind scene_kinds[SCENE_KINDS] = {
    {"qwen3vl_merger", "n_deep=2", 96, 64, "qwen3vl_merger"},
    {"qwen2.5vl_merger", "patch=14", 140, 168, "qwen2.5vl_merger"},
    {"gemma3", "patch=14", 112, 112, "gemma3"},
    {"gemma4v", "tiny", 96, 144, "gemma4v"},
    {"pixtral", "patch=14", 84, 56, "pixtral"},
    {"gemma4uv", "patch=8", 72, 120, "gemma4uv"},
    {"gemma4v", "tiny,bounds=1", 96, 144, "gemma4v-bounds"},
    {"idefics3", "tiny,side=4", 96, 64, "idefics3"},
    {"glm4v", "patch=14,side=5", 84, 196, "glm4v"},
    {"glm4v", "patch=14,rms=1", 56, 84, "glm4v-ocr"},
    {"kimivl", "patch=14,side=5", 84, 196, "kimivl"},
    {"internvl", "tiny,side=4", 96, 64, "internvl"},
    {"internvl", "tiny,side=4,rms=1", 64, 40, "internvl-rms"},
    {"hunyuanvl", "tiny,side=5", 96, 160, "hunyuanvl"},
    {"lfm2", "tiny,side=5", 96, 160, NULL},
};

void scene_close(struct scene *s) {
    image_encoder_free(s->e);
    gguf_free(s->file);
}

void scene_write(const struct kind *k, const char *format, char path[64]) {
    const char *args[] = {"synth",    "--projector", k->name, "--shape", k->shape,
                          "--format", format,        "-o",    path,      NULL};

    snprintf(path, 64, "/tmp/weft-projector-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    cr_assert(synth_main(ARRAY_SIZE(args) - 1, (char **)args) == 0, "%s", k->name);
}

struct gguf *scene_file(const struct kind *k, const char *format) {
    struct gguf *file;
    char path[64];

    scene_write(k, format, path);
    cr_assert(gguf_open(&file, path, NULL) == 0);
    unlink(path);
    return file;
}

struct scene scene_open(const struct kind *k, const char *format,
                        const struct image_encoder_opts *o) {
    struct scene s = {.file = scene_file(k, format)};
    struct err err = {0};

    cr_assert(image_encoder_new(&s.e, s.file, o, &err) == 0, "%s: %s", k->name, err.message);
    return s;
}

struct picture scene_picture(uint32_t width, uint32_t height) {
    struct picture p;

    cr_assert(picture_new(&p, width, height, NULL) == 0);
    for (uint64_t i = 0; i < picture_bytes(width, height); i++)
        p.rgb[i] = (uint8_t)((i * i * 31 + i * 7) >> 5);
    return p;
}

float *scene_encode(const struct scene *s, uint32_t width, uint32_t height, uint64_t work,
                    size_t *n) {
    const struct projector *projector = image_encoder_projector(s->e);
    struct picture_budget any = {.least = 1};
    struct picture_layout l;
    struct err err = {0};

    projector_layout(projector, width, height, &any, &l);
    cr_assert(projector->tile || (l.width == width && l.height == height), "%u x %u", l.width,
              l.height);
    CLEANUP(picture_deinit) struct picture p = scene_picture(l.width, l.height);
    *n = (size_t)l.n_rows * image_encoder_width(s->e);
    CLEANUP(freep) float *rows = malloc(*n * sizeof(*rows));
    int r = image_encoder_begin(s->e, p.rgb, &l, rows, &err);
    cr_assert(r == 0, "%s", err.message);
    for (uint64_t left = image_encoder_work(s->e, &l), before; left && r == 0;) {
        before = left;
        r = image_encoder_step(s->e, work, &left);
        cr_assert(r < 0 || left < before);
    }
    return r < 0 ? NULL : STEAL(rows);
}

float *scene_rows(const struct kind *k, size_t n) {
    float *should = malloc((n + 1) * sizeof(*should));
    char path[512];

    snprintf(path, sizeof(path), ROWS "/%s.f32", k->rows);
    FILE *in = fopen(path, "rb");
    cr_assert(in && should && fread(should, sizeof(float), n + 1, in) == n, "%s: %zu", path, n);
    fclose(in);
    return should;
}

double scene_difference(const float *a, const float *b, size_t n) {
    double most = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);

        most = d <= most ? most : d; /* NaN too */
    }
    return most;
}
