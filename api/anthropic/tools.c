/*
 * Tools of a Messages request as functions of a chat.
 *
 * A tool may be defined without being shown (defer_loading): the model learns of it later, where a
 * result refers to it (tool_reference), or where a system message among the turns adds it. There
 * its description becomes text, and what stands before it in the prompt stays as it was and in the
 * cache. For the chat such a function has "defer_loading": it is known where calls are read, and
 * not given to the template. The tool searches that Anthropic's servers run are run here as well
 * (search.h); without tools to be found they are left out.
 */

#include <stdio.h>
#include <string.h>

#include "api/anthropic/input.h"
#include "api/generation/gen_request.h"
#include "api/generation/tool_forms.h"
#include "api/generation/tool_text.h"
#include "api/http/json.h"
#include "base/json_read.h"
#include "base/try.h"
#include "base/util.h"

#define LOOK_UPS_MAX 4096u /* searches of all tools for a name */

/* Tools whose schema is not in the request, so that the model must learn it from here. */
static const struct {
    /* schema: a shape of json_constant() */
    const char *type, *description, *schema;
} known[] = {
    {"bash_", "Run a command in a bash shell, whose state stays between calls.",
     "{type:'object', properties:{command:{type:'string', description:'The command to run.'}, "
     "restart:{type:'boolean', description:'Start the shell anew.'}}}"},
    {"text_editor_",
     "View, create and edit text files. view shows a file, with view_range only these lines, or "
     "lists a folder; create writes file_text; str_replace puts new_str where old_str is, which "
     "must be there once; insert puts insert_text after line insert_line.",
     "{type:'object', properties:{command:{type:'string', enum:['view', 'create', 'str_replace', "
     "'insert']}, path:{type:'string', description:'Path of the file or folder.'}, "
     "file_text:{type:'string'}, old_str:{type:'string'}, new_str:{type:'string'}, "
     "insert_line:{type:'integer'}, insert_text:{type:'string'}, view_range:{type:'array', "
     "items:{type:'integer'}}}, required:['command', 'path']}"},
    {"memory_",
     "Read and write files below /memories, which outlast this conversation. View /memories before "
     "a task, since an earlier one may have left notes there, and note what a later one needs. "
     "view shows a file, with view_range only these lines, or lists a folder; create writes "
     "file_text; str_replace puts new_str where old_str is, which must be there once; insert puts "
     "insert_text after line insert_line; delete removes path; rename moves old_path to new_path.",
     "{type:'object', properties:{command:{type:'string', enum:['view', 'create', 'str_replace', "
     "'insert', 'delete', 'rename']}, path:{type:'string', description:'For all commands but "
     "rename; begins with /memories.'}, file_text:{type:'string'}, old_str:{type:'string'}, "
     "new_str:{type:'string'}, insert_line:{type:'integer'}, insert_text:{type:'string'}, "
     "view_range:{type:'array', items:{type:'integer'}}, old_path:{type:'string'}, "
     "new_path:{type:'string'}}, required:['command']}"},
    {"computer_",
     "Use a computer by its screen, mouse and keyboard. screenshot shows the screen; clicks and "
     "mouse_move go to coordinate, left_click_drag goes there from start_coordinate; key and "
     "hold_key press text, a key or a combination like ctrl+s; type writes text; scroll goes "
     "scroll_amount steps in scroll_direction at coordinate; hold_key and wait last duration "
     "seconds. A coordinate is [x, y] in pixels from the upper left corner.",
     "{type:'object', properties:{action:{type:'string', enum:['screenshot', 'left_click', "
     "'right_click', 'middle_click', 'double_click', 'triple_click', 'mouse_move', "
     "'left_click_drag', 'left_mouse_down', 'left_mouse_up', 'cursor_position', 'key', "
     "'hold_key', 'type', 'scroll', 'wait']}, coordinate:{type:'array', items:{type:'integer'}, "
     "minItems:2, maxItems:2}, start_coordinate:{type:'array', items:{type:'integer'}, "
     "minItems:2, maxItems:2}, text:{type:'string'}, scroll_direction:{type:'string', "
     "enum:['up', 'down', 'left', 'right']}, scroll_amount:{type:'integer'}, "
     "duration:{type:'number'}}, required:['action']}"},
    {"tool_search_tool_regex",
     "Find tools that are not shown here. The pattern is a regular expression in the syntax of "
     "Python's re.search(), matched against names, descriptions and parameters of the tools; "
     "(?i) at its beginning ignores case. The tools that are found can be called afterwards.",
     "{type:'object', properties:{pattern:{type:'string', description:'At most 200 "
     "characters.'}}, required:['pattern']}"},
    {"tool_search_tool_bm25",
     "Find tools that are not shown here by words that their names, descriptions and parameters "
     "may contain. The tools that are found can be called afterwards.",
     "{type:'object', properties:{query:{type:'string', description:'What the tool should do.'}}, "
     "required:['query']}"},
};

