/*
 * facets - the keywords of a schema's parts, merged: the larger minimum, the smaller maximum, the types that all of them
 * allow. Keywords that hold schemas (properties, items) stay in their parts, since what they say about one member or item is
 * looked up when that is lowered.
 *
 * The table lists every keyword of every draft that can make a value invalid. One that is not supported is refused, since
 * leaving it out would let invalid values through; a word that is not in the table is an annotation and cannot.
 */

#include "text/grammar/schema.h"

#include <errno.h>
#include <string.h>

typedef int take_fn(struct schema *s, struct facets *f, struct place at);

static int read_count(struct schema *s, struct place at, uint32_t *out) {
    struct decimal d;
    uint64_t n = 0;

    if (!yyjson_is_raw(at.v) || decimal_read(&d, yyjson_get_raw(at.v), yyjson_get_len(at.v)) < 0 ||
        d.negative || d.n_frac)
        return schema_invalid(s, at.path, "this must be a whole number that is not negative");
    if (d.n_int > 9)
        return build_too_complex(s->b, "a count of %d digits is too large", d.n_int);
    for (int i = 0; i < d.n_int; i++)
        n = n * 10 + (uint64_t)(d.digit_int[i] - '0');
    *out = (uint32_t)n;
    return 0;
}

static int take_min(struct schema *s, struct place at, uint32_t *field) {
    uint32_t n;
    int r = read_count(s, at, &n);

    if (r == 0)
        *field = MAX(*field, n);
    return r;
}

static int take_max(struct schema *s, struct place at, uint32_t *field) {
    uint32_t n;
    int r = read_count(s, at, &n);

    if (r == 0)
        *field = MIN(*field, n);
    return r;
}

static int take_min_length(struct schema *s, struct facets *f, struct place at) {
    f->lengths = at;
    return take_min(s, at, &f->min_length);
}

static int take_max_length(struct schema *s, struct facets *f, struct place at) {
    f->lengths = at;
    return take_max(s, at, &f->max_length);
}

static int take_min_items(struct schema *s, struct facets *f, struct place at) {
    return take_min(s, at, &f->min_items);
}

static int take_max_items(struct schema *s, struct facets *f, struct place at) {
    return take_max(s, at, &f->max_items);
}

static int take_min_members(struct schema *s, struct facets *f, struct place at) {
    return take_min(s, at, &f->min_members);
}

static int take_max_members(struct schema *s, struct facets *f, struct place at) {
    return take_max(s, at, &f->max_members);
}

static int take_bound(struct schema *s, struct place at, struct bound *b, bool lower, bool strict) {
    struct decimal d;

    if (!yyjson_is_raw(at.v))
        return schema_invalid(s, at.path, "this must be a number");
    if (decimal_read(&d, yyjson_get_raw(at.v), yyjson_get_len(at.v)) < 0)
        return schema_unsupported(s, at.path, "a number with so many digits");
    int c = b->set ? decimal_compare(&d, &b->x) : 0;

    if (!b->set || (lower ? c > 0 : c < 0))
        *b = (struct bound){.set = true, .strict = strict, .x = d};
    else if (c == 0)
        b->strict = b->strict || strict;
    return 0;
}

static int take_minimum(struct schema *s, struct facets *f, struct place at) {
    return take_bound(s, at, &f->lower, true, false);
}

static int take_maximum(struct schema *s, struct facets *f, struct place at) {
    return take_bound(s, at, &f->upper, false, false);
}

static int take_above(struct schema *s, struct facets *f, struct place at) {
    return take_bound(s, at, &f->lower, true, true);
}

static int take_below(struct schema *s, struct facets *f, struct place at) {
    return take_bound(s, at, &f->upper, false, true);
}

static unsigned type_named(const char *name) {
    static const struct {
        const char *name;
        unsigned types;
    } NAMES[] = {
        {"null", T_NULL},     {"boolean", T_BOOL}, {"integer", T_INT},   {"number", T_INT | T_REAL},
        {"string", T_STRING}, {"array", T_ARRAY},  {"object", T_OBJECT},
    };

    for (size_t i = 0; name && i < ARRAY_SIZE(NAMES); i++) {
        if (strcmp(name, NAMES[i].name) == 0)
            return NAMES[i].types;
    }
    return 0;
}

static int take_type(struct schema *s, struct facets *f, struct place at) {
    unsigned types = 0;
    yyjson_val *v;
    size_t i, n;

    if (yyjson_is_str(at.v))
        types = type_named(yyjson_get_str(at.v));
    yyjson_arr_foreach(at.v, i, n, v) {
        unsigned one = type_named(yyjson_get_str(v));

        if (!one)
            return schema_invalid(s, at.path, "an unknown type");
        types |= one;
    }
    if (!types)
        return schema_invalid(s, at.path, "an unknown type");
    f->types &= types;
    f->typed = true;
    return 0;
}

