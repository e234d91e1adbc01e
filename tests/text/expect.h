#pragma once

/*
 * expect - what the tests of text/ share: vocabularies from files and from memory, and encoding to
 * an array. Whatever fails here ends the test.
 */

#include "base/gguf.h"
#include "tests/support/gguf_writer.h"
#include "text/tokenizer.h"

/* The tokenizer of a file; fails the test if it is refused. */
struct tokenizer *expect_tokenizer(const char *path);

/* The path of a file of the test data; fails the test if there is no such file. Static storage. */
const char *expect_data(const char *folder, const char *name);

/* Ids of @text; .n == 0 and .id == NULL for none. The caller frees .id. */
struct tokens expect_encode(const struct tokenizer *t, const char *text, size_t len,
                            unsigned flags);
void expect_ids(const struct tokens *got, const int32_t *ids, size_t n, const char *what);

/* Whole file, NUL-terminated; to be freed. */
char *expect_read(const char *path, size_t *len);

/* Tokenizer of what @w holds, through a temporary file. As tokenizer_new(). */
int expect_load(struct tokenizer **out, struct gguf_writer *w, struct err *err);

/* The character that byte-level vocabularies write for @byte, appended to @out. */
void expect_byte_char(uint8_t byte, char *out);
