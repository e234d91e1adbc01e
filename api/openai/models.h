#pragma once

/* models - the names of the served models. What only looks may be called on any thread that holds
 * api.models_lock, the loop's thread without it. */

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

struct api;
struct model;

/* The model that has @name, with or without the tag ":latest", or one of whose aliases that is;
 * NULL: none. */
struct model *models_find(const struct api *a, const char *name, size_t len);
/* Any name will do: there is one model, and any-model-name is on. */
bool models_any_name(const struct api *a);

/* The next three take the lock. */

/* Whether @name is a model's, or an alias of one. */
bool models_is_served(const struct api *a, const char *name, size_t len);
/* Whether a request for generation may name it: it is served, or any name will do. */
bool models_is_answered(const struct api *a, const char *name, size_t len);
/* The error about @name, which is not served: 404; of several models it lists the names. */
int models_unknown(const struct api *a, const char *name, size_t len, struct err *err);
