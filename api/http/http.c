/*
 * llhttp in its strict mode refuses what request smuggling is made of: Content-Length beside
 * Transfer-Encoding, two lengths, lengths with signs, folded lines, bare line feeds, NUL. This file
 * adds the rules that llhttp does not have: limits of sizes and numbers, and that trailers are not
 * headers. After any error the connection is closed, so that no bytes behind the error are ever
 * taken for a request.
 */

#include "api/http/http.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

static struct http *http_of_parser(llhttp_t *p) {
    return p->data;
}

/* Stops the parser from inside a callback; http_explain() then returns this error. */
static int http_refuse(struct http *h, int status, const char *code, const char *message) {
    err_set_code(&h->err, status, code, NULL, "%s", message);
    return HPE_USER;
}

/* Sets the error "The request WHAT than @most UNIT." */
static int refuse_more(struct err *err, int status, const char *code, const char *what, size_t most,
                       const char *unit) {
    return err_set_code(err, status, code, NULL, "The request %s than %zu %s.", what, most, unit);
}

static int refuse_header(struct http *h) {
    return http_refuse(h, 503, "out_of_memory",
                       "Out of memory for the request header. Try again later.");
}

static int http_add(struct http *h, const char *at, size_t len) {
    int r = buf_add(&h->head, at, len);

    if (r == -EMSGSIZE) {
        refuse_more(&h->err, 431, "header_too_large", "header is larger", h->limits->head, "bytes");
        return HPE_USER;
    }
    if (r != 0)
        return refuse_header(h);
    return 0;
}

static int on_url(llhttp_t *p, const char *at, size_t len) {
    struct http *h = http_of_parser(p);

    if (h->head.len + len > h->limits->target) {
        refuse_more(&h->err, 414, "uri_too_long", "target is longer", h->limits->target, "bytes");
        return HPE_USER;
    }
    return http_add(h, at, len);
}

/* Rewrites the absolute form of a target, which clients send to proxies (RFC 9112, 3.2.2), as a
 * path and a field ":authority", which is no name that a client can send. */
static int on_url_complete(llhttp_t *p) {
    struct http *h = http_of_parser(p);
    int r = http_add(h, "", 1);

    if (r != 0 || strncasecmp(h->head.data, "http", 4) != 0)
        return r;
    CLEANUP(freep) char *target = strdup(h->head.data);
    if (!target)
        return refuse_header(h);
    char *authority = strstr(target, "://");
    if (!authority)
        return 0;
    authority += 3;
    char *path = authority + strcspn(authority, "/?#");
    const struct {
        const char *data;
        size_t len;
    } part[] = {
        {"/", *path != '/'}, {path, strlen(path) + 1}, {":authority", sizeof(":authority")}};
    h->head.len = 0;
    for (size_t i = 0; i < ARRAY_SIZE(part); i++)
        if ((r = http_add(h, part[i].data, part[i].len)) != 0)
            return r;
    *path = 0;
    return http_add(h, authority, strlen(authority) + 1);
}

/* Adds to a field's name, in lower case. Fields after the body are counted and dropped: they must
 * not change what was already decided. */
static int on_field(llhttp_t *p, const char *at, size_t len) {
    struct http *h = http_of_parser(p);

    if (h->head_done)
        return 0;
    size_t from = h->head.len;
    if (http_add(h, at, len))
        return HPE_USER;
    for (size_t i = from; i < h->head.len; i++)
        h->head.data[i] = (char)tolower((unsigned char)h->head.data[i]);
    return 0;
}

static int on_field_complete(llhttp_t *p) {
    struct http *h = http_of_parser(p);

    if (++h->n_headers > h->limits->n_headers) {
        refuse_more(&h->err, 431, "too_many_headers", "has more", h->limits->n_headers,
                    "header lines");
        return HPE_USER;
    }
    if (h->head_done)
        return 0;
    return http_add(h, "", 1);
}

static int on_value(llhttp_t *p, const char *at, size_t len) {
    if (http_of_parser(p)->head_done)
        return 0;
    return http_add(http_of_parser(p), at, len);
}

