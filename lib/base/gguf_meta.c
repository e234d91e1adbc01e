#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/gguf_private.h"
#include "base/try.h"

static struct gguf_str gguf_meta_key(const void *owner, uint32_t i) {
    return ((const struct gguf_meta *)owner)->kv[i].key;
}

/* Returns -EINVAL with a message that names the key of @kv and position @at. */
static int key_fail(struct gguf_cursor *c, size_t at, const struct gguf_kv *kv, const char *what) {
    return gguf_cursor_fail_at(c, at, "key '%.*s': %s", (int)MIN(kv->key.len, 100u), kv->key.data,
                               what);
}

/* Reads a string array and builds its index in one pass over the lengths. Returns 0, -ENOMEM or
 * -EINVAL. */
static int parse_strings(struct gguf_cursor *c, struct gguf_kv *kv) {
    struct gguf_array *a = &kv->array;
    size_t start = c->at;
    CLEANUP(freep) uint32_t *offset = calloc(a->n + 1, sizeof(*offset));

    if (!offset)
        return -ENOMEM;
    for (uint64_t i = 0; i < a->n; i++) {
        struct gguf_str s;

        TRY(gguf_cursor_str(c, &s, "a string of an array"));
        offset[i + 1] = (uint32_t)(c->at - start); /* headers are below 4 GiB */
    }
    a->offset = STEAL(offset);
    return 0;
}

/* Checks that the @n bytes at @p, which end at the cursor, are bools. Returns 0 or -EINVAL. */
static int parse_bools(struct gguf_cursor *c, struct gguf_kv *kv, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] > 1)
            return key_fail(c, c->at - n + i, kv, "a bool is neither 0 nor 1");
    return 0;
}

static int parse_array(struct gguf_cursor *c, struct gguf_kv *kv) {
    size_t at = c->at;
    uint32_t type;
    uint64_t n;

    TRY(gguf_cursor_u32(c, &type, "the type of an array"));
    if (type != GGUF_STRING && !gguf_scalar_bytes(type))
        return gguf_cursor_fail_at(c, at, "key '%.*s': arrays of type %u are not allowed",
                                   (int)MIN(kv->key.len, 100u), kv->key.data, type);
    at = c->at;
    TRY(gguf_cursor_u64(c, &n, "the length of an array"));
    size_t least = type == GGUF_STRING ? 8 : gguf_scalar_bytes(type);

    if (n > gguf_cursor_remaining(c) / least)
        return gguf_cursor_fail_at(c, at,
                                   "key '%.*s': %llu elements do not fit into %zu bytes" GGUF_WHOLE,
                                   (int)MIN(kv->key.len, 100u), kv->key.data, (unsigned long long)n,
                                   gguf_cursor_remaining(c));
    kv->array =
        (struct gguf_array){.type = (enum gguf_type)type, .n = n, .data = c->file->map + c->at};
    if (type == GGUF_STRING)
        return parse_strings(c, kv);
    const uint8_t *p;

    TRY(gguf_cursor_read(c, (size_t)n * least, &p, "an array"));
    if (type != GGUF_BOOL)
        return 0;
    return parse_bools(c, kv, p, (size_t)n);
}

static int parse_value(struct gguf_cursor *c, struct gguf_kv *kv) {
    size_t at = c->at;
    uint32_t type;

    TRY(gguf_cursor_u32(c, &type, "the type of a value"));
    if (type > GGUF_F64)
        return gguf_cursor_fail_at(c, at, "key '%.*s': unknown value type %u",
                                   (int)MIN(kv->key.len, 100u), kv->key.data, type);
    kv->type = (enum gguf_type)type;
    if (type == GGUF_STRING)
        return gguf_cursor_str(c, &kv->str, "a string value");
    if (type == GGUF_ARRAY)
        return parse_array(c, kv);
    TRY(gguf_cursor_read(c, gguf_scalar_bytes(type), &kv->value, "a value"));
    if (type != GGUF_BOOL)
        return 0;
    return parse_bools(c, kv, kv->value, 1);
}

