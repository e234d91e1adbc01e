#pragma once

/* models - the names of the served models. What only looks may be called on any thread that holds
 * api.models_lock, the loop's thread without it. */

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

struct api;
struct exchange;
struct http;
struct json;
struct model;

/* The model that has @name, with or without the tag ":latest", or one of whose aliases that is;
 * NULL: none. */
struct model *models_find(const struct api *a, const char *name, size_t len);

/* Answers @x, which @serve serves, with a list of all models under @key, each as @put writes it;
 * @object, if not NULL, is told before. Models that have come since are looked for first. */
void models_answer_list(struct exchange *x, void (*serve)(struct exchange *x, struct http *h),
                        const char *object, const char *key,
                        void (*put)(struct json *j, const struct model *m));
/* Answers with the model whose exact name is the path's argument, or with 404. */
void models_answer_one(struct exchange *x, void (*serve)(struct exchange *x, struct http *h),
                       void (*put)(struct json *j, const struct model *m));

/* The next three take the lock. */

/* Returns true if @name is a model's, or an alias of one. */
bool models_is_served(const struct api *a, const char *name, size_t len);
/* Returns true if a request for generation may use @name: it is served, or any name is accepted. */
bool models_is_answered(const struct api *a, const char *name, size_t len);
/* The error about @name, which is not served: 404; of several models it lists the names. */
int models_unknown(const struct api *a, const char *name, size_t len, struct err *err);
