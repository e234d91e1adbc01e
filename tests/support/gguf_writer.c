#include "tests/support/gguf_writer.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

static void must(int r) {
    if (r < 0)
        abort();
}

static void remember(struct gw_field **list, size_t *n, size_t *cap, struct gw_field f) {
    if (*n == *cap) {
        *cap = *cap ? *cap * 2 : 64;
        *list = reallocarray(*list, *cap, sizeof(**list));
        if (!*list)
            abort();
    }
    (*list)[(*n)++] = f;
}

static void put(struct buf *b, uint64_t v, unsigned bytes) {
    v = htole64(v);
    must(buf_add(b, &v, bytes));
}

/* Writes an integer of the metadata; gw_finish() adds the size of the head to its position. */
static void kv_int(struct gguf_writer *w, uint64_t v, unsigned bytes, const char *what) {
    remember(&w->field, &w->n_fields, &w->cap_fields, (struct gw_field){w->kv.len, bytes, what});
    put(&w->kv, v, bytes);
}

static void dir_int(struct gguf_writer *w, uint64_t v, unsigned bytes, const char *what) {
    if (w->n_dir_fields < ARRAY_SIZE(w->dir_field))
        w->dir_field[w->n_dir_fields++] = (struct gw_field){w->dir.len, bytes, what};
    put(&w->dir, v, bytes);
}

static void kv_str(struct gguf_writer *w, const char *s, const char *what) {
    kv_int(w, strlen(s), 8, what);
    must(buf_add_str(&w->kv, s));
}

void gw_init(struct gguf_writer *w) {
    *w = (struct gguf_writer){.version = 3, .alignment = 32};
    buf_init(&w->kv, 1u << 28);
    buf_init(&w->dir, 1u << 28);
    buf_init(&w->data, 1u << 28);
    buf_init(&w->file, 1u << 29);
}

void gw_deinit(struct gguf_writer *w) {
    buf_deinit(&w->kv);
    buf_deinit(&w->dir);
    buf_deinit(&w->data);
    buf_deinit(&w->file);
    free(w->field);
}

void gw_scalar(struct gguf_writer *w, const char *key, uint32_t type, const void *v, size_t size) {
    w->n_kv++;
    kv_str(w, key, "length of a key");
    kv_int(w, type, 4, "type of a value");
    must(buf_add(&w->kv, v, size));
}

void gw_u32(struct gguf_writer *w, const char *key, uint32_t v) {
    w->n_kv++;
    kv_str(w, key, "length of a key");
    kv_int(w, GGUF_U32, 4, "type of a value");
    kv_int(w, v, 4, "a u32 value");
}

void gw_f32(struct gguf_writer *w, const char *key, float v) {
    gw_scalar(w, key, GGUF_F32, &v, sizeof(v));
}

void gw_bool(struct gguf_writer *w, const char *key, uint8_t v) {
    w->n_kv++;
    kv_str(w, key, "length of a key");
    kv_int(w, GGUF_BOOL, 4, "type of a value");
    kv_int(w, v, 1, "a bool value");
}

void gw_string(struct gguf_writer *w, const char *key, const char *v) {
    w->n_kv++;
    kv_str(w, key, "length of a key");
    kv_int(w, GGUF_STRING, 4, "type of a value");
    kv_str(w, v, "length of a string");
}

static void array_head(struct gguf_writer *w, const char *key, uint32_t type, uint64_t n) {
    w->n_kv++;
    kv_str(w, key, "length of a key");
    kv_int(w, GGUF_ARRAY, 4, "type of a value");
    kv_int(w, type, 4, "type of an array");
    kv_int(w, n, 8, "length of an array");
}

void gw_array(struct gguf_writer *w, const char *key, uint32_t type, uint64_t n, const void *v,
              size_t size) {
    array_head(w, key, type, n);
    must(buf_add(&w->kv, v, size));
}

void gw_strings(struct gguf_writer *w, const char *key, uint64_t n, const char *const *v) {
    array_head(w, key, GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        kv_str(w, v[i], "length of a string in an array");
}

void gw_entry(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
              const uint64_t *ne, uint64_t offset) {
    w->n_tensors++;
    dir_int(w, strlen(name), 8, "length of a tensor's name");
    must(buf_add_str(&w->dir, name));
    dir_int(w, n_dims, 4, "number of dimensions");
    for (uint32_t i = 0; i < n_dims; i++)
        dir_int(w, ne[i], 8, "a dimension");
    dir_int(w, type, 4, "type of a tensor");
    dir_int(w, offset, 8, "offset of a tensor");
}

void gw_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
               const uint64_t *ne, const void *data) {
    const struct tensor_format *f = tensor_format(type);
    size_t n = 1;

    if (!f)
        abort();
    for (uint32_t i = 0; i < n_dims; i++)
        n *= ne[i];
    n = n / f->block * f->block_bytes;
    gw_entry(w, name, type, n_dims, ne, w->data.len);
    if (data)
        must(buf_add(&w->data, data, n));
    else
        for (size_t i = 0; i < n; i++)
            must(buf_add_char(&w->data, (char)(i * 7 + w->n_tensors)));
    while (w->data.len % w->alignment)
        must(buf_add_char(&w->data, 0));
}

void gw_finish(struct gguf_writer *w) {
    static const struct gw_field head[] = {
        {0, 4, "magic"}, {4, 4, "version"}, {8, 8, "number of tensors"}, {16, 8, "number of keys"}};

    buf_clear(&w->file);
    must(buf_add(&w->file, "GGUF", 4));
    put(&w->file, w->version, 4);
    put(&w->file, w->n_tensors, 8);
    put(&w->file, w->n_kv, 8);
    for (size_t i = 0; i < w->n_fields; i++)
        w->field[i].at += w->file.len;
    must(buf_add(&w->file, w->kv.data, w->kv.len));
    for (size_t i = 0; i < w->n_dir_fields; i++) {
        w->dir_field[i].at += w->file.len;
        remember(&w->field, &w->n_fields, &w->cap_fields, w->dir_field[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(head); i++)
        remember(&w->field, &w->n_fields, &w->cap_fields, head[i]);
    must(buf_add(&w->file, w->dir.data, w->dir.len));
    while (w->data.len && w->file.len % w->alignment)
        must(buf_add_char(&w->file, 0));
    must(buf_add(&w->file, w->data.data, w->data.len));
}

void gw_save_bytes(const char *path, const void *data, size_t len) {
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(data, 1, len, f) != len || fclose(f) != 0)
        abort();
}

void gw_save(struct gguf_writer *w, const char *path) {
    gw_finish(w);
    gw_save_bytes(path, w->file.data, w->file.len);
}
