#pragma once

/*
 * respond - writes answers: heads, whole bodies, error objects, server-sent events. A client
 * that is gone is written to in vain, without an error.
 */

#include "api/http/call.h"
#include "base/buf.h"

#define RESPOND_JSON "application/json"
#define RESPOND_LINES "application/x-ndjson"

/* A whole answer; ends the call. @type NULL: no body. */
void respond(struct call *c, int status, const char *type, const void *data, size_t len);
/* As JSON in @b; @error (of building it) < 0: 500 instead. Ends the call. */
void respond_buf(struct call *c, int status, const struct buf *b, int error);
/* The error object, with Retry-After for 429 and 503. Ends the call. */
void respond_error(struct call *c, const struct err *err);
/* For an -errno without text: 500 or 503. */
void respond_errno(struct call *c, int error);

/* A stream of events: begin, then events and comments, then end (which ends the call). Ollama's clients
 * get lines instead. */
void respond_stream(struct call *c);
void respond_event(struct call *c, const char *json, size_t len);
/* With an "event:" line. */
void respond_named_event(struct call *c, const char *name, const char *json, size_t len);
void respond_keepalive(struct call *c); /* a comment, or a ping */
void respond_stream_error(struct call *c,
                          const struct err *err); /* the error event; ends the call */
/* The same when the client has been told. */
void respond_stream_failed(struct call *c, const struct err *err);
void respond_stream_end(struct call *c); /* OpenAI: data: [DONE] */
