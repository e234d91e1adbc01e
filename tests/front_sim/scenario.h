#pragma once

/*
 * scenario - what a seed draws: the daemon's options, its clients, what goes wrong, and the checks
 * while it runs and when it has ended.
 */

#include <stdbool.h>
#include <stdint.h>

#define SCENARIO_ARGS 64

struct scenario {
    char *argv[SCENARIO_ARGS];
    int argc;
    uint32_t n_models, n_clients;
    bool calm; /* nothing goes wrong, no client has a fault, nothing is refused */
    bool deaths, hangs, refuses, tenants, tight, drains_early, reloads, manages, upgrades, resets;
};

/* Draws it from the seed, and starts its actors. */
void scenario_begin(struct scenario *s);
/* The front's main() has returned @code. */
void scenario_end(struct scenario *s, int code);
