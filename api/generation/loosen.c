/*
 * loosen - which part of a schema to leave out.
 *
 * A compilation that refuses a schema names a place. loosen_schema() goes down to it, remembers the
 * last schema on the way, and takes out the keyword of that schema that leads on:
 *
 *      /properties/url/pattern             `pattern`
 *      /properties/x/anyOf/1/format        `format` of one alternative
 *      /properties/x/not/pattern           `not`: what a negation allows grows when it is left out
 *      /properties/x                       all of x but its type; then x itself
 *
 * A refusal without a place (the whole is too large, or no text fits) says less. Then all rules
 * beside names and types are left out (LOOSEN_RULES), then what is below the arguments
 * (LOOSEN_DEEP), then lists of values (LOOSEN_VALUES). Each step takes something out, so the
 * caller's loop ends.
 */

#include "api/generation/loosen.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "base/json_value.h"
#include "base/util.h"

#define TOOL_MAX 128
#define PLACE_MAX 256
#define DEPTH_MAX 64
#define ENUM_MAX 64 /* values of an enum that stays when everything deep is left out */

static bool is_in(const char *const *words, const char *word) {
    while (word && *words && strcmp(*words, word) != 0)
        words++;
    return word && *words;
}

/* Keywords whose value is an object of schemas. */
static const char *const maps[] = {"properties",  "patternProperties", "$defs",
                                   "definitions", "dependentSchemas",  NULL};
/* Keywords whose value is a schema or a list of schemas, and where more may be allowed inside. */
static const char *const schemas[] = {
    "anyOf", "oneOf", "allOf", "prefixItems", "items", "additionalItems", "additionalProperties",
    NULL};

static void loosen_note(struct loosener *l, const char *place) {
    uint32_t n = l->list->n++;

    if (n >= LOOSENED_KEPT)
        return;
    struct loosened *v = &l->list->v[n];
    /* The names may be freed before the list is read. */
    v->tool = arena_strndup(l->arena, l->tool, strnlen(l->tool, TOOL_MAX));
    v->place = arena_strndup(l->arena, place, strnlen(place, PLACE_MAX));
    if (!v->tool || !v->place)
        l->list->n--; /* memory is short */
}

void loosen_note_all(struct loosener *l) {
    loosen_note(l, "");
}

/* ---- the way to a place ---- */

/* The last schema on the way to a place. */
struct spot {
    yyjson_mut_val *schema;
    char keyword
        [PLACE_MAX]; /* place of that schema, which leads on; "": the place is the schema itself */
    /* length of the place up to the end of the keyword */
    size_t n_keyword;
    size_t n_schema;
    /* Holder of the schema, by a name or a number; NULL: nothing, or a keyword alone. */
    /* the schema around the holder */
    yyjson_mut_val *holder, *owner;
    char name[PLACE_MAX];
    /* the name is that of a property, or a pattern of such */
    bool is_property, is_pattern;
    /* schema whose oneOf the way goes through */
    yyjson_mut_val *one_of;
};

/* Copies the next step of @place, without escapes. Returns what follows it. */
static const char *copy_step(const char *place, char *out, size_t size) {
    size_t n = 0;

    assert(*place == '/');
    for (place++; *place && *place != '/'; place++) {
        char c = *place;

        if (c == '~' && (place[1] == '0' || place[1] == '1'))
            c = *++place == '0' ? '~' : '/';
        if (n + 1 < size)
            out[n++] = c;
    }
    out[n] = 0;
    return place;
}

static yyjson_mut_val *child(yyjson_mut_val *v, const char *step) {
    char *end;

    if (yyjson_mut_is_obj(v))
        return yyjson_mut_obj_get(v, step);
    size_t i = strtoul(step, &end, 10);

    if (!yyjson_mut_is_arr(v) || !*step || *end)
        return NULL;
    return yyjson_mut_arr_get(v, i);
}

