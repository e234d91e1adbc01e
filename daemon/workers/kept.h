#pragma once

/*
 * kept - packed weights that outlive their worker. The weights of each model are in a file in
 * memory, which the worker packs and seals (engine_opts.keep_fd) and the front holds. Later workers
 * use it: after a death, during a swap, or in the next daemon, to which the service manager passes
 * the file.
 *
 *      claim ──> empty ──confirm──> kept <──inherit
 *                  └────── release of the last user ──> freed
 *
 * The front does not trust a worker's report: it keeps a file only if its seals and header are
 * right.
 */

#include <stdbool.h>

#include "engine/engine.h"

#define KEPT_PREFIX "weights-" /* begin of the names of kept files */
#define KEPT_NAME_MAX 40

struct kept;      /* the kept files of a daemon */
struct kept_file; /* the weights of one model file */

/* Callbacks that tell the service manager of a kept file, and that it may close one. */
struct kept_opts {
    void (*store)(int fd, const char *name);
    void (*forget)(const char *name);
};

/* Creates an empty list of kept files. Returns 0 or -ENOMEM. */
int kept_new(struct kept **out, const struct kept_opts *o);
/* Closes all files; those stored at the service manager remain there. Accepts NULL, returns
 * NULL. */
struct kept *kept_free(struct kept *k);

/* Takes over the file @fd that the service manager kept under @name, or closes it if it cannot be
 * used. */
void kept_inherit(struct kept *k, int fd, const char *name);
/* Returns the file kept under @key, or a new empty one. NULL: no file can be created. */
struct kept_file *kept_claim(struct kept *k, const uint8_t key[ENGINE_KEEP_KEY]);
int kept_fd(const struct kept_file *f); /* descriptor of the file, which @f owns */
/* Notes that a worker has opened its model with the file. Returns true if the weights are in it;
 * the file is kept from now on. */
bool kept_confirm(struct kept_file *f);
/* Ends one user's claim; NULL does nothing. The last user's call frees the memory once no worker
 * has it. @bad: the file must not be used again. */
void kept_release(struct kept_file *f, bool bad);

/* Returns the memory in bytes of inherited files that no model has claimed, except that of @but
 * (may be NULL). */
uint64_t kept_unclaimed(const struct kept *k, const uint8_t *but);
/* Drops the files that kept_unclaimed() counts. */
void kept_drop_unclaimed(struct kept *k, const uint8_t *but);
/* Ends the use of the files; files that the service manager holds stay there. */
void kept_stop_passing(struct kept *k);

/* In an upgrade: calls @add with each file that the next daemon gets, until it returns an error,
 * which is returned. kept_hand_over() makes the service manager forget the other files, before the
 * next daemon becomes the main process. */
int kept_pass(struct kept *k, int (*add)(void *ctx, int fd, const char *name), void *ctx);
void kept_hand_over(struct kept *k);
/* For the next daemon: stores no file at the service manager until this daemon is its main
 * process; kept_announce() then stores them. */
void kept_hold(struct kept *k);
void kept_announce(struct kept *k);
