/* The part of server.h about listening sockets, and about the beginning and end of a server. */

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/http/conn.h"
#include "api/http/loop_lag.h"
#include "api/http/serve.h"
#include "api/http/server.h"
#include "api/http/turn.h"
#include "base/log.h"
#include "base/result.h"
#include "base/try.h"

/* as in weftd.socket: listen() on an inherited socket sets the backlog anew */
#define BACKLOG 4096
#define TCP_PROBE_S 60 /* the kernel probes a peer that is silent for so long */
#define ACCEPT_TELL_NS INT64_C(10000000000)
#define ACCEPT_AGAIN_MS 20 /* pause after a connection for which there was no memory */
#define RSA_QUICK 2048     /* bits of a key with which a handshake takes less than 1 ms */

struct listener {
    /* http_server.listeners */
    struct list link;
    struct http_server *server;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } h;
    bool local, tls;
    /* a connection is to be accepted in the next iteration */
    bool waits;
    /* there was no memory for a connection; http_server.again tries again */
    bool lacks;
    /* file to be removed; "": none */
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

/* ---- listeners ---- */

static void on_listener_closed(uv_handle_t *h) {
    struct listener *l = h->data;

    list_remove(&l->link);
    free(l);
}

/* Removes the file of its socket at once: a successor may bind it while the handle closes. */
static void close_listener(struct listener *l) {
    if (uv_is_closing(&l->h.handle))
        return;
    if (*l->path)
        unlink(l->path);
    uv_close(&l->h.handle, on_listener_closed);
}

/* Returns a listener that is not bound yet, or NULL if there is no memory. */
static struct listener *add_listener(struct http_server *s, bool local, bool tls) {
    struct listener *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    l->server = s;
    l->local = local;
    l->tls = tls;
    if (local)
        uv_pipe_init(s->opts.loop, &l->h.pipe, 0);
    else
        uv_tcp_init(s->opts.loop, &l->h.tcp);
    l->h.handle.data = l;
    list_push_back(&s->listeners, &l->link);
    return l;
}

static void on_connection(uv_stream_t *stream, int status);

/* Logs a failure to accept. Clients can cause failures as often as they like, so there is at most
 * one line in ACCEPT_TELL_NS, which has their number. */
static void listen_log_failure(struct http_server *s, int status) {
    int64_t now = clock_now(s->opts.clock);

    s->n_accept_failures++;
    if (s->accept_told_ns && now - s->accept_told_ns < ACCEPT_TELL_NS)
        return;
    s->accept_told_ns = now;
    log_event(WLOG_WARN, "accept", "error=%s failures=%llu", uv_err_name(status),
              (unsigned long long)s->n_accept_failures);
}

/* Accepts the connections that wait, in a new iteration. The handle stays active until
 * listen_on_check(), because libuv decides after this callback how long it sleeps. */
static void listen_on_rest(uv_idle_t *rest) {
    struct http_server *s = rest->data;

    loop_lag_mark("listeners with more connections");
    LIST_FOREACH_ENTRY(l, &s->listeners, struct listener, link) {
        if (!l->waits || uv_is_closing(&l->h.handle))
            continue;
        l->waits = false;
        on_connection(&l->h.stream, 0);
    }
}

static bool a_listener_waits(const struct http_server *s) {
    bool waits = false;

    for (const struct list *l = s->listeners.next; l != &s->listeners && !waits; l = l->next)
        waits = LIST_ENTRY(l, struct listener, link)->waits;
    return waits;
}

/* Frees closed connections for a while: memory of TLS alone takes tens of microseconds. */
static void free_dead(struct http_server *s) {
    int64_t began = clock_now(s->opts.clock);
    struct list *node;

    while (clock_now(s->opts.clock) - began < TURNS_NS && (node = list_pop_front(&s->dead)))
        conn_free(LIST_ENTRY(node, struct conn, link));
}

