#pragma once

/*
 * workers - starts, watches and replaces the worker process. It is the port through which api/
 * reaches the scheduler.
 *
 *      start ──> LOADING ──READY──> SERVING
 *                  │  ^                │
 *        exit, FAILED │ backoff        │ exit, hang (killed)
 *                  v  │                v                        give_way ──> AWAY ──> DOWN
 *                 DOWN <───────────────┘   unload ──> IDLE ──> start    stop ──> STOPPED
 *
 * The death of a worker ends no stream: the front submits every live request again with its tokens
 * so far, and the stream continues with the same tokens (promise 1 of docs/design/architecture.md).
 * The page shared with the worker (struct crash_page) names the requests that are suspected of a
 * death.
 *
 * Streams wait only while a new worker can be expected. When several starts in a row have failed,
 * or the model's file has changed since it was opened (another model would continue the streams),
 * all waiting requests fail with the reason; the front continues to start workers, with growing
 * pauses.
 */

#include "api/api.h"
#include "daemon/config/config.h"
#include "daemon/workers/kept.h"
#include "proto/flight.h"

struct workers;

struct workers_opts {
    uv_loop_t *loop;
    const struct config *config;
    /* Files whose descriptors every worker gets. draft: NULL without a draft model. */
    /* draft, projector: NULL if there is none */
    const struct gguf *file, *draft, *projector;
    /* preferred memory for pages, unless kv-memory is given; 0: any */
    uint64_t kv_bytes;
    /* memory limit of a worker, the same at every start; 0: no limit */
    uint64_t memory_bytes;
    /* passed to every worker; -1: none */
    int disk_fd;
    /* another daemon uses the file until workers_use_disk() */
    bool disk_waits;
    /* stores weights between workers */
    struct kept *kept;
    struct clock *clock;
    void *ctx;
    /* Called when the first worker since the start or since workers_unload() is ready: the model
     * is served from now on. */
    void (*on_ready)(void *ctx, const struct msg_ready *m);
    /* Called if no worker has become ready since the start or workers_unload(): a worker reported
     * the reason @why (-EINVAL; -ENOMEM if memory is short), or several died without a reason
     * (-EAGAIN). */
    void (*on_refused)(void *ctx, const char *why, int error);
    /* The next four are for a model that is loaded on demand: a request waits for it
     * (api_port.want); a tenant uses it; loading has progressed to @fraction; the process has ended
     * after workers_unload(). */
    void (*want)(void *ctx);
    /* as api_port.use */
    void (*use)(void *ctx, uint32_t tenant, double weight);
    void (*on_progress)(void *ctx, float fraction);
    void (*on_unloaded)(void *ctx);
    /* called when workers_release_disk() is done */
    void (*on_disk_left)(void *ctx);
    /* called when workers_hand_over() is done */
    void (*on_away)(void *ctx);
    /* called when workers_answer() has changed */
    void (*on_answer)(void *ctx);
    /* Called with the tenants' recent use of the device, for workers_report_served() of other
     * models. */
    void (*on_served)(void *ctx, const struct msg_served *m, uint32_t n);
    /* Called with changes of the worker's prefix cache; @m NULL: it is empty. A NULL function:
     * changes are not reported. */
    void (*on_blocks)(void *ctx, const struct msg_blocks *m);
    /* Called when workers_stop() is done: workers_free() may follow. */
    void (*on_closed)(void *ctx);
};

/* Statistics for the admin socket: sums over all workers, and the last report of the current
 * one. */
struct workers_stats {
    const char *state;
    uint32_t n_started, n_deaths, n_hangs;
    /* process id of the worker; 0: there is none */
    int pid;
    /* weights of the last ready worker: "own", "packed", "kept" or "" */
    const char *weights;
    /* reason why no worker can be started, if it is known; else "" */
    const char *failure;
    /* ms since the worker reported `last`; -1: never */
    int64_t stats_age_ms;
    struct msg_stats last;
};

/* Prepares what all workers share: this executable, the crash page. Returns 0, or -errno with
 * @err. */
int workers_new(struct workers **out, const struct workers_opts *o, struct err *err);
/* needs workers_stop() and the end of the loop before */
struct workers *workers_free(struct workers *w);

/* Returns the port through which api/ reaches the current worker; it lives as long as @w. */
struct api_port *workers_port(struct workers *w);
/* must be called before workers_start() */
void workers_attach(struct workers *w, struct model *model);
/* Sets the files of a model that is opened after workers_new(); before workers_start(). @keys: of
 * both files for kept_claim(), not copied. @print: gguf_fingerprint() of @file. @experts_fd: result
 * of expert_file_read(), taken over. */
void workers_set_files(struct workers *w, const struct gguf *file, const struct gguf *draft,
                       const struct gguf *projector, uint8_t (*keys)[ENGINE_KEEP_KEY],
                       const uint8_t print[16], int experts_fd);
/* Sets the file of the disk tier, which workers wait for until workers_use_disk(). */
void workers_set_disk(struct workers *w, int fd);
/* Lets this worker and later ones use the file of the disk tier, which no other daemon has. Returns
 * false if the worker could not be told, because its channel is full; call it again later. */
bool workers_use_disk(struct workers *w);
/* Releases the file for another daemon. Returns true if on_disk_left() will be called when no
 * process uses it any more; false: none uses it. */
bool workers_release_disk(struct workers *w);
/* Starts the first worker. Returns 0 or -errno. Later workers are started without a call. */
int workers_start(struct workers *w);
/* Ends the worker, or the attempts to start one. No worker is started before the next
 * workers_start(), which may be called after on_unloaded(). The worker must have no generation. */
void workers_unload(struct workers *w);
/* Makes the model one that is loaded on demand (api_port.want). */
void workers_on_demand(struct workers *w);
void workers_stop(struct workers *w); /* kills the worker, after which none is started */

/* In an upgrade: asks the next daemon, at the other end of the socket @fd, which is taken over,
 * to continue the requests. Called at most once, after a worker was ready. */
void workers_offer(struct workers *w, int fd);
/* Answer to workers_offer() so far; opts.on_answer reports changes. */
enum workers_answer { WORKERS_UNASKED, WORKERS_ASKED, WORKERS_ACCEPTED, WORKERS_REFUSED };
enum workers_answer workers_answer(const struct workers *w); /* may be called at any time */
/* Ends the process, so that another one can use its memory and device. Requests wait, or move to
 * the next daemon if it has accepted them. Returns true if on_away() will be called when the
 * process has ended; false: there is no process. */
bool workers_hand_over(struct workers *w);
/* Starts a worker again after workers_hand_over(), because there is no next daemon. */
void workers_come_back(struct workers *w);
/* Returns the READY of the last worker; empty: there was none. */
const struct buf *workers_ready(const struct workers *w);

/* Returns the flight recorder. The worker writes it meanwhile, so readers check every value. */
const struct flight *workers_flight(const struct workers *w);
/* Writes the whole recording in the format of proto/flight_file.h. Returns 0 or -errno. */
int workers_dump(const struct workers *w, struct buf *out);
/* Reports the tenants' use of the device by another worker. */
void workers_report_served(struct workers *w, const struct msg_served *m, uint32_t n);
bool workers_run(const struct workers *w); /* a process exists, or has not quite ended */
/* Returns true if the workers compute on a CUDA device; known once one was ready. */
bool workers_on_device(const struct workers *w);
/* Fills the statistics that the admin socket shows of the worker. */
void workers_stats(const struct workers *w, struct workers_stats *out);
