#pragma once

/*
 * workers - starts, watches and replaces the worker process. It is the port through which api/
 * reaches the scheduler.
 *
 *      start ──> LOADING ──READY──> SERVING
 *                  │  ^                │
 *        exit, FAILED │ backoff        │ exit, hang (killed)
 *                  v  │                v
 *                 DOWN <───────────────┘        stop ──> STOPPED
 *
 * A worker that dies takes no stream with it: the front submits every live request again with the
 * tokens it has, and promise 1 makes the stream go on as if nothing had happened. Which requests a
 * death is blamed on stands in the page shared with the worker (struct crash_page).
 *
 * Streams are kept waiting only as long as there is hope. When several starts in a row came to
 * nothing, or the model's file is not the one any more that was opened (another model would go on
 * with the streams), all that waits fails with the reason; starts go on with growing pauses.
 */

#include "api/api.h"
#include "daemon/config.h"
#include "proto/flight.h"

struct workers;

struct workers_opts {
    uv_loop_t *loop;
    const struct config *config;
    /* Their descriptors are given to every worker. draft: NULL without a draft model. */
    const struct gguf *file, *draft;
    uint64_t kv_bytes; /* host memory for pages, unless kv-memory is given */
    int disk_fd;       /* likewise given to every worker; -1: none */
    struct clock *clock;
    void *ctx;
    /* The first time: the model is served from now on. */
    void (*on_ready)(void *ctx, const struct msg_ready *m);
    /* No worker ever served: one gave the reason @why (-EINVAL), or several died without one
     * (-EAGAIN). */
    void (*on_refused)(void *ctx, const char *why, int error);
};

/* For the admin socket: what no worker can say of itself, and what the present one said last. */
struct workers_stats {
    const char *state;
    uint32_t n_started, n_deaths, n_hangs;
    int pid;              /* 0: none */
    const char *failure;  /* why none can be started, as far as is known; "" */
    int64_t stats_age_ms; /* since the worker reported `last`; -1: never */
    struct msg_stats last;
};

/* Prepares what all workers share: this executable, the crash page. 0 or -errno with @err. */
int workers_new(struct workers **out, const struct workers_opts *o, struct err *err);
struct workers *workers_free(struct workers *w); /* after workers_stop() and the loop has run out */

/* The way for api/ to the worker, whichever it is; lives as long as @w. */
struct api_port *workers_port(struct workers *w);
void workers_attach(struct workers *w, struct api *api); /* before workers_start() */
/* Starts the first worker. 0 or -errno. Later ones start by themselves. */
int workers_start(struct workers *w);
void workers_stop(struct workers *w); /* kills the worker; no new one is started */

/* What was decided lately; written by the worker meanwhile, so what is taken from it is checked. */
const struct flight *workers_flight(const struct workers *w);
/* All of it, as proto/flight_file.h has it. 0, -errno. */
int workers_dump(const struct workers *w, struct buf *out);
/* What the admin socket shows of the worker. */
void workers_stats(const struct workers *w, struct workers_stats *out);
