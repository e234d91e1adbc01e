/*
 * Values that are not written as JSON: their types come from the tool's schema, or, if that does
 * not tell, from their text. A string is passed on as it comes; any other value is held until its
 * end, since models also write Python's True or ['a'], or plain text where a number is wanted.
 */

#include <assert.h>
#include <string.h>

#include "api/toolcall/force.h"
#include "api/toolcall/parser.h"
#include "base/json_read.h"

#define SCHEMA_DEPTH 8
#define SCHEMA_STEPS 2000 /* unions of references to unions grow fast */

/* Returns the function in {"function": {"name"..}}, or the flat form itself. */
static yyjson_val *tool_function(yyjson_val *tool) {
    yyjson_val *f = yyjson_obj_get(tool, "function");

    if (f)
        return f;
    return tool;
}

/* Returns the tool called @name. */
static yyjson_val *find_tool(yyjson_val *tools, const char *name) {
    JSON_EACH(tool, tools) {
        yyjson_val *f = tool_function(tool);

        if (yyjson_equals_str(yyjson_obj_get(f, "name"), name))
            return f;
    }
    return NULL;
}

bool value_knows(yyjson_val *tools, const char *name) {
    return find_tool(tools, name);
}

bool value_may_know(yyjson_val *tools, const char *text, size_t len) {
    JSON_EACH(tool, tools) {
        yyjson_val *name = yyjson_obj_get(tool_function(tool), "name");

        if (json_len(name) >= len && memcmp(json_text(name), text, len) == 0)
            return true;
    }
    return false;
}

static unsigned named_type(const char *name) {
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {
        {"string", VALUE_STRING},   {"number", VALUE_NUMBER}, {"integer", VALUE_NUMBER},
        {"boolean", VALUE_BOOLEAN}, {"null", VALUE_NULL},     {"object", VALUE_OBJECT},
        {"array", VALUE_ARRAY},
    };

    for (size_t i = 0; name && i < ARRAY_SIZE(types); i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].type;
    return 0;
}

static unsigned value_type_of(yyjson_val *v) {
    switch (yyjson_get_type(v)) {
    case YYJSON_TYPE_STR:
        return VALUE_STRING;
    case YYJSON_TYPE_NUM:
        return VALUE_NUMBER;
    case YYJSON_TYPE_BOOL:
        return VALUE_BOOLEAN;
    case YYJSON_TYPE_NULL:
        return VALUE_NULL;
    case YYJSON_TYPE_OBJ:
        return VALUE_OBJECT;
    default:
        return VALUE_ARRAY;
    }
}

yyjson_val *value_resolve(yyjson_val *root, yyjson_val *schema) {
    yyjson_val *ref;

    for (int depth = 0; (ref = yyjson_obj_get(schema, "$ref")); depth++) {
        const char *text = json_cstr(ref);

        if (depth == SCHEMA_DEPTH || !text || *text != '#')
            return NULL;
        schema = yyjson_ptr_get(root, text + 1);
    }
    return schema;
}

static unsigned types_at(yyjson_val *root, yyjson_val *schema, int depth, int *steps);

/* Returns the types of all members of a union; 0 when one of them is unknown. */
static unsigned union_types(yyjson_val *root, yyjson_val *list, int depth, int *steps) {
    unsigned types = 0;

    JSON_EACH(v, list) {
        unsigned one = types_at(root, v, depth + 1, steps);

        if (!one)
            return 0;
        types |= one;
    }
    return types;
}

static unsigned types_at(yyjson_val *root, yyjson_val *schema, int depth, int *steps) {
    static const char *const unions[] = {"anyOf", "oneOf"};
    yyjson_val *s = value_resolve(root, schema), *constant;
    yyjson_val *type = yyjson_obj_get(s, "type"), *values = yyjson_obj_get(s, "enum");
    unsigned types = named_type(json_cstr(type));

    if (--*steps < 0)
        return 0;
    JSON_EACH(v, type) {
        types |= named_type(json_cstr(v));
    }
    if (types)
        return types;
    if ((constant = yyjson_obj_get(s, "const")))
        return value_type_of(constant);
    JSON_EACH(v, values) {
        types |= value_type_of(v);
    }
    for (size_t k = 0; k < ARRAY_SIZE(unions) && depth < SCHEMA_DEPTH && !types; k++)
        types = union_types(root, yyjson_obj_get(s, unions[k]), depth, steps);
    if (!types && depth < SCHEMA_DEPTH && yyjson_arr_size(yyjson_obj_get(s, "allOf")) == 1)
        types = types_at(root, yyjson_arr_get_first(yyjson_obj_get(s, "allOf")), depth + 1, steps);
    return types;
}

/* Returns the types that a schema allows; 0: unknown, or expressed in a form that is not
 * examined. */
unsigned value_schema_types(yyjson_val *root, yyjson_val *schema) {
    int steps = SCHEMA_STEPS;

    return types_at(root, schema, 0, &steps);
}

