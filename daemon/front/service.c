/*
 * With libsystemd every call passes its arguments to the library, which does nothing without a
 * service manager. Without the library, the second half of the file has empty functions. Only the
 * loop sends the watchdog's ping, so that a loop that hangs is noticed. Its timer does not keep the
 * loop from ending.
 */

#include "daemon/front/service.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <uv.h>

#include "api/api.h"
#include "base/clock.h"
#include "base/try.h"
#include "daemon/upgrade/takeover.h"

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

static bool is_listening(int fd) {
    int on, type;
    socklen_t len = sizeof(on);

    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &len) < 0 || !on)
        return false;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_STREAM;
}

/* Finds the purpose of @fd by its @name; @address is the part of the name behind '=', NULL if it
 * has none. Returns 0, or -EINVAL with @err if the descriptor cannot be used. */
static int service_sort(struct service_fd *out, int fd, const char *name, const char *address,
                        struct err *err) {
    *out = (struct service_fd){.fd = fd, .address = address};
    snprintf(out->name, sizeof(out->name), "%.*s",
             (int)(address ? strcspn(name, "=") : strlen(name)), name);
    out->admin = strcmp(out->name, "admin") == 0;
    out->kept = strncmp(name, KEPT_PREFIX, strlen(KEPT_PREFIX)) == 0;
    if (out->kept || is_listening(fd))
        return 0;
    return err_set(err, 0, "",
                   "descriptor %d (%.60s) of the service manager is not a listening stream socket: "
                   "a socket unit needs ListenStream= and Accept=no",
                   fd, name);
}

static int from_manager(struct service_fd fds[SERVICE_FDS_MAX], struct err *err);

static int too_many(struct err *err) {
    return err_set(err, 0, "", "more than %d descriptors were passed", SERVICE_FDS_MAX);
}

int service_inherited(struct service_fd fds[SERVICE_FDS_MAX], struct err *err) {
    const char *names[UPGRADE_FDS_MAX];
    int of_old[UPGRADE_FDS_MAX], n = takeover_files(of_old, names);

    if (n == 0)
        return from_manager(fds, err);
    if (n > SERVICE_FDS_MAX)
        return too_many(err);
    for (int i = 0; i < n; i++) {
        const char *equals = strchr(names[i], '=');

        TRY(service_sort(&fds[i], of_old[i], names[i], equals ? equals + 1 : NULL, err));
    }
    return n;
}

#ifdef HAVE_SYSTEMD

#include <stdarg.h>
#include <systemd/sd-daemon.h>

static bool held;

/* Calls sd_notify() if this process is the service's main one. */
static PRINTF(1, 2) void service_notify(const char *fmt, ...) {
    va_list ap;
    char text[512];

    if (held)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    sd_notify(0, text);
}

void service_hold(void) {
    held = true;
}

void service_release(void) {
    held = false;
}

void service_hand_over(int pid) {
    service_notify("MAINPID=%d", pid);
    held = true;
}

static int from_manager(struct service_fd fds[SERVICE_FDS_MAX], struct err *err) {
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names), result = n;

    if (n < 0)
        result =
            err_set(err, 0, "", "LISTEN_FDS and LISTEN_FDNAMES are not valid: %s", strerror(-n));
    if (n > SERVICE_FDS_MAX)
        result = too_many(err);
    for (int i = 0; i < n && result >= 0; i++)
        result =
            service_sort(&fds[i], SD_LISTEN_FDS_START + i, names ? names[i] : "", NULL, err) < 0
                ? -EINVAL
                : n;
    for (int i = 0; names && names[i]; i++)
        free(names[i]);
    free(names);
    return result;
}

void service_ready(void) {
    service_notify("READY=1");
}

void service_reloading(void) {
    service_notify("RELOADING=1\nMONOTONIC_USEC=%lld",
                   (long long)(clock_now(clock_monotonic()) / 1000));
}

void service_stopping(void) {
    service_notify("STOPPING=1");
}

void service_status(const char *text) {
    service_notify("STATUS=%s", text);
}

/* Stores @fd at the service manager. FDPOLL=0: the manager keeps it whatever poll(2) reports. */
void service_store_fd(int fd, const char *name) {
    char text[KEPT_NAME_MAX + 40];

    assert(strncmp(name, KEPT_PREFIX, strlen(KEPT_PREFIX)) == 0);
    snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
    if (!held)
        sd_pid_notify_with_fds(0, 0, text, &fd, 1);
}

void service_forget(const char *name) {
    service_notify("FDSTOREREMOVE=1\nFDNAME=%s", name);
}

static uv_timer_t watchdog;
static bool watching;

/* Pings the watchdog: the loop has completed an iteration. */
static void ping(uv_timer_t *t) {
    api_mark_loop("the service manager");
    service_notify("WATCHDOG=1");
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

static int from_manager(struct service_fd fds[SERVICE_FDS_MAX], struct err *err) {
    return 0;
}

void service_hold(void) {}
void service_release(void) {}
void service_hand_over(int pid) {}

void service_ready(void) {}
void service_reloading(void) {}
void service_stopping(void) {}
void service_status(const char *text) {}
void service_store_fd(int fd, const char *name) {}
void service_forget(const char *name) {}
void service_watchdog_start(uv_loop_t *loop) {}
void service_watchdog_stop(void) {}

#endif
