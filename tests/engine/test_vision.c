/*
 * Tests image encoders: rows of a computation in float64, the same bits with any number of threads
 * and instruction set, and files that are refused with a reason.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/engine/vision_scene.h"
#include "tests/support/gguf_writer.h"

#define EXACT 1e-4 /* seen: 1e-5 */

/* Returns the rows of a picture of the given size, in one piece. */
static float *encode(const struct scene *s, uint32_t width, uint32_t height, size_t *n) {
    return scene_encode(s, width, height, UINT64_MAX, n);
}

static void check_rows(const char *backend) {
    const struct image_encoder_opts o = {.backend = backend, .n_threads = 2, .max_rows = 64};

    for (size_t i = 0; i < SCENE_LFM2; i++) {
        const struct kind *k = &scene_kinds[i];
        CLEANUP(scene_close) struct scene s = scene_open(k, "F32", &o);
        size_t n;
        CLEANUP(freep) float *rows = encode(&s, k->width, k->height, &n);
        CLEANUP(freep) float *should = scene_rows(k, n);

        double d = scene_difference(rows, should, n);
        printf("# %s %s: %g\n", backend, k->name, d);
        cr_expect(d <= EXACT, "%s, %s: differs by %g", backend, k->name, d);
    }
}

Test(vision, reference_computes_the_rows_of_float64) {
    check_rows("reference");
}

Test(vision, cpu_computes_the_rows_of_float64) {
    check_rows("cpu");
}

/* More patches than one thread packs; rows that do not fill a tile or a chunk. */
#define LARGE_WIDTH 640u
#define LARGE_HEIGHT 448u

Test(vision, cpu_agrees_with_the_reference_on_large_pictures) {
    const struct image_encoder_opts cpu = {.max_rows = 400},
                                    reference = {.backend = "reference", .max_rows = 400};
    CLEANUP(scene_close) struct scene a = scene_open(&scene_kinds[0], "F16", &cpu);
    CLEANUP(scene_close) struct scene b = scene_open(&scene_kinds[0], "F16", &reference);
    size_t n, m;
    CLEANUP(freep) float *x = encode(&a, LARGE_WIDTH, LARGE_HEIGHT, &n);
    CLEANUP(freep) float *y = encode(&b, LARGE_WIDTH, LARGE_HEIGHT, &m);

    cr_expect(n == m && scene_difference(x, y, n) <= EXACT, "%g", scene_difference(x, y, n));
}

static void check_bits(const struct kind *k, const char *format, uint32_t width, uint32_t height) {
    static const struct {
        const char *isa;
        uint32_t n_threads;
    } ways[] = {{"generic", 1}, {"generic", 3}, {"avx2", 1}, {"avx2", 2},
                {"avx512", 1},  {"avx512", 5},  {"auto", 2}};
    CLEANUP(freep) float *first = NULL;
    size_t n = 0, m;

    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        const struct image_encoder_opts o = {
            .isa = ways[i].isa, .n_threads = ways[i].n_threads, .max_rows = 400};
        struct image_encoder *e = NULL;
        struct gguf *file = scene_file(k, format);
        struct err err = {0};

        if (image_encoder_new(&e, file, &o, &err) == 0) {
            struct scene s = {file, e};
            CLEANUP(freep) float *rows = encode(&s, width, height, &m);

            if (!first) {
                first = STEAL(rows);
                n = m;
            } else {
                cr_expect(m == n && memcmp(rows, first, n * sizeof(float)) == 0,
                          "%s %s: %s with %u threads has other bits", k->name, format, ways[i].isa,
                          ways[i].n_threads);
            }
        } else {
            cr_expect(strstr(err.message, "this machine cannot run") ||
                          strstr(err.message, "built without it"),
                      "%s", err.message);
        }
        image_encoder_free(e);
        gguf_free(file);
    }
}

Test(vision, threads_and_instruction_sets_change_no_bit) {
    for (size_t i = 0; i < SCENE_KINDS; i++)
        check_bits(&scene_kinds[i], i % 2 ? "Q8_0" : "BF16", scene_kinds[i].width,
                   scene_kinds[i].height);
    check_bits(&scene_kinds[0], "F16", LARGE_WIDTH, LARGE_HEIGHT);
}

