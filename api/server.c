#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "api/dialects.h"
#include "api/http/conn.h"
#include "api/http/exchange.h"
#include "api/private.h"
#include "api/http/respond.h"
#include "base/log.h"

/*
 * Listeners and the life of the whole: api_new, listen, serve, api_drain (no new connections, answers
 * are complete and then close), api_close (everything ends with an error that says so), and when the loop
 * has run out, api_free. Idle connections outlive api_drain(): closing them at once races with requests
 * that are under way on them, so each is told `Connection: close` with its next answer instead.
 *
 * The only place in api/ that logs.
 */

#define BACKLOG 4096 /* as weftd.socket: listening again on an inherited socket sets it anew */

#define DIALECT_POINTER(name) &name##_dialect,
static const struct dialect *const dialects[] = {DIALECTS(DIALECT_POINTER) NULL};

struct listener {
    struct list link; /* api.listeners */
    struct api *api;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } h;
    bool local;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* to be removed; "": none */
};

/* ---- listeners ---- */

static void on_listener_closed(uv_handle_t *h) {
    struct listener *l = h->data;

    list_remove(&l->link);
    free(l);
}

static void close_listener(struct listener *l) {
    if (uv_is_closing(&l->h.handle))
        return;
    if (*l->path)
        unlink(l->path);
    uv_close(&l->h.handle, on_listener_closed);
}

static struct listener *add_listener(struct api *a, bool local) {
    struct listener *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    l->api = a;
    l->local = local;
    if (local)
        uv_pipe_init(a->loop, &l->h.pipe, 0);
    else
        uv_tcp_init(a->loop, &l->h.tcp);
    l->h.handle.data = l;
    list_push_back(&a->listeners, &l->link);
    return l;
}

static void on_connection(uv_stream_t *s, int status) {
    struct listener *l = s->data;

    if (status == 0 && !l->api->closing)
        conn_accept(l->api, s, l->local);
    else if (status < 0)
        log_event(WLOG_WARN, "accept", "error=%s", uv_err_name(status));
}

static int start_listener(struct listener *l, int r, const char *what, struct err *err) {
    if (r == 0)
        r = uv_listen(&l->h.stream, BACKLOG, on_connection);
    if (r == 0)
        return 0;
    *l->path = 0; /* not ours */
    close_listener(l);
    err_set(err, 0, "listen", "listen: %.200s: %s", what, uv_strerror(r));
    return r;
}

int api_listen_tcp(struct api *a, const char *host, int port, int *bound_port, struct err *err) {
    struct sockaddr_storage sa;
    int len = sizeof(sa);
    char what[300];

    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    else if (strcmp(host, "*") == 0)
        host = "0.0.0.0";
    snprintf(what, sizeof(what), "%.256s:%d", host, port);
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)&sa) < 0 &&
        uv_ip6_addr(host, port, (struct sockaddr_in6 *)&sa) < 0)
        return err_set(err, 0, "listen", "listen: %.200s: must be an address", what);
    struct listener *l = add_listener(a, false);
    if (!l)
        return -ENOMEM;
    int r = uv_tcp_bind(&l->h.tcp, (struct sockaddr *)&sa, 0);
    if ((r = start_listener(l, r, what, err)) < 0)
        return r;
    r = uv_tcp_getsockname(&l->h.tcp, (struct sockaddr *)&sa, &len);
    if (r == 0 && bound_port)
        *bound_port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                                     : ((struct sockaddr_in *)&sa)->sin_port);
    bool loopback = strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
    if (!loopback && !a->opts.api_keys_file)
        log_event(WLOG_WARN, "listen_without_keys", "address=%s", what);
    return r;
}

/* A socket file that nobody listens on any more is in the way; one in use is not touched. */
static void remove_stale(const char *path) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct stat st;

    if (lstat(path, &st) < 0 || !S_ISSOCK(st.st_mode))
        return;
    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 && errno == ECONNREFUSED)
        unlink(path);
    if (fd >= 0)
        close(fd);
}

int api_listen_unix(struct api *a, const char *path, struct err *err) {
    struct listener *l;

    if (strlen(path) >= sizeof(l->path))
        return err_set(err, 0, "listen", "listen: %.100s...: path is too long", path);
    if (!(l = add_listener(a, true)))
        return -ENOMEM;
    remove_stale(path);
    int r = uv_pipe_bind(&l->h.pipe, path);
    if (r == 0)
        snprintf(l->path, sizeof(l->path), "%s", path);
    return start_listener(l, r, path, err);
}

