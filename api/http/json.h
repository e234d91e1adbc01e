#pragma once

/*
 * json - writes JSON into a buffer, and guards the reading of it. Text that is not valid UTF-8
 * is written with U+FFFD in its place; the first failure (a full buffer) sticks in `error`.
 */

#include <stdbool.h>
#include <stdint.h>
#include <yyjson.h>
#include "base/buf.h"
#include "base/err.h"

#define JSON_DEPTH 64u
#define JSON_NODES (4u << 20)

struct json {
    struct buf *out;
    int error;
    bool comma;
};

void json_begin(struct json *j, struct buf *out);
void json_open(struct json *j, char bracket);  /* '{' or '[' */
void json_close(struct json *j, char bracket); /* '}' or ']' */
void json_key(struct json *j, const char *key);
void json_colon(struct json *j); /* what was written last is a key */
void json_string(struct json *j, const char *s, size_t len);
void json_cstring(struct json *j, const char *s); /* NULL: null */
void json_int(struct json *j, int64_t v);
void json_uint(struct json *j, uint64_t v);
void json_double(struct json *j,
                 double v); /* nine digits; not finite: -9999 (a logprob of nothing) */
void json_bool(struct json *j, bool v);
void json_null(struct json *j);
/* A value that is JSON already, but perhaps for bytes that are no UTF-8. */
void json_raw(struct json *j, const char *text, size_t len);

/* The same where all of it is UTF-8: written by this file or by yyjson. */
void json_valid(struct json *j, const char *text, size_t len);

/* Key and value at once. */
void json_put_string(struct json *j, const char *key, const char *s);
void json_put_int(struct json *j, const char *key, int64_t v);

/* Parses a request body: an object of bounded depth and size. Errors are 400 with the byte
 * offset. */
int json_read(yyjson_doc **out, const char *data, size_t len, struct err *err);
