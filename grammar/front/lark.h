#pragma once

#include "grammar/front/rulebook.h"

/* A terminal of the library `common` as a regular expression; NULL: it has none of this name. */
const char *lark_common(const char *name, size_t len);
