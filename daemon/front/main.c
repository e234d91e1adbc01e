/*
 * main - wires the front process: options, model file, API, worker, service life. With --worker as
 * its first argument the same executable is the worker process (daemon/worker/worker.c).
 *
 * The front opens all parts, listens, starts the worker and serves. SIGTERM or SIGINT drains: no
 * new connections are accepted, streams may finish until drain-timeout-ms, and CLOSE_MS later the
 * process ends in any case, from LATE_MS on without its threads: a file may never answer. A second
 * signal stops at once. SIGHUP reloads the options that can be reloaded and names the others.
 * SIGUSR2 starts the next daemon (upgrade.h), which takes over while this one finishes its
 * requests. While the parts are opened, which takes seconds, SIGHUP and SIGUSR2 wait, and SIGTERM
 * and SIGINT end the process.
 */

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/try.h"
#include "base/version.h"
#include "daemon/config/tenants.h"
#include "daemon/front/args.h"
#include "daemon/front/audit.h"
#include "daemon/front/check.h"
#include "daemon/front/deadline.h"
#include "daemon/front/device_nodes.h"
#include "daemon/front/front.h"
#include "daemon/front/next_daemon.h"
#include "daemon/front/picture_decoder.h"
#include "daemon/front/process.h"
#include "daemon/front/reload.h"
#include "daemon/front/service.h"
#include "daemon/models/kvdisk.h"
#include "daemon/models/models_find.h"
#include "daemon/upgrade/takeover.h"
#include "daemon/worker/sigbus.h"
#include "daemon/worker/worker.h"
#include "engine/engine.h"
#include "vision/decoder.h"

#define FILES_KEPT 128      /* descriptors reserved for everything except clients */
#define FILES_OF_MODEL 6    /* open files of each model after the first */
#define LEAVE_NS 1000000000 /* time for requests that are on their way when the drain begins */
#define CLOSE_MS 5000       /* time for all parts to end once they have been told to */
#define LATE_MS 4000 /* time for threads to end, after which the state is saved without them */

static struct front *the_front(uv_handle_t *h) {
    return h->loop->data;
}

/* Returns true for errors that may be gone when the service manager tries again. */
static bool is_temporary(int r) {
    static const int codes[] = {EADDRINUSE, EADDRNOTAVAIL, ENOMEM, ENOBUFS, EMFILE,
                                ENFILE,     EAGAIN,        EIO,    ENOSPC};

    for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
        if (r == -codes[i])
            return true;
    return false;
}

/* Prints the reason of a refusal in one line, with the line of the file that set the option, and
 * reports it to the previous daemon, if there is one. Returns the exit code. */
static int front_fail(const struct front *f, struct err *err, int r) {
    char plain[200];
    const char *why = *err->message ? err->message : plain;

    config_add_place(&f->config, err);
    snprintf(plain, sizeof(plain), "cannot start: %s%s", strerror(-r),
             r == -EAGAIN ? " (a limit on processes, threads or memory may be reached: ulimit "
                            "-u, ulimit -v, TasksMax=)"
                          : "");
    fprintf(stderr, "weftd: %s\n", printable(why).s);
    takeover_failed(why);
    return is_temporary(r) ? EXIT_AGAIN : EXIT_CONFIG;
}

/* ---- stopping ---- */

/* Stops waiting for the parts. While a transaction is under way, only the deadline does. */
static void front_on_late(uv_timer_t *t) {
    struct front *f = the_front((uv_handle_t *)t);

    api_mark_loop("the end of the daemon");
    if (!api_can_save_state(f->api))
        return;
    f->gave_up = true;
    uv_stop(&f->loop);
}

/* Ends all parts at once; then the loop has nothing left to run and front_serve() returns. */
static void front_close_all(struct front *f) {
    if (f->closing)
        return;
    f->closing = true;
    deadline_set(CLOSE_MS, f->exit_code);
    uv_timer_start(&f->late, front_on_late, LATE_MS, LATE_MS / 40);
    upgrade_close(f->upgrade);
    takeover_close();
    api_close(f->api);
    admin_close(f->admin);
    models_stop(f->models);
    kv_events_close(f->kv_events);
    service_watchdog_stop();
    uv_close((uv_handle_t *)&f->term, NULL);
    uv_close((uv_handle_t *)&f->interrupt, NULL);
    uv_close((uv_handle_t *)&f->hup, NULL);
    uv_close((uv_handle_t *)&f->usr2, NULL);
    uv_close((uv_handle_t *)&f->drain, NULL);
}

/* Returns true while requests on accepted connections are still served: a client, or a proxy, may
 * have sent one before it saw that the listeners are closed. */
