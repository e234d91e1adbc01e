#pragma once

/*
 * plan_tape - a plan as a record of the flight recorder: what plan_step() was told and what it
 * decided, so that it can be asked again (weft-sim replay; read by tests/support/plan_again.c).
 *
 * A record is a head, an item for each request, and then, without gaps: weights of the groups,
 * parts, survivals of the drafts (float), which groups are over (bool).
 *
 * Hashes of pages are not kept, only what is equal to what. A hash is chained, so two requests
 * agree up to some page and nowhere behind it: sorted by their hashes, each needs only the number
 * of pages that it has in common with the one before.
 */

#include "base/buf.h"
#include "scheduler/plan.h"

#define PLAN_TAPE_VERSION 3u

/* plan_tape_head.flags, plan_tape_item.flags */
enum {
    TAPE_FAIR = 1,
    TAPE_FAIR_BEGUN = 2,
    TAPE_FAIR_PREEMPTED = 4,
    TAPE_PREWARM = 8,
    TAPE_PARTS = 16, /* there are parts, */
    TAPE_OVERS = 32, /* and who is over */
    TAPE_COPIED = 64,
    TAPE_WHOLE = 128,
};
enum {
    TAPE_UNFIT = 1,
    TAPE_LAST = 2,
    TAPE_ALONE = 4,
    TAPE_STALLED = 8,
    TAPE_TRY = 16,
    TAPE_OVER = 32,
    TAPE_BEGUN = 64,
    TAPE_VICTIM = 128,
};

struct plan_tape_head {
    uint32_t version, n_running, n_waiting, n_groups;
    uint64_t step, turn;
    int64_t at_ns, itl_ns, max_step_ns, add_ns;
    uint32_t page_tokens, n_available, max_rows, max_seqs, max_bypass, force_chunk, force_draft;
    uint32_t reserve_pages, flags;
    float draft_slower;
    uint32_t cost_max_rows, state_pages;
    uint64_t cost_n_seen;
    double cost_error, cost_a[COST_FEATURES];
    /* What was decided. */
    uint32_t n_rows, n_seqs, n_drafts, n_admitted, n_preempted, n_left, alone, fair_preempted;
    int64_t expect_ns;
};

struct plan_tape_item {
    uint64_t id;
    uint32_t n_tokens, n_computed, n_stored, n_pages, n_exclusive, n_target, n_hit, n_idle, n_share;
    uint32_t n_hashes, n_draft_max, leave_seqs, n_bypassed;
    uint32_t place;    /* among those that share, from 1 on */
    uint32_t n_common; /* pages that the one before has too */
    uint16_t group;
    uint8_t pace, flags;
    /* What was decided. */
    uint32_t n_rows, n_draft, n_bypassed_then;
    uint8_t verdict, admitted;
};

/* Begins the record in @out, which is empty: what the plan is told. 0, -errno. */
int plan_tape_begin(struct buf *out, const struct plan *p, uint64_t step, int64_t at_ns);
/* Adds what was decided. */
void plan_tape_end(struct buf *out, const struct plan *p);

/* Of a record that was begun: the caller sets the ids. */
static inline struct plan_tape_item *plan_tape_items(struct buf *out) {
    return (struct plan_tape_item *)(out->data + sizeof(struct plan_tape_head));
}
