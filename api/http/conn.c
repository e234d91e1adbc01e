/*
 * Rules that keep this file small: the parser stops after the head and after the message and never
 * calls into a route (http.h); one exchange at a time, so answers cannot overtake each other;
 * conn_close() ends the exchange, and is never called inside the exchange's own functions: those
 * use conn_break(), which closes in a turn. One timer serves all states, since each state
 * waits for one thing.
 *
 * What is written collects in `out`; conn_write.c sends it, the rest of a large answer in turns.
 *
 * A connection can lose its place, its body or its output to another one at any time that it is not
 * itself running: what it loses is freed and its charge set before the function that takes it
 * returns.
 */

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "api/http/conn_private.h"
#include "api/http/loop_lag.h"
#include "api/http/tls.h"

#define PACKED_PIECE 4096u       /* bytes of a compressed body that are unpacked in a turn */
#define KEEP_SENDING (64u << 10) /* unsent bytes above which the next request waits */
#define LINGER_CLOSING_MS 200    /* LINGER_MS while the server closes */
#define DUE_MS 20                /* a deadline that has passed waits so long for a turn */
#define DUE_MAX 50               /* so many times at most while bytes come */

void conn_set_state(struct conn *c, enum conn_state next) {
    static const uint8_t legal[] = {
        [CONN_HANDSHAKE] = 1 << CONN_IDLE | 1 << CONN_EXCHANGE,
        [CONN_IDLE] = 1 << CONN_HEAD | 1 << CONN_EXCHANGE | 1 << CONN_FLUSH,
        [CONN_HEAD] = 1 << CONN_BODY | 1 << CONN_EXCHANGE,
        [CONN_BODY] = 1 << CONN_EXCHANGE,
        [CONN_EXCHANGE] = 1 << CONN_IDLE | 1 << CONN_FLUSH,
        [CONN_FLUSH] = 1 << CONN_IDLE | 1 << CONN_LINGER,
        [CONN_LINGER] = 0,
        [CONN_CLOSED] = 0,
    };

    assert(next == CONN_CLOSED || legal[c->state] & 1 << next);
    c->state = next;
    if (next == CONN_IDLE || next == CONN_FLUSH)
        quota_charge_offer(&c->place);
    else if (next == CONN_EXCHANGE)
        quota_charge_withhold(&c->place);
    if (next == CONN_BODY)
        quota_charge_offer(&c->body);
    else
        quota_charge_withhold(&c->body);
}

/* Asserts the invariants of struct conn that hold between two events of the loop. */
static void conn_check(const struct conn *c) {
    bool has_exchange = c->state == CONN_BODY || c->state == CONN_EXCHANGE;

    assert(!c->exchange == !has_exchange && (c->body.n == 0 || c->exchange));
    assert(c->state != CONN_HANDSHAKE || c->tls);
    assert(c->ahead_at <= c->ahead.len && (!c->broken || (c->close_after && c->discard)));
    assert(c->state != CONN_CLOSED || (c->place.n == 0 && list_empty(&c->turn.link)));
}

/* Returns true if the arriving HTTP is parsed; else it is kept or discarded. */
static bool is_reading(const struct conn *c) {
    return c->state <= CONN_BODY;
}

static void conn_on_timer(uv_timer_t *t);
static void turn_due(struct conn *c);

void conn_arm(struct conn *c, uint64_t ms) {
    c->n_due = 0;
    if (c->broken)
        return;
    c->due = false;
    uv_timer_start(&c->timer, conn_on_timer, ms, 0);
}

/* Stops the timer, which nothing waits for. */
static void disarm(struct conn *c) {
    if (c->broken)
        return;
    c->due = false;
    uv_timer_stop(&c->timer);
}

void conn_break(struct conn *c) {
    if (c->state == CONN_CLOSED)
        return;
    c->broken = c->close_after = c->discard = true;
    uv_timer_start(&c->timer, conn_on_timer, 0, 0);
}

/* ---- end ---- */

/* Notes that one of the two handles is closed; with the second the connection is dead. Thousands
 * may close in one iteration, so each is freed in a turn of the server. */
static void conn_on_closed(uv_handle_t *h) {
    struct conn *c = h->data;

    assert(c->state == CONN_CLOSED && c->n_open > 0 && !c->exchange);

    if (--c->n_open)
        return;
    list_remove(&c->link);
    list_push_back(&c->server->dead, &c->link);
    http_server_wake(c->server);
    quota_charge_set(&c->unsent, 0);
    if (c->peer)
        payer_release(c->peer);
}

