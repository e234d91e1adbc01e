#pragma once

/*
 * plan_tape - a plan as a record of the flight recorder: what plan_step() was told and what it
 * decided, so that it can be asked again (weft-sim replay; read by tests/support/plan_again.c).
 *
 * A record is a head, an item for each request, and then, without gaps: weights of the groups,
 * parts, survivals of the drafts (float), which groups are over (bool). Head and items have the
 * plan's own structs in them, with NULL for pointers.
 *
 * Hashes of pages are not kept, only what is equal to what. A hash is chained, so two requests
 * agree up to some page and nowhere behind it: sorted by their hashes, each needs only the number
 * of pages that it has in common with the one before.
 */

#include <stddef.h>
#include "base/buf.h"
#include "scheduler/plan.h"

/* To be raised when the structs change and their sizes do not. */
#define PLAN_TAPE_VERSION                                                                          \
    (7u << 24 | sizeof(struct plan_tape_head) << 12 | sizeof(struct plan_tape_item))

/* From here on the structs have what is decided. */
#define PLAN_DECIDED offsetof(struct plan, fair_preempted)
#define PLAN_REQ_DECIDED offsetof(struct plan_req, n_bypassed)

struct plan_tape_head {
    uint32_t version, cost_max_rows;
    uint64_t step;
    int64_t at_ns;
    double cost_error, cost_speed, cost_a[COST_FEATURES];
    uint8_t has_parts, has_overs;
    struct plan plan; /* recorded input and decision */
    uint8_t decided[sizeof(struct plan) - PLAN_DECIDED];
};

struct plan_tape_item {
    uint64_t id;
    uint32_t place;    /* among those that share, from 1 on */
    uint32_t n_common; /* pages that the one before has too */
    struct plan_req req;
    uint8_t decided[sizeof(struct plan_req) - PLAN_REQ_DECIDED];
};

/* Begins the record in @out, which is empty: what the plan is told. 0, -errno. */
int plan_tape_begin(struct buf *out, const struct plan *p, uint64_t step, int64_t at_ns);
/* Adds what was decided. */
void plan_tape_end(struct buf *out, const struct plan *p);

/* Returns the items of a record that was begun: the caller sets the ids. */
static inline struct plan_tape_item *plan_tape_items(struct buf *out) {
    return (struct plan_tape_item *)(out->data + sizeof(struct plan_tape_head));
}
