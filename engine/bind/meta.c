#include "engine/bind/meta.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

struct meta_key meta_key(const struct binder *b, const char *key) {
    struct meta_key k;
    int n = snprintf(k.s, sizeof(k.s), "%s.%s", b->arch, key);

    assert(n > 0 && (size_t)n < sizeof(k.s));
    if (b->survey)
        survey_add(&b->survey->keys, key);
    return k;
}

bool meta_is_arch(const struct gguf *file, const char *name) {
    struct gguf_str arch;

    return gguf_string(file, "general.architecture", &arch) == 0 && arch.len == strlen(name) &&
           memcmp(arch.data, name, arch.len) == 0;
}

/* Reads an array whose elements are all equal. Returns 0, -ENOENT, or -EINVAL: they differ or are
 * not integers. */
static int get_uniform(const struct gguf *file, const char *key, uint32_t *out) {
    const struct gguf_array *a = gguf_array(file, key);
    uint32_t first, v;

    if (!a)
        return -ENOENT;
    if (gguf_array_read(a, GGUF_U32, 0, 1, &first) < 1)
        return -EINVAL;
    for (uint64_t i = 1; i < gguf_array_n(a); i++)
        if (gguf_array_read(a, GGUF_U32, i, 1, &v) < 1 || v != first)
            return -EINVAL;
    *out = first;
    return 0;
}

/* Reads an integer in [lo, hi], or an array whose elements are all equal. */
static void read_u32(struct binder *b, const char *key, bool required, uint32_t lo, uint32_t hi,
                     uint32_t *out) {
    struct meta_key k = meta_key(b, key);
    uint32_t v;

    if (b->r < 0)
        return;
    if (!gguf_has(b->file, k.s)) {
        if (required)
            bind_refuse(b, "the model file has no '%s'", k.s);
        return;
    }
    if (gguf_u32(b->file, k.s, &v) < 0 && get_uniform(b->file, k.s, &v) < 0)
        bind_refuse(b, "'%s' is not a number of 32 bits", k.s);
    else if (v < lo || v > hi)
        bind_refuse(b, "'%s' is %u; it must be from %u to %u", k.s, v, lo, hi);
    else
        *out = v;
}

void meta_u32(struct binder *b, const char *key, uint32_t lo, uint32_t hi, uint32_t *out) {
    read_u32(b, key, true, lo, hi, out);
}

void meta_u32_opt(struct binder *b, const char *key, uint32_t lo, uint32_t hi, uint32_t *out) {
    read_u32(b, key, false, lo, hi, out);
}

void meta_u32_layers(struct binder *b, const char *key, uint32_t lo, uint32_t hi, uint32_t n,
                     uint32_t *out) {
    struct meta_key k = meta_key(b, key);
    const struct gguf_array *a = NULL;
    uint32_t one = 0;

    if (b->r >= 0)
        a = gguf_array(b->file, k.s);
    if (!a) {
        meta_u32(b, key, lo, hi, &one);
        for (uint32_t i = 0; i < n; i++)
            out[i] = one;
        return;
    }
    bool fits = gguf_array_n(a) == n && gguf_array_read(a, GGUF_U32, 0, n, out) == n;
    for (uint32_t i = 0; i < n && fits; i++)
        fits = out[i] >= lo && out[i] <= hi;
    if (!fits)
        bind_refuse(b, "'%s' must have %u integers from %u to %u", k.s, n, lo, hi);
}

void meta_f32_opt(struct binder *b, const char *key, double lo, double hi, double *out) {
    struct meta_key k = meta_key(b, key);
    float v;

    if (b->r < 0 || !gguf_has(b->file, k.s))
        return;
    if (gguf_f32(b->file, k.s, &v) < 0)
        bind_refuse(b, "'%s' is not a finite number", k.s);
    else if (!((double)v >= lo && (double)v <= hi))
        bind_refuse(b, "'%s' is %g; it must be from %g to %g", k.s, (double)v, lo, hi);
    else
        *out = (double)v;
}

void meta_string(struct binder *b, const char *key, char *out, size_t size) {
    struct meta_key k = meta_key(b, key);
    struct gguf_str s;

    out[0] = 0;
    if (b->r < 0 || !gguf_has(b->file, k.s))
        return;
    if (gguf_string(b->file, k.s, &s) < 0 || s.len >= size)
        bind_refuse(b, "'%s' is not a string of less than %zu bytes", k.s, size);
    else
        snprintf(out, size, "%.*s", (int)s.len, s.data);
}

bool meta_bool(struct binder *b, const char *key) {
    bool value = false;

    gguf_bool(b->file, meta_key(b, key).s, &value);
    return value;
}

bool meta_numbers(struct binder *b, enum bind_need need, const char *key, enum gguf_type as,
                  uint32_t n, void *out) {
    struct meta_key k = meta_key(b, key);
    const struct gguf_array *a = b->r < 0 ? NULL : gguf_array(b->file, k.s);

    if (b->r < 0 || (!a && need == BIND_MAY))
        return false;
    uint64_t n_read = gguf_array_read(a, as, 0, n, out);

    if (n_read == n)
        return true;
    if (!a || gguf_array_type(a) == GGUF_STRING || n_read == gguf_array_n(a))
        bind_refuse(b, "'%s' has no number for some layers", k.s);
    else
        bind_refuse(b, "'%s' is %g for layer %llu, which is out of range", k.s,
                    gguf_array_num(a, n_read), (unsigned long long)n_read);
    return false;
}

void meta_refuse_other(struct binder *b, const char *key, uint32_t allowed) {
    uint32_t v = 0;

    meta_u32_opt(b, key, 0, UINT32_MAX, &v);
    if (b->r == 0 && v != 0 && v != allowed)
        bind_refuse(b, "'%s' is %u, which is not supported", meta_key(b, key).s, v);
}

void meta_must_be(struct binder *b, const char *key, uint32_t of_model) {
    uint32_t v = of_model;

    meta_u32_opt(b, key, 0, UINT32_MAX, &v);
    if (b->r == 0 && v != of_model)
        bind_refuse(b, "'%s' is %u, but the model's is %u", meta_key(b, key).s, v, of_model);
}
