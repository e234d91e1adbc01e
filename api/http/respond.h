#pragma once

/*
 * respond - writes answers: heads, whole bodies, error objects, events of streams, each in the form
 * of the exchange's dialect. Writing to a client that has left does nothing and is not an error.
 */

#include <sys/types.h>

#include "api/http/exchange.h"
#include "base/splices.h"

#define RESPOND_JSON "application/json"
#define RESPOND_LINES "application/x-ndjson"
#define RESPOND_SHAPE_MAX 4096u

/* Every answer, whole or a stream, has one head and ends its exchange once. A function that ends
 * the exchange has freed @x when it returns. For the loop's thread. */

/* Sends a whole answer and ends the exchange. @type NULL: no body. */
void respond(struct exchange *x, int status, const char *type, const void *data, size_t len);
/* Sends @b as JSON, and may take its memory; @error (of building it) < 0: sends a 500 instead. Ends
 * the exchange. */
void respond_buf(struct exchange *x, int status, struct buf *b, int error);
/* Answers with @b as respond() does, without a copy of a large one, which is taken over. */
void respond_taken(struct exchange *x, int status, const char *type, struct buf *b);
/* Sends @b with the parts @in as JSON, like respond_buf(). */
void respond_spliced(struct exchange *x, struct buf *b, struct splices *in, int error);
/* Sends @n texts and @tail as JSON, without a copy. Ends the exchange, which is no message of a
 * WebSocket. */
void respond_spliced_texts(struct exchange *x, const struct spliced *texts, size_t n,
                           const char *tail);
/* Sends the JSON that json_print() makes of @shape, at most RESPOND_SHAPE_MAX bytes. Ends the
 * exchange. */
void respond_shape(struct exchange *x, const char *shape, ...) PRINTF(2, 3);
/* Sends the error object. Ends the exchange. */
void respond_error(struct exchange *x, const struct err *err);
/* Sets the error for an -errno without text: 500 or 503. */
void respond_explain(int error, struct err *err);
/* Answers with this error. Ends the exchange. */
void respond_errno(struct exchange *x, int error);
/* Answers for @r < 0, with @err if that has a status. Ends the exchange. */
void respond_failed(struct exchange *x, int r, const struct err *err);

/* Begins a stream. Events and keep-alives follow, then one of the functions that end it. Bytes go
 * out with conn_flush(). */
void respond_stream(struct exchange *x);
/* Adds exchange.member, if there is one, to the object @json, which is an event of the stream. The
 * next three functions do so. Returns 0 or -ENOMEM. */
int respond_put_member(struct exchange *x, struct buf *json);
/* Sends an event without a name: @json between the dialect's event_begin and event_end. */
void respond_event(struct exchange *x, const char *json, size_t len);
/* Sends an event with an "event:" line; @name has at most 64 characters. */
void respond_named_event(struct exchange *x, const char *name, const char *json, size_t len);
/* Sends such an event with the parts @in (NULL: none). */
void respond_spliced_event(struct exchange *x, const char *name, const struct buf *json,
                           const struct splices *in);
/* Sends a part of events that are already in the form of a stream. */
void respond_part(struct exchange *x, const struct splice *part);
/* Sends at once a line that clients skip, in a stream of events (SSE_TYPE). @text has no line
 * break. A WebSocket gets a ping. */
void respond_comment(struct exchange *x, const char *text);
/* Notes that the answer of @x comes later, whole or as one that @streams: respond_silent() is then
 * called while nothing is sent. */
void respond_wait(struct exchange *x, bool streams);
/* Breaks the silence of a stream, or of an answer that is waited for, which clients and proxies
 * take for the end: after some time sends the head, with which status and headers are fixed, and
 * from then on a stream's keep-alive, or white space, with which JSON may begin. */
void respond_silent(struct exchange *x);
/* Ends a stream that did not fail. Ends the exchange, as the next two functions do. */
void respond_stream_end(struct exchange *x);
/* Ends the stream with an event that carries @err. */
void respond_stream_error(struct exchange *x, const struct err *err);
/* Ends the stream when the route has written the error event itself. */
void respond_stream_failed(struct exchange *x, const struct err *err);

/* Fails an exchange that has not ended: by exchange_ops.fail; without it calls
 * exchange_ops.abandon, then answers with @err or ends the stream with it. */
void respond_failure(struct exchange *x, const struct err *err);

/* For dialects: return type and code of the error object; the code may be NULL. */
const char *respond_error_type(const struct err *err);
const char *respond_error_code(const struct err *err);
