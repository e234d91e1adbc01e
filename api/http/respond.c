/*
 * Each answer's head is made in one place (send_head), so that no path forgets its headers. An
 * answer ends its exchange: after any of the functions that say so, the exchange must not be
 * touched. A stream's pieces go out as one chunk each: size, data and line ends in one buffer, one
 * write. What differs between clients is in the exchange's dialect.
 */

#include "api/http/respond.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/http/conn.h"
#include "api/http/dialect.h"
#include "api/http/json.h"
#include "api/http/server.h"
#include "base/text.h"
#include "base/try.h"

#define HEAD_MAX 2048
#define ERROR_MAX 8192
/* Keep-alive times after which an answer gets its head: 40 s. Proxies give up after 50 or 60. */
#define HEAD_AFTER 8u
#define LARGE_ANSWER (64u << 10) /* the memory of a larger one is not copied */

static const struct {
    int status;
    /* members of the error object; @code: used if the error names none */
    const char *reason, *type, *code;
} statuses[] = {
    {101, "Switching Protocols", "", ""},
    {200, "OK", "", ""},
    {304, "Not Modified", "", ""},
    {400, "Bad Request", "invalid_request_error", NULL},
    {401, "Unauthorized", "authentication_error", "invalid_api_key"},
    {403, "Forbidden", "permission_error", NULL},
    {404, "Not Found", "invalid_request_error", "not_found"},
    {405, "Method Not Allowed", "invalid_request_error", "method_not_allowed"},
    {408, "Request Timeout", "timeout_error", "request_timeout"},
    {409, "Conflict", "invalid_request_error", "conflict"},
    {413, "Content Too Large", "invalid_request_error", "body_too_large"},
    {414, "URI Too Long", "invalid_request_error", "uri_too_long"},
    {415, "Unsupported Media Type", "invalid_request_error", "unsupported_media_type"},
    {417, "Expectation Failed", "invalid_request_error", "expectation_failed"},
    {421, "Misdirected Request", "invalid_request_error", "misdirected"},
    {422, "Unprocessable Content", "invalid_request_error", NULL},
    {426, "Upgrade Required", "invalid_request_error", "upgrade_required"},
    {429, "Too Many Requests", "rate_limit_error", "rate_limit_exceeded"},
    {431, "Request Header Fields Too Large", "invalid_request_error", "header_too_large"},
    {500, "Internal Server Error", "server_error", "internal_error"},
    {501, "Not Implemented", "invalid_request_error", "not_implemented"},
    {502, "Bad Gateway", "server_error", "bad_gateway"},
    {503, "Service Unavailable", "overloaded_error", "unavailable"},
    {504, "Gateway Timeout", "timeout_error", "request_timeout"},
    {505, "HTTP Version Not Supported", "invalid_request_error", "http_version"},
    {529, "Overloaded", "overloaded_error", "unavailable"},
};

/* Returns the index of @status; an unknown one counts as 500. */
static size_t respond_find(int status) {
    for (size_t i = 0; i < ARRAY_SIZE(statuses); i++)
        if (statuses[i].status == status)
            return i;
    return respond_find(500);
}

const char *respond_error_type(const struct err *err) {
    /* A model that cannot be loaded is no load that passes: clients retry the other type. */
    if (strcmp(err->code, "model_unavailable") == 0)
        return "server_error";
    return statuses[respond_find(err->status)].type;
}

const char *respond_error_code(const struct err *err) {
    if (*err->code)
        return err->code;
    return statuses[respond_find(err->status)].code;
}

