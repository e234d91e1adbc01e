#pragma once

/*
 * worker - the main loop of the worker process: it owns scheduler, pages, weights and device, has
 * no network, and hears and speaks only through the channel. daemon/workers/workers.c starts it
 * from the same executable, with the descriptors below and a clean environment.
 */

#include <stdbool.h>
#include "daemon/config/config.h"
#include "proto/messages.h"

#define WORKER_FLAG                                                                                \
    "--worker" /* argv[1] of a worker; argv[2] is the number of shards, of both models */
#define WORKER_SHARDS_MAX 256

enum worker_fd {
    WORKER_FD_CHANNEL = 3,
    WORKER_FD_CRASH_PAGE = 4, /* memory shared with the front: struct crash_page */
    /* The first shard; the other shards follow, then those of the draft model, the projector's
     * file, the file of the disk tier, and the files in memory for the weights of both models, each
     * if there is one. Shards and projector are open for reading only. */
    WORKER_FD_MODEL = 5,
};

/* Exit codes, for the front's log line. */
enum worker_exit {
    WORKER_DONE = 0,
    WORKER_REFUSED = 2,
    WORKER_LOST = 3,
    WORKER_CHANNEL = 4,
    WORKER_CUT_OFF = 5, /* the model's file ended while it was read */
    WORKER_SHORT = 6,   /* refused for want of memory or descriptors, which may pass */
};

/* The whole life of the worker process: started with WORKER_FLAG, it takes the descriptors above.
 * Returns the exit code, enum worker_exit. */
int worker_main(int argc, char **argv);

/* Computes the digest that HELLO carries: version and sizes of messages. The front refuses a worker
 * of another build. */
void worker_build_id(unsigned char out[20]);

/*
 * Completes the engine's options of @c with what OPEN says besides them: sizes that a wish or what
 * is there decides; engine.block is set. What a worker opens, and what the front asks engine_fit()
 * about before one is started. True: the draft model is opened first, and `memory` is what it
 * leaves.
 */
bool worker_engine_opts(struct config *c, const struct msg_open *m);
/* Returns the options of the draft model, from a completed @c. The caller sets its file. */
struct engine_opts worker_draft_opts(const struct config *c);

#define WORKER_ENVIRONMENT_MAX 32u

/* Lists the variables that a worker gets: the level of the log, and of this process's environment
 * where logs go and in which format, the path of the driver's library, the devices that it may see,
 * and the backend's switches for measurements. */
void worker_environment(char *out[WORKER_ENVIRONMENT_MAX]);
