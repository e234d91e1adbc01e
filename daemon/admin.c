#include "daemon/admin.h"

#include <errno.h>
#include <llhttp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/list.h"
#include "base/log.h"
#include "daemon/admin_json.h"
#include "proto/flight_file.h"

/*
 * A small HTTP server of its own: it must answer when the API's connection limit is reached, knows
 * no keys and has a handful of routes. Requests carry no bodies; a connection serves one request at
 * a time and a watched one sends until its client leaves.
 */

#define CONNS_MAX 64
#define LISTENERS_MAX 8
#define URL_MAX 256
#define REQUEST_MAX (16u << 10) /* bytes of one request */
#define OUT_MAX (4u << 20)      /* unsent bytes: a watcher that does not read is dropped */
#define IDLE_MS 60000
#define WATCH_MIN_MS 100
#define WATCH_MAX_MS 3600000

struct listener {
    uv_pipe_t pipe;
    struct admin *admin;
    char path[108]; /* "" for an inherited one; removed at close */
    gid_t group;    /* of the socket file */
};

struct conn {
    struct list link; /* admin.conns */
    uv_pipe_t pipe;
    uv_timer_t timer; /* idle, or the watch's tick */
    struct admin *admin;
    llhttp_t parser;
    char url[URL_MAX];
    size_t url_len, n_read;
    bool watching, closing, close_after;
    uint32_t n_open; /* handles not closed yet */
    char in[4096];
};

struct admin {
    struct admin_opts opts;
    llhttp_settings_t settings;
    struct listener listener[LISTENERS_MAX];
    uint32_t n_listeners, n_conns;
    struct list conns; /* conn.link */
    bool closing;
};

struct reply { /* one uv_write */
    uv_write_t write;
    struct conn *conn;
    char data[];
};

/* ---- connections ---- */

static void on_conn_closed(uv_handle_t *h) {
    struct conn *c = h->data;

    if (--c->n_open)
        return;
    list_remove(&c->link);
    c->admin->n_conns--;
    free(c);
}

static void close_conn(struct conn *c) {
    if (c->closing)
        return;
    c->closing = true;
    uv_close((uv_handle_t *)&c->pipe, on_conn_closed);
    uv_close((uv_handle_t *)&c->timer, on_conn_closed);
}

static void on_idle(uv_timer_t *t) {
    close_conn(t->data);
}

static void on_written(uv_write_t *w, int status) {
    struct reply *r = CONTAINER_OF(w, struct reply, write);
    struct conn *c = r->conn;

    free(r);
    if (status < 0 || c->close_after)
        close_conn(c);
}

/* Sends the concatenation of @head and @body. */
static void send_bytes(struct conn *c, const char *head, const char *body, size_t n_body) {
    size_t n_head = strlen(head);
    struct reply *r = malloc(sizeof(*r) + n_head + n_body);

    if (!r || c->pipe.write_queue_size > OUT_MAX) {
        free(r);
        close_conn(c);
        return;
    }
    memcpy(r->data, head, n_head);
    memcpy(r->data + n_head, body, n_body);
    r->conn = c;
    uv_buf_t b = uv_buf_init(r->data, (unsigned)(n_head + n_body));
    if (uv_write(&r->write, (uv_stream_t *)&c->pipe, &b, 1, on_written) < 0) {
        free(r);
        close_conn(c);
    }
}

static void send_text(struct conn *c, const char *head, const char *body) {
    send_bytes(c, head, body, strlen(body));
}

static const char *reason(int status) {
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    default:
        return "Internal Server Error";
    }
}

/* One JSON line as a whole answer. */
static void respond(struct conn *c, int status, const char *json) {
    char head[256];

    snprintf(head, sizeof(head),
             "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n",
             status, reason(status), strlen(json) + 1,
             c->close_after ? "Connection: close\r\n" : "");
    CLEANUP(freep) char *line = malloc(strlen(json) + 2);
    if (!line) {
        close_conn(c);
        return;
    }
    sprintf(line, "%s\n", json);
    send_text(c, head, line);
}

static void respond_error(struct conn *c, int status, const char *message) {
    char json[600];

    snprintf(json, sizeof(json), "{\"error\":{\"message\":\"%s\",\"code\":%d}}", message, status);
    respond(c, status, json);
}