int gguf_meta_parse(struct gguf_meta *m, struct gguf_cursor *c, uint32_t n_kv) {
    m->index.name = gguf_meta_key;
    m->kv = calloc(MAX(n_kv, 1u), sizeof(*m->kv));
    if (!m->kv)
        return -ENOMEM;
    int r = gguf_index_reserve(&m->index, n_kv);

    while (r == 0 && m->n < n_kv) {
        size_t at = c->at;
        struct gguf_kv *kv = &m->kv[m->n];

        TRY(gguf_cursor_name(c, GGUF_KEY_MAX, &kv->key, "a key"));
        if (gguf_index_find(&m->index, m, kv->key) >= 0)
            return key_fail(c, at, kv, "appears twice");
        TRY(gguf_index_add(&m->index, kv->key, m->n++));
        r = parse_value(c, kv);
    }
    return r;
}

void gguf_meta_deinit(struct gguf_meta *m) {
    for (uint32_t i = 0; i < m->n; i++)
        free(m->kv[i].array.offset);
    free(m->kv);
    hash_index_deinit(&m->index.items);
    *m = (struct gguf_meta){0};
}

const struct gguf_kv *gguf_meta_find(const struct gguf_meta *m, const char *key) {
    int64_t i = gguf_index_find(&m->index, m, (struct gguf_str){key, strlen(key)});

    if (i < 0)
        return NULL;
    return &m->kv[i];
}

/* Reads the number of @key as type @as. Returns 0, -ENOENT or -EINVAL. */
static int meta_number(const struct gguf_meta *m, const char *key, enum gguf_type as, void *out) {
    const struct gguf_kv *kv = gguf_meta_find(m, key);

    if (!kv)
        return -ENOENT;
    if (!kv->value || !gguf_number_read(kv->type, kv->value, as, out))
        return -EINVAL;
    return 0;
}

int gguf_meta_u32(const struct gguf_meta *m, const char *key, uint32_t *out) {
    return meta_number(m, key, GGUF_U32, out);
}

uint64_t gguf_n_kv(const struct gguf *g) {
    return g->meta.n;
}

struct gguf_str gguf_key(const struct gguf *g, uint64_t i, enum gguf_type *type) {
    assert(i < g->meta.n);
    if (type)
        *type = g->meta.kv[i].type;
    return g->meta.kv[i].key;
}

bool gguf_has(const struct gguf *g, const char *key) {
    return gguf_meta_find(&g->meta, key) != NULL;
}

int gguf_u32(const struct gguf *g, const char *key, uint32_t *out) {
    return gguf_meta_u32(&g->meta, key, out);
}

int gguf_f32(const struct gguf *g, const char *key, float *out) {
    float f;

    TRY(meta_number(&g->meta, key, GGUF_F32, &f));
    if (!isfinite(f))
        return -EINVAL;
    *out = f;
    return 0;
}

/* Finds the value of @key, which must have type @type. Returns 0, -ENOENT or -EINVAL. */
static int find_typed(const struct gguf *g, const char *key, enum gguf_type type,
                      const struct gguf_kv **out) {
    *out = gguf_meta_find(&g->meta, key);
    if (!*out)
        return -ENOENT;
    if ((*out)->type != type)
        return -EINVAL;
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out) {
    const struct gguf_kv *kv;
    int r = find_typed(g, key, GGUF_BOOL, &kv);

    if (r == 0)
        *out = *kv->value != 0;
    return r;
}

int gguf_string(const struct gguf *g, const char *key, struct gguf_str *out) {
    const struct gguf_kv *kv;
    int r = find_typed(g, key, GGUF_STRING, &kv);

    if (r == 0)
        *out = kv->str;
    return r;
}

const struct gguf_array *gguf_array(const struct gguf *g, const char *key) {
    const struct gguf_kv *kv = gguf_meta_find(&g->meta, key);

    if (!kv || kv->type != GGUF_ARRAY)
        return NULL;
    return &kv->array;
}

enum gguf_type gguf_array_type(const struct gguf_array *a) {
    return a->type;
}

uint64_t gguf_array_n(const struct gguf_array *a) {
    return a->n;
}

struct gguf_str gguf_array_str(const struct gguf_array *a, uint64_t i) {
    assert(i < a->n && a->type == GGUF_STRING);
    return (struct gguf_str){(const char *)a->data + a->offset[i] + 8,
                             a->offset[i + 1] - a->offset[i] - 8};
}
