#pragma once

/*
 * scenario - the choices of a seed: the daemon's options, its clients, the faults, and the checks
 * during the run and at its end.
 */

#include <stdbool.h>
#include <stdint.h>

#define SCENARIO_ARGS 64

struct scenario {
    char *argv[SCENARIO_ARGS];
    int argc;
    uint32_t n_models, n_clients;
    /* no faults, no faulty clients, no refusals */
    bool calm;
    /* workers send damaged frames; set before scenario_begin() */
    bool damages;
    /* clients of megabytes, and a quiet one */
    bool crowd;
    bool deaths, hangs, refuses, tenants, tight, drains_early, reloads, manages, upgrades, resets;
};

/* Draws the scenario from the seed, and starts its actors. */
void scenario_begin(struct scenario *s);
/* Ends the scenario after the front's main() has returned @code, or has ended the process with it
 * because a thread has not ended in its time (@gave_up). */
void scenario_end(struct scenario *s, int code, bool gave_up);
