#pragma once

/*
 * service - the protocol of the service manager: inherited sockets, readiness, the watchdog and the
 * status line. Without systemd every call does nothing and succeeds.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/lib_types.h"
#include "daemon/workers/kept.h"

#define SERVICE_FDS_MAX 80

struct service_fd {
    int fd;
    /* true: the admin socket, named "admin"; false: HTTP */
    bool admin;
    /* a file kept by service_store_fd() of an earlier process, not a socket */
    bool kept;
    /* value of listen or admin-socket for which the previous daemon bound the socket; NULL: the
     * service manager bound it */
    const char *address;
    char name[KEPT_NAME_MAX];
};

/* Checks that a UNIX socket can be made at @path, which the option @key names: its folder exists
 * and a file that is there already is a socket. Without this check, libuv would report a missing
 * folder as a lack of permission, and the kernel would report a file as a socket in use. Returns 0,
 * or -errno with @err. */
int service_check_path(const char *key, const char *path, struct err *err);

/* Takes the sockets passed by socket activation or by the previous daemon (upgrade.h), and kept
 * files. Checks that each socket is a listening stream socket. Returns the number of descriptors,
 * or -EINVAL with @err if one cannot be used. Removes the variables from the environment. */
int service_inherited(struct service_fd fds[SERVICE_FDS_MAX], struct err *err);

/* Notify the service manager that the model is served, that keys are read again, that the end has
 * begun, and of the status line. */
void service_ready(void);
void service_reloading(void); /* followed by service_ready() */
void service_stopping(void);
void service_status(const char *text);

/* Stops notifications, because another process is the service's main process. */
void service_hold(void);
/* Resumes notifications: this process has become the main one. */
void service_release(void);
/* Makes process @pid of the same service the main process, and stops notifications. */
void service_hand_over(int pid);

/* Lets the service manager hold the file @fd too. It passes the file to the next process of the
 * service, until service_forget() or until the service is stopped. @name begins with
 * KEPT_PREFIX. */
void service_store_fd(int fd, const char *name);
void service_forget(const char *name);

/* Pings the watchdog from @loop at half its interval, when one is set: a loop that hangs is
 * killed. */
void service_watchdog_start(uv_loop_t *loop);
void service_watchdog_stop(void);
