/* ---- the validator */

#include "tests/support/schemas.h"

#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

struct validator {
    yyjson_val *root;
    int depth;
};

static bool valid(struct validator *v, yyjson_val *schema, yyjson_val *x);

static bool is_type(const char *name, yyjson_val *x) {
    if (strcmp(name, "integer") == 0)
        return yyjson_is_num(x) && floor(yyjson_get_num(x)) == yyjson_get_num(x);
    if (strcmp(name, "number") == 0)
        return yyjson_is_num(x);
    if (strcmp(name, "boolean") == 0)
        return yyjson_is_bool(x);
    if (strcmp(name, "string") == 0)
        return yyjson_is_str(x);
    if (strcmp(name, "array") == 0)
        return yyjson_is_arr(x);
    if (strcmp(name, "object") == 0)
        return yyjson_is_obj(x);
    return yyjson_is_null(x);
}

/* "type" is one name or a list of them. */
static bool has_type(yyjson_val *type, yyjson_val *x) {
    size_t i, n;
    yyjson_val *one;

    if (yyjson_is_str(type))
        return is_type(yyjson_get_str(type), x);
    yyjson_arr_foreach(type, i, n, one) {
        if (is_type(yyjson_get_str(one), x))
            return true;
    }
    return false;
}

static bool same(yyjson_val *x, yyjson_val *y) {
    if (yyjson_is_num(x) && yyjson_is_num(y))
        return yyjson_get_num(x) == yyjson_get_num(y);
    return yyjson_equals(x, y);
}

static double num(yyjson_val *schema, const char *key, double otherwise) {
    yyjson_val *v = yyjson_obj_get(schema, key);

    return v ? yyjson_get_num(v) : otherwise;
}

static size_t n_chars(yyjson_val *x) {
    size_t n = 0;

    for (size_t i = 0; i < yyjson_get_len(x); i++)
        n += (yyjson_get_str(x)[i] & 0xc0) != 0x80;
    return n;
}

