#pragma once

/*
 * plan_tape - records plans in the flight recorder: the input and the decision of each plan_step(),
 * so that a plan can be computed again and compared (weft-sim replay; tests/support/plan_again.c
 * reads it).
 *
 * A record is a struct plan_tape_head, then a struct plan_tape_item for each request, then the
 * arrays that the plan points to (shares of tenants, survivals of drafts). plan_tape_begin() copies
 * the input before plan_step(), plan_tape_end() the members that it decides. Hashes of pages are
 * not recorded: requests that share pages are ranked, with the number of pages that each has in
 * common with the one before.
 */

#include <stddef.h>

#include "base/buf.h"
#include "scheduler/plan.h"

/* Version, to be raised when the structs change and their sizes do not. */
#define PLAN_TAPE_VERSION                                                                          \
    (8u << 24 | sizeof(struct plan_tape_head) << 12 | sizeof(struct plan_tape_item))

/* Offsets from which on the members of the structs are the decision. */
#define PLAN_DECIDED offsetof(struct plan, fair_preempted)
#define PLAN_REQ_DECIDED offsetof(struct plan_req, n_bypassed)

struct plan_tape_head {
    uint32_t version, cost_max_rows;
    uint64_t step;
    int64_t at_ns;
    double cost_error, cost_speed, cost_least_noise, cost_a[COST_FEATURES];
    uint64_t cost_decodes;
    uint8_t has_parts, has_overs;
    /* recorded input and decision */
    struct plan plan;
    uint8_t decided[sizeof(struct plan) - PLAN_DECIDED];
};

struct plan_tape_item {
    uint64_t id;
    /* rank among requests that share pages, from 1 on */
    uint32_t place;
    /* pages in common with the request of the previous rank */
    uint32_t n_common;
    struct plan_req req;
    uint8_t decided[sizeof(struct plan_req) - PLAN_REQ_DECIDED];
};

/* Begins the record of the input of plan @p in @out, which is empty. Returns 0 or -errno. */
int plan_tape_begin(struct buf *out, const struct plan *p, uint64_t step, int64_t at_ns);
/* Adds the decision to the record. */
void plan_tape_end(struct buf *out, const struct plan *p);

/* Returns the items of a record that was begun; the caller sets the ids. */
static inline struct plan_tape_item *plan_tape_items(struct buf *out) {
    return (struct plan_tape_item *)(out->data + sizeof(struct plan_tape_head));
}
