/*
 * logic - rewrites not, if, dependencies and the exclusion of branches in oneOf as anyOf and allOf
 * of simpler schemas.
 *
 * A negation is pushed inwards until it meets keywords, and the negation of each keyword, its
 * contrary, is a schema again. So the readers of objects, strings and numbers know nothing of
 * negation. Examples:
 *
 *     not {"required": ["a"]}         {"type": "object", "properties": {"a": false}}
 *     not {"minLength": 3}            {"type": "string", "maxLength": 2}
 *     not {"allOf": [X, Y]}           anyOf of not X and not Y
 *     not {"minimum": 1, "maxLength": 2}
 *                                     anyOf of the contraries of the two keywords
 *     {"if": C, "then": T}            anyOf of (C and T) and not C
 *
 * The contrary of a keyword names the type, since the standard lets a keyword hold for values of
 * other types. A few contraries need words that JSON Schema does not have, as that a string does
 * not match a pattern; these words start with U+0001 (OWN), which facets.c and keys.c read.
 *
 * Where a contrary cannot be expressed, it is left out of the anyOf (`dropped`): the result is
 * narrower, never wider. A negation of which nothing would be left is refused.
 *
 * The new schemas are JSON documents of their own, made once for each schema (derive()). Where they
 * contain a given schema they refer to it by a number in `$ref` (target(), schema_target()).
 */

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/json_read.h"
#include "base/try.h"
#include "grammar/front/schema/schema.h"

struct derived {
    struct derived *next;
    yyjson_val *of;
    int kind;
    struct place place;
};

#define VALUE_WORK 16 /* cost of a value of a new document, whose memory is not the build's */

enum { DERIVED_NOT, DERIVED_IF, DERIVED_DEPENDENCIES, DERIVED_CONST };

struct writer {
    struct schema *s;
    yyjson_mut_doc *d;
    yyjson_mut_val *alts;
    /* the schema that is negated */
    struct place at;
    /* a contrary was left out */
    bool dropped;
    int error;
};

/* ---- values */

static yyjson_mut_val *logic_number(struct writer *w, int64_t n) {
    char text[24];

    snprintf(text, sizeof(text), "%lld", (long long)n);
    return yyjson_mut_rawcpy(w->d, text);
}

/* Returns the number under which schema_target() finds @p. */
static uint32_t target(struct writer *w, struct place p) {
    struct schema *s = w->s;

    if (w->error == 0)
        w->error = places_add(s, &s->target, &s->n_targets, &s->cap_targets, p);
    assert(w->error < 0 || s->target[s->n_targets - 1].v == p.v);
    return s->n_targets - 1;
}

static yyjson_mut_val *ref(struct writer *w, struct place p) {
    yyjson_mut_val *o = yyjson_mut_obj(w->d);
    char text[16];

    snprintf(text, sizeof(text), OWN "%u", target(w, p));
    yyjson_mut_obj_add_strcpy(w->d, o, "$ref", text);
    return o;
}

static yyjson_mut_val *not_ref(struct writer *w, struct place p) {
    yyjson_mut_val *o = yyjson_mut_obj(w->d);

    yyjson_mut_obj_add_val(w->d, o, "not", ref(w, p));
    return o;
}

static yyjson_mut_val *logic_pair(struct writer *w, const char *key, yyjson_mut_val *x,
                                  yyjson_mut_val *y) {
    yyjson_mut_val *o = yyjson_mut_obj(w->d), *list = yyjson_mut_arr(w->d);

    yyjson_mut_arr_append(list, x);
    yyjson_mut_arr_append(list, y);
    yyjson_mut_obj_add_val(w->d, o, key, list);
    return o;
}

static yyjson_mut_val *logic_key(struct writer *w, yyjson_val *name) {
    return yyjson_mut_strncpy(w->d, json_text(name), json_len(name));
}

/* Returns {"type": "object", "properties": {@name: @value}}. @required: @name is required, too. */
static yyjson_mut_val *with_member(struct writer *w, yyjson_val *name, yyjson_mut_val *value,
                                   bool required) {
    yyjson_mut_val *o = yyjson_mut_obj(w->d), *members = yyjson_mut_obj(w->d);

    yyjson_mut_obj_add_bool(w->d, o, OWN, true);
    yyjson_mut_obj_add_str(w->d, o, "type", "object");
    yyjson_mut_obj_add(members, logic_key(w, name), value);
    yyjson_mut_obj_add_val(w->d, o, "properties", members);
    if (required) {
        yyjson_mut_val *list = yyjson_mut_arr(w->d);

        yyjson_mut_arr_append(list, logic_key(w, name));
        yyjson_mut_obj_add_val(w->d, o, "required", list);
    }
    return o;
}