/* Reads the sockets that were found readable, in the order of turn.h. */
static void listen_on_check(uv_check_t *check) {
    struct http_server *s = check->data;
    struct turn *t = NULL;

    /* Connections that were closed before the poll must not have waited in it. */
    assert(list_empty(&s->dead) || uv_is_active((uv_handle_t *)&s->rest));
    s->accepts_ns = 0;
    loop_lag_mark("closed connections");
    free_dead(s);
    int64_t began = clock_now(s->opts.clock), now = began;
    while (now - began < TURNS_NS && (t = turn_next(&s->payers.turns))) {
        struct conn *c = CONTAINER_OF(t, struct conn, turn);
        struct turn_flow *served = &c->payer->turns;
        int64_t before = now;

        loop_lag_mark("what a connection sends");
        conn_turn(c);
        now = clock_now(s->opts.clock);
        turn_charge(served, now - before);
        /* The first request of a connection is read in the turn of its address, and belongs to a
         * tenant afterwards. Both pay: an address that did not would go before all others. */
        if (&c->payer->turns != served)
            turn_charge(&c->payer->turns, now - before);
    }
    if (!list_empty(&s->payers.turns.ready)) {
        s->n_deferred++;
        http_server_wake(s);
    } else if (s->ticks && !a_listener_waits(s) && list_empty(&s->dead)) {
        uv_idle_stop(&s->rest);
    }
}

/* Tries again to accept connections for which there was no memory. libuv does not poll their
 * listeners until they are accepted. */
static void listen_on_again(uv_timer_t *again) {
    struct http_server *s = again->data;

    loop_lag_mark("listeners that had no memory");
    LIST_FOREACH_ENTRY(l, &s->listeners, struct listener, link) {
        if (!l->lacks || uv_is_closing(&l->h.handle))
            continue;
        l->lacks = false;
        on_connection(&l->h.stream, 0);
    }
}

/* Starts the handles that are called in each iteration, with the first listener. They keep no loop
 * alive. */
static void start_ticks(struct http_server *s) {
    if (s->ticks)
        return;
    uv_check_init(s->opts.loop, &s->check);
    uv_idle_init(s->opts.loop, &s->rest);
    uv_timer_init(s->opts.loop, &s->again);
    s->check.data = s->rest.data = s->again.data = s;
    uv_check_start(&s->check, listen_on_check);
    uv_unref((uv_handle_t *)&s->check);
    s->ticks = true;
}

static void stop_ticks(struct http_server *s) {
    if (!s->ticks)
        return;
    uv_close((uv_handle_t *)&s->check, NULL);
    uv_close((uv_handle_t *)&s->rest, NULL);
    uv_close((uv_handle_t *)&s->again, NULL);
    s->ticks = false;
}

void http_server_wake(struct http_server *s) {
    if (s->ticks)
        uv_idle_start(&s->rest, listen_on_rest);
}

void http_server_emptied(struct http_server *s) {
    assert(s->closing && s->n_connections == 0);
    stop_ticks(s);
}

static void accept_one(struct listener *l) {
    if (conn_accept(l->server, &l->h.stream, l->local, l->tls))
        return;
    listen_log_failure(l->server, UV_ENOMEM);
    l->lacks = true;
    uv_timer_start(&l->server->again, listen_on_again, ACCEPT_AGAIN_MS, 0);
}

/* Returns true while there is time in this iteration. Connections wait in one queue for all
 * addresses, and are served in the order of turn.h only when they are accepted, which is cheap. */
static bool may_accept(struct http_server *s) {
    int64_t now = clock_now(s->opts.clock);

    if (!s->accepts_ns) {
        loop_lag_mark("new connections");
        s->accepts_ns = now;
    }
    return now - s->accepts_ns < ACCEPTS_NS;
}

/* Accepts what waits behind the connection that libuv has reported. Since version 1.45 libuv
 * accepts one connection in an iteration, in which the turns of others take up to TURNS_NS. */
static void accept_rest(struct listener *l) {
    uv_os_fd_t fd;

    if (uv_fileno(&l->h.handle, &fd) < 0)
        return;
    while (may_accept(l->server)) {
        int next = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (next < 0) /* libuv reports a failure when it accepts the next one */
            return;
        if (!conn_accept_fd(l->server, next, l->local, l->tls)) {
            close(next);
            return;
        }
    }
}

/* A connection that cannot be accepted for want of descriptors stays in the backlog; libuv tries
 * again with the next one. */
static void on_connection(uv_stream_t *stream, int status) {
    struct listener *l = stream->data;

    if (status < 0) {
        listen_log_failure(l->server, status);
    } else if (l->server->closing) {
        return;
    } else if (may_accept(l->server)) {
        accept_one(l);
        accept_rest(l);
    } else { /* libuv does not poll this listener until then */
        l->waits = true;
        l->server->n_deferred++;
        http_server_wake(l->server);
    }
}