void conn_free(struct conn *c) {
    assert(c->state == CONN_CLOSED && c->n_open == 0);
    list_remove(&c->link);
    assert(c->server->n_connections > 0);
    c->server->n_connections--;
    http_deinit(&c->http);
    tls_free(c->tls);
    output_deinit(&c->out);
    buf_deinit(&c->plain);
    buf_deinit(&c->records);
    buf_deinit(&c->ahead);
    if (c->server->closing && c->server->n_connections == 0)
        http_server_emptied(c->server);
    free(c);
}

/* Ends a request: frees its body and makes the parser wait for the next one. */
static void reset_http(struct conn *c) {
    http_reset(&c->http);
    quota_charge_set(&c->body, 0);
}

void conn_steal_body(struct conn *c, struct buf *out, struct quota_charge *charge) {
    assert(c->exchange && c->body.n == c->http.body.len);

    *out = c->http.body;
    buf_init(&c->http.body, c->server->opts.limits.body);
    quota_charge_pass(&c->body, charge);
}

bool conn_has_left(const struct conn *c) {
    struct pollfd p = {.events = POLLRDHUP};

    if (c->http.ws || uv_fileno((const uv_handle_t *)&c->h.stream, &p.fd) < 0)
        return false;
    return poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

void conn_set_payer(struct conn *c, struct payer *payer) {
    bool waits = !list_empty(&c->turn.link);

    turn_withdraw(&c->turn, &c->payer->turns);
    c->payer = payer;
    if (waits)
        turn_want(&c->turn, &payer->turns);
    quota_charge_move(&c->place, &payer->account[c->local ? PAYER_UNIX : PAYER_TCP]);
    quota_charge_move(&c->body, &payer->account[PAYER_BODIES]);
    quota_charge_move(&c->unsent, &payer->account[PAYER_OUTPUT]);
}

/* Closes the stream. One whose answer is @cut off is reset over TCP: the end of an answer without a
 * length or chunks would look complete. */
static void close_stream(struct conn *c, bool cut) {
    bool reset = cut && c->h.stream.type == UV_TCP;

    if (!reset || uv_tcp_close_reset(&c->h.tcp, conn_on_closed) < 0)
        uv_close((uv_handle_t *)&c->h.stream, conn_on_closed);
}

void conn_close(struct conn *c) {
    if (c->state == CONN_CLOSED)
        return;
    bool cut = c->broken || c->state == CONN_EXCHANGE || conn_unsent(c) > 0;
    conn_set_state(c, CONN_CLOSED);
    struct exchange *x = c->exchange;
    c->exchange = NULL;
    if (x)
        c->server->events->gone(x);
    reset_http(c);
    quota_charge_set(&c->place, 0);
    turn_withdraw(&c->turn, &c->payer->turns);
    close_stream(c, cut);
    uv_close((uv_handle_t *)&c->timer, conn_on_closed);
}

/* ---- output ---- */

/* Queues the connection for a turn in which it reads what has arrived. */
static void want_read(struct conn *c) {
    c->reads = true;
    turn_want(&c->turn, &c->payer->turns);
    http_server_wake(c->server);
}

/* Lets a request that came early wait for its turn. */
static void want_turn(struct conn *c) {
    if (c->ahead.len == 0 || !is_reading(c))
        return;
    want_read(c);
}

void conn_want_send(struct conn *c) {
    if (c->state == CONN_CLOSED)
        return;
    c->sends = true;
    turn_want(&c->turn, &c->payer->turns);
    http_server_wake(c->server);
}

static void on_shutdown(uv_shutdown_t *s, int status) {}

/* Waits in FLUSH: on_flush_timer() compares with what is unsent now. A server that closes does not
 * wait for a reader that has stalled. */
static void await_progress(struct conn *c) {
    c->n_unsent_before = conn_unsent(c);
    conn_arm(c, c->server->closing ? LINGER_MS : c->server->opts.stall_timeout_ms);
}

/* Waits for the next request: while the answer is unsent, for its reader. */
static void await_request(struct conn *c) {
    if (conn_unsent(c) > 0 && !c->http.ws) {
        await_progress(c);
        return;
    }
    c->n_unsent_before = 0;
    conn_arm(c, c->server->opts.idle_timeout_ms);
}

/* Goes on when the answer is sent: to the next request, or to the end. A broken connection waits
 * for the turn that closes it and says no goodbye, which would make what was sent look complete. */
static void after_flush(struct conn *c) {
    if (c->broken)
        return;
    if (!c->close_after) {
        conn_set_state(c, CONN_IDLE);
        await_request(c);
        want_turn(c);
        return;
    }
    if (c->tls && !c->eof) {
        tls_end(c->tls);
        conn_flush(c);
        if (conn_unsent(c)) { /* behind a write whose end has not been reported */
            await_progress(c);
            return;
        }
    }
    if (c->eof || uv_shutdown(&c->shutdown, &c->h.stream, on_shutdown) < 0) {
        conn_close(c);
        return;
    }
    conn_set_state(c, CONN_LINGER);
    c->got = false;
    conn_arm(c, c->server->closing ? LINGER_CLOSING_MS : LINGER_MS);
}

void conn_written(struct conn *c) {
    if (conn_unsent(c) > 0) {
        conn_want_send(c);
        return;
    }
    if (c->state == CONN_IDLE) { /* thousands may be idle: they keep no buffers */
        output_rest(&c->out);
        buf_deinit(&c->plain);
        buf_deinit(&c->records);
        if (c->tls)
            tls_rest(c->tls);
    }
    if (c->state == CONN_FLUSH)
        after_flush(c);
    else if (c->calls)
        conn_want_send(c);
}

void conn_want_room(struct conn *c) {
    c->calls = true;
    if (!c->writing)
        conn_want_send(c);
}

bool conn_is_full(struct conn *c) {
    if (conn_unsent(c) < c->server->opts.stream_buffer_bytes) {
        if (c->blocked_ns) {
            c->blocked_ns = 0;
            conn_start_keepalive(c);
        }
        return false;
    }
    c->calls = true;
    if (!c->blocked_ns) {
        c->blocked_ns = clock_now(c->server->opts.clock);
        if (c->state == CONN_EXCHANGE)
            conn_arm(c, c->server->opts.stall_timeout_ms);
    }
    return true;
}

void conn_start_keepalive(struct conn *c) {
    if (c->state == CONN_EXCHANGE && !c->blocked_ns)
        conn_arm(c, c->server->opts.keepalive_ms);
}

/* ---- exchanges ---- */

/* Sends what the reader of frames has for the client: pongs, and the close. */
static void send_replies(struct conn *c) {
    struct buf *b = &c->http.ws->reply;

    if (b->len > 0 && (c->http.ws->close_sent || conn_unsent(c) < KEEP_SENDING))
        conn_send(c, b->data, b->len);
    buf_clear(b);
    conn_flush(c);
}

/* Ends a WebSocket: sends a close with the code of what was wrong, or that the server goes away. */
static void send_close(struct conn *c) {
    struct websocket *ws = c->http.ws;

    if (!ws || c->broken || c->eof)
        return;
    websocket_close(ws, ws->code ? ws->code : WEBSOCKET_GOING_AWAY);
    send_replies(c);
}

bool conn_is_flushing(const struct conn *c) {
    return c->state == CONN_FLUSH || (c->state == CONN_IDLE && conn_unsent(c) > 0);
}

void conn_exchange_done(struct conn *c) {
    assert(c->exchange);
    c->exchange = NULL;
    c->answered = true;
    if (c->state == CONN_CLOSED)
        return;
    disarm(c);
    c->blocked_ns = 0;
    c->unread_ns = 0;
    c->calls = false;
    reset_http(c);
    if (c->close_after)
        send_close(c);
    conn_flush(c);
    if (c->state == CONN_CLOSED)
        return;
    conn_set_state(c, CONN_FLUSH);
    if (conn_unsent(c) == 0 || (!c->close_after && conn_unsent(c) < KEEP_SENDING)) {
        after_flush(c);
        return;
    }
    await_progress(c);
}

void conn_answer_early(struct conn *c, const struct err *err) {
    assert(err->status != 0);
    c->close_after = c->discard = true;
    conn_set_state(c, CONN_EXCHANGE);
    c->server->events->refused(c, err);
}

static void conn_on_head(struct conn *c) {
    conn_set_state(c, CONN_BODY);
    conn_arm(c, c->server->opts.body_timeout_ms);
    c->close_after |= !llhttp_should_keep_alive(&c->http.parser) || c->server->leaving;
    c->server->events->head(c);
    assert(c->exchange || c->state != CONN_BODY);
}

static void conn_on_message(struct conn *c) {
    assert(c->exchange && c->state == CONN_BODY);
    disarm(c);
    conn_set_state(c, CONN_EXCHANGE);
    c->server->events->message(c);
}

static int refuse_body(struct err *err) {
    return err_set_code(err, 503, "overloaded", NULL,
                        "Too many request bodies are being received. Try again later.");
}

/* Refuses the request of @charge, whose body is not complete. */
static void reclaim_body(struct quota_charge *charge) {
    struct conn *c = CONTAINER_OF(charge, struct conn, body);
    struct err err = {0};

    assert(c->state == CONN_BODY && !c->parsing);
    c->server->n_lost_bodies++;
    refuse_body(&err);
    conn_answer_early(c, &err);
}

/* Bodies in memory are bounded in all, not only each. Returns 0, or -EINVAL with @err when there is
 * no room for what has been read. */
static int charge_body(struct conn *c, struct err *err) {
    size_t n = c->http.body.len - c->body.n;
    bool first = c->body.n == 0;

    if (n == 0)
        return 0;
    if (!quota_make_room(&c->server->payers.quota[PAYER_BODIES], &c->body, n, reclaim_body))
        return refuse_body(err);
    quota_charge_set(&c->body, c->http.body.len);
    if (first)
        quota_charge_offer(&c->body);
    return 0;
}

static void begin_head(struct conn *c) {
    conn_set_state(c, CONN_HEAD);
    conn_arm(c, c->server->opts.header_timeout_ms);
}

/* Closes the connection between requests; answers still go out. */
static void close_when_sent(struct conn *c) {
    c->close_after = true;
    send_close(c);
    if (!conn_is_flushing(c)) {
        conn_close(c);
        return;
    }
    if (c->state == CONN_IDLE)
        conn_set_state(c, CONN_FLUSH);
    c->n_unsent_before = conn_unsent(c);
    conn_arm(c, LINGER_MS);
}

/* Parses up to the next stop of the parser and acts on it. Returns how many bytes it used; after a
 * refusal all, since nothing behind it can be parsed. */
static size_t parse_some(struct conn *c, const char *data, size_t len) {
    struct err err = {0};
    size_t used = 0;

    if (c->state == CONN_IDLE && !c->http.ws)
        begin_head(c);
    int r = http_feed(&c->http, data, len, &used, &err);
    if (c->http.ws)
        send_replies(c);
    if (r < 0 || charge_body(c, &err) < 0) {
        conn_answer_early(c, &err);
        return len;
    }
    if (r == HTTP_CLOSED) {
        close_when_sent(c);
        return len;
    }
    if (c->state == CONN_IDLE && r == HTTP_HEAD_DONE)
        begin_head(c);
    if (r == HTTP_HEAD_DONE)
        conn_on_head(c);
    if (r == HTTP_HEAD_DONE && c->state == CONN_BODY && used == len)
        used += parse_some(c, data + len, 0); /* a request without a body is complete here */
    else if (r == HTTP_MESSAGE_DONE)
        conn_on_message(c);
    return used;
}

/* Parses one request, or the part of it that has arrived; of a compressed body only a piece, since
 * a read of it may become megabytes. Returns how many bytes it used. */
static size_t conn_parse(struct conn *c, const char *data, size_t len) {
    bool packed = false;
    size_t at = 0;

    c->parsing = true;
    do { /* at most @len turns: each uses a byte, or leaves HEAD and BODY */
        packed = c->state == CONN_BODY && c->http.coding != UNPACK_NONE;
        at += parse_some(c, data + at, packed ? MIN(len - at, PACKED_PIECE) : len - at);
    } while (at < len && !packed && (c->state == CONN_HEAD || c->state == CONN_BODY));
    c->parsing = false;
    return at;
}

/* Parses the next request of those that came while another was answered, or the next piece. */
static void parse_ahead(struct conn *c) {
    c->ahead_at += conn_parse(c, c->ahead.data + c->ahead_at, c->ahead.len - c->ahead_at);
    if (c->ahead_at < c->ahead.len && (!c->close_after || c->state == CONN_BODY))
        return;
    buf_deinit(&c->ahead);
    c->ahead_at = 0;
}

/* Keeps what came early for after the answer, or for the next turn in a body; more than a header's
 * worth is not waited with. */
static void conn_retain_ahead(struct conn *c, const char *data, size_t len) {
    buf_consume(&c->ahead, c->ahead_at);
    c->ahead_at = 0;
    if ((!c->close_after || c->state == CONN_BODY) && buf_add(&c->ahead, data, len) == 0)
        return;
    c->close_after = c->discard = true;
    if (c->state == CONN_IDLE) /* the answer is sent, and nothing else would close it */
        close_when_sent(c);
}

/* A client that has shut its side down counts as gone: a live generation is not worth more than the
 * certainty that abandoned ones end. */
static void on_eof(struct conn *c) {
    c->eof = true;
    uv_read_stop(&c->h.stream);
    close_when_sent(c);
}

/* Frames that come while a message is being answered: pings are answered, and a close is the end of
 * the answer. Returns how many bytes it used, which are all before the next message. */
static size_t parse_busy(struct conn *c, const char *data, size_t len) {
    struct err err = {0};
    size_t used = 0;
    int r = http_feed_busy(&c->http, data, len, &used, &err);

    if (r == HTTP_MORE) {
        send_replies(c);
        return used;
    }
    close_when_sent(c);
    return len;
}

/* Handles HTTP, or frames, that have arrived. */
static void receive(struct conn *c, const char *data, size_t n) {
    bool busy = c->http.ws && (c->state == CONN_EXCHANGE || c->state == CONN_FLUSH);
    size_t used = 0; /* bytes that were kept come first */

    if (c->ahead.len == 0 && is_reading(c))
        used = conn_parse(c, data, n);
    else if (c->ahead.len == 0 && busy)
        used = parse_busy(c, data, n);
    if (used < n && c->state < CONN_LINGER)
        conn_retain_ahead(c, data + used, n - used);
}

/* Refuses a client that takes the port for one of plain HTTP. */
static void refuse_plain(struct conn *c) {
    struct err err;

    c->tls = tls_free(c->tls);
    err_set_code(&err, 400, "plain_http", NULL,
                 "This is an HTTPS port, but the request is plain HTTP. Use https:// in the URL.");
    conn_answer_early(c, &err);
}

/* Handles TLS records, or parts of them. */
static void receive_tls(struct conn *c, const char *data, size_t n) {
    char text[TLS_RECORD];
    ssize_t got;

    tls_feed(c->tls, data, n);
    do { /* at most @n turns: a record is longer than its text */
        got = tls_read(c->tls, text, sizeof(text));
        if (c->state == CONN_HANDSHAKE && tls_is_open(c->tls))
            conn_set_state(c, CONN_IDLE);
        if (got > 0)
            receive(c, text, (size_t)got);
    } while (got > 0 && !c->discard && c->state < CONN_LINGER);
    if (got == -EPROTONOSUPPORT && c->state == CONN_HANDSHAKE) {
        refuse_plain(c);
        return;
    }
    if (got == -EPIPE && !conn_unsent(c))
        tls_end(c->tls);
    conn_flush(c); /* sends records of a handshake, or an alert */
    if (got == -EPIPE && c->state != CONN_CLOSED)
        on_eof(c);
    else if (got < 0)
        conn_close(c);
}

/* Reads everything that the socket has, up to the size of the buffer. */
static void conn_read_some(struct conn *c) {
    char *data = c->server->read_buf;
    uv_os_fd_t fd = -1;

    uv_fileno((uv_handle_t *)&c->h.stream, &fd); /* an open handle has one */
    ssize_t n = recv(fd, data, sizeof(c->server->read_buf), MSG_DONTWAIT);
    c->got |= n > 0;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0)
        conn_close(c);
    else if (n == 0)
        on_eof(c);
    else if (c->discard || c->state == CONN_LINGER)
        return;
    else if (c->state == CONN_HANDSHAKE && tls_is_new(c->tls) && conn_has_left(c))
        conn_close(c); /* a signature takes up to 5 ms of the loop's time */
    else if (c->tls)
        receive_tls(c, data, (size_t)n);
    else
        receive(c, data, (size_t)n);
}

