#pragma once

/* sim_drafts - a source of drafts for the simulation, which is right, wrong or both as its options
 * say. */

#include "tests/support/sched_sim.h"

/* For sched_opts.drafts; NULL: the real one. */
const struct draft_source *const *sim_draft_table(const struct sim_opts *o);
/* The simulation that is stepped from now on: a source is told the tokens of a sequence and no
 * more. */
void sim_drafts_of(const struct sim *s);
