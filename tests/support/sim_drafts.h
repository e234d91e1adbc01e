#pragma once

/* sim_drafts - a source of drafts for the simulation, whose drafts are right, wrong or mixed,
 * depending on the options. */

#include "tests/support/sched_sim.h"

/* Returns the value of sched_opts.drafts; NULL: the sources of the daemon. */
const struct draft_source *const *sim_draft_table(const struct sim_opts *o);
/* Sets the simulation that is stepped from now on. Drafts are computed from its clients, since a
 * source receives only the tokens of a sequence. */
void sim_drafts_of(const struct sim *s);