/* Ends a value. White space behind it is not part of it (RFC 9112, 5), which the parser leaves. */
static int on_value_complete(llhttp_t *p) {
    struct buf *head = &http_of_parser(p)->head;

    if (http_of_parser(p)->head_done)
        return 0;
    while (head->data[head->len - 1] == ' ' || head->data[head->len - 1] == '\t')
        head->len--; /* at most to the NUL behind the name */
    return http_add(http_of_parser(p), "", 1);
}

/* Returns true if there is another transfer coding beside chunked; llhttp checks only the last
 * one. */
static bool has_other_coding(const struct http *h) {
    uint32_t n;
    const char *v = http_header(h, "transfer-encoding", &n);

    return http_is_chunked(h) && (n > 1 || strcasecmp(v, "chunked") != 0);
}

/* Notes the content coding if it is a single one that can be decoded. check_body() (api/routes.c)
 * refuses all others by the header. */
static void find_coding(struct http *h) {
    uint32_t n;
    const char *v = http_header(h, "content-encoding", &n);

    if (h->limits->unpack && n == 1)
        h->coding = unpack_coding_of(v);
}

static int on_headers_complete(llhttp_t *p) {
    if (has_other_coding(http_of_parser(p)))
        return http_refuse(http_of_parser(p), 501, "not_implemented",
                           "The only supported Transfer-Encoding is chunked.");
    http_of_parser(p)->head_done = true;
    find_coding(http_of_parser(p));
    p->upgrade = 0; /* llhttp goes on with HTTP: a WebSocket begins behind the answer */
    return HPE_PAUSED;
}

/* Reserves room for the whole of a large body at once: to grow in steps would copy some MB in one
 * of them, 7 ms for 8 MB. Pages that are not written to take no memory. If the reservation fails,
 * the body grows in steps after all. */
static void http_make_room(struct http *h, size_t len) {
    size_t all = h->limits->body;

    if (!http_is_chunked(h) &&
        !h->unpack) /* the parser counts down what is still to come after @len */
        all = MIN(all, h->body.len + len + h->parser.content_length);
    if (h->body.len + len > BODY_GROWS_TO && h->body.cap < all)
        buf_reserve(&h->body, all - h->body.len);
}

static int refuse_memory(struct http *h) {
    return http_refuse(h, 503, "out_of_memory",
                       "Out of memory for the request body. Try again later.");
}

static int add_packed(struct http *h, const char *at, size_t len) {
    int r = h->unpack ? 0 : unpack_new(&h->unpack, h->coding, h->limits->unpack);

    if (r == -EAGAIN)
        return http_refuse(
            h, 503, "overloaded",
            "Too many compressed bodies are being received. Try again later, or send it "
            "without compression.");
    if (r == 0) {
        http_make_room(h, len);
        r = unpack_feed(h->unpack, at, len, &h->body);
    }
    if (r == -EMSGSIZE)
        return http_refuse(h, 413, "body_too_large",
                           "The request body is too large, or compressed too much.");
    if (r == -EINVAL)
        return http_refuse(h, 400, "malformed_body",
                           "The request body cannot be decoded as its Content-Encoding says.");
    if (r < 0)
        return refuse_memory(h);
    return 0;
}

static int http_on_body(llhttp_t *p, const char *at, size_t len) {
    struct http *h = http_of_parser(p);

    assert(h->head_done && h->body.len <= h->limits->body);
    if (h->discard)
        return 0;
    if (h->coding != UNPACK_NONE)
        return add_packed(h, at, len);
    if (h->body.len + len > h->limits->body) {
        refuse_more(&h->err, 413, "body_too_large", "body is larger", h->limits->body, "bytes");
        return HPE_USER;
    }
    http_make_room(h, len);
    if (buf_add(&h->body, at, len) < 0)
        return refuse_memory(h);
    return 0;
}

