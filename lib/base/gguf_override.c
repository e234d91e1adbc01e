#include "base/gguf_override.h"

#include <endian.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/gguf_private.h"
#include "base/printable.h"
#include "base/try.h"

#define ARCHITECTURE "general.architecture"
#define ARCHITECTURE_MAX 64u /* most bytes of its value */
#define OPTION "override-kv"

/* An override as it is written: parts of the operator's text. */
struct override {
    struct gguf_str key, value;
    enum gguf_type type;
    /* of a number or bool: the bytes as in a file */
    uint8_t scalar[8];
};

static bool override_is(struct gguf_str s, const char *word) {
    return s.len == strlen(word) && memcmp(s.data, word, s.len) == 0;
}

static bool override_begins(struct gguf_str s, const char *word) {
    return s.len >= strlen(word) && memcmp(s.data, word, strlen(word)) == 0;
}

/* Fails with a message that names the key. Returns -EINVAL. */
static int override_refuse(const struct override *o, const char *why, struct err *err) {
    return err_set(err, 0, OPTION, OPTION ": %.*s: %s", (int)o->key.len, o->key.data, why);
}

/* Returns true for 1 to @max printable characters without blanks. */
static bool override_is_name(struct gguf_str s, size_t max) {
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] <= 0x20 || s.data[i] > 0x7E)
            return false;
    return s.len > 0 && s.len <= max;
}

/* Checks that the key can be printed and that a new value has an effect. */
static int override_check_key(const struct override *o, struct err *err) {
    static const char *const fixed[] = {"general.alignment", "split.", "weft."};

    if (!override_is_name(o->key, GGUF_OVERRIDE_KEY_MAX))
        return err_set(err, 0, OPTION,
                       OPTION ": a key has 1 to %u printable characters without blanks",
                       GGUF_OVERRIDE_KEY_MAX);
    for (size_t i = 0; i < ARRAY_SIZE(fixed); i++)
        if (override_begins(o->key, fixed[i]))
            return override_refuse(o, "the layout of the file depends on it", err);
    return 0;
}

/* Copies a number's text of at most 63 bytes, NUL-terminated. Returns false if it is longer, or if
 * it does not begin like a decimal number. */
static bool override_digits(struct gguf_str s, char out[64]) {
    size_t sign = s.len > 0 && s.data[0] == '-';

    if (s.len >= 64 || s.len == sign)
        return false;
    memcpy(out, s.data, s.len);
    out[s.len] = 0;
    return (out[sign] >= '0' && out[sign] <= '9') || out[sign] == '.';
}

static int override_int(struct override *o, struct err *err) {
    char text[64], *end;

    if (!override_digits(o->value, text))
        return override_refuse(o, "int: must be a whole number in decimal", err);
    errno = 0;
    uint64_t v = (uint64_t)strtoll(text, &end, 10);

    if (*end || errno)
        return override_refuse(o, "int: must be a whole number of 64 bits in decimal", err);
    v = htole64(v);
    memcpy(o->scalar, &v, sizeof(v));
    o->type = GGUF_I64;
    return 0;
}

static int override_float(struct override *o, struct err *err) {
    static const char decimal[] = "+-.0123456789eE";
    char text[64], *end;
    uint64_t bits;

    if (!override_digits(o->value, text) || text[strspn(text, decimal)])
        return override_refuse(o, "float: must be a decimal number", err);
    double v = strtod(text, &end);

    if (*end || !isfinite(v))
        return override_refuse(o, "float: must be a decimal number in range", err);
    memcpy(&bits, &v, sizeof(bits));
    bits = htole64(bits);
    memcpy(o->scalar, &bits, sizeof(bits));
    o->type = GGUF_F64;
    return 0;
}

static int override_bool(struct override *o, struct err *err) {
    bool is_true = override_is(o->value, "true");

    if (!is_true && !override_is(o->value, "false"))
        return override_refuse(o, "bool: must be true or false", err);
    o->scalar[0] = is_true;
    o->type = GGUF_BOOL;
    return 0;
}

static int override_str(struct override *o, struct err *err) {
    if (o->value.len > GGUF_OVERRIDE_TEXT_MAX)
        return override_refuse(o, "str: is too long", err);
    o->type = GGUF_STRING;
    return 0;
}

static const struct override_type {
    const char *name;
    int (*read)(struct override *o, struct err *err);
} override_types[] = {
    {"int", override_int},
    {"float", override_float},
    {"bool", override_bool},
    {"str", override_str},
};

/* Reads the @len bytes at @text as KEY=TYPE:VALUE. Returns 0, or -EINVAL with @err. */
static int override_read(struct override *o, const char *text, size_t len, struct err *err) {
    const char *equals = memchr(text, '=', len), *end = text + len;
    const char *colon = equals ? memchr(equals, ':', (size_t)(end - equals)) : NULL;

    *o = (struct override){0};
    if (!colon) {
        char shown[100];

        printable_copy(shown, sizeof(shown), text, len, false);
        return err_set(err, 0, OPTION,
                       OPTION ": must be KEY=TYPE:VALUE with a TYPE of int, float, bool or str, "
                              "not \"%s\"",
                       shown);
    }
    o->key = (struct gguf_str){text, (size_t)(equals - text)};
    o->value = (struct gguf_str){colon + 1, (size_t)(end - colon - 1)};
    TRY(override_check_key(o, err));
    struct gguf_str type = {equals + 1, (size_t)(colon - equals - 1)};

    for (size_t i = 0; i < ARRAY_SIZE(override_types); i++)
        if (override_is(type, override_types[i].name))
            return override_types[i].read(o, err);
    return override_refuse(o, "the type must be int, float, bool or str", err);
}

