#pragma once

/*
 * http - reads one HTTP/1 request, with llhttp in its strict mode, and enforces limits that llhttp
 * does not have. The parser stops after the header block and after the message, so that its owner
 * never acts inside a callback.
 */

#include <llhttp.h>
#include <stdbool.h>

#include "api/http/unpack.h"
#include "api/http/websocket.h"
#include "base/buf.h"
#include "base/err.h"

/* Results of http_feed(). */
enum http_answer { HTTP_MORE, HTTP_HEAD_DONE, HTTP_MESSAGE_DONE, HTTP_CLOSED };

/* Limits of one request: bytes of the target, of the header block as received, and of the unpacked
 * body without chunk framing; header lines including trailers. Errors beyond them: 414, 431, 413,
 * 431. */
struct http_limits {
    size_t target, head, body;
    uint32_t n_headers;
    /* NULL: compressed bodies are not unpacked */
    struct unpack_room *unpack;
};

/* Invariants: body.len <= limits->body and n_headers <= limits->n_headers, or the last http_feed()
 * has failed; before head_done body is empty. */
struct http {
    llhttp_t parser;
    const struct http_limits *limits;
    /* target NUL (name NUL value NUL)*; names in lower case */
    struct buf head;
    struct buf body;
    /* bytes of the header block */
    size_t n_head_bytes;
    uint32_t n_headers;
    /* discard: read the body but do not keep it */
    bool started, head_done, discard;
    /* coding of the body, which is unpacked while it arrives */
    enum unpack_coding coding;
    /* once it has begun */
    struct unpack *unpack;
    /* not NULL: each message is a request with this header block */
    struct websocket *ws;
    /* set by a callback that refused the request */
    struct err err;
};

/* Initialises a parser for a connection's first request; @limits outlives it. Allocates nothing. */
void http_init(struct http *h, const struct http_limits *limits);
void http_deinit(struct http *h); /* frees head and body */
void http_reset(struct http *h);  /* prepares for the next request; drops the last one */

/* Reads up to @len bytes, whose number is *used. At HTTP_HEAD_DONE and HTTP_MESSAGE_DONE it stops
 * before the following bytes: call again with the rest, even if the rest is empty. HTTP_CLOSED: the
 * client has ended its WebSocket. -EINVAL: @err has the error; the connection cannot be used
 * further. */
int http_feed(struct http *h, const char *data, size_t len, size_t *used, struct err *err);
/* Reads frames while a message is being answered, and stops in front of the next message. Returns
 * as http_feed(): HTTP_MORE, HTTP_CLOSED or -EINVAL. */
int http_feed_busy(struct http *h, const char *data, size_t len, size_t *used, struct err *err);
/* Returns true if a request that asks for a WebSocket may have one. */
bool http_wants_websocket(const struct http *h);
/* Treats the following bytes of the connection as messages of a WebSocket: POST requests with the
 * header block of this request. Returns 0 or -ENOMEM. */
int http_begin_websocket(struct http *h);

/* Returns the functions below may be called after HTTP_HEAD_DONE; their results point into the
 * header block and are valid until http_reset(). */
/* Returns the request target, not decoded; of an absolute target ("http://host/path") the path,
 * while the header ":authority" has the host. */
const char *http_target(const struct http *h);
/* Returns the value of header @name (lower case), NULL if absent; *n (may be NULL) is the number of
 * its occurrences. */
const char *http_header(const struct http *h, const char *name, uint32_t *n);
/* Returns true if the target has the parameter @name behind its '?'. Its value is cut to @size and
 * decoded; a value that cannot be decoded is "". */
bool http_query(const struct http *h, const char *name, char *out, size_t size);
bool http_has_body(const struct http *h);
bool http_is_chunked(const struct http *h);

/* Decodes %XX in @s in place, NUL-terminated. Returns false for a % without two hex digits, or for
 * a control character, which no name contains; @s must not be used then. */
bool http_decode(char *s);