static bool is_leaving(struct front *f) {
    struct api_stats s;

    api_stats(f->api, &s);
    return s.n_connections && clock_now(clock_monotonic()) < f->leave_ends_ns;
}

/* Returns true while requests run, also in the previous daemon, which would end with this process's
 * group. */
static bool front_is_busy(struct front *f) {
    return api_busy(f->api) || takeover_has_old();
}

static void on_drain_tick(uv_timer_t *t) {
    struct front *f = the_front((uv_handle_t *)t);

    api_mark_loop("the end of the daemon");
    if (f->handed_over)
        next_daemon_offer(f); /* offers the requests of models that had none before */
    if (is_leaving(f))
        return;
    if (!f->handed_over) /* after a hand-over the next daemon serves, and no request is refused */
        api_drain(f->api);
    if (!front_is_busy(f) || clock_now(clock_monotonic()) >= f->drain_ends_ns) {
        log_event(WLOG_INFO, "stopped", "drained=%s", api_busy(f->api) ? "no" : "yes");
        front_close_all(f);
    }
}

/* Gives running requests @ms to end. */
static void limit_drain(struct front *f, uint32_t ms) {
    log_event(WLOG_INFO, "draining", "limit_ms=%u", ms);
    f->drain_ends_ns = clock_now(clock_monotonic()) + (int64_t)ms * 1000000;
    deadline_set(ms + CLOSE_MS, f->exit_code);
}

void front_start_drain(struct front *f) {
    assert(!f->draining);
    f->draining = true;
    int64_t now = clock_now(clock_monotonic());
    f->leave_ends_ns = now + LEAVE_NS;
    f->drain_ends_ns = INT64_MAX;
    if (!f->handed_over)
        limit_drain(f, f->config.drain_timeout_ms);
    else if (f->config.upgrade_timeout_ms > 0) /* 0: its end does not delay the next daemon */
        limit_drain(f, f->config.upgrade_timeout_ms);
    upgrade_stop(f->upgrade);
    service_stopping();
    service_status("draining");
    api_stop_accepting(f->api);
    if (!f->handed_over && !listeners_managed(&f->listeners, false))
        api_drain(f->api);
    uv_timer_start(&f->drain, on_drain_tick, 0, 20);
}

static void on_stop_signal(uv_signal_t *s, int signum) {
    struct front *f = the_front((uv_handle_t *)s);

    audit_signal(f->draining ? "stop" : "drain");
    if (takeover_is_pending() || (f->draining && f->drain_ends_ns != INT64_MAX))
        front_close_all(f);
    else if (f->draining)
        limit_drain(f, f->config.drain_timeout_ms);
    else
        front_start_drain(f);
}

/* Returns the state for the admin socket: one of the words that admin.h lists. */
static const char *health_word(void *front) {
    static const char *const words[] = {
        [API_STARTING] = "starting", [API_SERVING] = "serving",   [API_REPLACING] = "replacing",
        [API_FAILED] = "failed",     [API_DRAINING] = "draining",
    };
    struct front *f = front;

    return words[f->draining ? API_DRAINING : api_health(f->api)];
}

static void drain_from_admin(void *front) {
    struct front *f = front;

    if (!f->draining)
        front_start_drain(f);
}

static void on_hup(uv_signal_t *s, int signum) {
    audit_signal("reload");
    reload_for_signal(the_front((uv_handle_t *)s));
}

static void on_usr2(uv_signal_t *s, int signum) {
    struct err err = {0};

    audit_signal("upgrade");
    next_daemon_start(the_front((uv_handle_t *)s), &err);
}

/* ---- starting ---- */

/* Implements models_opts.on_ready, and serves from then on; also called by on_commit(). */
static void serve_from_now(struct front *f) {
    struct models_info first;
    struct err err = {0};
    char line[400];
    int r = listeners_open_given(&f->listeners, &err);

    if (r < 0) {
        f->exit_code = front_fail(f, &err, r);
        front_start_drain(f);
        return;
    }
    f->was_ready = true;
    api_set_health(f->api, API_SERVING);
    models_info(f->models, 0, &first);
    if (models_n(f->models) == 1)
        snprintf(f->status, sizeof(f->status), "serving %.200s on %.100s", first.name,
                 f->listeners.url);
    else
        snprintf(f->status, sizeof(f->status), "serving %u models on %.100s", models_n(f->models),
                 f->listeners.url);
    service_status(f->status);
    service_ready();
    snprintf(line, sizeof(line), "ready %s\n", f->listeners.url);
    if (f->config.log_format == LOG_JSON)
        log_event(WLOG_NOTICE, "ready", "url=%s", quoted(f->listeners.url).s);
    else
        log_line(line);
}

