/* Sizes and numbers of rows: those of llama.cpp 0.5.0 for many pictures (layouts.json: width,
 * height, least and most rows or -1, rows, width and height of the encoder's input; of lfm2, those
 * of the small picture, and lines and columns of tiles). */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "tests/support/synth/synth.h"
#include "vision/fit.h"

/* Reads the header of a projector that `weft-synth` makes. If @key is not NULL, @n bytes from the
 * place @at behind the type of its value are replaced. Returns what projector_read() returns. */
static int make_with(struct projector *p, const char *kind, const char *shape, const char *key,
                     size_t at, const void *bytes, size_t n, struct err *err) {
    char path[64] = "/tmp/weft-projector-XXXXXX";
    const char *args[] = {"synth",    "--projector", kind, "--shape", shape,
                          "--format", "F16",         "-o", path,      NULL};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    static uint8_t head[65536];

    close(mkstemp(path));
    cr_assert(synth_main(ARRAY_SIZE(args) - 1, (char **)args) == 0);
    if (key) {
        int fd = open(path, O_RDWR);
        ssize_t len = pread(fd, head, sizeof(head), 0);
        uint8_t *found = memmem(head, (size_t)len, key, strlen(key));

        cr_assert(found, "%s", key);
        off_t value = found - head + (off_t)(strlen(key) + 4 + at);
        cr_assert_eq(pwrite(fd, bytes, n, value), (ssize_t)n);
        close(fd);
    }
    cr_assert(gguf_open(&file, path, err) == 0);
    unlink(path);
    return projector_read(p, file, err);
}

static struct projector make(const char *kind, const char *shape) {
    struct projector p = {0};
    struct err err = {0};

    cr_assert(make_with(&p, kind, shape, NULL, 0, NULL, 0, &err) == 0, "%s", err.message);
    return p;
}

/* A converter writes the type of the numbers that its configuration has: [0, 0, 0] as integers. */
Test(projector, means_may_be_integers) {
    static const struct {
        uint32_t type, n[2];
        int32_t value[3];
    } whole = {GGUF_I32, {3, 0}, {0, 0, 1}};
    struct projector p = {0};
    struct err err = {0};

    cr_assert_eq(make_with(&p, "qwen3vl_merger", "tiny", "clip.vision.image_mean", 0, &whole,
                           sizeof(whole), &err),
                 0, "%s", err.message);
    cr_assert(p.mean[0] == 0 && p.mean[1] == 0 && p.mean[2] == 1);
}

