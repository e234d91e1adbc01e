/* Sizes and numbers of rows: those of llama.cpp 0.5.0 for many pictures (layouts.json: width,
 * height, least and most rows or -1, rows, width and height of the encoder's input). */

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>
#include <yyjson.h>
#include "tests/support/synth/synth.h"
#include "vision/projector.h"

/* Reads the header of a projector that `weft-synth` makes. */
static struct projector make(const char *kind, const char *shape) {
    char path[64] = "/tmp/weft-projector-XXXXXX";
    const char *args[] = {"synth",    "--projector", kind, "--shape", shape,
                          "--format", "F16",         "-o", path,      NULL};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct projector p = {0};
    struct err err = {0};

    close(mkstemp(path));
    cr_assert(synth_main(ARRAY_SIZE(args) - 1, (char **)args) == 0);
    cr_assert(gguf_open(&file, path, &err) == 0);
    unlink(path);
    cr_assert(projector_read(&p, file, &err) == 0, "%s", err.message);
    return p;
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
            struct picture_budget budget = {limit(yyjson_arr_get(row, 2)),
                                            limit(yyjson_arr_get(row, 3))};
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
