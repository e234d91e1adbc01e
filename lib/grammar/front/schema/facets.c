/*
 * facets - the keywords of a schema's parts, merged: the larger minimum, the smaller maximum, the
 * types that all of them allow. Keywords that hold schemas (properties, items) stay in their parts:
 * what they say about one member or item is looked up when that member or item is translated.
 *
 * The table lists every keyword of every draft that can make a value invalid. A keyword that is not
 * supported is refused, since ignoring it would let invalid values through; a word that is not in
 * the table is an annotation, which can be ignored.
 */

#include <assert.h>
#include <string.h>

#include "base/json_read.h"
#include "base/try.h"
#include "grammar/front/schema/schema.h"

/* Reads the keyword whose value is @at into @f; @how: its variant, from the table of keywords. */
typedef int read_fn(struct schema *s, struct facets *f, struct place at, size_t how);

int count_read(struct schema *s, struct place at, uint32_t *out) {
    struct decimal d;
    uint64_t n = 0;

    if (!yyjson_is_raw(at.v) || decimal_read(&d, json_digits(at.v), json_n_digits(at.v)) < 0 ||
        d.negative || d.n_frac)
        return schema_invalid(s, at.path, "this must be a whole number of at least 0");
    if (d.n_int > 9)
        return build_too_complex(s->b, "a count of %d digits is too large", d.n_int);
    for (int i = 0; i < d.n_int; i++)
        n = n * 10 + (uint64_t)(d.digit_int[i] - '0');
    *out = (uint32_t)n;
    return 0;
}

/* Raises the minimum, or lowers the maximum, that is at offset @how of the facets. */
static int facets_read_min(struct schema *s, struct facets *f, struct place at, size_t how) {
    uint32_t n, *least = (uint32_t *)((char *)f + how);

    TRY(count_read(s, at, &n));
    *least = MAX(*least, n);
    return 0;
}

static int facets_read_max(struct schema *s, struct facets *f, struct place at, size_t how) {
    uint32_t n, *most = (uint32_t *)((char *)f + how);

    TRY(count_read(s, at, &n));
    *most = MIN(*most, n);
    return 0;
}

enum { LOWER = 1, EXCLUSIVE = 2 };

/* Reads a bound. In draft 4 exclusiveMinimum is a boolean, which excludes the value of minimum
 * itself. */
static int facets_read_bound(struct schema *s, struct facets *f, struct place at, size_t how) {
    bool lower = how & LOWER, strict = how & EXCLUSIVE;
    struct bound *b = lower ? &f->lower : &f->upper;
    struct decimal d;

    if (strict && yyjson_is_bool(at.v))
        return 0;
    if (!yyjson_is_raw(at.v))
        return schema_invalid(s, at.path, "this must be a number");
    if (decimal_read(&d, json_digits(at.v), json_n_digits(at.v)) < 0)
        return schema_unsupported(s, at.path, "numbers with this many digits are not supported");
    strict |=
        yyjson_is_true(yyjson_obj_get(f->part.v, lower ? "exclusiveMinimum" : "exclusiveMaximum"));
    int c = b->set ? decimal_compare(&d, &b->x) : 0;

    if (!b->set || (lower ? c > 0 : c < 0))
        *b = (struct bound){.set = true, .strict = strict, .x = d};
    else if (c == 0)
        b->strict = b->strict || strict;
    return 0;
}

static unsigned type_named(const char *name) {
    static const struct {
        const char *name;
        unsigned types;
    } NAMES[] = {
        {"null", T_NULL},           {"boolean", T_BOOL},      {"integer", T_INT},
        {"number", T_INT | T_REAL}, {"string", T_STRING},     {"array", T_ARRAY},
        {"object", T_OBJECT},       {OWN "fraction", T_REAL}, {"any", T_ALL},
    };

    for (size_t i = 0; name && i < ARRAY_SIZE(NAMES); i++) {
        if (strcmp(name, NAMES[i].name) == 0)
            return NAMES[i].types;
    }
    return 0;
}