/* The type and the length of an array come first. */
Test(projector, values_out_of_range_are_refused) {
#define QWEN "qwen3vl_merger", "tiny", "clip.vision."
#define LFM2 "lfm2", "tile=64", "clip.vision."
#define IDEFICS3 "idefics3", "side=4", "clip.vision."
#define INTERNVL "internvl", "side=4", "clip.vision."
    static const struct {
        const char *kind, *shape, *key;
        float mean;
        uint32_t number;
        /* NULL: it is allowed */
        const char *part;
    } cases[] = {
        {QWEN "image_mean", 10.0f, 0, NULL},
        {QWEN "image_mean", 10.001f, 0, "'clip.vision.image_mean' has the value 10.001"},
        {QWEN "image_mean", -10.0f, 0, NULL},
        {QWEN "image_mean", -10.001f, 0, "'clip.vision.image_mean' has the value -10.001"},
        {QWEN "attention.head_count", 0, 7, "heads: their size is no multiple of 4"},
        {QWEN "attention.head_count", 0, 0, "is 0, 1 to 256 are allowed"},
        {QWEN "attention.head_count", 0, 257, "is 257, 1 to 256 are allowed"},
        {QWEN "embedding_length", 0, 3, "is 3, 4 to 8192 are allowed"},
        {QWEN "embedding_length", 0, 4, "values in"}, /* then of its heads */
        {QWEN "patch_size", 0, 0, "is 0, 1 to 64 are allowed"},
        {"qwen2.5vl_merger", "patch=14", "clip.vision.patch_size", 0, 4, NULL},
        {"qwen2.5vl_merger", "patch=14", "clip.vision.patch_size", 0, 3,
         "windows of 112 pixels have a side of more than 32 patches"},
        {"pixtral", "patch=14", "clip.vision.spatial_merge_size", 0, 0, "is 0, 1 to 4 are allowed"},
        {"gemma3", "patch=14,side=64", "clip.vision.image_size", 0, 897, "is 897, no multiple of"},
        {IDEFICS3 "preproc_image_size", 0, 63, "is 63, which is not 1 to 12 tiles of 64"},
        {IDEFICS3 "preproc_image_size", 0, 96, "is 96, which is not 1 to 12 tiles of 64"},
        {IDEFICS3 "preproc_image_size", 0, 768, NULL},
        {IDEFICS3 "preproc_image_size", 0, 832, "is 832, which is not 1 to 12 tiles of 64"},
        {INTERNVL "image_size", 0, 1248, NULL},
        {INTERNVL "image_size", 0, 1312, "13 tiles of 1312 pixels have more than 16384 pixels"},
        {INTERNVL "image_size", 0, 65, "is 65, no multiple of 32"},
        {IDEFICS3 "image_size", 0, 31, "is 31, no multiple of 32"},
        {LFM2 "preproc_image_size", 0, 65, "tiles of 65 pixels: their side is no multiple of"},
        {LFM2 "preproc_image_size", 0, 4096, NULL},
        {LFM2 "preproc_image_size", 0, 4097, "is 4097, 1 to 4096 are allowed"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        bool array = cases[i].mean != 0;
        const void *value = array ? (const void *)&cases[i].mean : &cases[i].number;
        struct projector p = {0};
        struct err err = {.status = 7};
        int r = make_with(&p, cases[i].kind, cases[i].shape, cases[i].key, array ? 12 : 0, value, 4,
                          &err);

        cr_expect((r == 0) == !cases[i].part, "%zu: %s", i, err.message);
        cr_expect(r == 0 || (strstr(err.message, cases[i].part) && err.status == 0), "%zu: %s", i,
                  err.message);
    }
}

static uint32_t limit(yyjson_val *v) {
    return yyjson_get_sint(v) < 0 ? 0 : (uint32_t)yyjson_get_uint(v);
}

Test(projector, sizes_are_those_of_llama_cpp) {
    static const char *const models[][3] = {{"qwen3vl", "qwen3vl_merger", "tiny"},
                                            {"qwen25vl", "qwen2.5vl_merger", "patch=14"},
                                            {"gemma4", "gemma4v", "tiny"},
                                            {"mistral3", "pixtral", "patch=14"}};
    yyjson_doc *d = yyjson_read_file(LAYOUTS, 0, NULL, NULL);
    size_t n = 0, i, max;
    yyjson_val *row;

    cr_assert(d);
    for (size_t m = 0; m < ARRAY_SIZE(models); m++) {
        const struct projector p = make(models[m][1], models[m][2]);

        yyjson_arr_foreach(yyjson_obj_get(yyjson_doc_get_root(d), models[m][0]), i, max, row) {
            struct picture_budget budget = {.least = limit(yyjson_arr_get(row, 2)),
                                            .most = limit(yyjson_arr_get(row, 3))};
            uint32_t w = limit(yyjson_arr_get(row, 0)), h = limit(yyjson_arr_get(row, 1));
            struct picture_layout l;

            projector_layout(&p, w, h, &budget, &l);
            cr_expect(l.n_rows == limit(yyjson_arr_get(row, 4)), "%s %u x %u: %u rows",
                      models[m][0], w, h, l.n_rows);
            cr_expect(l.width == limit(yyjson_arr_get(row, 5)) &&
                          l.height == limit(yyjson_arr_get(row, 6)),
                      "%s %u x %u: %u x %u", models[m][0], w, h, l.width, l.height);
            n++;
        }
    }
    yyjson_doc_free(d);
    cr_expect(n == 264, "%zu", n);
}

Test(projector, tiles_are_those_of_llama_cpp) {
    const struct projector p = make("lfm2", "patch=64"); /* as large as a row's patches together */
    yyjson_doc *d = yyjson_read_file(LAYOUTS, 0, NULL, NULL);
    size_t n = 0, i, max;
    yyjson_val *row;

    cr_assert(d);
    yyjson_arr_foreach(yyjson_obj_get(yyjson_doc_get_root(d), "lfm2"), i, max, row) {
        struct picture_budget budget = {.least = limit(yyjson_arr_get(row, 2)),
                                        .most = limit(yyjson_arr_get(row, 3))};
        uint32_t w = limit(yyjson_arr_get(row, 0)), h = limit(yyjson_arr_get(row, 1));
        uint32_t n_lines = limit(yyjson_arr_get(row, 7)), n_columns = limit(yyjson_arr_get(row, 8));
        struct picture_part a = {0};
        struct picture_layout l;

        projector_layout(&p, w, h, &budget, &l);
        cr_assert(projector_parts(&p, &l) == n_lines * n_columns + 1, "%u x %u", w, h);
        cr_expect(l.n_rows == limit(yyjson_arr_get(row, 4)), "%u x %u: %u rows", w, h, l.n_rows);
        if (n_lines)
            a = projector_part(&p, &l, n_lines * n_columns);
        cr_expect((n_lines ? a.width : l.width) == limit(yyjson_arr_get(row, 5)) &&
                      (n_lines ? a.height : l.height) == limit(yyjson_arr_get(row, 6)) &&
                      a.line == n_lines && a.top == n_lines * 512,
                  "%u x %u: %u x %u below %u lines", w, h, a.width, a.height, a.line);
        for (uint32_t k = 0; k < n_lines * n_columns; k++) {
            a = projector_part(&p, &l, k);
            cr_expect(a.width == 512 && a.height == 512 && a.left == k % n_columns * 512 &&
                      a.top == k / n_columns * 512 && a.first == 17 * k);
        }
        budget.whole = true;
        projector_layout(&p, w, h, &budget, &l);
        cr_expect(projector_parts(&p, &l) == 1);
        n++;
    }
    yyjson_doc_free(d);
    cr_expect(n == 26, "%zu", n);
}

/* The grid of a picture is that of Idefics3ImageProcessor with a longest edge of 2048 and tiles of
 * 512: 64 rows a tile, whose marks are a place, but for the first tile also a fence, and a break
 * where a line begins. */
Test(projector, grids_of_idefics3_are_those_of_training) {
    static const struct {
        uint32_t width, height, n_columns, n_lines, n_rows;
    } cases[] = {
        {512, 512, 4, 4, 17 * 64 + 16 * 2 - 1 + 3 + 3},
        {1, 1, 4, 4, 17 * 64 + 37},
        {640, 480, 4, 3, 13 * 64 + 12 * 2 - 1 + 2 + 3},
        {1920, 1080, 4, 3, 13 * 64 + 28},
        {1080, 1920, 3, 4, 13 * 64 + 29},
        {2048, 512, 4, 1, 5 * 64 + 4 * 2 - 1 + 3},
        {2048, 511, 4, 1, 5 * 64 + 10},
        {2048, 513, 4, 2, 9 * 64 + 19},
        {1000, 100, 4, 1, 5 * 64 + 10},
        {100, 1000, 1, 4, 5 * 64 + 13},
        {16384, 1, 4, 1, 5 * 64 + 10},
    };
    struct projector p = make("idefics3", "tiny");
    struct picture_budget own = {0}, low = {.most = 16, .whole = true};
    struct picture_layout l;

    p.side = p.tile = 512;
    p.merge = 4;
    p.longest = 2048;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint32_t n = cases[i].n_columns * cases[i].n_lines;

        projector_layout(&p, cases[i].width, cases[i].height, &own, &l);
        cr_expect(projector_parts(&p, &l) == n + 1 && l.width == cases[i].n_columns * 512 &&
                      l.height == (cases[i].n_lines + 1) * 512,
                  "%zu: %u x %u", i, l.width, l.height);
        cr_expect(l.n_rows == cases[i].n_rows && l.n_positions == l.n_rows, "%zu: %u rows", i,
                  l.n_rows);
        projector_layout(&p, cases[i].width, cases[i].height, &low, &l);
        cr_expect(projector_parts(&p, &l) == 1 && l.n_rows == 65 && l.width == 512);
    }
}

