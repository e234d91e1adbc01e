#pragma once

/* prewarm - prefixes computed ahead, for turns that have not come yet, while no request asks for
 * anything. Private. */

#include "scheduler/request.h"
#include "scheduler/view.h"

#define PREWARM_MAX 64u /* waiting ones; beyond that the oldest is dropped */

struct prewarm {
    const struct sched_view *view;
    struct list waiting; /* request.queued, the latest first */
    uint32_t n_waiting;
    struct request *now;                    /* in sched.waiting or sched.running; NULL: none */
    uint64_t n_lookup_tokens, n_hit_tokens; /* the pager's counts for prewarmed requests */
};

/* Begins without prewarms. */
void prewarm_init(struct prewarm *p, const struct sched_view *view);

/* One comes, and is ended by whatever it is that ends requests. */
void prewarm_submit(struct prewarm *p, struct request *r);
void prewarm_finish(struct prewarm *p, struct request *r, enum finish_reason why);
/* @r, a client's request, comes: what was computed ahead of it is all that will be. */
void prewarm_note_turn(struct prewarm *p, const struct request *r);
/* @r, a client's request, is admitted: counts what it has found of what was computed for it. */
void prewarm_found(struct prewarm *p, const struct request *r);
/* kv_seq_attach() of one that runs, up to @n_tokens. */
uint32_t prewarm_attach(struct prewarm *p, const struct request *r, uint32_t n_tokens);
/* Before a plan: lets the next one run if there is no other request, takes it back when there is
 * one. */
void prewarm_turn(struct prewarm *p);
