#pragma once

/*
 * constrain - makes the masks for the samples of a step. A request has masks if its output is
 * constrained (grammar/constraint.h) or if some tokens are not allowed (allowed.h). A row's mask
 * depends on all tokens before it, including the drafts of the step. While a sample of the previous
 * step is missing, the step computes its logits without masks, and samples when it is sealed.
 */

#include "scheduler/batch.h"

struct engine;

/* Returns whether the masks of launched step @t depend on samples still in flight. */
bool constrain_must_wait(const struct batch *t);
/* Checks that @r, which has just got its constraint, can end its output as the constraint requires.
 * Returns 0, 1 if it cannot (r->why has the reason), or -ENOMEM. */
int constrain_check(struct request *r);
/* Gives the engine the masks of item @i's samples. If @late allows it, a thread makes masks that
 * take long (late.h), and the samples of the item from the first such mask on are discarded.
 * Returns 0; 1: the request must end, r->why has the reason; -EIO. */
enum constrain_late { LATE_NEVER, LATE_LONG, LATE_ALL }; /* LATE_ALL, for tests: also short masks */
int constrain_item(struct batch *t, uint32_t i, struct engine *engine, enum constrain_late late);

/* Computes, for the draft model, the mask behind the first @n drafted tokens, which follow the
 * known tokens in r->tokens. Returns 1; 0: no mask is needed or none exists; -EAGAIN: computing the
 * mask takes long. */
int constrain_draft(const struct request *r, const int32_t *draft, uint32_t n, uint32_t *bits);