static yyjson_mut_val *logic_add_typed(struct writer *w, const char *type) {
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(w->d, w->alts);

    yyjson_mut_obj_add_bool(w->d, o, OWN, true);
    yyjson_mut_obj_add_str(w->d, o, "type", type);
    return o;
}

/* Adds an alternative: values of @type for which the keyword at @at does not hold, written with the
 * word @own. */
static void logic_add_own(struct writer *w, struct place at, const char *type, const char *own) {
    uint32_t k = target(w, at);

    yyjson_mut_obj_add_uint(w->d, logic_add_typed(w, type), own, k);
}

static void add_types(struct writer *w, unsigned types) {
    static const struct {
        unsigned types;
        const char *name;
    } NAMES[] = {{T_NULL, "null"},   {T_BOOL, "boolean"},      {T_INT | T_REAL, "number"},
                 {T_INT, "integer"}, {T_REAL, OWN "fraction"}, {T_STRING, "string"},
                 {T_ARRAY, "array"}, {T_OBJECT, "object"}};

    for (size_t i = 0; i < ARRAY_SIZE(NAMES); i++) {
        if ((types & NAMES[i].types) != NAMES[i].types)
            continue;
        logic_add_typed(w, NAMES[i].name);
        types &= ~NAMES[i].types;
    }
}

/* ---- contraries of keywords */

static void not_type(struct writer *w, struct place at) {
    unsigned types = 0;

    w->error = types_read(w->s, at, &types);
    if (w->error == 0)
        add_types(w, T_ALL & ~types);
}

static void not_required(struct writer *w, struct place at) {
    JSON_EACH(name, at.v) {
        if (yyjson_is_str(name))
            yyjson_mut_arr_append(w->alts,
                                  with_member(w, name, yyjson_mut_bool(w->d, false), false));
    }
}

static void not_properties(struct writer *w, struct place at) {
    JSON_MEMBERS(name, v, at.v) {
        struct place p = {v, schema_path(w->s, at.path, json_text(name), json_len(name))};

        if (!yyjson_is_true(v))
            yyjson_mut_arr_append(w->alts, with_member(w, name, not_ref(w, p), true));
    }
}

/* Adds the numbers that differ from the sorted numbers @v[0, @n): x < a, a < x < b, b < x. */
static void not_numbers(struct writer *w, yyjson_val **v, size_t n) {
    for (size_t i = 0; i <= n; i++) {
        yyjson_mut_val *o = logic_add_typed(w, "number");

        if (i > 0)
            yyjson_mut_obj_add_val(w->d, o, "exclusiveMinimum",
                                   yyjson_val_mut_copy(w->d, v[i - 1]));
        if (i < n)
            yyjson_mut_obj_add_val(w->d, o, "exclusiveMaximum", yyjson_val_mut_copy(w->d, v[i]));
    }
}

static int by_value(const void *x, const void *y) {
    yyjson_val *const *a = x, *const *b = y;
    struct decimal m, n;

    decimal_read(&m, json_digits(*a), json_n_digits(*a));
    decimal_read(&n, json_digits(*b), json_n_digits(*b));
    return decimal_compare(&m, &n);
}

#define SHAPES_MAX 4 /* objects and arrays of one enum: each takes alternatives for its parts */

/* Adds the objects, or else arrays, that differ from each object or array in the list. */
static void not_shapes(struct writer *w, struct place at, bool one, bool objects) {
    size_t n = one ? 1 : yyjson_arr_size(at.v), n_shapes = 0;
    yyjson_mut_val *all = yyjson_mut_arr(w->d);

    for (size_t i = 0; i < n && w->error == 0; i++) {
        struct place v = {one ? at.v : yyjson_arr_get(at.v, i), at.path}, shape;

        if ((objects && !yyjson_is_obj(v.v)) || (!objects && !yyjson_is_arr(v.v)))
            continue;
        if (n_shapes++ == SHAPES_MAX) {
            w->dropped = true;
            return;
        }
        w->error = logic_const(w->s, v, &shape);
        if (w->error == 0)
            yyjson_mut_arr_append(all, not_ref(w, shape));
    }
    if (n_shapes)
        yyjson_mut_obj_add_val(w->d, logic_add_typed(w, objects ? "object" : "array"), "allOf",
                               all);
}

