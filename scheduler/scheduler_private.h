#pragma once

/* scheduler_private - the scheduler's object, shared by scheduler.c (the public functions) and the
 * files of a step. */

#include "kvpager/media.h"
#include "scheduler/batch.h"
#include "scheduler/drafter.h"
#include "scheduler/fair_share.h"
#include "scheduler/pictures.h"
#include "scheduler/pin.h"
#include "scheduler/plan.h"
#include "scheduler/prewarm.h"
#include "scheduler/recorder.h"
#include "scheduler/scheduler.h"
#include "scheduler/spec.h"
#include "scheduler/state.h"
#include "scheduler/view.h"

struct msg_stats;

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

    /* request.queued, by virtual arrival */
    struct list waiting, running;
    /* request.queued, in order of submission */
    struct list compiling;
    /* request.pending */
    struct list pending;
    struct request *by_id[SCHED_ID_SLOTS];
    uint64_t n_submitted;
    /* no later than the earliest deadline */
    int64_t next_deadline_ns;
    /* the last event batch did not hold all pending events */
    bool unsent;

    struct plan plan;
    /* [max_seqs + SCHED_CANDIDATES], and their requests */
    struct plan_req *plan_req;
    struct request **planned;
    struct cost cost;
    struct sessions sessions;
    struct estimate estimate;
    struct spec spec;
    /* NULL: there is no draft model */
    struct drafter *drafter;
    struct kv_tier *tier;
    /* time by which the disk tier is left; INT64_MAX: it is used */
    int64_t leave_disk_ns;
    struct states states;
    struct fair_share fair;
    struct pins pins;
    struct prewarm prewarm;
    struct kv_media media;
    struct pictures pictures;
    struct recorder recorder;

    /* batch of step n, in [n % SCHED_DEPTH_MAX] */
    struct batch batch[SCHED_DEPTH_MAX];
    /* number of steps launched, and of steps waited for */
    uint64_t n_launched, n_waited;
    /* number of the engine's last step; steps of drafting are counted */
    uint64_t step;
    /* end of the last step waited for */
    int64_t last_end_ns;
    /* expected time of the steps since the last one that left no tenant's requests out */
    int64_t left_out_ns;
    /* time of the last check of the pager */
    int64_t checked_ns;
    /* the engine is lost */
    bool lost;
    /* counters since the start */
    struct msg_stats stats;
};

static inline uint32_t sched_n_in_flight(const struct sched *s) {
    return (uint32_t)(s->n_launched - s->n_waited);
}

/* scheduler.c */

/* Returns the place of request @id in the table of ids, or the place where it would be inserted. */
struct request **sched_slot(struct sched *s, uint64_t id);

/* Ends waiting or running request @r for reason @why: its pages are free at once, and the front
 * gets an event. */
void sched_finish(struct sched *s, struct request *r, enum finish_reason why);
/* Frees @r if it has ended, the front knows it, and no step in flight has it. */
void sched_maybe_free(struct sched *s, struct request *r);
/* Ends the requests that wait for picture @x, which cannot be computed, for reason @why. */
void sched_fail_picture(struct sched *s, const struct sched_picture *x, const struct err *why);

/* features.c */

/* The end of a request. */
struct feature_end {
    enum finish_reason why;
    /* the output is complete */
    bool well;
    /* tokens in pages at a good end, which other requests may use; else 0 */
    uint32_t n_stored;
};

/* Tell the features, in the order of the table there: that @r, of message @m, was accepted; that a
 * step may follow; that @r ends for reason @why. Then @r has no pages and waits for nothing. */
void features_submit(struct sched *s, struct request *r, const struct submit *m);
void features_step(struct sched *s);
void features_finish(struct sched *s, struct request *r, enum finish_reason why);

/* step.c */

/* Plans and launches a step. Returns 0; 1: nothing can be launched now; -EIO, -ENOMEM. */
int step_launch(struct sched *s);
/* Launches a step of copies only, when none is in flight. Returns as step_launch(). */
int step_copies(struct sched *s);
/* Computes pieces of a picture for as long as the next step allows, and subtracts their time from
 * that step's time for prompts. Returns 0, or -EIO: the engine is lost. */
