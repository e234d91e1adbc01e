/*
 * Objects that a format spells in its own way: Python's keyword arguments (values as JSON, or True,
 * False and None, which models write as well), and Gemma's bare keys and quotes that are a special
 * token. Keys come in the order in which Gemma's template sorts them. A key is written as it is, so
 * it may have a '.' and be no name of Python's: the model reads it so in its list of tools.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "api/toolcall/force.h"
#include "api/toolcall/parser.h"
#include "base/json_read.h"
#include "base/try.h"

#define KEY_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
#define ANY_KEY "[A-Za-z_][A-Za-z0-9_.-]{0,63}"
#define QUOTE FORCE_GEMMA_QUOTE
#define LOOSE_MAX 64
#define MEMBERS_MAX 512
#define LEADING_MAX                                                                                \
    24 /* optional members before the first required one: their grammar is quadratic */
#define GEMMA_DEPTH 6
#define ANY_DEPTH 3

/* ---- the keywords of an object ---- */

int force_check_object(struct force *f, yyjson_val *schema) {
    static const char *const never[] = {
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "enum",
        "const",
        "patternProperties",
        "minProperties",
        "maxProperties",
        "propertyNames",
        "dependentRequired",
        "dependencies",
        "dependentSchemas",
    };
    yyjson_val *type = yyjson_obj_get(schema, "type");
    yyjson_val *properties = yyjson_obj_get(schema, "properties");

    if (!yyjson_is_obj(schema) || (type && !yyjson_equals_str(type, "object")))
        return force_refuse(f, "a schema that does not describe an object");
    for (size_t i = 0; i < ARRAY_SIZE(never); i++)
        if (yyjson_obj_get(schema, never[i]))
            return force_refuse(f, "\"%s\"", never[i]);
    if (yyjson_obj_size(properties) > MEMBERS_MAX ||
        yyjson_arr_size(yyjson_obj_get(schema, "required")) > MEMBERS_MAX)
        return force_refuse(f, "an object of more than %d properties", MEMBERS_MAX);
    JSON_EACH(item, yyjson_obj_get(schema, "required")) {
        if (!yyjson_obj_getn(properties, json_text(item), json_len(item)))
            return force_refuse(f, "the required property \"%.40s\" without a schema",
                                or_empty(json_cstr(item)));
    }
    return 0;
}

int force_root(struct force *f, yyjson_val **out) {
    yyjson_val *root = f->tool->parameters;

    *out = NULL;
    if (!root || yyjson_is_null(root))
        return 0;
    int r = force_resolve(f, root, root, out);

    return r < 0 ? r : force_check_object(f, *out);
}

bool force_is_required(yyjson_val *schema, yyjson_val *key) {
    JSON_EACH(item, yyjson_obj_get(schema, "required")) {
        if (yyjson_equals(item, key))
            return true;
    }
    return false;
}

/* ---- members with separators between them */

/* Adds the members from @from on, each with a separator before it. */
static void add_rest(struct force *f, yyjson_mut_val *list, const struct force_member *item,
                     size_t from, size_t n, const char *separator) {
    assert(from <= n);
    for (size_t i = from; i < n; i++) {
        yyjson_mut_val *one = ir_make(f->n, "{sequence:[{literal:%}, %]}", ir_str(f->n, separator),
                                      ir_copy(f->n, item[i].what));

        ir_add(f->n, list, item[i].required ? one : ir_optional(f->n, one));
    }
}

int force_members(struct force *f, const struct force_member *item, size_t n, const char *separator,
                  yyjson_mut_val **out) {
    yyjson_mut_val *either = ir_list(f->n, "either");
    size_t n_leading = 0;

    while (n_leading < n && !item[n_leading].required)
        n_leading++;
    if (n_leading > LEADING_MAX)
        return force_refuse(f, "%zu optional properties before the first required one (at most %d)",
                            n_leading, LEADING_MAX);
    for (size_t i = 0; i < n && i <= n_leading; i++) {
        yyjson_mut_val *list = ir_make(f->n, "{sequence:[%]}", ir_copy(f->n, item[i].what));

        add_rest(f, list, item, i + 1, n, separator);
        ir_add(f->n, either, list);
    }
    if (n_leading == n)
        ir_add(f->n, either, ir_list(f->n, "sequence"));
    *out = either;
    return 0;
}

struct property {
    const char *name;
    yyjson_val *key, *schema;
};

static int by_name(const void *a, const void *b) {
    const struct property *x = a, *y = b;
    int r = strcasecmp(x->name, y->name);

    return r ? r : strcmp(x->name, y->name);
}