/* Stops the parser before the bytes that follow, which may be the next request. */
static int on_message_complete(llhttp_t *p) {
    struct http *h = http_of_parser(p);
    bool whole = !h->unpack || unpack_is_whole(h->unpack);

    h->unpack = unpack_free(h->unpack);
    if (!whole && !h->discard)
        return http_refuse(h, 400, "malformed_body", "The compressed request body is cut off.");
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_url_complete = on_url_complete,
    .on_header_field = on_field,
    .on_header_field_complete = on_field_complete,
    .on_header_value = on_value,
    .on_header_value_complete = on_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_body = http_on_body,
    .on_message_complete = on_message_complete,
};

void http_init(struct http *h, const struct http_limits *limits) {
    memset(h, 0, sizeof(*h));
    h->limits = limits;
    buf_init(&h->head, limits->head + limits->target);
    buf_init(&h->body, limits->body);
    http_reset(h);
}

static void http_free_request(struct http *h) {
    if (!h->ws)
        buf_deinit(&h->head);
    buf_deinit(&h->body);
    h->unpack = unpack_free(h->unpack);
}

void http_deinit(struct http *h) {
    h->ws = websocket_free(h->ws);
    http_free_request(h);
}

void http_reset(struct http *h) {
    http_free_request(h);
    h->discard = false;
    if (h->ws)
        return;
    llhttp_init(&h->parser, HTTP_REQUEST, &settings);
    h->parser.data = h;
    h->n_head_bytes = 0;
    h->n_headers = 0;
    h->started = h->head_done = false;
    h->coding = UNPACK_NONE;
    h->err = (struct err){0};
}

/* Translates llhttp's error into the words of HTTP. */
static int http_explain(struct http *h, llhttp_errno_t e, struct err *err) {
    const char *reason = llhttp_get_error_reason(&h->parser);

    if (h->err.status) {
        *err = h->err;
        return -EINVAL;
    }
    if (e == HPE_INVALID_METHOD && !h->started)
        return err_set_code(
            err, 400, "malformed_http", NULL,
            "This is not an HTTP request. Is it TLS, sent to an address without TLS?");
    if ((e == HPE_INVALID_VERSION && h->parser.http_major != 1) || e == HPE_PAUSED_H2_UPGRADE)
        return err_set_code(err, 505, "http_version", NULL,
                            "Only HTTP/1.1 and HTTP/1.0 are supported.");
    return err_set_code(err, 400, "malformed_http", NULL, "Malformed HTTP request%s%.100s.",
                        reason && *reason ? ": " : "", text_or(reason, ""));
}

/* ---- messages of a WebSocket ---- */

bool http_wants_websocket(const struct http *h) {
    const char *protocol = http_header(h, "upgrade", NULL);
    const char *connection = http_header(h, "connection", NULL);

    return !h->ws && h->parser.method == HTTP_GET && h->parser.http_minor > 0 && protocol &&
           strcasecmp(protocol, "websocket") == 0 && connection &&
           strcasestr(connection, "upgrade");
}

int http_begin_websocket(struct http *h) {
    assert(!h->ws && h->head_done);
    if (!(h->ws = websocket_new()))
        return -ENOMEM;
    h->parser.method = HTTP_POST;
    return 0;
}

/* Returns what a frame that ends the connection with @code had wrong. */
static const char *http_frame_fault(uint16_t code) {
    switch (code) {
    case WEBSOCKET_NOT_TEXT:
        return "Messages must be text, not binary.";
    case WEBSOCKET_BAD_TEXT:
        return "The message is not valid UTF-8.";
    default:
        return "Malformed WebSocket frame: it needs a mask, a known opcode in its place and a "
               "length that fits.";
    }
}

/* Says what was wrong with the client's frames. Returns -EINVAL. */
static int explain_frame(const struct http *h, int r, struct err *err) {
    if (r == -ENOMEM)
        return err_set_code(err, 503, "out_of_memory", NULL,
                            "Out of memory for the message. Try again later.");
    if (h->ws->code == WEBSOCKET_TOO_LARGE)
        return err_set_code(err, 413, "body_too_large", NULL,
                            "The message is larger than %zu bytes (max-body).", h->body.max);
    return err_set_code(err, 400, "malformed_frame", NULL, "%s", http_frame_fault(h->ws->code));
}