static void respond_own(struct conn *c, char *json) {
    if (json)
        respond(c, 200, json);
    else
        respond_error(c, 500, "out of memory");
    free(json);
}

/* ---- routes ---- */

static void send_watched(struct conn *c) {
    CLEANUP(freep) char *json = admin_json_stats(&c->admin->opts);
    char head[32];

    if (!json) {
        close_conn(c);
        return;
    }
    CLEANUP(freep) char *line = malloc(strlen(json) + 4);
    if (!line) {
        close_conn(c);
        return;
    }
    sprintf(line, "%s\n\r\n", json);
    snprintf(head, sizeof(head), "%zx\r\n", strlen(json) + 1);
    send_text(c, head, line);
}

static void on_watch(uv_timer_t *t) {
    send_watched(t->data);
}

/* "1s", "500ms" or plain seconds; 0 when it is none of these or out of range. */
static uint64_t parse_interval(const char *text) {
    char *end;
    double v = strtod(text, &end);
    double ms = strcmp(end, "ms") == 0 ? v : v * 1000;

    if (end == text || (*end && strcmp(end, "s") != 0 && strcmp(end, "ms") != 0))
        return 0;
    return ms >= WATCH_MIN_MS && ms <= WATCH_MAX_MS ? (uint64_t)ms : 0;
}

static void get_stats(struct conn *c, const char *query) {
    if (!*query) {
        respond_own(c, admin_json_stats(&c->admin->opts));
        return;
    }
    uint64_t ms = strncmp(query, "watch=", 6) == 0 ? parse_interval(query + 6) : 0;
    if (!ms) {
        respond_error(c, 400, "watch: must be from 100ms to 1h, as in ?watch=1s");
        return;
    }
    c->watching = true;
    send_text(c,
              "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
              "Transfer-Encoding: chunked\r\n\r\n",
              "");
    send_watched(c);
    if (!c->closing)
        uv_timer_start(&c->timer, on_watch, ms, ms);
}

static void get_requests(struct conn *c, const char *query) {
    (void)query;
    respond_own(c, admin_json_requests(&c->admin->opts));
}

static void get_health(struct conn *c, const char *query) {
    (void)query;
    respond_own(c, admin_json_health(&c->admin->opts));
}

static void get_tenants(struct conn *c, const char *query) {
    (void)query;
    respond_own(c, admin_json_tenants(&c->admin->opts));
}

static void get_flight(struct conn *c, const char *query) {
    CLEANUP(buf_deinit) struct buf file;
    char head[256];

    (void)query;
    buf_init(&file, FLIGHT_FILE_MAX);
    if (workers_dump(c->admin->opts.workers, &file) < 0) {
        respond_error(c, 500, "out of memory");
        return;
    }
    snprintf(head, sizeof(head),
             "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
             "Content-Length: %zu\r\n%s\r\n",
             file.len, c->close_after ? "Connection: close\r\n" : "");
    send_bytes(c, head, file.data, file.len);
}

static void post_reload(struct conn *c, const char *query) {
    struct err err = {0};
    int r = c->admin->opts.reload(c->admin->opts.ctx, &err);

    (void)query;
    for (char *s = err.message; *s; s++) /* it stands in a JSON string */
        *s = *s == '"' || *s == '\\' || (unsigned char)*s < 0x20 ? '\'' : *s;
    if (r == 0)
        respond(c, 200, "{\"reloaded\":true}");
    else
        respond_error(c, 400, *err.message ? err.message : "out of memory");
}

static void post_drain(struct conn *c, const char *query) {
    (void)query;
    respond(c, 200, "{\"draining\":true}");
    c->admin->opts.drain(c->admin->opts.ctx);
}

/* "/requests/ID/cancel" */
static bool post_cancel(struct conn *c, const char *path) {
    unsigned long long id;
    int end = 0;

    if (sscanf(path, "/requests/%llu/cancel%n", &id, &end) != 1 || !end || path[end])
        return false;
    if (api_cancel(c->admin->opts.api, id))
        respond(c, 200, "{\"cancelled\":true}");
    else
        respond_error(c, 404, "no live request has this id");
    return true;
}

