#pragma once

/*
 * conn - one client connection: reads requests, one exchange at a time, and sends what the exchange
 * writes.
 *
 *   HANDSHAKE (over TLS)
 *     │ over
 *     v      first byte        head          message            answer complete
 *   IDLE ──────────────> HEAD ──────> BODY ─────────> EXCHANGE ─────────────────> FLUSH
 *     ^                    │            │               │                           │ all sent
 *     └────────────────────┼────────────┼───────────────┼───────────────────────────┤
 *                          └────────────┴── early answer┘                           │ to be closed
 *   any ──> CLOSED <─────────────────────────────────────────────────────── LINGER <┘
 *
 * LINGER: our side is shut down; input is discarded until none comes for a second, and for
 * body-timeout-ms at most, since closing at once would reset the connection, and a client that is
 * still sending a body which was refused would lose the answer. A pipelined request waits,
 * unparsed, in `ahead` until the answer before it is complete and sent, and then for a turn of its
 * own. So does the rest of a compressed body.
 *
 * libuv tells that a socket is readable; what is there is read when the connection has its turn
 * (turn.h), which comes in the same iteration of the loop while that is not long. An answer that is
 * longer than one write goes on in turns, too.
 *
 * A deadline ends a connection only after a turn that found nothing new: the front may have been
 * stopped, and the client was not late then.
 *
 * When a request for a WebSocket was answered, frames take the place of HTTP (websocket.h): each
 * message is a request with the header block of that one and goes through the same states. Frames
 * that come during an answer are read up to the next message, which stays with the client.
 *
 * Over TLS (tls.h) what is read and sent passes through `tls`. An unfinished handshake has the
 * deadline of a header block and offers its place as one does. Plain HTTP is answered 400.
 *
 * Its place, its body and its unsent output are charged to its payer. A connection that is not in
 * the middle of an exchange offers its place, one that is reading a body its body, one whose client
 * reads slowly its output: when one of these is full, the oldest of the payer furthest above
 * its share is closed, refused or cut off (quota.h).
 *
 * What a request means is not known here: the layer above learns it through conn_events.
 */

#include <uv.h>

#include "api/http/http.h"
#include "api/http/output.h"
#include "api/http/payer.h"
#include "api/http/server.h"
#include "base/list.h"

struct conn;
struct exchange;
struct tls;

/* Callbacks of the layer above. Only head() and refused() may close the connection. */
struct conn_events {
    /* the header block is complete: sets c->exchange */
    void (*head)(struct conn *c);
    /* the request is complete: answer it */
    void (*message)(struct conn *c);
    /* The request cannot be completed: answer with @err, on c->exchange or a new one. */
    void (*refused)(struct conn *c, const struct err *err);
    /* The server stops while @x is being answered. */
    void (*failed)(struct exchange *x, const struct err *err);
    /* the client left */
    void (*gone)(struct exchange *x);
    /* there is room again after conn_is_full() */
    void (*drained)(struct exchange *x);
    /* Called when nothing was sent for keepalive_ms. Returns true to be called again. */
    bool (*silent)(struct exchange *x);
};

/* States of the diagram; conn.c has the table of legal transitions. */
enum conn_state {
    CONN_HANDSHAKE,
    CONN_IDLE,
    CONN_HEAD,
    CONN_BODY,
    CONN_EXCHANGE,
    CONN_FLUSH,
    CONN_LINGER,
    CONN_CLOSED
};

/*
 * Invariants between two events of the loop (conn.c: conn_check()): an exchange exists only in BODY
 * and EXCHANGE, and always in BODY; a state of HANDSHAKE implies tls; ahead_at < ahead.len, or both
 * are 0; broken implies close_after and discard, so that nothing more is read or parsed; a body is
 * charged for only in BODY, and in EXCHANGE until conn_steal_body(); CLOSED: no place, no body, no
 * turn and no exchange; the memory is freed with the last handle.
 */
