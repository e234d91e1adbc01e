#pragma once

/*
 * view - the part of the scheduler that requests and features may use, in place of the whole object
 * (scheduler_private.h). The scheduler owns it; it outlives them.
 */

#include <stdbool.h>
#include <stdint.h>

struct request;

struct sched_view {
    /* pins are off; pauses are learnt all the same */
    bool no_pins;
    bool no_sharing;
    uint32_t n_pages, page_tokens, max_seqs, max_bypass;
    /* positions that the pool holds */
    uint32_t n_slots;
    /* most rows of a step */
    uint32_t max_rows;
    const struct engine_info *info;
    /* NULL: message boundaries are not known */
    const struct tokenizer *tokenizer;
    /* NULL: constrained requests are refused */
    const struct sched_constraints *constraints;
    struct clock *clock;
    struct kv_pager *pager;
    const struct cost *cost;
    const struct estimate *estimate;
    struct sessions *sessions;
    /* plan of the next step: features set its groups, reserves and prewarm; step_gather() adds the
     * requests */
    struct plan *plan;
    /* request.queued */
    struct list *waiting, *running, *compiling;
    /* request.pending */
    struct list *pending;
    struct fair_share *fair;
    struct pins *pins;
    struct kv_media *media;
    struct pictures *pictures;
    /* takes the pages of ended turns */
    struct kv_tier *tier;
    /* counters since the start */
    struct msg_stats *stats;
};
