#include "api/http/call.h"

#include <stdio.h>
#include <string.h>
#include "api/http/conn.h"
#include "api/private.h"
#include "api/http/respond.h"

/* A client's own id is kept when it can stand in a header and a log line. */
static bool is_clean_id(const char *s) {
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:");

    return n > 0 && n < 64 && s[n] == 0;
}

static int64_t number_of(const char *s, int64_t max) {
    char *end;

    if (!s || *s < '0' || *s > '9')
        return 0;
    long long v = strtoll(s, &end, 10);
    return *end && *end != '.' ? 0 : MIN(v, max);
}

struct call *call_new(struct api *a, struct conn *conn) {
    struct call *c = calloc(1, sizeof(*c));
    const struct http *h = &conn->http;

    if (!c)
        return NULL;
    c->api = a;
    c->conn = conn;
    c->started_ns = clock_now(a->clock);
    c->head_only = h->head_done && h->parser.method == HTTP_HEAD;
    c->http10 = h->head_done && h->parser.http_minor == 0;
    snprintf(c->method, sizeof(c->method), "%s",
             h->head_done ? llhttp_method_name(h->parser.method) : "-");
    const char *id = http_header(h, "x-request-id", NULL);
    if (id && is_clean_id(id))
        snprintf(c->id, sizeof(c->id), "%s", id);
    else
        snprintf(c->id, sizeof(c->id), "req_%016llx%08llx", (unsigned long long)rng_next(&a->rng),
                 (unsigned long long)rng_next(&a->rng) >> 32);
    c->retries = (uint32_t)number_of(http_header(h, "x-stainless-retry-count", NULL), 1000);
    c->timeout_ms = 1000 * number_of(http_header(h, "x-stainless-read-timeout", NULL), 1000000);
    a->n_calls++;
    return c;
}

static void count(struct call *c) {
    struct api_stats *s = &c->api->stats;

    s->n_requests++;
    if (c->status == 499)
        s->n_cancelled++;
    else if (c->status >= 500)
        s->n_server_errors++;
    else if (c->status >= 400)
        s->n_client_errors++;
    else
        s->n_ok++;
    s->n_rejected += c->status == 429 || c->status == 503 || c->status == 529;
}

void call_end(struct call *c) {
    if (c->ending)
        return;
    c->ending = true;
    count(c);
    server_log_call(c);
    c->api->n_calls--;
    struct conn *conn = c->conn;
    if (conn)
        conn_call_done(conn);
    free(c->arg);
    free(c);
}

void call_gone(struct call *c) {
    c->conn = NULL;
    c->status = 499;
    if (c->ops && c->ops->gone)
        c->ops->gone(c);
    else
        call_end(c);
}

void call_fail(struct call *c, const struct err *err) {
    if (c->ops && c->ops->fail)
        c->ops->fail(c, err);
    else
        respond_error(c, err);
}
