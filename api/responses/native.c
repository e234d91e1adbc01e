#include "api/responses/native.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "api/http/json.h"
#include "base/json_read.h"
#include "base/text.h"
#include "base/try.h"

#define STRINGS "{type:'array', items:{type:'string'}, minItems:1}"

/* Largest double below which every whole number is exact. */
#define WHOLE_MAX 0x1p53

static void put_strings(struct json *j, yyjson_val *list) {
    json_open(j, '[');
    JSON_EACH(s, list) {
        if (yyjson_is_str(s))
            json_string(j, json_text(s), json_len(s));
    }
    json_close(j, ']');
}

/* Writes a whole number, or null: the model may have written any number, even one that no integer
 * holds. */
static void native_put_number(struct json *j, const char *key, yyjson_val *v) {
    double n = yyjson_get_num(v);

    if (yyjson_is_num(v) && n > -WHOLE_MAX && n < WHOLE_MAX)
        json_print(j, "%s:%ld", key, (int64_t)n);
    else
        json_print(j, "%s:null", key);
}

static void native_put_text(struct json *j, const char *key, yyjson_val *v, const char *otherwise) {
    if (yyjson_is_str(v))
        json_print(j, "%s:%.*s", key, (int)json_len(v), json_text(v));
    else
        json_put_string(j, key, otherwise);
}

static void put_shell(struct json *j, yyjson_val *args) {
    json_print(j, "{commands:");
    put_strings(j, yyjson_obj_get(args, "commands"));
    native_put_number(j, "timeout_ms", yyjson_obj_get(args, "timeout_ms"));
    native_put_number(j, "max_output_length", yyjson_obj_get(args, "max_output_length"));
    json_close(j, '}');
}

static void put_local_shell(struct json *j, yyjson_val *args) {
    json_print(j, "{type:'exec', command:");
    put_strings(j, yyjson_obj_get(args, "command"));
    json_print(j, "env:{}");
    native_put_number(j, "timeout_ms", yyjson_obj_get(args, "timeout_ms"));
    native_put_text(j, "working_directory", yyjson_obj_get(args, "working_directory"), NULL);
    json_close(j, '}');
}

static void put_patch(struct json *j, yyjson_val *args) {
    yyjson_val *type = yyjson_obj_get(args, "type");

    json_open(j, '{');
    native_put_text(j, "type", type, "update_file");
    native_put_text(j, "path", yyjson_obj_get(args, "path"), "");
    if (!yyjson_equals_str(type, "delete_file"))
        native_put_text(j, "diff", yyjson_obj_get(args, "diff"), "");
    json_close(j, '}');
}

/* Writes the arguments of a search, which its client has defined. */
static void put_search(struct json *j, yyjson_val *args) {
    CLEANUP(freep) char *text = yyjson_is_obj(args) ? yyjson_val_write(args, 0, NULL) : NULL;

    json_raw(j, text_or(text, "{}"), text ? strlen(text) : strlen("{}"));
}

static const struct responses_native natives[] = {
    {"shell", "shell_call", "shell_call_output", "action", "sh",
     "\"environment\":{\"type\":\"local\"}",
     "Runs shell commands, one after another, and returns what they print.",
     "{type:'object', properties:{commands:" STRINGS ", timeout_ms:{type:'integer'}, "
     "max_output_length:{type:'integer'}}, required:['commands'], additionalProperties:false}",
     put_shell},
    {"local_shell", "local_shell_call", "local_shell_call_output", "action", "lsh", NULL,
     "Runs a program, given as a list of its name and arguments, and returns what it prints.",
     "{type:'object', properties:{command:" STRINGS ", timeout_ms:{type:'integer'}, "
     "working_directory:{type:'string'}}, required:['command'], additionalProperties:false}",
     put_local_shell},
    {"apply_patch", "apply_patch_call", "apply_patch_call_output", "operation", "apc", NULL,
     "Creates, updates or deletes one file. The diff of a new file is all its lines with a + "
     "before "
     "each; that of a change has lines of context with a space before them, lines to be removed "
     "with a - and lines to be added with a +, and may begin with a line @@ and where it is.",
     "{type:'object', properties:{type:{type:'string', enum:['create_file', 'update_file', "
     "'delete_file']}, path:{type:'string'}, diff:{type:'string'}}, required:['type', 'path'], "
     "additionalProperties:false}",
     put_patch},
    {"tool_search", "tool_search_call", "tool_search_output", "arguments", "tsc",
     "\"execution\":\"client\"",
     "Searches the tools that are not listed here. The tools that are found can be called then.",
     "{type:'object', properties:{query:{type:'string'}}, required:['query']}", put_search},
};