static bool matches(const char *pattern, yyjson_val *x) {
    regex_t re;
    regmatch_t m = {.rm_so = 0, .rm_eo = (regoff_t)yyjson_get_len(x)};

    if (regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        abort();
    int r = regexec(&re, yyjson_get_str(x), 1, &m, REG_STARTEND);

    regfree(&re);
    return r == 0;
}

static bool valid_object(struct validator *v, yyjson_val *schema, yyjson_val *x) {
    yyjson_val *properties = yyjson_obj_get(schema, "properties");
    yyjson_val *more = yyjson_obj_get(schema, "additionalProperties"), *key, *value;
    size_t i, n;

    yyjson_arr_foreach(yyjson_obj_get(schema, "required"), i, n, value) {
        if (!yyjson_obj_get(x, yyjson_get_str(value)))
            return false;
    }
    yyjson_obj_foreach(x, i, n, key, value) {
        yyjson_val *p = yyjson_obj_getn(properties, yyjson_get_str(key), yyjson_get_len(key));

        if (!p)
            p = more;
        if (p && !valid(v, p, value))
            return false;
    }
    n = yyjson_obj_size(x);
    return (double)n >= num(schema, "minProperties", 0) &&
           (double)n <= num(schema, "maxProperties", 1e9);
}

static bool valid_array(struct validator *v, yyjson_val *schema, yyjson_val *x) {
    yyjson_val *prefix = yyjson_obj_get(schema, "prefixItems"),
               *items = yyjson_obj_get(schema, "items");
    yyjson_val *value;
    size_t i, n;

    yyjson_arr_foreach(x, i, n, value) {
        yyjson_val *s = i < yyjson_arr_size(prefix) ? yyjson_arr_get(prefix, i) : items;

        if (s && !valid(v, s, value))
            return false;
    }
    n = yyjson_arr_size(x);
    for (i = 0; i < n && yyjson_is_true(yyjson_obj_get(schema, "uniqueItems")); i++) {
        for (size_t k = 0; k < i; k++) {
            if (same(yyjson_arr_get(x, k), yyjson_arr_get(x, i)))
                return false;
        }
    }
    return (double)n >= num(schema, "minItems", 0) && (double)n <= num(schema, "maxItems", 1e9);
}

static int n_valid(struct validator *v, yyjson_val *list, yyjson_val *x) {
    yyjson_val *s;
    size_t i, n;
    int k = 0;

    yyjson_arr_foreach(list, i, n, s) {
        k += valid(v, s, x);
    }
    return k;
}

static bool valid_values(yyjson_val *schema, yyjson_val *x) {
    yyjson_val *list = yyjson_obj_get(schema, "enum"), *one = yyjson_obj_get(schema, "const"),
               *item;
    bool found = !list;
    size_t i, n;

    yyjson_arr_foreach(list, i, n, item) {
        found = found || same(item, x);
    }
    return found && (!one || same(one, x));
}

static bool valid(struct validator *v, yyjson_val *schema, yyjson_val *x) {
    yyjson_val *type = yyjson_obj_get(schema, "type"), *ref = yyjson_obj_get(schema, "$ref");
    yyjson_val *all = yyjson_obj_get(schema, "allOf"), *any = yyjson_obj_get(schema, "anyOf");
    yyjson_val *one = yyjson_obj_get(schema, "oneOf"), *pattern = yyjson_obj_get(schema, "pattern");

    if (yyjson_is_bool(schema))
        return yyjson_get_bool(schema);
    if (type && !has_type(type, x))
        return false;
    if (ref && !valid(v, yyjson_ptr_get(v->root, yyjson_get_str(ref) + 1), x))
        return false;
    if ((all && n_valid(v, all, x) != (int)yyjson_arr_size(all)) ||
        (any && n_valid(v, any, x) == 0) || (one && n_valid(v, one, x) != 1) ||
        !valid_values(schema, x))
        return false;
    if (yyjson_is_num(x)) {
        double d = yyjson_get_num(x);

        return d >= num(schema, "minimum", -INFINITY) && d <= num(schema, "maximum", INFINITY) &&
               d > num(schema, "exclusiveMinimum", -INFINITY) &&
               d < num(schema, "exclusiveMaximum", INFINITY);
    }
    if (yyjson_is_str(x))
        return (double)n_chars(x) >= num(schema, "minLength", 0) &&
               (double)n_chars(x) <= num(schema, "maxLength", 1e9) &&
               (!pattern || matches(yyjson_get_str(pattern), x));
    if (yyjson_is_obj(x))
        return valid_object(v, schema, x);
    return !yyjson_is_arr(x) || valid_array(v, schema, x);
}

bool schema_allows(const char *schema, size_t n_schema, const char *text, size_t n_text) {
    yyjson_doc *s = yyjson_read(schema, n_schema, 0), *x = yyjson_read(text, n_text, 0);
    struct validator v = {.root = yyjson_doc_get_root(s)};
    bool ok = s && x && valid(&v, v.root, yyjson_doc_get_root(x));

    yyjson_doc_free(s);
    yyjson_doc_free(x);
    return ok;
}

/* ---- random schemas */

static uint32_t below(struct schema_writer *w, uint32_t n) {
    return rng_below(&w->r, n);
}

static void write_schema(struct schema_writer *w, int depth);

static void write_number(struct schema_writer *w) {
    bool whole = below(w, 2);
    int lo = (int)below(w, 400) - 200, hi = lo + (int)below(w, 300);

    buf_printf(&w->b, R"({"type":"%s")", whole ? "integer" : "number");
    if (below(w, 2))
        buf_printf(&w->b, R"(,"%s":%g)", below(w, 2) ? "minimum" : "exclusiveMinimum", lo / 4.0);
    if (below(w, 2))
        buf_printf(&w->b, R"(,"%s":%g)", below(w, 2) ? "maximum" : "exclusiveMaximum",
                   hi / 4.0 + 1.5);
    buf_add_char(&w->b, '}');
}

static void write_string(struct schema_writer *w) {
    static const char *const PATTERNS[] = {"^[a-f]+$",     "b{2,4}", "^(ab|cd)*x?$",
                                           "^[^a]{1,12}$", "^a|b$",  "^[0-9]{3}-[0-9]{4}$"};
    uint32_t lo = below(w, 4);

    buf_add_str(&w->b, R"({"type":"string")");
    if (below(w, 3) == 0) {
        buf_printf(&w->b, R"(,"pattern":"%s")", PATTERNS[below(w, ARRAY_SIZE(PATTERNS))]);
    } else {
        if (below(w, 2))
            buf_printf(&w->b, R"(,"minLength":%u)", lo);
        if (below(w, 2))
            buf_printf(&w->b, R"(,"maxLength":%u)", lo + below(w, 30));
    }
    buf_add_char(&w->b, '}');
}

static void write_values(struct schema_writer *w) {
    static const char *const VALUES[] = {"1",
                                         "2.50",
                                         R"("a")",
                                         R"("name")",
                                         "null",
                                         "true",
                                         R"([1,")"
                                         "\xc3\xa9"
                                         R"("])",
                                         R"({"a":{"b":[]}})",
                                         R"("\n\"")",
                                         "-7",
                                         "{}"};
    uint32_t n = 1 + below(w, 4), first = below(w, ARRAY_SIZE(VALUES));

    buf_add_str(&w->b, R"({"enum":[)");
    for (uint32_t i = 0; i < n; i++)
        buf_printf(&w->b, "%s%s", i ? "," : "", VALUES[(first + 3 * i) % ARRAY_SIZE(VALUES)]);
    buf_add_str(&w->b, "]}");
}

