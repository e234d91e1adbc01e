#pragma once

/*
 * workers_private - the object shared by workers.c (the processes), workers_open.c (descriptors and
 * options of a process) and workers_away.c (the move to the next daemon).
 */

#include <uv.h>

#include "daemon/worker/worker.h"
#include "daemon/workers/expert_file.h"
#include "daemon/workers/faults.h"
#include "daemon/workers/worker_chan.h"
#include "daemon/workers/workers.h"

/* States of the diagram in workers.h; workers_set_state() has the table of legal transitions. */
enum workers_state {
    WORKERS_DOWN,
    WORKERS_LOADING,
    WORKERS_SERVING,
    WORKERS_IDLE,
    WORKERS_AWAY,
    WORKERS_STOPPED
};

/* The next daemon's answer to workers_offer(). TAKEN: its worker computes for this daemon too. */
enum workers_next { NEXT_NONE, NEXT_OFFERED, NEXT_ACCEPTED, NEXT_REFUSED, NEXT_TAKEN };

/*
 * process_open: the process or its handle still exists. Invariants (workers_check()): chan.open
 * implies it, and LOADING and SERVING imply both; was_ready is set in SERVING and in states that
 * follow it only; NEXT_TAKEN implies WORKERS_AWAY and no process. next_chan is open in OFFERED,
 * ACCEPTED and TAKEN. In DOWN without a process, a pause before the next start is running.
 */
struct workers {
    struct api_port port;
    struct workers_opts opts;
    /* the api's model; NULL before workers_attach() */
    struct model *model;
    enum workers_state state;
    /* some worker was READY since the start or workers_unload() */
    bool served;
    /* the present worker was READY */
    bool was_ready;
    /* backend of the first worker, which later ones keep for the same tokens; "": none */
    char backend[16];
    /* experts stay where `experts` says, because the output depends on it */
    bool placed;
    struct expert_file experts;
    uv_process_t process;
    uv_timer_t watch, restart;
    /* killed: by the front */
    bool process_open, killed, killed_for_hang;
    /* OPEN was sent to the present worker */
    bool open_sent;
    /* on_disk_left() must be called */
    bool leaving_disk;
    struct worker_chan chan;
    enum workers_next next;
    /* channel to the next daemon (workers_away.c) */
    struct worker_chan next_chan;
    /* the READY message of the last worker */
    struct buf ready;
    /* events of the frame that is read */
    struct event_cursor events;
    struct buf out;
    /* bytes of requests and pictures that were sent since others had their turn */
    size_t n_turn;
    int crash_page_fd;
    struct crash_page *crash_page;
    /* recorder of this worker and its predecessors */
    struct flight *flight;
    /* time when the process was started */
    int64_t started_ns;
    /* time when it began to serve */
    int64_t ready_ns;
    /* time of the last change of its step count */
    int64_t progress_ns;
    /* time of the last check */
    int64_t watched_ns;
    uint64_t progress_step;
    uint32_t backoff_ms, n_started, n_deaths, n_hangs;
    /* starts in a row that failed */
    uint32_t n_failed;
    /* deaths in a row of workers that had just begun to serve */
    uint32_t n_early;
    /* time of the first of them, or of the last refusal for them */
    int64_t early_ns;
    /* time when the last serving worker was lost */
    int64_t down_ns;
    /* the change of the file was logged */
    bool file_changed;
    struct faults faults;
    uint8_t (*keys)[ENGINE_KEEP_KEY];
    /* weights of the model and of the draft model; NULL: they stay the worker's own memory */
    struct kept_file *kept[2];
    /* see workers_stats */
    const char *weights;
    /* reason that the present worker gave; "": none */
    char refusal[400];
    /* reason passed to api_worker_failed(); "": none */
    char failure[400];
    struct msg_stats last;
    bool has_stats;
};

/* Changes the state; no other function does. */
void workers_set_state(struct workers *w, enum workers_state next);
/* Passes the next of `events`, the events of one step, to the api, which may end a generation and
 * start others. Returns as msg_events_next(). */
int workers_next_event(struct workers *w);
/* Implements worker_chan_opts.room. */
void workers_on_room(void *ctx);
/* Returns the number of deaths of its workers at which request @id was present; for
 * api_worker_up(). */
uint32_t workers_n_faults(struct api_port *p, uint64_t id);
/* Ends the process. @served: it gets time to write to its disk tier. */
void workers_end_process(struct workers *w, bool served);
/* Schedules the start of the next worker; the state is DOWN, without a process. */
void workers_schedule_restart(struct workers *w);
/* Ends the exchange with the next daemon. */
void workers_detach_next(struct workers *w);
/* Reports that the process of a worker that is AWAY has ended. */
void workers_gone(struct workers *w);

/* workers_open.c */

/* A worker's descriptors in the order of enum worker_fd: files of the model and the draft model,
 * the projector, the disk tier, packed weights and the experts' file, each if it exists. */
struct workers_fds {
    uv_stdio_container_t stdio[WORKER_FD_MODEL + 2 * WORKER_SHARDS_MAX + 4];
    uint32_t n, n_shards;
};

/* Lists the descriptors of the next worker, whose end of the channel is @channel. Returns 0;
 * -E2BIG: too many shards. */
int workers_list_fds(struct workers *w, int channel, struct workers_fds *out);
/* Packs OPEN: the options of section [engine] and the values that only the front knows. Returns 0
 * or -errno. */
int workers_pack_open(const struct workers *w, struct buf *out);
/* Gives back the weights that workers_list_fds() claimed. @bad: no worker may use them again. */
void workers_release_weights(struct workers *w, bool bad);
/* Keeps the claimed weights, with which a worker is ready. A backend that packs nothing leaves its
 * file empty. */
void workers_confirm_weights(struct workers *w);