int step_pictures(struct sched *s);
/* Returns whether the last launched step is expected to take so long that no step is launched
 * behind it. */
bool step_is_long(const struct sched *s);
/* Gives the engine the masks of step @t, which is launched, and lets it sample. Returns 0, -EIO,
 * -ENOMEM. */
int step_seal(struct sched *s, struct batch *t);
/* Writes the ids of the requests in steps in flight to the crash page, for the front to read if
 * this process dies; with @drafts also those for which the draft model is about to run. */
void step_write_crash_page(struct sched *s, int64_t now, bool drafts);

/* step_gather.c */

/* Fills s->plan and s->planned: running requests in order, the first waiting ones, pages,
 * limits. */
void step_gather(struct sched *s);
/* Prepares the drafts that this step may try. May be called again for the same step. */
void step_begin_drafts(struct sched *s);
/* Attaches the pages that running request @r finds in the prefix cache, and counts them. No step in
 * flight may have @r. */
void step_attach(struct sched *s, struct request *r);

/* step_apply.c */

/* Sets n_host of the admitted requests that have a longer prefix in host memory than on the device,
 * if copying it is faster than computing it. Returns whether there are any; then the plan must be
 * made again. */
bool step_look_in_host(struct sched *s);
/* Applies the plan's preemptions, then its admissions: preempted requests wait again, admitted ones
 * get a sequence with their cached prefix. */
void step_apply_places(struct sched *s, int64_t now);
/* Takes the pages for the rows of the plan, which has made sure that they are available. */
void step_apply_rows(struct sched *s);
/* Fills batch @t with the plan's rows and drafts and with the decided copies. Returns 0 or
 * -ENOMEM. */
int step_build(struct sched *s, struct batch *t);

/* step_complete.c */

/* Waits for the oldest step in flight and takes its results. Returns 0, -EIO: the engine is lost,
 * -ENOMEM. */
int step_wait(struct sched *s);

/* ---- tier.c: the scheduler's side of the tiers behind the pager (kvpager/tier.h) ---- */

/* Makes the tiers behind the pager, which has the options @device, without a file. Returns 0 or a
 * negative errno. */
int tier_init(struct sched *s, const struct kv_opts *device);
/* Frees the tiers; accepts a zeroed @s. */
void tier_deinit(struct sched *s);
/* Opens the disk tier if the model can use it. A fault of the file goes to opts.disk.note, and
 * there is no disk tier then. */
void tier_open(struct sched *s);
/* Starts to read pages of @r from the disk if that pays. Returns true if it did; @r is then queued
 * when they have been read. */
bool tier_begin_load(struct sched *s, struct request *r);
/* Cancels the read for @r, which has ended. */
void tier_cancel_load(struct sched *s, struct request *r);
/* Saves the pages of @r, which is about to lose them, if that is faster than computing. */
void tier_swap(struct sched *s, const struct request *r);
/* Sets n_host of @r, which was admitted with @n_hit tokens, if host memory has a longer prefix and
 * copying it is faster than computing. Returns whether it is set. */
bool tier_look(struct sched *s, struct request *r, uint32_t n_hit);
/* Returns whether pages wait to be saved or copied. */
bool tier_has_copies(const struct sched *s);
/* Returns the number of pages that are copied back before the next step, and lets as many again be
 * copied: no request waits for that step. */
uint32_t tier_fetch_more(struct sched *s);
/* Decides to save a few queued pages with the next step, more of them where it is @idle, without
 * rows. */
void tier_work(struct sched *s, bool idle);
/* Adds the decided copies to @t: first those of pages, then of states. Returns 0 or -ENOMEM. */
int tier_build(struct sched *s, struct batch *t);
/* Takes finished reads and writes before a step. Leaves the file, if that was asked for and
 * everything is written. */
void tier_step(struct sched *s);
/* Returns when tier_step() must be called again, or INT64_MAX. */
int64_t tier_wake_ns(const struct sched *s);
/* Sets the counters of host memory, and counters and gauges of the file. */
void tier_stats(const struct sched *s, struct msg_stats *out);
