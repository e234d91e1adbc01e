#include "tests/vision/pictures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "base/sha256.h"
#include "tests/support/test_data.h"

struct file file_read(const char *folder, const char *name) {
    char dir[64], path[TEST_DATA_PATH];
    struct file f = {0};

    snprintf(dir, sizeof(dir), "golden-vision/%s", folder);
    FILE *in = fopen(test_data_file(path, dir, name, ""), "rb");
    cr_assert(in && fseek(in, 0, SEEK_END) == 0);
    f.len = (size_t)ftell(in);
    rewind(in);
    f.data = malloc(f.len + 1);
    cr_assert(fread(f.data, 1, f.len, in) == f.len);
    fclose(in);
    return f;
}

void file_deinit(struct file *f) {
    free(f->data);
    *f = (struct file){0};
}

struct picture picture_read(const char *folder, const char *name) {
    CLEANUP(file_deinit) struct file f = file_read(folder, name);
    struct picture p = {0};
    struct err err = {0};

    cr_assert(picture_decode(f.data, f.len, &p, &err) == 0, "%s: %s", name, err.message);
    return p;
}

size_t expected_read(struct expected *out, size_t max) {
    char path[TEST_DATA_PATH];
    yyjson_doc *d = yyjson_read_file(
        test_data_file(path, "golden-vision/decode", "expected.json", ""), 0, NULL, NULL);
    yyjson_val *key, *v;
    yyjson_obj_iter it = yyjson_obj_iter_with(yyjson_doc_get_root(d));
    size_t n = 0;

    while ((key = yyjson_obj_iter_next(&it))) {
        struct expected *e = &out[n++];

        cr_assert(n <= max);
        v = yyjson_obj_iter_get_val(key);
        *e = (struct expected){0};
        snprintf(e->name, sizeof(e->name), "%s", yyjson_get_str(key));
        if (yyjson_obj_get(v, "error"))
            continue;
        v = yyjson_obj_get(v, "oriented") ? yyjson_obj_get(v, "oriented") : v;
        e->width = (uint32_t)yyjson_get_uint(yyjson_arr_get(yyjson_obj_get(v, "size"), 0));
        e->height = (uint32_t)yyjson_get_uint(yyjson_arr_get(yyjson_obj_get(v, "size"), 1));
        snprintf(e->sha256, sizeof(e->sha256), "%s",
                 yyjson_get_str(yyjson_obj_get(v, "sha256_rgb")));
    }
    yyjson_doc_free(d);
    return n;
}

void picture_sha256(const struct picture *p, char out[65]) {
    struct sha256 s;

    sha256_init(&s);
    sha256_add(&s, p->rgb, picture_bytes(p->width, p->height));
    sha256_hex(&s, out);
}

struct file file_damage(const struct file *f, struct rng *r) {
    struct file g = {malloc(f->len + 1), f->len};
    uint32_t n = (uint32_t)rng_below(r, 8) + 1;

    memcpy(g.data, f->data, f->len);
    for (uint32_t i = 0; i < n && g.len > 1; i++) {
        size_t at = rng_below(r, (uint32_t)g.len), to = rng_below(r, (uint32_t)g.len);
        size_t piece = rng_below(r, 64);

        switch (rng_below(r, 6)) {
        case 0:
            g.len = at;
            break;
        case 1: /* a piece of it somewhere else */
            memmove(g.data + to, g.data + at, MIN(piece, g.len - MAX(at, to)));
            break;
        case 2:
            g.data[at] = 0xFF;
            break;
        case 3: /* in the header */
            g.data[at % 64 % g.len] = (uint8_t)rng_next(r);
            break;
        default:
            g.data[at] ^= (uint8_t)(1u << rng_below(r, 8));
        }
    }
    return g;
}
