#pragma once

/*
 * respond - writes answers: heads, whole bodies, error objects, server-sent events. A client
 * that is gone is written to in vain, without an error.
 */

#include "api/http/exchange.h"
#include "base/buf.h"

#define RESPOND_JSON "application/json"
#define RESPOND_LINES "application/x-ndjson"

/* A whole answer; ends the call. @type NULL: no body. */
void respond(struct exchange *x, int status, const char *type, const void *data, size_t len);
/* As JSON in @b; @error (of building it) < 0: 500 instead. Ends the call. */
void respond_buf(struct exchange *x, int status, const struct buf *b, int error);
/* The error object, with Retry-After for 429 and 503. Ends the call. */
void respond_error(struct exchange *x, const struct err *err);
/* Names of the kind and of the error itself as OpenAI has them, after its status where it has no
 * code of its own; the code may be NULL. For the dialects' put_error(). */
const char *respond_error_type(const struct err *err);
const char *respond_error_code(const struct err *err);
/* For an -errno without text: 500 or 503. */
void respond_errno(struct exchange *x, int error);

/* A stream of events: begin, then events, then end (which ends the exchange). How they are framed
 * is the dialect's affair. */
void respond_stream(struct exchange *x);
void respond_event(struct exchange *x, const char *json, size_t len);
/* With an "event:" line. */
void respond_named_event(struct exchange *x, const char *name, const char *json, size_t len);
/* After silence: what the route says (exchange_ops.alive), else what the dialect has for it. */
void respond_keepalive(struct exchange *x);
void respond_stream_error(struct exchange *x,
                          const struct err *err); /* the error event; ends the call */
/* The same when the client has been told. */
void respond_stream_failed(struct exchange *x, const struct err *err);
void respond_stream_end(struct exchange *c); /* OpenAI: data: [DONE] */