static void not_values(struct writer *w, struct place at, bool one) {
    size_t n = one ? 1 : yyjson_arr_size(at.v), n_numbers = 0;
    CLEANUP(freep) yyjson_val **numbers = calloc(MAX(n, (size_t)1), sizeof(yyjson_val *));
    unsigned types = 0;
    bool yes = false, no = false;

    if (!numbers) {
        w->error = build_no_memory(w->s->b);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        yyjson_val *v = one ? at.v : yyjson_arr_get(at.v, i);
        struct decimal d;

        w->error = build_work(w->s->b, i);
        if (w->error < 0)
            return;
        types |= value_type(v);
        yes = yes || yyjson_is_true(v);
        no = no || yyjson_is_false(v);
        if (yyjson_is_raw(v) && decimal_read(&d, json_digits(v), json_n_digits(v)) == 0)
            numbers[n_numbers++] = v;
        else if (yyjson_is_raw(v))
            w->dropped = true;
    }
    if (types & (T_INT | T_REAL))
        types |= T_INT | T_REAL;
    add_types(w, T_ALL & ~types);
    not_shapes(w, at, one, false);
    not_shapes(w, at, one, true);
    assert(n_numbers <= n && (types & ~(unsigned)T_ALL) == 0);
    qsort(numbers, n_numbers, sizeof(*numbers), by_value);
    if (n_numbers)
        not_numbers(w, numbers, n_numbers);
    if (yes != no)
        yyjson_mut_obj_add_bool(w->d, yyjson_mut_arr_add_obj(w->d, w->alts), "const", no);
    if (types & T_STRING)
        logic_add_own(w, at, "string", OWN "notEnum");
}

static int not_count(struct writer *w, struct place at, const char *type, const char *other,
                     int step) {
    uint32_t n;
    int r = count_read(w->s, at, &n);

    if (r == 0 && (n > 0 || step > 0))
        yyjson_mut_obj_add_val(w->d, logic_add_typed(w, type), other,
                               logic_number(w, (int64_t)n + step));
    return r;
}

static void not_bound(struct writer *w, struct place at, const char *other) {
    if (yyjson_is_raw(at.v))
        yyjson_mut_obj_add_val(w->d, logic_add_typed(w, "number"), other,
                               yyjson_val_mut_copy(w->d, at.v));
}

/* Adds objects with a member whose value does not fit @value (any value, if that is absent) and
 * whose name @of describes. @how: "match", it matches the pattern @of; "unlike", it does not fit
 * the schema @of; "outside", the object schema @of does not mention it (keys.c). */
static void logic_add_some(struct writer *w, const char *how, struct place of, struct place value) {
    yyjson_mut_val *some = yyjson_mut_obj(w->d);

    yyjson_mut_obj_add_uint(w->d, some, how, target(w, of));
    if (value.v)
        yyjson_mut_obj_add_val(w->d, some, "value", not_ref(w, value));
    else
        yyjson_mut_obj_add_bool(w->d, some, "value", true);
    yyjson_mut_obj_add_val(w->d, logic_add_typed(w, "object"), OWN "some", some);
}

static void not_patterns(struct writer *w, struct place at) {
    JSON_MEMBERS(name, v, at.v) {
        const struct path *path = schema_path(w->s, at.path, json_text(name), json_len(name));

        logic_add_some(w, "match", (struct place){name, path}, (struct place){v, path});
    }
}

static void not_items(struct writer *w, struct place at, size_t n_before) {
    if (yyjson_is_arr(at.v)) {
        for (size_t i = 0; i < yyjson_arr_size(at.v) && w->error == 0; i++) {
            yyjson_mut_val *o = logic_add_typed(w, "array"), *list = yyjson_mut_arr(w->d);

            build_work(w->s->b, i * VALUE_WORK);
            for (size_t k = 0; k < i; k++)
                yyjson_mut_arr_append(list, yyjson_mut_bool(w->d, true));
            yyjson_mut_arr_append(list, not_ref(w, schema_item(w->s, at, i)));
            yyjson_mut_obj_add_val(w->d, o, "minItems", logic_number(w, (int64_t)i + 1));
            yyjson_mut_obj_add_val(w->d, o, "prefixItems", list);
        }
        return;
    }
    if (n_before)
        w->dropped = true;
    else
        yyjson_mut_obj_add_val(w->d, logic_add_typed(w, "array"), "contains", not_ref(w, at));
}

