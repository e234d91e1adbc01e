#pragma once

/* foreign - the text of items that another service has written into a conversation: results of its
 * tools, items and blocks of unknown types. An agent cannot remove them, so their text is kept. */

#include "api/http/json.h"

#define FOREIGN_NOT_VISIBLE "(An image or file, which this model cannot see.)"

/* Adds the text in @v to @out, a line for each string: @v itself, the parts of an array, and the
 * members of an object that hold text for a reader. An image or a file becomes a note. Adds nothing
 * if there is no text. Returns 0, or -ENOMEM. */
int foreign_text(struct buf *out, yyjson_val *v);
