#pragma once

/*
 * server - an instance of the HTTP/1 layer: its listeners, its connections and what it may take.
 * The API is one instance, the admin socket another with limits of its own; neither knows of the
 * other.
 *
 *   listen.c    sockets, life          conn      one connection: bytes, states, time
 *   serve.c     head and message to    exchange  one request and its response
 *               exchanges and routes   respond   what is written
 *   route       paths                  http      the parser
 *                                      tls       of a connection, its bytes
 *
 * An owner fills http_server_opts and gets its requests through the `serve` functions of its
 * routes. All of it runs on one loop.
 */

#include <sys/stat.h>
#include <time.h>
#include <uv.h>

#include "api/http/http.h"
#include "api/http/payer.h"
#include "api/http/tls.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/rng.h"

#define HTTP_READ_SIZE (64u << 10) /* bytes of one read; all connections share the buffer */

struct conn_events;
struct dialect;
struct exchange;
struct route;

struct http_server_opts {
    uv_loop_t *loop;
    struct clock *clock;
    /* exchange.ctx: the owner */
    void *ctx;
    /* name of the option, for errors of listening */
    const char *name;
    /* limits of one request */
    struct http_limits limits;
    /* peers are strangers until conn_set_payer() (payer.h) */
    bool has_keys;
    /* limit of open connections, over TCP and over UNIX sockets each */
    uint32_t max_connections;
    /* further connections that get a 503; more are closed without an answer */
    uint32_t max_refused;
    /* from the first byte to the end of the header block */
    uint32_t header_timeout_ms;
    /* from there to the end of the body */
    uint32_t body_timeout_ms;
    /* between requests */
    uint32_t idle_timeout_ms;
    /* silence in a stream after which a comment is sent */
    uint32_t keepalive_ms;
    /* without progress of a client that should read */
    uint32_t stall_timeout_ms;
    /* unsent bytes above which a stream holds back */
    size_t stream_buffer_bytes;
    /* unsent bytes above which a connection is given up */
    size_t max_unsent;
    /* bytes of all request bodies in memory */
    size_t max_bodies;
    /* bytes of all answers that are not sent */
    size_t max_output;
    /* mode of a UNIX socket's file; 0: by the umask */
    mode_t socket_mode;
    /* a Date header in each answer */
    bool sends_date;
    /* further header lines of a stream, or "" */
    const char *stream_headers;

    /* NULL-terminated; the first is the default */
    const struct dialect *const *dialects;

    /* The members below may be NULL. */
    /* routes of no dialect; ends with one without path */
    const struct route *routes;
    /* Returns the dialect of a request for @path, which is not decoded. */
    const struct dialect *(*dialect_of)(const char *path, const struct http *h);
    /* returns true if the peer of a new connection is served */
    bool (*accepts)(void *ctx, int fd);
    /* Reads the header block before its route is looked up, then when x->route is set. -EINVAL
     * refuses the request with @err, another negative value with 500. The first may set x->route
     * itself. */
    int (*check_head)(struct exchange *x, const struct http *h, struct err *err);
    int (*check_route)(struct exchange *x, const struct http *h, struct err *err);
    /* Appends header lines of an answer to @out (@size bytes, NUL-terminated) and returns their
     * length. @err: the error that is sent, or NULL. */
    size_t (*put_headers)(const struct exchange *x, int status, const struct err *err, char *out,
                          size_t size);
    /* for logs and counters */
    void (*ended)(const struct exchange *x);
};

/* Invariants: n_connections is the length of conns and dead; closing implies leaving, and that no
 * listener is open; ticks from the first listener on until closing and n_connections is 0. */
struct http_server {
    struct http_server_opts opts;
    const struct conn_events *events;
    /* configuration for new connections to listeners with TLS */
    struct tls_config tls;
    /* listener.link */
    struct list listeners;
    /* conn.link */
    struct list conns;
    /* conn.link: closed, to be freed */
    struct list dead;
    /* connections that are not freed; exchanges whose answer is not complete */
    uint32_t n_connections, n_exchanges;
    /* connections that were refused for lack of a place */
    uint64_t n_refused;
    uint64_t n_accept_failures;
    /* time of the last log line about it */
    int64_t accept_told_ns;
    /* Counts evictions in favour of other clients: places, unfinished bodies, answers to slow
     * readers. */
    uint64_t n_displaced, n_lost_bodies, n_lost_outputs;
    struct payers payers;
    /* runs in each iteration of the loop: turns come after what was polled */
    uv_check_t check;
    /* active while one has left something to the next */
    uv_idle_t rest;
    /* for connections that were not accepted because memory was short */
    uv_timer_t again;
    /* the three are open: from the first listener to the last connection's end */
    bool ticks;
    /* time of the first connection of this iteration; 0: none came */
    int64_t accepts_ns;
    /* iterations that left turns or connections to the next one */
    uint64_t n_deferred;
    bool leaving, closing;
    /* request ids */
    struct rng rng;
    /* the Date header's value for the second date_of */
    char date[32];
    time_t date_of;
    char read_buf[HTTP_READ_SIZE];
};

/* Initialises a server. @opts is copied; the objects to which it points must outlive @s. Returns 0
 * or -errno. */
int http_server_init(struct http_server *s, const struct http_server_opts *opts);
/* Frees the server after http_server_close() when the loop has run out, or if it never listened. */
void http_server_deinit(struct http_server *s);

/* Takes over @config, the certificate and key of listeners with TLS: new connections use them. */
void http_server_set_tls(struct http_server *s, const struct tls_config *config);
/* Listens on a numeric address ("localhost" and "*" too), with @tls after http_server_set_tls().
 * Port 0 takes any port; *bound_port (may be NULL) is the bound one. Returns 0, or a negative value
 * with @err. */
int http_server_listen_tcp(struct http_server *s, const char *host, int port, bool tls,
                           int *bound_port, struct err *err);
/* Listens at @path. A socket file on which no process listens any more is replaced; the file is
 * removed when the server leaves. */
int http_server_listen_unix(struct http_server *s, const char *path, struct err *err);
/* Takes over @fd, a bound socket; @tls as above. */
int http_server_listen_fd(struct http_server *s, int fd, bool tls, struct err *err);

/* Returns the descriptor of the listener that was added last. */
int http_server_last_fd(const struct http_server *s);
/* Sets whether the server removes the files of its UNIX sockets when it closes. @own is false once
 * another process listens on them, and true in that process; before the first call the files of
 * http_server_listen_unix() are removed. */
void http_server_own_paths(struct http_server *s, bool own);

/* For connections: keep the loop from sleeping, because a connection has a turn; and note that the
 * last connection of a closing server is gone. */
void http_server_wake(struct http_server *s);
void http_server_emptied(struct http_server *s);

/* Accepts no new connections; each answer ends its connection. Idle connections stay, because
 * closing them would race with requests that are already on the way. */
void http_server_stop_accepting(struct http_server *s);
/* Ends everything: exchanges fail with @err and are sent out; NULL: connections are closed at once.
 * When the loop has run out, http_server_deinit() follows. */
void http_server_close(struct http_server *s, const struct err *err);
/* Returns true if an exchange is open or an answer not yet sent. */
bool http_server_is_busy(const struct http_server *s);
