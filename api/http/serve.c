/*
 * Every check that needs no body is made once, before the body is read, in an order that tells an
 * unknown client least: Host and Origin, path and method, key, body. A refusal waits for the end
 * of a small body, so that the connection can be used further.
 */

#include "api/http/serve.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "api/http/dialect.h"
#include "api/http/exchange.h"
#include "api/http/loop_lag.h"
#include "api/http/respond.h"
#include "api/http/route.h"
#include "api/http/server.h"

#define EARLY_DISCARD (64u << 10) /* a refused request's body up to this size is read to its end */

/* Gives @c an exchange. Returns false if there is no memory; the connection is then closed. */
static bool serve_begin(struct conn *c) {
    assert(!c->exchange);
    c->exchange = exchange_new(c);
    if (!c->exchange) {
        conn_close(c);
        return false;
    }
    c->exchange->dialect = c->server->opts.dialects[0];
    return true;
}

/* Makes all checks of the head, in the order explained above. Returns 0, or -errno with the refusal
 * in @err; if its status is 0, only the errno tells what is wrong. */
static int serve_check(struct exchange *x, const struct http *h, struct err *err) {
    const struct http_server_opts *o = &x->server->opts;
    int r;

    if (o->dialect_of)
        x->dialect = o->dialect_of(http_target(h), h);
    if (o->check_head && (r = o->check_head(x, h, err)) < 0)
        return r;
    if (h->parser.http_major != 1)
        return err_set_code(err, 505, "http_version", NULL,
                            "Only HTTP/1.1 and HTTP/1.0 are supported.");
    if (!x->route && (r = route_find(x, h, err)) < 0)
        return r;
    if (!o->check_route)
        return 0;
    return o->check_route(x, h, err);
}

/* Handles a head. A refusal is answered at once if its body is long, or if the client sends the
 * body only after a 100 Continue. */
static void serve_on_head(struct conn *c) {
    struct http *h = &c->http;
    const char *expect = http_header(h, "expect", NULL);

    if (!serve_begin(c))
        return;
    struct exchange *x = c->exchange;
    int r = serve_check(x, h, &x->refusal);
    if (r < 0) {
        h->discard = true;
        if (!x->refusal.status)
            respond_explain(r, &x->refusal);
        if (http_has_body(h) && (expect || http_is_chunked(h) || x->refusal.status == 413 ||
                                 h->parser.content_length > EARLY_DISCARD))
            conn_answer_early(c, &x->refusal);
    } else if (expect && http_has_body(h) && !x->http10) {
        conn_send(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        conn_flush(c);
    }
}

/* Answers a request for a WebSocket. The bytes behind the answer are messages. */
static void upgrade(struct exchange *x, struct http *h) {
    const char *key = http_header(h, "sec-websocket-key", NULL);
    const char *version = http_header(h, "sec-websocket-version", NULL);
    char lines[128], accept[WEBSOCKET_ACCEPT];
    struct err err = {0};
    int r = 0;

    if (!version || strcmp(version, "13") != 0)
        r = err_set_code(&err, 426, "upgrade_required", NULL,
                         "The only supported Sec-WebSocket-Version is 13.");
    else if (!key || strlen(key) != 24 || http_has_body(h) || http_is_chunked(h))
        r = err_set_code(
            &err, 400, "invalid_upgrade", NULL,
            "A request for a WebSocket needs a Sec-WebSocket-Key of 24 characters, and "
            "has no body.");
    else if (x->conn->close_after)
        r = err_set_code(&err, 503, "draining", NULL,
                         "The connection is about to be closed. Try again with another one.");
    else
        r = http_begin_websocket(h);
    if (r < 0) {
        respond_failed(x, r, &err);
        return;
    }
    websocket_accept(key, accept);
    snprintf(lines, sizeof(lines),
             "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n", accept);
    x->headers = lines;
    respond(x, 101, NULL, "", 0);
}

static void serve_on_message(struct conn *c) {
    struct exchange *x = c->exchange;

    assert(x && (x->route || x->refusal.status));
    if (x->refusal.status)
        respond_error(x, &x->refusal);
    else if (x->upgrades)
        upgrade(x, &c->http);
    else {
        loop_lag_mark(x->route->path);
        x->route->serve(x, &c->http);
    }
}

/* Refuses a request that is too late, too large or malformed; it may have an exchange or not. */
static void serve_on_refused(struct conn *c, const struct err *err) {
    if (c->exchange || serve_begin(c))
        respond_error(c->exchange, err);
}

static void serve_on_drained(struct exchange *x) {
    if (x->ops && x->ops->drained)
        x->ops->drained(x);
}

static bool on_silent(struct exchange *x) {
    bool waits = x->stream || x->waits;

    if (waits)
        respond_silent(x);
    return waits;
}

const struct conn_events serve_events = {
    .head = serve_on_head,
    .message = serve_on_message,
    .refused = serve_on_refused,
    .failed = respond_failure,
    .gone = exchange_gone,
    .drained = serve_on_drained,
    .silent = on_silent,
};
