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
/* Answers @x, which @serve serves, with @m; NULL: there is none of the name that is the path's
 * argument, so that models which have come since are looked for before the answer is 404. */
void models_answer_one(struct exchange *x, const struct model *m,
                       void (*serve)(struct exchange *x, struct http *h),
                       void (*put)(struct json *j, const struct model *m));
