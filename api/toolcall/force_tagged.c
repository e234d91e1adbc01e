/*
 * Arguments between tags: a parameter for each property, in the order of the schema. A value that
 * the parser takes for a string, by its schema, is written bare, up to the closing tag; any other
 * value as JSON. A value that may be a string or null may be bare, too: the parser decides by its
 * text, and every text is one of the two.
 */

#include <stdio.h>
#include <string.h>

#include "api/toolcall/force.h"
#include "api/toolcall/parser.h"
#include "base/json_read.h"
#include "base/text.h"
#include "base/try.h"

#define KEY_NEVER                                                                                  \
    "<>\"\1\2\3\4\5\6\7\10\11\12\13\14\15\16\17\20\21\22\23\24\25\26\27\30\31\32\33\34\35"         \
    "\36\37"
#define ANY_KEY "[A-Za-z_][A-Za-z0-9_]{0,63}"
#define LOOSE_MAX 64

/* Sets f->stop to the tag that closes a value, without the white space before it. */
void force_set_stop(struct force *f) {
    const char *at = f->shape->value_end + strspn(f->shape->value_end, "\n");

    snprintf(f->stop, sizeof(f->stop), "%.*s", (int)strcspn(at, "\n{"), at);
}

/* Makes the node for {type} of a value that is no string. */
static yyjson_mut_val *tagged_type(struct force *f, unsigned types) {
    static const struct {
        unsigned type;
        const char *name;
    } names[] = {
        {VALUE_NUMBER, "number"}, {VALUE_NUMBER, "integer"}, {VALUE_BOOLEAN, "boolean"},
        {VALUE_NULL, "null"},     {VALUE_OBJECT, "object"},  {VALUE_ARRAY, "array"},
    };
    yyjson_mut_val *list = yyjson_mut_arr(f->n->doc);

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (!types || types == VALUE_STRING || (types & names[i].type))
            yyjson_mut_arr_add_str(f->n->doc, list, names[i].name);
    return ir_of(f->n, "choice", list);
}

/* Make the node of key_end VALUE value_end: tagged_bare() for a value that is written bare,
 * as_json() for one that is written as JSON. */
static yyjson_mut_val *tagged_bare(struct force *f, yyjson_mut_val *value) {
    yyjson_mut_val *list = ir_list(f->n, "sequence");

    force_piece(f, list, f->shape->key_end, NULL);
    ir_add(f->n, list, value);
    force_piece(f, list, f->shape->value_end, NULL);
    return list;
}

static yyjson_mut_val *as_json(struct force *f, yyjson_mut_val *value, unsigned types) {
    const struct toolcall_shape *s = f->shape;
    yyjson_mut_val *list = ir_list(f->n, "sequence");
    bool marked = s->key_end_json;

    force_piece(f, list, marked ? s->key_end_json : s->key_end,
                marked && strstr(s->key_end_json, "{type}") ? tagged_type(f, types) : NULL);
    ir_add(f->n, list, value);
    force_piece(f, list, s->value_end, NULL);
    return list;
}

/* ---- the schema of one parameter ---- */

#define REFS_DEPTH 64

/* Looks for references below @v. Sets *any if there is one, and *far if one leads elsewhere than
 * into the definitions. */
static void find_refs(yyjson_val *v, bool *any, bool *far, unsigned depth) {
    *far = *far || depth == REFS_DEPTH;
    JSON_EACH(item, v) {
        if (!*far)
            find_refs(item, any, far, depth + 1);
    }
    JSON_MEMBERS(key, item, v) {
        const char *ref = yyjson_equals_str(key, "$ref") ? json_cstr(item) : NULL;

        *any = *any || ref;
        *far = *far ||
               (ref && strncmp(ref, "#/$defs/", 8) != 0 && strncmp(ref, "#/definitions/", 14) != 0);
        if (!*far)
            find_refs(item, any, far, depth + 1);
    }
}

