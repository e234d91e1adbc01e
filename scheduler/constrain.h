#pragma once

/*
 * constrain - masks of requests whose output is constrained (grammar/constraint.h), or whose tokens
 * are not all allowed (allowed.h), for the wants of a step.
 *
 * A row's mask follows from all tokens before it, the drafts of the step included. When a sample
 * of the step before is still to come, so are the masks of this step: it computes meanwhile and
 * samples when it is sealed.
 */

#include "scheduler/batch.h"

struct engine;

/* Returns whether masks of step @t, which is launched, depend on samples that are to come. */
bool constrain_must_wait(const struct batch *t);
/* Checks that the output of @r, whose constraint has just come, can be complete where it must be.
 * Returns 0, 1 if it cannot (r->why says so), or -ENOMEM. */
int constrain_check(struct request *r);
/* Hands the engine the masks of item @i's samples. A mask that would take long is made by a thread
 * (late.h) where @late allows that, and from its sample on none of the item is taken. 0; 1: the
 * request has to end, r->why says why; -EIO. */
enum constrain_late { LATE_NEVER, LATE_LONG, LATE_ALL }; /* ALL: in tests, also short masks */
int constrain_item(struct batch *t, uint32_t i, struct engine *engine, enum constrain_late late);

/* For the draft model: the mask behind the first @n drafted tokens, which stand in r->tokens
 * behind the others, too: 1. 0: it needs none, or there is none; -EAGAIN: it takes long. */
int constrain_draft(const struct request *r, const int32_t *draft, uint32_t n, uint32_t *bits);