/* Makes the node of one value in the format's form. */
typedef int (*value_fn)(struct force *f, yyjson_val *schema, unsigned depth, yyjson_mut_val **out);

/* Makes the nodes of the members of @schema, an object's, with @colon between key and value. */
static int object_members(struct force *f, yyjson_val *schema, bool sorted, const char *colon,
                          const char *separator, value_fn value, unsigned depth,
                          yyjson_mut_val **out) {
    yyjson_val *properties = yyjson_obj_get(schema, "properties");
    size_t n = yyjson_obj_size(properties), i = 0;
    CLEANUP(freep) struct property *p = calloc(n + 1, sizeof(*p));
    CLEANUP(freep) struct force_member *item = calloc(n + 1, sizeof(*item));

    if (!p || !item)
        return -ENOMEM;
    JSON_MEMBERS(key, v, properties) {
        p[i] = (struct property){json_cstr(key), key, v};
        f->prop = p[i].name ? p[i].name : "";
        if (!p[i].name)
            return force_refuse(f, "a property name with NUL");
        i++;
    }
    if (sorted)
        qsort(p, n, sizeof(*p), by_name);
    for (i = 0; i < n; i++) {
        const char *name = p[i].name;
        yyjson_mut_val *what = NULL;

        f->prop = name;
        if (!*name || name[strspn(name, KEY_CHARS)] || strlen(name) > TC_KEY_MAX)
            return force_refuse(
                f, "a property name other than 1 to %u letters, digits, '_', '.' and '-'",
                TC_KEY_MAX);
        TRY(value(f, p[i].schema, depth, &what));
        what = ir_make(f->n, "{sequence:[{literal:%}, {literal:%}, %]}", ir_str(f->n, name),
                       ir_str(f->n, colon), what);
        item[i] = (struct force_member){what, force_is_required(schema, p[i].key)};
    }
    return force_members(f, item, n, separator, out);
}

/* ---- Python ---- */

static int python_value(struct force *f, yyjson_val *schema, unsigned depth, yyjson_mut_val **out) {
    TRY(force_json(f, f->tool->parameters, schema, out));
    yyjson_mut_obj_add_bool(f->n->doc, *out, "python", true);
    return 0;
}

int force_python(struct force *f, yyjson_mut_val **out) {
    yyjson_val *schema = NULL;
    TRY(f->tool->loose ? 0 : force_root(f, &schema));
    if (!f->tool->loose)
        return object_members(f, schema, false, "=", ", ", python_value, 0, out);
    yyjson_mut_val *one = ir_make(
        f->n,
        "{sequence:[{regex:%}, {literal:'='}, {json_schema:true, any_format:true, python:true}]}",
        ir_str(f->n, ANY_KEY));
    *out = ir_repeat(f->n, one, ir_text(f->n, "literal", ", "), 0, LOOSE_MAX);
    return 0;
}

/* ---- Gemma ---- */

static yyjson_mut_val *quoted(struct force *f, yyjson_mut_val *text) {
    return ir_make(f->n, "{sequence:[{literal:'" QUOTE "'}, %, {literal:'" QUOTE "'}]}", text);
}

/* Writes a list in brackets of @min to @max items; a @max of 0 means no upper limit. */
static yyjson_mut_val *bracketed(struct force *f, const char *open, yyjson_mut_val *item,
                                 const char *close, uint32_t min, uint32_t max) {
    assert(max == 0 || min <= max);
    if (item)
        item = ir_repeat(f->n, item, ir_text(f->n, "literal", ","), min, max);
    return ir_make(f->n, "{sequence:[{literal:%}, %, {literal:%}]}", ir_str(f->n, open), item,
                   ir_str(f->n, close));
}

static yyjson_mut_val *gemma_any(struct force *f, unsigned depth);

static yyjson_mut_val *gemma_any_object(struct force *f, unsigned depth) {
    yyjson_mut_val *member =
        ir_make(f->n, "{sequence:[{regex:'[A-Za-z_][A-Za-z0-9_.-]*'}, {literal:':'}, %]}",
                gemma_any(f, depth));

    return bracketed(f, "{", member, "}", 0, 0);
}

/* Makes the node of values that are written as in JSON. */
static yyjson_mut_val *plain_json(struct force *f) {
    return ir_json(f->n, json_constant(f->n->doc, "{type:['number', 'boolean', 'null']}"), NULL);
}

static yyjson_mut_val *gemma_any(struct force *f, unsigned depth) {
    yyjson_mut_val *either = ir_list(f->n, "either");

    ir_add(f->n, either, quoted(f, ir_text(f->n, "free_text", QUOTE)));
    ir_add(f->n, either, plain_json(f));
    if (depth) {
        ir_add(f->n, either, bracketed(f, "[", gemma_any(f, depth - 1), "]", 0, 0));
        ir_add(f->n, either, gemma_any_object(f, depth - 1));
    }
    return either;
}