/* Returns what the schema of the parameter @key takes of the tool's: the parameter and the
 * definitions, or everything if it refers to something else. */
static yyjson_mut_val *tagged_part(struct force *f, yyjson_val *key, yyjson_val *schema) {
    static const char *const others[] = {"$schema", "$defs", "definitions"};
    yyjson_val *root = f->tool->parameters;
    bool any = false, far = false, unused = false;

    find_refs(schema, &any, &far, 0);
    for (size_t i = 1; i < ARRAY_SIZE(others) && any; i++)
        find_refs(yyjson_obj_get(root, others[i]), &unused, &far, 0);
    if (far && yyjson_obj_get(yyjson_obj_get(root, "properties"), json_cstr(key)))
        return ir_value(f->n, root);
    yyjson_mut_val *o = yyjson_mut_obj(f->n->doc), *properties = yyjson_mut_obj(f->n->doc);

    yyjson_mut_obj_add(properties, ir_value(f->n, key), ir_value(f->n, schema));
    yyjson_mut_obj_add_val(f->n->doc, o, "properties", properties);
    for (size_t i = 0; i < ARRAY_SIZE(others) && any; i++) {
        yyjson_val *v = yyjson_obj_get(root, others[i]);

        if (v)
            yyjson_mut_obj_add_val(f->n->doc, o, others[i], ir_value(f->n, v));
    }
    return o;
}

/* Makes the node of the value of the parameter @key; @stop NULL: as JSON, else a string up to
 * @stop. */
static yyjson_mut_val *tagged_value(struct force *f, yyjson_val *key, yyjson_val *schema,
                                    const char *stop) {
    yyjson_mut_val *o = ir_arguments(f->n, tagged_part(f, key, schema), f->tool->param);

    yyjson_mut_obj_add_val(f->n->doc, o, "property", ir_str(f->n, json_cstr(key)));
    if (stop)
        yyjson_mut_obj_add_val(f->n->doc, o, "stop", ir_str(f->n, stop));
    return o;
}

/* Returns the schema of the parameter by which its value is read, if it is another. */
static yyjson_val *sent_schema(const struct force *f, yyjson_val *key) {
    yyjson_val *root = f->tool->sent ? value_resolve(f->tool->sent, f->tool->sent) : NULL;

    return yyjson_obj_get(yyjson_obj_get(root, "properties"), json_cstr(key));
}

/* Makes the node of everything after the key. */
static yyjson_mut_val *value_node(struct force *f, yyjson_val *key, yyjson_val *schema) {
    yyjson_val *root = f->tool->parameters, *sent = sent_schema(f, key);
    unsigned types;

    if (sent)
        types = value_schema_types(f->tool->sent, sent);
    else
        types = value_schema_types(root, schema);
    bool nullable = types == (VALUE_STRING | VALUE_NULL);

    if (types == VALUE_STRING)
        return tagged_bare(f, tagged_value(f, key, schema, f->stop));
    yyjson_mut_val *value = as_json(f, tagged_value(f, key, schema, NULL), types);

    if (!nullable || value_has_text_rules(root, schema))
        return value;
    /* A bare value must not begin like JSON. */
    yyjson_mut_val *text = ir_make(f->n, "{sequence:[{regex:%}, {free_text:%}]}",
                                   ir_str(f->n, "[^<\"\\[{ \\n\\t\\r]"), ir_str(f->n, f->stop));

    return ir_make(f->n, "{either:[%, %]}", value, tagged_bare(f, text));
}

static yyjson_mut_val *parameter(struct force *f, yyjson_mut_val *key, yyjson_mut_val *value) {
    yyjson_mut_val *list = ir_list(f->n, "sequence");

    force_piece(f, list, f->shape->key_begin, NULL);
    ir_add(f->n, list, key);
    ir_add(f->n, list, value);
    return list;
}

