#pragma once

/*
 * ollama - the dialect of Ollama's own API, the only one that some editors and tools speak:
 * /api/chat and /api/generate become a chat or a completion (input.c), their answers become lines
 * of JSON (ollama.c), and questions about models are answered from the served models (models.c).
 */

#include "api/http/json.h"
#include "base/err.h"
#include "base/lib_types.h"

struct gen_env;
struct model;

/* Translates @body to the body of a chat, or (*text) of a completion. *load: it asks for nothing
 * but loading the model. Returns 0, -ENOMEM, or an error that names the field. */
int ollama_translate(const struct model *m, yyjson_doc *body, bool generate, yyjson_doc **out,
                     bool *text, bool *load, struct err *err);

struct endpoint;
struct exchange;
struct http;
/* The body of @x, which has to be small, as an object: it is read on the loop. 0, or an error. */
int ollama_read_body(struct exchange *x, yyjson_doc **out, struct err *err);
/* Routes of ollama.c, embed.c and manage.c, listed in models.c. */
extern const struct endpoint ollama_chat, ollama_generate, ollama_embed, ollama_embeddings;
/* Reads the name under @key, or under @old (which may be NULL), into *@out. Returns 0, or -EINVAL
 * with a 400 where there is no string without NUL. */
int ollama_read_name(yyjson_val *root, const char *key, const char *old, const char **out,
                     struct err *err);
/* Sets *@out to the served model that @name means and that the client may use. Returns 0, or
 * -EINVAL with a 404 about the field @field. */
int ollama_find_served(const struct exchange *x, const char *name, const char *field,
                       const struct model **out, struct err *err);
void ollama_pull_serve(struct exchange *x, struct http *h);
void ollama_create_serve(struct exchange *x, struct http *h);
void ollama_copy_serve(struct exchange *x, struct http *h);
void ollama_delete_serve(struct exchange *x, struct http *h);
