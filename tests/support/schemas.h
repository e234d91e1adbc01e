#pragma once

/*
 * schemas - makes random JSON Schemas, and checks whether a JSON text is valid for one, by a
 * validator that shares nothing with grammar/ except the definition of the keywords.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/rng.h"

struct schema_writer {
    /* the schema written last */
    struct buf b;
    struct rng r;
};

/* Writes another schema. A compiler refuses some, which contradict themselves or use unsupported
 * keywords. */
void schema_write(struct schema_writer *w);

/* Returns true if @text is JSON and valid. Call setlocale(LC_CTYPE, "C.UTF-8") before, since
 * regexec() matches patterns. */
bool schema_allows(const char *schema, size_t n_schema, const char *text, size_t n_text);
