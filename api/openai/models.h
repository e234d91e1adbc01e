#pragma once

/* models - the name of the served model. */

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

struct api;

/* Whether requests may name it: it is the model's, or one that Anthropic's clients have built in,
 * which they also use for small work on the side. */
bool models_is_answered(const struct api *a, const char *name);
bool models_is_served(const struct api *a, const char *name, size_t len);
int models_unknown(const char *name, size_t len, struct err *err); /* 404 */
