#pragma once

/*
 * upgrade - the next daemon starts beside the one that runs, with its sockets and kept weights, and
 * takes its place once it is ready. Both may be of different versions: they agree on this file
 * only. They speak over a socket pair, one message a packet, the old one's side first:
 *
 *      old: IDLE ─start─> STARTED ────────────> READY ─────> TAKING ─────────> TAKEN
 *      new:         "started PID SOURCES" ... "ready" ──>  <── "take" ... "taken" ──>
 *                            └─ "failed WHY", its end, or the time limit ──> IDLE
 *
 * Where both cannot have what their workers need, a device, the old one sets UPGRADE_WAITS in the
 * new one's environment. Then there is a pause between "started" and "ready":
 *
 *      old: STARTED ──> OPENED, its workers end ──> LOADING ──> READY
 *      new:  "opened" ──>                       <── "load" ... "ready" ──>
 *
 * SOURCES are those of engine_request_sources(), as text: where they are the old one's own it may
 * hand over requests, from READY on ("guests MODEL" with a socket: guests.h). A daemon that says
 * none takes none, nor can it wait.
 *
 * Until "take" the new daemon accepts nothing and tells the service manager nothing, from "taken"
 * on the old one only ends what it has. The socket pair stays open: each sees the other's end.
 *
 * The new one gets the socket pair as descriptor UPGRADE_FD and what it takes over behind it. The
 * variable WEFT_UPGRADE has their names, each ended by a line feed:
 *
 *      http, tls, admin  a socket of the service manager's
 *      http=ADDRESS      one that the daemon bound for this value of the option listen
 *      admin=PATH        likewise, of the option admin-socket
 *      weights-...       kept weights, as the service manager knows them
 */

#include <stdbool.h>
#include <uv.h>
#include "base/err.h"

#define UPGRADE_FD 3
#define UPGRADE_FDS_MAX 96
#define UPGRADE_NAMES_MAX 8192
#define UPGRADE_VARIABLE "WEFT_UPGRADE"
#define UPGRADE_WAITS "WEFT_UPGRADE_WAITS"
#define UPGRADE_MESSAGE_MAX 500 /* characters */
#define UPGRADE_GUESTS "guests "
#define UPGRADE_SOURCES 41 /* characters, with the NUL */

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
    const char *sources; /* digest of this daemon's sources */
    /* The next daemon waits for the memory of the caller's workers: they end, then
     * upgrade_load(). */
    void (*opened)(void *ctx);
    /* The next daemon is ready: the caller releases what only one daemon may have, then
     * upgrade_take(). */
    void (*ready)(void *ctx, int pid);
    /* The next daemon accepts. The caller takes no more requests. */
    void (*taken)(void *ctx, int pid);
    /* The upgrade has failed; the caller continues as before. */
    void (*failed)(void *ctx, const char *why);
};

/* Descriptors that are handed over. They stay the caller's. */
struct upgrade_files {
    int fd[UPGRADE_FDS_MAX];
    uint32_t n;
    char names[UPGRADE_NAMES_MAX];
    size_t len;
};

struct upgrade; /* lives as long as the daemon */

/* Creates an upgrade in state IDLE; @o is copied. Returns 0 or -ENOMEM. */
int upgrade_new(struct upgrade **out, const struct upgrade_opts *o);
/* Adds @fd under the name "@name", or "@name=@value" if @value is not NULL. 0, or -E2BIG if there
 * are too many. */
int upgrade_add(struct upgrade_files *f, int fd, const char *name, const char *value);
/* Starts @argv as the next daemon; it has @limit_ms to be ready. @waits: for opts.opened(). 0, or
 * negative with @err. */
int upgrade_start(struct upgrade *u, char **argv, const struct upgrade_files *f, uint32_t limit_ms,
                  bool waits, struct err *err);
/* Sends "load" in state OPENED; does nothing in any other state. */
void upgrade_load(struct upgrade *u);
/* Returns true if the next daemon can continue requests of this one. */
bool upgrade_takes_requests(const struct upgrade *u);
/* Hands over the socket @fd for the requests of model @name. The caller closes its own. */
void upgrade_send_guests(struct upgrade *u, const char *name, int fd);
/* Kills the next daemon, which has not taken over, because of @why; then calls failed(). */
void upgrade_fail(struct upgrade *u, const char *why);
/* Says "take", where an upgrade is READY; else nothing. */
void upgrade_take(struct upgrade *u);
enum upgrade_state upgrade_state(const struct upgrade *u);
/* Kills a next daemon that has not taken over, without calling failed(). */
void upgrade_stop(struct upgrade *u);
/* Calls upgrade_stop() and closes the handles. */
void upgrade_close(struct upgrade *u);
struct upgrade *upgrade_free(struct upgrade *u); /* after the loop has run out */
