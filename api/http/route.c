#include "api/http/route.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/http/dialect.h"
#include "api/http/exchange.h"
#include "api/http/server.h"

#define NEAR_MAX 64u  /* characters of a path for which a nearer one is looked up */
#define NEAR_LEAST 3u /* changes from which on no path is near */

/* Returns true if @path matches @r; [*arg, *arg + *len) is the part that the star stands for, *arg
 * NULL: there is no star. */
static bool route_matches(const struct route *r, const char *path, const char **arg, size_t *len) {
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

/* Returns the methods of @r for the Allow header. */
static const char *methods_of(const struct route *r) {
    switch (r->method) {
    case HTTP_GET:
        return "GET, HEAD";
    case HTTP_DELETE:
        return "DELETE";
    default:
        return "POST";
    }
}

/* Looks for @path in @table (NULL: empty). Returns 1 and sets x->route; or 0, and *allow has the
 * methods of @path, "" for none; or -ENOMEM. */
static int route_look_up(const struct route *table, struct exchange *x, const char *path,
                         uint8_t method, char allow[40]) {
    const char *arg;
    size_t len = 0;

    for (const struct route *r = table; r && r->path; r++) {
        assert(r->method == HTTP_GET || r->method == HTTP_POST || r->method == HTTP_DELETE);
        if (!route_matches(r, path, &arg, &len))
            continue;
        if (r->method == method || (r->method == HTTP_GET && method == HTTP_HEAD)) {
            x->route = r;
            return arg && !(x->arg = strndup(arg, len)) ? -ENOMEM : 1;
        }
        note_add(allow, 40, ", ", "%s", methods_of(r));
    }
    return 0;
}

/* Returns true if any table has @path, for any method. */
static bool is_served(const struct exchange *x, const char *path) {
    const struct http_server_opts *o = &x->server->opts;
    const char *arg;
    size_t len;

    for (const struct route *r = o->routes; r && r->path; r++)
        if (route_matches(r, path, &arg, &len))
            return true;
    for (const struct dialect *const *d = o->dialects; *d; d++)
        for (const struct route *r = (*d)->routes; r && r->path; r++)
            if (route_matches(r, path, &arg, &len))
                return true;
    return false;
}

/* Computes how many characters have to be inserted, removed or replaced to make @a of @b, both of
 * at most NEAR_MAX characters: Levenshtein's distance. */
static size_t route_distance(const char *a, const char *b) {
    size_t row[NEAR_MAX + 1], n = strlen(b);

    assert(strlen(a) <= NEAR_MAX && n <= NEAR_MAX);
    for (size_t k = 0; k <= n; k++)
        row[k] = k;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0]++;

        for (size_t k = 0; k < n; k++) {
            size_t change = diagonal + (a[i] != b[k]);

            diagonal = row[k + 1];
            row[k + 1] = MIN(change, MIN(row[k], row[k + 1]) + 1);
        }
    }
    return row[n];
}

/* Returns the path without a star in @table that is nearest to @path, if it is nearer than *least,
 * else @best. Bound: NEAR_MAX^2 steps for each route whose length is near. */
static const char *route_nearest(const struct route *table, const char *path, size_t *least,
                                 const char *best) {
    size_t n = strlen(path);

    for (const struct route *r = table; r && r->path && n <= NEAR_MAX; r++) {
        size_t len = strlen(r->path);

        if (len > NEAR_MAX || len + *least < n + 1 || n + *least < len + 1 || strchr(r->path, '*'))
            continue;
        size_t d = route_distance(path, r->path);
        if (d < *least) {
            *least = d;
            best = r->path;
        }
    }
    return best;
}

