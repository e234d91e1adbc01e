/*
 * The admin socket has its own instance of the HTTP server with its own limits, because it must
 * answer when all connections of the API are taken. It knows no keys: the socket's file and the
 * peer's credentials decide who may connect. Each body is one line of JSON. A watched answer is
 * sent until its client leaves.
 */

#include "daemon/front/admin.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/http/conn.h"
#include "api/http/dialect.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/http/server.h"
#include "daemon/front/admin_json.h"
#include "daemon/front/audit.h"
#include "proto/flight_file.h"

#define CONNS_MAX 64
#define TARGET_MAX 4096
#define REQUEST_MAX (16u << 10) /* most bytes of a head, and of a body, which no route reads */
#define HEADERS_MAX 1000
#define OUT_MAX (4u << 20) /* unsent bytes above which a watcher that does not read is dropped */
#define IDLE_MS 60000
#define WATCH_MIN_MS 100
#define WATCH_MAX_MS 3600000
#define NO_SUCH_PATH                                                                               \
    "paths are /stats, /requests, /requests/ended, /requests/ID/cancel, /requests/ID/why, "        \
    "/tenants, /usage, /health, /flight[/NAME], /reload, /upgrade, /drain, /models, "              \
    "/models/NAME/load, "                                                                          \
    "/models/NAME/unload, /models/NAME/swap[?file=PATH], "                                         \
    "/pull?name=hf:OWNER/REPO[:QUANT]"

struct admin {
    struct admin_opts opts;
    struct http_server http;
    /* requests that wait for the end of an upgrade and of a reload, or NULL */
    struct exchange *upgrading, *reloading;
};

/* ---- answers ---- */

static const struct admin_opts *opts_of(const struct exchange *x) {
    return &((const struct admin *)x->ctx)->opts;
}

static void admin_refuse(struct exchange *x, int status, const char *message) {
    struct err err;

    err_set(&err, status, NULL, "%s", message);
    respond_error(x, &err);
}

/* Answers an action that failed. An error without a message means that memory was short. */
static void refuse_action(struct exchange *x, const struct err *err) {
    if (*err->message)
        admin_refuse(x, err->status ? err->status : 400, err->message);
    else
        respond_errno(x, -ENOMEM);
}

static void refuse_path(struct exchange *x) {
    admin_refuse(x, 404, NO_SUCH_PATH);
}

/* Sends @json as a whole answer. NULL means that memory was short. */
static void respond_line(struct exchange *x, const char *json) {
    CLEANUP(buf_deinit) struct buf line = {.max = SIZE_MAX};

    if (!json || buf_add_str(&line, json) < 0 || buf_add_char(&line, '\n') < 0)
        respond_errno(x, -ENOMEM);
    else
        respond(x, 200, RESPOND_JSON, line.data, line.len);
}

static void respond_own(struct exchange *x, char *json) {
    respond_line(x, json);
    free(json);
}

/* Writes an error. The answer to an unknown path lists the paths. */
static void admin_put_error(struct json *j, const struct exchange *x, const struct err *err) {
    const char *message = err->message;

    if (!x->route && err->status == 404)
        message = NO_SUCH_PATH;
    if (!x->route && err->status == 405)
        message = "this path has another method";
    json_print(j, "{error:{message:%s, code:%d}}", message, err->status);
    if (j->error == 0 && !x->stream) /* a line of a stream gets its newline below */
        j->error = buf_add_char(j->out, '\n');
}

/* ---- watching ---- */

/* Answers /stats?watch with a line at each tick of the timer. Freed when the timer is closed. */
struct watch {
    uv_timer_t timer;
    struct exchange *x;
};

static void on_watch_closed(uv_handle_t *h) {
    free(h->data);
}

static void watch_abandon(struct exchange *x, void *state) {
    struct watch *w = state;

    uv_close((uv_handle_t *)&w->timer, on_watch_closed);
}

static void send_watched(struct exchange *x) {
    CLEANUP(freep) char *json = admin_json_stats(opts_of(x));

    assert(x->conn);
    if (!json || conn_unsent(x->conn) > OUT_MAX) {
        conn_break(x->conn);
        return;
    }
    respond_event(x, json, strlen(json));
    conn_flush(x->conn);
}