/* Implements models_opts.on_ready. */
static void front_on_ready(void *ctx) {
    struct front *f = ctx;

    if (takeover_is_pending())
        takeover_ready();
    else if (!f->draining)
        serve_from_now(f);
}

/* Implements takeover_opts.main. */
static void on_main(void *ctx) {
    struct front *f = ctx;

    service_release();
    kept_announce(f->kept);
    service_watchdog_start(&f->loop);
    if (!f->was_ready)
        return;
    service_status(f->draining ? "draining" : f->status);
    service_ready();
}

/* Implements takeover_opts.commit. */
static void on_commit(void *ctx) {
    struct front *f = ctx;

    models_use_disk(f->models);
    serve_from_now(f);
    if (f->draining)
        return;
    listeners_own_paths(&f->listeners);
    takeover_taken();
    if (f->kv_events)
        kv_events_bind(f->kv_events);
}

/* Implements takeover_opts.load. */
static void on_load(void *ctx) {
    struct front *f = ctx;
    struct err err = {0};
    int r = models_start(f->models);

    if (r < 0) {
        f->exit_code = front_fail(f, &err, r);
        front_close_all(f);
    }
}

/* Implements takeover_opts.guests. */
static void on_guests(void *ctx, const char *name, int fd) {
    models_accept_guests(((struct front *)ctx)->models, name, fd);
}

/* Implements takeover_opts.gone. */
static void on_old_gone(void *ctx) {
    struct front *f = ctx;

    if (!takeover_is_pending())
        return;
    f->exit_code = EXIT_AGAIN;
    front_close_all(f);
}

static void front_on_refused(void *ctx, const char *why, int r) {
    struct front *f = ctx;
    struct err err;

    err_set(&err, 0, NULL, "%.150s: %.240s", f->config.model, why);
    f->exit_code = front_fail(f, &err, r);
    front_close_all(f);
}

/* Returns the number of kinds of sockets, TCP and UNIX, over which clients may come according to
 * the options: each kind has max-connections places. */
static uint32_t kinds_of_sockets(const struct front *f) {
    bool tcp = false, local = false;

    for (char *const *l = f->config.listen; *l; l++) {
        local |= strncmp(*l, "unix:", 5) == 0;
        tcp |= strncmp(*l, "unix:", 5) != 0;
    }
    return local && tcp ? 2 : 1;
}

/* Limits connections to the number of available descriptors. A client can be refused, but a worker
 * that dies when no descriptor is left could not be replaced. */
static void limit_connections(struct front *f) {
    uint32_t n_kinds = kinds_of_sockets(f);
    rlim_t kept = FILES_KEPT + FILES_OF_MODEL * models_n(f->models);
    rlim_t wanted = (rlim_t)f->config.api.max_connections * n_kinds + kept;
    struct rlimit files;

    f->max_connections = f->config.api.max_connections;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur >= wanted)
        return;
    rlim_t had = files.rlim_cur;
    files.rlim_cur = MIN(wanted, files.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &files) < 0)
        files.rlim_cur = had;
    if (files.rlim_cur >= wanted)
        return;
    kept = MIN(kept, files.rlim_cur / 2);
    f->max_connections = (uint32_t)MAX((files.rlim_cur - kept) / n_kinds, (rlim_t)1);
    log_event(WLOG_WARN, "connections_limited", "max_connections=%u open_files=%llu",
              f->max_connections, (unsigned long long)files.rlim_cur);
}

/* Writes the path of the file @name in the folder that systemd gives to @out, unless @own, an
 * option, is set. Returns the path. NULL: there is no such folder either. */
static const char *state_path(const char *own, const char *name, char *out, size_t size) {
    char folder[PATH_MAX - NAME_MAX];

    if (*own)
        return own;
    if (!files_state_folder(folder, sizeof(folder)))
        return NULL;
    snprintf(out, size, "%s/%s", folder, name);
    return out;
}

