#pragma once

/* prewarm - computes the prefixes of expected turns while no client's request runs or waits.
 * Private. */

#include "scheduler/request.h"
#include "scheduler/view.h"

#define PREWARM_MAX 64u /* waiting prewarms; beyond it the oldest is dropped */

struct prewarm {
    const struct sched_view *view;
    /* request.queued, the latest first */
    struct list waiting;
    uint32_t n_waiting;
    /* the one in sched.waiting or sched.running; NULL: none */
    struct request *now;
    /* the pager's counts for prewarmed requests */
    uint64_t n_lookup_tokens, n_hit_tokens;
};

/* Initialises @p without prewarms. */
void prewarm_init(struct prewarm *p, const struct sched_view *view);

/* Add prewarm @r, and end it for reason @why, as sched_finish() does for other requests. */
void prewarm_submit(struct prewarm *p, struct request *r);
void prewarm_finish(struct prewarm *p, struct request *r, enum finish_reason why);
/* Ends the prewarms for the session of client's request @r, which arrives. */
void prewarm_note_turn(struct prewarm *p, const struct request *r);
/* Counts the prewarmed tokens that client's request @r, just admitted, has found. */
void prewarm_found(struct prewarm *p, const struct request *r);
/* Counts, as the pager does, that a prewarm with @before tokens of the prefix cache has asked for
 * @n_asked of them and has @n now. */
void prewarm_count(struct prewarm *p, uint32_t before, uint32_t n_asked, uint32_t n);
/* Starts the next prewarm if no other request runs or waits, and stops it once one does, or once it
 * is stuck. Called before a plan. */
void prewarm_turn(struct prewarm *p);
/* Returns whether the prewarm that runs waits for a picture: the front has dropped its pixels. */
bool prewarm_is_stuck(const struct prewarm *p);
