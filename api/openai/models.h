#pragma once

/* models - the lists of served models, shared by several dialects. */

struct exchange;
struct http;
struct json;
struct model;

/* Answers @x, which @serve serves, with a list of all models under @key, each as @put writes it;
 * @object, if not NULL, is written first. The folders of models are read again first. */
void models_answer_list(struct exchange *x, void (*serve)(struct exchange *x, struct http *h),
                        const char *object, const char *key,
                        void (*put)(struct json *j, const struct model *m));
/* Answers @x, which @serve serves, with @m, or with 404 if @m is NULL: no model has the name in the
 * path. The folders of models are read first, unless the model was opened: they may have it by now,
 * and the header of its file tells what it can do. */
void models_answer_one(struct exchange *x, const struct model *m,
                       void (*serve)(struct exchange *x, struct http *h),
                       void (*put)(struct json *j, const struct model *m));