/* Returns the rows of the picture that is part @a of @p, encoded alone. */
static float *encode_part(const struct scene *s, const struct picture *p,
                          const struct picture_part *a) {
    CLEANUP(picture_deinit) struct picture part = {0};
    struct picture_budget own = {.least = 1, .most = 64, .whole = true};
    struct picture_layout l;

    cr_assert(picture_new(&part, a->width, a->height, NULL) == 0);
    for (uint32_t y = 0; y < a->height; y++)
        memcpy(part.rgb + picture_bytes(a->width, y),
               p->rgb + ((size_t)(a->top + y) * p->width + a->left) * 3, (size_t)a->width * 3);
    projector_layout(image_encoder_projector(s->e), a->width, a->height, &own, &l);
    float *rows = malloc((size_t)l.n_rows * image_encoder_width(s->e) * sizeof(*rows));
    cr_assert(image_encoder_run(s->e, &part, &l, rows, NULL) == 0);
    return rows;
}

enum { TEXT_TOKENS = 12 };

/* Tokens for the marks of a grid of 2 x 3 tiles, and others. */
static const char *const lfm2_tokens[TEXT_TOKENS] = {
    "a",
    "<|img_thumbnail|>",
    "<|img_row_1_col_1|>",
    "<|img_row_1_col_2|>",
    "<|img_row_1_col_3|>",
    "<|img_row_2_col_1|>",
    "<|img_row_2_col_2|>",
    "<|img_row_2_col_3|>",
    "<|img_row_02_col_3|>",
    "<|img_row_0_col_1|>",
    "<|img_row_1_col_0|>",
    "<|img_row_1",
};

/* Tokens for the marks of a grid of 2 x 2 tiles, and others. */
static const char *const idefics3_tokens[TEXT_TOKENS] = {
    "\u010A",         "\u010A\u010A",   "<fake_token_around_image>",
    "<global-img>",   "<row_1_col_1>",  "<row_1_col_2>",
    "<row_2_col_1>",  "<row_2_col_2>",  "<row_1_col_2",
    "<row_01_col_2>", "<row_1_col_2> ", "\n",
};

/* Writes a text model of 32 values; all values of row i are i + 1. */
static struct gguf *text_model(const char *const tokens[TEXT_TOKENS]) {
    char path[64] = "/tmp/weft-text-XXXXXX";
    float rows[TEXT_TOKENS * 32];
    struct gguf_writer w;
    struct gguf *file;
    struct err err = {0};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        rows[i] = (float)(i / 32 + 1);
    gw_init(&w);
    gw_string(&w, "general.architecture", "lfm2");
    gw_strings(&w, "tokenizer.ggml.tokens", TEXT_TOKENS, tokens);
    gw_tensor(&w, "token_embd.weight", TENSOR_F32, 2, (uint64_t[]){32, TEXT_TOKENS}, rows);
    close(mkstemp(path));
    gw_save(&w, path);
    gw_deinit(&w);
    cr_assert(gguf_open(&file, path, &err) == 0, "%s", err.message);
    unlink(path);
    return file;
}

/* Rows of tiles equal those of pictures with the same pixels, and follow the text model's rows of
 * marks. */
Test(vision, tiles_are_encoded_as_pictures_behind_their_marks) {
    static const struct kind lfm2 = {"lfm2", "tiny,side=5,tile=64", 0, 0, NULL};
    static const int marks[] = {3, 4, 5, 6, 7, 8, 2}; /* of 3 x 2 tiles and of the small picture */
    CLEANUP(gguf_freep) struct gguf *text = text_model(lfm2_tokens);
    const struct image_encoder_opts o = {.n_threads = 2, .max_rows = 64, .text = text};
    CLEANUP(scene_close) struct scene s = scene_open(&lfm2, "F32", &o);
    const struct projector *p = image_encoder_projector(s.e);
    struct picture_budget any = {.least = 1, .most = 8};
    struct picture_layout l;
    struct err err = {0};

    projector_layout(p, 300, 200, &any, &l);
    cr_assert(projector_parts(p, &l) == 7 && l.width == 192 && l.n_rows == 6 * 5 + 1 + 6);
    CLEANUP(picture_deinit) struct picture canvas = scene_picture(l.width, l.height);
    CLEANUP(freep) float *rows = malloc((size_t)l.n_rows * 32 * sizeof(*rows));
    for (uint64_t work = 1; work <= 1000000; work *= 1000) {
        uint64_t left = image_encoder_work(s.e, &l);

        memset(rows, 0xFF, (size_t)l.n_rows * 32 * sizeof(*rows));
        cr_assert(image_encoder_begin(s.e, canvas.rgb, &l, rows, &err) == 0, "%s", err.message);
        for (uint64_t before = left + 1; left && left < before;) {
            before = left;
            cr_assert(image_encoder_step(s.e, work, &left) == 0);
        }
        cr_assert(left == 0);
        for (uint32_t i = 0; i < 7; i++) {
            const struct picture_part a = projector_part(p, &l, i);
            CLEANUP(freep) float *alone = encode_part(&s, &canvas, &a);

            for (int k = 0; k < 32; k++)
                cr_expect(rows[a.first * 32 + k] == (float)marks[i]);
            cr_expect(memcmp(rows + (a.first + 1) * 32, alone,
                             (i == 6 ? 6 : 4) * 32 * sizeof(float)) == 0,
                      "part %u", i);
        }
    }
    any.most = 2; /* 8 tiles in a line */
    projector_layout(p, 800, 100, &any, &l);
    cr_assert(projector_parts(p, &l) > 7);
    cr_expect(image_encoder_begin(s.e, canvas.rgb, &l, rows, &err) == -EINVAL);
    cr_expect(strstr(err.message, "the model has no token for tile 4 of") != NULL, "%s",
              err.message);
}

