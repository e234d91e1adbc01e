#pragma once

/*
 * turn - for how long the connections of a server keep one iteration of the event loop.
 *
 * A callback is short, but hundreds of sockets may be readable at once. When the reads of an
 * iteration have taken TURN_NS, the other connections have their turns in the next ones, each of
 * them once before any has a second: all that had one wait until the round is over. So however
 * much some send, the time to a turn is bounded by the number of connections, and what else runs on
 * the loop comes in between.
 *
 * Pure: no clock, no input.
 */

#include <stdbool.h>
#include <stdint.h>

#define TURN_NS 5000000
#define TURN_ACCEPTS 16 /* connections that are accepted in an iteration */

/* Invariant: a connection that has been left out since the round began has another number than
 * `round`. */
struct turn {
    uint32_t round;
    uint32_t n_accepted; /* in this iteration */
    int64_t began_ns;    /* its first read; 0: there was none */
    uint64_t n_deferred; /* reads and connections that were put off to the next iteration, in all */
    bool left_out;       /* in it a connection that has had no turn in this round */
    bool goes_on;        /* the round began in an earlier iteration */
};

void turn_init(struct turn *t);
/* The iteration is over. */
void turn_end(struct turn *t);
/* Whether the connection whose last round is *round reads now; else it is readable again in the
 * next iteration. */
bool turn_read(struct turn *t, uint32_t *round, int64_t now);
/* Whether one more connection is accepted in this iteration. */
bool turn_accept(struct turn *t);
/* What a new connection has as its last round: it waits for those that were left out. */
uint32_t turn_first_round(const struct turn *t);
