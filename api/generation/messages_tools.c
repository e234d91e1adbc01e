/* Checks and copies the tools of a chat: all that the model may call, and those of them that it
 * sees from the start. */

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "api/generation/custom.h"
#include "api/generation/messages.h"
#include "api/generation/tool_forms.h"
#include "api/http/json.h"
#include "api/http/json_build.h"
#include "base/json_read.h"
#include "base/try.h"

static int messages_add_custom(struct gen_request *r, yyjson_val *tool, size_t i,
                               yyjson_mut_doc *doc, yyjson_mut_val *list, struct err *err) {
    yyjson_val *custom = custom_tool(tool), *name = yyjson_obj_get(custom, "name");
    TRY(custom_check(tool, i, err));
    assert(r->made.n_customs < yyjson_arr_size(r->input.tools));
    const char *kept = arena_strndup(&r->arena, json_text(name), json_len(name));
    if (!kept || !yyjson_mut_arr_append(list, custom_as_function(doc, custom)))
        return -ENOMEM;
    r->made.customs[r->made.n_customs++] = kept;
    return 0;
}

static bool messages_is_schema(yyjson_val *v) {
    return yyjson_is_obj(v) || tool_forms_has_no_parameters(v);
}

const char *messages_wrong_member(yyjson_val *f, const char **must) {
    static const struct {
        const char *name, *must;
        bool (*is)(yyjson_val *v);
    } members[] = {{"description", "must be a string", yyjson_is_str},
                   {"parameters", "must be an object", messages_is_schema},
                   {"strict", "must be a boolean", yyjson_is_bool}};

    for (size_t i = 0; i < ARRAY_SIZE(members); i++) {
        yyjson_val *v = json_given(f, members[i].name);

        if (!v || members[i].is(v))
            continue;
        *must = members[i].must;
        return members[i].name;
    }
    return NULL;
}

/* Checks the members of a function, that of tools[@i]. */
static int check_function(yyjson_val *f, size_t i, struct err *err) {
    const char *must = "must be a string of 1 to 256 bytes without NUL", *wrong = "name";
    char param[64];

    if (json_is_name(yyjson_obj_get(f, "name"), REQUEST_NAME_MAX))
        wrong = messages_wrong_member(f, &must);
    if (!wrong)
        return 0;
    snprintf(param, sizeof(param), "tools[%zu].function.%s", i, wrong);
    return json_refuse(err, param, must);
}

/* Copies functions, and custom tools as functions. A tool of another type is meant for another
 * service and is left out. */
static int copy_functions(struct gen_request *r, yyjson_mut_doc *doc, yyjson_mut_val *list,
                          struct err *err) {
    r->made.n_customs = 0;
    r->made.customs =
        arena_alloc_array(&r->arena, yyjson_arr_size(r->input.tools) + 1, sizeof(*r->made.customs));
    if (!r->made.customs)
        return -ENOMEM;
    JSON_EACH_AT(i, tool, r->input.no_tools ? NULL : r->input.tools) {
        yyjson_val *type = yyjson_obj_get(tool, "type");

        if (custom_tool(tool))
            TRY(messages_add_custom(r, tool, i, doc, list, err));
        if (yyjson_is_str(type) && !yyjson_equals_str(type, "function"))
            continue;
        TRY(check_function(yyjson_obj_get(tool, "function"), i, err));
        yyjson_mut_arr_append(list, yyjson_val_mut_copy(doc, tool));
    }
    return 0;
}

static bool messages_is_deferred(yyjson_mut_val *tool) {
    return yyjson_mut_get_bool(yyjson_mut_obj_get(tool, "defer_loading"));
}

/* Sets r->shown to the functions of @list that are not deferred, unless none is deferred. */
static int set_shown(struct gen_request *r, yyjson_mut_doc *doc, yyjson_mut_val *list) {
    size_t n = yyjson_mut_arr_size(list), n_kept = 0;

    for (size_t i = n; i-- > 0;)
        if (messages_is_deferred(yyjson_mut_arr_get_first(list))) {
            yyjson_mut_arr_remove_first(list);
        } else {
            yyjson_mut_arr_rotate(list, 1); /* fails for a list of one, which needs no rotation */
            n_kept++;
        }
    assert(yyjson_mut_arr_size(list) == n_kept);
    if (n_kept == n)
        return 0;
    return json_doc_seal(doc, list, &r->made.shown);
}

int messages_functions(struct gen_request *r, struct err *err) {
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = json_doc_new(&failed);
    yyjson_mut_val *list = yyjson_mut_arr(doc);

    TRY(copy_functions(r, doc, list, err));
    if (!failed && !yyjson_mut_arr_size(list))
        return 0;
    TRY(json_doc_seal(doc, list, &r->made.functions));
    return set_shown(r, doc, list);
}

/* ---- for simple templates ---- */

static void simplify(yyjson_mut_doc *doc, yyjson_mut_val *schema);

