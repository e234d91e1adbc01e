#pragma once

/*
 * turn - determines the order in which the connections of a server have their turns on the event
 * loop, and how long an iteration serves them.
 *
 * A turn is one read, or one request in the bytes that were read earlier. Payers (payer.h) that
 * have connections with something to read share the loop's time by weight: start-time fair
 * queueing. A payer's virtual time is the time that its turns took, divided by its weight; the next
 * turn is that of the payer with the least, and of its connections the one that has waited longest.
 * A payer that comes back begins where the one that is served stands, so absence earns nothing, and
 * what it asks for waits for one turn of others, however many connections they have. Payers form a
 * tree: a group shares its time between its members.
 *
 * After TURNS_NS the others wait for the next iteration, so that what else the loop does comes in
 * between, and so does a payer whose request has just arrived.
 *
 * Pure: no clock, no input.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

#define TURNS_NS 500000    /* budget of an iteration */
#define ACCEPTS_NS 2000000 /* time in which connections are accepted in an iteration */

/* Embedded in a payer, or the root. Invariant: a flow is in its parent's list exactly while its own
 * list is not empty. */
struct turn_flow {
    /* parent->ready */
    struct list link;
    /* turn.link; of a group turn_flow.link. The oldest first */
    struct list ready;
    struct turn_flow *parent;
    double weight;
    double virtual_ns;
    /* virtual time of the group: that of the member that had the last turn */
    double now_ns;
    bool is_group;
};

/* Embedded in a connection. */
struct turn {
    /* turn_flow.ready */
    struct list link;
};

/* @parent, a group, outlives it; NULL: it is a root, and a group. */
void turn_flow_init(struct turn_flow *f, struct turn_flow *parent, bool is_group, double weight);

void turn_init(struct turn *t); /* a turn that does not wait */
/* Queues @t, which belongs to @f, for a turn; it may already be queued. */
void turn_want(struct turn *t, struct turn_flow *f);
/* Removes @t from the queue; @f as in the last turn_want(). */
void turn_withdraw(struct turn *t, struct turn_flow *f);
/* Returns the connection to serve next, removed from its list. NULL: none waits for a turn. */
struct turn *turn_next(struct turn_flow *root);
/* Charges @f for a turn that took @ns. */
void turn_charge(struct turn_flow *f, int64_t ns);