static int open_api(struct front *f) {
    const struct config *c = &f->config;
    struct api_opts o = c->api;

    o.max_connections = f->max_connections;
    o.api_keys_file = *c->api_keys ? c->api_keys : NULL;
    o.state_file = state_path(c->state_file, "state.db", f->state_path, sizeof(f->state_path));
    o.usage_file = state_path(c->usage_file, "usage", f->usage_path, sizeof(f->usage_path));
    o.hosts = (const char *const *)c->hosts;
    o.cors_origins = (const char *const *)c->cors_origins;
    o.beside = takeover_is_pending();
    o.owned_by = "weft";
    o.digests = c->engine.digest;
    o.share_secret = f->disk_fd >= 0 ? f->share_secret : NULL;
    o.models_ctx = f->models;
    o.model_bytes = models_bytes_at_start(f->models);
    o.managers = (const char *const *)c->allow_pull;
    o.sleep = models_sleep;
    o.decode = picture_decoder_run;
    o.picture_fetch =
        (struct picture_fetch_opts){(const char *const *)c->picture_hosts, picture_fetch_is_public};
    if (*c->models || *c->models_dir) {
        o.rescan = models_rescan;
        o.manage = &models_manage;
    }
    return models_open_api(f->models, &o, &f->api);
}

static int open_listeners(struct front *f, struct err *err) {
    f->listeners.api = f->api;
    f->listeners.admin = f->admin;
    return listeners_open(&f->listeners, err);
}

static int start_signal(struct front *f, uv_signal_t *s, uv_signal_cb cb, int signum) {
    uv_signal_init(&f->loop, s);
    return uv_signal_start(s, cb, signum);
}

/* Opens the resources that outlive this process: inherited sockets, kept weights, the disk tier, KV
 * events. Returns 0 or -errno with @err. */
static int open_stores(struct front *f, struct err *err) {
    const struct kept_opts kept = {service_store_fd, service_forget};
    const struct kv_events_opts k = {
        .loop = &f->loop,
        .endpoint = f->config.kv_events,
        .replay = f->config.kv_events_replay,
        .topic = f->config.kv_events_topic,
        .later = takeover_is_pending(),
    };

    f->disk_fd = -1;
    f->listeners.config = &f->config;
    TRY(kept_new(&f->kept, &kept));
    if (takeover_is_pending()) {
        service_hold();
        kept_hold(f->kept);
    }
    TRY(listeners_inherit(&f->listeners, f->kept, err));
    if (*f->config.kv_disk)
        TRY(kvdisk_open(f->config.kv_disk, !takeover_is_pending(), &f->disk_fd, f->share_secret,
                        err));
    if (*k.endpoint)
        TRY(kv_events_new(&f->kv_events, &k, err));
    f->config.api.kv_events = kv_events_counts(f->kv_events);
    f->config.api.on_salt = f->kv_events ? kv_events_salt : NULL;
    f->config.api.salt_ctx = f->kv_events;
    return 0;
}

static int open_models(struct front *f, struct err *err) {
    const struct models_opts o = {
        .loop = &f->loop,
        .config = &f->config,
        .clock = clock_monotonic(),
        .kept = f->kept,
        .kv_events = f->kv_events,
        .disk_fd = f->disk_fd,
        .ctx = f,
        .on_ready = front_on_ready,
        .on_refused = front_on_refused,
        .on_away = next_daemon_on_away,
        .on_answer = next_daemon_on_answer,
        .beside = takeover_is_pending(),
        .waits = takeover_waits(),
    };

    TRY(models_new(&f->models, &o));
    return models_open(f->models, err);
}

static int front_open_admin(struct front *f) {
    const struct admin_opts o = {
        .loop = &f->loop,
        .api = f->api,
        .models = f->models,
        .clock = clock_monotonic(),
        .started_ns = clock_now(clock_monotonic()),
        .ctx = f,
        .health = health_word,
        .url = f->listeners.url,
        .drain = drain_from_admin,
        .reload = reload_for_admin,
        .upgrade = next_daemon_start,
    };

    return admin_new(&f->admin, &o);
}

/* Opens all parts in the order of their dependence and starts the first worker. Returns 0 or -errno
 * with @err. */
static int open_front(struct front *f, struct err *err) {
    const struct takeover_opts t = {
        .loop = &f->loop,
        .ctx = f,
        .load = on_load,
        .commit = on_commit,
        .main = on_main,
        .guests = on_guests,
        .gone = on_old_gone,
    };

    TRY(open_stores(f, err));
    TRY(open_models(f, err));
    limit_connections(f);
    TRY(open_api(f));
    TRY(takeover_start(&t));
    TRY(next_daemon_new(f));
    TRY(front_open_admin(f));
    TRY(reload_first(f, err));
    TRY(open_listeners(f, err));
    start_signal(f, &f->term, on_stop_signal, SIGTERM);
    start_signal(f, &f->interrupt, on_stop_signal, SIGINT);
    uv_timer_init(&f->loop, &f->drain);
    uv_timer_init(&f->loop, &f->late);
    uv_unref((uv_handle_t *)&f->late);
    if (!takeover_is_pending())
        service_watchdog_start(&f->loop);
    service_status("loading the model");
    if (!takeover_waits())
        return models_start(f->models);
    takeover_opened();
    return 0;
}

