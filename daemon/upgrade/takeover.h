#pragma once

/* takeover - the new daemon's side of an upgrade (upgrade.h). Without an upgrade every call does
 * nothing. */

#include <stdbool.h>

#include "base/lib_types.h"
#include "daemon/upgrade/upgrade.h"

struct takeover_opts {
    uv_loop_t *loop;
    void *ctx;
    /* called when the old daemon's workers have ended (takeover_waits()) */
    void (*load)(void *ctx);
    /* called when the old daemon stops accepting: accept, then call takeover_taken() */
    void (*commit)(void *ctx);
    /* Called when this process is the service's main one: send notifications from now on. An old
     * daemon of version 0.1.0 leads to this call before take(). */
    void (*main)(void *ctx);
    /* Called when the old daemon asks this one to take its requests for model @name over the socket
     * @fd, which is taken over. */
    void (*guests)(void *ctx, const char *name, int fd);
    /* called when the old daemon has ended; before "take" this one must end too */
    void (*gone)(void *ctx);
};

/* Detaches from the parent, at the beginning of the process, since the service manager learns only
 * of the end of its own children. Inherited files are closed on exec from now on. */
void takeover_begin(const char *sources); /* @sources: see upgrade.h */
/* Returns the descriptors that were handed over, and their names, which live as long as the
 * process. The number may be 0. */
int takeover_files(int fds[UPGRADE_FDS_MAX], const char *names[UPGRADE_FDS_MAX]);
/* Begins to receive messages of the old daemon. Returns 0 or -errno. */
int takeover_start(const struct takeover_opts *o);
/* Tells the old daemon why this one cannot serve. */
void takeover_failed(const char *why);
/* Returns true if workers must not be started before takeover_opts.load(), which takeover_opened()
 * requests. */
bool takeover_waits(void);
void takeover_opened(void); /* tells the old daemon that files and vocabularies were read */
/* tells the old daemon that the models to be loaded at the start are served */
void takeover_ready(void);
void takeover_taken(void); /* to be called in takeover_opts.commit(), once this daemon accepts */
/* Returns true if this daemon was started to take over and "take" has not arrived yet. */
bool takeover_is_pending(void);
/* Returns true if the previous daemon still runs. */
bool takeover_has_old(void);
/* stops receiving messages; the old daemon sees only the end of the process */
void takeover_close(void);