int types_read(struct schema *s, struct place at, unsigned *out) {
    unsigned types = 0;

    if (yyjson_is_str(at.v))
        types = type_named(json_cstr(at.v));
    JSON_EACH(v, at.v) {
        unsigned one = type_named(json_cstr(v));

        if (!one)
            return schema_invalid(s, at.path, "unknown type");
        types |= one;
    }
    if (!types)
        return schema_invalid(s, at.path, "unknown type");
    assert((types & ~(unsigned)T_ALL) == 0);
    *out = types;
    return 0;
}

static int facets_read_type(struct schema *s, struct facets *f, struct place at, size_t how) {
    unsigned types;

    TRY(types_read(s, at, &types));
    f->types &= types;
    f->typed = true;
    return 0;
}

static int facets_add_values(struct schema *s, struct facets *f, struct place at, bool is_const) {
    assert(is_const || yyjson_is_arr(at.v));
    if (build_grow(s->b, &f->value_is_const, f->n_values, &f->cap_consts, 4,
                   sizeof(*f->value_is_const)) < 0)
        return s->b->failed;
    f->value_is_const[f->n_values] = is_const;
    return places_add(s, &f->value, &f->n_values, &f->cap_values, at);
}

static int facets_read_enum(struct schema *s, struct facets *f, struct place at, size_t how) {
    if (!yyjson_is_arr(at.v) || yyjson_arr_size(at.v) == 0)
        return schema_invalid(s, at.path, "this must be an array of at least one value");
    return facets_add_values(s, f, at, false);
}

static int facets_read_const(struct schema *s, struct facets *f, struct place at, size_t how) {
    return facets_add_values(s, f, at, true);
}

static int facets_add_text(struct schema *s, struct facets *f, struct place at, int kind) {
    for (uint32_t i = 0; i < f->n_text; i++) {
        if ((int)f->text[i].kind == kind && yyjson_equals(f->text[i].at.v, at.v))
            return 0;
    }
    if (build_grow(s->b, &f->text, f->n_text, &f->cap_text, 4, sizeof(*f->text)) < 0)
        return s->b->failed;
    f->text[f->n_text].at = at;
    f->text[f->n_text++].kind = kind;
    return build_work(s->b, f->n_text);
}

static int facets_read_pattern(struct schema *s, struct facets *f, struct place at, size_t how) {
    if (!yyjson_is_str(at.v))
        return schema_invalid(s, at.path, "this must be a string");
    return facets_add_text(s, f, at, TEXT_PATTERN);
}

/* Formats of numbers are ranges or have no effect; lower_string() handles the formats of
 * strings. */
static int facets_read_format(struct schema *s, struct facets *f, struct place at, size_t how) {
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
    const char *name = json_cstr(at.v);

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
    int r = format_known(s, at);

    if (r <= 0)
        return r;
    f->implied |= T_STRING;
    return facets_add_text(s, f, at, TEXT_FORMAT);
}

static int facets_read_multiple(struct schema *s, struct facets *f, struct place at,
                                size_t negated) {
    struct decimal d, one = {.n_int = 1, .digit_int = "1"};

    if (!yyjson_is_raw(at.v) || decimal_read(&d, json_digits(at.v), json_n_digits(at.v)) < 0 ||
        d.negative || (d.n_int == 0 && d.n_frac == 0))
        return schema_invalid(s, at.path, "this must be a number greater than 0");
    if (decimal_compare(&d, &one) == 0) {
        f->types &= (unsigned)~(negated ? T_INT : T_REAL);
        return 0;
    }
    if (build_grow(s->b, &f->multiple, f->n_multiples, &f->cap_multiples, 1, sizeof(*f->multiple)) <
        0)
        return s->b->failed;
    assert(decimal_compare(&d, &(struct decimal){0}) > 0);
    f->multiple[f->n_multiples++] = (struct multiple){at, negated};
    return build_work(s->b, f->n_multiples);
}

/* Reads the word of logic.c that negates the multipleOf to which its value refers. */
static int facets_read_not_multiple(struct schema *s, struct facets *f, struct place at,
                                    size_t how) {
    TRY(schema_target(s, at, &at));
    return facets_read_multiple(s, f, at, true);
}