static void admin_on_watch(uv_timer_t *t) {
    api_mark_loop("an administrator who watches");
    send_watched(((struct watch *)t->data)->x);
}

/* Returns the ms of "1s", "500ms" or a number of seconds; 0 if @text has another form or is out of
 * range. */
static uint64_t parse_interval(const char *text) {
    char *end;
    double v = strtod(text, &end);
    double ms = strcmp(end, "ms") == 0 ? v : v * 1000;

    if (end == text || (*end && strcmp(end, "s") != 0 && strcmp(end, "ms") != 0))
        return 0;
    return ms >= WATCH_MIN_MS && ms <= WATCH_MAX_MS ? (uint64_t)ms : 0;
}

static void watch(struct exchange *x, uint64_t ms) {
    static const struct exchange_ops ops = {.abandon = watch_abandon};
    struct watch *w = calloc(1, sizeof(*w));

    if (!w) {
        respond_errno(x, -ENOMEM);
        return;
    }
    w->x = x;
    exchange_attach(x, &ops, w);
    uv_timer_init(x->server->opts.loop, &w->timer);
    w->timer.data = w;
    uv_timer_start(&w->timer, admin_on_watch, ms, ms);
    respond_stream(x);
    send_watched(x);
}

/* ---- routes ---- */

static void stats_serve(struct exchange *x, struct http *h) {
    const char *query = strchr(http_target(h), '?');
    uint64_t ms = query && strncmp(query, "?watch=", 7) == 0 ? parse_interval(query + 7) : 0;

    if (ms)
        watch(x, ms);
    else if (query && query[1])
        admin_refuse(x, 400, "watch: must be from 100ms to 1h, as in ?watch=1s");
    else
        respond_own(x, admin_json_stats(opts_of(x)));
}

static void requests_serve(struct exchange *x, struct http *h) {
    respond_own(x, admin_json_requests(opts_of(x)));
}

/* Serves GET /requests/ended, with the parameters of api_read_ended(). */
static void ended_serve(struct exchange *x, struct http *h) {
    struct api_ended_filter f;
    struct err err;

    if (api_read_ended(h, &f, &err) < 0) {
        admin_refuse(x, 400, err.message);
        return;
    }
    int r;
    char *text = admin_json_ended(opts_of(x), &f, &r);
    if (r == -ENOENT)
        admin_refuse(x, 404, "no tenant has this name; weftctl tenants lists them");
    else
        respond_own(x, text);
}

static void admin_health_serve(struct exchange *x, struct http *h) {
    respond_own(x, admin_json_health(opts_of(x)));
}

static void tenants_serve(struct exchange *x, struct http *h) {
    respond_own(x, admin_json_tenants(opts_of(x)));
}

static void admin_usage_serve(struct exchange *x, struct http *h) {
    respond_own(x, admin_json_usage(opts_of(x)));
}

/* Returns the index of the model that the path names; < 0: there is none, and the error was
 * sent. */
static int admin_named_model(struct exchange *x) {
    struct err err = {0};
    int i = models_index(opts_of(x)->models, x->arg, &err);

    if (i < 0 && models_rescan(opts_of(x)->models, NULL))
        err_set(&err, 404, NULL,
                "no model is named %.100s so far; the folders of models are being read, try again",
                x->arg);
    if (i < 0)
        admin_refuse(x, 404, err.message);
    return i;
}

static void flight_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf file = {.max = FLIGHT_FILE_MAX};
    struct models_info model;
    int i = x->arg ? admin_named_model(x) : 0;

    if (i < 0)
        return;
    models_info(opts_of(x)->models, (uint32_t)i, &model);
    if (workers_dump(model.workers, &file) < 0)
        respond_errno(x, -ENOMEM);
    else
        respond_taken(x, 200, "application/octet-stream", &file);
}

static void reload_abandon(struct exchange *x, void *state) {
    ((struct admin *)state)->reloading = NULL;
}