static bool is_type(const char *type, yyjson_val *v) {
    return type && ((strcmp(type, "string") == 0 && yyjson_is_str(v)) ||
                    (strcmp(type, "integer") == 0 && yyjson_is_int(v)) ||
                    (strcmp(type, "number") == 0 && yyjson_is_num(v)) ||
                    (strcmp(type, "boolean") == 0 && yyjson_is_bool(v)) ||
                    (strcmp(type, "null") == 0 && yyjson_is_null(v)));
}

/* Makes the node of a constant, which must be plain. @type is that of the schema, or NULL. */
static int gemma_constant(struct force *f, yyjson_val *v, yyjson_val *type, yyjson_mut_val **out) {
    bool fits = !type || is_type(json_cstr(type), v);

    JSON_EACH(one, type) {
        fits = fits || is_type(json_cstr(one), v);
    }
    if (!fits)
        return force_refuse(f, "a constant of another type");
    if (yyjson_is_ctn(v))
        return force_refuse(f, "an array or object as a constant");
    if (yyjson_is_str(v)) {
        if (!json_cstr(v) || strstr(json_cstr(v), QUOTE))
            return force_refuse(f, "a quote or NUL inside a constant");
        *out = quoted(f, ir_text(f->n, "literal", json_cstr(v)));
        return 0;
    }
    CLEANUP(freep) char *text = yyjson_val_write(v, 0, NULL);

    if (!text)
        return -ENOMEM;
    *out = ir_text(f->n, "literal", text);
    return 0;
}

static int gemma_value(struct force *f, yyjson_val *schema, unsigned depth, yyjson_mut_val **out);

/* Makes the node of a choice of the schemas, or constants, that @word lists. Schemas of a oneOf
 * must not have a type in common. */
static int gemma_union(struct force *f, yyjson_val *s, const char *word, unsigned depth,
                       yyjson_mut_val **out) {
    yyjson_mut_val *either = ir_list(f->n, "either"), *one = NULL;
    bool constants = strcmp(word, "enum") == 0, apart = strcmp(word, "oneOf") == 0;
    yyjson_val *type = yyjson_obj_get(s, "type"), *list = yyjson_obj_get(s, word);
    unsigned seen = 0;

    JSON_EACH(v, list) {
        unsigned types = apart ? value_schema_types(f->tool->parameters, v) : 0;

        if (apart && (!types || (types & seen)))
            return force_refuse(f, "oneOf of schemas with a type in common");
        seen |= types;
        TRY(constants ? gemma_constant(f, v, type, &one) : gemma_value(f, v, depth + 1, &one));
        ir_add(f->n, either, one);
    }
    *out = either;
    return yyjson_arr_size(list) ? 0 : force_refuse(f, "an empty list of alternatives");
}

static int gemma_array(struct force *f, yyjson_val *s, unsigned depth, yyjson_mut_val **out) {
    static const char *const never[] = {"prefixItems", "contains", "uniqueItems",
                                        "unevaluatedItems"};
    yyjson_val *items = yyjson_obj_get(s, "items"), *max = yyjson_obj_get(s, "maxItems");
    yyjson_val *min = yyjson_obj_get(s, "minItems");
    int64_t lo = 0, hi = UINT32_MAX;
    yyjson_mut_val *item = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(never); i++)
        if (yyjson_obj_get(s, never[i]) && !yyjson_is_false(yyjson_obj_get(s, never[i])))
            return force_refuse(f, "\"%s\"", never[i]);
    if ((min && !json_whole(min, &lo)) || (max && !json_whole(max, &hi)) || lo < 0 || lo > hi ||
        hi > UINT32_MAX)
        return force_refuse(
            f, "a minItems or maxItems that is no whole number up to %u, or out of order,",
            UINT32_MAX);
    if (hi == 0) {
        *out = bracketed(f, "[", NULL, "]", 0, 0);
        return 0;
    }
    if (yyjson_is_false(items))
        return force_refuse(f, "\"items\": false without \"maxItems\": 0");
    if (items && !yyjson_is_true(items))
        TRY(gemma_value(f, items, depth + 1, &item));
    else
        item = gemma_any(f, ANY_DEPTH - 1);
    *out = bracketed(f, "[", item, "]", (uint32_t)lo, max ? (uint32_t)hi : 0);
    return 0;
}