/* Returns advice about the error @r, because of which @what cannot be listened on. */
static const char *listen_advice(const struct listener *l, int r, const char *what) {
    bool any = strncmp(what, "[::]", 4) == 0 || strncmp(what, "0.0.0.0", 7) == 0;

    if (r == UV_EADDRINUSE && l->local)
        return ". Stop the program that listens there (ss -lxp names it; remove the file if there "
               "is "
               "none), or choose another path.";
    if (r == UV_EADDRINUSE) {
        if (any)
            return ". Stop the program that listens there (ss -ltnp names it), or choose another "
                   "address; [::] stands for all addresses, those of IPv4 too.";
        return ". Stop the program that listens there (ss -ltnp names it), or choose another "
               "address.";
    }
    if (l->local && (r == UV_EACCES || r == UV_EPERM || r == UV_EROFS))
        return ". Choose a folder in which the user of weftd may write.";
    if (r == UV_EACCES)
        return ". Only root may take a port below 1024: choose a higher one, or let systemd listen "
               "(weftd.socket).";
    if (r == UV_EADDRNOTAVAIL)
        return ". No interface of this machine has this address (ip address lists those there "
               "are).";
    return "";
}

/* Sets what connections inherit from the listening socket (tcp(7)): five calls less for each. */
static void set_tcp_options(struct listener *l) {
    uv_tcp_nodelay(&l->h.tcp, 1);
    uv_tcp_keepalive(&l->h.tcp, 1, TCP_PROBE_S);
}

/* Listens. @r is the result of binding the socket. Returns 0 or an error of libuv. */
static int listener_begin(struct listener *l, int r) {
    start_ticks(l->server);
    if (r < 0)
        return r;
    if (!l->local)
        set_tcp_options(l);
    return uv_listen(&l->h.stream, BACKLOG, on_connection);
}

/* Does the same. After an error @err names the address @what and advice, and @l is closed. */
static int start_listener(struct listener *l, int bound, const char *what, struct err *err) {
    const char *name = l->server->opts.name;
    int r = listener_begin(l, bound);

    if (r == 0)
        return 0;
    close_listener(l);
    err_set(err, 0, name, "%s: %.200s: %s%s", name, what, uv_strerror(r),
            listen_advice(l, r, what));
    return r;
}

void http_server_set_tls(struct http_server *s, const struct tls_config *config) {
    bool is_bad = config->days_left < 0 || config->rsa_bits > RSA_QUICK;

    tls_config_deinit(&s->tls);
    s->tls = *config;
    log_event(is_bad ? WLOG_WARN : WLOG_INFO, "certificate", "days_left=%d rsa_bits=%d",
              config->days_left, config->rsa_bits);
}

/* Checks that there can be a listener with @tls. Returns 0, or -EINVAL with @err. */
static int check_tls(const struct http_server *s, bool tls, struct err *err) {
    if (!tls || s->tls.ctx)
        return 0;
    return err_set(err, 0, "tls-certificate",
                   "tls-certificate: %s: an address with TLS needs tls-certificate and tls-key",
                   s->opts.name);
}

int http_server_listen_tcp(struct http_server *s, const char *host, int port, bool tls,
                           int *bound_port, struct err *err) {
    struct sockaddr_storage sa;
    int len = sizeof(sa);
    char what[300];

    if (check_tls(s, tls, err) < 0)
        return -EINVAL;
    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    else if (strcmp(host, "*") == 0)
        host = "0.0.0.0";
    snprintf(what, sizeof(what), strchr(host, ':') ? "[%.256s]:%d" : "%.256s:%d", host, port);
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)&sa) < 0 &&
        uv_ip6_addr(host, port, (struct sockaddr_in6 *)&sa) < 0)
        return err_set(err, 0, s->opts.name, "%s: %.200s: must be an address", s->opts.name, what);
    struct listener *l = add_listener(s, false, tls);
    if (!l)
        return -ENOMEM;
    int r = uv_tcp_bind(&l->h.tcp, (struct sockaddr *)&sa, 0);
    if ((r = start_listener(l, r, what, err)) < 0)
        return r;
    r = uv_tcp_getsockname(&l->h.tcp, (struct sockaddr *)&sa, &len);
    if (r == 0 && bound_port)
        *bound_port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                                     : ((struct sockaddr_in *)&sa)->sin_port);
    return r;
}

/* Removes a socket file on which no process listens any more. A file in use is not touched. */
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

/* Binds a socket whose file has its mode from the first moment on, so that it is never open to more
 * users than it should be. libuv must not bind it: it would remove the file with the handle, even
 * when another process listens there. close_listener() removes the file. */
