#pragma once

/* models - the names of the served models. Functions that only read may be called on any thread
 * that holds gen_env.models.lock, and on the loop's thread without it. */

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct exchange;
struct gen_env;
struct model;
struct tenant;

/* Returns the model with the name or alias @name, also where @name has the tag ":latest" or is the
 * name of a file or a shard of the model ("NAME-00001-of-00002.gguf"); NULL: none. */
struct model *models_find(const struct gen_env *env, const char *name, size_t len);

/* Returns the model that is called @name exactly, else one with such an alias; NULL: none. */
struct model *models_find_exactly(const struct gen_env *env, const char *name, size_t len);

/* Returns true if the tenant of @x may use @m (`models` of the tenants file). On the loop's
 * thread. */
bool models_may_use(const struct exchange *x, const struct model *m);
/* Returns models_may_use() for a tenant. */
bool models_are_allowed(const struct tenant *t, const struct model *m);
/* Makes the 404 for @name, which the tenant may not use or which is not served, or for a request
 * without a name (NULL), whose model it may not use; it names no other models. */
int models_hidden(const char *name, struct err *err);

/* The next four take the lock. */

/* Returns true if models_find() finds a model. */
bool models_is_served(const struct gen_env *env, const char *name, size_t len);
/* Returns true if a request for generation may use @name: it is served, or any name is accepted. */
bool models_is_answered(const struct gen_env *env, const char *name, size_t len);
/* Makes the 404 for @name, which is not served; with several models it lists their names. */
int models_unknown(const struct gen_env *env, const char *name, size_t len, struct err *err);
/* Makes the 404 for @name, or NULL for the default model, which the tenant of @x may not use or
 * which is not served: by models_hidden() if it may use only some models. On the loop's thread. */
int models_refuse(const struct exchange *x, const char *name, struct err *err);

/* Checks that the tenant of @x may change models (api_opts.managers names it). Returns 0, or a 403
 * in @err. */
int models_check_right(const struct exchange *x, struct err *err);
