#pragma once

/*
 * sim_constraint - constrained requests in the simulation: grammars over its letters, an oracle
 * that tries token by token what they allow, and a source that delivers constraints at once, later
 * or never.
 */

#include "base/rng.h"
#include "scheduler/scheduler.h"

struct sim;
struct sim_client;
struct sim_constraint;

/* Constrains the output of the client; call before sim_submit(). A text that is not a grammar makes
 * the request invalid. The texts are not copied. */
void sim_constrain(struct sim *s, struct sim_client *c, const char *grammar, const char *triggers);
void sim_constrain_randomly(struct sim *s, struct sim_client *c, struct rng *r);
struct sim_constraint *sim_constraint_free(struct sim_constraint *c);

/* Callbacks of telltale_ask; @ctx: the client. */
bool sim_constraint_at(void *ctx, const int32_t *out, uint32_t n);
bool sim_constraint_allows(void *ctx, int32_t token);

/* Sets up the source of the scheduler's constraints; call deinit when no client has a
 * constraint. */
void sim_constraints_init(struct sim *s);
void sim_constraints_deinit(struct sim *s);
/* Advances the source by one turn: runs jobs and delivers constraints that are due. */
void sim_constraints_turn(struct sim *s);
/* Returns true if a job or a constraint is pending. */
bool sim_constraints_pending(const struct sim *s);
/* Completes the jobs of a worker that has ended, and checks that it has released its
 * constraints. */
void sim_constraints_reset(struct sim *s);
