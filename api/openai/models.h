#pragma once

/* models - the name of the served model. */

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

struct api;

/* Whether @name is the model's, or an alias of it. */
bool models_is_served(const struct api *a, const char *name, size_t len);
/* Whether a request for generation may name it: it is served, or any name will do. */
bool models_is_answered(const struct api *a, const char *name, size_t len);
/* The error about @name, which is not served. */
int models_unknown(const char *name, size_t len, struct err *err); /* 404 */