static int add_values(struct schema *s, struct facets *f, struct place at, bool is_const) {
    bool *flags = arena_alloc_array(&s->b->arena, f->n_values + 1, sizeof(*flags));

    if (!flags)
        return build_no_memory(s->b);
    if (f->n_values)
        memcpy(flags, f->value_is_const, f->n_values * sizeof(*flags));
    flags[f->n_values] = is_const;
    f->value_is_const = flags;
    return places_add(s, &f->value, &f->n_values, &f->cap_values, at);
}

static int take_enum(struct schema *s, struct facets *f, struct place at) {
    if (!yyjson_is_arr(at.v) || yyjson_arr_size(at.v) == 0)
        return schema_invalid(s, at.path, "this must be an array of at least one value");
    return add_values(s, f, at, false);
}

static int take_const(struct schema *s, struct facets *f, struct place at) {
    return add_values(s, f, at, true);
}

static int take_one(struct schema *s, struct place at, struct place *field) {
    if (!yyjson_is_str(at.v))
        return schema_invalid(s, at.path, "this must be a string");
    if (field->v && !yyjson_equals(field->v, at.v))
        return schema_unsupported(s, at.path, "two different ones for one value");
    *field = at;
    return 0;
}

static int take_pattern(struct schema *s, struct facets *f, struct place at) {
    return take_one(s, at, &f->pattern);
}

/* Formats of numbers are ranges or say nothing; those of strings are left to lower_string(). */
static int take_format(struct schema *s, struct facets *f, struct place at) {
    static const struct {
        const char *name, *min, *max;
    } INTS[] = {
        {"int8", "-128", "127"},
        {"int16", "-32768", "32767"},
        {"int32", "-2147483648", "2147483647"},
        {"int64", "-9223372036854775808", "9223372036854775807"},
        {"uint8", "0", "255"},
        {"uint16", "0", "65535"},
        {"uint32", "0", "4294967295"},
        {"uint64", "0", "18446744073709551615"},
        {"uint", "0", "18446744073709551615"},
        {"int", "-9223372036854775808", "9223372036854775807"},
    };
    const char *name = yyjson_get_str(at.v);

    if (!name)
        return schema_invalid(s, at.path, "this must be a string");
    if (strcmp(name, "float") == 0 || strcmp(name, "double") == 0)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(INTS); i++) {
        struct bound lower = {.set = true}, upper = {.set = true};

        if (strcmp(name, INTS[i].name) != 0)
            continue;
        decimal_read(&lower.x, INTS[i].min, strlen(INTS[i].min));
        decimal_read(&upper.x, INTS[i].max, strlen(INTS[i].max));
        if (!f->lower.set || decimal_compare(&f->lower.x, &lower.x) < 0)
            f->lower = lower;
        if (!f->upper.set || decimal_compare(&f->upper.x, &upper.x) > 0)
            f->upper = upper;
        return 0;
    }
    f->implied |= T_STRING;
    return take_one(s, at, &f->format);
}

static int take_multiple(struct schema *s, struct facets *f, struct place at) {
    struct decimal d, one = {.n_int = 1, .digit_int = "1"};

    if (!yyjson_is_raw(at.v) || decimal_read(&d, yyjson_get_raw(at.v), yyjson_get_len(at.v)) < 0 ||
        decimal_compare(&d, &one) != 0)
        return schema_unsupported(s, at.path, "only multipleOf 1 is supported");
    f->types &= (unsigned)~T_REAL;
    return 0;
}

static int take_unique(struct schema *s, struct facets *f, struct place at) {
    if (!yyjson_is_true(at.v))
        return 0;
    f->unique = true;
    f->unique_at = at;
    return 0;
}

static int take_unevaluated(struct schema *s, struct facets *f, struct place at) {
    if (yyjson_is_true(at.v))
        return 0;
    if (!yyjson_is_false(at.v))
        return schema_unsupported(s, at.path, "only true and false are supported");
    f->closed = true;
    return 0;
}

/* unevaluatedProperties sees what its own schema and those inside it say of properties, and not what the schemas
 * around it say. Here all parts are one list; so it must be the outermost, or alone in speaking of properties. */
static int check_closed(struct schema *s, const struct parts *parts, uint32_t part,
                        struct place at) {
    bool others = false;

    for (uint32_t i = 0; i < parts->n; i++)
        others |= i != part && (yyjson_obj_get(parts->v[i].v, "properties") ||
                                yyjson_obj_get(parts->v[i].v, "additionalProperties"));
    if (others && (part > 0 || parts->n_roots > 1))
        return schema_unsupported(s, at.path,
                                  "false is only supported in a schema that has all others of the "
                                  "object inside it");
    return 0;
}

static int expect_object(struct schema *s, struct facets *f, struct place at) {
    return yyjson_is_obj(at.v) ? 0 : schema_invalid(s, at.path, "this must be an object");
}