static void simplify_all(yyjson_mut_doc *doc, yyjson_mut_val *schemas) {
    yyjson_mut_val *key, *one;
    size_t i, n;

    if (yyjson_mut_is_arr(schemas)) {
        yyjson_mut_arr_foreach(schemas, i, n, one) simplify(doc, one);
        return;
    }
    yyjson_mut_obj_foreach(schemas, i, n, key, one) simplify(doc, one);
}

/* Returns true if @type is a type of JSON Schema other than null. */
static bool is_type(yyjson_mut_val *type) {
    static const char *const types[] = {"string",  "number", "integer",
                                        "boolean", "array",  "object"};

    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (yyjson_mut_equals_str(type, types[i]))
            return true;
    return false;
}

/* Sets the type of @schema to the first one that is_type() accepts, or removes it. Templates'
 * macros that translate types call themselves without end for a type that they do not know. Such
 * macros also read additionalProperties of an object, which therefore gets an empty one. */
static void simplify_type(yyjson_mut_doc *doc, yyjson_mut_val *schema) {
    yyjson_mut_val *types = yyjson_mut_obj_get(schema, "type"), *one, *first = NULL;
    size_t i, n;

    if (is_type(types))
        first = types;
    yyjson_mut_arr_foreach(types, i, n, one) {
        if (!first && is_type(one))
            first = one;
    }
    if (first != types)
        yyjson_mut_obj_remove_key(schema, "type");
    if (first && first != types)
        yyjson_mut_obj_add_strn(doc, schema, "type", json_mut_text(first), json_mut_len(first));
    if (yyjson_mut_equals_str(first, "object") &&
        !yyjson_mut_obj_get(schema, "additionalProperties"))
        yyjson_mut_obj_add_obj(doc, schema, "additionalProperties");
}

/* Rewrites what templates that walk through @schema fail on: keywords that are null, schemas that
 * are no object, lists of types, types that JSON Schema does not have, and descriptions that are no
 * text. The recursion is as deep as the body, which is bounded. */
static void simplify(yyjson_mut_doc *doc, yyjson_mut_val *schema) {
    static const char *const inner[] = {"items", "additionalProperties"};
    static const char *const many[] = {"properties", "anyOf", "oneOf",
                                       "allOf",      "$defs", "definitions"};
    yyjson_mut_obj_iter it = yyjson_mut_obj_iter_with(schema);
    yyjson_mut_val *key, *v;

    if (!yyjson_mut_is_obj(schema)) {
        yyjson_mut_set_obj(schema);
        return;
    }
    while ((key = yyjson_mut_obj_iter_next(&it)))
        if (yyjson_mut_is_null(yyjson_mut_obj_iter_get_val(key)) &&
            !yyjson_mut_equals_str(key, "const") && !yyjson_mut_equals_str(key, "default"))
            yyjson_mut_obj_iter_remove(&it);
    if (!yyjson_mut_is_str(yyjson_mut_obj_get(schema, "description")))
        yyjson_mut_obj_remove_key(schema, "description");
    simplify_type(doc, schema);
    for (size_t i = 0; i < ARRAY_SIZE(inner); i++)
        if ((v = yyjson_mut_obj_get(schema, inner[i])) && (i == 0 || yyjson_mut_is_obj(v)))
            simplify(doc, v);
    for (size_t i = 0; i < ARRAY_SIZE(many); i++)
        simplify_all(doc, yyjson_mut_obj_get(schema, many[i]));
}

/* Gives @o an empty description if it has none. */
static void messages_describe(yyjson_mut_doc *doc, yyjson_mut_val *o) {
    if (yyjson_mut_is_str(yyjson_mut_obj_get(o, "description")))
        return;
    yyjson_mut_obj_remove_key(o, "description");
    yyjson_mut_obj_add_str(doc, o, "description", "");
}

void messages_simplify_tools(yyjson_mut_doc *doc, yyjson_mut_val *tools) {
    yyjson_mut_val *tool, *parameters, *key, *property;
    size_t i, n, k, n_properties;

    yyjson_mut_arr_foreach(tools, i, n, tool) {
        yyjson_mut_val *f = yyjson_mut_obj_get(tool, "function");

        if (!f)
            continue;
        messages_describe(doc, f);
        parameters = yyjson_mut_obj_get(f, "parameters");
        if (!parameters)
            parameters = yyjson_mut_obj_add_obj(doc, f, "parameters");
        simplify(doc, parameters);
        if (!yyjson_mut_is_obj(yyjson_mut_obj_get(parameters, "properties"))) {
            yyjson_mut_obj_remove_key(parameters, "properties");
            yyjson_mut_obj_add_obj(doc, parameters, "properties");
        }
        yyjson_mut_obj_foreach(yyjson_mut_obj_get(parameters, "properties"), k, n_properties, key,
                               property) {
            messages_describe(doc, property);
        }
    }
}