/* Returns the tool of this name, or NULL. */
static yyjson_mut_val *anthropic_find_tool(const struct anthropic_input *in, yyjson_val *name) {
    yyjson_mut_val *tool;
    size_t i, n;

    yyjson_mut_arr_foreach(in->tools, i, n, tool) {
        yyjson_mut_val *f = yyjson_mut_obj_get(tool, "function");

        if (yyjson_mut_equals_strn(yyjson_mut_obj_get(f, "name"), json_text(name), json_len(name)))
            return tool;
    }
    return NULL;
}

/* Adds a function, whose description may be NULL. */
static yyjson_mut_val *anthropic_add_function(struct anthropic_input *in, yyjson_val *name,
                                              yyjson_mut_val *description, yyjson_mut_val *schema) {
    yyjson_mut_val *tool =
        json_make(in->doc, "{type:'function', function:{name:%, description:%, parameters:%}}",
                  yyjson_val_mut_copy(in->doc, name), description, schema);

    yyjson_mut_arr_append(in->tools, tool);
    return tool;
}

/* Adds @tool as entry @i of known[]. A computer's coordinates depend on its display. */
static int add_known(struct anthropic_input *in, yyjson_val *tool, yyjson_val *name, size_t i) {
    int64_t width = 0, height = 0;
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    TRY(buf_add_str(&text, known[i].description));
    if (json_whole(yyjson_obj_get(tool, "display_width_px"), &width) && width >= 0 &&
        json_whole(yyjson_obj_get(tool, "display_height_px"), &height) && height >= 0)
        TRY(buf_printf(&text, " The display has %ld x %ld pixels.", width, height));
    anthropic_add_function(in, name, json_text_of(in->doc, &text),
                           json_constant(in->doc, known[i].schema));
    return 0;
}

/* Adds a tool of the client's, also one in the form of another API. There a function needs no
 * schema. */
static int anthropic_add_custom(struct anthropic_input *in, yyjson_val *tool, yyjson_val *name,
                                bool hidden) {
    yyjson_val *members = tool_forms_members(tool), *schema = tool_forms_schema(members);
    yyjson_val *description = json_given(members, "description");
    yyjson_val *strict = json_given(members, "strict");
    bool needs = members == tool && !json_has(tool, "type", "function");

    if (description && !yyjson_is_str(description))
        return anthropic_refuse(in, ".description", "must be a string");
    bool empty = schema && tool_forms_has_no_parameters(schema);

    if (schema ? !yyjson_is_obj(schema) && !empty : needs)
        return anthropic_refuse(in, ".input_schema", "must be an object");
    if (strict && !yyjson_is_bool(strict))
        return anthropic_refuse(in, ".strict", "must be a boolean");
    yyjson_mut_val *out =
        anthropic_add_function(in, name, yyjson_val_mut_copy(in->doc, description),
                               yyjson_val_mut_copy(in->doc, empty ? NULL : schema));
    if (yyjson_get_bool(strict))
        yyjson_mut_obj_add_bool(in->doc, yyjson_mut_obj_get(out, "function"), "strict", true);
    if (hidden || yyjson_get_bool(yyjson_obj_get(tool, "defer_loading")))
        yyjson_mut_obj_add_bool(in->doc, out, "defer_loading", true);
    return 0;
}

