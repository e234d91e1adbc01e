#pragma once

/* scheduler_private - the scheduler's object, shared by scheduler.c (what others call) and the
 * files of a step. */

#include "kvpager/media.h"
#include "scheduler/batch.h"
#include "scheduler/drafter.h"
#include "scheduler/fair_share.h"
#include "scheduler/plan.h"
#include "scheduler/prewarm.h"
#include "scheduler/recorder.h"
#include "scheduler/pictures.h"
#include "scheduler/pin.h"
#include "scheduler/scheduler.h"
#include "scheduler/spec.h"
#include "scheduler/state.h"
#include "scheduler/offload.h"
#include "scheduler/view.h"

#define SCHED_DEPTH_MAX 2u
#define SCHED_CANDIDATES FAIR_CANDIDATES
#define SCHED_ID_SLOTS 4096u

struct sched {
    struct sched_opts opts;
    struct engine *engine;
    const struct engine_info *info;
    struct clock *clock;
    struct kv_pager *pager;
    struct sched_view view;

    struct list waiting, running; /* request.queued, by virtual arrival */
    struct list compiling;        /* request.queued, in order of submission */
    struct list pending;          /* request.pending */
    struct request *by_id[SCHED_ID_SLOTS];
    uint64_t n_submitted;
    int64_t next_deadline_ns; /* no later than the first of them */
    bool unsent;              /* the last event batch did not hold all pending events */

    struct plan plan;
    struct plan_req *plan_req; /* [max_seqs + SCHED_CANDIDATES], and whose they are */
    struct request **planned;
    struct cost cost;
    struct sessions sessions;
    struct estimate estimate;
    struct spec spec;
    struct drafter *drafter; /* NULL: there is no draft model */
    struct offload offload;
    struct kv_opts pager_opts;
    int64_t leave_disk_ns; /* at the latest; INT64_MAX: it is not left */
    struct states states;
    struct fair_share fair;
    struct pins pins;
    struct prewarm prewarm;
    struct kv_media media;
    struct pictures pictures;
    struct recorder recorder;

    struct batch batch[SCHED_DEPTH_MAX]; /* of step n in [n % SCHED_DEPTH_MAX] */
    uint64_t n_launched, n_waited;       /* steps */
    uint64_t step;          /* the engine's last one: those that drafted are among them */
    int64_t last_end_ns;    /* of the last step waited for */
    int64_t checked_ns;     /* when the pager was last checked */
    bool lost;              /* the engine */
    struct msg_stats stats; /* its counters */
};

/* Steps that were launched and not waited for. */
static inline uint32_t sched_n_in_flight(const struct sched *s) {
    return (uint32_t)(s->n_launched - s->n_waited);
}

/* scheduler.c */

/* Returns the place of request @id in the table of ids, or where it would be. */
struct request **sched_slot(struct sched *s, uint64_t id);

/* Ends a request that waits or runs: its pages are free, the front will be told. */
void sched_finish(struct sched *s, struct request *r, enum finish_reason why);
/* Frees a request that is over, once the front knows and no step has it. */
void sched_maybe_free(struct sched *s, struct request *r);
/* Ends the requests that wait for @x, of which there are no rows, for the reason @why. */
void sched_fail_picture(struct sched *s, const struct sched_picture *x, const struct err *why);

/* tier.c */

/* Opens the file of the disk tier where @use, and where this model has use for it. One that cannot
 * be used is told to opts.disk.note, and there is no such tier then. */
void tier_init(struct sched *s, bool use);
void tier_deinit(struct sched *s);
/* Returns whether @r waits for the disk; if so it is put into the queue later. */
bool tier_begin_load(struct sched *s, struct request *r);
/* @r, which waits for it, is over. */
void tier_cancel_load(struct sched *s, struct request *r);
/* Before each step: takes what was read and written; leaves the file, if that was asked for and all
 * is written. */
void tier_step(struct sched *s);
/* When it is to be looked at again, or INT64_MAX. */
int64_t tier_wake_ns(const struct sched *s);

/* step.c */

/* Plans and launches a step. 0; 1: there is nothing that can be launched now; -EIO, -ENOMEM. */
int step_launch(struct sched *s);
/* Launches a step that has nothing but copies, when none is in flight. As step_launch(). */
int step_copies(struct sched *s);
/* Computes pieces of a picture, as long as the next step allows; that has less time for prompts. */
void step_pictures(struct sched *s);
/* Returns whether the last step launched is expected to take so long that none is launched behind
 * it. */
bool step_is_long(const struct sched *s);
/* Hands the masks of step @t, which is launched, to the engine and lets it sample. 0, -EIO,
 * -ENOMEM. */
int step_seal(struct sched *s, struct batch *t);
/* Writes the ids of all requests that a step in flight has, and with @drafts of those for which the
 * draft model is about to run, to the crash page, for the front to read if this process dies. */
void step_write_crash_page(struct sched *s, int64_t now, bool drafts);

/* step_gather.c */

/* Fills s->plan and s->planned: running requests in order, the first waiting ones, pages,
 * limits. */
void step_gather(struct sched *s);
/* Before drafts are asked for: what this step may try. May be called again for the same step. */
void step_begin_drafts(struct sched *s);
/* Attaches the pages that running request @r finds in the prefix cache, and counts them. No step
 * in flight has it. */
void step_attach(struct sched *s, struct request *r);

/* step_apply.c */

/* Sets n_host of those that the plan admits and of which host memory has more than the device,
 * where fetching is faster than computing. Whether there are any: then the plan is to be made
 * again. */
bool step_look_in_host(struct sched *s);
/* Preempts, then admits. Preempted requests wait again; admitted ones have a sequence and its
 * prefix. */
void step_apply_places(struct sched *s, int64_t now);
/* Takes the pages for the rows of the plan, which has counted them. */
void step_apply_rows(struct sched *s);
/* Fills batch @t with the plan's rows and drafts and the copies that were decided. 0 or -ENOMEM. */
int step_build(struct sched *s, struct batch *t);

/* step_complete.c */

/* Waits for the oldest step in flight and takes its results. 0, -EIO: the engine is lost,
 * -ENOMEM. */
int step_wait(struct sched *s);