static int gemma_object(struct force *f, yyjson_val *s, unsigned depth, yyjson_mut_val **out) {
    const char *prop = f->prop;
    yyjson_mut_val *members = NULL;

    TRY(force_check_object(f, s));
    if (!yyjson_obj_get(s, "properties") &&
        !yyjson_is_false(yyjson_obj_get(s, "additionalProperties"))) {
        if (yyjson_is_obj(yyjson_obj_get(s, "additionalProperties")))
            return force_refuse(f, "a schema in \"additionalProperties\"");
        *out = gemma_any_object(f, ANY_DEPTH - 1);
        return 0;
    }
    int r = object_members(f, s, true, ":", ",", gemma_value, depth + 1, &members);
    f->prop = prop;
    if (r < 0)
        return r;
    *out = ir_make(f->n, "{sequence:[{literal:%}, %, {literal:'}'}]}", ir_str(f->n, "{"), members);
    return 0;
}

/* Makes the node of a value of one type, a member of the list in "type". */
static int gemma_typed(struct force *f, yyjson_val *s, const char *type, unsigned depth,
                       yyjson_mut_val **out) {
    yyjson_mut_val *text = NULL;

    if (strcmp(type, "string") == 0) {
        TRY(force_text(f, f->tool->parameters, s, QUOTE, &text));
        *out = quoted(f, text);
        return 0;
    }
    if (strcmp(type, "array") == 0)
        return gemma_array(f, s, depth, out);
    if (strcmp(type, "object") == 0)
        return gemma_object(f, s, depth, out);
    yyjson_mut_val *copy = ir_value(f->n, s);

    yyjson_mut_obj_remove_key(copy, "type");
    yyjson_mut_obj_add_strcpy(f->n->doc, copy, "type", type);
    *out = ir_arguments(f->n, copy, f->tool->param);
    return 0;
}

static int gemma_value(struct force *f, yyjson_val *schema, unsigned depth, yyjson_mut_val **out) {
    static const char *const alone[] = {"const", "enum"};
    yyjson_val *s = NULL, *constant;

    TRY(f->n->failed ? -ENOMEM : force_resolve(f, f->tool->parameters, schema, &s));
    if (depth > GEMMA_DEPTH)
        return force_refuse(f, "nesting of more than %d levels", GEMMA_DEPTH);
    for (size_t i = 0; i < ARRAY_SIZE(alone); i++)
        if (yyjson_obj_get(s, alone[i]))
            TRY(force_alone(f, s, alone[i]));
    if (yyjson_is_true(s)) {
        *out = gemma_any(f, ANY_DEPTH);
        return 0;
    }
    if (yyjson_obj_get(s, "allOf") || yyjson_obj_get(s, "not") || yyjson_obj_get(s, "if"))
        return force_refuse(f, "allOf, not or if");
    if ((constant = yyjson_obj_get(s, "const")))
        return gemma_constant(f, constant, yyjson_obj_get(s, "type"), out);
    if (yyjson_obj_get(s, "enum"))
        return gemma_union(f, s, "enum", depth, out);
    bool any = yyjson_obj_get(s, "anyOf");
    if (any || yyjson_obj_get(s, "oneOf")) {
        const char *word = any ? "anyOf" : "oneOf";

        TRY(force_alone(f, s, word));
        return gemma_union(f, s, word, depth, out);
    }
    yyjson_val *type = yyjson_obj_get(s, "type");
    if (yyjson_is_str(type) && !json_cstr(type))
        return force_refuse(f, "a \"type\" other than a name or a list of names");
    if (yyjson_is_str(type))
        return gemma_typed(f, s, json_cstr(type), depth, out);
    if (!yyjson_arr_size(type)) {
        *out = gemma_any(f, ANY_DEPTH);
        return yyjson_is_obj(s) && !yyjson_obj_get(s, "properties") && !value_has_text_rules(s, s)
                   ? 0
                   : force_refuse(f, "a schema without a type");
    }
    *out = ir_list(f->n, "either");
    JSON_EACH(v, type) {
        yyjson_mut_val *one = NULL;

        if (!json_cstr(v))
            return force_refuse(f, "a \"type\" other than a name or a list of names");
        TRY(gemma_typed(f, s, json_cstr(v), depth, &one));
        ir_add(f->n, *out, one);
    }
    return 0;
}

int force_gemma(struct force *f, yyjson_mut_val **out) {
    yyjson_val *schema = NULL;

    if (f->tool->loose) {
        *out = gemma_any_object(f, ANY_DEPTH);
        return 0;
    }
    TRY(force_root(f, &schema));
    if (!schema)
        *out = ir_text(f->n, "literal", "{}");
    return schema ? gemma_object(f, schema, 0, out) : 0;
}
