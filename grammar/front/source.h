#pragma once

/* source - the text of a grammar while it is read, character by character. */

#include "grammar/expr/expr.h"

struct source {
    struct build *b;
    const char *start, *p, *end;
};

/* What a backslash and one of @from stands for: the character at the same place of @to. xHH, uHHHH,
 * UHHHHHHHH are everywhere. */
struct source_escapes {
    const char *from, *to;
};

size_t source_line(const struct source *s); /* from 1 */
/* Both return -EINVAL, with the line in the message. */
int source_invalid(struct source *s, const char *what);
int source_unsupported(struct source *s, const char *what); /* "@what not supported" */

/* Whether @text stood here; then it is behind. */
bool source_skip(struct source *s, const char *text);
/* The byte @i further on, 0 behind the end. */
char source_peek(const struct source *s, size_t i);
/* A character or an escape: 0, -EINVAL. */
int source_read_char(struct source *s, const struct source_escapes *escapes, uint32_t *cp);
