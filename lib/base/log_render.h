#pragma once

/*
 * log_render - the line of an event for stderr, as text or as JSON:
 *
 *   2026-11-23T09:28:18.123Z info front request id=req_1 status=200
 *   {"time":"2026-11-23T09:28:18.123Z","level":"info","process":"front","event":"request",...}
 */

#include <stddef.h>
#include <stdint.h>

enum log_format { LOG_TEXT, LOG_JSON };

/* An event. @pairs: `key=value` or `key="value"`, separated by spaces, escaped by printable.h. */
struct log_entry {
    int64_t unix_ms;
    const char *level, *process, *event, *pairs;
};

/* Writes the line with its newline and a NUL to @out; a line that does not fit is cut, but JSON
 * stays valid: pairs that do not fit are left out. @size is at least 256. Returns the length. */
size_t log_render(char *out, size_t size, enum log_format format, const struct log_entry *e);

/* Returns the end of the value at @p, behind the quote that ends one in quotes. */
const char *log_value_end(const char *p);