static void loosen_enter(struct spot *s, yyjson_mut_val *schema, size_t n_place) {
    s->schema = schema;
    s->keyword[0] = 0;
    s->n_schema = n_place;
}

static void find_spot(struct loosener *l, const char *place, struct spot *s) {
    yyjson_mut_val *at = l->schema;
    char step[PLACE_MAX];
    const char *p = place;

    *s = (struct spot){0};
    loosen_enter(s, at, 0);
    for (int depth = 0; *p && depth < DEPTH_MAX; depth++) {
        p = copy_step(p, step, sizeof(step));
        at = child(at, step);
        snprintf(s->keyword, sizeof(s->keyword), "%s", step);
        s->n_keyword = (size_t)(p - place);
        bool map = is_in(maps, step), list = yyjson_mut_is_arr(at);

        if (!at || (!map && !is_in(schemas, step)))
            return;
        if (strcmp(step, "oneOf") == 0)
            s->one_of = s->schema;
        s->is_property = strcmp(step, "properties") == 0;
        s->is_pattern = strcmp(step, "patternProperties") == 0;
        s->owner = s->schema;
        s->holder = map || list ? at : NULL;
        if (!map && !list) {
            loosen_enter(s, at, s->n_keyword);
            continue;
        }
        if (!*p)
            return;
        p = copy_step(p, s->name, sizeof(s->name));
        at = child(at, s->name);
        if (!at)
            return;
        loosen_enter(s, at, (size_t)(p - place));
    }
}

/* ---- taking out ---- */

/* Allows the members that a pattern allowed, although it is gone. */
static void allow_others(struct loosener *l, yyjson_mut_val *schema) {
    if (yyjson_mut_obj_get(schema, "additionalProperties"))
        yyjson_mut_obj_put(schema, yyjson_mut_str(l->doc, "additionalProperties"),
                           yyjson_mut_true(l->doc));
}

static bool remove_keyword(struct loosener *l, yyjson_mut_val *schema, const char *keyword) {
    static const char *const conditions[] = {"if", "then", "else"};
    bool found = yyjson_mut_obj_remove_key(schema, keyword);

    for (size_t i = 0; found && i < ARRAY_SIZE(conditions); i++) {
        if (strcmp(conditions[i], keyword) != 0)
            continue;
        for (size_t k = 0; k < ARRAY_SIZE(conditions); k++)
            yyjson_mut_obj_remove_key(schema, conditions[k]);
    }
    if (found && strcmp(keyword, "patternProperties") == 0)
        allow_others(l, schema);
    return found;
}

static bool loosen_is_kept(const char *key, yyjson_mut_val *v) {
    static const char *const kept[] = {"type", "description", "title", "default", NULL};

    if (key && strcmp(key, "enum") == 0)
        return yyjson_mut_arr_size(v) <= ENUM_MAX;
    return is_in(kept, key);
}

/* Leaves of @schema its type, and with @values a short list of values. Returns whether there was
 * more. */
static bool reduce(yyjson_mut_val *schema, bool values) {
    yyjson_mut_obj_iter it = yyjson_mut_obj_iter_with(schema);
    yyjson_mut_val *key;
    bool more = false;

    while ((key = yyjson_mut_obj_iter_next(&it))) {
        const char *name = json_mut_cstr(key);
        bool is_enum = name && strcmp(name, "enum") == 0;

        if (loosen_is_kept(name, yyjson_mut_obj_iter_get_val(key)) && (values || !is_enum))
            continue;
        yyjson_mut_obj_iter_remove(&it);
        more = true;
    }
    return more;
}

