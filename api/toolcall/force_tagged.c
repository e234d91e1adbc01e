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
#include "base/try.h"

#define KEY_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.$@:/-"
#define ANY_KEY "[A-Za-z_][A-Za-z0-9_]{0,63}"
#define LOOSE_MAX 64

/* Sets f->stop to the tag that closes a value, without the white space before it. */
void force_set_stop(struct force *f) {
    const char *at = f->shape->value_end + strspn(f->shape->value_end, "\n");

    snprintf(f->stop, sizeof(f->stop), "%.*s", (int)strcspn(at, "\n{"), at);
}

/* Makes the node for {type} of a value that is no string. */
static yyjson_mut_val *type_of(struct force *f, unsigned types) {
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

/* Make the node of key_end VALUE value_end: bare() for a value that is written bare, as_json() for
 * one that is written as JSON. */
static yyjson_mut_val *bare(struct force *f, yyjson_mut_val *value) {
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
                marked && strstr(s->key_end_json, "{type}") ? type_of(f, types) : NULL);
    ir_add(f->n, list, value);
    force_piece(f, list, s->value_end, NULL);
    return list;
}

/* Makes the node of everything after the key. */
static int value_node(struct force *f, yyjson_val *root, yyjson_val *schema, yyjson_mut_val **out) {
    unsigned types = value_schema_types(root, schema);
    bool nullable = types == (VALUE_STRING | VALUE_NULL);
    yyjson_mut_val *value = NULL;

    if (types == VALUE_STRING) {
        TRY(force_text(f, root, schema, f->stop, &value));
        *out = bare(f, value);
        return 0;
    }
    TRY(force_json(f, root, schema, &value));
    *out = as_json(f, value, types);
    if (!nullable || value_has_text_rules(root, schema))
        return 0;
    /* A bare value must not begin like JSON. */
    yyjson_mut_val *text = ir_make(f->n, "{sequence:[{regex:%}, {free_text:%}]}",
                                   ir_str(f->n, "[^<\"\\[{ \\n\\t\\r]"), ir_str(f->n, f->stop));
    *out = ir_make(f->n, "{either:[%, %]}", *out, bare(f, text));
    return 0;
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
    yyjson_mut_val *value = bare(f, ir_text(f->n, "free_text", f->stop));

    if (f->shape->key_end_json)
        value = ir_make(f->n, "{either:[%, %]}", value,
                        as_json(f, ir_json(f->n, yyjson_mut_true(f->n->doc), NULL), 0));
    return ir_repeat(f->n, parameter(f, ir_text(f->n, "regex", ANY_KEY), value), NULL, 0,
                     LOOSE_MAX);
}

int force_tagged(struct force *f, yyjson_mut_val **out) {
    yyjson_val *root = f->tool->parameters, *schema = NULL;
    int r = f->tool->loose ? 0 : force_root(f, &schema);

    if (r < 0)
        return r;
    force_set_stop(f);
    if (f->tool->loose) {
        *out = loose(f);
        return 0;
    }
    *out = ir_list(f->n, "sequence");
    JSON_MEMBERS(key, prop, yyjson_obj_get(schema, "properties")) {
        const char *name = json_cstr(key);
        yyjson_mut_val *value = NULL;

        f->prop = name ? name : "";
        if (!name || !*name || name[strspn(name, KEY_CHARS)] || strlen(name) > TC_KEY_MAX)
            return force_refuse(f,
                                "a property name other than 1 to %u letters, digits, '_', '.', "
                                "'$', '@', ':', '/' and '-'",
                                TC_KEY_MAX);
        TRY(value_node(f, root, prop, &value));
        value = parameter(f, ir_text(f->n, "literal", name), value);
        ir_add(f->n, *out, force_is_required(schema, key) ? value : ir_optional(f->n, value));
    }
    return 0;
}
