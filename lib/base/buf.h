#pragma once

/*
 * buf - a byte buffer that grows up to a hard limit. Bytes are added at the end and may be
 * consumed at the front. The data is always followed by a NUL that is not counted.
 */

#include <stdarg.h>

#include "base/util.h"

/* Invariants: len <= max; data is NULL or len < cap and data[len] = 0. */
struct buf {
    char *data;
    size_t len, cap;
    /* hard limit of len */
    size_t max;
};

/* Initialises an empty buffer of at most @max bytes. Allocates nothing yet. */
void buf_init(struct buf *b, size_t max);
/* Frees the memory; the buffer is empty and may be used again. Accepts a zeroed one. */
void buf_deinit(struct buf *b);

/* Every function returns 0, -ENOMEM, or -EMSGSIZE when the limit would be exceeded; a failure adds
 * nothing. */
int buf_reserve(struct buf *b, size_t extra); /* room for @extra more bytes at data + len */
int buf_add(struct buf *b, const void *data, size_t len);
int buf_add_str(struct buf *b, const char *s);
int buf_add_char(struct buf *b, char c);
/* Prints like printf(); -EINVAL also when @fmt cannot be rendered, as with a wide character that
 * the locale lacks. */
int buf_printf(struct buf *b, const char *fmt, ...) PRINTF(2, 3);
int buf_vprintf(struct buf *b, const char *fmt, va_list ap);

/* Removes the first @n bytes, n <= len, and moves the rest to the front. */
void buf_consume(struct buf *b, size_t n);
void buf_clear(struct buf *b); /* sets len to 0 and keeps the memory */
