#pragma once

/*
 * upgrade - the next daemon starts beside the one that runs, with its sockets and kept weights, and
 * takes its place once it is ready. Both may be of different versions: they agree on this file
 * only. They speak over a socket pair, one message a packet, the old one's side first:
 *
 *      old: IDLE ─start─> STARTED ────────────> READY ─────> TAKING ─────────> TAKEN
 *      new:              "started PID" ... "ready" ──>  <── "take" ... "taken" ──>
 *                            └─ "failed WHY", its end, or the time limit ──> IDLE
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

enum upgrade_state {
    UPGRADE_IDLE,
    UPGRADE_STARTED,
    UPGRADE_READY,
    UPGRADE_TAKING,
    UPGRADE_TAKEN,
};

struct upgrade_opts {
    uv_loop_t *loop;
    void *ctx;
    /* It is ready: the caller lets go of what only one daemon may have, then upgrade_take(). */
    void (*ready)(void *ctx, int pid);
    /* It accepts. The caller takes no more requests. */
    void (*taken)(void *ctx, int pid);
    /* It has come to nothing; the caller goes on as before. */
    void (*failed)(void *ctx, const char *why);
};

/* What is handed over. Descriptors stay the caller's. */
struct upgrade_files {
    int fd[UPGRADE_FDS_MAX];
    uint32_t n;
    char names[UPGRADE_NAMES_MAX];
    size_t len;
};

struct upgrade; /* of a daemon, over its whole life */

int upgrade_new(struct upgrade **out, const struct upgrade_opts *o);
/* Adds @fd as @name and, where it is not NULL, = and @value. -E2BIG: there are too many. */
int upgrade_add(struct upgrade_files *f, int fd, const char *name, const char *value);
/* Starts @argv as the next daemon; it has @limit_ms to be ready. 0, or negative with @err. */
int upgrade_start(struct upgrade *u, char **argv, const struct upgrade_files *f, uint32_t limit_ms,
                  struct err *err);
/* Says "take", where an upgrade is READY; else nothing. */
void upgrade_take(struct upgrade *u);
enum upgrade_state upgrade_state(const struct upgrade *u);
/* A new daemon that has not taken over is killed; failed() is not called. */
void upgrade_stop(struct upgrade *u);
/* upgrade_stop(), and the handles are closed. */
void upgrade_close(struct upgrade *u);
struct upgrade *upgrade_free(struct upgrade *u); /* after the loop has run out */
