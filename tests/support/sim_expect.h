#pragma once

/* sim_expect - computes the expected result of a simulated client from its request alone. */

#include "tests/support/sched_sim.h"

/* Computes the tokens, digests and log probabilities of the client, and where its output ends. */
void sim_expect(const struct sim *s, struct sim_client *c);
/* Makes the client's prediction from its expected output and the tokens that would follow, with
 * some tokens replaced, removed or inserted. */
void sim_predict(struct sim_client *c);

bool sim_wants_vector(const struct sim_client *c);
/* Computes the expected vector of the prompt. Called only when it is compared, since some prompts
 * have thousands of tokens. */
void sim_expect_vector(const struct sim_client *c, float vector[SIM_EMBD]);
