#pragma once

#include "grammar/front/rulebook.h"

/* Returns a terminal of the library `common` as a regular expression; NULL: it has no terminal of
 * this name. */
const char *lark_common(const char *name, size_t len);