/* InternVL takes the grid of 1 to 12 tiles whose aspect is nearest; of equally near ones the
 * larger, if the picture has more than half of its pixels. A picture within one tile is not cut. */
Test(projector, grids_of_internvl_are_those_of_training) {
    static const struct {
        uint32_t width, height, n_columns, n_lines;
    } cases[] = {
        {448, 448, 0, 0},  {100, 50, 0, 0},    {449, 449, 1, 1},  {800, 800, 2, 2},
        {640, 480, 4, 3},  {1920, 1080, 4, 2}, {1024, 512, 2, 1}, {2048, 1024, 4, 2},
        {1600, 900, 4, 2}, {500, 5000, 1, 10}, {16384, 1, 12, 1}, {4032, 3024, 4, 3},
    };
    struct projector p = make("internvl", "tiny");
    struct picture_budget own = {0}, low = {.most = 64, .whole = true};
    struct picture_layout l;

    cr_assert(p.least_tiles == 1 && p.most_tiles == 12);
    p.side = p.tile = 448;
    p.patch = 14;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint32_t n = cases[i].n_columns * cases[i].n_lines;

        n = n > 1 ? n : 0;
        projector_layout(&p, cases[i].width, cases[i].height, &own, &l);
        cr_expect(projector_parts(&p, &l) == n + 1 && l.n_rows == 256 * (n + 1), "%zu: %u rows", i,
                  l.n_rows);
        cr_expect(n == 0 || (l.width == cases[i].n_columns * 448 &&
                             l.height == (cases[i].n_lines + 1) * 448),
                  "%zu: %u x %u", i, l.width, l.height);
        projector_layout(&p, cases[i].width, cases[i].height, &low, &l);
        cr_expect(projector_parts(&p, &l) == 1 && l.n_rows == 256 && l.width == 448);
    }
}

