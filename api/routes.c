/*
 * Routing by the header block, for the API's instance of the HTTP server (api/http/server.h).
 */

#include "api/routes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/dialects.h"
#include "api/generation/model.h"
#include "api/http/conn.h"
#include "api/http/respond.h"
#include "api/limits/session.h"
#include "api/parts.h"
#include "api/service/trace.h"
#include "base/probe.h"
#include "base/text.h"
#include "base/try.h"

#define DIALECT_POINTER(name) &name##_dialect,
const struct dialect *const api_dialects[] = {DIALECTS(DIALECT_POINTER) NULL};

/* ---- dialects ---- */

static bool has_prefix(const struct dialect *d, const char *path) {
    for (const char *const *p = d->prefixes; *p; p++)
        if (strncmp(path, *p, strlen(*p)) == 0)
            return true;
    return false;
}

const struct dialect *routes_dialect_of(const char *path, const struct http *h) {
    for (const struct dialect *const *d = api_dialects; *d; d++)
        if (has_prefix(*d, path))
            return *d;
    for (const struct dialect *const *d = api_dialects; *d; d++)
        if ((*d)->header && http_header(h, (*d)->header, NULL))
            return *d;
    return api_dialects[0];
}

/* ---- what the head must say ---- */

/* Returns @s as a number from 0 to @max, or 0. */
static int64_t routes_number(const char *s, int64_t max) {
    char *end;

    if (!s || *s < '0' || *s > '9')
        return 0;
    long long v = strtoll(s, &end, 10);
    if (*end && *end != '.')
        return 0;
    return MIN(v, max);
}

/* ---- pages of other origins ---- */

static void preflight_serve(struct exchange *x, struct http *h) {
    respond(x, 200, "text/plain", "", 0);
}

/* Answers a browser's question before it sends a page's request: any path, no key. Also answers
 * `OPTIONS *`, by which monitors ask whether a server is there (RFC 9110, 9.3.7). */
static const struct route preflight = {"*", HTTP_OPTIONS, true, false, preflight_serve, NULL};

static bool is_true(const char *value) {
    return value && strcmp(value, "true") == 0;
}

/* Lets the origin's pages read answers, errors included. On a UNIX socket a proxy may pass any
 * origin on: requests of unknown origins are served without CORS headers. */
static void note_origin(struct exchange *x, const struct http *h) {
    const char *origin = http_header(h, "origin", NULL);

    bool server = h->parser.method == HTTP_OPTIONS && strcmp(http_target(h), "*") == 0;

    if ((origin && auth_is_preflight(h)) || server)
        x->route = &preflight;
    if (!origin || strlen(origin) >= sizeof(x->origin) ||
        !auth_knows_origin(env_of(x)->opts.hosts, env_of(x)->opts.cors_origins, origin))
        return;
    snprintf(x->origin, sizeof(x->origin), "%s", origin);
    x->asks_private = is_true(http_header(h, "access-control-request-private-network", NULL));
    if (h->parser.method == HTTP_OPTIONS)
        x->route = &preflight;
}

static int put_origin(const struct exchange *x, char *out, size_t size) {
    if (!*x->origin)
        return 0;
    const char *more = "", *private_network = "";

    if (x->route == &preflight) {
        more = "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n"
               "Access-Control-Allow-Headers: *, Authorization\r\n"
               "Access-Control-Max-Age: 7200\r\n";
        if (x->asks_private)
            private_network = "Access-Control-Allow-Private-Network: true\r\n";
    }
    return snprintf(out, size,
                    "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n"
                    "Access-Control-Expose-Headers: *\r\n%s%s",
                    x->origin, more, private_network);
}

int routes_check_head(struct exchange *x, const struct http *h, struct err *err) {
    x->retries = (uint32_t)routes_number(http_header(h, "x-stainless-retry-count", NULL), 1000);
    x->timeout_ms = 1000 * routes_number(http_header(h, "x-stainless-read-timeout", NULL), 1000000);

    TRY(auth_check_host(env_of(x)->opts.hosts, env_of(x)->opts.cors_origins, h, x->conn->local,
                        err));
    note_origin(x, h);
    return 0;
}

/* Checks what the head says of the body. It must be JSON: of other types a browser may send some
 * without asking first. */