/* Returns the Date header's value, which is formatted once a second. */
static const char *date_of(struct http_server *s) {
    time_t now = time(NULL);
    struct tm tm;

    if (now != s->date_of) {
        gmtime_r(&now, &tm);
        strftime(s->date, sizeof(s->date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
        s->date_of = now;
    }
    return s->date;
}

static void respond_put(char *head, size_t *n, const char *fmt, ...) PRINTF(3, 4);
static void respond_put(char *head, size_t *n, const char *fmt, ...) {
    va_list ap;

    assert(*n < HEAD_MAX);
    va_start(ap, fmt);
    int len = vsnprintf(head + *n, HEAD_MAX - *n, fmt, ap);
    va_end(ap);
    *n = MIN(*n + (size_t)MAX(len, 0), HEAD_MAX - 1);
}

/* Sends the head. @len is the length of the body, or -1 for a stream; @err is the error that is
 * answered, or NULL. */
static void respond_send_head(struct exchange *x, int status, const char *type, ssize_t len,
                              const struct err *err) {
    const struct http_server_opts *o = &x->server->opts;
    const struct dialect *d = x->dialect;
    char head[HEAD_MAX];
    size_t n = 0;

    assert(!x->ending && x->head_ns == 0);
    x->head_ns = clock_now(o->clock);
    if (x->status != 499)
        x->status = status;
    if (!x->conn)
        return;
    x->chunked = len < 0 && !x->http10 && !x->framed;
    x->conn->close_after |= x->server->leaving || (len < 0 && x->http10);
    if (x->framed)
        return;
    respond_put(head, &n, "HTTP/1.1 %d %s\r\n", status, statuses[respond_find(status)].reason);
    if (o->sends_date)
        respond_put(head, &n, "Date: %s\r\n", date_of(x->server));
    if (type)
        respond_put(head, &n, "Content-Type: %s\r\n", type);
    if (len >= 0 && status >= 200)
        respond_put(head, &n, "Content-Length: %zd\r\n", len);
    else if (status >= 200)
        respond_put(head, &n, "%s%s", o->stream_headers,
                    x->chunked ? "Transfer-Encoding: chunked\r\n" : "");
    if (d->put_ids)
        n += d->put_ids(x, (x->head_ns - x->started_ns) / 1000000, head + n, HEAD_MAX - n);
    if (x->headers)
        respond_put(head, &n, "%s", x->headers);
    if (o->put_headers)
        n += o->put_headers(x, status, err, head + n, HEAD_MAX - n);
    if (x->conn->close_after)
        respond_put(head, &n, "Connection: close\r\n");
    else if (x->http10)
        respond_put(head, &n, "Connection: keep-alive\r\n");
    respond_put(head, &n, "\r\n");
    if (conn_send(x->conn, head, n) < 0)
        conn_break(x->conn);
}

/* Sends @len bytes with the parts @in (NULL: none) in them. */
static int send_spliced(struct conn *c, const char *data, size_t len, const struct splices *in) {
    size_t sent = 0;

    for (uint32_t i = 0; in && i < in->n; i++) {
        const struct splice *p = &in->part[i];

        assert(p->at >= sent && p->at <= len);
        TRY(conn_send(c, data + sent, p->at - sent));
        TRY(conn_refer(c, p->blob, p->from, p->len));
        sent = p->at;
    }
    return conn_send(c, data + sent, len - sent);
}

/* Sends a message of a WebSocket. Without a text it is a ping, which clients' libraries answer. */
static int send_frame(struct conn *c, const void *data, size_t len, const struct splices *in) {
    size_t all = len + (in ? in->len : 0);
    uint8_t head[WEBSOCKET_HEAD];
    size_t n = websocket_head(head, all > 0 ? WEBSOCKET_TEXT : WEBSOCKET_PING, all);

    TRY(conn_send(c, head, n));
    return send_spliced(c, data, len, in);
}

/* One piece of a body, and what stands around it. */
struct piece_text {
    const char *before, *data, *after;
    size_t len;
    /* in data; NULL: none */
    const struct splices *in;
};

static size_t piece_len(const struct piece_text *p) {
    return p->len + (p->in ? p->in->len : 0);
}

/* Adds one piece of the body to the output; the chunk's size and data go into the same write. After
 * an error the output may hold a part of it. */
static int respond_add_piece(const struct exchange *x, const struct piece_text *p) {
    size_t n_before = strlen(p->before), n_after = strlen(p->after);
    char size[24];

    if (x->framed)
        return send_frame(x->conn, p->data, p->len, p->in);
    snprintf(size, sizeof(size), "%zx\r\n", n_before + piece_len(p) + n_after);
    if (x->chunked)
        TRY(conn_send(x->conn, size, strlen(size)));
    TRY(conn_send(x->conn, p->before, n_before));
    TRY(send_spliced(x->conn, p->data, p->len, p->in));
    TRY(conn_send(x->conn, p->after, n_after));
    if (x->chunked)
        TRY(conn_send(x->conn, "\r\n", 2));
    return 0;
}

/* Sends one piece of the body; a connection without room for it is broken off. */
static void respond_send_piece(struct exchange *x, const struct piece_text *p) {
    assert(x->stream || x->blank);
    if (x->conn && respond_add_piece(x, p) < 0)
        conn_break(x->conn);
}

/* Sends @text, of which a WebSocket gets an empty message. */
static void send_line(struct exchange *x, const char *text) {
    respond_send_piece(x, &(struct piece_text){.before = text, .data = "", .after = ""});
}

/* Sends the last chunk and ends the exchange. HTTP/1.0 clients see the end of the connection
 * instead. */
static void respond_end_stream(struct exchange *x) {
    assert(x->stream || x->blank);
    if (x->conn && x->chunked && conn_send(x->conn, "0\r\n\r\n", 5) < 0)
        conn_break(x->conn);
    exchange_end(x);
}

/* Sends the body behind the white space of respond_blank(). */
static void finish_blank(struct exchange *x, int status, const struct piece_text *p) {
    if (x->status == 200)
        x->status = status; /* for the log: the head said 200 */
    if (piece_len(p) > 0)
        respond_send_piece(x, p);
    respond_end_stream(x);
}

/* Sends head and body of a whole answer and ends the exchange. @err is the error that is answered,
 * or NULL. */
static void respond_finish(struct exchange *x, int status, const char *type,
                           const struct piece_text *p, const struct err *err) {
    int r = 0;

    assert(!x->stream);
    if (x->blank) {
        finish_blank(x, status, p);
        return;
    }
    respond_send_head(x, status, type, (ssize_t)piece_len(p), err);
    if (x->conn && x->framed)
        r = piece_len(p) > 0 ? send_frame(x->conn, p->data, p->len, p->in) : 0;
    else if (x->conn && !x->head_only)
        r = send_spliced(x->conn, p->data, p->len, p->in);
    if (r < 0)
        conn_break(x->conn);
    exchange_end(x);
}

/* Returns the body of an answer, or a piece without anything around it. */
static struct piece_text respond_bare(const void *data, size_t len, const struct splices *in) {
    return (struct piece_text){
        .before = "", .data = len ? data : "", .after = "", .len = len, .in = in};
}

void respond(struct exchange *x, int status, const char *type, const void *data, size_t len) {
    struct piece_text p = respond_bare(data, len, NULL);

    respond_finish(x, status, type, &p, NULL);
}

void respond_taken(struct exchange *x, int status, const char *type, struct buf *b) {
    struct blob *text = b->len > LARGE_ANSWER ? blob_new(b) : NULL;
    struct splice all = blob_part(text);
    struct splices in = {.part = &all, .n = text != NULL, .len = splice_len(&all)};
    struct piece_text p = respond_bare(b->data, b->len, &in); /* of a blob: nothing but the blob */

    respond_finish(x, status, type, &p, NULL);
    blob_unref(text);
}

void respond_buf(struct exchange *x, int status, struct buf *b, int error) {
    if (error < 0)
        respond_errno(x, error);
    else
        respond_taken(x, status, RESPOND_JSON, b);
}

/* Sends all of @r by reference. */
static int send_spliced_text(struct conn *c, const struct spliced *r) {
    size_t all = spliced_len(r);

    for (size_t at = 0; at < all;) {
        struct splice p = spliced_part(r, at);

        TRY(conn_refer(c, p.blob, p.from, p.len));
        at += p.len;
    }
    return 0;
}

/* Sends @n texts, then @tail. Returns as conn_send(). */
static int send_spliced_texts(struct conn *c, const struct spliced *texts, size_t n,
                              const char *tail) {
    for (size_t i = 0; i < n; i++)
        TRY(send_spliced_text(c, &texts[i]));
    return conn_send(c, tail, strlen(tail));
}

void respond_spliced_texts(struct exchange *x, const struct spliced *texts, size_t n,
                           const char *tail) {
    size_t len = strlen(tail);

    assert(!x->stream && !x->blank && !x->framed);
    for (size_t i = 0; i < n; i++)
        len += spliced_len(&texts[i]);
    respond_send_head(x, 200, RESPOND_JSON, (ssize_t)len, NULL);
    if (x->conn && !x->head_only && send_spliced_texts(x->conn, texts, n, tail) < 0)
        conn_break(x->conn);
    exchange_end(x);
}

void respond_spliced(struct exchange *x, struct buf *b, struct splices *in, int error) {
    struct piece_text p = respond_bare(b->data, b->len, in);
    bool large = error == 0 && b->len > LARGE_ANSWER && !x->blank && !x->framed;
    struct blob *text = large ? blob_new(b) : NULL;

    if (text) {
        struct spliced whole = {.text = text, .in = *in};

        respond_spliced_texts(x, &whole, 1, "");
        blob_unref(text);
    } else if (error < 0) {
        respond_errno(x, error);
    } else {
        respond_finish(x, 200, RESPOND_JSON, &p, NULL);
    }
}

void respond_shape(struct exchange *x, const char *shape, ...) {
    CLEANUP(buf_deinit) struct buf b = {.max = RESPOND_SHAPE_MAX};
    struct json j = {.out = &b};
    va_list args;

    va_start(args, shape);
    json_vprint(&j, shape, args);
    va_end(args);
    respond_buf(x, 200, &b, j.error);
}

/* Notes the code of the error for the log line, which is written after the answer. */
static void note_code(struct exchange *x, const struct err *err) {
    const char *code = respond_error_code(err);

    snprintf(x->code, sizeof(x->code), "%s", text_or(code, ""));
}

/* Returns the status that @x's client gets. */
static int respond_status(const struct exchange *x, const struct err *err) {
    int status = statuses[respond_find(err->status)].status;

    if (!x->dialect->status_of)
        return status;
    return x->dialect->status_of(err, status);
}

/* Appends the error object as @x's client knows it. In a message of a WebSocket it is an event
 * with the status that an answer over HTTP would have. */
static int respond_put_error(struct exchange *x, struct buf *out, const struct err *err) {
    CLEANUP(buf_deinit) struct buf b = {.max = ERROR_MAX};
    struct json j = {.out = &b};
    char event[64];

    note_code(x, err);
    x->dialect->put_error(&j, x, err);
    if (j.error < 0)
        return j.error;
    assert(b.len > 2 && b.data[0] == '{');
    snprintf(event, sizeof(event), "{\"type\":\"error\",\"status\":%d,", respond_status(x, err));
    TRY(x->framed ? buf_add(out, event, strlen(event)) : 0);
    return buf_add(out, b.data + x->framed, b.len - x->framed);
}

void respond_error(struct exchange *x, const struct err *err) {
    CLEANUP(buf_deinit) struct buf b = {.max = ERROR_MAX};

    if (respond_put_error(x, &b, err) < 0)
        buf_clear(&b);
    struct piece_text p = respond_bare(b.data, b.len, NULL);
    respond_finish(x, respond_status(x, err), RESPOND_JSON, &p, err);
}

void respond_explain(int error, struct err *err) {
    if (error == -ENOMEM)
        err_set_code(err, 503, "out_of_memory", NULL, "Out of memory. Try again later.");
    else
        err_set_code(err, 500, "internal_error", NULL,
                     "An error inside the server prevented the answer. Send the request again, and "
                     "tell the operator if that fails, too.");
}

void respond_errno(struct exchange *x, int error) {
    struct err err;

    respond_explain(error, &err);
    respond_error(x, &err);
}

void respond_failed(struct exchange *x, int r, const struct err *err) {
    if (err->status)
        respond_error(x, err);
    else
        respond_errno(x, r);
}

/* ---- streams ---- */

void respond_stream(struct exchange *x) {
    assert(!x->stream);
    x->stream = true;
    respond_send_head(x, 200, x->dialect->stream_type, -1, NULL);
}

int respond_put_member(struct exchange *x, struct buf *json) {
    CLEANUP(freep) char *member = STEAL(x->member);

    if (!member)
        return 0;
    assert(json->len > 2 && json->data[json->len - 1] == '}');
    json->len--;
    return buf_printf(json, ",%s}", member);
}

/* Sends an event, with the member that could not be told in the head. */
static void respond_send_event(struct exchange *x, struct piece_text *p) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    if (x->member) {
        if (buf_add(&text, p->data, p->len) < 0 || respond_put_member(x, &text) < 0) {
            if (x->conn)
                conn_break(x->conn);
            return;
        }
        p->data = text.data;
        p->len = text.len;
    }
    respond_send_piece(x, p);
}

void respond_event(struct exchange *x, const char *json, size_t len) {
    const struct dialect *d = x->dialect;

    respond_send_event(x, &(struct piece_text){d->event_begin, json, d->event_end, len, NULL});
}

void respond_spliced_event(struct exchange *x, const char *name, const struct buf *json,
                           const struct splices *in) {
    char before[96];

    snprintf(before, sizeof(before), "event: %s\ndata: ", name);
    respond_send_event(x, &(struct piece_text){before, json->data, "\n\n", json->len, in});
}

void respond_named_event(struct exchange *x, const char *name, const char *json, size_t len) {
    const struct buf text = {.data = (char *)json, .len = len};

    respond_spliced_event(x, name, &text, NULL);
}

void respond_part(struct exchange *x, const struct splice *part) {
    struct splice whole = {.blob = part->blob, .from = part->from, .len = part->len};
    struct splices in = {.part = &whole, .n = 1, .len = whole.len};
    struct piece_text p = respond_bare("", 0, &in);

    respond_send_piece(x, &p);
}

void respond_comment(struct exchange *x, const char *text) {
    size_t len = x->framed ? 0 : strlen(text); /* messages of a WebSocket have no comments */

    respond_send_piece(x, &(struct piece_text){": ", text, "\n\n", len, NULL});
    if (x->conn)
        conn_flush(x->conn);
}

/* Sends at once the route's keep-alive (exchange_ops.alive), or the dialect's. */
static void respond_keepalive(struct exchange *x) {
    if (x->ops && x->ops->alive && x->ops->alive(x))
        return;
    if (!x->dialect->keepalive)
        return;
    send_line(x, x->dialect->keepalive);
    if (x->conn)
        conn_flush(x->conn);
}

void respond_stream_error(struct exchange *x, const struct err *err) {
    CLEANUP(buf_deinit) struct buf b = {.max = ERROR_MAX};

    if (respond_put_error(x, &b, err) == 0 && x->dialect->error_event)
        respond_named_event(x, x->dialect->error_event, b.data, b.len);
    else if (b.len)
        respond_event(x, b.data, b.len);
    respond_stream_failed(x, err);
}

void respond_stream_failed(struct exchange *x, const struct err *err) {
    note_code(x, err);
    if (x->status == 200)
        x->status = respond_status(x, err); /* for the log: the head said 200 */
    respond_end_stream(x);
}

void respond_stream_end(struct exchange *x) {
    if (x->dialect->stream_end)
        send_line(x, x->dialect->stream_end);
    respond_end_stream(x);
}

/* Sends white space, with which JSON may begin. */
static void respond_blank(struct exchange *x) {
    if (!x->blank)
        respond_send_head(x, 200, RESPOND_JSON, -1, NULL);
    x->blank = true;
    send_line(x, " ");
    conn_flush(x->conn);
}

void respond_wait(struct exchange *x, bool streams) {
    x->waits = true;
    x->streams = streams;
    if (x->conn)
        conn_start_keepalive(x->conn);
}

void respond_silent(struct exchange *x) {
    assert((x->waits || x->stream) && x->conn);
    if (!x->stream && ++x->n_silent < HEAD_AFTER)
        return;
    if (!x->stream && x->streams) {
        respond_stream(x);
        conn_flush(x->conn);
    }
    if (x->stream)
        respond_keepalive(x);
    else
        respond_blank(x);
}

void respond_failure(struct exchange *x, const struct err *err) {
    if (x->ops && x->ops->fail) {
        x->ops->fail(x, err);
        return;
    }
    struct err copy = *err; /* @err may be a part of the state */
    exchange_abandon(x);
    if (x->stream)
        respond_stream_error(x, &copy);
    else
        respond_error(x, &copy);
}