/* The processor of SmolVLM2 2.2B: pictures of 384 pixels are 27 patches of 14, which become 9
 * rows. */
Test(projector, patches_need_not_fill_a_tile) {
    struct projector p = make("idefics3", "tiny");
    struct picture_budget own = {0};
    struct picture_layout l;

    p.side = p.tile = 384;
    p.patch = 14;
    p.merge = 3;
    p.longest = 1536;
    projector_layout(&p, 1536, 384, &own, &l);
    cr_expect(projector_parts(&p, &l) == 5 && l.n_rows == 5 * 81 + 10 && l.n_columns == 9);
    for (uint32_t i = 0, at = 0; i < 5; i++) {
        const struct picture_part a = projector_part(&p, &l, i);

        cr_expect(a.first == at && a.left == i % 4 * 384 && a.width == 384 && a.height == 384);
        at += a.n_marks + 81;
        cr_expect(i < 4 || at == l.n_rows);
    }
}

/* Layouts that no picture has: of them no part is asked. */
Test(projector, other_grids_have_no_parts) {
    static const char *const kinds[][2] = {{"lfm2", "tile=64"}, {"idefics3", "side=4"}};
    struct picture_budget budget = {.least = 1, .most = 4};
    struct picture_layout l, wrong;

    for (int k = 0; k < 2; k++) {
        const struct projector p = make(kinds[k][0], kinds[k][1]);

        projector_layout(&p, 200, 100, &budget, &l);
        cr_assert(k || (l.width == 256 && l.height == 128 + 32 && l.n_rows == 8 * 5 + 1 + 2));
        cr_assert(!k || (l.width == 128 && l.height == 64 + 64 && l.n_rows == 3 * 4 + 6));
        cr_expect(projector_parts(&p, &l) == (k ? 3 : 9));
        for (int i = 0; i < 4; i++) {
            wrong = l;
            *(uint32_t *[]){&wrong.width, &wrong.height, &wrong.n_rows, &wrong.n_lines}[i] += 1;
            cr_expect(projector_parts(&p, &wrong) == 0, "%d %d", k, i);
        }
    }
}

