#pragma once

/* tool_text - the description of a function as text, for a tool that is added in the middle of a
 * conversation. */

#include "base/buf.h"
#include "base/lib_types.h"

/* Adds "<functions>\n<function>{..}</function>\n</functions>" with the description, name and
 * parameters of function @f, a value of @doc. Returns 0, or -ENOMEM. */
int tool_text_write(yyjson_mut_doc *doc, yyjson_mut_val *f, struct buf *out);