static int check_body(struct exchange *x, const struct http *h, struct err *err) {
    const char *type = http_header(h, "content-type", NULL);
    const char *encoding = http_header(h, "content-encoding", NULL);
    const char *expect = http_header(h, "expect", NULL);

    if (expect && strcasecmp(expect, "100-continue") != 0)
        return err_set_code(err, 417, "expectation_failed", NULL,
                            "The only supported expectation is 100-continue.");
    bool plain = !encoding || !*encoding || strcasecmp(encoding, "identity") == 0;

    if (!plain && h->coding == UNPACK_NONE)
        return err_set_code(err, 415, "unsupported_media_type", NULL,
                            "The request body has the Content-Encoding %.40s, which is not "
                            "supported here: send gzip, zstd or no encoding.",
                            encoding);
    if (!http_is_chunked(h) && h->parser.content_length > env_of(x)->opts.max_body_bytes)
        return err_set_code(err, 413, "body_too_large", NULL,
                            "The request body is larger than %u bytes (max-body).",
                            env_of(x)->opts.max_body_bytes);
    if (x->route->method != HTTP_POST)
        return 0;
    size_t n = type ? strcspn(type, "; \t") : 0;
    bool json = (n == 16 && strncasecmp(type, "application/json", n) == 0) ||
                (n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0);
    /* curl -d labels its body so by default; a browser would name its origin. */
    bool curl = x->dialect->takes_forms && n == 33 && !http_header(h, "origin", NULL) &&
                strncasecmp(type, "application/x-www-form-urlencoded", n) == 0;
    if (type && !json && !curl)
        return err_set_code(err, 415, "unsupported_media_type", NULL,
                            "The request body must be JSON, with Content-Type: application/json.");
    return 0;
}

/* Refuses new work while there is no model yet, or none any more. A worker being replaced is waited
 * for. */
static int check_service(struct exchange *x, struct err *err) {
    enum api_health s = service_health(env_of(x));

    if (!x->route->generates || s == API_SERVING || s == API_REPLACING)
        return 0;
    x->retry_ms = API_RETRY_MS;
    if (s == API_FAILED) {
        x->retry_ms = model_first(env_of(x))->failure_retry_ms;
        return model_unavailable(model_first(env_of(x)), NULL, err);
    }
    if (s == API_STARTING)
        return err_set_code(err, 503, "model_loading", NULL,
                            "The model is being loaded. Try again later.");
    if (!x->conn->answered) /* a connection older than the drain may not know of it */
        return 0;
    return err_set_code(err, 503, "draining", NULL,
                        "The server is shutting down. Send the request to another instance.");
}

int routes_check(struct exchange *x, const struct http *h, struct err *err) {
    int r;

    PROBE2(request__start, x->id, x->route->path);
    trace_read_head(&x->parent, h);
    if (!x->route->open &&
        (r = tenant_identify(&env_of(x)->tenants, &env_of(x)->auth, x, h, err)) < 0)
        return r;
    struct session_key s = session_of_head(env_of(x)->secret, x->tenant, h);
    x->session = s.id;
    x->session_from = s.from;
    TRY(check_body(x, h, err));
    if (x->upgrades && env_of(x)->store->limits.n == 0)
        return err_set_code(err, 426, "upgrade_required", NULL,
                            "A WebSocket needs responses that are kept (stored-responses).");
    return check_service(x, err);
}

/* ---- headers of answers ---- */

/* Writes when to try again: most clients read seconds, the SDKs prefer milliseconds. */
static int put_retry(const struct exchange *x, int status, char *out, size_t size) {
    uint32_t ms = x->retry_ms ? x->retry_ms : 1000;

    if (status != 429 && status != 503 && status != 529)
        return 0;
    return snprintf(out, size, "Retry-After: %u\r\nRetry-After-Ms: %u\r\n", (ms + 999) / 1000, ms);
}

static int routes_put_error(const struct exchange *x, int status, const struct err *err, char *out,
                            size_t size) {
    if (status == 401) /* Claude Code tries a key ten times otherwise */
        return snprintf(out, size, "WWW-Authenticate: Bearer\r\nX-Should-Retry: false\r\n");
    if (status == 426)
        return snprintf(out, size, "Upgrade: HTTP/1.1\r\nSec-WebSocket-Version: 13\r\n");
    if (status == 405)
        return snprintf(out, size, "Allow: %s\r\n", text_or(x->arg, "GET, HEAD, POST"));
    if (strcmp(err->code, "engine_fault") == 0 || strcmp(err->code, "cancelled") == 0 ||
        strcmp(err->code, "insufficient_quota") == 0 || strcmp(err->code, "model_unavailable") == 0)
        return snprintf(out, size, "X-Should-Retry: false\r\n");
    return 0;
}

size_t routes_put_headers(const struct exchange *x, int status, const struct err *err, char *out,
                          size_t size) {
    size_t n = (size_t)put_retry(x, status, out, size);

    n += (size_t)put_origin(x, out + n, size - n);
    assert(n < size);
    if (x->route && !x->route->open && status != 401)
        n += tenant_put_headers(tenants_get(&env_of(x)->tenants, x->tenant), x->dialect, x->head_ns,
                                out + n, size - n);
    if (err)
        n += (size_t)routes_put_error(x, status, err, out + n, size - n);
    assert(n < size);
    return n;
}
