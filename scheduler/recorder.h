#pragma once

/* recorder - what the flight recorder (proto/flight.h) is told of requests, plans and steps. */

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
    struct flight *flight;    /* NULL: no records */
    struct flight_tape *tape; /* NULL: no plans */
    uint32_t tape_bytes;      /* size of the tape's ring */
    struct buf record;        /* record of the current plan; empty: no memory */
};

/* Records go to @flight, plans to @tape, either may be NULL; both outlive it. */
void recorder_init(struct recorder *c, const struct sched_view *view, struct flight *flight,
                   struct flight_tape *tape, uint32_t tape_bytes);
/* Frees the plan being made; what is recorded stays. */
void recorder_deinit(struct recorder *c);

/* @r was submitted (WHY_QUEUED), got a slot (WHY_ADMITTED; @detail: tokens that it found), lost its
 * @detail pages (WHY_PREEMPTED) or has ended (WHY_ENDED; @detail: enum finish_reason). */
void recorder_note(struct recorder *c, struct request *r, enum why why, uint32_t detail);
/* Before plan_step(): all that it is told, of requests @planned, for step @step. */
void recorder_asks(struct recorder *c, const struct plan *p, struct request *const *planned,
                   uint64_t step);
/* After it: what it decided. */
void recorder_decided(struct recorder *c, const struct plan *p);
/* After a plan was applied: the verdict about each of @planned. */
void recorder_plan(struct recorder *c, const struct plan *p, struct request *const *planned,
                   int64_t now);
/* Step @t took @ns and ended @now; @p is the last plan, which took @plan_us. */
void recorder_step(struct recorder *c, const struct plan *p, const struct batch *t,
                   uint32_t plan_us, int64_t ns, int64_t now);
