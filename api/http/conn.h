#pragma once

/*
 * conn - one client connection: reads requests, one call at a time, and sends what the call writes.
 *
 *               first byte        head          message            answer complete
 *      IDLE ──────────────> HEAD ──────> BODY ─────────> CALL ─────────────────────> FLUSH
 *        ^                    │            │               │                           │ all bytes sent
 *        └────────────────────┼────────────┼───────────────┼───────────────────────────┤
 *                             └────────────┴── early answer┘                           │ to be closed
 *      any ──> CLOSED <─────────────────────────────────────────────────────── LINGER <┘
 *
 * LINGER: our side is shut down; input is discarded for a second, since closing at once would reset
 * the connection and the client could lose the answer. A pipelined request waits, unparsed, in
 * `ahead` until the answer before it is complete and sent.
 */

#include <uv.h>
#include "api/http/http.h"
#include "base/list.h"

struct api;
struct exchange;

enum conn_state {
    CONN_IDLE,
    CONN_HEAD,
    CONN_BODY,
    CONN_EXCHANGE,
    CONN_FLUSH,
    CONN_LINGER,
    CONN_CLOSED
};

struct conn {
    struct list link; /* api.conns */
    struct api *api;
    union {
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } h;
    uv_timer_t timer;
    uv_write_t write;
    uv_shutdown_t shutdown;
    enum conn_state state;
    struct http_limits limits;
    struct http http;
    struct exchange *exchange;
    struct buf out, flying; /* to be sent; being sent by `write` */
    struct buf ahead;
    size_t n_flying_left, n_body_charged;
    int64_t blocked_ns; /* since when the call has had more to send than fits; 0: it has not */
    uint32_t n_open;    /* handles not closed */
    bool local;         /* a UNIX socket */
    bool writing, parsing, close_after, discard, eof, broken;
};

/* Takes the next connection of @listener. */
void conn_accept(struct api *a, uv_stream_t *listener, bool local);

/* For the call. Bytes are queued by conn_send() and go out with conn_flush(). */
int conn_send(struct conn *c, const void *data, size_t len);
void conn_flush(struct conn *c);
size_t conn_unsent(const struct conn *c);
void conn_break(struct conn *c); /* it cannot go on: closed soon, not inside this call */
/* Whether the call should hold back: stream_buffer_bytes are unsent. Once it has answered true it calls
 * the call's drained() when there is room again, and closes the connection when there is none for
 * stall_timeout_ms. */
bool conn_is_full(struct conn *c);
void conn_exchange_done(struct conn *c); /* c->call has ended */
/* Moves the request's body to @out, with its part of api.body_bytes, which is returned. */
size_t conn_take_body(struct conn *c, struct buf *out);
/* The stream's silence is counted from here; a comment is sent after keepalive_ms of it. */
void conn_start_keepalive(struct conn *c);

/* The service stops: a call is failed with @err, the connection closed when that is sent. */
void conn_abort(struct conn *c, const struct err *err);
void conn_close(struct conn *c); /* at once */