/* "/requests/ID/why" */
static bool get_why(struct conn *c, const char *path) {
    char id[64], *end;
    int n = 0;

    if (sscanf(path, "/requests/%63[^/]/why%n", id, &n) != 1 || !n || path[n])
        return false;
    uint64_t number = strtoull(id, &end, 10);
    if (*end && !api_find(c->admin->opts.api, id, &number))
        respond_error(c, 404, "no recent request has this id");
    else
        respond_own(c, admin_json_why(&c->admin->opts, number));
    return true;
}

static const struct route {
    const char *path;
    uint8_t method;
    void (*serve)(struct conn *c, const char *query);
} routes[] = {
    {"/stats", HTTP_GET, get_stats},     {"/requests", HTTP_GET, get_requests},
    {"/health", HTTP_GET, get_health},   {"/tenants", HTTP_GET, get_tenants},
    {"/reload", HTTP_POST, post_reload}, {"/drain", HTTP_POST, post_drain},
    {"/flight", HTTP_GET, get_flight},
};

static void serve(struct conn *c) {
    uint8_t method = llhttp_get_method(&c->parser);
    char *query = strchr(c->url, '?');

    if (query)
        *query++ = 0;
    if (method == HTTP_POST && post_cancel(c, c->url))
        return;
    if (method == HTTP_GET && get_why(c, c->url))
        return;
    for (size_t i = 0; i < ARRAY_SIZE(routes); i++) {
        if (strcmp(routes[i].path, c->url) != 0)
            continue;
        if (routes[i].method == method)
            routes[i].serve(c, query ? query : "");
        else
            respond_error(c, 405, "this path has another method");
        return;
    }
    respond_error(c, 404,
                  "paths are /stats, /requests, /requests/ID/cancel, /requests/ID/why, /tenants, "
                  "/health, /flight, /reload, /drain");
}

/* ---- parsing ---- */

static int on_begin(llhttp_t *p) {
    struct conn *c = p->data;

    c->url_len = 0;
    c->n_read = 0;
    return 0;
}

static int on_url(llhttp_t *p, const char *at, size_t len) {
    struct conn *c = p->data;

    if (c->url_len + len >= URL_MAX)
        return HPE_USER;
    memcpy(c->url + c->url_len, at, len);
    c->url_len += len;
    c->url[c->url_len] = 0;
    return 0;
}

static int on_complete(llhttp_t *p) {
    struct conn *c = p->data;

    c->close_after = !llhttp_should_keep_alive(p);
    serve(c);
    return 0;
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b) {
    struct conn *c = h->data;

    (void)suggested;
    *b = uv_buf_init(c->in, sizeof(c->in));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b) {
    struct conn *c = s->data;

    if (n == 0)
        return;
    if (n < 0) {
        close_conn(c);
        return;
    }
    if (c->watching) /* nothing can follow a watch */
        return;
    c->n_read += (size_t)n;
    llhttp_errno_t e = llhttp_execute(&c->parser, b->base, (size_t)n);
    if (c->closing)
        return;
    if (e != HPE_OK || c->n_read > REQUEST_MAX) {
        c->close_after = true;
        respond_error(c, 400, "not an HTTP/1.1 request that this socket understands");
    } else if (!c->watching) {
        uv_timer_start(&c->timer, on_idle, IDLE_MS, 0);
    }
}

/* ---- listeners ---- */

static bool in_group(int fd, gid_t group) {
    gid_t groups[1024];
    socklen_t len = sizeof(groups);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len) < 0)
        return false;
    for (size_t i = 0; i < len / sizeof(gid_t); i++)
        if (groups[i] == group)
            return true;
    return false;
}

/* Root, the daemon's own user, and members of the socket's group, unless that is root's. */
static bool is_allowed(const struct listener *l, uv_pipe_t *pipe) {
    struct ucred peer;
    socklen_t len = sizeof(peer);
    uv_os_fd_t fd;

    if (uv_fileno((uv_handle_t *)pipe, &fd) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return false;
    if (peer.uid == 0 || peer.uid == geteuid())
        return true;
    return l->group && (peer.gid == l->group || in_group(fd, l->group));
}

static void on_connection(uv_stream_t *s, int status) {
    struct listener *l = s->data;
    struct admin *a = l->admin;
    struct conn *c = status < 0 ? NULL : calloc(1, sizeof(*c));

    if (!c)
        return;
    c->admin = a;
    uv_pipe_init(a->opts.loop, &c->pipe, 0);
    uv_timer_init(a->opts.loop, &c->timer);
    c->pipe.data = c->timer.data = c;
    c->n_open = 2;
    list_push_back(&a->conns, &c->link);
    a->n_conns++;
    llhttp_init(&c->parser, HTTP_REQUEST, &a->settings);
    c->parser.data = c;
    if (uv_accept(s, (uv_stream_t *)&c->pipe) < 0 || a->n_conns > CONNS_MAX ||
        !is_allowed(l, &c->pipe)) {
        close_conn(c);
        return;
    }
    uv_timer_start(&c->timer, on_idle, IDLE_MS, 0);
    if (uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read) < 0)
        close_conn(c);
}