const struct responses_native *responses_native_tool(yyjson_val *tool) {
    yyjson_val *where = yyjson_obj_get(yyjson_obj_get(tool, "environment"), "type");

    if (yyjson_is_str(where) && !yyjson_equals_str(where, "local"))
        return NULL;
    if (json_has(tool, "type", "tool_search") && !json_has(tool, "execution", "client"))
        return NULL;
    for (size_t i = 0; i < sizeof(natives) / sizeof(natives[0]); i++)
        if (json_has(tool, "type", natives[i].type))
            return &natives[i];
    return NULL;
}

const struct responses_native *responses_native_item(yyjson_val *type) {
    for (size_t i = 0; i < sizeof(natives) / sizeof(natives[0]); i++)
        if (yyjson_equals_str(type, natives[i].call) || yyjson_equals_str(type, natives[i].output))
            return &natives[i];
    return NULL;
}

void responses_native_put(struct json *j, const struct responses_native *n, const char *args,
                          size_t len) {
    yyjson_doc *doc = NULL;

    assert(n->put && n->member);
    if (len && json_parse(&doc, args, len, 0) == -ENOMEM)
        j->error = -ENOMEM;
    json_print(j, "%s:", n->member);
    n->put(j, yyjson_doc_get_root(doc));
    yyjson_doc_free(doc);
    if (n->extra)
        json_raw(j, n->extra, strlen(n->extra));
}

/* Returns the arguments of a past call without the members that were added for the client, so that
 * the call comes back to the model unchanged. */
yyjson_mut_val *responses_native_args(yyjson_mut_doc *doc, const struct responses_native *n,
                                      yyjson_val *item) {
    yyjson_val *member = yyjson_obj_get(item, n->member);
    yyjson_mut_val *out = yyjson_is_obj(member) ? yyjson_mut_obj(doc) : NULL;

    JSON_MEMBERS(key, value, out ? member : NULL) {
        bool ours = yyjson_is_null(value) || (yyjson_is_obj(value) && !yyjson_obj_size(value)) ||
                    (yyjson_equals_str(key, "type") && yyjson_equals_str(value, "exec"));

        if (!ours)
            yyjson_mut_obj_add(out, yyjson_val_mut_copy(doc, key), yyjson_val_mut_copy(doc, value));
    }
    return out;
}

/* Ends the last line of @text. */
static int native_end_line(struct buf *text) {
    if (!text->len || text->data[text->len - 1] == '\n')
        return 0;
    return buf_add_char(text, '\n');
}

static int native_add_line(struct buf *text, yyjson_val *s) {
    if (s && !yyjson_is_str(s) && !yyjson_is_null(s))
        return -EINVAL;
    if (json_len(s) == 0)
        return 0;
    TRY(native_end_line(text));
    return json_add_text(text, s);
}

int responses_native_output(yyjson_val *output, struct buf *text) {
    JSON_EACH(one, output) {
        yyjson_val *outcome = yyjson_obj_get(one, "outcome"),
                   *code = yyjson_obj_get(outcome, "exit_code");

        TRY(native_add_line(text, yyjson_obj_get(one, "stdout")));
        TRY(native_add_line(text, yyjson_obj_get(one, "stderr")));
        TRY(native_end_line(text));
        if (json_has(outcome, "type", "timeout"))
            TRY(buf_add_str(text, "timed out"));
        else if (yyjson_is_int(code))
            TRY(buf_printf(text, "exit code %d", yyjson_get_int(code)));
    }
    return 0;
}