/* Takes a schema out of what holds it; a property is then no longer required. */
static bool remove_schema(struct loosener *l, const struct spot *s) {
    yyjson_mut_val *required = s->is_property ? yyjson_mut_obj_get(s->owner, "required") : NULL;
    size_t i, n;
    yyjson_mut_val *item;

    if (yyjson_mut_is_arr(s->holder)) {
        size_t at = strtoul(s->name, NULL, 10);

        if (yyjson_mut_obj_size(s->schema) == 0)
            return false;
        yyjson_mut_arr_replace(s->holder, at, yyjson_mut_obj(l->doc));
        return true;
    }
    yyjson_mut_arr_foreach(required, i, n, item) {
        if (yyjson_mut_equals_str(item, s->name)) {
            yyjson_mut_arr_remove(required, i);
            break;
        }
    }
    if (s->is_pattern)
        allow_others(l, s->owner);
    return yyjson_mut_obj_remove_key(s->holder, s->name);
}

/* With more allowed in one schema of a oneOf, "exactly one" could become none. */
static void open_choice(struct loosener *l, yyjson_mut_val *schema) {
    yyjson_mut_val *list = yyjson_mut_obj_get(schema, "oneOf");

    if (!list || yyjson_mut_obj_get(schema, "anyOf"))
        return;
    yyjson_mut_obj_remove_key(schema, "oneOf");
    yyjson_mut_obj_add_val(l->doc, schema, "anyOf", list);
}

static bool remove_at_place(struct loosener *l, const char *place) {
    char text[PLACE_MAX];
    struct spot s;
    size_t n;

    find_spot(l, place, &s);
    n = s.keyword[0] ? s.n_keyword : s.n_schema;
    bool taken = s.keyword[0] && remove_keyword(l, s.schema, s.keyword);

    if (!taken)
        n = s.n_schema;
    if (!taken && s.schema != l->schema && !s.is_pattern)
        taken = reduce(s.schema, false);
    if (!taken && s.holder)
        taken = remove_schema(l, &s);
    if (!taken)
        return false;
    if (s.one_of)
        open_choice(l, s.one_of);
    snprintf(text, sizeof(text), "%.*s", (int)MIN(n, (size_t)PLACE_MAX), place);
    loosen_note(l, text);
    return true;
}

/* ---- without a place ---- */

/* Adds @step to @place, with escapes. Returns the former length. */
static size_t loosen_push(char *place, const char *step) {
    size_t old = strlen(place), n = old;

    if (n + 1 < PLACE_MAX)
        place[n++] = '/';
    for (; step && *step && n + 2 < PLACE_MAX; step++) {
        char c = *step;

        if (c == '~' || c == '/') {
            place[n++] = '~';
            c = c == '~' ? '0' : '1';
        }
        place[n++] = c;
    }
    place[n] = 0;
    return old;
}

static bool remove_rules(struct loosener *l, yyjson_mut_val *schema, char *place, unsigned depth);

/* Takes the rules out of the schemas in @v, the value of @keyword. */
static bool remove_inner_rules(struct loosener *l, yyjson_mut_val *v, const char *keyword,
                               char *place, unsigned depth) {
    size_t old = loosen_push(place, keyword), i, n;
    yyjson_mut_val *key, *item;
    bool taken = false;
    char number[24];

    yyjson_mut_arr_foreach(v, i, n, item) {
        snprintf(number, sizeof(number), "%zu", i);
        size_t up = loosen_push(place, number);

        taken = remove_rules(l, item, place, depth) || taken;
        place[up] = 0;
    }
    yyjson_mut_obj_foreach(is_in(maps, keyword) ? v : NULL, i, n, key, item) {
        size_t up = loosen_push(place, json_mut_cstr(key));

        taken = remove_rules(l, item, place, depth) || taken;
        place[up] = 0;
    }
    if (yyjson_mut_is_obj(v) && !is_in(maps, keyword))
        taken = remove_rules(l, v, place, depth);
    place[old] = 0;
    return taken;
}

/* Takes all rules out of @schema, and of what it holds, that are about more than names, types and
 * listed values. */
