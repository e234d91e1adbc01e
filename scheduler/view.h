#pragma once

/*
 * view - the part of the scheduler that requests and features may use, in place of the whole object
 * (scheduler_private.h). The scheduler owns it; it outlives them.
 */

#include <stdbool.h>
#include <stdint.h>

struct request;

struct sched_view {
    bool no_pins; /* pins are off; pauses are learnt all the same */
    bool no_sharing;
    uint32_t n_pages, page_tokens, max_seqs, max_bypass;
    uint32_t n_slots;  /* positions that the pool holds */
    uint32_t max_rows; /* most rows of a step */
    const struct engine_info *info;
    const struct tokenizer *tokenizer;           /* NULL: message boundaries are not known */
    const struct sched_constraints *constraints; /* NULL: constrained requests are refused */
    struct clock *clock;
    struct kv_pager *pager;
    const struct cost *cost;
    const struct estimate *estimate;
    struct sessions *sessions;
    /* plan of the next step: features set its groups, reserves and prewarm; step_gather() adds the
     * requests */
    struct plan *plan;
    struct list *waiting, *running, *compiling; /* request.queued */
    struct list *pending;                       /* request.pending */
    struct fair_share *fair;
    struct pins *pins;
    struct kv_media *media;
    struct pictures *pictures;
    struct kv_tier *tier;    /* takes the pages of ended turns */
    struct msg_stats *stats; /* counters since the start */
};
