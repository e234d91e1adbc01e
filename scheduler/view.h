#pragma once

/*
 * view - what requests and features see of the scheduler and call of each other, in place of its
 * object (scheduler_private.h). All of it is the scheduler's and outlives them.
 */

#include <stdbool.h>
#include <stdint.h>

struct request;

struct sched_view {
    bool no_pins; /* pins are off; pauses are learnt nevertheless */
    bool no_sharing;
    uint32_t n_pages, page_tokens, max_seqs, max_bypass;
    uint32_t n_slots;  /* positions that the whole pool holds */
    uint32_t max_rows; /* of a step */
    const struct engine_info *info;
    const struct tokenizer *tokenizer;           /* or NULL: messages are not known */
    const struct sched_constraints *constraints; /* or NULL */
    struct clock *clock;
    struct kv_pager *pager;
    const struct cost *cost;
    const struct estimate *estimate;
    struct sessions *sessions;
    struct plan
        *plan; /* is told of groups, reserves, claims and prewarms; those that run, once they
                          are gathered */
    struct list *waiting, *running, *compiling; /* request.queued */
    struct list *pending;                       /* request.pending */
    struct fair_share *fair;
    struct pins *pins;
    struct kv_media *media;
    struct pictures *pictures;
    struct offload *offload; /* gets what a pin gives up */
    struct msg_stats *stats; /* to count in */
    /* pin_delays(), for fair_share: pins see it, and not the other way round. */
    bool (*is_paused)(const struct pins *t, const struct request *r, uint64_t room, int64_t now);
};