static void not_choice(struct writer *w, struct place at, bool one) {
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(w->d, w->alts), *list = yyjson_mut_arr(w->d);
    size_t n = yyjson_arr_size(at.v);

    for (size_t i = 0; i < n && w->error == 0; i++) {
        struct place p = schema_item(w->s, at, i);

        yyjson_mut_arr_append(list, not_ref(w, p));
        for (size_t k = 0; one && k < i && w->error == 0; k++) {
            build_work(w->s->b, 4 * VALUE_WORK);
            yyjson_mut_arr_append(
                w->alts, logic_pair(w, "allOf", ref(w, p), ref(w, schema_item(w->s, at, k))));
        }
    }
    yyjson_mut_obj_add_val(w->d, o, "allOf", list);
}

static void not_each(struct writer *w, struct place at) {
    for (size_t i = 0; i < yyjson_arr_size(at.v) && w->error == 0; i++)
        yyjson_mut_arr_append(w->alts, not_ref(w, schema_item(w->s, at, i)));
}

static void not_if(struct writer *w, struct place p) {
    struct place cond = schema_at(w->s, p, "if"), then = schema_at(w->s, p, "then"),
                 other = schema_at(w->s, p, "else");

    if (cond.v && then.v)
        yyjson_mut_arr_append(w->alts, logic_pair(w, "allOf", ref(w, cond), not_ref(w, then)));
    if (cond.v && other.v)
        yyjson_mut_arr_append(w->alts, logic_pair(w, "allOf", not_ref(w, cond), not_ref(w, other)));
}

static const char *const DEPENDENCIES[] = {"dependencies", "dependentRequired", "dependentSchemas"};

static bool is_dependencies(const char *key) {
    for (size_t i = 0; i < ARRAY_SIZE(DEPENDENCIES); i++)
        if (strcmp(key, DEPENDENCIES[i]) == 0)
            return true;
    return false;
}

static void not_dependencies(struct writer *w, struct place at) {
    JSON_MEMBERS(name, v, at.v) {
        yyjson_mut_val *yes = yyjson_mut_bool(w->d, true), *no = yyjson_mut_bool(w->d, false);
        struct place p = {v, schema_path(w->s, at.path, json_text(name), json_len(name))};

        if (yyjson_is_obj(v) || yyjson_is_bool(v))
            yyjson_mut_arr_append(
                w->alts, logic_pair(w, "allOf", with_member(w, name, yes, true), not_ref(w, p)));
        else if (yyjson_is_str(v))
            yyjson_mut_arr_append(w->alts, logic_pair(w, "allOf", with_member(w, name, yes, true),
                                                      with_member(w, v, no, false)));
        JSON_EACH(other, v) {
            if (yyjson_is_str(other))
                yyjson_mut_arr_append(
                    w->alts,
                    logic_pair(w, "allOf", with_member(w, name, yyjson_mut_bool(w->d, true), true),
                               with_member(w, other, yyjson_mut_bool(w->d, false), false)));
        }
    }
}

static bool logic_has(struct writer *w, const char *key) {
    return yyjson_obj_get(w->at.v, key) != NULL;
}

static void not_additional_items(struct writer *w, struct place at) {
    if (yyjson_is_arr(yyjson_obj_get(w->at.v, "items")))
        not_items(w, at, 1);
}

/* Adds the strings that are certainly not of this format. A format that is an annotation accepts
 * all strings, so there are none. */
static void not_format(struct writer *w, struct place at) {
    int known = format_contrary(at.v);

    if (known == 0 && !(w->s->b->flags & GRAMMAR_ANY_FORMAT))
        known = -1;
    if (known > 0)
        logic_add_own(w, at, "string", OWN "notFormat");
    w->dropped = w->dropped || known < 0;
}

static void not_enum(struct writer *w, struct place at) {
    not_values(w, at, false);
}

static void not_const(struct writer *w, struct place at) {
    not_values(w, at, true);
}

static void not_reference(struct writer *w, struct place at) {
    w->error = schema_resolve(w->s, at, &at);
    if (w->error == 0)
        yyjson_mut_arr_append(w->alts, not_ref(w, at));
}

static void not_not(struct writer *w, struct place at) {
    yyjson_mut_arr_append(w->alts, ref(w, at));
}