/* Stops reading: a message waits until the one before it is answered, and those behind it stay with
 * the client. */
static void hold_back(struct conn *c) {
    if (c->state != CONN_CLOSED && !c->unwatched)
        uv_read_stop(&c->h.stream);
    c->unwatched = true;
}

/* Sends the next part of what is unsent, or lets the exchange write more. */
static void turn_to_send(struct conn *c) {
    bool has_room = conn_unsent(c) < c->server->opts.stream_buffer_bytes;

    c->sends = false;
    if (c->calls && has_room && c->state == CONN_EXCHANGE) {
        c->calls = false;
        c->server->events->drained(c->exchange);
    }
    conn_flush(c);
}

static void turn_to_read(struct conn *c) {
    c->reads = false;
    if (c->ahead.len > 0 && is_reading(c))
        parse_ahead(c);
    else
        conn_read_some(c);
    if (c->http.ws && c->ahead.len > 0 && !is_reading(c))
        hold_back(c);
    else if (c->unwatched && c->state != CONN_CLOSED && !c->eof && conn_read_start(c) < 0)
        conn_close(c);
    want_turn(c);
}

static bool wants_turn(const struct conn *c) {
    return c->sends || c->reads || c->due;
}

void conn_turn(struct conn *c) {
    conn_check(c);
    assert(c->state != CONN_CLOSED);
    if (c->sends)
        turn_to_send(c);
    if (c->reads && c->state != CONN_CLOSED)
        turn_to_read(c);
    if (c->due && c->state != CONN_CLOSED)
        turn_due(c);
    /* An answer that ended above asked for the turn that was just had. */
    if (!wants_turn(c))
        turn_withdraw(&c->turn, &c->payer->turns);
    assert(c->state == CONN_CLOSED || wants_turn(c) == !list_empty(&c->turn.link));
    conn_check(c);
}