/* Returns the path that is meant by one that is too short to be near it; NULL: there is none. */
static const char *meant_by(const char *path) {
    static const char *const rows[][2] = {
        {"/v1", "/v1/chat/completions"},
        {"/v1/chat", "/v1/chat/completions"},
        {"/chat", "/v1/chat/completions"},
        {"/generate", "/v1/completions"},
        {"/api", "/api/chat"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (strcmp(path, rows[i][0]) == 0)
            return rows[i][1];
    return NULL;
}

/* Sets a 404, which also tells what is wrong with the client's base URL if the path shows it. Sets
 * a 400 if /v1 is in the path twice: Claude Code takes a 404 for an unknown model and does not show
 * its text. Returns -EINVAL. */
static int route_refuse_unknown(const struct exchange *x, const char *path, struct err *err) {
    const struct http_server_opts *o = &x->server->opts;
    const char *why = ".", *near = NULL;
    size_t least = NEAR_LEAST;
    char longer[128];

    snprintf(longer, sizeof(longer), "/v1%.100s", path);
    if (strstr(path, "//"))
        why = ": two slashes follow each other in it. The client's base URL must not end with one.";
    else if (strncmp(path, "/v1/v1/", 7) == 0 && is_served(x, path + 3))
        return err_set_code(err, 400, "bad_target", NULL,
                            "This path does not exist: /v1 is in it twice. Leave it out of the "
                            "client's base URL.");
    else if (is_served(x, longer))
        why = ", but there is one with /v1 before it. Add that to the client's base URL.";
    else if (strncmp(path, "/v1/api/", 8) == 0 && is_served(x, path + 3))
        why = ", but there is one without /v1. Leave that out of the client's base URL.";
    near = meant_by(path);
    if (near && !is_served(x, near))
        near = NULL;
    least = near ? 0 : least;
    near = route_nearest(o->routes, path, &least, near);
    for (const struct dialect *const *d = o->dialects; *d; d++)
        near = route_nearest((*d)->routes, path, &least, near);
    if (near && strcmp(why, ".") == 0)
        return err_set_code(err, 404, "not_found", NULL,
                            "This path does not exist. Did you mean %s?", near);
    return err_set_code(err, 404, "not_found", NULL, "This path does not exist%s", why);
}

/* Looks @path up among the routes of the listener's dialect, those of all, and those of the other
 * dialects. Returns as route_look_up(). */
static int route_look_up_all(struct exchange *x, const char *path, uint8_t method,
                             char allow[static 40]) {
    const struct http_server_opts *o = &x->server->opts;
    int r = route_look_up(x->dialect->routes, x, path, method, allow);

    if (r != 0 || *allow)
        return r;
    r = route_look_up(o->routes, x, path, method, allow);
    for (const struct dialect *const *d = o->dialects; *d && r == 0 && !*allow; d++)
        r = route_look_up((*d)->routes, x, path, method, allow);
    return r;
}

/* Removes the slash at the end of @path, which some clients add. Returns false if there is none. */
static bool drop_slash(char *path) {
    size_t n = strlen(path);

    if (n < 2 || path[n - 1] != '/')
        return false;
    path[n - 1] = 0;
    return true;
}

int route_find(struct exchange *x, const struct http *h, struct err *err) {
    CLEANUP(freep) char *path = strdup(http_target(h));
    uint8_t method = h->parser.method;
    char allow[40] = "";

    assert(!x->route && !x->arg);
    if (!path)
        return -ENOMEM;
    if (*path != '/' && strcmp(path, "*") != 0)
        return err_set_code(err, 400, "bad_target", NULL, "The request target must be a path.");
    path[strcspn(path, "?#")] = 0;
    if (!http_decode(path))
        return err_set_code(
            err, 400, "bad_target", NULL,
            "The request target is malformed: '%%' needs two hexadecimal digits, and control "
            "characters are not allowed.");
    x->upgrades = http_wants_websocket(h) && x->dialect->websocket &&
                  strcmp(x->dialect->websocket, path) == 0;
    if (x->upgrades)
        method = HTTP_POST;
    int r = route_look_up_all(x, path, method, allow);
    bool again = r == 0 && !*allow && drop_slash(path);
    if (again)
        r = route_look_up_all(x, path, method, allow);
    if (r != 0)
        return MIN(r, 0);
    if (!*allow)
        return route_refuse_unknown(x, path, err);
    if (http_wants_websocket(h))
        return err_set_code(err, 426, "upgrade_required", NULL,
                            "This path does not speak WebSocket. Send a %s request.", allow);
    if (!(x->arg = strdup(allow)))
        return -ENOMEM;
    return err_set_code(err, 405, "method_not_allowed", NULL, "This path only accepts %s.", allow);
}
