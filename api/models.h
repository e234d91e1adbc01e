#pragma once

/* models - the name of the served model. */

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

struct api;

bool models_is_served(const struct api *a, const char *name, size_t len);
int models_unknown(const char *name, size_t len, struct err *err); /* 404 */
