#pragma once

/* sim_expect - what a client of the simulation must get, computed from its request alone. */

#include "tests/support/sched_sim.h"

/* Its tokens, digests and log probabilities, and where it ends. */
void sim_expect(const struct sim *s, struct sim_client *c);
/* What it must get and what would come behind becomes its prediction, with changes: tokens
 * replaced, left out, put in. */
void sim_predict(struct sim_client *c);

bool sim_wants_vector(const struct sim_client *c);
/* The vector of its prompt, made when it is needed: some have thousands of tokens. */
void sim_expect_vector(const struct sim_client *c, float vector[SIM_EMBD]);
