#pragma once

/* recorder - writes requests, plans and steps to the flight recorder (proto/flight.h). */

#include "base/buf.h"
#include "proto/flight.h"
#include "proto/messages.h"

struct batch;
struct flight_tape;
struct plan;
struct request;
struct sched_view;

struct recorder {
    const struct sched_view *view;
    /* NULL: no records */
    struct flight *flight;
    /* NULL: no plans */
    struct flight_tape *tape;
    /* size of the tape's ring */
    uint32_t tape_bytes;
    /* record of the current plan; empty: no memory */
    struct buf record;
};

/* Initialises @c: records go to @flight and plans to @tape; either may be NULL, and both outlive
 * @c. */
void recorder_init(struct recorder *c, const struct sched_view *view, struct flight *flight,
                   struct flight_tape *tape, uint32_t tape_bytes);
/* Frees the unfinished record of a plan; finished records stay. */
void recorder_deinit(struct recorder *c);

/* Records that @r was submitted (WHY_QUEUED), got a slot (WHY_ADMITTED; @detail: cached tokens),
 * lost its @detail pages (WHY_PREEMPTED) or ended (WHY_ENDED; @detail: enum finish_reason). */
void recorder_note(struct recorder *c, struct request *r, enum why why, uint32_t detail);
/* Records that the step with the end of the prompt of @r has ended. What was decided about @r while
 * it ran has been left out of the records, because it took no time. */
void recorder_prompt_end(struct recorder *c, struct request *r, int64_t now);
/* Records the input of plan_step() for requests @planned in step @step. */
void recorder_asks(struct recorder *c, const struct plan *p, struct request *const *planned,
                   uint64_t step);
/* Records the decision of plan_step(). */
void recorder_decided(struct recorder *c, const struct plan *p);
/* Records the verdict about each of @planned, after the plan was applied. */
void recorder_plan(struct recorder *c, const struct plan *p, struct request *const *planned,
                   int64_t now);
/* Records that step @t took @ns and ended at @now. @p: the last plan, which took @plan_us to
 * make. */
void recorder_step(struct recorder *c, const struct plan *p, const struct batch *t,
                   uint32_t plan_us, int64_t ns, int64_t now);
