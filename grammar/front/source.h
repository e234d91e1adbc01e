#pragma once

/* source - the text of a grammar while it is read, character by character. */

#include "grammar/expr/expr.h"

struct source {
    struct build *b;
    const char *start, *p, *end;
};

/* Maps a backslash and a character of @from to the character at the same index of @to. xHH, uHHHH
 * and UHHHHHHHH are always known. */
struct source_escapes {
    const char *from, *to;
};

size_t source_line(const struct source *s); /* from 1 */
/* Fail with the line in the message: both return -EINVAL. */
int source_invalid(struct source *s, const char *what);
int source_unsupported(struct source *s, const char *what); /* "@what not supported" */

/* Skips @text if the source continues with it. Returns whether it did. */
bool source_skip(struct source *s, const char *text);
/* Returns the byte @i positions ahead, 0 behind the end. */
char source_peek(const struct source *s, size_t i);
/* Reads a number below NO_MAX. Returns 1; 0 with *out 0: there is none; or -EINVAL. */
int source_read_number(struct source *s, uint32_t *out);
/* Reads a character or an escape. Returns 0 or -EINVAL. */
int source_read_char(struct source *s, const struct source_escapes *escapes, uint32_t *cp);
