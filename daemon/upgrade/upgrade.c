/*
 * upgrade - the old daemon's side of an upgrade without a pause: it starts the next daemon, talks
 * to it over a socket pair, and hands over when the next one is ready. upgrade.h has the messages
 * and the diagrams of states; takeover.c is the other side, main.c has the callbacks.
 *
 * Any process that has the listening socket can accept connections. So the next daemon inherits the
 * sockets, loads its models while the old one serves, and accepts only when the old one has stopped
 * accepting. At every moment exactly one of them accepts; a client that connects in between waits
 * in the socket's queue. The daemons share only the few messages of upgrade.h, so their versions
 * may differ.
 *
 *     old   serves ................................ stops accepting | ends its requests, exits
 *     new        reads configuration, loads models .... ready       | accepts, serves ...
 *                "started"                           "ready" "take" "taken"
 *
 * Until "taken" the upgrade can fail at every point without effect: the old daemon kills the next
 * one, takes back what it released (on_next_failed()) and continues to serve. Therefore the file of
 * kv-disk, which only one process may have, is released in opts.ready(), as late as possible. The
 * role of the service's main process could not be taken back, because systemd accepts notifications
 * only from the process that has it, and ends the service with that process. So it is passed on in
 * opts.taken(), with the descriptors that the service manager stores.
 *
 * Trust. The program at the path of this one may be a later version, one without upgrades, or a
 * broken file. So only the messages count, each state has a time limit, and a process that exceeds
 * one or sends an unexpected message is killed. It may also have daemonized: a weftd leaves its
 * parent at once (takeover_begin()), because a service manager learns only of the end of its own
 * children. The first process then ends with status 0, which is no failure. From "started" on the
 * pid is that of the process that sent it, according to the kernel (SCM_CREDENTIALS). The next
 * daemon has ended when the channel ends, not when a process ends.
 *
 * Devices. Two workers share the packed weights of the CPU backend (kept.h), so both daemons can be
 * loaded at the same time. The memory of a CUDA device does not hold the weights twice. So the next
 * daemon stops before loading ("opened"), the old one ends its workers while their requests wait,
 * and only then the next one loads ("load"). Since the old workers are gone, the requests have to
 * move to the next daemon, so this works only between daemons with the same engine sources.
 *
 * Requests under way stay with the old front, which holds their connections, and are computed by
 * the next daemon's worker where it gives the same tokens: for each model the old front hands over
 * a socket ("guests MODEL"), over which it speaks to the next daemon as to a worker (guests.h,
 * workers_away.c). Otherwise the old worker finishes them. The old daemon exits after its last
 * request.
 */

#include "daemon/upgrade/upgrade.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "api/api.h"
#include "base/log.h"
#include "base/text.h"

#define HELLO_MS 10000 /* time limit for "started", before which nothing is loaded */
/* time limit for opts.ready(), more than closing the disk tier takes (models_disk.c) */
#define READY_MS 20000
#define TAKE_MS 10000 /* time limit for "taken" */

/* Invariants (upgrade_check()): from STARTED to TAKEN the channel is open; after STARTED the pid is
 * known; OPENED and LOADING occur only if the next daemon waits. IDLE: the poll and the process may
 * still be closing. */
struct upgrade {
    struct upgrade_opts opts;
    enum upgrade_state state;
    /* the process that upgrade_start() started */
    uv_process_t process;
    /* watches the channel */
    uv_poll_t poll;
    uv_timer_t limit;
    bool process_open, poll_open;
    bool waits, takes_requests;
    int channel;
    /* process that sent "started"; 0: none yet */
    int pid;
    uint32_t limit_ms;
};

static void upgrade_check(const struct upgrade *u) {
    assert(u->state == UPGRADE_IDLE || u->poll_open);
    assert(u->state <= UPGRADE_STARTED || u->pid > 1);
    assert((u->state != UPGRADE_OPENED && u->state != UPGRADE_LOADING) || u->waits);
}

