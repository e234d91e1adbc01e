#pragma once

/*
 * output_spec - the fields of a request that determine the form of its output: response_format,
 * structured_outputs, the older guided_*, and tool_choice. Here they are read and checked in form;
 * constrain.h translates them for the worker.
 */

#include "api/generation/fields.h"

/* Readers of fields. What @r points to afterwards lies in the body or in @r. */
READER(output_spec_response_format);
READER(output_spec_structured);
READER(output_spec_guided); /* guided_json and similar; llama.cpp's `grammar` and `json_schema` */
READER(output_spec_tool_choice); /* in both of its forms */
/* Checks the rules between these fields and the tools, when all fields have been read. */
int output_spec_check(const struct gen_request *r, struct err *err);

/* Returns the function or custom tool in an entry of `tools`; NULL: the entry is of another
 * kind. */
yyjson_val *output_spec_function(yyjson_val *tool);
/* Returns true if tool_choice lets the function @name be called. */
bool output_spec_tool(const struct gen_request *r, const char *name);
