#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "api/dialect.h"
#include "api/http/conn.h"
#include "api/http/exchange.h"
#include "api/private.h"

/*
 * Every check that needs no body is made here, once, before the body is read, in an order that tells a
 * stranger least: is this meant for us (Host, Origin), is there such a path and method, who asks, is the
 * body one that we would read, is there a model to answer. Matching is exact on the decoded path; `.` and
 * `..` mean nothing, so there is no second spelling of a route with other rules.
 */

/* Whether @path is @r's; [*arg, *arg + *len) is what stands for the star, *arg NULL: there is none. */
static bool matches(const struct route *r, const char *path, const char **arg, size_t *len) {
    size_t head = strcspn(r->path, "*"), n = strlen(path);

    *arg = NULL;
    if (!r->path[head])
        return strcmp(r->path, path) == 0;
    const char *tail = r->path + head + 1;
    size_t n_tail = strlen(tail);
    if (n <= head + n_tail || strncmp(r->path, path, head) != 0 ||
        strcmp(path + n - n_tail, tail) != 0)
        return false;
    *arg = path + head;
    *len = n - head - n_tail;
    return true;
}

/* %XX in place; false: malformed, or a byte that no name contains. */
static bool decode(char *s) {
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

/* Adds the method of @r to the list of those that its path is for. */
static void add_allowed(const struct route *r, char *allow, size_t size) {
    size_t n = strlen(allow);

    snprintf(allow + n, size - n, "%s%s", n ? ", " : "",
             r->method == HTTP_GET      ? "GET, HEAD"
             : r->method == HTTP_DELETE ? "DELETE"
                                        : "POST");
}

/* Looks for @path in @table, which ends with a route without path: 1 with @x->route and @x->arg
 * set, 0, or -ENOMEM. Methods of routes with another one are added to @allow. */
static int find_in(struct exchange *x, const struct route *table, const char *path, uint8_t method,
                   char *allow, size_t size) {
    const char *arg;
    size_t len = 0;

    for (const struct route *r = table; r->path; r++) {
        if (!matches(r, path, &arg, &len))
            continue;
        if (r->method == method || (r->method == HTTP_GET && method == HTTP_HEAD)) {
            x->route = r;
            return arg && !(x->arg = strndup(arg, len)) ? -ENOMEM : 1;
        }
        add_allowed(r, allow, size);
    }
    return 0;
}

/* The route of @path: of those of @x's dialect, those of the service, and those of the other
 * dialects. 405 keeps the allowed methods in @x->arg, for the Allow header. */
static int find(struct exchange *x, const char *path, uint8_t method, struct err *err) {
    char allow[40] = "";
    int r = find_in(x, x->dialect->routes, path, method, allow, sizeof(allow));

    if (r == 0 && !*allow)
        r = find_in(x, x->api->service_routes, path, method, allow, sizeof(allow));
    for (const struct dialect *const *d = x->api->dialects; *d && r == 0 && !*allow; d++)
        r = find_in(x, (*d)->routes, path, method, allow, sizeof(allow));
    if (r != 0)
        return MIN(r, 0);
    if (!*allow)
        return err_set_code(err, 404, "not_found", NULL, "There is no such path here.");
    if (!(x->arg = strdup(allow)))
        return -ENOMEM;
    return err_set_code(err, 405, "method_not_allowed", NULL, "This path is for %s.", allow);
}

/* Only plain JSON: anything else a browser could send without asking first, or we would have to unpack. */
static int check_body(struct exchange *x, const struct http *h, struct err *err) {
    const char *type = http_header(h, "content-type", NULL);
    const char *encoding = http_header(h, "content-encoding", NULL);
    const char *expect = http_header(h, "expect", NULL);

    if (expect && strcasecmp(expect, "100-continue") != 0)
        return err_set_code(err, 417, "expectation_failed", NULL, "Unknown expectation.");
    if (encoding && strcasecmp(encoding, "identity") != 0)
        return err_set_code(err, 415, "unsupported_media_type", NULL,
                            "The request body must not be compressed.");
    if (!http_is_chunked(h) && h->parser.content_length > x->api->opts.max_body_bytes)
        return err_set_code(err, 413, "body_too_large", NULL,
                            "The request body is larger than %u bytes.",
                            x->api->opts.max_body_bytes);
    if (x->route->method != HTTP_POST)
        return 0;
    size_t n = type ? strcspn(type, "; \t") : 0;
    bool json = (n == 16 && strncasecmp(type, "application/json", n) == 0) ||
                (n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0);
    /* curl -d says so where nobody tells it otherwise; a browser would name its origin. */
    bool curl = x->dialect->takes_forms && n == 33 && !http_header(h, "origin", NULL) &&
                strncasecmp(type, "application/x-www-form-urlencoded", n) == 0;
    if (type && !json && !curl)
        return err_set_code(err, 415, "unsupported_media_type", NULL,
                            "The request body must be application/json.");
    return 0;
}

/* New work while there is no model, or none any more. A worker being replaced is waited for. */
static int check_service(struct exchange *x, struct err *err) {
    enum api_health s = server_health(x->api);

    if (!x->route->generates || s == API_SERVING || s == API_REPLACING)
        return 0;
    x->retry_ms = API_RETRY_MS;
    if (s == API_STARTING)
        return err_set_code(err, 503, "model_loading", NULL,
                            "The model is being loaded, try again.");
    return err_set_code(err, 503, "draining", NULL,
                        "The service is stopping, try again elsewhere.");
}

static bool has_prefix(const struct dialect *d, const char *path) {
    for (const char *const *p = d->prefixes; *p; p++)
        if (strncmp(path, *p, strlen(*p)) == 0)
            return true;
    return false;
}

/* The dialect whose path it is; on paths that several have, the one that the client's headers name;
 * else the first. */
static const struct dialect *dialect_of(const struct api *a, const char *path,
                                        const struct http *h) {
    bool shared = strncmp(path, "/v1/", 4) != 0 || strncmp(path, "/v1/models", 10) == 0;

    for (const struct dialect *const *d = a->dialects; *d; d++)
        if (has_prefix(*d, path))
            return *d;
    for (const struct dialect *const *d = a->dialects; *d; d++)
        if (shared && (*d)->header && http_header(h, (*d)->header, NULL))
            return *d;
    return a->dialects[0];
}

int routes_check(struct exchange *x, struct http *h, struct err *err) {
    CLEANUP(freep) char *path = strdup(http_target(h));
    int r = auth_check_host(&x->api->opts, h, x->conn->local, err);

    if (!path)
        return -ENOMEM;
    x->dialect = dialect_of(x->api, path, h);
    if (r < 0)
        return r;
    if (h->parser.http_major != 1)
        return err_set_code(err, 505, "http_version", NULL,
                            "HTTP/1.1 and HTTP/1.0 are spoken here.");
    if (*path != '/' && strcmp(path, "*") != 0)
        return err_set_code(err, 400, "bad_target", NULL, "The request target must be a path.");
    path[strcspn(path, "?#")] = 0;
    if (!decode(path))
        return err_set_code(err, 400, "bad_target", NULL, "The request target is malformed.");
    if ((r = find(x, path, h->parser.method, err)) < 0)
        return r;
    if (!x->route->open && (r = tenant_identify(x, h, err)) < 0)
        return r;
    x->session = session_of_head(x->api, x->tenant, h);
    if ((r = check_body(x, h, err)) < 0)
        return r;
    return check_service(x, err);
}