static void reload_serve(struct exchange *x, struct http *h) {
    static const struct exchange_ops ops = {.abandon = reload_abandon};
    const struct admin_opts *o = opts_of(x);
    struct admin *a = x->ctx;
    struct err err = {0};

    if (audit_admin(x->client, "reload", NULL, NULL, o->reload(o->ctx, &err), &err) < 0) {
        refuse_action(x, &err);
        return;
    }
    assert(!a->reloading);
    a->reloading = x;
    exchange_attach(x, &ops, a);
}

void admin_reload_over(struct admin *a, const char *const *later, uint32_t n,
                       const struct err *err) {
    CLEANUP(buf_deinit) struct buf b = {.max = OUT_MAX};
    struct exchange *x = STEAL(a->reloading);
    struct json j = {.out = &b};

    if (!x)
        return;
    exchange_detach(x);
    if (!later) {
        refuse_action(x, err);
        return;
    }
    json_print(&j, "{reloaded:true, needs_restart:[");
    for (uint32_t i = 0; i < n; i++)
        json_cstring(&j, later[i]);
    json_print(&j, "]}");
    respond_line(x, j.error < 0 ? NULL : b.data);
}

static void upgrade_abandon(struct exchange *x, void *state) {
    ((struct admin *)state)->upgrading = NULL;
}

static void upgrade_serve(struct exchange *x, struct http *h) {
    static const struct exchange_ops ops = {.abandon = upgrade_abandon};
    const struct admin_opts *o = opts_of(x);
    struct admin *a = x->ctx;
    struct err err = {0};

    if (audit_admin(x->client, "upgrade", NULL, NULL, o->upgrade(o->ctx, &err), &err) < 0) {
        refuse_action(x, &err);
        return;
    }
    assert(!a->upgrading);
    a->upgrading = x;
    exchange_attach(x, &ops, a);
}

void admin_upgrade_over(struct admin *a, int pid, const char *why) {
    struct exchange *x = STEAL(a->upgrading);
    char line[64];

    if (!x)
        return;
    exchange_detach(x);
    snprintf(line, sizeof(line), "{\"upgraded\":true,\"pid\":%d}", pid);
    if (why)
        admin_refuse(x, 500, why);
    else
        respond_line(x, line);
}

static void drain_serve(struct exchange *x, struct http *h) {
    const struct admin_opts *o = opts_of(x);

    audit_admin(x->client, "drain", NULL, NULL, 0, NULL);
    respond_line(x, "{\"draining\":true}");
    o->drain(o->ctx);
}

static void admin_cancel_serve(struct exchange *x, struct http *h) {
    char *end;
    uint64_t id = strtoull(x->arg, &end, 10);

    if (*x->arg < '0' || *x->arg > '9' || *end) {
        refuse_path(x);
    } else if (api_cancel(opts_of(x)->api, id)) {
        audit_admin(x->client, "cancel", x->arg, NULL, 0, NULL);
        respond_line(x, "{\"cancelled\":true}");
    } else {
        admin_refuse(x, 404, "no live request has this id; weftctl requests lists them");
    }
}

/* Serves GET /requests/ID/why, whose argument is a number or an x-request-id. */
static void why_serve(struct exchange *x, struct http *h) {
    char *end;
    uint64_t number = strtoull(x->arg, &end, 10);
    char *text = NULL;

    if (strchr(x->arg, '/')) {
        refuse_path(x);
        return;
    }
    int r = *end ? api_find(opts_of(x)->api, x->arg, &number) : 0;
    bool known = r == 0;
    if (r == -ENOTUNIQ) {
        admin_refuse(
            x, 409,
            "requests of several tenants have this id; use the number that weftctl requests "
            "shows");
        return;
    }
    if (known)
        text = admin_json_why(opts_of(x), number, &known);
    if (known)
        respond_own(x, text);
    else
        admin_refuse(
            x, 404,
            "no recent request with this id reached a worker; weftctl requests lists the live "
            "ones");
}

static void models_serve(struct exchange *x, struct http *h) {
    models_rescan(opts_of(x)->models, NULL); /* so that the next request sees new files */
    respond_own(x, admin_json_models(opts_of(x)));
}