static void not_any(struct writer *w, struct place at) {
    not_choice(w, at, false);
}

static void not_one(struct writer *w, struct place at) {
    not_choice(w, at, true);
}

static void not_condition(struct writer *w, struct place at) {
    not_if(w, w->at);
}

static void not_additional(struct writer *w, struct place at) {
    logic_add_some(w, "outside", w->at, at);
}

static void not_names(struct writer *w, struct place at) {
    logic_add_some(w, "unlike", at, (struct place){0});
}

static void not_all_items(struct writer *w, struct place at) {
    not_items(w, at, logic_has(w, "prefixItems"));
}

static void not_first_items(struct writer *w, struct place at) {
    not_items(w, at, 0);
}

/* Adds the arrays without any such item; with a number of them, the contrary is dropped. */
static void not_contains(struct writer *w, struct place at) {
    if (logic_has(w, "minContains") || logic_has(w, "maxContains"))
        w->dropped = true;
    else
        yyjson_mut_obj_add_val(w->d, logic_add_typed(w, "array"), "items", not_ref(w, at));
}

static void not_pattern(struct writer *w, struct place at) {
    logic_add_own(w, at, "string", OWN "notPattern");
}

static void not_multiple(struct writer *w, struct place at) {
    logic_add_own(w, at, "number", OWN "notMultiple");
}

/* Adds the numbers below @at. In old drafts exclusiveMinimum is a switch of minimum. */
static void not_minimum(struct writer *w, struct place at) {
    if (yyjson_is_true(yyjson_obj_get(w->at.v, "exclusiveMinimum")))
        not_bound(w, at, "maximum");
    else
        not_bound(w, at, "exclusiveMaximum");
}

static void not_maximum(struct writer *w, struct place at) {
    if (yyjson_is_true(yyjson_obj_get(w->at.v, "exclusiveMaximum")))
        not_bound(w, at, "minimum");
    else
        not_bound(w, at, "exclusiveMinimum");
}

static void not_above(struct writer *w, struct place at) {
    not_bound(w, at, "maximum");
}

static void not_below(struct writer *w, struct place at) {
    not_bound(w, at, "minimum");
}

/* Functions that add the contrary of a keyword. */
static const struct {
    const char *key;
    void (*add)(struct writer *w, struct place at);
} CONTRARIES[] = {
    {"type", not_type},
    {"enum", not_enum},
    {"const", not_const},
    {"$ref", not_reference},
    {"not", not_not},
    {"allOf", not_each},
    {"anyOf", not_any},
    {"oneOf", not_one},
    {"if", not_condition},
    {"required", not_required},
    {"properties", not_properties},
    {"patternProperties", not_patterns},
    {"additionalProperties", not_additional},
    {"propertyNames", not_names},
    {"items", not_all_items},
    {"prefixItems", not_first_items},
    {"additionalItems", not_additional_items},
    {"contains", not_contains},
    {"pattern", not_pattern},
    {"format", not_format},
    {"multipleOf", not_multiple},
    {"minimum", not_minimum},
    {"maximum", not_maximum},
    {"exclusiveMinimum", not_above},
    {"exclusiveMaximum", not_below},
};

/* Adds the contrary of one keyword, except those in COUNTS. */
static void not_keyword(struct writer *w, const char *key, struct place at) {
    for (size_t i = 0; i < ARRAY_SIZE(CONTRARIES); i++)
        if (strcmp(key, CONTRARIES[i].key) == 0) {
            CONTRARIES[i].add(w, at);
            return;
        }
    if (is_dependencies(key))
        not_dependencies(w, at);
    else if (keyword_constrains(key))
        w->dropped = true;
}

static const struct {
    const char *key, *type, *other;
    int step;
} COUNTS[] = {
    {"minLength", "string", "maxLength", -1},
    {"maxLength", "string", "minLength", 1},
    {"minItems", "array", "maxItems", -1},
    {"maxItems", "array", "minItems", 1},
    {"minProperties", "object", "maxProperties", -1},
    {"maxProperties", "object", "minProperties", 1},
};

static void not_member(struct writer *w, const char *key, struct place at) {
    for (size_t i = 0; i < ARRAY_SIZE(COUNTS); i++) {
        if (strcmp(key, COUNTS[i].key) == 0) {
            w->error = not_count(w, at, COUNTS[i].type, COUNTS[i].other, COUNTS[i].step);
            return;
        }
    }
    not_keyword(w, key, at);
}