static struct listener *add_listener(struct admin *a) {
    struct listener *l = &a->listener[a->n_listeners];

    if (a->n_listeners == LISTENERS_MAX)
        return NULL;
    a->n_listeners++;
    l->admin = a;
    uv_pipe_init(a->opts.loop, &l->pipe, 0);
    l->pipe.data = l;
    return l;
}

/* The group that owns the socket's file. */
static gid_t group_of(int fd) {
    struct sockaddr_un at = {0};
    socklen_t len = sizeof(at);
    struct stat st;

    if (getsockname(fd, (struct sockaddr *)&at, &len) < 0 || at.sun_family != AF_UNIX ||
        !at.sun_path[0] || stat(at.sun_path, &st) < 0)
        return 0;
    return st.st_gid;
}

static int start_listening(struct listener *l, struct err *err) {
    uv_os_fd_t fd;
    int r = uv_listen((uv_stream_t *)&l->pipe, 64, on_connection);

    if (r == 0 && uv_fileno((uv_handle_t *)&l->pipe, &fd) == 0)
        l->group = group_of(fd);
    if (r < 0)
        err_set(err, 0, "admin-socket", "admin-socket: %s", uv_strerror(r));
    return r;
}

/* A socket file that nobody listens on is left from a daemon that was killed. */
static void remove_stale(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0 && errno == ECONNREFUSED)
        unlink(path);
    if (fd >= 0)
        close(fd);
}

int admin_listen_unix(struct admin *a, const char *path, struct err *err) {
    struct listener *l;

    if (strlen(path) >= sizeof(l->path))
        return err_set(err, 0, "admin-socket", "admin-socket: the path is longer than %zu bytes",
                       sizeof(l->path) - 1);
    if (!(l = add_listener(a)))
        return err_set(err, 0, "admin-socket", "admin-socket: too many");
    remove_stale(path);
    mode_t mask = umask(0117); /* 0660 */
    int r = uv_pipe_bind(&l->pipe, path);
    umask(mask);
    if (r < 0) {
        err_set(err, 0, "admin-socket", "admin-socket: %s: %s", path, uv_strerror(r));
        return r;
    }
    snprintf(l->path, sizeof(l->path), "%s", path);
    return start_listening(l, err);
}

int admin_listen_fd(struct admin *a, int fd, struct err *err) {
    struct listener *l = add_listener(a);
    int r = l ? uv_pipe_open(&l->pipe, fd) : UV_EMFILE;

    if (r < 0) {
        err_set(err, 0, "admin-socket", "admin-socket: inherited socket: %s", uv_strerror(r));
        return r;
    }
    return start_listening(l, err);
}

/* ---- life ---- */

int admin_new(struct admin **out, const struct admin_opts *o) {
    struct admin *a = calloc(1, sizeof(*a));

    if (!a)
        return -ENOMEM;
    a->opts = *o;
    list_init(&a->conns);
    llhttp_settings_init(&a->settings);
    a->settings.on_message_begin = on_begin;
    a->settings.on_url = on_url;
    a->settings.on_message_complete = on_complete;
    *out = a;
    return 0;
}

void admin_close(struct admin *a) {
    if (a->closing)
        return;
    a->closing = true;
    for (uint32_t i = 0; i < a->n_listeners; i++) {
        if (*a->listener[i].path)
            unlink(a->listener[i].path);
        uv_close((uv_handle_t *)&a->listener[i].pipe, NULL);
    }
    LIST_FOREACH(n, &a->conns)
    close_conn(LIST_ENTRY(n, struct conn, link));
}

struct admin *admin_free(struct admin *a) {
    free(a);
    return NULL;
}
