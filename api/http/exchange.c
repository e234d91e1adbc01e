#include "api/http/exchange.h"

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

struct exchange *exchange_new(struct api *a, struct conn *conn) {
    struct exchange *x = calloc(1, sizeof(*x));
    const struct http *h = &conn->http;

    if (!x)
        return NULL;
    x->api = a;
    x->conn = conn;
    x->dialect = a->dialects[0];
    x->started_ns = clock_now(a->clock);
    x->head_only = h->head_done && h->parser.method == HTTP_HEAD;
    x->http10 = h->head_done && h->parser.http_minor == 0;
    snprintf(x->method, sizeof(x->method), "%s",
             h->head_done ? llhttp_method_name(h->parser.method) : "-");
    const char *id = http_header(h, "x-request-id", NULL);
    if (id && is_clean_id(id))
        snprintf(x->id, sizeof(x->id), "%s", id);
    else
        snprintf(x->id, sizeof(x->id), "req_%016llx%08llx", (unsigned long long)rng_next(&a->rng),
                 (unsigned long long)rng_next(&a->rng) >> 32);
    x->retries = (uint32_t)number_of(http_header(h, "x-stainless-retry-count", NULL), 1000);
    x->timeout_ms = 1000 * number_of(http_header(h, "x-stainless-read-timeout", NULL), 1000000);
    a->n_exchanges++;
    return x;
}

static void count(struct exchange *x) {
    struct api_stats *s = &x->api->stats;

    s->n_requests++;
    if (x->status == 499)
        s->n_cancelled++;
    else if (x->status >= 500)
        s->n_server_errors++;
    else if (x->status >= 400)
        s->n_client_errors++;
    else
        s->n_ok++;
    s->n_rejected += x->status == 429 || x->status == 503 || x->status == 529;
}

void exchange_end(struct exchange *x) {
    if (x->ending)
        return;
    x->ending = true;
    count(x);
    server_log_exchange(x);
    x->api->n_exchanges--;
    struct conn *conn = x->conn;
    if (conn)
        conn_exchange_done(conn);
    free(x->arg);
    free(x);
}

void exchange_gone(struct exchange *x) {
    x->conn = NULL;
    x->status = 499;
    if (x->ops && x->ops->gone)
        x->ops->gone(x);
    else
        exchange_end(x);
}

void exchange_fail(struct exchange *x, const struct err *err) {
    if (x->ops && x->ops->fail)
        x->ops->fail(x, err);
    else
        respond_error(x, err);
}
