#pragma once

/*
 * http - one HTTP/1 request being read: the glue to llhttp, which is used in its strict mode, and
 * the limits that it does not have. The parser stops after the header block and after the message,
 * so that its owner never acts inside a callback.
 */

#include <llhttp.h>
#include <stdbool.h>
#include "base/buf.h"
#include "base/err.h"

enum http_answer { HTTP_MORE, HTTP_HEAD_DONE, HTTP_MESSAGE_DONE };

struct http_limits {
    size_t target, head, body;
    uint32_t n_headers;
};

struct http {
    llhttp_t parser;
    const struct http_limits *limits;
    struct buf head; /* target NUL (name NUL value NUL)*; names in lower case */
    struct buf body;
    size_t n_head_bytes; /* raw, trailers included */
    uint32_t n_headers;
    bool started, head_done, discard; /* discard: read the body but do not keep it */
    struct err err;                   /* what a callback refused */
};

void http_init(struct http *h, const struct http_limits *limits);
void http_deinit(struct http *h);
void http_reset(struct http *h); /* for the next request */

/* Reads up to @len bytes; *used says how many. HTTP_HEAD_DONE and HTTP_MESSAGE_DONE stop in front
 * of what follows: call again with the rest, even when the rest is empty. -EINVAL: @err says what
 * is wrong; the connection cannot be used further. */
int http_feed(struct http *h, const char *data, size_t len, size_t *used, struct err *err);

/* After HTTP_HEAD_DONE. */
const char *http_target(const struct http *h);
/* Value of header @name (lower case), NULL when absent; *n (may be NULL) says how often it is
 * there. */
const char *http_header(const struct http *h, const char *name, uint32_t *n);
bool http_has_body(const struct http *h);
bool http_is_chunked(const struct http *h);

/* Puts the bytes that %XX stand for in their places in @s, NUL-terminated. False: a % without two
 * hex digits, or a control character, which no name here contains; then @s is of no use. */
bool http_decode(char *s);
