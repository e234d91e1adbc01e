#include "api/generation/tool_forms.h"

#include "api/generation/custom.h"
#include "api/generation/schema_types.h"
#include "api/http/json_build.h"
#include "base/json_read.h"
#include "base/try.h"

yyjson_val *tool_forms_function(yyjson_val *tool) {
    yyjson_val *f = json_given(tool, "function");

    if (f)
        return f;
    return tool;
}

yyjson_val *tool_forms_members(yyjson_val *tool) {
    yyjson_val *custom = custom_tool(tool);

    if (custom)
        return custom;
    return tool_forms_function(tool);
}

bool tool_forms_is_custom(yyjson_val *tool) {
    return json_has(tool, "type", "custom") && !tool_forms_schema(tool);
}

bool tool_forms_is_own(yyjson_val *tool) {
    if (json_given(tool, "type"))
        return json_has(tool, "type", "function custom");
    return json_given(tool, "name") || json_given(tool, "function");
}

yyjson_val *tool_forms_schema(yyjson_val *function) {
    yyjson_val *schema = json_given(function, "parameters");

    if (schema)
        return schema;
    return json_given(function, "input_schema");
}

bool tool_forms_has_no_parameters(yyjson_val *schema) {
    return !schema || (yyjson_is_arr(schema) && json_is_empty(schema));
}

/* Returns true for a tool whose members are beside its type. */
static bool tool_forms_is_flat(yyjson_val *tool) {
    return tool_forms_is_own(tool) && json_given(tool, "name") && tool_forms_members(tool) == tool;
}

/* Returns true for a tool in a chat's form whose parameters are an empty list. */
static bool tool_forms_has_list(yyjson_val *tool) {
    yyjson_val *parameters = json_given(json_given(tool, "function"), "parameters");

    return parameters && tool_forms_has_no_parameters(parameters);
}

/* Returns a copy of @tool, in a chat's form, without its parameters. */
static yyjson_mut_val *copy_without_parameters(yyjson_mut_doc *doc, yyjson_val *tool) {
    yyjson_mut_val *copy = yyjson_val_mut_copy(doc, tool);

    yyjson_mut_obj_remove_key(yyjson_mut_obj_get(copy, "function"), "parameters");
    return copy;
}

/* Returns the flat @tool in a chat's form. */
static yyjson_mut_val *tool_forms_wrap(yyjson_mut_doc *doc, yyjson_val *tool) {
    yyjson_val *given = tool_forms_schema(tool);
    yyjson_val *schema = tool_forms_has_no_parameters(given) ? NULL : given;

    if (tool_forms_is_custom(tool))
        return json_make(doc, "{type:'custom', custom:{name:%, description:%, format:%}}",
                         json_copy_of(doc, tool, "name"), json_copy_of(doc, tool, "description"),
                         json_copy_of(doc, tool, "format"));
    return json_make(doc,
                     "{type:'function', function:{name:%, description:%, parameters:%, strict:%}, "
                     "defer_loading:%}",
                     json_copy_of(doc, tool, "name"), json_copy_of(doc, tool, "description"),
                     yyjson_val_mut_copy(doc, schema), json_copy_of(doc, tool, "strict"),
                     json_copy_of(doc, tool, "defer_loading"));
}

/* Returns true if a tool has to be rewritten. */
static bool any_other(yyjson_val *tools) {
    JSON_EACH(tool, tools) {
        if (tool_forms_is_flat(tool) || tool_forms_has_list(tool))
            return true;
    }
    return false;
}

static void spell_types(yyjson_val *tools) {
    JSON_EACH(tool, tools) {
        schema_types_spell(tool_forms_schema(tool_forms_function(tool)));
    }
}

READER(tool_forms_read) {
    bool failed = false;

    TRY(field_array(r, m, f, v, err));
    spell_types(v);
    if (!any_other(v))
        return 0;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = json_doc_new(&failed);
    yyjson_mut_val *list = yyjson_mut_arr(doc);
    JSON_EACH(tool, v) {
        yyjson_mut_val *one;

        if (tool_forms_is_flat(tool))
            one = tool_forms_wrap(doc, tool);
        else if (tool_forms_has_list(tool))
            one = copy_without_parameters(doc, tool);
        else
            one = yyjson_val_mut_copy(doc, tool);
        yyjson_mut_arr_append(list, one);
    }
    TRY(json_doc_seal(doc, list, &r->input.tools_doc));
    r->input.tools = yyjson_doc_get_root(r->input.tools_doc);
    return 0;
}