/* Reads a word of logic.c that negates the pattern, format or enum to which its value refers. */
static int facets_read_not_text(struct schema *s, struct facets *f, struct place at, size_t kind) {
    TRY(schema_target(s, at, &at));
    return facets_add_text(s, f, at, (int)kind);
}

/* Returns whether @x and @y ask for the same member: the same rule for its name, and any value. */
static int same_some(struct schema *s, struct place x, struct place y, bool *out) {
    static const char *const HOW[] = {"match", "unlike"};

    *out = false;
    TRY(build_work(s->b, 8));
    for (size_t i = 0; i < ARRAY_SIZE(HOW) && !*out; i++) {
        struct place a = schema_at(s, x, HOW[i]), b = schema_at(s, y, HOW[i]);

        if (!a.v || !b.v || !yyjson_is_true(yyjson_obj_get(x.v, "value")) ||
            !yyjson_is_true(yyjson_obj_get(y.v, "value")))
            continue;
        TRY(schema_target(s, a, &a));
        TRY(schema_target(s, b, &b));
        *out = yyjson_equals(a.v, b.v);
    }
    return 0;
}

static int facets_read_some(struct schema *s, struct facets *f, struct place at, size_t how) {
    for (uint32_t i = 0; i < f->n_some; i++) {
        bool same;
        int r = same_some(s, f->some[i], at, &same);

        if (r < 0 || same)
            return r;
    }
    return places_add(s, &f->some, &f->n_some, &f->cap_some, at);
}

static int facets_read_contains(struct schema *s, struct facets *f, struct place at, size_t how) {
    yyjson_val *least = yyjson_obj_get(f->part.v, "minContains");

    if (yyjson_obj_get(f->part.v, "maxContains") ||
        (least && (!yyjson_is_raw(least) || strcmp(json_digits(least), "1") != 0)))
        return schema_unsupported(s, at.path,
                                  "is supported only with minContains 1 and without maxContains");
    return places_add(s, &f->contains, &f->n_contains, &f->cap_contains, at);
}

static int facets_read_unique(struct schema *s, struct facets *f, struct place at, size_t how) {
    if (!yyjson_is_true(at.v))
        return 0;
    f->unique = true;
    f->unique_at = at;
    return 0;
}

static int facets_read_unevaluated(struct schema *s, struct facets *f, struct place at,
                                   size_t how) {
    if (yyjson_is_true(at.v))
        return 0;
    if (!yyjson_is_false(at.v))
        return schema_unsupported(s, at.path, "is supported only as true or false");
    f->closed = true;
    return 0;
}

/* Refuses unevaluatedProperties: false where the list of parts does not show what it applies to. It
 * concerns the properties that neither its own schema nor one inside it describes; descriptions in
 * the schemas around it do not count. The parts are one list, in which that is lost, so its part
 * must be the outermost one, or the only one that describes properties. Nor do descriptions inside
 * a `not` count. Since the negation of a negation becomes a part like any other (logic.c), at most
 * one `not` is allowed, which then shows as a part with that word. */
static int check_closed(struct schema *s, const struct parts *parts, uint32_t part,
                        struct place at) {
    bool others = false, alone = s->n_nots == 0;

    for (uint32_t i = 0; i < parts->n; i++) {
        alone = alone || (s->n_nots == 1 && yyjson_obj_get(parts->v[i].v, "not") &&
                          !yyjson_obj_get(parts->v[i].v, OWN));
        others |= i != part && (yyjson_obj_get(parts->v[i].v, "properties") ||
                                yyjson_obj_get(parts->v[i].v, "additionalProperties"));
    }
    if (!alone)
        return schema_unsupported(s, at.path,
                                  "false is supported together with at most one \"not\"");
    if (others && (part > 0 || parts->n_roots > 1))
        return schema_unsupported(
            s, at.path,
            "false is supported only where no schema around it describes the same object");
    return 0;
}

/* Checks for an object, or an empty list, which PHP writes for an empty object. */
static int expect_object(struct schema *s, struct facets *f, struct place at, size_t how) {
    bool empty = yyjson_is_arr(at.v) && yyjson_arr_size(at.v) == 0;

    if (!yyjson_is_obj(at.v) && !empty)
        return schema_invalid(s, at.path, "this must be an object");
    return 0;
}

