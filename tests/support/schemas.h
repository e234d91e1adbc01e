#pragma once

/*
 * schemas - random JSON Schemas, and whether a JSON text is valid for one: a validator that shares
 * nothing with grammar/ but the definition of the keywords.
 */

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "base/rng.h"

struct schema_writer {
    struct buf b; /* the schema written last */
    struct rng r;
};

/* Writes another one. Some are refused by a compiler: they contradict themselves, or use what is
 * not supported. */
void schema_write(struct schema_writer *w);

/* @text is JSON and valid. Call setlocale(LC_CTYPE, "C.UTF-8") before: patterns are tried by
 * regexec(). */
bool schema_allows(const char *schema, size_t n_schema, const char *text, size_t n_text);