/* Rows of marks are in the order of SmolVLM's processor: a break behind a line of tiles, a fence
 * before each place but the first, which the fence of the prompt precedes. Other rows are those
 * without a text model. */
Test(vision, fences_and_breaks_are_rows_of_the_text_model) {
    static const struct kind idefics3 = {"idefics3", "tiny,side=4", 0, 0, NULL};
    static const int marks[] = {5, 0, 0, 0, 0, 3, 6, 0, 0, 0, 0, 1, 3, 7, 0, 0,
                                0, 0, 3, 8, 0, 0, 0, 0, 2, 3, 4, 0, 0, 0, 0};
    CLEANUP(gguf_freep) struct gguf *text = text_model(idefics3_tokens);
    const struct image_encoder_opts with = {.n_threads = 2, .text = text}, none = {.n_threads = 2};
    CLEANUP(scene_close) struct scene s = scene_open(&idefics3, "F32", &with);
    CLEANUP(scene_close) struct scene plain = scene_open(&idefics3, "F32", &none);
    size_t n, m;
    CLEANUP(freep) float *rows = scene_encode(&s, 96, 64, 5000, &n);
    CLEANUP(freep) float *should = scene_encode(&plain, 96, 64, UINT64_MAX, &m);

    cr_assert(n == m && n == ARRAY_SIZE(marks) * 32);
    for (size_t i = 0; i < n; i++)
        cr_expect(rows[i] == (marks[i / 32] ? (float)marks[i / 32] : should[i]), "%zu: %g", i / 32,
                  (double)rows[i]);
}

/* A picture's rows do not depend on what was encoded before. */
Test(vision, pictures_leave_nothing_behind) {
    const struct image_encoder_opts o = {.n_threads = 2, .max_rows = 400};
    CLEANUP(scene_close) struct scene s = scene_open(&scene_kinds[0], "F32", &o);
    size_t n, m;
    CLEANUP(freep) float *first = encode(&s, 96, 64, &n);
    CLEANUP(freep) float *other = encode(&s, 320, 256, &m);
    CLEANUP(freep) float *again = encode(&s, 96, 64, &m);

    cr_expect(n == m && memcmp(first, again, n * sizeof(float)) == 0);
}

Test(vision, pictures_of_another_size_are_refused) {
    const struct image_encoder_opts o = {.max_rows = 8};
    CLEANUP(scene_close) struct scene s = scene_open(&scene_kinds[0], "F32", &o);
    CLEANUP(picture_deinit) struct picture p = scene_picture(128, 96);
    CLEANUP(picture_deinit) struct picture odd = scene_picture(40, 40);
    struct picture_layout l = {.width = 128, .height = 96, .n_rows = 12};
    float rows[12 * 96];
    struct err err;

    cr_expect(image_encoder_run(s.e, &p, &l, rows, &err) == -EINVAL);
    cr_expect(strstr(err.message, "128 x 96 pixels has more than 8 rows") != NULL, "%s",
              err.message);
    cr_expect(image_encoder_run(s.e, &odd, &l, rows, &err) == -EINVAL);
    cr_expect(strstr(err.message, "40 x 40 pixels has not the encoder's size") != NULL, "%s",
              err.message);
    CLEANUP(picture_deinit) struct picture small = scene_picture(64, 96);
    l = (struct picture_layout){.width = 64, .height = 96, .n_columns = 2, .n_lines = 3};
    cr_expect(image_encoder_run(s.e, &small, &l, rows, &err) == -EINVAL);
    cr_expect(strstr(err.message, "64 x 96 pixels has not 0 rows") != NULL, "%s", err.message);
}