static void upgrade_say(int channel, const char *text) {
    if (send(channel, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        log_event(WLOG_DEBUG, "upgrade_channel", "error=\"%s\"", strerror(errno));
}

/* Returns true if the other side has closed the channel. */
static bool has_ended(int channel) {
    struct pollfd p = {.fd = channel};

    return poll(&p, 1, 0) > 0 && (p.revents & POLLHUP);
}

/* Reads one message; an empty @text means that the other side has ended, "?" that it sent a message
 * without text. *pid: the process that sent it; 0: its number is not visible here. Returns false if
 * no message has arrived. */
static bool upgrade_hear(int channel, char text[UPGRADE_MESSAGE_MAX + 1], int *pid) {
    struct ucred from = {0};
    union {
        struct cmsghdr head;
        /* too small for descriptors, so none is taken over */
        char room[CMSG_SPACE(sizeof(from))];
    } control;
    struct iovec part = {text, UPGRADE_MESSAGE_MAX};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(channel, &m, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    const struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS)
        memcpy(&from, CMSG_DATA(c), sizeof(from));
    *pid = from.pid;
    text[MAX(n, 0)] = 0;
    if (n >= 0 && !*text && !has_ended(channel))
        strcpy(text, "?");
    return true;
}

int upgrade_new(struct upgrade **out, const struct upgrade_opts *o) {
    struct upgrade *u = calloc(1, sizeof(*u));

    assert(o->ready && o->taken && o->failed);
    if (!u)
        return -ENOMEM;
    u->opts = *o;
    uv_timer_init(o->loop, &u->limit);
    u->limit.data = u;
    *out = u;
    return 0;
}

enum upgrade_state upgrade_state(const struct upgrade *u) {
    return u->state;
}

int upgrade_add(struct upgrade_files *f, int fd, const char *name, const char *value) {
    size_t room = sizeof(f->names) - f->len;
    int n =
        snprintf(f->names + f->len, room, "%s%s%s\n", name, value ? "=" : "", text_or(value, ""));

    if (f->n == UPGRADE_FDS_MAX || (size_t)n >= room || (value && strchr(value, '\n'))) {
        f->names[f->len] = 0;
        return -E2BIG;
    }
    f->len += (size_t)n;
    f->fd[f->n++] = fd;
    return 0;
}

static void on_channel_closed(uv_handle_t *h) {
    struct upgrade *u = h->data;

    if (u->state !=
        UPGRADE_TAKEN) /* after TAKEN the new daemon waits for the end of this process */
        close(u->channel);
    u->poll_open = false;
}

static void close_channel(struct upgrade *u) {
    uv_timer_stop(&u->limit);
    if (u->poll_open && !uv_is_closing((uv_handle_t *)&u->poll))
        uv_close((uv_handle_t *)&u->poll, on_channel_closed);
}

/* Kills the process that was started, and the daemon that detached from it. */
static void kill_next(struct upgrade *u) {
    if (u->process_open && uv_is_active((uv_handle_t *)&u->process))
        uv_process_kill(&u->process, SIGKILL);
    if (u->pid > 0 && u->poll_open) /* while the channel is open, no other process has the number */
        kill(u->pid, SIGKILL);
}

void upgrade_fail(struct upgrade *u, const char *why) {
    assert(u->state != UPGRADE_IDLE && u->state != UPGRADE_TAKEN);
    kill_next(u);
    close_channel(u);
    u->state = UPGRADE_IDLE;
    u->opts.failed(u->opts.ctx, why);
}

/* Returns which limit of time the next daemon, or this one, has exceeded. */
static const char *upgrade_late(const struct upgrade *u) {
    if (!u->pid)
        return "it did not answer within 10 s; is the installed program a weftd that supports "
               "upgrades?";
    switch (u->state) {
    case UPGRADE_STARTED:
    case UPGRADE_LOADING:
        return "it was not ready within load-timeout-ms";
    case UPGRADE_TAKING:
        return "it was ready but did not take over within 10 s";
    default:
        return "this daemon could not release what the next one needs in time";
    }
}

static void on_limit(uv_timer_t *t) {
    struct upgrade *u = t->data;

    api_mark_loop("an upgrade");
    upgrade_check(u);
    upgrade_fail(u, upgrade_late(u));
}

static void on_started(struct upgrade *u, int pid, const char *sources) {
    u->pid = pid;
    u->takes_requests = strcmp(sources, u->opts.sources) == 0;
    uv_timer_start(&u->limit, on_limit, u->limit_ms, 0);
    if (u->waits && !u->takes_requests)
        upgrade_fail(u, "two workers cannot share a device, and a daemon of another version cannot "
                        "continue the running requests; restart weftd instead");
}

/* Handles the message @text of process @from. */
static void upgrade_on_message(struct upgrade *u, const char *text, int from) {
    upgrade_check(u);
    char sources[UPGRADE_SOURCES] = "";
    enum upgrade_state before = u->waits ? UPGRADE_LOADING : UPGRADE_STARTED;

    if (u->state == UPGRADE_STARTED && !u->pid && strncmp(text, "started ", 8) == 0 && from > 1) {
        sscanf(text, "started %*s %40s", sources);
        on_started(u, from, sources);
    } else if (u->state == UPGRADE_STARTED && u->pid && u->waits && strcmp(text, "opened") == 0) {
        u->state = UPGRADE_OPENED;
        uv_timer_start(&u->limit, on_limit, READY_MS, 0);
        u->opts.opened(u->opts.ctx);
    } else if (u->state == before && u->pid && strcmp(text, "ready") == 0) {
        u->state = UPGRADE_READY;
        /* Waits longer if the next daemon loads models for the requests, because this one has
         * released the device for it. */
        uv_timer_start(&u->limit, on_limit, u->waits ? MAX(READY_MS, u->limit_ms) : READY_MS, 0);
        u->opts.ready(u->opts.ctx);
    } else if (u->state == UPGRADE_TAKING && strcmp(text, "taken") == 0) {
        u->state = UPGRADE_TAKEN;
        uv_timer_stop(&u->limit);
        /* the channel stays open, so that the new daemon sees the end of this one */
        uv_poll_stop(&u->poll);
        u->opts.taken(u->opts.ctx, u->pid);
        upgrade_say(u->channel, "main");
    } else if (strncmp(text, "failed ", 7) == 0) {
        upgrade_fail(u, text + 7);
    } else if (*text) {
        upgrade_fail(u, "it sent an unexpected message");
    } else {
        u->pid = 0; /* the process has ended, and another one may get its number */
        upgrade_fail(u, "it ended before it took over; its last log line may say why");
    }
}

void upgrade_load(struct upgrade *u) {
    if (u->state != UPGRADE_OPENED)
        return;
    u->state = UPGRADE_LOADING;
    uv_timer_start(&u->limit, on_limit, u->limit_ms, 0);
    upgrade_say(u->channel, "load");
}

bool upgrade_accepts_requests(const struct upgrade *u) {
    return u->takes_requests && u->state >= UPGRADE_READY;
}

void upgrade_send_guests(struct upgrade *u, const char *name, int fd) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)),
                          .cmsg_level = SOL_SOCKET,
                          .cmsg_type = SCM_RIGHTS}};
    char text[UPGRADE_MESSAGE_MAX];
    struct iovec part = {text, (size_t)snprintf(text, sizeof(text), UPGRADE_GUESTS "%.400s", name)};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof(control)};

    assert(u->state >= UPGRADE_READY);
    memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    /* the caller closes @fd, so the other end of it sees the failure */
    if (sendmsg(u->channel, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        log_event(WLOG_DEBUG, "upgrade_channel", "error=\"%s\"", strerror(errno));
}

void upgrade_commit(struct upgrade *u) {
    if (u->state != UPGRADE_READY)
        return;
    u->state = UPGRADE_TAKING;
    uv_timer_start(&u->limit, on_limit, TAKE_MS, 0);
    upgrade_say(u->channel, "take");
}

static void upgrade_on_readable(uv_poll_t *p, int status, int events) {
    struct upgrade *u = p->data;
    char text[UPGRADE_MESSAGE_MAX + 1];
    int from = 0;

    api_mark_loop("an upgrade");
    /* Reads until the pair is empty or closed. The other end is a weftd, which sends few messages,
     * so the loop has no other bound. */
    while (u->state != UPGRADE_TAKEN && !uv_is_closing((uv_handle_t *)p) &&
           (status < 0 || upgrade_hear(u->channel, text, &from)))
        upgrade_on_message(u, status < 0 ? "" : text, from);
}

static void upgrade_on_process_closed(uv_handle_t *h) {
    ((struct upgrade *)h->data)->process_open = false;
}

/* Handles the exit of a weftd that detached from its parent: status 0, and the channel stays
 * open. */
static void on_exit_status(uv_process_t *p, int64_t status, int signal) {
    api_mark_loop("an upgrade");
    uv_close((uv_handle_t *)p, upgrade_on_process_closed);
    if (status || signal)
        log_event(WLOG_DEBUG, "upgrade_exit", "status=%lld signal=%d", (long long)status, signal);
}

static bool is_ours(const char *variable) {
    static const char *const not_passed[] = {
        "LISTEN_PID=",        "LISTEN_FDS=",     "LISTEN_FDNAMES=", "WATCHDOG_PID=",
        UPGRADE_VARIABLE "=", UPGRADE_WAITS "=", UPGRADE_MAIN "="};

    for (size_t i = 0; i < ARRAY_SIZE(not_passed); i++)
        if (strncmp(variable, not_passed[i], strlen(not_passed[i])) == 0)
            return true;
    return false;
}

/* Returns the environment of this process without the variables that are meant only for it. The
 * caller frees the array, not its strings. NULL: no memory. */
static char **environment(char *names, char *waits) {
    extern char **environ;
    size_t n = 0, at = 0;

    while (environ[n])
        n++;
    char **out = calloc(n + 4, sizeof(*out));
    for (size_t i = 0; out && i < n; i++)
        if (!is_ours(environ[i]))
            out[at++] = environ[i];
    if (!out)
        return NULL;
    out[at++] = names;
    out[at++] = UPGRADE_MAIN "=1";
    out[at] = waits;
    return out;
}

static int upgrade_spawn(struct upgrade *u, char **argv, const struct upgrade_files *f,
                         int channel) {
    uv_stdio_container_t stdio[UPGRADE_FD + 1 + UPGRADE_FDS_MAX];
    char names[sizeof(UPGRADE_VARIABLE "=") + UPGRADE_NAMES_MAX];
    uv_process_options_t o = {
        .exit_cb = on_exit_status,
        .file = argv[0],
        .args = argv,
        .stdio = stdio,
        .stdio_count = UPGRADE_FD + 1 + (int)f->n,
    };

    for (int i = 0; i < UPGRADE_FD; i++)
        stdio[i] = (uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = i};
    stdio[UPGRADE_FD] = (uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = channel};
    for (uint32_t i = 0; i < f->n; i++)
        stdio[UPGRADE_FD + 1 + i] =
            (uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = f->fd[i]};
    snprintf(names, sizeof(names), UPGRADE_VARIABLE "=%.*s", (int)f->len, f->names);
    if (!(o.env = environment(names, u->waits ? UPGRADE_WAITS "=1" : NULL)))
        return -ENOMEM;
    u->process.data = u;
    u->process_open = true;
    int r = uv_spawn(u->opts.loop, &u->process, &o);
    free(o.env);
    if (r < 0)
        uv_close((uv_handle_t *)&u->process, upgrade_on_process_closed);
    return r;
}

int upgrade_start(struct upgrade *u, char **argv, const struct upgrade_files *f, uint32_t limit_ms,
                  bool waits, struct err *err) {
    int pair[2], on = 1;

    if (u->state != UPGRADE_IDLE || u->process_open || u->poll_open)
        return err_set(err, 0, "", "another upgrade is still running; wait for it to end");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_set(err, 0, "", "cannot create a socket pair: %s", strerror(errno));
    u->waits = waits;
    u->takes_requests = false;
    int r = setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0
                ? -errno
                : upgrade_spawn(u, argv, f, pair[1]);
    close(pair[1]);
    if (r < 0) {
        close(pair[0]);
        return err_set(err, 0, "", "%.300s: %s", argv[0], uv_strerror(r));
    }
    u->channel = pair[0];
    u->pid = 0;
    u->limit_ms = limit_ms;
    u->poll_open = true;
    u->poll.data = u;
    u->state = UPGRADE_STARTED;
    uv_poll_init(u->opts.loop, &u->poll, u->channel);
    uv_poll_start(&u->poll, UV_READABLE | UV_DISCONNECT, upgrade_on_readable);
    uv_timer_start(&u->limit, on_limit, HELLO_MS, 0);
    return 0;
}

void upgrade_stop(struct upgrade *u) {
    if (u->state != UPGRADE_IDLE && u->state != UPGRADE_TAKEN)
        upgrade_fail(u, "this daemon is ending");
}

void upgrade_close(struct upgrade *u) {
    upgrade_stop(u);
    close_channel(u);
    uv_close((uv_handle_t *)&u->limit, NULL);
}

struct upgrade *upgrade_free(struct upgrade *u) {
    assert(!u || (!u->poll_open && !u->process_open));
    free(u);
    return NULL;
}