static void write_members(struct schema_writer *w, int depth) {
    static const char *const NAMES[] = {"a", "ab", "abc", "name", "id", R"(\")", "\xc3\xa9", "na"};
    uint32_t n = below(w, 5), first = below(w, ARRAY_SIZE(NAMES));
    bool any_required = false;

    buf_add_str(&w->b, R"("type":"object","properties":{)");
    for (uint32_t i = 0; i < n; i++) {
        buf_printf(&w->b, R"(%s"%s":)", i ? "," : "", NAMES[(first + i) % ARRAY_SIZE(NAMES)]);
        write_schema(w, depth - 1);
    }
    buf_add_str(&w->b, R"(},"required":[)");
    for (uint32_t i = 0; i < n; i++) {
        if (below(w, 2) == 0)
            continue;
        buf_printf(&w->b, R"(%s"%s")", any_required ? "," : "",
                   NAMES[(first + i) % ARRAY_SIZE(NAMES)]);
        any_required = true;
    }
    buf_add_char(&w->b, ']');
    uint32_t more = below(w, 4);

    if (more == 0)
        buf_add_str(&w->b, R"(,"additionalProperties":false)");
    if (more == 1) {
        buf_add_str(&w->b, R"(,"additionalProperties":)");
        write_schema(w, depth - 2);
    }
    if (below(w, 6) == 0)
        buf_printf(&w->b, R"(,"minProperties":%u)", below(w, 3));
    if (below(w, 6) == 0)
        buf_printf(&w->b, R"(,"maxProperties":%u)", 1 + below(w, 4));
}

static void write_object(struct schema_writer *w, int depth) {
    buf_add_char(&w->b, '{');
    write_members(w, depth);
    if (below(w, 5) == 0) {
        buf_add_str(&w->b, R"(,"allOf":[{)");
        write_members(w, depth - 1);
        buf_add_str(&w->b, "}]");
    }
    buf_add_char(&w->b, '}');
}

static void write_array(struct schema_writer *w, int depth) {
    uint32_t n = below(w, 3), lo = below(w, 3);

    buf_add_str(&w->b, R"({"type":"array")");
    for (uint32_t i = 0; i < n; i++) {
        buf_add_str(&w->b, i ? "," : R"(,"prefixItems":[)");
        write_schema(w, depth - 1);
    }
    if (n)
        buf_add_char(&w->b, ']');
    if (below(w, 4)) {
        buf_add_str(&w->b, R"(,"items":)");
        write_schema(w, depth - 1);
    }
    if (n == 0 && below(w, 3) == 0)
        buf_add_str(&w->b, R"(,"uniqueItems":true)");
    if (below(w, 2))
        buf_printf(&w->b, R"(,"minItems":%u)", lo);
    if (below(w, 2))
        buf_printf(&w->b, R"(,"maxItems":%u)", lo + below(w, 12));
    buf_add_char(&w->b, '}');
}

static void write_branches(struct schema_writer *w, int depth, const char *word) {
    buf_printf(&w->b, R"({"%s":[)", word);
    write_schema(w, depth - 1);
    buf_add_char(&w->b, ',');
    write_schema(w, depth - 1);
    buf_add_str(&w->b, "]}");
}

static void write_schema(struct schema_writer *w, int depth) {
    uint32_t kind = below(w, depth > 0 ? 12 : 5);

    switch (kind) {
    case 0:
        write_number(w);
        return;
    case 1:
        write_string(w);
        return;
    case 2:
        write_values(w);
        return;
    case 3:
        buf_add_str(&w->b, below(w, 2) ? R"({"type":"boolean"})" : R"({"type":"null"})");
        return;
    case 4:
        buf_printf(&w->b, R"({"$ref":"#/$defs/%c"})", "xyz"[below(w, 3)]);
        return;
    case 5:
    case 6:
        write_array(w, depth);
        return;
    case 7:
        write_branches(w, depth, "anyOf");
        return;
    case 8:
        write_branches(w, depth, below(w, 2) ? "oneOf" : "allOf");
        return;
    default:
        write_object(w, depth);
    }
}

void schema_write(struct schema_writer *w) {
    buf_clear(&w->b);
    buf_add_str(&w->b, R"({"allOf":[)");
    write_schema(w, 3);
    buf_add_str(&w->b, R"(],"$defs":{)");
    for (int i = 0; i < 3; i++) {
        buf_printf(&w->b, R"(%s"%c":)", i ? "," : "", "xyz"[i]);
        write_schema(w, 2);
    }
    buf_add_str(&w->b, "}}");
}
