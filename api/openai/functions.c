#include "api/openai/functions.h"

#include <stdio.h>

#include "api/generation/gen_request.h"
#include "api/http/json.h"
#include "api/http/json_build.h"
#include "base/json_read.h"
#include "base/try.h"

static yyjson_mut_val *wrap(yyjson_mut_doc *doc, yyjson_val *v) {
    return json_make(doc, "{type:'function', function:%}", yyjson_val_mut_copy(doc, v));
}

static int functions_put_tools(yyjson_mut_doc *doc, yyjson_mut_val *root, yyjson_val *functions,
                               struct err *err) {
    yyjson_mut_val *tools = yyjson_mut_arr(doc);
    char place[40];

    if (!yyjson_is_arr(functions) || yyjson_arr_size(functions) > REQUEST_TOOLS_MAX)
        return json_refuse(err, "functions", "must be an array of at most 1024 functions");
    JSON_EACH_AT(i, f, functions) {
        snprintf(place, sizeof(place), "functions[%zu].name", i);
        if (!json_is_name(yyjson_obj_get(f, "name"), REQUEST_NAME_MAX))
            return json_refuse(err, place, "must be a string of 1 to 256 bytes without NUL");
        yyjson_mut_arr_append(tools, wrap(doc, f));
    }
    yyjson_mut_obj_add_val(doc, root, "tools", tools);
    return 0;
}

static int functions_put_choice(yyjson_mut_doc *doc, yyjson_mut_val *root, yyjson_val *choice,
                                struct err *err) {
    if (!choice)
        return 0;
    if (!yyjson_is_obj(choice) && !json_is(choice, "auto none"))
        return json_refuse(err, "function_call", "must be auto, none or an object with a name");
    if (yyjson_is_obj(choice))
        yyjson_mut_obj_add_val(doc, root, "tool_choice", wrap(doc, choice));
    else
        json_put_copy(doc, root, "tool_choice", choice);
    return 0;
}

int functions_translate(yyjson_doc **body, bool *found, struct err *err) {
    yyjson_val *from = yyjson_doc_get_root(*body), *tools = yyjson_obj_get(from, "tools");
    yyjson_val *functions = yyjson_obj_get(from, "functions");

    *found = functions && !json_is_empty(functions);
    if (!*found)
        return 0;
    if (!json_is_empty(tools))
        return json_refuse(err, "functions", "and tools cannot be given together");
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = json_doc_copy(*body, &failed);
    yyjson_mut_val *root = yyjson_mut_doc_get_root(doc);
    yyjson_doc *to = NULL;
    static const char *const old[] = {"functions", "function_call", "tools", "tool_choice",
                                      "parallel_tool_calls"};
    for (size_t i = 0; i < ARRAY_SIZE(old); i++)
        yyjson_mut_obj_remove_key(root, old[i]);
    TRY(functions_put_tools(doc, root, functions, err));
    TRY(functions_put_choice(doc, root, json_given(from, "function_call"), err));
    yyjson_mut_obj_add_bool(doc, root, "parallel_tool_calls", false);
    TRY(json_doc_seal(doc, root, &to));
    yyjson_doc_free(*body);
    *body = to;
    return 0;
}