/* Returns the search of this type of tool; TOOL_SEARCH_KINDS: it is another tool. */
static enum tool_search_kind search_kind(const char *type) {
    enum tool_search_kind k = 0;

    while (k < TOOL_SEARCH_KINDS &&
           strncmp(type, tool_search_names[k], strlen(tool_search_names[k])) != 0)
        k++;
    return k;
}

/* Adds a tool that is known by its type; others are those of Anthropic's own servers (web_search_*,
 * code_execution_*, ...), which the model is not shown. */
static int anthropic_add_typed(struct anthropic_input *in, yyjson_val *tool, yyjson_val *name,
                               const char *type) {
    enum tool_search_kind search = search_kind(type);

    if (search < TOOL_SEARCH_KINDS && !in->defers)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
        if (strncmp(type, known[i].type, strlen(known[i].type)) != 0)
            continue;
        if (!json_is_name(name, REQUEST_NAME_MAX))
            return anthropic_refuse(in, ".name", "must be a string of 1 to 256 bytes without NUL");
        if (search < TOOL_SEARCH_KINDS && !yyjson_equals_str(name, tool_search_names[search]))
            return anthropic_refuse(in, ".name", "must be the name that this type of tool has");
        if (anthropic_find_tool(in, name))
            return anthropic_refuse(in, ".name", "is the name of an earlier tool");
        if (search < TOOL_SEARCH_KINDS)
            in->offered[search] = true;
        return add_known(in, tool, name, i);
    }
    return 0;
}

static int anthropic_add_tool(struct anthropic_input *in, yyjson_val *tool, bool hidden) {
    yyjson_val *type = json_given(tool, "type");
    yyjson_val *name = yyjson_obj_get(tool_forms_members(tool), "name");
    bool custom = !type || json_is(type, "custom function");

    if (!yyjson_is_obj(tool))
        return anthropic_refuse(in, "", "must be an object");
    if (!custom && !yyjson_is_str(type))
        return anthropic_refuse(in, ".type", "must be a string");
    if (custom && !json_is_name(name, REQUEST_NAME_MAX))
        return anthropic_refuse(in, ".name", "must be a string of 1 to 256 bytes without NUL");
    if (custom && anthropic_find_tool(in, name))
        return anthropic_refuse(in, ".name", "is the name of an earlier tool");
    if (custom)
        return anthropic_add_custom(in, tool, name, hidden);
    if (!json_cstr(type))
        return 0;
    return anthropic_add_typed(in, tool, name, json_cstr(type));
}

/* Returns true if one of @tools is to be found by a search. */
static bool has_deferred(yyjson_val *tools) {
    JSON_EACH(tool, tools) {
        if (yyjson_get_bool(yyjson_obj_get(tool, "defer_loading")))
            return true;
    }
    return false;
}

/* Returns true if there is nothing in @tools but web searches: Claude Code's tool WebSearch sends
 * such a request, and shows the model the answer, or the refusal, as what was found. */
static bool only_searches_web(yyjson_val *tools) {
    JSON_EACH(tool, tools) {
        const char *type = json_cstr(yyjson_obj_get(tool, "type"));

        if (!type || strncmp(type, "web_search_", 11) != 0)
            return false;
    }
    return yyjson_arr_size(tools) > 0;
}

int anthropic_tools(struct anthropic_input *in, yyjson_val *tools) {

    in->tools = yyjson_mut_arr(in->doc);
    yyjson_mut_obj_add_val(in->doc, in->root, "tools", in->tools);
    if (!tools)
        return 0;
    anthropic_place(in, "tools");
    if (!yyjson_is_arr(tools) || yyjson_arr_size(tools) > REQUEST_TOOLS_MAX)
        return anthropic_refuse(in, "", "must be an array of at most 1024 tools");
    if (only_searches_web(tools))
        return anthropic_refuse(in, "", "hold a web search alone, which is not available here");
    in->defers = has_deferred(tools);
    JSON_EACH_AT(i, tool, tools) {
        snprintf(in->place, sizeof(in->place), "tools.%zu", i);
        TRY(anthropic_add_tool(in, tool, false));
    }
    return 0;
}

/* ---- among the turns ---- */

