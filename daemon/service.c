#include "daemon/service.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include "base/clock.h"

/*
 * With libsystemd every call passes on what it is told; the library itself does nothing where no
 * service manager listens. Without it the second half of the file stands in. The watchdog's ping
 * comes from the loop, and from nothing else: a loop that does not turn must not look alive. Its
 * timer keeps the loop from ending no more than a signal does.
 */

int service_check_path(const char *key, const char *path, struct err *err) {
    const char *slash = strrchr(path, '/');
    struct stat st;

    if (slash && slash != path) {
        CLEANUP(freep) char *folder = strndup(path, (size_t)(slash - path));

        if (!folder)
            return -ENOMEM;
        if (stat(folder, &st) < 0 && errno == ENOENT)
            return err_set(err, 0, key, "%s: %.200s: the folder %.150s does not exist", key, path,
                           folder);
    }
    if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
        return err_set(err, 0, key, "%s: %.300s: exists and is not a socket", key, path);
    return 0;
}

#ifdef HAVE_SYSTEMD

#include <systemd/sd-daemon.h>

int service_inherited(struct service_fd fds[SERVICE_FDS_MAX]) {
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names), result = n;

    if (n > SERVICE_FDS_MAX)
        result = -EINVAL;
    for (int i = 0; i < n && result >= 0; i++) {
        int fd = SD_LISTEN_FDS_START + i;

        const char *name = names ? names[i] : "";

        fds[i] = (struct service_fd){.fd = fd, .admin = strcmp(name, "admin") == 0};
        fds[i].kept = strncmp(name, SERVICE_KEPT, strlen(SERVICE_KEPT)) == 0;
        snprintf(fds[i].name, sizeof(fds[i].name), "%s", name);
        if (!fds[i].kept && sd_is_socket(fd, AF_UNSPEC, SOCK_STREAM, 1) <= 0)
            result = -EINVAL;
    }
    for (int i = 0; names && names[i]; i++)
        free(names[i]);
    free(names);
    return result;
}

void service_ready(void) {
    sd_notify(0, "READY=1");
}

void service_reloading(void) {
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%lld",
               (long long)(clock_now(clock_monotonic()) / 1000));
}

void service_stopping(void) {
    sd_notify(0, "STOPPING=1");
}

void service_status(const char *text) {
    sd_notifyf(0, "STATUS=%s", text);
}

/* FDPOLL=0: it is not let go of because of what poll(2) says of it. */
void service_keep(int fd, const char *name) {
    char text[SERVICE_NAME_MAX + 40];

    snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
    sd_pid_notify_with_fds(0, 0, text, &fd, 1);
}

void service_forget(const char *name) {
    sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name);
}

static uv_timer_t watchdog;
static bool watching;

/* The loop has turned. */
static void ping(uv_timer_t *t) {
    (void)t;
    sd_notify(0, "WATCHDOG=1");
}

void service_watchdog_start(uv_loop_t *loop) {
    uint64_t usec;

    if (sd_watchdog_enabled(0, &usec) <= 0)
        return;
    assert(!watching);
    uv_timer_init(loop, &watchdog);
    uv_timer_start(&watchdog, ping, 0, usec / 2000);
    uv_unref((uv_handle_t *)&watchdog);
    watching = true;
}

void service_watchdog_stop(void) {
    if (watching)
        uv_close((uv_handle_t *)&watchdog, NULL);
    watching = false;
}

#else

int service_inherited(struct service_fd fds[SERVICE_FDS_MAX]) {
    (void)fds;
    return 0;
}

void service_ready(void) {}
void service_reloading(void) {}
void service_stopping(void) {}
void service_status(const char *text) {
    (void)text;
}
void service_keep(int fd, const char *name) {
    (void)fd;
    (void)name;
}
void service_forget(const char *name) {
    (void)name;
}
void service_watchdog_start(uv_loop_t *loop) {
    (void)loop;
}
void service_watchdog_stop(void) {}

#endif
