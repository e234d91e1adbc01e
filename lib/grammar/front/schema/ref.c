/* ref - references within a schema: JSON pointers in a fragment ("#/$defs/node"), names ("#node"),
 * and either of these behind the schema's own URI. */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_value.h"
#include "grammar/front/schema/schema.h"

#define POINTER_MAX 1024

/* Writes one step of a pointer, unescaped, to @out. Returns its length, or -1 if it is malformed.
 * */
static long read_step(const char *s, size_t len, char *out, size_t *used) {
    size_t n = 0, i = 0;

    while (i < len && s[i] != '/') {
        char c = s[i++];

        if (c == '%') {
            int hi = i < len ? hex_digit(s[i]) : -1, lo = i + 1 < len ? hex_digit(s[i + 1]) : -1;

            if (hi < 0 || lo < 0)
                return -1;
            c = (char)(hi * 16 + lo);
            i += 2;
        }
        if (c == '~') {
            if (i == len || (s[i] != '0' && s[i] != '1'))
                return -1;
            c = s[i++] == '0' ? '~' : '/';
        }
        out[n++] = c;
    }
    assert(n <= i && i <= len); /* unescaping only shortens: @out needs no more than @len */
    *used = i;
    return (long)n;
}

/* Returns a member of @v; NULL if there is none. Charges for those before it, which are passed. */
static yyjson_val *ref_step_into(struct schema *s, yyjson_val *v, const char *key, size_t len) {
    size_t index = 0;

    if (yyjson_is_obj(v)) {
        build_work(s->b, yyjson_obj_size(v) / 4);
        return yyjson_obj_getn(v, key, len);
    }
    if (!yyjson_is_arr(v) || len == 0 || len > 9)
        return NULL;
    for (size_t i = 0; i < len; i++) {
        if (key[i] < '0' || key[i] > '9')
            return NULL;
        index = index * 10 + (size_t)(key[i] - '0');
    }
    build_work(s->b, MIN(index, yyjson_arr_size(v)) / 4);
    return yyjson_arr_get(v, index);
}

static int derived_target(struct schema *s, struct place ref, const char *digits,
                          struct place *out) {
    uint64_t n = 0;

    for (; *digits >= '0' && *digits <= '9' && n < s->n_targets; digits++)
        n = n * 10 + (uint64_t)(*digits - '0');
    if (*digits || n >= s->n_targets)
        return schema_unsupported(s, ref.path,
                                  "only references inside the schema (\"#/...\") are supported");
    *out = s->target[n];
    return 0;
}

static bool is_text(yyjson_val *v, const char *text, size_t len) {
    return yyjson_is_str(v) && json_len(v) == len && memcmp(json_text(v), text, len) == 0;
}

/* Returns whether @v names itself @name ("#node") by "$anchor", or in old drafts by "$id" or
 * "id". */
static bool ref_has_name(yyjson_val *v, const char *name, size_t len) {
    return is_text(yyjson_obj_get(v, "$anchor"), name + 1, len - 1) ||
           is_text(yyjson_obj_get(v, "$id"), name, len) ||
           is_text(yyjson_obj_get(v, "id"), name, len);
}

static int named_target(struct schema *s, struct place ref, const char *name, size_t len,
                        struct place *out) {
    yyjson_val *end = json_next(s->root), *found = NULL;

    /* Visits all values of the document, which lie one behind the other. */
    for (yyjson_val *v = s->root; v < end; v++) {
        if (!yyjson_is_obj(v) || !ref_has_name(v, name, len))
            continue;
        if (found)
            return schema_unsupported(s, ref.path, "'%.*s' is defined twice", (int)MIN(len, 80u),
                                      name);
        found = v;
    }
    if (!found)
        return schema_invalid(s, ref.path, "'%.*s' does not exist in this schema",
                              (int)MIN(len, 80u), name);
    *out = (struct place){found, schema_path(s, s->root_path, name, len)};
    return build_work(s->b, 4 * (uint64_t)(end - s->root));
}

/* Returns the part of the reference @p that is behind the URI of this document, if it begins with
 * that, or else @p. */
static const char *without_own_uri(const struct schema *s, const char *p, size_t *len) {
    yyjson_val *id = yyjson_obj_get(s->root, "$id");

    id = id ? id : yyjson_obj_get(s->root, "id");
    size_t n = yyjson_is_str(id) ? json_len(id) : 0;

    n -= n && json_text(id)[n - 1] == '#';
    if (n == 0 || *len < n || memcmp(p, json_text(id), n) != 0)
        return p;
    if (*len == n) {
        *len = 1;
        return "#";
    }
    if (p[n] != '#')
        return p;
    *len -= n;
    return p + n;
}

bool schema_has_refs(struct schema *s, yyjson_val *v) {
    yyjson_val *end = json_next(v);

    if (build_work(s->b, (uint64_t)(end - v)) < 0)
        return true;
    for (; v < end; v++) {
        if (is_text(v, "$ref", 4))
            return true;
    }
    return false;
}

/* Returns the path of the step @key[@n] from @at; @text[@len] is how the reference writes it. */
static const struct path *step_path(struct schema *s, struct place at, const char *text, size_t len,
                                    const char *key, size_t n) {
    if (yyjson_is_arr(at.v))
        return schema_path_index(s, at.path, strtoul(text, NULL, 10));
    if (n != len) /* it has escapes */
        text = arena_strndup(&s->b->arena, key, n);
    if (text)
        return schema_path(s, at.path, text, n);
    return at.path;
}

int schema_resolve(struct schema *s, struct place ref, struct place *out) {
    const char *p = json_text(ref.v);
    size_t len = json_len(ref.v);
    char key[POINTER_MAX];

    if (!p)
        return schema_invalid(s, ref.path, "a reference must be a string");
    if (len > 1 && p[0] == OWN[0])
        return derived_target(s, ref, p + 1, out);
    p = without_own_uri(s, p, &len);
    if (len > 1 && p[0] == '#' && p[1] != '/')
        return named_target(s, ref, p, len, out);
    if (len == 0 || p[0] != '#' || len > POINTER_MAX)
        return schema_unsupported(s, ref.path,
                                  "only references inside the schema (\"#/...\") are supported");
    *out = (struct place){s->root, s->root_path};
    for (size_t i = 1; i < len;) {
        size_t used;
        long n = read_step(p + i + 1, len - i - 1, key, &used);

        if (n < 0)
            return schema_invalid(
                s, ref.path,
                "the JSON pointer is malformed: \"~\" stands before 0 or 1, and %% "
                "before two hexadecimal digits");
        out->path = step_path(s, *out, p + i + 1, used, key, (size_t)n);
        out->v = ref_step_into(s, out->v, key, (size_t)n);
        if (!out->v)
            return schema_invalid(s, ref.path, "'%.80s' does not exist in this schema", p);
        i += 1 + used;
    }
    assert(out->v);
    return build_work(s->b, 1 + len);
}
