#include "api/openai/functions.h"

#include <errno.h>
#include <stdio.h>
#include <yyjson.h>
#include "api/generation/gen_request.h"
#include "api/http/json.h"
#include "base/try.h"

static int refuse(const char *field, const char *must, struct err *err) {
    return err_set_code(err, 400, "invalid_value", field, "%s %s.", field, must);
}

static int put(yyjson_mut_doc *doc, yyjson_mut_val *object, const char *key, yyjson_mut_val *v) {
    return v && yyjson_mut_obj_add_val(doc, object, key, v) ? 0 : -ENOMEM;
}

/* Returns {"type": "function", "function": @v}. */
static yyjson_mut_val *wrap(yyjson_mut_doc *doc, yyjson_mut_val *v) {
    yyjson_mut_val *tool = yyjson_mut_obj(doc);

    return put(doc, tool, "type", yyjson_mut_str(doc, "function")) == 0 &&
                   put(doc, tool, "function", v) == 0
               ? tool
               : NULL;
}

static int put_tools(yyjson_mut_doc *doc, yyjson_mut_val *root, yyjson_val *functions,
                     struct err *err) {
    yyjson_mut_val *tools = yyjson_mut_arr(doc);
    yyjson_val *f;
    size_t i, n;
    char place[40];

    if (!yyjson_is_arr(functions) || yyjson_arr_size(functions) > REQUEST_TOOLS_MAX)
        return refuse("functions", "must be an array of at most 1024 functions", err);
    yyjson_arr_foreach(functions, i, n, f) {
        snprintf(place, sizeof(place), "functions[%zu].name", i);
        if (!json_is_name(yyjson_obj_get(f, "name"), REQUEST_NAME_MAX))
            return refuse(place, "must be a string of 1 to 256 bytes without NUL", err);
        yyjson_mut_val *tool = wrap(doc, yyjson_val_mut_copy(doc, f));
        if (!tool || !yyjson_mut_arr_append(tools, tool))
            return -ENOMEM;
    }
    return put(doc, root, "tools", tools);
}

static int put_choice(yyjson_mut_doc *doc, yyjson_mut_val *root, yyjson_val *choice,
                      struct err *err) {
    if (!choice || yyjson_is_null(choice))
        return 0;
    if (yyjson_is_obj(choice))
        return put(doc, root, "tool_choice", wrap(doc, yyjson_val_mut_copy(doc, choice)));
    if (!yyjson_equals_str(choice, "auto") && !yyjson_equals_str(choice, "none"))
        return refuse("function_call", "must be auto, none or an object with a name", err);
    return put(doc, root, "tool_choice", yyjson_val_mut_copy(doc, choice));
}

int functions_translate(yyjson_doc **body, bool *found, struct err *err) {
    yyjson_val *from = yyjson_doc_get_root(*body), *tools = yyjson_obj_get(from, "tools");
    yyjson_val *functions = yyjson_obj_get(from, "functions");

    *found = functions && !json_is_empty(functions);
    if (!*found)
        return 0;
    if (!json_is_empty(tools))
        return refuse("functions", "and tools cannot be given together", err);
    CLEANUP(yyjson_mut_doc_freep) yyjson_mut_doc *doc = yyjson_doc_mut_copy(*body, NULL);
    yyjson_mut_val *root = yyjson_mut_doc_get_root(doc);
    static const char *const old[] = {"functions", "function_call", "tools", "tool_choice",
                                      "parallel_tool_calls"};
    for (size_t i = 0; i < ARRAY_SIZE(old) && root; i++)
        yyjson_mut_obj_remove_key(root, old[i]);
    TRY(root ? put_tools(doc, root, functions, err) : -ENOMEM);
    TRY(put_choice(doc, root, yyjson_obj_get(from, "function_call"), err));
    TRY(put(doc, root, "parallel_tool_calls", yyjson_mut_bool(doc, false)));
    yyjson_doc *to = yyjson_mut_doc_imut_copy(doc, NULL);
    if (!to)
        return -ENOMEM;
    yyjson_doc_free(*body);
    *body = to;
    return 0;
}