static int bind_unix(struct listener *l, const char *path) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    mode_t mode = l->server->opts.socket_mode;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
    mode_t mask = mode ? umask(0777 & ~mode) : 0;
    int r = bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ? -errno : 0;
    if (mode)
        umask(mask);
    if (r == 0) {
        snprintf(l->path, sizeof(l->path), "%s", path);
        r = uv_pipe_open(&l->h.pipe, fd);
    }
    if (r < 0)
        close(fd);
    return r;
}

int http_server_listen_unix(struct http_server *s, const char *path, struct err *err) {
    struct listener *l;

    if (strlen(path) >= sizeof(l->path))
        return err_set(err, 0, s->opts.name, "%s: %.100s...: the path is longer than %zu bytes",
                       s->opts.name, path, sizeof(l->path) - 1);
    if (!(l = add_listener(s, true, false)))
        return -ENOMEM;
    remove_stale(path);
    return start_listener(l, bind_unix(l, path), path, err);
}

int http_server_listen_fd(struct http_server *s, int fd, bool tls, struct err *err) {
    struct sockaddr_storage sa;
    socklen_t len = sizeof(sa);

    if (getsockname(fd, (struct sockaddr *)&sa, &len) < 0)
        return err_set(err, 0, s->opts.name, "%s: inherited descriptor %d: %s", s->opts.name, fd,
                       strerror(errno));
    bool local = sa.ss_family == AF_UNIX;
    if (check_tls(s, tls, err) < 0)
        return -EINVAL;
    struct listener *l = add_listener(s, local, tls);
    if (!l)
        return -ENOMEM;
    int r;

    if (local)
        r = uv_pipe_open(&l->h.pipe, fd);
    else
        r = uv_tcp_open(&l->h.tcp, fd);
    return start_listener(l, r, "inherited descriptor", err);
}

int http_server_last_fd(const struct http_server *s) {
    const struct listener *l = LIST_ENTRY(s->listeners.prev, struct listener, link);
    uv_os_fd_t fd = -1;

    assert(!list_empty(&s->listeners));
    uv_fileno(&l->h.handle, &fd);
    return fd;
}

void http_server_own_paths(struct http_server *s, bool own) {
    LIST_FOREACH_ENTRY(l, &s->listeners, struct listener, link) {
        struct sockaddr_un sa = {0};
        socklen_t len = sizeof(sa) - 1;
        uv_os_fd_t fd;

        if (!l->local || uv_is_closing(&l->h.handle) || uv_fileno(&l->h.handle, &fd) < 0 ||
            getsockname(fd, (struct sockaddr *)&sa, &len) < 0)
            continue;
        snprintf(l->path, sizeof(l->path), "%s", own ? sa.sun_path : "");
    }
}

/* ---- life ---- */

int http_server_init(struct http_server *s, const struct http_server_opts *opts) {
    assert(opts->loop && opts->clock && opts->dialects && opts->dialects[0]);
    memset(s, 0, sizeof(*s));
    s->opts = *opts;
    s->events = &serve_events;
    list_init(&s->listeners);
    list_init(&s->conns);
    list_init(&s->dead);
    TRY(payers_init(&s->payers, opts->has_keys));
    s->payers.quota[PAYER_TCP].limit = opts->max_connections;
    s->payers.quota[PAYER_UNIX].limit = opts->max_connections;
    s->payers.quota[PAYER_BODIES].limit = s->payers.quota[PAYER_BODIES].reserve = opts->max_bodies;
    s->payers.quota[PAYER_OUTPUT].limit = s->payers.quota[PAYER_OUTPUT].reserve = opts->max_output;
    return errno_if_negative(getrandom(&s->rng, sizeof(s->rng), 0));
}

void http_server_deinit(struct http_server *s) {
    assert(list_empty(&s->conns) && list_empty(&s->dead) && list_empty(&s->listeners));
    payers_deinit(&s->payers);
    tls_config_deinit(&s->tls);
}

void http_server_stop_accepting(struct http_server *s) {
    s->leaving = true;
    LIST_FOREACH(node, &s->listeners)
    close_listener(LIST_ENTRY(node, struct listener, link));
}

void http_server_close(struct http_server *s, const struct err *err) {
    if (s->closing)
        return;
    http_server_stop_accepting(s);
    s->closing = true;
    if (s->n_connections == 0)
        stop_ticks(s);
    LIST_FOREACH_ENTRY(c, &s->conns, struct conn, link) {
        if (err)
            conn_abort(c, err);
        else
            conn_close(c);
    }
}

bool http_server_is_busy(const struct http_server *s) {
    LIST_FOREACH_ENTRY(c, &s->conns, const struct conn, link) {
        if (conn_is_flushing(c))
            return true;
    }
    return s->n_exchanges > 0;
}