static void free_front(struct front *f) {
    upgrade_free(f->upgrade);
    admin_free(f->admin);
    api_free(f->api);
    picture_decoder_stop();
    models_free(f->models);
    kept_free(f->kept);
    kv_events_free(f->kv_events);
    uv_loop_close(&f->loop);
    config_deinit(&f->config);
}

/* Opens the loop, the signals and all that serves. */
static int start_front(struct front *f, struct err *err) {
    TRY(uv_loop_init(&f->loop));
    f->loop.data = f;
    TRY(process_make_ready());
    TRY(start_signal(f, &f->hup, on_hup, SIGHUP));
    TRY(start_signal(f, &f->usr2, on_usr2, SIGUSR2));
    return open_front(f, err);
}

/* Runs the front after its options were read. Returns the exit code. */
static int front_serve(struct front *f) {
    const char *backend = f->config.engine.backend;
    struct err err = {0};

    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* the log or the state may reach a limit on sizes of files */
    log_init(config_log_level(&f->config), "front");
    log_set_format(f->config.log_format);
    if (strcmp(backend, "auto") == 0 || strcmp(backend, "cuda") == 0)
        device_nodes_make(&device_nodes_system);
    int r = start_front(f, &err);
    if (r < 0)
        return front_fail(f, &err, r); /* the process ends, so the system closes everything */
    uv_run(&f->loop, UV_RUN_DEFAULT);
    r = f->exit_code;
    if (f->api && api_save_state(f->api) < 0 && r == 0)
        r = EXIT_AGAIN;
    if (f->gave_up) {
        log_event(WLOG_WARN, "stopped", "at_limit=yes");
        quick_exit(r); /* as threads may use what exit() would free */
    }
    uv_close((uv_handle_t *)&f->late, NULL);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    free_front(f);
    return r;
}

/* Reads and checks the options and the files that they name. */
static int front_read_options(struct front *f, struct err *err) {
    CLEANUP(freep) struct api_tenant *rows = NULL;
    uint32_t n_rows;

    TRY(config_init(&f->config));
    TRY(args_read(&f->config, f->argc, f->argv, stderr, err));
    TRY(config_check(&f->config, err));
    TRY(api_check_otlp(f->config.api.otlp_endpoint, err));
    TRY(picture_fetch_check_hosts((const char *const *)f->config.picture_hosts, err));
    if (!*f->config.tenants)
        return 0;
    return process_name_key(tenants_read(f->config.tenants, &rows, &n_rows, err), "tenants", err);
}

static int front_version(void) {
    char cuda[500];

    engine_describe_cuda(cuda, sizeof(cuda));
    version_print("weftd", cuda);
    return !files_flush();
}

/* Options of jemalloc. By default, what free() joins to 8 MB or more returns to the system at once,
 * in the thread that frees, and the next large body is paged in anew. Here a thread of jemalloc
 * returns what is not used again, ten to twenty seconds later. */
extern const char *malloc_conf;
const char *malloc_conf = "oversize_threshold:0,background_thread:true,max_background_threads:1";

int main(int argc, char **argv) {
    static struct front f;
    struct err err = {0};

    files_open_standard();
    process_forbid_cores();
    if (argc > 1 && strcmp(argv[1], WORKER_FLAG) == 0)
        return worker_main(argc, argv);
    if (argc == 2 && strcmp(argv[1], DECODER_FLAG) == 0)
        return decoder_main();
    files_find_certificates();
    /* ignored until there is a handler, because nothing has been read yet */
    signal(SIGHUP, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    takeover_begin(next_daemon_sources());
    if (process_consume_flag(&argc, argv, "--help") || process_consume_flag(&argc, argv, "-h"))
        return config_help(stdout), !files_flush();
    if (process_consume_flag(&argc, argv, "--print-config"))
        return config_print(stdout), !files_flush();
    if (process_consume_flag(&argc, argv, "--version") || process_consume_flag(&argc, argv, "-V"))
        return front_version();
    sigbus_exit_with(EXIT_AGAIN, "weftd: model: the file was cut off while it was read\n");
    bool check = process_consume_flag(&argc, argv, "--check-config");
    f.argc = argc;
    f.argv = argv;
    int r = front_read_options(&f, &err);
    if (r < 0)
        return front_fail(&f, &err, r);
    if (!check)
        return front_serve(&f);
    r = check_start(&f.config, &err);
    if (r < 0)
        return front_fail(&f, &err, r);
    return !files_flush();
}
