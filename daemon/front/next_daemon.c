#include "daemon/front/next_daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/printable.h"
#include "base/try.h"
#include "base/util.h"
#include "daemon/front/front.h"
#include "daemon/front/service.h"
#include "daemon/upgrade/takeover.h"
#include "engine/engine.h"

static void send_guests(void *ctx, const char *name, int fd) {
    upgrade_send_guests(((struct front *)ctx)->upgrade, name, fd);
}

void next_daemon_offer(struct front *f) {
    if (upgrade_accepts_requests(f->upgrade))
        models_offer(f->models, send_guests);
}

const char *next_daemon_sources(void) {
    static char text[UPGRADE_SOURCES];
    uint8_t sources[20];

    engine_request_sources(sources);
    hex_write(text, sources, sizeof(sources));
    return text;
}

/* Implements upgrade_opts.opened: the next daemon waits for the memory of the device. */
static void on_next_opened(void *ctx) {
    struct front *f = ctx;

    if (!models_hand_over(f->models))
        upgrade_load(f->upgrade);
}

void next_daemon_on_away(void *ctx) {
    upgrade_load(((struct front *)ctx)->upgrade);
}

/* Notes that the workers of this daemon have left the disk tier, or that there is none. */
static void on_disk_left(void *ctx) {
    struct front *f = ctx;

    upgrade_commit(f->upgrade);
}

/* Lets the next daemon, which is ready, take over. If it has the device, it must have taken all
 * requests before, because this daemon cannot continue them. */
static void next_daemon_let_go(struct front *f) {
    if (f->gave_way && models_asked(f->models, WORKERS_ASKED) > 0)
        return;
    if (f->gave_way && models_asked(f->models, WORKERS_REFUSED) > 0)
        upgrade_fail(f->upgrade, "its models, options or device would give the running requests "
                                 "other tokens; restart weftd instead");
    else
        models_release_disk(f->models, on_disk_left);
}

/* Implements upgrade_opts.ready. */
static void on_next_ready(void *ctx) {
    struct front *f = ctx;

    next_daemon_offer(f);
    next_daemon_let_go(f);
}

void next_daemon_on_answer(void *ctx) {
    struct front *f = ctx;

    if (f->handed_over)
        models_move(f->models);
    else if (f->gave_way && upgrade_state(f->upgrade) == UPGRADE_READY)
        next_daemon_let_go(f);
}

/* Implements upgrade_opts.taken. */
static void on_next_taken(void *ctx, int pid) {
    struct front *f = ctx;

    log_event(WLOG_INFO, "upgraded", "pid=%d", pid);
    admin_upgrade_over(f->admin, pid, NULL);
    kept_hand_over(f->kept);
    service_hand_over(pid);
    f->handed_over = true;
    listeners_hand_over(&f->listeners);
    kv_events_close(f->kv_events);
    models_move(f->models);
    front_start_drain(f);
}

/* Implements upgrade_opts.failed. */
static void on_next_failed(void *ctx, const char *why) {
    struct front *f = ctx;

    f->gave_way = false;
    models_come_back(f->models);
    models_use_disk(f->models);
    log_event(WLOG_ERROR, "upgrade_failed", "reason=%s", quoted(why).s);
    admin_upgrade_over(f->admin, 0, why);
}

/* Checks that the next daemon can run beside this one now. Returns 0, or -EINVAL with @err. */
static int check_upgrade(struct front *f, struct err *err) {
    const char *changing = models_changing(f->models);

    if (!changing && models_device(f->models))
        changing = models_loading(f->models);

    if (f->draining || !f->was_ready || takeover_is_pending())
        return err_set(err, 0, "", "the daemon is %s", f->draining ? "ending" : "starting");
    if (takeover_has_old())
        return err_set(err, 0, "", "the previous daemon still finishes its requests; try later");
    if (getpid() == 1)
        return err_set(err, 0, "", "process 1 cannot be replaced; start a new container");
    return changing ? err_set(err, 0, "", "%s; try again when that is over", changing) : 0;
}

/* Returns the path of the program of this process. An upgrade replaces the file, and Linux marks
 * the path of a replaced file as deleted. */
static char *program_of(const struct front *f) {
    static const char deleted[] = " (deleted)";
    static char path[4096];
    ssize_t n = 0;

    if (strchr(f->argv[0], '/'))
        return f->argv[0];
    n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[MAX(n, 0)] = 0;
    char *end = path + MAX(n - (ssize_t)strlen(deleted), 0);
    if (strcmp(end, deleted) == 0)
        *end = 0;
    return path;
}

/* Implements the callback of kept_pass(). */
static int next_daemon_add_file(void *files, int fd, const char *name) {
    return upgrade_add(files, fd, name, NULL);
}

static int start_program(struct front *f, struct err *err) {
    CLEANUP(freep) struct upgrade_files *files = calloc(1, sizeof(*files));

    if (!files)
        return -ENOMEM;
    TRY(check_upgrade(f, err));
    TRY(listeners_pass(&f->listeners, files));
    TRY(kept_pass(f->kept, next_daemon_add_file, files));
    f->argv[0] = program_of(f);
    f->gave_way = models_device(f->models) != NULL;
    return upgrade_start(f->upgrade, f->argv, files, f->config.load_timeout_ms, f->gave_way, err);
}

int next_daemon_start(void *front, struct err *err) {
    struct front *f = front;
    int r = start_program(f, err);

    if (r < 0 && !*err->message)
        err_set(err, 0, "", "the next daemon cannot be started: %s", strerror(-r));
    log_event(r < 0 ? WLOG_ERROR : WLOG_INFO, r < 0 ? "upgrade_failed" : "upgrade_started", "%s=%s",
              r < 0 ? "reason" : "program", quoted(r < 0 ? err->message : f->argv[0]).s);
    return r;
}

int next_daemon_new(struct front *f) {
    const struct upgrade_opts o = {
        .loop = &f->loop,
        .ctx = f,
        .sources = next_daemon_sources(),
        .opened = on_next_opened,
        .ready = on_next_ready,
        .taken = on_next_taken,
        .failed = on_next_failed,
    };

    return upgrade_new(&f->upgrade, &o);
}