/* Gives no room: a readable socket is read when its connection has its turn. */
static void conn_on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b) {
    *b = uv_buf_init(NULL, 0);
}

/* Handles a readable socket. One that is reported again before its turn is not watched until then:
 * while thousands wait, each iteration would report all of them. */
static void conn_on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b) {
    struct conn *c = s->data;

    if (n < 0 && n != UV_ENOBUFS) {
        conn_close(c);
    } else if (c->state == CONN_CLOSED) {
        return;
    } else if (!c->reads) {
        c->reads = true;
        turn_want(&c->turn, &c->payer->turns);
    } else {
        uv_read_stop(s);
        c->unwatched = true;
    }
}

int conn_read_start(struct conn *c) {
    c->unwatched = false;
    return uv_read_start(&c->h.stream, conn_on_alloc, conn_on_read);
}

void conn_read_first(struct conn *c) {
    c->unwatched = true;
    want_read(c);
}

/* ---- time ---- */

/* Refuses a head or body that took too long. */
static void on_late(struct conn *c) {
    struct err err;

    err_set_code(&err, 408, "request_timeout", NULL, "The request did not arrive in time.");
    conn_answer_early(c, &err);
}

/* Handles a keep-alive that is due while the last one is unsent: another one would wait behind it.
 * A client that reads nothing for the stall time is not waited for. */
