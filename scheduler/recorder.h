#pragma once

/* recorder - what the flight recorder (proto/flight.h) is told. Private. */

#include "proto/flight.h"
#include "proto/messages.h"

struct batch;
struct request;
struct sched;

/* All do nothing without a recorder. */
void recorder_came(struct sched *s, struct request *r);
void recorder_ended(struct sched *s, struct request *r, enum finish_reason why);
void recorder_preempted(struct sched *s, struct request *r, uint32_t n_pages);
void recorder_admitted(struct sched *s, struct request *r);
/* Before and after plan_step(): all that it is told, and what it decides. */
void recorder_asks(struct sched *s);
void recorder_decided(struct sched *s);
/* After a plan was applied: its verdicts. */
void recorder_plan(struct sched *s, int64_t now);
/* A step has ended. */
void recorder_step(struct sched *s, const struct batch *t, int64_t ns, int64_t now);
