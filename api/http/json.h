#pragma once

/*
 * json - writes JSON into a buffer, and reads bodies. Text that is not valid UTF-8
 * is written with U+FFFD in its place; the first failure (a full buffer) sticks in `error`.
 */

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/lib_types.h"
#include "base/splices.h"
#include "base/util.h"

#define JSON_DEPTH 64u        /* levels of a request body */
#define JSON_NODES (4u << 20) /* values and keys of a request body */

/* Appends the text of a string to @out; appends nothing if @v is not a string. Returns 0, or -errno
 * of buf_add(). */
int json_add_text(struct buf *out, yyjson_val *v);

/* Appends the text of a string to @out like json_add_text(). */
int json_mut_add_text(struct buf *out, yyjson_mut_val *v);

/* A text being written: `struct json j = {.out = &buf}` begins at the end of the buffer. After the
 * first failure nothing is appended, and `error` stays. */
struct json {
    struct buf *out;
    /* 0, or -errno of buf_add() */
    int error;
    /* a value is complete: a comma comes before the next one */
    bool comma;
    /* gets the parts of json_refer(); NULL: they are copied */
    struct splices *refs;
};

/* Each of the functions below appends one value or bracket, preceded by a comma if needed. The
 * caller is responsible for matching brackets and keys. */
void json_open(struct json *j, char bracket);  /* '{' or '[' */
void json_close(struct json *j, char bracket); /* '}' or ']' */
void json_colon(struct json *j);               /* the last string was a key */
void json_more(struct json *j); /* members follow that are added without this writer */
void json_string(struct json *j, const char *s, size_t len);
/* Returns true if a character of json_string(@text) begins at byte @i, false if it is the rest of
 * one. */
bool json_begins(const char *text, size_t i);
void json_cstring(struct json *j, const char *s); /* NULL: null */
void json_int(struct json *j, int64_t v);
void json_uint(struct json *j, uint64_t v);
/* Writes nine digits; a number that is not finite becomes -9999, the log probability of an
 * impossible token. */
void json_double(struct json *j, double v);
/* Appends a value that is JSON already, except that it may contain bytes that are not UTF-8. Line
 * breaks between its tokens become blanks, since events and NDJSON end with a line. */
void json_raw(struct json *j, const char *text, size_t len);

/* Writes a text that is known to be UTF-8: written by this file or by yyjson. */
void json_valid(struct json *j, const char *text, size_t len);

/* Appends a key with a string; @s NULL: null. */
void json_put_string(struct json *j, const char *key, const char *s);

/* Appends bytes [@from, @from + @len) of @b as they are, the whole or a part of some values: by
 * reference if the text may have references and they are many. */
void json_refer(struct json *j, struct blob *b, size_t from, size_t len);
/* Returns the length of the text with what it refers to. */
size_t json_length(const struct json *j);
/* Writes the values that @shape shows as JSON, with keys as bare words and constants in it:
 *      json_print(j, "{id:%s, object:'list', usage:{total:%u}, first:null, data:[", id, n);
 * Brackets may stay open, and commas are written where needed. %s is a string (NULL: null), %.*s
 * a string with its length (NULL: ""), %d, %u, %ld, %lu and %zu are whole numbers, %i is a boolean,
 * %g is json_double(). A string before a colon is a key. */
void json_print(struct json *j, const char *shape, ...) PRINTF(2, 3);
void json_vprint(struct json *j, const char *shape, va_list args);

/* Parses a request body: an object of at most JSON_DEPTH levels and JSON_NODES values. Replaces
 * escapes of half a surrogate pair by U+FFFD, also in @data. 0 with *out, the caller's to free;
 * -EINVAL with @err, a 400 that names the byte; -ENOMEM. On any thread. */
int json_read(yyjson_doc **out, char *data, size_t len, struct err *err);
/* Refuses a value of a body with a 400: "PARAM MUST." Returns -EINVAL. */
int json_refuse(struct err *err, const char *param, const char *must);