static int check_required(struct schema *s, struct facets *f, struct place at) {
    yyjson_val *v;
    size_t i, n;

    if (!yyjson_is_arr(at.v))
        return schema_invalid(s, at.path, "this must be an array of strings");
    yyjson_arr_foreach(at.v, i, n, v) {
        if (!yyjson_is_str(v))
            return schema_invalid(s, at.path, "this must be an array of strings");
    }
    return 0;
}

static int check_items(struct schema *s, struct facets *f, struct place at) {
    if (yyjson_is_arr(at.v))
        return schema_unsupported(s, at.path, "a list here is from an old draft; use prefixItems");
    return 0;
}

static int check_prefix(struct schema *s, struct facets *f, struct place at) {
    return yyjson_is_arr(at.v) ? 0 : schema_invalid(s, at.path, "this must be an array of schemas");
}

static int refuse(struct schema *s, struct facets *f, struct place at) {
    return schema_unsupported(s, at.path, "this keyword is not supported");
}

static int refuse_inner_id(struct schema *s, struct facets *f, struct place at) {
    if (at.path->up == s->root_path)
        return 0;
    return refuse(s, f, at);
}

static int pass(struct schema *s, struct facets *f, struct place at) {
    return 0; /* handled elsewhere */
}

/* All keywords that constrain values, of any draft. What is not here is an annotation. */
static const struct keyword {
    const char *name;
    take_fn *take;
    unsigned implies;
} KEYWORDS[] = {
    {"$id", refuse_inner_id, 0},
    {"$dynamicRef", refuse, 0},
    {"$recursiveRef", refuse, 0},
    {"$ref", pass, 0},
    {"additionalItems", refuse, 0},
    {"additionalProperties", pass, T_OBJECT},
    {"allOf", pass, 0},
    {"anyOf", pass, 0},
    {"const", take_const, 0},
    {"contains", refuse, 0},
    {"dependencies", refuse, 0},
    {"dependentRequired", refuse, 0},
    {"dependentSchemas", refuse, 0},
    {"disallow", refuse, 0},
    {"divisibleBy", refuse, 0},
    {"else", refuse, 0},
    {"enum", take_enum, 0},
    {"exclusiveMaximum", take_below, T_INT | T_REAL},
    {"exclusiveMinimum", take_above, T_INT | T_REAL},
    {"extends", refuse, 0},
    {"format", take_format, 0},
    {"if", refuse, 0},
    {"items", check_items, T_ARRAY},
    {"maxContains", refuse, 0},
    {"maxItems", take_max_items, T_ARRAY},
    {"maxLength", take_max_length, T_STRING},
    {"maxProperties", take_max_members, T_OBJECT},
    {"maximum", take_maximum, T_INT | T_REAL},
    {"minContains", refuse, 0},
    {"minItems", take_min_items, T_ARRAY},
    {"minLength", take_min_length, T_STRING},
    {"minProperties", take_min_members, T_OBJECT},
    {"minimum", take_minimum, T_INT | T_REAL},
    {"multipleOf", take_multiple, T_INT | T_REAL},
    {"not", refuse, 0},
    {"oneOf", pass, 0},
    {"pattern", take_pattern, T_STRING},
    {"patternProperties", refuse, 0},
    {"prefixItems", check_prefix, T_ARRAY},
    {"properties", expect_object, T_OBJECT},
    {"propertyNames", pass, T_OBJECT},
    {"required", check_required, T_OBJECT},
    {"then", refuse, 0},
    {"type", take_type, 0},
    {"unevaluatedItems", refuse, 0},
    {"unevaluatedProperties", take_unevaluated, T_OBJECT},
    {"uniqueItems", take_unique, T_ARRAY},
};

static const struct keyword *find_keyword(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(KEYWORDS); i++) {
        if (strcmp(KEYWORDS[i].name, name) == 0)
            return &KEYWORDS[i];
    }
    return NULL;
}

int facets_gather(struct schema *s, const struct parts *parts, struct facets *f) {
    *f = (struct facets){
        .parts = parts,
        .types = T_ALL,
        .max_length = NO_MAX,
        .max_items = NO_MAX,
        .max_members = NO_MAX,
    };
    for (uint32_t i = 0; i < parts->n; i++) {
        yyjson_val *key, *value;
        size_t k, n;

        yyjson_obj_foreach(parts->v[i].v, k, n, key, value) {
            const struct keyword *word = find_keyword(yyjson_get_str(key));
            int r = build_work(s->b, 8);

            if (r < 0)
                return r;
            if (!word)
                continue;
            f->implied |= word->implies;
            struct place at = {value,
                               schema_path(s, parts->v[i].path, word->name, strlen(word->name))};
            r = word->take(s, f, at);
            if (r == 0 && word->take == take_unevaluated && yyjson_is_false(value))
                r = check_closed(s, parts, i, at);
            if (r < 0)
                return r;
        }
    }
    if (parts->never)
        f->types = 0;
    if (!f->typed && f->implied)
        f->types &= f->implied;
    return 0;
}
