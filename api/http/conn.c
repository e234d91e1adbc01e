#include "api/http/conn.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "api/http/exchange.h"
#include "api/private.h"
#include "api/http/respond.h"

/*
 * Rules that keep this file small: the parser stops after the head and after the message and never calls
 * into a route (http.h); one call at a time, so answers cannot overtake each other; conn_close() ends the
 * x, and is never called inside the call's own functions: those use conn_break(), which closes from
 * the timer. One timer serves all states, since each state waits for one thing.
 *
 * Writing: bytes collect in `out`; conn_flush() hands all of it to one uv_write() and collects anew. With
 * many streams a step of the worker costs one write for each of them, however many events it brought.
 */

#define KEEP_SENDING (64u << 10)  /* unsent bytes above which the next request waits */
#define TCP_PROBE_S 60            /* a silent peer is probed: it may be gone without a word */
#define EARLY_DISCARD (64u << 10) /* a refused request's body up to this size is read to its end */

static void set_state(struct conn *c, enum conn_state next) {
    static const uint8_t legal[] = {
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
}

static bool is_reading(const struct conn *c) {
    return c->state <= CONN_BODY;
}

static void on_timer(uv_timer_t *t);

static void arm(struct conn *c, uint64_t ms) {
    if (!c->broken)
        uv_timer_start(&c->timer, on_timer, ms, 0);
}

/* ---- end ---- */

static void on_closed(uv_handle_t *h) {
    struct conn *c = h->data;

    if (--c->n_open)
        return;
    list_remove(&c->link);
    c->api->stats.n_connections--;
    http_deinit(&c->http);
    buf_deinit(&c->out);
    buf_deinit(&c->flying);
    buf_deinit(&c->ahead);
    free(c);
}

static void charge_body(struct conn *c) {
    c->api->body_bytes += c->http.body.len - c->n_body_charged;
    c->n_body_charged = c->http.body.len;
}

static void reset_http(struct conn *c) {
    http_reset(&c->http);
    charge_body(c);
}

size_t conn_take_body(struct conn *c, struct buf *out) {
    size_t n = c->n_body_charged;

    *out = c->http.body;
    buf_init(&c->http.body, c->limits.body);
    c->n_body_charged = 0;
    return n;
}

void conn_close(struct conn *c) {
    if (c->state == CONN_CLOSED)
        return;
    set_state(c, CONN_CLOSED);
    struct exchange *x = c->exchange;
    c->exchange = NULL;
    if (x)
        exchange_gone(x);
    reset_http(c);
    uv_close((uv_handle_t *)&c->h.stream, on_closed);
    uv_close((uv_handle_t *)&c->timer, on_closed);
}

/* ---- writing ---- */

size_t conn_unsent(const struct conn *c) {
    return c->out.len + (c->writing ? c->h.stream.write_queue_size : 0);
}

static void on_written(uv_write_t *w, int status);

void conn_flush(struct conn *c) {
    if (c->writing || !c->out.len || c->state == CONN_CLOSED)
        return;
    struct buf t = c->flying;
    c->flying = c->out;
    c->out = t;
    uv_buf_t b = uv_buf_init(c->flying.data, (unsigned)c->flying.len);
    c->writing = true;
    if (uv_write(&c->write, &c->h.stream, &b, 1, on_written) < 0) {
        c->writing = false;
        buf_clear(&c->flying);
        conn_break(c);
    }
}

void conn_break(struct conn *c) {
    if (c->state == CONN_CLOSED)
        return;
    c->broken = c->close_after = c->discard = true;
    uv_timer_start(&c->timer, on_timer, 0, 0);
}

int conn_send(struct conn *c, const void *data, size_t len) {
    if (c->state == CONN_CLOSED)
        return -EPIPE;
    return buf_add(&c->out, data, len);
}

static void parse_ahead(struct conn *c);

static void on_shutdown(uv_shutdown_t *s, int status) {
    (void)s;
    (void)status;
}

/* The answer is sent: the next request, or the end. */
static void after_flush(struct conn *c) {
    if (!c->close_after) {
        set_state(c, CONN_IDLE);
        arm(c, c->api->opts.idle_timeout_ms);
        parse_ahead(c);
        return;
    }
    if (c->eof || uv_shutdown(&c->shutdown, &c->h.stream, on_shutdown) < 0) {
        conn_close(c);
        return;
    }
    set_state(c, CONN_LINGER);
    arm(c, c->api->closing ? API_LINGER_MS / 5 : API_LINGER_MS);
}

static void empty(struct buf *b) {
    size_t max = b->max;

    buf_deinit(b);
    buf_init(b, max);
}

static void on_written(uv_write_t *w, int status) {
    struct conn *c = CONTAINER_OF(w, struct conn, write);

    c->writing = false;
    buf_clear(&c->flying);
    if (c->flying.cap > KEEP_SENDING)
        empty(&c->flying);
    if (c->state == CONN_CLOSED)
        return;
    if (status < 0) {
        conn_close(c);
        return;
    }
    conn_flush(c);
    if (c->state == CONN_IDLE && !c->writing) { /* thousands may be idle: they keep no buffers */
        empty(&c->out);
        empty(&c->flying);
    }
    if (c->state == CONN_FLUSH && conn_unsent(c) == 0)
        after_flush(c);
    else if (c->state == CONN_EXCHANGE && c->exchange && c->exchange->ops &&
             c->exchange->ops->drained && conn_unsent(c) < c->api->opts.stream_buffer_bytes)
        c->exchange->ops->drained(c->exchange);
}

bool conn_is_full(struct conn *c) {
    if (conn_unsent(c) < c->api->opts.stream_buffer_bytes) {
        c->blocked_ns = 0;
        return false;
    }
    if (!c->blocked_ns) {
        c->blocked_ns = clock_now(c->api->clock);
        if (c->state == CONN_EXCHANGE)
            arm(c, c->api->opts.stall_timeout_ms);
    }
    return true;
}

void conn_start_keepalive(struct conn *c) {
    if (c->state == CONN_EXCHANGE && !c->blocked_ns)
        arm(c, c->api->opts.keepalive_ms);
}

/* ---- calls ---- */

void conn_exchange_done(struct conn *c) {
    c->exchange = NULL;
    if (c->state == CONN_CLOSED)
        return;
    if (!c->broken)
        uv_timer_stop(&c->timer);
    c->blocked_ns = 0;
    reset_http(c);
    conn_flush(c);
    if (c->state == CONN_CLOSED)
        return;
    set_state(c, CONN_FLUSH);
    if (conn_unsent(c) == 0 || (!c->close_after && conn_unsent(c) < KEEP_SENDING)) {
        after_flush(c);
        return;
    }
    c->n_flying_left = conn_unsent(c);
    arm(c, c->api->opts.stall_timeout_ms);
}

static int start_call(struct conn *c) {
    c->exchange = exchange_new(c->api, c);
    if (c->exchange)
        return 0;
    conn_close(c);
    return -ENOMEM;
}

/* Answers before the request is complete: what follows on the connection cannot be told apart. */
static void answer_early(struct conn *c, const struct err *err) {
    if (!c->exchange && start_call(c) < 0)
        return;
    c->close_after = c->discard = true;
    set_state(c, CONN_EXCHANGE);
    respond_error(c->exchange, err);
}

static void on_head(struct conn *c) {
    struct http *h = &c->http;

    if (start_call(c) < 0)
        return;
    set_state(c, CONN_BODY);
    arm(c, c->api->opts.body_timeout_ms);
    struct exchange *x = c->exchange;
    const char *expect = http_header(h, "expect", NULL);
    c->close_after |= !llhttp_should_keep_alive(&h->parser) || c->api->leaving;
    if (routes_check(x, h, &x->refusal) < 0) {
        h->discard = true;
        if (!x->refusal.status)
            err_set(&x->refusal, 500, NULL, "The request could not be served.");
        if (http_has_body(h) && (expect || http_is_chunked(h) || x->refusal.status == 413 ||
                                 h->parser.content_length > EARLY_DISCARD))
            answer_early(c, &x->refusal);
    } else if (expect && http_has_body(h) && !x->http10) {
        conn_send(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        conn_flush(c);
    }
}

static void on_message(struct conn *c) {
    struct exchange *x = c->exchange;

    uv_timer_stop(&c->timer);
    set_state(c, CONN_EXCHANGE);
    if (x->refusal.status)
        respond_error(x, &x->refusal);
    else
        x->route->serve(x, &c->http);
}

/* Bodies in memory are bounded in all, not only each. */
static bool is_over_budget(struct conn *c) {
    charge_body(c);
    return c->api->body_bytes > (size_t)API_BODIES * c->api->opts.max_body_bytes;
}

static size_t parse_some(struct conn *c, const char *data, size_t len) {
    struct err err = {0};
    size_t used = 0;

    if (c->state == CONN_IDLE) {
        set_state(c, CONN_HEAD);
        arm(c, c->api->opts.header_timeout_ms);
    }
    int r = http_feed(&c->http, data, len, &used, &err);
    if (r >= 0 && is_over_budget(c))
        r = err_set_code(&err, 503, "overloaded", NULL,
                         "Too many request bodies are being received, try again later.");
    if (r < 0) {
        answer_early(c, &err);
        return len;
    }
    if (r == HTTP_HEAD_DONE)
        on_head(c);
    if (r == HTTP_HEAD_DONE && c->state == CONN_BODY && used == len)
        used += parse_some(c, data + len, 0); /* a request without a body is complete here */
    else if (r == HTTP_MESSAGE_DONE)
        on_message(c);
    return used;
}

/* Keeps what came early for after the answer; more than a header's worth is not waited with. */
static void keep(struct conn *c, const char *data, size_t len) {
    if (c->close_after || buf_add(&c->ahead, data, len) < 0)
        c->close_after = c->discard = true;
}

static void parse(struct conn *c, const char *data, size_t len) {
    size_t at = 0;

    c->parsing = true;
    while (at < len && is_reading(c))
        at += parse_some(c, data + at, len - at);
    c->parsing = false;
    if (at < len && (c->state == CONN_EXCHANGE || c->state == CONN_FLUSH))
        keep(c, data + at, len - at);
}

static void parse_ahead(struct conn *c) {
    if (c->parsing || !c->ahead.len)
        return;
    CLEANUP(buf_deinit) struct buf b = c->ahead;
    buf_init(&c->ahead, b.max);
    parse(c, b.data, b.len);
}

/* Between requests: what was answered still goes out. */
static void close_when_sent(struct conn *c) {
    c->close_after = true;
    if (c->state == CONN_IDLE && conn_unsent(c))
        set_state(c, CONN_FLUSH);
    if (c->state == CONN_FLUSH)
        arm(c, API_LINGER_MS);
    else
        conn_close(c);
}

/* A client that has shut its side down counts as gone: a live generation is not worth more than the
 * certainty that abandoned ones end. */
static void on_eof(struct conn *c) {
    c->eof = true;
    uv_read_stop(&c->h.stream);
    close_when_sent(c);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b) {
    struct conn *c = s->data;

    if (n == 0 || c->state == CONN_CLOSED)
        return;
    if (n < 0) {
        if (n == UV_EOF)
            on_eof(c);
        else
            conn_close(c);
    } else if (c->discard || c->state == CONN_LINGER) {
        return;
    } else if (is_reading(c) && !c->ahead.len) {
        parse(c, b->base, (size_t)n);
    } else {
        keep(c, b->base, (size_t)n);
        if (is_reading(c))
            parse_ahead(c);
    }
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b) {
    struct conn *c = h->data;

    (void)suggested;
    *b = uv_buf_init(c->api->read_buf, sizeof(c->api->read_buf));
}

/* ---- time ---- */

static void on_late(struct conn *c) {
    struct err err;

    err_set_code(&err, 408, "request_timeout", NULL, "The request did not arrive in time.");
    answer_early(c, &err);
}

/* A stream: either its reader has been too slow for too long, or it has been silent. */
static void on_call_timer(struct conn *c) {
    struct api *a = c->api;
    int64_t stall_ns = (int64_t)a->opts.stall_timeout_ms * 1000000;

    if (c->blocked_ns) {
        int64_t left = c->blocked_ns + stall_ns - clock_now(a->clock);

        if (left <= 0)
            conn_close(c);
        else
            arm(c, (uint64_t)left / 1000000 + 1);
    } else if (c->exchange && c->exchange->stream) {
        respond_keepalive(c->exchange);
        if (c->state == CONN_EXCHANGE)
            conn_start_keepalive(c);
    }
}

/* An answer that is being flushed: any progress within the stall time will do. */
static void on_flush_timer(struct conn *c) {
    size_t left = conn_unsent(c);

    if (left >= c->n_flying_left || c->api->closing) {
        conn_close(c);
        return;
    }
    c->n_flying_left = left;
    arm(c, c->api->opts.stall_timeout_ms);
}

static void on_timer(uv_timer_t *t) {
    struct conn *c = t->data;

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
    case CONN_LINGER:
        conn_close(c);
        break;
    case CONN_CLOSED:
        break;
    }
}

/* ---- beginning ---- */

void conn_abort(struct conn *c, const struct err *err) {
    if (c->state == CONN_EXCHANGE && c->exchange) {
        c->close_after = true;
        exchange_fail(c->exchange, err);
    } else if (c->exchange) {
        answer_early(c, err);
    } else {
        close_when_sent(c);
    }
    conn_flush(c);
}

/* One connection too many: an answer, as far as the socket takes it at once. */
static void turn_away(struct conn *c) {
    static const char body[] = "{\"error\":{\"message\":\"Too many connections, try again "
                               "later.\",\"type\":\"overloaded_error\",\"param\":null,"
                               "\"code\":\"too_many_connections\"}}";
    char text[512];
    int n = snprintf(text, sizeof(text),
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nRetry-After: 1\r\nX-Request-Id: req_%016llx\r\n"
                     "Connection: close\r\n\r\n%s",
                     sizeof(body) - 1, (unsigned long long)rng_next(&c->api->rng), body);

    c->api->stats.n_rejected++;
    c->discard = c->close_after = true;
    set_state(c, CONN_FLUSH);
    conn_send(c, text, (size_t)n);
    conn_flush(c);
    if (c->state == CONN_FLUSH)
        arm(c, API_LINGER_MS);
}

static void start(struct conn *c) {
    uint32_t max = c->api->opts.max_connections, n = c->api->stats.n_connections;

    if (n > max + API_TURNED_AWAY) {
        c->api->stats.n_rejected++;
        conn_close(c);
    } else if (uv_read_start(&c->h.stream, on_alloc, on_read) < 0) {
        conn_close(c);
    } else if (n > max) {
        turn_away(c);
    } else {
        arm(c, c->api->opts.header_timeout_ms);
    }
}

void conn_accept(struct api *a, uv_stream_t *listener, bool local) {
    struct conn *c = calloc(1, sizeof(*c));

    if (!c)
        return; /* it stays in the backlog */
    c->api = a;
    c->local = local;
    c->limits = (struct http_limits){MIN(API_TARGET_MAX, a->opts.max_header_bytes),
                                     a->opts.max_header_bytes, a->opts.max_body_bytes,
                                     a->opts.max_header_count};
    http_init(&c->http, &c->limits);
    buf_init(&c->out, API_SEND_MAX);
    buf_init(&c->flying, API_SEND_MAX);
    buf_init(&c->ahead, MAX(a->opts.max_header_bytes, API_READ_SIZE));
    if (local)
        uv_pipe_init(a->loop, &c->h.pipe, 0);
    else
        uv_tcp_init(a->loop, &c->h.tcp);
    uv_timer_init(a->loop, &c->timer);
    c->h.stream.data = c->timer.data = c;
    c->n_open = 2;
    list_push_back(&a->conns, &c->link);
    a->stats.n_connections++;
    if (uv_accept(listener, &c->h.stream) < 0) {
        conn_close(c);
        return;
    }
    if (!local) {
        uv_tcp_nodelay(&c->h.tcp, 1);
        uv_tcp_keepalive(&c->h.tcp, 1, TCP_PROBE_S);
    }
    start(c);
}