struct conn {
    /* http_server.conns or .dead */
    struct list link;
    struct http_server *server;
    union {
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } h;
    uv_timer_t timer;
    uv_write_t write;
    uv_shutdown_t shutdown;
    enum conn_state state;
    struct http http;
    /* set from head to answer */
    struct exchange *exchange;
    /* NULL: plain */
    struct tls *tls;
    /* to be sent; its first n_sending bytes are being sent by `write` */
    struct output out;
    /* over TLS 0 */
    size_t n_sending;
    /* over TLS: to be encrypted; being sent by `write` */
    struct buf plain, records;
    /* read, not parsed from ahead_at on */
    struct buf ahead;
    size_t ahead_at;
    /* waits for its turn (turn.h) */
    struct turn turn;
    /* in FLUSH: unsent bytes at the last check of progress */
    size_t n_unsent_before;
    /* the payer that is charged; the payer of the address, to which it belongs */
    struct payer *payer, *peer;
    /* 1 from conn_accept() to its end, 0: refused */
    struct quota_charge place;
    /* bytes of http.body */
    struct quota_charge body;
    /* bytes of out */
    struct quota_charge unsent;
    /* time since which the exchange has had more to send than fits; 0: not now */
    int64_t blocked_ns;
    /* time since which nothing of what is unsent was read, if keep-alives are due; 0: not now */
    int64_t unread_ns;
    /* handles not closed */
    uint32_t n_open;
    /* a UNIX socket */
    bool local;
    /* a request of it was answered */
    bool answered;
    /* libuv does not poll it for reading: it waits for its turn */
    bool unwatched;
    /* what it waits for a turn for: to read or to parse; to send */
    bool reads, sends;
    /* likewise: its deadline has passed */
    bool due;
    /* the exchange has more to write once there is room */
    bool calls;
    /* bytes have come since its deadline was last looked at */
    bool got;
    /* turns that it had since its deadline has passed */
    uint8_t n_due;
    /* seconds of LINGER in which bytes came */
    uint32_t n_lingers;
    bool writing, parsing, close_after, discard, eof, broken;
};

/* Takes the connection's turn: one write of what is unsent, and one read, or one request of the
 * bytes that were read before. */
void conn_turn(struct conn *c);
/* Frees a connection whose handles are closed. */
void conn_free(struct conn *c);

/* Accepts the next connection of @listener, a pipe if @local, with TLS if @tls. Returns false if
 * memory is short; libuv accepts no other connection of @listener before this one. */
bool conn_accept(struct http_server *s, uv_stream_t *listener, bool local, bool tls);
/* Does the same for a connection that was accepted as @fd. Returns false if memory is short; @fd
 * then still belongs to the caller. */
bool conn_accept_fd(struct http_server *s, int fd, bool local, bool tls);

/* For the exchange: conn_send() queues bytes, and conn_flush() sends them. Returns 0, -EPIPE on a
 * closed connection, -ENOBUFS or -ENOMEM. */
int conn_send(struct conn *c, const void *data, size_t len);
/* Sends @len bytes of @blob from @from on, without a copy. Returns as conn_send(). */
int conn_refer(struct conn *c, struct blob *blob, size_t from, size_t len);
/* Sends what is unsent: a part at once, which is all of a short answer, the rest in turns. */
void conn_flush(struct conn *c);
size_t conn_unsent(const struct conn *c);
/* Returns true if an answer is complete but not sent. The connection may wait for a request. */
bool conn_is_flushing(const struct conn *c);
/* Marks a connection that cannot continue: the timer closes it, not this function. */
void conn_break(struct conn *c);
/* Returns true if the exchange should hold back: stream_buffer_bytes are unsent. After that it
 * calls drained() when there is room again, and closes the connection when there is none for
 * stall_timeout_ms. */
bool conn_is_full(struct conn *c);
/* Asks for a call of drained() in a turn of the connection, once there is room. */
void conn_want_room(struct conn *c);
/* Notes that c->exchange has ended: its output is sent, then the next request is read. */
void conn_exchange_done(struct conn *c);
/* Moves the request's body to @out, and its charge to @charge, which is the caller's to set to 0
 * when @out is freed. */
void conn_steal_body(struct conn *c, struct buf *out, struct quota_charge *charge);
/* Asks the kernel whether the client has shut its side down, so that a turn of @c will end its
 * exchange. Behind a message of a WebSocket others may have to be answered before that turn: then
 * the answer is false. */
bool conn_has_left(const struct conn *c);
/* Initialises a charge of 0 for the memory that an answer of @c takes before it is sent. */
void conn_hold_init(struct conn *c, struct quota_charge *charge);
/* Sets @charge, of conn_hold_init(), to @n bytes of unsent output. Returns false, with the charge
 * unchanged, if there is no room for them. */
bool conn_hold(struct conn *c, struct quota_charge *charge, uint64_t n);
/* Charges the connection to @payer from now on; @payer outlives the server's connections. */
void conn_set_payer(struct conn *c, struct payer *payer);
/* Starts to measure the silence of the stream. */
void conn_start_keepalive(struct conn *c);
/* Answers with @err before the request is complete. The following bytes cannot be divided into
 * requests, so they are discarded and the connection is closed. */
void conn_answer_early(struct conn *c, const struct err *err);
/* Finds the user at the other end of a UNIX socket. Returns false for another kind of socket, or if
 * the user is not known. */
bool conn_peer_uid(const struct conn *c, uid_t *uid);

/* Stops the connection: the exchange fails with @err, and the connection closes when the error is
 * sent. */
void conn_abort(struct conn *c, const struct err *err);
/* Closes the connection at once. Must not be called inside a function of the exchange. */
void conn_close(struct conn *c);
