#pragma once

/*
 * responses_native - tools with their own form in the API, which the client runs: shell,
 * local_shell, apply_patch and tool_search. The model gets them as functions, and its calls become
 * items of these types.
 */

#include "api/http/json.h"
#include "base/buf.h"

struct responses_native {
    /* type of the tool, and name of the function */
    const char *type;
    /* types of the items */
    const char *call, *output;
    /* member of the call's item with its arguments */
    const char *member;
    /* beginning of the call's id */
    const char *prefix;
    /* further members of the call's item, or NULL */
    const char *extra;
    const char *about;
    /* a shape of json_constant() */
    const char *schema;
    /* the value of `member` */
    void (*put)(struct json *j, yyjson_val *args);
};

/* Returns the kind of native tool that @tool is; NULL: another tool, or one that the service would
 * have to run. */
const struct responses_native *responses_native_tool(yyjson_val *tool);
/* Returns the kind of native tool that an item of type @type belongs to, as a call or an output;
 * NULL: none. */
const struct responses_native *responses_native_item(yyjson_val *type);
/* Writes the members `member` and `extra` of a call with arguments @args, which may be invalid
 * JSON. */
void responses_native_put(struct json *j, const struct responses_native *n, const char *args,
                          size_t len);
/* Makes the arguments of a call that the client sends back as @item; NULL: it has none. */
yyjson_mut_val *responses_native_args(yyjson_mut_doc *doc, const struct responses_native *n,
                                      yyjson_val *item);
/* Appends the parts of a shell's @output to @text: stdout, stderr and the outcome of each. Returns
 * -EINVAL where stdout or stderr is neither a string nor null, or -ENOMEM. */
int responses_native_output(yyjson_val *output, struct buf *text);
