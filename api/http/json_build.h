#pragma once

/*
 * json_build - makes JSON documents, mostly the bodies of requests in another dialect's form. A
 * document notes that memory for it was short, since a value may be missing then: the last step,
 * json_doc_seal(), returns -ENOMEM, and no step before it needs a check. As in yyjson, all
 * functions accept NULL as a document or a value.
 */

#include <stdbool.h>

#include "base/buf.h"
#include "base/lib_types.h"

/* Make an empty document, or a copy of @from, which set *@failed when memory is short, also for
 * themselves. @failed outlives the document. */
yyjson_mut_doc *json_doc_new(bool *failed);
yyjson_mut_doc *json_doc_copy(yyjson_doc *from, bool *failed);
/* Copies @root, a value of @doc, into a document of its own. Returns 0, or -ENOMEM if memory was
 * short now or when @doc was made. */
int json_doc_seal(yyjson_mut_doc *doc, yyjson_mut_val *root, yyjson_doc **out);

/* Makes the value that @shape shows in the form of json_print(), with all brackets closed:
 *      json_make(doc, "{role:'tool', name:%, content:%}", yyjson_mut_strcpy(doc, name), content);
 * Each % is the next one of the arguments, values of @doc; for NULL the member is left out. */
#define json_make(doc, shape, ...)                                                                 \
    json_make_of(doc, shape, (yyjson_mut_val *[]){__VA_ARGS__},                                    \
                 sizeof((yyjson_mut_val *[]){__VA_ARGS__}) / sizeof(yyjson_mut_val *))
yyjson_mut_val *json_make_of(yyjson_mut_doc *doc, const char *shape, yyjson_mut_val *const *args,
                             size_t n_args);
/* Makes the value of a shape without arguments. */
yyjson_mut_val *json_constant(yyjson_mut_doc *doc, const char *shape);
/* Adds a copy of @v, if it is not NULL, to @object; @key must outlive the document. */
void json_put_copy(yyjson_mut_doc *doc, yyjson_mut_val *object, const char *key, yyjson_val *v);
/* Returns a copy of member @key of @from; NULL: it has none. */
yyjson_mut_val *json_copy_of(yyjson_mut_doc *doc, yyjson_val *from, const char *key);
/* Returns the text of @b as a string. */
yyjson_mut_val *json_text_of(yyjson_mut_doc *doc, const struct buf *b);
