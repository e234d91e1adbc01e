#pragma once

/* llamacpp - llama-server's own routes: /completion, /infill, /props. */

#include <stdbool.h>
#include <yyjson.h>
#include "base/err.h"

/* The body of a completion: 0, -ENOMEM, or a 400 that names the field. */
int llamacpp_translate(yyjson_doc *body, bool infill, yyjson_doc **out, struct err *err);

/* The route of tokenize.c. */
struct exchange;
struct http;
void llamacpp_template_serve(struct exchange *x, struct http *h);
