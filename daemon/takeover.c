#include "daemon/takeover.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/log.h"

enum takeover_state { TAKEOVER_NONE, TAKEOVER_PENDING, TAKEOVER_TAKING, TAKEOVER_DONE };

/* One of a process. NONE: there is no old daemon, or it has ended after DONE. */
static struct {
    struct takeover_opts opts;
    enum takeover_state state;
    char names[UPGRADE_NAMES_MAX];
    uv_poll_t poll;
    bool polls;
} t;

static void say(const char *text) {
    if (send(UPGRADE_FD, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        log_event(WLOG_DEBUG, "upgrade_channel", "error=\"%s\"", strerror(errno));
}

void takeover_begin(void) {
    const char *names = getenv(UPGRADE_VARIABLE);
    char text[40];
    int fd = UPGRADE_FD;

    if (!names || strlen(names) >= sizeof(t.names))
        return;
    strcpy(t.names, names);
    unsetenv(UPGRADE_VARIABLE);
    pid_t pid = fork();
    if (pid != 0)
        _exit(pid < 0);
    fcntl(fd++, F_SETFD, FD_CLOEXEC);
    for (const char *s = t.names; (s = strchr(s, '\n')); s++)
        fcntl(fd++, F_SETFD, FD_CLOEXEC);
    t.state = TAKEOVER_PENDING;
    snprintf(text, sizeof(text), "started %d", (int)getpid());
    say(text);
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

static void on_readable(uv_poll_t *p, int status, int events) {
    char text[100];
    ssize_t n = status < 0 ? 0 : recv(UPGRADE_FD, text, sizeof(text) - 1, MSG_DONTWAIT);

    (void)p;
    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    text[MAX(n, 0)] = 0;
    if (t.state == TAKEOVER_PENDING && strcmp(text, "take") == 0) {
        t.state = TAKEOVER_TAKING;
        t.opts.take(t.opts.ctx);
        return;
    }
    takeover_close();
    if (t.state != TAKEOVER_PENDING)
        t.state = TAKEOVER_NONE;
    t.opts.gone(t.opts.ctx);
}

int takeover_start(const struct takeover_opts *o) {
    if (t.state == TAKEOVER_NONE)
        return 0;
    t.opts = *o;
    int r = uv_poll_init(o->loop, &t.poll, UPGRADE_FD);
    if (r < 0)
        return r;
    t.polls = true;
    return uv_poll_start(&t.poll, UV_READABLE | UV_DISCONNECT, on_readable);
}

void takeover_failed(const char *why) {
    char text[480];

    if (t.state != TAKEOVER_PENDING)
        return;
    snprintf(text, sizeof(text), "failed %s", why);
    say(text);
}

void takeover_ready(void) {
    if (t.state == TAKEOVER_PENDING)
        say("ready");
}

void takeover_taken(void) {
    assert(t.state == TAKEOVER_TAKING);
    t.state = TAKEOVER_DONE;
    say("taken");
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
