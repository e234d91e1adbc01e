#pragma once

/*
 * tool_forms - the forms in which clients write a tool. In a chat its members are in a member that
 * is named like its type: {"type": "function", "function": {"name": .., "parameters": ..}}. Clients
 * send the flat form of the Responses API, {"type": "function", "name": .., "parameters": ..}, and
 * that of the Messages API, {"name": .., "input_schema": ..}, to chats as well, and a chat's form
 * to these APIs.
 */

#include "api/generation/fields.h"

/* Reads `tools`: an array of at most @hi tools. Those in another form are given the chat's, in a
 * copy that belongs to @r, and their schemas the types' names of JSON Schema. */
READER(tool_forms_read);
/* Returns the members of a function, or of a call of one, in either form; @tool itself if it is
 * flat. */
yyjson_val *tool_forms_function(yyjson_val *tool);
/* Returns the same of a function or a custom tool, or of a choice of one. */
yyjson_val *tool_forms_members(yyjson_val *tool);
/* Returns true for a custom tool. One of the Messages API has a schema, and is a function. */
bool tool_forms_is_custom(yyjson_val *tool);
/* Returns true for a function or custom tool in any of the forms. */
bool tool_forms_is_own(yyjson_val *tool);
/* Returns the JSON schema of the arguments under either of its names; NULL: there is none. */
yyjson_val *tool_forms_schema(yyjson_val *function);
/* Returns true if @schema is that of a function without parameters: missing, or an empty list, the
 * only form that PHP has for an empty object. */
bool tool_forms_has_no_parameters(yyjson_val *schema);