/* Checks `required`. Draft 3 writes `required: true` in a property, which later drafts ignore. */
static int check_required(struct schema *s, struct facets *f, struct place at, size_t how) {
    if (yyjson_is_bool(at.v))
        return 0;
    if (!yyjson_is_arr(at.v))
        return schema_invalid(s, at.path, "this must be an array of strings");
    JSON_EACH(v, at.v) {
        if (!yyjson_is_str(v))
            return schema_invalid(s, at.path, "this must be an array of strings");
    }
    return 0;
}

static int check_prefix(struct schema *s, struct facets *f, struct place at, size_t how) {
    if (!yyjson_is_arr(at.v))
        return schema_invalid(s, at.path, "this must be an array of schemas");
    return 0;
}

static int facets_refuse(struct schema *s, struct facets *f, struct place at, size_t how) {
    return schema_unsupported(s, at.path, "this keyword is not supported");
}

/* Checks `$id` or `id`. Below the root such a word changes what references inside its schema mean,
 * so only a schema without references is read. A mere name ("#node") changes nothing. */
static int check_inner_id(struct schema *s, struct facets *f, struct place at, size_t how) {
    if (at.path->up == s->root_path || (json_len(at.v) > 0 && json_text(at.v)[0] == '#') ||
        !s->has_refs || !schema_has_refs(s, f->part.v))
        return 0;
    return facets_refuse(s, f, at, how);
}

static int facets_pass(struct schema *s, struct facets *f, struct place at, size_t how) {
    return 0; /* the translation of objects, arrays or choices reads this keyword itself */
}

/* Lists the keywords of all drafts that constrain values. A keyword that is not listed is an
 * annotation. */
static const struct keyword {
    const char *name;
    read_fn *read;
    /* types that it restricts values to, without `type` */
    unsigned implies;
    size_t how;
} KEYWORDS[] = {
    {OWN "notEnum", facets_read_not_text, T_STRING, TEXT_NOT_ENUM},
    {OWN "notFormat", facets_read_not_text, T_STRING, TEXT_NOT_FORMAT},
    {OWN "notMultiple", facets_read_not_multiple, T_INT | T_REAL, 0},
    {OWN "notPattern", facets_read_not_text, T_STRING, TEXT_NOT_PATTERN},
    {OWN "some", facets_read_some, T_OBJECT, 0},
    {"$id", check_inner_id, 0, 0},
    {"$dynamicRef", facets_refuse, 0, 0},
    {"$recursiveRef", facets_refuse, 0, 0},
    {"$ref", facets_pass, 0, 0},
    {"additionalItems", facets_pass, 0, 0},
    {"additionalProperties", facets_pass, T_OBJECT, 0},
    {"allOf", facets_pass, 0, 0},
    {"anyOf", facets_pass, 0, 0},
    {"const", facets_read_const, 0, 0},
    {"contains", facets_read_contains, T_ARRAY, 0},
    {"dependencies", facets_pass, T_OBJECT, 0},
    {"dependentRequired", facets_pass, T_OBJECT, 0},
    {"dependentSchemas", facets_pass, T_OBJECT, 0},
    {"disallow", facets_refuse, 0, 0},
    {"divisibleBy", facets_refuse, 0, 0},
    {"else", facets_pass, 0, 0},
    {"enum", facets_read_enum, 0, 0},
    {"exclusiveMaximum", facets_read_bound, T_INT | T_REAL, EXCLUSIVE},
    {"exclusiveMinimum", facets_read_bound, T_INT | T_REAL, LOWER | EXCLUSIVE},
    {"extends", facets_refuse, 0, 0},
    {"format", facets_read_format, 0, 0},
    {"if", facets_pass, 0, 0},
    {"items", facets_pass, T_ARRAY, 0},
    {"maxContains", facets_pass, 0, 0},
    {"maxItems", facets_read_max, T_ARRAY, offsetof(struct facets, max_items)},
    {"maxLength", facets_read_max, T_STRING, offsetof(struct facets, max_length)},
    {"maxProperties", facets_read_max, T_OBJECT, offsetof(struct facets, max_members)},
    {"maximum", facets_read_bound, T_INT | T_REAL, 0},
    {"minContains", facets_pass, 0, 0},
    {"minItems", facets_read_min, T_ARRAY, offsetof(struct facets, min_items)},
    {"minLength", facets_read_min, T_STRING, offsetof(struct facets, min_length)},
    {"minProperties", facets_read_min, T_OBJECT, offsetof(struct facets, min_members)},
    {"minimum", facets_read_bound, T_INT | T_REAL, LOWER},
    {"multipleOf", facets_read_multiple, T_INT | T_REAL, 0},
    {"not", facets_pass, 0, 0},
    {"oneOf", facets_pass, 0, 0},
    {"pattern", facets_read_pattern, T_STRING, 0},
    {"patternProperties", expect_object, T_OBJECT, 0},
    {"prefixItems", check_prefix, T_ARRAY, 0},
    {"properties", expect_object, T_OBJECT, 0},
    {"propertyNames", facets_pass, T_OBJECT, 0},
    {"required", check_required, T_OBJECT, 0},
    {"then", facets_pass, 0, 0},
    {"type", facets_read_type, 0, 0},
    {"unevaluatedItems", facets_refuse, 0, 0},
    {"unevaluatedProperties", facets_read_unevaluated, T_OBJECT, 0},
    {"uniqueItems", facets_read_unique, T_ARRAY, 0},
};