static bool is_annotation(yyjson_val *key) {
    static const char *const names[] = {"type",
                                        "description",
                                        "title",
                                        "default",
                                        "examples",
                                        "$comment",
                                        "readOnly",
                                        "writeOnly",
                                        "deprecated",
                                        "nullable",
                                        "format",
                                        "$schema",
                                        "$defs",
                                        "definitions",
                                        "$id",
                                        "example",
                                        "additionalProperties"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (yyjson_equals_str(key, names[i]))
            return true;
    return false;
}

static bool text_rules(yyjson_val *root, yyjson_val *schema, int depth, int *steps) {
    yyjson_val *s = value_resolve(root, schema);

    if (!s || depth == SCHEMA_DEPTH || --*steps < 0)
        return true;
    JSON_MEMBERS(key, v, s) {
        bool is_union = yyjson_equals_str(key, "anyOf") || yyjson_equals_str(key, "oneOf");

        if (!is_union && !is_annotation(key))
            return true;
        JSON_EACH(item, is_union ? v : NULL) {
            if (text_rules(root, item, depth + 1, steps))
                return true;
        }
    }
    return false;
}

bool value_has_text_rules(yyjson_val *root, yyjson_val *schema) {
    int steps = SCHEMA_STEPS;

    return text_rules(root, schema, 0, &steps);
}

unsigned value_types(yyjson_val *tools, const char *name, const char *key) {
    static const char *const places[] = {"parameters", "input_schema"};
    yyjson_val *tool = find_tool(tools, name);

    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        yyjson_val *root = yyjson_obj_get(tool, places[i]), *top = value_resolve(root, root);
        yyjson_val *schema = yyjson_obj_get(yyjson_obj_get(top, "properties"), key);

        if (schema)
            return value_schema_types(root, schema);
    }
    return 0;
}

static void value_note(struct toolcall_parser *p, int r) {
    if (r < 0 && p->error == 0)
        p->error = r;
}

void value_key(struct toolcall_parser *p) {
    assert(p->call.has_name && p->out.len == 0);
    value_note(p, buf_add_str(&p->out, p->call.n_params++ ? ", \"" : "{\""));
    value_note(p, scan_escape(&p->out, p->key, strlen(p->key)));
    value_note(p, buf_add_str(&p->out, "\": "));
    events_out(p);
}

void value_begin(struct toolcall_parser *p) {
    struct tc_value *v = &p->value;

    v->types = 0;
    if (v->forced_string)
        v->types = VALUE_STRING;
    else if (!v->forced_json)
        v->types = value_types(p->opts.tools, p->call.name, p->key);
    v->string = v->types == VALUE_STRING;
    v->forced_string = v->forced_json = false;
    v->quotes = (struct tc_quotes){0};
    buf_clear(&v->text);
    value_key(p);
    if (v->string)
        events_args(p, "\"", 1);
}

void value_feed(struct toolcall_parser *p, const char *data, size_t len) {
    if (!p->value.string) {
        value_note(p, buf_add(&p->value.text, data, len));
        return;
    }
    value_note(p, scan_escape(&p->out, data, len));
    events_out(p);
}

/* Returns true if the whole text is one value as @mode reads it; `out` then has it as JSON. */
static bool value_reads(struct toolcall_parser *p, enum scan_mode mode, const char *text,
                        size_t len) {
    struct scan s;
    size_t used;

    buf_clear(&p->out);
    scan_begin(&s, mode);
    int r = scan_feed(&s, text, len, &used, &p->out);

    if (r == SCAN_MORE)
        r = scan_end(&s, &p->out);
    value_note(p, r);
    return r == SCAN_DONE && used == len;
}

/* Returns the type of the JSON text that begins with @first. */
static unsigned value_type_at(char first) {
    switch (first) {
    case '{':
        return VALUE_OBJECT;
    case '[':
        return VALUE_ARRAY;
    case '"':
        return VALUE_STRING;
    case 't':
    case 'f':
        return VALUE_BOOLEAN;
    case 'n':
        return VALUE_NULL;
    default:
        return VALUE_NUMBER;
    }
}

/* Returns true if a schema of these types accepts the JSON text, rather than the same text as a
 * string. */
static bool suits(unsigned types, char first) {
    return !(types & VALUE_STRING) || (types & value_type_at(first));
}

void value_end(struct toolcall_parser *p) {
    struct tc_value *v = &p->value;

    if (v->string) {
        events_args(p, "\"", 1);
        return;
    }
    const char *text = v->text.len ? v->text.data : "";
    size_t len = v->text.len;

    while (len && strchr(" \n\t\r", text[len - 1]) && text[len - 1])
        len--;
    while (len && strchr(" \n\t\r", *text) && *text) {
        text++;
        len--;
    }
    bool json =
        len && (value_reads(p, SCAN_JSON, text, len) || value_reads(p, SCAN_PYTHON, text, len));

    assert(!json || p->out.len > 0 || p->error); /* a value that was read was written */
    if (!json || p->error || !suits(v->types, p->out.data[0])) {
        buf_clear(&p->out);
        value_note(p, buf_add_char(&p->out, '"'));
        value_note(p, scan_escape(&p->out, v->text.len ? v->text.data : "", v->text.len));
        value_note(p, buf_add_char(&p->out, '"'));
    }
    events_out(p);
    buf_clear(&v->text);
}