/* The grid is stretched, or padded where that is asked for; the small picture is stretched. */
Test(projector, tiles_have_the_pixels_of_both_sizes) {
    const struct projector p = make("lfm2", "tile=64");
    struct picture_budget budget = {.least = 1, .most = 4};
    CLEANUP(picture_deinit) struct picture in = {0}, small = {0};
    struct picture_layout l;
    struct err err = {0};

    cr_assert(picture_new(&in, 200, 90, &err) == 0);
    for (uint64_t i = 0; i < picture_bytes(200, 90); i++)
        in.rgb[i] = (uint8_t)((i * i * 31 + i * 7) >> 5);
    projector_layout(&p, 200, 90, &budget, &l);
    const struct picture_part a = projector_part(&p, &l, 8);
    cr_assert(picture_resize(&in, a.width, a.height, p.filter, &small, &err) == 0);
    for (int pads = 0; pads < 2; pads++) {
        CLEANUP(picture_deinit) struct picture out = {0}, grid = {0};

        cr_assert((pads ? picture_pad : picture_resize)(&in, 256, 128, p.filter, &grid, &err) == 0);
        cr_assert(projector_fit(&p, &in, &l, pads, &out, &err) == 0);
        cr_assert(out.width == 256 && out.height == 160 && a.width == 64 && a.top == 128);
        cr_expect(memcmp(out.rgb, grid.rgb, picture_bytes(256, 128)) == 0);
        for (uint32_t y = 0; y < a.height; y++) {
            const uint8_t *line = out.rgb + picture_bytes(256, a.top + y);

            cr_expect(memcmp(line, small.rgb + picture_bytes(64, y), 64 * 3) == 0);
            for (int i = 64 * 3; i < 256 * 3; i++)
                cr_expect(line[i] == 0);
        }
    }
}

Test(projector, a_picture_of_fixed_size_has_always_as_many_rows) {
    const struct projector p = make("gemma3", "patch=14,side=64");
    struct picture_budget budget = {0};
    struct picture_layout l;

    projector_layout(&p, 1920, 1080, &budget, &l);
    cr_expect(l.width == 896 && l.height == 896 && l.n_rows == 256 && l.n_positions == 256);
}

/* A screenshot moves the position by its longer side, and not by all its rows. */
Test(projector, positions_of_qwen_are_a_side) {
    const struct projector p = make("qwen3vl_merger", "tiny");
    struct picture_budget budget = {0};
    struct picture_layout l;

    projector_layout(&p, 1920, 1080, &budget, &l);
    cr_expect(l.n_rows == 2040 && l.n_positions == 60 && l.n_columns == 60 && l.n_lines == 34);
}

/* Compares the bound that /v1/models gives with pictures of all sizes: it is nearly reached and
 * never exceeded. Tiles (lfm2) and line breaks (pixtral) come on top of the rows of the picture. */
Test(projector, no_picture_has_more_rows_than_the_bound) {
    static const struct {
        const char *kind, *shape;
        uint32_t most;
    } cases[] = {
        {"qwen3vl_merger", "tiny", 4096},  {"gemma3", "patch=14,side=64", 256},
        {"pixtral", "patch=14", 1535},     {"lfm2", "patch=16", 256 + 10 * 257 + 1},
        {"gemma4v", "tiny", 1120},         {"idefics3", "side=32", 5 * 256 + 11},
        {"internvl", "side=32", 13 * 256}, {"kimivl", "patch=14", 1024},
        {"glm4v", "patch=14", 4096},       {"hunyuanvl", "tiny", 4096 + 512 + 2},
    };
    static const uint32_t sides[] = {60,   224,  300,  512,  640,   1024, 1500,
                                     1920, 2048, 4000, 8192, 14336, 16384};

    for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
        const struct projector p = make(cases[c].kind, cases[c].shape);
        const struct picture_budget budget = {0}, few = {.most = 200, .whole = true};
        uint32_t bound = projector_most_rows(&p, &budget), seen = 0;

        cr_expect(bound == cases[c].most, "%s: %u", p.name, bound);
        for (size_t i = 0; i < ARRAY_SIZE(sides) * ARRAY_SIZE(sides); i++) {
            uint32_t w = sides[i / ARRAY_SIZE(sides)], h = sides[i % ARRAY_SIZE(sides)];
            struct picture_layout l;

            projector_layout(&p, w, h, &budget, &l);
            if (!p.side && l.n_columns * l.n_lines > p.most)
                continue; /* very narrow: the encoder refuses it */
            cr_expect(l.n_rows <= bound, "%s %u x %u: %u rows", p.name, w, h, l.n_rows);
            seen = MAX(seen, l.n_rows);
            projector_layout(&p, w, h, &few, &l);
            cr_expect(p.side || l.n_columns * l.n_lines > 200 ||
                          l.n_rows <= projector_most_rows(&p, &few),
                      "%s %u x %u: %u rows of 200", p.name, w, h, l.n_rows);
        }
        cr_expect(seen >= bound * 9 / 10, "%s: at most %u rows of %u", p.name, seen, bound);
    }
}
