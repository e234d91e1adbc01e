#pragma once

/*
 * sim_constraint - constrained requests in the simulation: grammars over its letters, what they
 * allow, found by trying token by token, and a source that hands them out at once, later or never.
 */

#include "base/rng.h"
#include "scheduler/scheduler.h"

struct sim;
struct sim_client;
struct sim_constraint;

/* Constrains what the client gets; before sim_submit(). A grammar that is none makes it invalid.
 * The texts stay where they are. */
void sim_constrain(struct sim *s, struct sim_client *c, const char *grammar, const char *triggers);
void sim_constrain_randomly(struct sim *s, struct sim_client *c, struct rng *r);
struct sim_constraint *sim_constraint_free(struct sim_constraint *c);

/* For telltale_ask; @ctx: the client. */
bool sim_constraint_at(void *ctx, const int32_t *out, uint32_t n);
bool sim_constraint_allows(void *ctx, int32_t token);

/* Where the scheduler asks; deinit when no client has a constraint any more. */
void sim_constraints_init(struct sim *s);
void sim_constraints_deinit(struct sim *s);
/* Time passes: what is due is told. */
void sim_constraints_turn(struct sim *s);
/* A request waits for one. */
bool sim_constraints_pending(const struct sim *s);
/* The worker is gone. */
void sim_constraints_reset(struct sim *s);
