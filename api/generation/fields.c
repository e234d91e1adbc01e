/* Readers of plain values. */

#include "api/generation/fields.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/json_read.h"
#include "base/result.h"
#include "base/try.h"

int field_refuse(const struct field *f, struct err *err) {
    return err_set_code(err, 400, "invalid_value", f->name, "%s must be %s.", f->name, f->is);
}

static void *fields_member(struct gen_request *r, const struct field *f) {
    return (char *)r + f->at;
}

READER(field_bool) {
    bool b = yyjson_get_bool(v);

    if (!yyjson_is_bool(v))
        return field_refuse(f, err);
    memcpy(fields_member(r, f), &b, sizeof(b));
    return 0;
}

/* Reads a flag whose member has the opposite meaning. */
READER(field_not) {
    bool b = !yyjson_get_bool(v);

    if (!yyjson_is_bool(v))
        return field_refuse(f, err);
    memcpy(fields_member(r, f), &b, sizeof(b));
    return 0;
}

void field_number(yyjson_val *v) {
    const char *text = json_cstr(v), *end = NULL;
    yyjson_val number;

    if (text)
        end = yyjson_read_number(text, &number, 0, NULL, NULL);
    if (end && !*end)
        *v = number;
}

int field_whole(const struct field *f, yyjson_val *v, int64_t *out, struct err *err) {
    field_number(v);
    double d = yyjson_get_num(v);

    if (!yyjson_is_num(v))
        return field_refuse(f, err);
    if (!(d >= f->lo && d <= f->hi))
        return err_set_code(err, 400, "invalid_value", f->name, "%s must be between %.0f and %.0f.",
                            f->name, f->lo, f->hi);
    if (d != floor(d))
        return field_refuse(f, err);
    *out = (int64_t)d;
    return 0;
}

READER(field_uint) {
    int64_t i = 0;

    TRY(field_whole(f, v, &i, err));
    uint32_t u = (uint32_t)i;
    memcpy(fields_member(r, f), &u, sizeof(u));
    return 0;
}

int field_members(struct gen_request *r, const struct model *m, const struct field *f,
                  const struct field *inner, size_t n, yyjson_val *v, struct err *err) {
    if (!yyjson_is_obj(v))
        return field_refuse(f, err);
    for (size_t i = 0; i < n; i++) {
        yyjson_val *o = json_given(v, inner[i].name + strlen(f->name) + 1);

        if (o)
            TRY(inner[i].parse(r, m, &inner[i], o, err));
    }
    return 0;
}

/* Copies @v into memory that outlives the body. */
int field_copy(struct gen_request *r, yyjson_val *v, struct str *out) {
    size_t len = json_len(v);
    const char *s = arena_strndup(&r->arena, json_text(v), len);

    *out = (struct str){s, (uint32_t)len};
    return enomem_unless(s);
}

READER(field_string) {
    struct str s;

    if (!yyjson_is_str(v) || json_len(v) > f->hi)
        return field_refuse(f, err);
    TRY(field_copy(r, v, &s));
    memcpy(fields_member(r, f), &s, sizeof(s));
    return 0;
}

READER(field_array) {
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) < f->lo || yyjson_arr_size(v) > f->hi)
        return field_refuse(f, err);
    memcpy(fields_member(r, f), &v, sizeof(v));
    return 0;
}

READER(field_value) {
    memcpy(fields_member(r, f), &v, sizeof(v));
    return 0;
}
