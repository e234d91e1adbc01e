#pragma once

/*
 * fairq - decides which item runs next when tenants share a few places: start-time fair queueing. A
 * tenant's virtual time is the time that its items have run, divided by its weight. The waiting
 * tenant with the least virtual time is next, with its item that has run the fewest quanta: items
 * of a tenant change once per quantum and not at each pause, because each change costs cache misses
 * and a wake-up. A tenant that returns from idleness begins at most FAIRQ_CREDIT_NS before the
 * active tenants. An occasional short job of a tenant therefore runs at once, in the middle of
 * another tenant's long work, and absence earns no more credit than that.
 *
 *            next                end         next_ended       remove
 *     NEW ─────────> RUNNING ─────────> ENDED ─────────> REPORTED ─> out
 *      |   .-- pause --' ^                ^
 *      |   '-> PAUSED ---' next           |
 *      '-- withdrawn ---------------------'
 *
 * An item that has begun holds one of n_slots (a thread, with its stack) until it ends, and one of
 * n_places while it runs. A tenant never has all places if there is more than one, and begins a
 * further item only while it has fewer slots than a quarter of the free ones: the more slots are
 * taken, the fewer a tenant can add.
 *
 * Items that have ended are reported in the order of the same virtual time, and what the report
 * costs is charged like the run: a tenant whose items end by the hundred waits for its reports
 * behind the others.
 *
 * The queue has no lock and no clock: the caller locks and measures time.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

struct fairq_flow;

#define FAIRQ_CREDIT_NS 100000000 /* most virtual time by which a tenant may be behind the others */
#define FAIRQ_QUANTUM_NS 16000000 /* longest turn of an item while other items of its tenant wait */

/* Embedded in the object that waits; zeroed by the owner. */
struct fairq_item {
    /* in fairq_flow.waiting while NEW or PAUSED, in fairq_flow.ended while ENDED */
    struct list link;
    struct fairq_flow *flow;
    int64_t used_ns;
    bool begun, running, ended;
    /* runs after all items that are not in the background */
    bool background;
};

/* Invariants: n_running <= n_begun <= n_slots, n_running <= n_places, n_begun + n_ended <= n_items,
 * which also counts those that are being reported; virtual_ns never goes back; a
 * flow exists while it has items, or while its virtual time would not allow the full credit. */
struct fairq {
    uint32_t n_places, n_slots;
    uint32_t n_running, n_begun, n_ended, n_items;
    /* fairq_flow.link */
    struct list flows;
    double virtual_ns;
};

/* Initialises an empty queue; 0 < @n_places <= @n_slots. */
void fairq_init(struct fairq *q, uint32_t n_places, uint32_t n_slots);
void fairq_deinit(struct fairq *q); /* the queue must have no items */
/* Adds @i, which is in no queue and stays the caller's, as NEW. @weight > 0; a tenant has the
 * weight of its last item. Returns 0 or -ENOMEM. Takes time linear in the number of tenants, as do
 * the functions below. */
int fairq_add(struct fairq *q, struct fairq_item *i, uint32_t tenant, double weight);
/* Gives the next item a place and returns it; NULL: no place is free, or no item may take one. */
struct fairq_item *fairq_next(struct fairq *q);
/* Charges @i, which has begun or ended, for another @ns >= 0. */
void fairq_charge(struct fairq *q, struct fairq_item *i, int64_t ns);
void fairq_pause(struct fairq *q, struct fairq_item *i); /* @i is RUNNING; takes its place */
/* Withdraws @i, which is NEW or PAUSED. A NEW item has ended; a PAUSED one continues without a
 * place and keeps its slot until fairq_end(). */
void fairq_withdraw(struct fairq *q, struct fairq_item *i);
/* @i is RUNNING, or was withdrawn when PAUSED */
void fairq_end(struct fairq *q, struct fairq_item *i);
/* Returns the first ENDED item of the tenant with the least virtual time, which is REPORTED then;
 * NULL: none has ended. */
struct fairq_item *fairq_next_ended(struct fairq *q);
/* Removes @i, which is REPORTED, from the queue. */
void fairq_remove(struct fairq *q, struct fairq_item *i);
