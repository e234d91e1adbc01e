#pragma once

/*
 * crowd - clients that send and fetch megabytes, and a quiet client that asks for little. The
 * answers of the crowd are not checked; the quiet one's must come before the front has worked for
 * 2 ms on other things (rule QUIET), a tenth of what is promised beside crowds that are larger.
 *
 * In some scenarios many connections that send nothing come at the same time, so that their
 * deadlines pass in the same iteration of the loop.
 */

#include "tests/front_sim/sim.h"

/* Starts the crowd. @key: key of its tenant; NULL: none. @silent: also the silent connections. */
void crowd_begin(const char *address, const char *key, bool silent);
bool crowd_is_done(void); /* true also if it was not begun */
void crowd_end(void);
