/*
 * The beginning of a connection: it learns who its peer is and takes one of the places for
 * connections. If all are taken, it displaces a connection of a payer that holds more of them; if
 * there is no such payer, it is answered with an error.
 */

#include <assert.h>
#include <stdio.h>
#include <unistd.h>

#include "api/http/conn_private.h"
#include "api/http/tls.h"

#define PLACES_SEEN 64 /* connections of a payer, oldest first, that are searched for an idle one */

/* Answers one connection too many with a 503. It has no place, so only the bytes that the socket
 * takes soon are sent. */
static void conn_refuse(struct conn *c) {
    static const char body[] = "{\"error\":{\"message\":\"Too many connections, try again "
                               "later.\",\"type\":\"overloaded_error\",\"param\":null,"
                               "\"code\":\"too_many_connections\"}}";
    char text[512];
    int n = snprintf(text, sizeof(text),
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nRetry-After: 1\r\nX-Request-Id: req_%016llx\r\n"
                     "Connection: close\r\n\r\n%s",
                     sizeof(body) - 1, (unsigned long long)rng_next(&c->server->rng), body);

    assert(c->place.n == 0 && !c->tls);
    c->discard = c->close_after = true;
    conn_set_state(c, CONN_FLUSH);
    conn_send(c, text, (size_t)n);
    conn_flush(c);
    if (c->state == CONN_FLUSH)
        conn_arm(c, LINGER_MS);
}

/* Finds out who the peer is. Returns false if it is not served, or its payer cannot be made. */
static bool identify_peer(struct conn *c) {
    const struct http_server_opts *o = &c->server->opts;
    uv_os_fd_t fd;

    if (uv_fileno((uv_handle_t *)&c->h.stream, &fd) < 0 || (o->accepts && !o->accepts(o->ctx, fd)))
        return false;
    c->peer = payer_of_peer(&c->server->payers, fd);
    if (c->peer)
        conn_set_payer(c, c->peer);
    return c->peer != NULL;
}

/* Ranks a connection that offers its place: first goes one that waits for a request; then one that
 * has sent its last answer, that sends a request, or that reads its answer, in this order. */
static int rank_victim(const struct conn *c) {
    static const uint8_t rank[] = {[CONN_IDLE] = 0, [CONN_LINGER] = 1, [CONN_HANDSHAKE] = 2,
                                   [CONN_HEAD] = 2, [CONN_BODY] = 2,   [CONN_FLUSH] = 3};

    if (conn_is_flushing(c))
        return rank[CONN_FLUSH];
    return rank[c->state];
}

/* Chooses the oldest connection of the lowest rank among those of @a that offer their places (there
 * are some). A connection that is being answered offers no place. */
static struct conn *choose_victim(const struct quota_account *a) {
    struct conn *best = NULL;
    uint32_t n = 0;

    for (struct list *l = a->offered.next; l != &a->offered && n < PLACES_SEEN; l = l->next, n++) {
        struct conn *c = CONTAINER_OF(LIST_ENTRY(l, struct quota_charge, link), struct conn, place);

        assert(c->place.n == 1 && c->state != CONN_EXCHANGE && c->state != CONN_CLOSED);
        if (!best || rank_victim(c) < rank_victim(best))
            best = c;
    }
    assert(best);
    return best;
}

/* Takes a place, if need be that of another connection. Returns false if there is none to be
 * had. */
static bool conn_acquire_place(struct conn *c) {
    struct quota *q = &c->server->payers.quota[c->local ? PAYER_UNIX : PAYER_TCP];

    if (q->root.used >= q->limit) {
        struct quota_charge *v = quota_victim(q, c->place.account, 1);

        if (!v)
            return false;
        c->server->n_displaced++;
        conn_close(choose_victim(v->account));
    }
    assert(c->place.n == 0 && q->root.used < q->limit);
    quota_charge_set(&c->place, 1);
    quota_charge_offer(&c->place);
    return true;
}

static void conn_start(struct conn *c) {
    const struct http_server_opts *o = &c->server->opts;
    const struct quota *q = c->server->payers.quota;

    if (!identify_peer(c)) {
        conn_close(c);
    } else if (conn_acquire_place(c)) {
        conn_arm(c, o->header_timeout_ms);
        conn_read_first(c);
    } else {
        uint64_t n = q[PAYER_TCP].root.used + q[PAYER_UNIX].root.used;

        c->server->n_refused++;
        if (c->tls || c->server->n_connections > n + o->max_refused)
            conn_close(c);
        else if (conn_read_start(c) < 0)
            conn_close(c);
        else
            conn_refuse(c);
    }
}

/* Returns a new connection without a socket; NULL: no memory. */
static struct conn *conn_new(struct http_server *s, bool local, bool tls) {
    struct conn *c = calloc(1, sizeof(*c));
    const struct http_server_opts *o = &s->opts;

    assert(!(local && tls));
    if (!c)
        return NULL;
    c->server = s;
    c->local = local;
    c->state = tls ? CONN_HANDSHAKE : CONN_IDLE;
    http_init(&c->http, &o->limits);
    output_init(&c->out, o->max_unsent);
    buf_init(&c->plain, CONN_WRITE);
    buf_init(&c->records, SIZE_MAX / 2);
    buf_init(&c->ahead, MAX(o->limits.head, HTTP_READ_SIZE + TLS_RECORD));
    if (local)
        uv_pipe_init(o->loop, &c->h.pipe, 0);
    else
        uv_tcp_init(o->loop, &c->h.tcp);
    uv_timer_init(o->loop, &c->timer);
    c->h.stream.data = c->timer.data = c;
    c->payer = &s->payers.strangers; /* until it is accepted */
    quota_charge_init(&c->place, &c->payer->account[local ? PAYER_UNIX : PAYER_TCP]);
    quota_charge_init(&c->body, &c->payer->account[PAYER_BODIES]);
    quota_charge_init(&c->unsent, &c->payer->account[PAYER_OUTPUT]);
    c->n_open = 2;
    turn_init(&c->turn);
    list_push_back(&s->conns, &c->link);
    s->n_connections++;
    return c;
}

/* Starts a connection, if it got its socket (@r is 0) and its side of TLS. */
static void conn_start_with(struct conn *c, int r, bool tls) {
    struct http_server *s = c->server;

    if (r < 0 || (tls && tls_new(&c->tls, &s->tls, s->opts.max_unsent) < 0))
        conn_close(c);
    else
        conn_start(c);
}

bool conn_accept(struct http_server *s, uv_stream_t *listener, bool local, bool tls) {
    struct conn *c = conn_new(s, local, tls);

    if (!c)
        return false;
    conn_start_with(c, uv_accept(listener, &c->h.stream), tls);
    return true;
}

bool conn_accept_fd(struct http_server *s, int fd, bool local, bool tls) {
    struct conn *c = conn_new(s, local, tls);

    if (!c)
        return false;
    int r;
    if (local)
        r = uv_pipe_open(&c->h.pipe, fd);
    else
        r = uv_tcp_open(&c->h.tcp, fd);
    if (r < 0)
        close(fd);
    conn_start_with(c, r, tls);
    return true;
}