static void write_not(struct writer *w) {
    bool only_ref = w->s->old_refs && yyjson_obj_get(w->at.v, "$ref");

    JSON_MEMBERS(key, v, w->at.v) {
        const char *name = json_cstr(key);
        struct place at = {v, schema_path(w->s, w->at.path, json_text(key), json_len(key))};

        if (name && w->error == 0 && (!only_ref || strcmp(name, "$ref") == 0))
            not_member(w, name, at);
    }
    if (w->error == 0 && w->dropped && yyjson_mut_arr_size(w->alts) == 0)
        w->error =
            schema_unsupported(w->s, w->at.path, "the negation of this keyword is not supported");
}

/* ---- if and dependencies */

static yyjson_mut_val *ref_or_true(struct writer *w, struct place p) {
    if (p.v)
        return ref(w, p);
    return yyjson_mut_bool(w->d, true);
}

static yyjson_mut_val *write_if(struct writer *w) {
    struct place cond = schema_at(w->s, w->at, "if"), then = schema_at(w->s, w->at, "then"),
                 other = schema_at(w->s, w->at, "else");
    yyjson_mut_val *yes = ref_or_true(w, then), *no = ref_or_true(w, other);

    return logic_pair(w, "anyOf", logic_pair(w, "allOf", ref(w, cond), yes),
                      logic_pair(w, "allOf", not_ref(w, cond), no));
}

static void write_dependency(struct writer *w, yyjson_mut_val *all, yyjson_val *name,
                             struct place p) {
    yyjson_mut_val *without = with_member(w, name, yyjson_mut_bool(w->d, false), false);
    yyjson_mut_val *with = with_member(w, name, yyjson_mut_bool(w->d, true), true);

    if (yyjson_is_arr(p.v) || yyjson_is_str(p.v)) {
        yyjson_mut_val *list = yyjson_mut_obj_get(with, "required");

        if (yyjson_is_str(p.v))
            yyjson_mut_arr_append(list, logic_key(w, p.v));
        JSON_EACH(other, p.v) {
            if (yyjson_is_str(other))
                yyjson_mut_arr_append(list, logic_key(w, other));
        }
    } else {
        with = logic_pair(w, "allOf", with, ref(w, p));
    }
    yyjson_mut_arr_append(all, logic_pair(w, "anyOf", without, with));
}

static yyjson_mut_val *write_dependencies(struct writer *w) {
    yyjson_mut_val *o = yyjson_mut_obj(w->d), *all = yyjson_mut_arr(w->d);

    for (size_t k = 0; k < ARRAY_SIZE(DEPENDENCIES); k++) {
        struct place at = schema_at(w->s, w->at, DEPENDENCIES[k]);

        JSON_MEMBERS(name, v, at.v) {
            struct place p = {v, schema_path(w->s, at.path, json_text(name), json_len(name))};

            write_dependency(w, all, name, p);
        }
    }
    if (yyjson_mut_arr_size(all))
        yyjson_mut_obj_add_val(w->d, o, "allOf", all);
    return o;
}

/* ---- constants */

static yyjson_mut_val *constant(struct writer *w, yyjson_val *v) {
    yyjson_mut_val *o = yyjson_mut_obj(w->d);

    yyjson_mut_obj_add_val(w->d, o, "const", yyjson_val_mut_copy(w->d, v));
    return o;
}

static yyjson_mut_val *write_const(struct writer *w) {
    yyjson_mut_val *o = yyjson_mut_obj(w->d), *list = yyjson_mut_arr(w->d);
    yyjson_mut_val *members = yyjson_mut_obj(w->d);
    bool object = yyjson_is_obj(w->at.v);

    JSON_MEMBERS(key, v, w->at.v) {
        yyjson_mut_obj_add(members, logic_key(w, key), constant(w, v));
        yyjson_mut_arr_append(list, logic_key(w, key));
    }
    JSON_EACH(v, w->at.v) yyjson_mut_arr_append(list, constant(w, v));
    yyjson_mut_obj_add_str(w->d, o, "type", object ? "object" : "array");
    yyjson_mut_obj_add_val(w->d, o, object ? "required" : "prefixItems", list);
    if (object) {
        yyjson_mut_obj_add_val(w->d, o, "properties", members);
    } else {
        yyjson_mut_obj_add_val(w->d, o, "minItems",
                               logic_number(w, (int64_t)yyjson_arr_size(w->at.v)));
        yyjson_mut_obj_add_val(w->d, o, "maxItems",
                               logic_number(w, (int64_t)yyjson_arr_size(w->at.v)));
    }
    yyjson_mut_obj_add_bool(w->d, o, object ? "additionalProperties" : "items", false);
    return o;
}

