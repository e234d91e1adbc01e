#include "tests/engine/golden_pictures.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <yyjson.h>

#include "base/err.h"

/* Returns an element of the file that is being read; fails if it is missing. */
static void *must(void *part) {
    cr_assert(part != NULL, "a file of golden values is missing or lacks a part");
    return part;
}

static uint32_t number(yyjson_val *v, const char *key) {
    return (uint32_t)yyjson_get_uint(must(yyjson_obj_get(v, key)));
}

/* Returns all bytes of a file of the set. */
static uint8_t *read_file(const char *folder, const char *name, size_t *n) {
    char path[TEST_DATA_PATH], dir[64];

    snprintf(dir, sizeof(dir), "golden-vision/%s", folder);
    FILE *f = must(fopen(test_data_file(path, dir, name, ""), "rb"));
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = must(malloc(*n + 1));
    cr_assert(fread(data, 1, *n, f) == *n);
    fclose(f);
    return data;
}

/* Returns the floats of the file that @files names under @key, @n at least. */
static float *read_floats(const char *folder, yyjson_val *files, const char *key, size_t n) {
    size_t bytes;
    uint8_t *data =
        read_file(folder, must((void *)yyjson_get_str(yyjson_obj_get(files, key))), &bytes);

    cr_assert(bytes >= n * sizeof(float), "%s: %zu bytes", key, bytes);
    return (float *)data;
}

static void add_picture(struct gp_case *c, yyjson_val *chunk, uint32_t *n_rows) {
    struct engine_picture *p = &c->picture[c->n_pictures++];

    cr_assert(c->n_pictures <= GP_PICTURES);
    *p = (struct engine_picture){
        .at = c->n_prompt,
        .n_rows = number(chunk, "image_tokens"),
        .n_columns = number(chunk, "nx"),
        .n_lines = number(chunk, "ny"),
        .n_positions = number(chunk, "n_positions"),
        .width = c->width,
    };
    c->n_prompt += p->n_rows;
    *n_rows += p->n_rows;
    c->n_behind = 0;
}

/* Text and pictures in order; placeholders are zeros. */
static uint32_t read_chunks(struct gp_case *c, yyjson_val *chunks) {
    uint32_t n_rows = 0;
    yyjson_val *chunk;
    yyjson_arr_iter it = yyjson_arr_iter_with(must(chunks));

    c->prompt = must(calloc(1024, sizeof(*c->prompt)));
    while ((chunk = yyjson_arr_iter_next(&it))) {
        yyjson_val *text = yyjson_obj_get(chunk, "text");

        if (!text)
            add_picture(c, chunk, &n_rows);
        for (size_t i = 0; i < yyjson_arr_size(text); i++, c->n_behind++)
            c->prompt[c->n_prompt++] = (int32_t)yyjson_get_int(yyjson_arr_get(text, i));
        cr_assert(c->n_prompt < 1024);
    }
    return n_rows;
}

static void read_pixels(struct gp_case *c, const char *folder, yyjson_val *names) {
    struct err err = {0};

    cr_assert(yyjson_arr_size(must(names)) == c->n_pictures);
    for (uint32_t i = 0; i < c->n_pictures; i++) {
        size_t n;
        uint8_t *data =
            read_file(folder, must((void *)yyjson_get_str(yyjson_arr_get(names, i))), &n);

        cr_assert(picture_decode(data, n, &c->pixels[i], &err) == 0, "%s", err.message);
        free(data);
    }
}

static void read_case(const char *folder, uint32_t n_vocab, yyjson_val *v, struct gp_case *c) {
    yyjson_val *files = must(yyjson_obj_get(v, "files")), *greedy = yyjson_obj_get(v, "greedy");

    snprintf(c->name, sizeof(c->name), "%s",
             (const char *)must((void *)yyjson_get_str(yyjson_obj_get(v, "name"))));
    c->width = number(v, "embedding_width");
    c->n_vocab = n_vocab;
    uint32_t n_rows = read_chunks(c, yyjson_obj_get(v, "chunks"));
    c->rows = read_floats(folder, files, "embeddings_float64", (size_t)n_rows * c->width);
    c->logits =
        read_floats(folder, files, "logits_float64", (size_t)(c->n_behind + GP_EXACT) * n_vocab);
    float *at = c->rows;
    for (uint32_t i = 0; i < c->n_pictures; at += (size_t)c->picture[i++].n_rows * c->width)
        c->picture[i].rows = at;
    read_pixels(c, folder, yyjson_obj_get(files, "resized"));
    cr_assert(yyjson_arr_size(greedy) == GP_GREEDY);
    for (size_t i = 0; i < GP_GREEDY; i++)
        c->greedy[i] =
            (int32_t)yyjson_get_int(must(yyjson_obj_get(yyjson_arr_get(greedy, i), "id")));
}

struct golden_pictures *gp_load(const char *name) {
    char path[TEST_DATA_PATH];
    struct golden_pictures *g = must(calloc(1, sizeof(*g)));
    yyjson_doc *doc =
        must(yyjson_read_file(test_data_file(path, "golden-vision", name, ".json"), 0, NULL, NULL));
    yyjson_val *root = yyjson_doc_get_root(doc), *cases = must(yyjson_obj_get(root, "cases"));

    g->n_cases = (uint32_t)MIN(yyjson_arr_size(cases), (size_t)GP_CASES);
    for (uint32_t i = 0; i < g->n_cases; i++)
        read_case(name, 512, yyjson_arr_get(cases, i), &g->cases[i]);
    yyjson_doc_free(doc);
    test_data_file(g->model, "golden-vision", name, ".gguf");
    snprintf(path, sizeof(path), "mmproj-%s", name);
    test_data_file(g->projector, "golden-vision", path, ".gguf");
    return g;
}

struct golden_pictures *gp_free(struct golden_pictures *g) {
    for (uint32_t i = 0; g && i < g->n_cases; i++) {
        struct gp_case *c = &g->cases[i];

        free(c->prompt);
        free(c->rows);
        free(c->logits);
        for (uint32_t k = 0; k < c->n_pictures; k++)
            picture_deinit(&c->pixels[k]);
    }
    free(g);
    return NULL;
}
