#pragma once

/*
 * upgrade - the next daemon starts beside the one that runs, with its sockets and kept weights, and
 * takes its place once it is ready. They may be different versions, which agree on this protocol
 * only. They exchange messages over a socket pair, one message per packet. The old daemon's states
 * are in the first line:
 *
 *      old: IDLE ─start─> STARTED ────────────> READY ─────> TAKING ─────────> TAKEN
 *      new:         "started PID SOURCES" ... "ready" ─>  <─ "take" .. "taken" ─> <─ "main"
 *                            └─ "failed WHY", its end, or the time limit ──> IDLE
 *
 * If there is not enough memory for both workers, as on a device, the old daemon sets UPGRADE_WAITS
 * in the new daemon's environment. Then the old workers end between "started" and "ready":
 *
 *      old: STARTED ──> OPENED, its workers end ──> LOADING ──> READY
 *      new:  "opened" ──>                       <── "load" ... "ready" ──>
 *
 * SOURCES is the digest of engine_request_sources(), as text. If it equals the old daemon's, the
 * old daemon may hand over requests from READY on ("guests MODEL" with a socket: guests.h). A
 * daemon that sends no SOURCES accepts no requests and cannot wait. PID is for old daemons of
 * version 0.1.0; later ones take the number from the kernel.
 *
 * Until "take" the new daemon accepts no connections; from "taken" on the old one only finishes its
 * requests. At "main" the service manager has been told that the new daemon is the service's main
 * process, so only then does the new one send it notifications. UPGRADE_MAIN in the environment
 * announces this message; old daemons of version 0.1.0 tell the service manager before "take". The
 * socket pair stays open, so each daemon sees the end of the other.
 *
 * The new daemon gets the socket pair as descriptor UPGRADE_FD, and the descriptors that it takes
 * over behind it. The variable WEFT_UPGRADE has their names, each ended by a line feed:
 *
 *      http, tls, admin  a socket that the service manager bound
 *      http=ADDRESS      a socket that the daemon bound for this value of the option listen
 *      admin=PATH        a socket that the daemon bound for the option admin-socket
 *      weights-...       kept weights, under their name at the service manager
 */

#include <stdbool.h>

#include "base/err.h"
#include "base/lib_types.h"

#define UPGRADE_FD 3
#define UPGRADE_FDS_MAX 96
#define UPGRADE_NAMES_MAX 8192
#define UPGRADE_VARIABLE "WEFT_UPGRADE"
#define UPGRADE_WAITS "WEFT_UPGRADE_WAITS"
#define UPGRADE_MAIN "WEFT_UPGRADE_MAIN"
#define UPGRADE_MESSAGE_MAX 500 /* most characters of a message */
#define UPGRADE_GUESTS "guests "
#define UPGRADE_SOURCES 41 /* characters of a digest of sources with the NUL */

/* States of the old daemon, as in the diagrams. */
enum upgrade_state {
    UPGRADE_IDLE,
    UPGRADE_STARTED,
    UPGRADE_OPENED,
    UPGRADE_LOADING,
    UPGRADE_READY,
    UPGRADE_TAKING,
    UPGRADE_TAKEN,
};

struct upgrade_opts {
    uv_loop_t *loop;
    void *ctx;
    /* digest of this daemon's sources */
    const char *sources;
    /* Called when the next daemon waits for the memory of the caller's workers: end them, then call
     * upgrade_load(). */
    void (*opened)(void *ctx);
    /* Called when the next daemon is ready: release what only one daemon may have, then call
     * upgrade_commit(). */
    void (*ready)(void *ctx);
    /* Called when the next daemon accepts connections: accept no more requests, and make it the
     * service's main process. */
    void (*taken)(void *ctx, int pid);
    /* Called when the upgrade has failed: continue as before. */
    void (*failed)(void *ctx, const char *why);
};

/* Descriptors to hand over. The caller keeps and closes its own copies. */
struct upgrade_files {
    int fd[UPGRADE_FDS_MAX];
    uint32_t n;
    char names[UPGRADE_NAMES_MAX];
    size_t len;
};

struct upgrade; /* lives as long as the daemon */

/* Creates an upgrade in state IDLE; @o is copied. Returns 0 or -ENOMEM. */
int upgrade_new(struct upgrade **out, const struct upgrade_opts *o);
/* Adds @fd under the name "@name", or "@name=@value" if @value is not NULL. Returns 0, or -E2BIG if
 * there are too many. */
int upgrade_add(struct upgrade_files *f, int fd, const char *name, const char *value);
/* Starts @argv as the next daemon, which must be ready within @limit_ms. @waits: it waits for
 * upgrade_load(). Returns 0, or a negative value with @err. */
int upgrade_start(struct upgrade *u, char **argv, const struct upgrade_files *f, uint32_t limit_ms,
                  bool waits, struct err *err);
/* Sends "load" in state OPENED; does nothing in any other state. */
void upgrade_load(struct upgrade *u);
/* Returns true if the next daemon can continue requests of this one. */
bool upgrade_accepts_requests(const struct upgrade *u);
/* Hands over the socket @fd for the requests of model @name. The caller closes its own copy. */
void upgrade_send_guests(struct upgrade *u, const char *name, int fd);
/* Kills the next daemon, which has not taken over, for reason @why; then calls opts.failed(). */
void upgrade_fail(struct upgrade *u, const char *why);
/* Sends "take" in state READY; does nothing in any other state. */
void upgrade_commit(struct upgrade *u);
enum upgrade_state upgrade_state(const struct upgrade *u);
/* Fails an upgrade whose next daemon has not taken over, because this one is ending. */
void upgrade_stop(struct upgrade *u);
/* Calls upgrade_stop() and closes the handles. */
void upgrade_close(struct upgrade *u);
struct upgrade *upgrade_free(struct upgrade *u); /* needs the end of the loop before */