/* ---- derived schemas */

static int own_doc(struct schema *s, yyjson_mut_doc *d, struct place *out) {
    yyjson_doc *doc = yyjson_mut_doc_imut_copy(d, NULL);
    struct schema_doc *kept = malloc(sizeof(*kept));

    if (!doc || !kept) {
        yyjson_doc_free(doc);
        free(kept);
        return build_no_memory(s->b);
    }
    *kept = (struct schema_doc){s->docs, doc};
    s->docs = kept;
    out->v = yyjson_doc_get_root(doc);
    assert(out->v);
    return build_work(s->b, 8 + yyjson_doc_get_val_count(doc) * 2);
}

static int derive(struct schema *s, int kind, struct place p, struct place *out) {
    struct derived *d;
    struct writer w = {.s = s, .at = p};
    yyjson_mut_val *root = NULL;
    uint64_t n = 1;

    for (d = s->derived; d && (d->of != p.v || d->kind != kind); d = d->next)
        n++;
    TRY(build_work(s->b, n));
    if (d) {
        *out = d->place;
        return 0;
    }
    d = build_alloc(s->b, 1, sizeof(*d));
    w.d = yyjson_mut_doc_new(NULL);
    if (!d || !w.d) {
        yyjson_mut_doc_free(w.d);
        return build_no_memory(s->b);
    }
    if (kind == DERIVED_NOT) {
        w.alts = yyjson_mut_arr(w.d);
        write_not(&w);
        root = yyjson_mut_obj(w.d);
        if (yyjson_mut_arr_size(w.alts) == 1)
            root = yyjson_mut_arr_get_first(w.alts);
        else if (yyjson_mut_arr_size(w.alts))
            yyjson_mut_obj_add_val(w.d, root, "anyOf", w.alts);
        else
            root = yyjson_mut_bool(w.d, false);
    } else {
        if (kind == DERIVED_IF)
            root = write_if(&w);
        else if (kind == DERIVED_CONST)
            root = write_const(&w);
        else
            root = write_dependencies(&w);
    }
    assert(root && p.v);
    yyjson_mut_doc_set_root(w.d, root);
    *d = (struct derived){s->derived, p.v, kind, {NULL, p.path}};
    int r = w.error ? w.error : own_doc(s, w.d, &d->place);

    yyjson_mut_doc_free(w.d);
    if (r < 0)
        return r;
    s->derived = d;
    *out = d->place;
    return 0;
}

static yyjson_val TRUE_VALUE = {.tag = YYJSON_TYPE_BOOL | YYJSON_SUBTYPE_TRUE},
                  FALSE_VALUE = {.tag = YYJSON_TYPE_BOOL | YYJSON_SUBTYPE_FALSE};

int logic_not(struct schema *s, struct place p, struct place *out) {
    TRY(schema_follow(s, &p));
    if (yyjson_is_bool(p.v)) {
        *out = (struct place){yyjson_is_true(p.v) ? &FALSE_VALUE : &TRUE_VALUE, p.path};
        return 0;
    }
    if (!yyjson_is_obj(p.v))
        return schema_invalid(s, p.path, "a schema must be an object or a boolean");
    return derive(s, DERIVED_NOT, p, out);
}

int logic_if(struct schema *s, struct place p, struct place *out) {
    return derive(s, DERIVED_IF, p, out);
}

int logic_dependencies(struct schema *s, struct place p, struct place *out) {
    return derive(s, DERIVED_DEPENDENCIES, p, out);
}

int logic_const(struct schema *s, struct place p, struct place *out) {
    return derive(s, DERIVED_CONST, p, out);
}

int schema_target(struct schema *s, struct place at, struct place *out) {
    uint64_t n = yyjson_get_uint(at.v);

    if (!yyjson_is_uint(at.v) || n >= s->n_targets)
        return schema_invalid(s, at.path, "unknown keyword");
    *out = s->target[n];
    assert(out->v);
    return 0;
}

void logic_deinit(struct schema *s) {
    while (s->docs) {
        struct schema_doc *d = s->docs;

        s->docs = d->next;
        yyjson_doc_free(d->doc);
        free(d);
    }
}