/* Expects that the file of @w is refused with a reason that contains @part. */
static void expect_refused(struct gguf_writer *w, const char *part) {
    const struct image_encoder_opts o = {.max_rows = 8};
    struct image_encoder *e = NULL;
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct err err = {0};
    char path[64] = "/tmp/weft-projector-XXXXXX";
    int fd = mkstemp(path);

    close(fd);
    gw_save(w, path);
    cr_assert(gguf_open(&file, path, &err) == 0, "%s", err.message);
    unlink(path);
    cr_expect(image_encoder_new(&e, file, &o, &err) == -EINVAL && !e);
    cr_expect(strstr(err.message, part) != NULL, "expected '%s' in '%s'", part, err.message);
}

Test(vision, files_that_do_not_fit_are_refused_with_the_reason) {
    struct gguf_writer w;

    gw_init(&w);
    gw_string(&w, "general.architecture", "llama");
    expect_refused(&w, "no projector: its architecture is not 'clip'");
    gw_deinit(&w);
    gw_init(&w);
    gw_string(&w, "general.architecture", "clip");
    expect_refused(&w, "no 'clip.projector_type'");
    gw_string(&w, "clip.projector_type", "resampler");
    expect_refused(&w, "projectors of kind 'resampler' are not supported (known: qwen3vl_merger, ");
    gw_deinit(&w);
    gw_init(&w);
    gw_string(&w, "general.architecture", "clip");
    gw_string(&w, "clip.projector_type", "pixtral");
    expect_refused(&w, "no 'clip.vision.embedding_length'");
    gw_u32(&w, "clip.vision.embedding_length", 1u << 20);
    expect_refused(&w, "'clip.vision.embedding_length' is 1048576, 4 to 8192 are allowed");
    gw_deinit(&w);
}

/* A scale that is ignored would give wrong rows, and backends do not multiply by it. */
Test(vision, scales_beside_matrices_are_refused) {
    static const float half[3] = {0.5f, 0.5f, 0.5f};
    struct gguf_writer w;

    gw_init(&w);
    gw_string(&w, "general.architecture", "clip");
    gw_string(&w, "clip.projector_type", "gemma4uv");
    gw_u32(&w, "clip.vision.embedding_length", 64);
    gw_u32(&w, "clip.vision.patch_size", 8);
    gw_u32(&w, "clip.vision.projector.scale_factor", 1);
    gw_u32(&w, "clip.vision.projection_dim", 64);
    gw_array(&w, "clip.vision.image_mean", GGUF_F32, 3, half, sizeof(half));
    gw_array(&w, "clip.vision.image_std", GGUF_F32, 3, half, sizeof(half));
    gw_f32(&w, "clip.vision.attention.layer_norm_epsilon", 1e-6f);
    gw_tensor(&w, "v.patch_norm.1.weight", TENSOR_F32, 1, (uint64_t[]){192}, NULL);
    gw_tensor(&w, "v.patch_norm.2.weight", TENSOR_F32, 1, (uint64_t[]){64}, NULL);
    gw_tensor(&w, "v.patch_norm.3.weight", TENSOR_F32, 1, (uint64_t[]){64}, NULL);
    gw_tensor(&w, "v.patch_embd.weight", TENSOR_NVFP4, 2, (uint64_t[]){192, 64}, NULL);
    gw_tensor(&w, "v.patch_embd.scale", TENSOR_F32, 1, (uint64_t[]){1}, NULL);
    expect_refused(&w, "tensor 'v.patch_embd.scale' is not supported in projectors");
    gw_deinit(&w);
}

/* Every tensor that is missing or has another shape is named. */
Test(vision, tensors_that_are_missing_are_named) {
    static const char *const names[] = {"v.patch_embd.weight", "v.position_embd.weight",
                                        "v.blk.1.attn_out.weight", "v.blk.3.ffn_down.weight",
                                        "mm.2.weight"};
    const struct image_encoder_opts o = {.max_rows = 8};
    struct err err = {0};
    char path[64];

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        CLEANUP(gguf_freep) struct gguf *file = NULL;
        struct image_encoder *e = NULL;

        scene_write(&scene_kinds[0], "F32", path);
        FILE *f = fopen(path, "r+b");
        char head[16384];
        size_t n = fread(head, 1, sizeof(head), f);
        char *at = memmem(head, n, names[i], strlen(names[i]));
        cr_assert(at != NULL, "%s", names[i]);
        at[strlen(names[i]) - 1] = 'X';
        rewind(f);
        fwrite(head, 1, n, f);
        fclose(f);
        cr_assert(gguf_open(&file, path, &err) == 0);
        unlink(path);
        cr_expect(image_encoder_new(&e, file, &o, &err) == -EINVAL);
        cr_expect(strstr(err.message, names[i]) != NULL, "expected '%s' in '%s'", names[i],
                  err.message);
    }
}