static void answer_change(struct exchange *x, const char *action, const char *file, int r,
                          const struct err *err) {
    if (audit_admin(x->client, action, x->arg, file, r, err) == 0)
        respond_line(x, "{\"accepted\":true}");
    else
        refuse_action(x, err);
}

static void admin_load_serve(struct exchange *x, struct http *h) {
    int i = admin_named_model(x);
    struct err err = {0};

    if (i >= 0)
        answer_change(x, "load", NULL, models_load(opts_of(x)->models, (uint32_t)i, &err), &err);
}

static void unload_serve(struct exchange *x, struct http *h) {
    int i = admin_named_model(x);
    struct err err = {0};

    if (i >= 0)
        answer_change(x, "unload", NULL, models_unload(opts_of(x)->models, (uint32_t)i, &err),
                      &err);
}

static void swap_serve(struct exchange *x, struct http *h) {
    const char *query = strstr(http_target(h), "?file=");
    CLEANUP(freep) char *file = query ? strdup(query + 6) : NULL;
    int i = admin_named_model(x);
    struct err err = {0};

    if (i < 0)
        return;
    if (query && (!file || !http_decode(file) || !*file)) {
        err_set(&err, 0, NULL, "%s", file ? "file: must be the path of a GGUF file" : "");
        refuse_action(x, &err);
        return;
    }
    answer_change(x, "swap", file, models_swap(opts_of(x)->models, (uint32_t)i, file, &err), &err);
}

/* Answers /pull with the lines of weftctl as they arrive. */
struct pulling {
    struct api_task task;
    struct exchange *x;
};

static void pull_abandon(struct exchange *x, void *state) {
    struct pulling *p = state;

    models_manage.cancel(opts_of(x)->models, &p->task);
    free(p);
}

static void on_pull_line(struct api_task *t, const char *json, size_t len) {
    struct exchange *x = CONTAINER_OF(t, struct pulling, task)->x;

    respond_event(x, json, len);
    conn_flush(x->conn);
}

/* Ends the answer after the model is served, so that a client that has read it finds the model. */
static void on_pull_over(struct api_task *t, const struct err *err) {
    struct exchange *x = CONTAINER_OF(t, struct pulling, task)->x;

    free(exchange_detach(x));
    if (err)
        respond_stream_error(x, err);
    else
        respond_stream_end(x);
}

static void pull_serve(struct exchange *x, struct http *h) {
    static const struct exchange_ops ops = {.abandon = pull_abandon};
    const char *query = strstr(http_target(h), "?name=");
    CLEANUP(freep) char *name = strdup(query ? query + 6 : "");
    struct pulling *p = calloc(1, sizeof(*p));
    struct err err = {0};
    int r = -ENOMEM;

    if (p && name && !http_decode(name)) {
        r = err_set(&err, 0, NULL, "name: must be hf:OWNER/REPO[:QUANT], URL-encoded");
    } else if (p && name) {
        p->x = x;
        p->task.line = on_pull_line;
        p->task.over = on_pull_over;
        r = models_manage.pull(opts_of(x)->models, name, &p->task, &err);
        audit_admin(x->client, "pull", name, NULL, r, &err);
    }
    if (r < 0) {
        free(p);
        refuse_action(x, &err);
        return;
    }
    exchange_attach(x, &ops, p);
    respond_stream(x);
    conn_flush(x->conn);
}

static const struct route routes[] = {
    {"/pull", HTTP_POST, .serve = pull_serve},
    {"/models/*/swap", HTTP_POST, .serve = swap_serve},
    {"/models", HTTP_GET, .serve = models_serve},
    {"/models/*/load", HTTP_POST, .serve = admin_load_serve},
    {"/models/*/unload", HTTP_POST, .serve = unload_serve},
    {"/stats", HTTP_GET, .serve = stats_serve},
    {"/requests", HTTP_GET, .serve = requests_serve},
    {"/requests/ended", HTTP_GET, .serve = ended_serve},
    {"/requests/*/cancel", HTTP_POST, .serve = admin_cancel_serve},
    {"/requests/*/why", HTTP_GET, .serve = why_serve},
    {"/health", HTTP_GET, .serve = admin_health_serve},
    {"/tenants", HTTP_GET, .serve = tenants_serve},
    {"/usage", HTTP_GET, .serve = admin_usage_serve},
    {"/flight", HTTP_GET, .serve = flight_serve},
    {"/flight/*", HTTP_GET, .serve = flight_serve},
    {"/reload", HTTP_POST, .serve = reload_serve},
    {"/upgrade", HTTP_POST, .serve = upgrade_serve},
    {"/drain", HTTP_POST, .serve = drain_serve},
    {0},
};