int anthropic_show_tool(struct anthropic_input *in, yyjson_val *name, struct buf *out) {
    if (++in->n_looked_up > LOOK_UPS_MAX)
        return anthropic_refuse(in, "",
                                "exceeds the number of tool references that a request may have");
    yyjson_mut_val *tool = anthropic_find_tool(in, name);
    bool hidden = tool && yyjson_mut_obj_get(tool, "defer_loading");
    if (!hidden || yyjson_mut_obj_get(tool, "shown")) /* shown once, which bounds the text */
        return json_add_text(out, name);
    yyjson_mut_obj_add_bool(in->doc, tool, "shown", true);
    return tool_text_write(in->doc, yyjson_mut_obj_get(tool, "function"), out);
}

/* Reads the subject of a tool_addition or tool_removal: a name, or the definition of a new tool. */
static int anthropic_tool(struct anthropic_input *in, yyjson_val *block, yyjson_val **name) {
    yyjson_val *tool = yyjson_obj_get(block, "tool");
    yyjson_val *definition = yyjson_obj_get(tool, "definition");
    size_t len = strlen(in->place);

    *name = yyjson_obj_get(definition ? definition : tool, "name");
    if (!json_cstr(*name))
        return anthropic_refuse(in, ".tool", "must be a reference or a definition with a name");
    if (!definition)
        return 0;
    if (++in->n_looked_up > LOOK_UPS_MAX)
        return anthropic_refuse(in, "",
                                "exceeds the number of tool changes that a request may have");
    if (anthropic_find_tool(in, *name))
        return 0;
    if (yyjson_mut_arr_size(in->tools) >= REQUEST_TOOLS_MAX)
        return anthropic_refuse(in, ".tool", "exceeds the 1024 tools that a request may have");
    snprintf(in->place + len, sizeof(in->place) - len, ".tool.definition");
    TRY(anthropic_add_tool(in, definition, true));
    in->place[len] = 0;
    return 0;
}

int anthropic_change_tools(struct anthropic_input *in, yyjson_val *block, bool add,
                           struct buf *out) {
    yyjson_val *name;

    TRY(anthropic_tool(in, block, &name));
    if (!add)
        return buf_printf(out, "The function %s can no longer be called.", json_cstr(name));
    TRY(buf_add_str(out, "This function can now be called as well:\n"));
    return anthropic_show_tool(in, name, out);
}

/* ---- tool_choice ---- */

static int choose_tool(struct anthropic_input *in, yyjson_val *name) {
    if (!yyjson_is_str(name))
        return anthropic_refuse(in, ".name", "must be a string");
    if (!anthropic_find_tool(in, name))
        return anthropic_refuse(in, ".name", "is not a tool of this request that can be called");
    yyjson_mut_obj_add_val(in->doc, in->root, "tool_choice",
                           json_make(in->doc, "{type:'function', function:{name:%}}",
                                     yyjson_val_mut_copy(in->doc, name)));
    return 0;
}

int anthropic_tool_choice(struct anthropic_input *in, const char *key, yyjson_val *v) {
    static const char *const types[][2] = {
        {"auto", "auto"}, {"any", "required"}, {"none", "none"}, {"required", "required"}};
    yyjson_val *type = yyjson_is_str(v) ? v : yyjson_obj_get(v, "type");
    yyjson_val *single = json_given(v, "disable_parallel_tool_use");

    if (single && !yyjson_is_bool(single))
        return anthropic_refuse(in, ".disable_parallel_tool_use", "must be a boolean");
    if (yyjson_get_bool(single))
        yyjson_mut_obj_add_bool(in->doc, in->root, "parallel_tool_calls", false);
    if (json_is(type, "tool function"))
        return choose_tool(in, yyjson_obj_get(tool_forms_members(v), "name"));
    if (json_is(type, "any required") && !yyjson_mut_arr_size(in->tools))
        return anthropic_refuse(in, ".type", "needs tools that can be called");
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (yyjson_equals_str(type, types[i][0])) {
            yyjson_mut_obj_add_str(in->doc, in->root, key, types[i][1]);
            return 0;
        }
    return anthropic_refuse(in, ".type", "must be auto, any, tool or none");
}
