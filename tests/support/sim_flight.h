#pragma once

/* sim_flight - compares the flight recorder's records with the simulation (rules RECORDED and
 * AGAIN). Private to sched_sim. */

struct sim;

/* Checks the last record of every request and of the step; call after a step. */
void sim_flight_after(struct sim *s);
/* Checks that the recorder's memory is intact after a worker has died, while its scheduler still
 * exists for comparison. */
void sim_flight_at_death(struct sim *s);