static const struct dialect dialect = {
    .name = "admin",
    .routes = routes,
    .put_error = admin_put_error,
    .stream_type = RESPOND_LINES,
    .event_begin = "",
    .event_end = "\n",
};

/* ---- peers ---- */

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

/* The group that owns the file of the socket that @fd was accepted from. Returns 0 if there is none
 * or root owns it. */
static gid_t admin_group(int fd) {
    struct sockaddr_un at = {0};
    socklen_t len = sizeof(at);
    struct stat st;

    if (getsockname(fd, (struct sockaddr *)&at, &len) < 0 || at.sun_family != AF_UNIX ||
        stat(at.sun_path, &st) < 0)
        return 0;
    return st.st_gid;
}

/* Returns true for root, the daemon's own user, and members of the socket's group, unless the group
 * is root's. */
static bool admin_is_allowed(void *ctx, int fd) {
    struct ucred peer;
    socklen_t len = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return false;
    if (peer.uid == 0 || peer.uid == geteuid())
        return true;
    gid_t group = admin_group(fd);
    return group && (peer.gid == group || in_group(fd, group));
}

/* ---- life ---- */

int admin_listen_unix(struct admin *a, const char *path, struct err *err) {
    return http_server_listen_unix(&a->http, path, err);
}

int admin_listen_fd(struct admin *a, int fd, struct err *err) {
    return http_server_listen_fd(&a->http, fd, false, err);
}

int admin_new(struct admin **out, const struct admin_opts *o) {
    static const struct dialect *const dialects[] = {&dialect, NULL};
    CLEANUP(freep) struct admin *a = calloc(1, sizeof(*a));

    assert(o->health && o->drain && o->reload && o->upgrade);
    if (!a)
        return -ENOMEM;
    a->opts = *o;
    struct http_server_opts h = {
        .loop = o->loop,
        .clock = o->clock,
        .ctx = a,
        .name = "admin-socket",
        .limits = {.target = TARGET_MAX,
                   .head = REQUEST_MAX,
                   .body = REQUEST_MAX,
                   .n_headers = HEADERS_MAX},
        .max_connections = CONNS_MAX,
        .header_timeout_ms = IDLE_MS,
        .body_timeout_ms = IDLE_MS,
        .idle_timeout_ms = IDLE_MS,
        .stall_timeout_ms = IDLE_MS,
        .stream_buffer_bytes = OUT_MAX,
        .max_unsent = OUT_MAX + FLIGHT_FILE_MAX,
        .max_bodies = (size_t)CONNS_MAX * REQUEST_MAX,
        .max_output = (size_t)CONNS_MAX * OUT_MAX,
        .socket_mode = 0660,
        .stream_headers = "",
        .dialects = dialects,
        .accepts = admin_is_allowed,
    };
    int r = http_server_init(&a->http, &h);
    if (r == 0)
        *out = STEAL(a);
    return r;
}

int admin_last_fd(const struct admin *a) {
    return http_server_last_fd(&a->http);
}

void admin_hand_over(struct admin *a) {
    http_server_own_paths(&a->http, false);
    http_server_stop_accepting(&a->http);
}

void admin_own_paths(struct admin *a) {
    http_server_own_paths(&a->http, true);
}

void admin_close(struct admin *a) {
    http_server_close(&a->http, NULL);
}

struct admin *admin_free(struct admin *a) {
    if (a)
        http_server_deinit(&a->http);
    free(a);
    return NULL;
}