static int feed_frames(struct http *h, const char *data, size_t len, bool busy, size_t *used,
                       struct err *err) {
    static const enum http_answer answers[] = {[WEBSOCKET_MORE] = HTTP_MORE,
                                               [WEBSOCKET_BEGUN] = HTTP_HEAD_DONE,
                                               [WEBSOCKET_MESSAGE] = HTTP_MESSAGE_DONE,
                                               [WEBSOCKET_CLOSED] = HTTP_CLOSED};
    int r = websocket_feed(h->ws, data, len, busy, &h->body, used);

    if (r < 0)
        return explain_frame(h, r, err);
    if (h->discard)
        buf_clear(&h->body);
    return (int)answers[r];
}

int http_feed_busy(struct http *h, const char *data, size_t len, size_t *used, struct err *err) {
    return feed_frames(h, data, len, true, used, err);
}

int http_feed(struct http *h, const char *data, size_t len, size_t *used, struct err *err) {
    bool in_head = !h->head_done;

    if (h->ws)
        return feed_frames(h, data, len, false, used, err);
    if (llhttp_get_errno(&h->parser) == HPE_PAUSED)
        llhttp_resume(&h->parser);
    llhttp_errno_t e = llhttp_execute(&h->parser, data, len);
    assert(e != HPE_PAUSED || h->head_done); /* no callback pauses before */
    *used = e == HPE_OK ? len : (size_t)(llhttp_get_error_pos(&h->parser) - data);
    if (*used > len)
        *used = len;
    h->started |= *used > 0;
    if (in_head && (h->n_head_bytes += *used) > h->limits->head && (e == HPE_OK || e == HPE_PAUSED))
        return refuse_more(err, 431, "header_too_large", "header is larger", h->limits->head,
                           "bytes");
    if (e == HPE_OK)
        return HTTP_MORE;
    if (e != HPE_PAUSED)
        return http_explain(h, e, err);
    if (in_head)
        return HTTP_HEAD_DONE;
    return HTTP_MESSAGE_DONE;
}

const char *http_target(const struct http *h) {
    if (!h->head.data)
        return "";
    return h->head.data;
}

const char *http_header(const struct http *h, const char *name, uint32_t *n) {
    const char *at = http_target(h), *end = at + h->head.len, *found = NULL;
    uint32_t count = 0;

    for (at += strlen(at) + 1; at < end;) {
        const char *value = at + strlen(at) + 1;

        if (value >= end)
            break;
        if (strcmp(at, name) == 0 && !count++)
            found = value;
        at = value + strlen(value) + 1;
    }
    if (n)
        *n = count;
    return found;
}

bool http_decode(char *s) {
    char *out = s;

    for (; *s; s++) {
        unsigned v = (unsigned char)*s;

        if (*s == '%') {
            if (!isxdigit((unsigned char)s[1]) || !isxdigit((unsigned char)s[2]))
                return false;
            char hex[3] = {s[1], s[2], 0};
            v = (unsigned)strtoul(hex, NULL, 16);
            s += 2;
        }
        if (v < 0x20)
            return false;
        *out++ = (char)v;
    }
    *out = 0;
    return true;
}

bool http_query(const struct http *h, const char *name, char *out, size_t size) {
    const char *q = strchr(http_target(h), '?');
    size_t n = strlen(name);

    assert(size > 0);
    while (q && *q) {
        const char *at = q + 1;
        size_t len = strcspn(at, "&#");

        if (len > n && strncmp(at, name, n) == 0 && at[n] == '=') {
            snprintf(out, size, "%.*s", (int)(len - n - 1), at + n + 1);
            for (char *c = out; *c; c++)
                *c = *c == '+' ? ' ' : *c;
            if (!http_decode(out))
                *out = 0;
            return true;
        }
        q = at[len] == '&' ? at + len : NULL;
    }
    return false;
}

bool http_is_chunked(const struct http *h) {
    return h->parser.flags & F_CHUNKED;
}

bool http_has_body(const struct http *h) {
    return http_is_chunked(h) || ((h->parser.flags & F_CONTENT_LENGTH) && h->parser.content_length);
}