static void on_unread_timer(struct conn *c) {
    const struct http_server_opts *o = &c->server->opts;
    size_t left = conn_unsent(c);
    int64_t now = clock_now(o->clock);

    if (c->unread_ns == 0 || left < c->n_unsent_before)
        c->unread_ns = now;
    c->n_unsent_before = left;
    if (now - c->unread_ns >= (int64_t)o->stall_timeout_ms * 1000000)
        conn_close(c);
    else
        conn_start_keepalive(c);
}

/* Handles the timer of a stream: either its reader has been too slow for too long, or it has been
 * silent. */
static void on_call_timer(struct conn *c) {
    const struct http_server_opts *o = &c->server->opts;
    int64_t stall_ns = (int64_t)o->stall_timeout_ms * 1000000;

    if (c->blocked_ns) {
        int64_t left = c->blocked_ns + stall_ns - clock_now(o->clock);

        if (left <= 0)
            conn_close(c);
        else
            conn_arm(c, (uint64_t)left / 1000000 + 1);
    } else if (conn_unsent(c) > 0) {
        on_unread_timer(c);
    } else {
        c->unread_ns = 0;
        if (c->server->events->silent(c->exchange) && c->state == CONN_EXCHANGE)
            conn_start_keepalive(c);
    }
}

/* Handles the timer of an answer that is being flushed: any progress within the stall time will
 * do. */
