#pragma once

/*
 * worker - the main loop of the worker process: it owns scheduler, pages, weights and device, has
 * no network, and communicates only through the channel. daemon/workers/workers.c starts it from
 * the same executable, with the descriptors below and a clean environment.
 */

#include <stdbool.h>

#include "daemon/config/config.h"
#include "proto/messages.h"

#define WORKER_FLAG                                                                                \
    "--worker" /* argv[1] of a worker; argv[2] is the number of shards of both models */
#define WORKER_SHARDS_MAX 256

enum worker_fd {
    WORKER_FD_CHANNEL = 3,
    /* memory shared with the front: struct crash_page */
    WORKER_FD_CRASH_PAGE = 4,
    /* The first shard; the other shards follow, then those of the draft model, the projector's
     * files, the file of the disk tier, and the files in memory for the weights of both models,
     * each if it exists. Shards and projector are open for reading only. */
    WORKER_FD_MODEL = 5,
};

/* Exit codes, which the front logs. */
enum worker_exit {
    WORKER_DONE = 0,
    WORKER_REFUSED = 2,
    WORKER_LOST = 3,
    WORKER_CHANNEL = 4,
    /* the model's file ended while it was read */
    WORKER_CUT_OFF = 5,
    /* refused because memory or descriptors are short, which may be temporary */
    WORKER_SHORT = 6,
};

/* Runs the worker process, which was started with WORKER_FLAG and has the descriptors above.
 * Returns the exit code, enum worker_exit. */
int worker_main(int argc, char **argv);

/* Computes the digest that HELLO carries: version and sizes of messages. The front refuses a worker
 * of another build. */
void worker_build_id(unsigned char out[20]);

/*
 * Completes the engine's options of @c with the sizes in @m, which depend on other options and on
 * the free memory, and sets engine.block. The worker opens the engine with these options; the front
 * passes them to engine_fit() before it starts a worker. Returns true if the draft model must be
 * opened first; `memory` is then the memory that the draft model leaves.
 */
bool worker_engine_opts(struct config *c, const struct msg_open *m);

#define WORKER_ENVIRONMENT_MAX 32u

/* Lists the environment variables of a worker: the log level and, from this process's environment,
 * the destination and format of logs, the path of the driver's library, the visible devices, and
 * the backend's switches for measurements. */
void worker_environment(char *out[WORKER_ENVIRONMENT_MAX]);
