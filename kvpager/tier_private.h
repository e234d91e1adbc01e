#pragma once

/* tier_private - the object of tier.c. Private to kvpager/ and its tests. */

#include "base/list.h"
#include "kvpager/disk.h"
#include "kvpager/offload.h"
#include "kvpager/tier.h"

/* A read from the file that has not been polled. */
struct tier_ticket {
    /* kv_tier.tickets */
    struct list link;
    kv_ticket id;
    int64_t since_ns;
    /* its pages are in host memory, or cannot be read */
    bool read;
};

struct kv_tier {
    struct kv_tier_opts opts;
    /* offload.disk: the file, or NULL */
    struct offload offload;
    struct disk_counts disk_counts;
    uint64_t n_left_tokens;
    /* [2 * opts.pager.n_states] copies of states for the next step: one load for each slot at most,
     * then saves */
    struct kv_copy *state;
    uint32_t n_states;
    /* tier_ticket.link, the oldest first */
    struct list tickets;
};