static void on_flush_timer(struct conn *c) {
    size_t left = conn_unsent(c);

    if (left >= c->n_unsent_before || c->server->closing) {
        conn_close(c);
        return;
    }
    await_progress(c);
}

/* Closes the connection unless its client still sends what is discarded, and may do so. */
static void on_linger_timer(struct conn *c) {
    uint32_t most = c->server->opts.body_timeout_ms / LINGER_MS;

    conn_read_some(c); /* what came while the front was away */
    if (c->state == CONN_CLOSED)
        return;
    if (!c->got || c->server->closing || c->n_lingers++ >= most) {
        conn_close(c);
        return;
    }
    c->got = false;
    conn_arm(c, LINGER_MS);
}

/* Pings the client of a WebSocket, which may be silent for as long as it answers pings; closes any
 * other connection, unless its client has read some of the last answer. */
static void on_idle_timer(struct conn *c) {
    static const uint8_t ping[] = {0x80 | WEBSOCKET_PING, 0};

    if (conn_unsent(c) < c->n_unsent_before) {
        await_request(c);
        return;
    }
    if (!c->http.ws || c->http.ws->pinged || conn_send(c, ping, sizeof(ping)) < 0) {
        conn_close(c);
        return;
    }
    c->http.ws->pinged = true;
    conn_arm(c, c->server->opts.idle_timeout_ms);
    conn_flush(c);
}