int gguf_override_check(const char *text, struct err *err) {
    struct override o;

    return override_read(&o, text, strlen(text), err);
}

/* Enters all keys again, after some have got other names. Returns 0 or -ENOMEM. */
static int index_keys(struct gguf_meta *m) {
    hash_index_deinit(&m->index.items);
    TRY(gguf_index_reserve(&m->index, m->n));
    for (uint32_t i = 0; i < m->n; i++)
        TRY(gguf_index_add(&m->index, m->kv[i].key, i));
    return 0;
}

/* Renames @kv, whose key begins with @n bytes of another architecture's name, to that of @to,
 * unless there is such a key. Returns 0 or -ENOMEM. */
static int rename_key(struct gguf *g, struct gguf_kv *kv, size_t n, struct gguf_str to) {
    size_t rest = kv->key.len - n;
    char *name = arena_alloc(&g->names, to.len + rest + 1);

    if (!name)
        return -ENOMEM;
    memcpy(name, to.data, to.len);
    memcpy(name + to.len, kv->key.data + n, rest);
    struct gguf_str key = {name, to.len + rest};

    if (key.len <= GGUF_KEY_MAX && gguf_index_find(&g->meta.index, &g->meta, key) < 0)
        kv->key = key;
    return 0;
}

/* Gives the keys of architecture @from the name @to. Returns 0 or -ENOMEM. */
static int rename_keys(struct gguf *g, struct gguf_str from, struct gguf_str to) {
    for (uint32_t i = 0; i < g->meta.n; i++) {
        struct gguf_kv *kv = &g->meta.kv[i];
        bool is_own = kv->key.len > from.len && memcmp(kv->key.data, from.data, from.len) == 0;

        if (is_own && kv->key.data[from.len] == '.')
            TRY(rename_key(g, kv, from.len, to));
    }
    return index_keys(&g->meta);
}

/* Returns the row of @key, with a new one behind the others if there is none; NULL: no memory. */
static struct gguf_kv *override_row(struct gguf *g, struct gguf_str key) {
    struct gguf_meta *m = &g->meta;
    int64_t i = gguf_index_find(&m->index, m, key);

    if (i >= 0)
        return &m->kv[i];
    struct gguf_kv *more = reallocarray(m->kv, m->n + 1ull, sizeof(*more));
    char *name = arena_strndup(&g->names, key.data, key.len);

    if (more)
        m->kv = more;
    if (!more || !name || gguf_index_reserve(&m->index, m->n + 1) < 0)
        return NULL;
    m->kv[m->n] = (struct gguf_kv){.key = {name, key.len}};
    if (gguf_index_add(&m->index, m->kv[m->n].key, m->n) < 0)
        return NULL;
    return &m->kv[m->n++];
}

/* Gives the key of @o its new value. Returns 0 or -ENOMEM. */
static int override_set(struct gguf *g, const struct override *o) {
    struct gguf_kv *kv = override_row(g, o->key);
    char *value = arena_alloc(&g->names, MAX(sizeof(o->scalar), o->value.len));

    if (!kv || !value)
        return -ENOMEM;
    free(kv->array.offset);
    *kv = (struct gguf_kv){.key = kv->key, .type = o->type, .overridden = true};
    if (o->type == GGUF_STRING) {
        memcpy(value, o->value.data, o->value.len);
        kv->str = (struct gguf_str){value, o->value.len};
        return 0;
    }
    memcpy(value, o->scalar, sizeof(o->scalar));
    kv->value = (const uint8_t *)value;
    return 0;
}

static int override_apply(struct gguf *g, const struct override *o, struct err *err) {
    struct gguf_str from;
    bool is_arch = override_is(o->key, ARCHITECTURE);
    bool renames = is_arch && gguf_string(g, ARCHITECTURE, &from) == 0;
    bool is_name = o->type == GGUF_STRING && override_is_name(o->value, ARCHITECTURE_MAX);

    if (is_arch && !is_name)
        return override_refuse(o, "must be the name of an architecture", err);
    if (g->meta.n >= GGUF_KV_MAX)
        return override_refuse(o, "the file has too many keys", err);
    TRY(override_set(g, o));
    if (!renames)
        return 0;
    return rename_keys(g, from, o->value);
}

int gguf_override(struct gguf *g, const char *list, struct err *err) {
    struct override o;

    while (*list) {
        size_t len = strcspn(list, ",");

        TRY(override_read(&o, list, len, err));
        TRY(override_apply(g, &o, err));
        list += len + (list[len] == ',');
    }
    return 0;
}
