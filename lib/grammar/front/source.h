#pragma once

/* source - the text of a grammar or a regular expression while it is read, character by
 * character. */

#include "grammar/expr/expr.h"

struct source {
    struct build *b;
    const char *start, *p, *end;
    /* messages name the byte of a regular expression, not the line of a grammar */
    bool is_regex;
};

/* Maps a backslash and a character of @from to the character at the same index of @to. xHH, uHHHH
 * and UHHHHHHHH are always known. */
struct source_escapes {
    const char *from, *to;
};

size_t source_line(const struct source *s); /* from 1 */
/* Fail with the place in the message: both return -EINVAL. */
int source_invalid(struct source *s, const char *what);
int source_unsupported(struct source *s, const char *what); /* "@what not supported" */

/* Skips @text if the source continues with it. Returns whether it did. */
bool source_skip(struct source *s, const char *text);
/* Returns the byte @i positions ahead, 0 behind the end. */
char source_peek(const struct source *s, size_t i);
/* Reads a number below NO_MAX. Returns 1; 0 with *out 0: there is none; or -EINVAL. */
int source_read_number(struct source *s, uint32_t *out);
int source_need_number(struct source *s, uint32_t *out); /* 0, or -EINVAL: there is none */
/* Reads exactly @n hexadecimal digits. Returns 0 or -EINVAL. */
int source_read_hex(struct source *s, int n, uint32_t *out);
/* Refuses @cp, which an escape sequence names, if it is no code point: 0 or -EINVAL. */
int source_check_cp(struct source *s, uint32_t cp);
int source_read_utf8(struct source *s, uint32_t *cp); /* reads a character: 0 or -EINVAL */
/* Reads a character or an escape. Returns 0 or -EINVAL. */
int source_read_char(struct source *s, const struct source_escapes *escapes, uint32_t *cp);
