#pragma once

/* functions - chats with `functions` and `function_call`, which `tools` and `tool_choice` replaced
 * in 2023, as chats with these. */

#include <stdbool.h>

struct err;
struct yyjson_doc;

/* Replaces *@body where it has functions, and sets *@found. Returns 0, -ENOMEM, or a 400. */
int functions_translate(struct yyjson_doc **body, bool *found, struct err *err);
