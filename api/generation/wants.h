#pragma once

/*
 * wants - the fields of a request that say what its output must look like: response_format,
 * structured_outputs, the older guided_*, and tool_choice. Here they are read and checked in form;
 * constrain.h makes of them what the worker is told.
 */

#include "api/generation/request.h"

int wants_response_format(struct request *r, yyjson_val *v, struct err *err);
int wants_structured(struct request *r, yyjson_val *v, struct err *err);
/* guided_json and its kin, and llama.cpp's `grammar` and `json_schema`. */
int wants_guided(struct request *r, const char *field, yyjson_val *v, struct err *err);
int wants_tool_choice(struct request *r, yyjson_val *v, struct err *err);
/* Rules between them and the tools, when all fields are read. */
int wants_check(const struct request *r, struct err *err);

/* The function or custom tool in an entry of `tools`; NULL: it is something else. */
yyjson_val *wants_function(yyjson_val *tool);
/* Whether tool_choice lets the function @name be called. */
bool wants_tool(const struct request *r, const char *name);