static const struct keyword *find_keyword(const char *name) {
    for (size_t i = 0; name && i < ARRAY_SIZE(KEYWORDS); i++) {
        if (KEYWORDS[i].name[0] == name[0] && strcmp(KEYWORDS[i].name, name) == 0)
            return &KEYWORDS[i];
    }
    return NULL;
}

bool keyword_constrains(const char *key) {
    const struct keyword *word = find_keyword(key);

    return word && (word->read != facets_pass || word->implies);
}

static bool facets_is_one_of(const char *const *names, const char *name) {
    while (name && *names && strcmp(*names, name) != 0)
        names++;
    return name && *names;
}

void keywords_forget_nulls(yyjson_val *v, bool is_map, uint32_t depth) {
    static const char *const MAPS[] = {"$defs",      "definitions",       "dependencies",
                                       "properties", "patternProperties", "dependentSchemas",
                                       NULL};
    static const char *const VALUES[] = {"const", "default", "enum", "example", "examples", NULL};

    if (depth == 0)
        return;
    JSON_EACH(value, v) keywords_forget_nulls(value, false, depth - 1);
    JSON_MEMBERS(key, value, v) {
        const char *name = json_cstr(key);

        if (!is_map && facets_is_one_of(VALUES, name) && (name[0] != 'e' || !yyjson_is_null(value)))
            continue;
        if (!is_map && yyjson_is_null(value) && find_keyword(name))
            yyjson_set_str(key, "null"); /* a word that no draft defines */
        else
            keywords_forget_nulls(value, !is_map && facets_is_one_of(MAPS, name), depth - 1);
    }
}

static bool is_empty(yyjson_val *v) {
    return yyjson_is_ctn(v) && json_is_empty(v);
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
        f->part = parts->v[i];
        JSON_MEMBERS(key, value, parts->v[i].v) {
            const struct keyword *word = find_keyword(json_cstr(key));

            TRY(build_work(s->b, 8));
            if (!word || (s->old_refs && yyjson_obj_get(parts->v[i].v, "$ref")))
                continue;
            /* Without `type`, a keyword for one type restricts the value to that type, which is
             * narrower than the standard; an empty object or array says nothing. */
            if (word->name[0] == OWN[0] || !is_empty(value))
                f->implied |= word->implies;
            struct place at = {value,
                               schema_path(s, parts->v[i].path, word->name, strlen(word->name))};
            TRY(word->read(s, f, at, word->how));
            if (word->read == facets_read_unevaluated && yyjson_is_false(value))
                TRY(check_closed(s, parts, i, at));
        }
    }
    if (parts->never)
        f->types = 0;
    if (!f->typed && f->implied && !f->n_values)
        f->types &= f->implied;
    assert((f->types & ~(unsigned)T_ALL) == 0 && (f->implied & ~(unsigned)T_ALL) == 0);
    return 0;
}