int api_listen_fd(struct api *a, int fd, struct err *err) {
    struct sockaddr_storage sa;
    socklen_t len = sizeof(sa);

    if (getsockname(fd, (struct sockaddr *)&sa, &len) < 0)
        return err_set(err, 0, "listen", "listen: inherited descriptor %d: %s", fd,
                       strerror(errno));
    bool local = sa.ss_family == AF_UNIX;
    struct listener *l = add_listener(a, local);
    if (!l)
        return -ENOMEM;
    return start_listener(l, local ? uv_pipe_open(&l->h.pipe, fd) : uv_tcp_open(&l->h.tcp, fd),
                          "inherited descriptor", err);
}

/* ---- life ---- */

int api_new(struct api **out, uv_loop_t *loop, const struct api_opts *opts,
            const struct api_model *model, struct api_port *port, struct clock *clock) {
    CLEANUP(freep) struct api *a = calloc(1, sizeof(*a));

    if (!a)
        return -ENOMEM;
    a->loop = loop;
    a->opts = *opts;
    a->model = model;
    family_init(&a->family, model);
    fim_init(&a->fim, model->tokenizer);
    a->dialects = dialects;
    a->service_routes = service_routes;
    a->port = port;
    a->clock = clock;
    list_init(&a->listeners);
    list_init(&a->conns);
    list_init(&a->gens);
    list_init(&a->large);
    list_init(&a->responses);
    for (uint32_t i = 0; i < API_GEN_BUCKETS; i++)
        list_init(&a->buckets[i]);
    if (getrandom(&a->rng, sizeof(a->rng), 0) < 0 || getrandom(a->secret, sizeof(a->secret), 0) < 0)
        return -errno;
    memcpy(a->share_secret, opts->share_secret ? opts->share_secret : a->secret, sizeof(a->secret));
    a->next_gen = 1;
    metrics_init(&a->metrics);
    if (tenants_init(&a->tenants) < 0)
        return -ENOMEM;
    admit_init(a);
    auth_init(&a->auth, opts->api_keys_file);
    struct store_limits limits = {opts->max_stored, opts->stored_bytes, opts->stored_ttl_s};
    if (store_init(&a->store, loop, clock, &limits) < 0) {
        tenants_deinit(&a->tenants);
        return -ENOMEM;
    }
    *out = STEAL(a);
    return 0;
}

struct api *api_free(struct api *a) {
    if (!a)
        return NULL;
    auth_deinit(&a->auth);
    store_deinit(&a->store);
    tenants_deinit(&a->tenants);
    free(a);
    return NULL;
}

int api_reload_keys(struct api *a, struct err *err) {
    return auth_reload(&a->auth, err);
}

int api_set_tenants(struct api *a, const struct api_tenant *rows, uint32_t n) {
    return tenants_set(&a->tenants, rows, n);
}

void api_leave(struct api *a) {
    a->leaving = true;
    LIST_FOREACH(node, &a->listeners)
    close_listener(LIST_ENTRY(node, struct listener, link));
}

void api_drain(struct api *a) {
    api_leave(a);
    a->draining = true;
    a->health = API_DRAINING;
}

void api_close(struct api *a) {
    struct err err;

    if (a->closing)
        return;
    api_drain(a);
    a->closing = true;
    err_set_code(&err, 503, "shutting_down", NULL, "The service is stopping.");
    LIST_FOREACH(node, &a->conns)
    conn_abort(LIST_ENTRY(node, struct conn, link), &err);
    admit_close(a);
    store_close(&a->store);
}

bool api_busy(const struct api *a) {
    bool flushing = false; /* an answer that is complete but not sent */

    for (const struct list *l = a->conns.next; l != &a->conns && !flushing; l = l->next)
        flushing = LIST_ENTRY(l, struct conn, link)->state == CONN_FLUSH;
    return flushing || a->n_exchanges > 0;
}

void api_set_health(struct api *a, enum api_health h) {
    if (!a->draining)
        a->health = h;
}

enum api_health server_health(const struct api *a) {
    return a->health == API_SERVING && !a->worker_up ? API_REPLACING : a->health;
}

void server_log_exchange(const struct exchange *x) {
    int64_t now = clock_now(x->api->clock);
    bool probe = x->route && x->route->open; /* balancers ask many times a second */

    log_event(probe              ? WLOG_DEBUG
              : x->status >= 500 ? WLOG_WARN
                                 : WLOG_INFO,
              "request",
              "id=%s method=%s path=%s status=%d stream=%d prompt=%u cached=%u output=%u finish=%s "
              "queue_ms=%lld ttft_ms=%lld total_ms=%lld resumed=%u retries=%u error=%s",
              x->id, x->method, x->route ? x->route->path : "-", x->status, x->stream, x->n_prompt,
              x->n_cached, x->n_output, x->finish ? x->finish : "-",
              (long long)x->queue_ns / 1000000, (long long)x->ttft_ns / 1000000,
              (long long)(now - x->started_ns) / 1000000, x->n_resumed, x->retries,
              *x->code ? x->code : "-");
}