static bool remove_rules(struct loosener *l, yyjson_mut_val *schema, char *place, unsigned depth) {
    static const char *const rules[] = {"pattern",
                                        "format",
                                        "minLength",
                                        "maxLength",
                                        "multipleOf",
                                        "minItems",
                                        "maxItems",
                                        "uniqueItems",
                                        "contains",
                                        "minContains",
                                        "maxContains",
                                        "minProperties",
                                        "maxProperties",
                                        "propertyNames",
                                        "patternProperties",
                                        "dependentRequired",
                                        "dependentSchemas",
                                        "dependencies",
                                        "not",
                                        "if",
                                        "unevaluatedProperties",
                                        "unevaluatedItems"};
    bool taken = false;

    if (depth == 0 || !yyjson_mut_is_obj(schema))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(rules); i++) {
        if (!remove_keyword(l, schema, rules[i]))
            continue;
        size_t old = loosen_push(place, rules[i]);

        loosen_note(l, place);
        place[old] = 0;
        taken = true;
    }
    if (yyjson_mut_obj_get(schema, "oneOf"))
        open_choice(l, schema);
    for (size_t i = 0; maps[i]; i++)
        taken =
            remove_inner_rules(l, yyjson_mut_obj_get(schema, maps[i]), maps[i], place, depth - 1) ||
            taken;
    for (size_t i = 0; schemas[i]; i++)
        taken = remove_inner_rules(l, yyjson_mut_obj_get(schema, schemas[i]), schemas[i], place,
                                   depth - 1) ||
                taken;
    return taken;
}

/* Leaves of the arguments their names, whether they are required, their types, and with @values
 * short lists of values. */
static bool remove_deep_rules(struct loosener *l, bool values) {
    static const char *const own[] = {"type", "properties", "required", "description", NULL};
    static const char *const no_rules[] = {"$defs", "definitions", "$schema",  "$id",
                                           "title", "$comment",    "examples", NULL};
    yyjson_mut_val *properties = yyjson_mut_obj_get(l->schema, "properties"), *key, *v;
    yyjson_mut_obj_iter it = yyjson_mut_obj_iter_with(l->schema);
    bool taken = false;
    size_t i, n;

    while ((key = yyjson_mut_obj_iter_next(&it))) {
        const char *name = json_mut_cstr(key);
        char place[PLACE_MAX] = "";

        if (is_in(own, name))
            continue;
        yyjson_mut_obj_iter_remove(&it);
        taken = true;
        if (is_in(no_rules, name))
            continue;
        loosen_push(place, name);
        loosen_note(l, place);
    }
    yyjson_mut_obj_foreach(properties, i, n, key, v) {
        char place[PLACE_MAX] = "/properties";

        if (!reduce(v, values))
            continue;
        loosen_push(place, json_mut_cstr(key));
        loosen_note(l, place);
        taken = true;
    }
    return taken && yyjson_mut_obj_size(properties) > 0;
}

/* Returns whether the schema still says anything of the arguments. */
static bool loosen_has_shape(yyjson_mut_val *schema) {
    static const char *const shapes[] = {
        "properties", "patternProperties", "additionalProperties", "anyOf", "oneOf", "allOf",
        "$ref"};
    bool found = false;

    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
        found = found || yyjson_mut_obj_get(schema, shapes[i]);
    return found;
}

bool loosen_schema(struct loosener *l, const char *place) {
    char path[PLACE_MAX] = "";

    if (!yyjson_mut_is_obj(l->schema))
        return false;
    if (*place && remove_at_place(l, place))
        return loosen_has_shape(l->schema);
    if (l->step < LOOSEN_RULES) {
        l->step = LOOSEN_RULES;
        if (remove_rules(l, l->schema, path, DEPTH_MAX))
            return true;
    }
    if (l->step < LOOSEN_DEEP) {
        l->step = LOOSEN_DEEP;
        if (remove_deep_rules(l, true))
            return true;
    }
    if (l->step < LOOSEN_VALUES) {
        l->step = LOOSEN_VALUES;
        if (remove_deep_rules(l, false))
            return true;
    }
    l->step = LOOSEN_ALL;
    return false;
}