/* Makes the node of parameters of any names and values. */
static yyjson_mut_val *loose(struct force *f) {
    yyjson_mut_val *value = tagged_bare(f, ir_text(f->n, "free_text", f->stop));

    if (f->shape->key_end_json)
        value = ir_make(f->n, "{either:[%, %]}", value,
                        as_json(f, ir_json(f->n, yyjson_mut_true(f->n->doc), NULL), 0));
    return ir_repeat(f->n, parameter(f, ir_text(f->n, "regex", ANY_KEY), value), NULL, 0,
                     LOOSE_MAX);
}

/* ---- the keywords of the object of all parameters ---- */

#define MEMBERS_MAX 512

/* Refuses what parameters, which are written one by one, cannot hold together. */
static int check_object(struct force *f, yyjson_val *schema) {
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
    yyjson_val *properties = yyjson_obj_get(schema, "properties");

    if (!yyjson_is_obj(schema) || !force_allows_object(schema))
        return force_refuse(f, "a schema that does not describe an object");
    for (size_t i = 0; i < ARRAY_SIZE(never); i++) {
        if (!yyjson_obj_get(schema, never[i]))
            continue;
        force_point(f, never[i], NULL);
        return force_refuse(f, "\"%s\"", never[i]);
    }
    if (yyjson_obj_size(properties) > MEMBERS_MAX ||
        yyjson_arr_size(yyjson_obj_get(schema, "required")) > MEMBERS_MAX)
        return force_refuse(f, "an object of more than %d properties", MEMBERS_MAX);
    JSON_EACH(item, yyjson_obj_get(schema, "required")) {
        if (yyjson_obj_getn(properties, json_text(item), json_len(item)))
            continue;
        force_point(f, "required", NULL);
        return force_refuse(f, "the required property \"%.40s\" without a schema",
                            text_or(json_cstr(item), ""));
    }
    return 0;
}

/* Sets *out to the checked schema of all arguments, NULL if there are none. */
static int tagged_find_root(struct force *f, yyjson_val **out) {
    yyjson_val *root = f->tool->parameters;

    *out = NULL;
    if (!root || yyjson_is_null(root))
        return 0;
    *out = value_resolve(root, root);
    if (!*out) {
        force_point(f, "$ref", NULL);
        return force_refuse(f, "a reference without a target");
    }
    return check_object(f, *out);
}

static bool is_required(yyjson_val *schema, yyjson_val *key) {
    JSON_EACH(item, yyjson_obj_get(schema, "required")) {
        if (yyjson_equals(item, key))
            return true;
    }
    return false;
}

/* Returns whether @name can stand between the marks of a format. */
static bool tagged_is_plain(const char *name) {
    size_t n = name ? strlen(name) : 0;

    return n && n <= TC_KEY_MAX && name[0] != ' ' && name[n - 1] != ' ' &&
           !name[strcspn(name, KEY_NEVER)];
}

int force_tagged(struct force *f, yyjson_mut_val **out) {
    yyjson_val *schema = NULL;

    TRY(f->tool->loose ? 0 : tagged_find_root(f, &schema));
    force_set_stop(f);
    if (f->tool->loose) {
        *out = loose(f);
        return 0;
    }
    yyjson_mut_val *before = ir_list(f->n, "sequence");
    force_piece(f, before, f->shape->key_begin, NULL);
    *out = ir_members(f->n, before);
    JSON_MEMBERS(key, prop, yyjson_obj_get(schema, "properties")) {
        const char *name = json_cstr(key);

        f->prop = text_or(name, "");
        force_point(f, "properties", f->prop);
        if (!tagged_is_plain(name))
            return force_refuse(f,
                                "a property name other than 1 to %u characters without controls, "
                                "'<', '>', '\"' and a blank at either end",
                                TC_KEY_MAX);
        yyjson_mut_val *value = value_node(f, key, prop);

        ir_add(f->n, *out, ir_member(f->n, name, value, !is_required(schema, key)));
    }
    return 0;
}
