#include "daemon/upgrade/takeover.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "api/api.h"
#include "base/log.h"
#include "base/try.h"

/*
 * takeover - the new daemon's side of an upgrade. upgrade.h has the protocol, upgrade.c the reasons
 * for it.
 *
 * The old daemon starts this process with the socket pair as UPGRADE_FD and the handed-over
 * descriptors after it, which are named in the environment. takeover_begin() forks at the beginning
 * of main() and the parent exits: the child is then a child of the service manager, which learns
 * only of the end of its own children. "started" carries the pid of the child.
 *
 * Messages arrive in the event loop. A failure before "take" has no effect outside this process: it
 * sends "failed WHY" and ends. Once "take" arrives, the old daemon accepts no more connections, so
 * this one accepts at once and sends "taken". "main" follows. Any other message, or the end of the
 * channel, means that the old daemon has ended or given up (takeover_opts.gone()).
 *
 *   NONE ──begin──> PENDING ──"take"──> TAKING ──taken──> DONE ──old daemon ends──> NONE
 */
enum takeover_state { TAKEOVER_NONE, TAKEOVER_PENDING, TAKEOVER_TAKING, TAKEOVER_DONE };

/* State of this process. NONE: there is no old daemon, or it has ended after DONE. */
static struct {
    struct takeover_opts opts;
    enum takeover_state state;
    char names[UPGRADE_NAMES_MAX];
    uv_poll_t poll;
    bool polls, waits;
    /* "main" will arrive */
    bool awaits_main;
} t;

static void takeover_say(const char *text) {
    if (send(UPGRADE_FD, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        log_event(WLOG_DEBUG, "upgrade_channel", "error=\"%s\"", strerror(errno));
}

void takeover_begin(const char *sources) {
    const char *names = getenv(UPGRADE_VARIABLE);
    char text[40 + UPGRADE_SOURCES];
    int fd = UPGRADE_FD;

    assert(t.state == TAKEOVER_NONE && strlen(sources) < UPGRADE_SOURCES);
    if (!names || strlen(names) >= sizeof(t.names))
        return;
    strcpy(t.names, names);
    t.waits = getenv(UPGRADE_WAITS) != NULL;
    t.awaits_main = getenv(UPGRADE_MAIN) != NULL;
    unsetenv(UPGRADE_VARIABLE);
    unsetenv(UPGRADE_MAIN);
    unsetenv(UPGRADE_WAITS);
    pid_t pid = fork();
    if (pid != 0)
        _exit(pid < 0);
    fcntl(fd++, F_SETFD, FD_CLOEXEC);
    for (const char *s = t.names; (s = strchr(s, '\n')); s++)
        fcntl(fd++, F_SETFD, FD_CLOEXEC);
    t.state = TAKEOVER_PENDING;
    snprintf(text, sizeof(text), "started %d %s", (int)getpid(), sources);
    takeover_say(text);
}

int takeover_files(int fds[UPGRADE_FDS_MAX], const char *names[UPGRADE_FDS_MAX]) {
    char *s = t.names, *end;
    int n = 0;

    if (t.state == TAKEOVER_NONE)
        return 0;
    for (; n < UPGRADE_FDS_MAX && (end = strchr(s, '\n')); s = end + 1, n++) {
        *end = 0;
        fds[n] = UPGRADE_FD + 1 + n;
        names[n] = s;
    }
    return n;
}

/* Reads one message. Returns its length, 0 if the other side has ended, or -1. *fd: the descriptor
 * that came with it, or -1. */
static ssize_t takeover_hear(char *text, size_t size, int *fd) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {text, size - 1};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = CMSG_LEN(sizeof(int))}; /* room for one descriptor */
    ssize_t n = recvmsg(UPGRADE_FD, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    *fd = -1;
    text[MAX(n, 0)] = 0;
    if (n >= 0 && CMSG_FIRSTHDR(&m) && control.head.cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(&control.head), sizeof(*fd));
    return n;
}

static void takeover_on_readable(uv_poll_t *p, int status, int events) {
    char text[UPGRADE_MESSAGE_MAX + 1] = "";
    int fd = -1;

    api_mark_loop("an upgrade");
    ssize_t n = status < 0 ? 0 : takeover_hear(text, sizeof(text), &fd);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (fd >= 0 && strncmp(text, UPGRADE_GUESTS, strlen(UPGRADE_GUESTS)) == 0) {
        t.opts.guests(t.opts.ctx, text + strlen(UPGRADE_GUESTS), fd);
        return;
    }
    if (fd >= 0)
        close(fd);
    if (t.waits && strcmp(text, "load") == 0) {
        t.waits = false;
        t.opts.load(t.opts.ctx);
    } else if (t.state == TAKEOVER_PENDING && strcmp(text, "take") == 0) {
        t.state = TAKEOVER_TAKING;
        if (!t.awaits_main)
            t.opts.main(t.opts.ctx);
        t.opts.commit(t.opts.ctx);
    } else if (t.state == TAKEOVER_DONE && t.awaits_main && strcmp(text, "main") == 0) {
        t.awaits_main = false;
        t.opts.main(t.opts.ctx);
    } else {
        takeover_close();
        if (t.state != TAKEOVER_PENDING)
            t.state = TAKEOVER_NONE;
        t.opts.gone(t.opts.ctx);
    }
}

int takeover_start(const struct takeover_opts *o) {
    if (t.state == TAKEOVER_NONE)
        return 0;
    assert(!t.polls && t.state == TAKEOVER_PENDING);
    t.opts = *o;
    TRY(uv_poll_init(o->loop, &t.poll, UPGRADE_FD));
    t.polls = true;
    return uv_poll_start(&t.poll, UV_READABLE | UV_DISCONNECT, takeover_on_readable);
}

void takeover_failed(const char *why) {
    char text[480];

    if (t.state != TAKEOVER_PENDING)
        return;
    snprintf(text, sizeof(text), "failed %s", why);
    takeover_say(text);
}

bool takeover_waits(void) {
    return t.waits;
}

void takeover_opened(void) {
    takeover_say("opened");
}

void takeover_ready(void) {
    if (t.state == TAKEOVER_PENDING)
        takeover_say("ready");
}

void takeover_taken(void) {
    assert(t.state == TAKEOVER_TAKING);
    t.state = TAKEOVER_DONE;
    takeover_say("taken");
}

bool takeover_is_pending(void) {
    return t.state == TAKEOVER_PENDING;
}

bool takeover_has_old(void) {
    return t.state == TAKEOVER_TAKING || t.state == TAKEOVER_DONE;
}

void takeover_close(void) {
    if (t.polls)
        uv_close((uv_handle_t *)&t.poll, NULL);
    t.polls = false;
}
