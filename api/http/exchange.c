#include "api/http/exchange.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "api/http/conn.h"
#include "api/http/server.h"
#include "api/http/who.h"
#include "base/text.h"

/* Returns true if a client's own request id can stand in a header and a log line. */
static bool is_clean_id(const char *s) {
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:");

    return n > 0 && n < 64 && s[n] == 0;
}

/* Fills client, agent and path of @x for its log line. Clients choose these texts: they are cut
 * here and escaped where they are written. */
static void note_who(struct exchange *x) {
    const struct http *h = &x->conn->http;
    const char *agent = http_header(h, "user-agent", NULL);

    who_client(x->conn, x->client);
    snprintf(x->agent, sizeof(x->agent), "%s", text_or(agent, ""));
    if (!h->head_done)
        return;
    const char *target = http_target(h); /* without its query, which may hold a key */
    snprintf(x->path, sizeof(x->path), "%.*s", (int)strcspn(target, "?#"), target);
}

struct exchange *exchange_new(struct conn *conn) {
    struct exchange *x = calloc(1, sizeof(*x));
    struct http_server *s = conn->server;
    const struct http *h = &conn->http;

    assert(!conn->exchange);
    if (!x)
        return NULL;
    x->server = s;
    x->ctx = s->opts.ctx;
    x->conn = conn;
    memcpy(x->peer, conn->peer->address, sizeof(x->peer));
    x->started_ns = clock_now(s->opts.clock);
    x->head_only = h->head_done && h->parser.method == HTTP_HEAD;
    x->http10 = h->head_done && h->parser.http_minor == 0;
    snprintf(x->method, sizeof(x->method), "%s",
             h->head_done ? llhttp_method_name(h->parser.method) : "-");
    note_who(x);
    x->framed = h->ws;
    const char *id = x->framed ? NULL : http_header(h, "x-request-id", NULL);
    if (id && is_clean_id(id))
        snprintf(x->id, sizeof(x->id), "%s", id);
    else
        snprintf(x->id, sizeof(x->id), "req_%016llx%08llx", (unsigned long long)rng_next(&s->rng),
                 (unsigned long long)rng_next(&s->rng) >> 32);
    s->n_exchanges++;
    return x;
}

struct exchange *exchange_separate_conn(struct exchange *x) {
    struct exchange *own = malloc(sizeof(*own));

    assert(x->conn && x->conn->exchange == x && !x->arg);
    if (!own)
        return NULL;
    *own = *x;
    exchange_detach(own);
    own->second = true;
    own->member = NULL; /* that of the answer's events; the head is the client's */
    x->headers = x->own_headers = NULL;
    x->conn->exchange = own;
    x->conn = NULL;
    x->stream = x->chunked = x->blank = false;
    x->head_ns = 0;
    x->server->n_exchanges++;
    return own;
}

void exchange_end(struct exchange *x) {
    struct http_server *s = x->server;

    if (x->ending)
        return;
    assert(s->n_exchanges > 0);
    assert(!x->conn || x->conn->exchange == x);
    x->ending = true;
    if (s->opts.ended)
        s->opts.ended(x);
    s->n_exchanges--;
    if (x->conn)
        conn_exchange_done(x->conn);
    free(x->arg);
    free(x->own_headers);
    free(x->member);
    free(x);
}

void exchange_gone(struct exchange *x) {
    assert(!x->ending && x->conn && x->conn->exchange != x);
    x->conn = NULL;
    x->status = 499;
    exchange_abandon(x);
    exchange_end(x);
}

void exchange_attach(struct exchange *x, const struct exchange_ops *ops, void *state) {
    assert(!x->ops);
    x->ops = ops;
    x->state = state;
}

void *exchange_detach(struct exchange *x) {
    void *state = x->state;

    x->ops = NULL;
    x->state = NULL;
    return state;
}

void exchange_abandon(struct exchange *x) {
    const struct exchange_ops *ops = x->ops;
    void *state = exchange_detach(x);

    if (ops)
        ops->abandon(x, state);
}
