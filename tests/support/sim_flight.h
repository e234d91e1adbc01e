#pragma once

/* sim_flight - what the flight recorder says is compared with what happened (rules RECORDED and
 * AGAIN). Private to sched_sim. */

struct sim;

/* After a step: the last record of every request, and of the step. */
void sim_flight_after(struct sim *s);
/* A worker has died, and its scheduler is still there to compare with: what is left in memory is
 * whole and tells the story. */
void sim_flight_at_death(struct sim *s);