/* Returns true if the connection's time has not really passed: the front itself may have been away,
 * with the machine or because it was busy, and timers run before what came meanwhile is seen. So a
 * deadline that passes asks for a turn first, and again while bytes come, which a full socket may
 * have kept with the client; a client that is slow on purpose gains a second. */
static bool conn_is_early(struct conn *c) {
    bool reads = c->state <= CONN_BODY;
    bool waits = c->blocked_ns || c->unread_ns;
    bool sends = conn_is_flushing(c) || (c->state == CONN_EXCHANGE && waits);

    if (!reads && !sends)
        return false;
    bool goes_on = reads && c->got && c->n_due < DUE_MAX;
    if (c->n_due > 0 && list_empty(&c->turn.link) && !goes_on)
        return false;
    if (reads)
        want_read(c);
    else
        conn_want_send(c);
    uv_timer_start(&c->timer, conn_on_timer, DUE_MS, 0);
    c->got = false;
    c->n_due = (uint8_t)MIN(c->n_due + 1, DUE_MAX);
    return true;
}

/* Handles a deadline that has passed, in a turn: those of thousands may pass together. */
static void turn_due(struct conn *c) {
    loop_lag_mark("a connection's time");
    c->due = false;
    if (c->broken) {
        conn_close(c);
        return;
    }
    switch (c->state) {
    case CONN_HEAD:
    case CONN_BODY:
        on_late(c);
        break;
    case CONN_EXCHANGE:
        on_call_timer(c);
        break;
    case CONN_FLUSH:
        on_flush_timer(c);
        break;
    case CONN_IDLE:
        on_idle_timer(c);
        break;
    case CONN_LINGER:
        on_linger_timer(c);
        break;
    case CONN_HANDSHAKE:
        conn_close(c);
        break;
    case CONN_CLOSED:
        break;
    }
}

static void conn_on_timer(uv_timer_t *t) {
    struct conn *c = t->data;

    conn_check(c);
    if (!c->broken && conn_is_early(c))
        return;
    c->due = true;
    turn_want(&c->turn, &c->payer->turns);
    http_server_wake(c->server);
}

/* ---- for the server ---- */

void conn_abort(struct conn *c, const struct err *err) {
    if (c->state == CONN_EXCHANGE) {
        c->close_after = true;
        c->server->events->failed(c->exchange, err);
    } else if (c->exchange) {
        conn_answer_early(c, err);
    } else {
        close_when_sent(c);
    }
    conn_flush(c);
}

bool conn_peer_uid(const struct conn *c, uid_t *uid) {
    struct ucred peer;
    socklen_t len = sizeof(peer);
    uv_os_fd_t fd;

    if (!c->local || uv_fileno((const uv_handle_t *)&c->h.stream, &fd) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return false;
    *uid = peer.uid;
    return true;
}
