#pragma once

/*
 * offload - prefixes in host memory: pages that the device evicts are copied back instead of being
 * computed again, where that is faster. The top of offload.c and docs/design/prefix-tiers.md
 * describe it.
 */

#include "kvpager/tier_parts.h"

#define OFFLOAD_JOBS 64u /* ended turns that wait to be saved; beyond it the oldest is dropped */
#define OFFLOAD_SAVE_PAGES 16u  /* most pages saved in a step that has rows */
#define OFFLOAD_IDLE_PAGES 64u  /* most pages saved in a step without rows */
#define OFFLOAD_FETCH_PAGES 64u /* most pages copied back in a step where other requests decode */
#define OFFLOAD_SWAP_PAGES 256u /* most copies of a step, also for a preempted request */

struct offload_job {
    struct kv_isolation share;
    /* sequence in the host's pager */
    struct kv_seq *saved;
    int32_t *tokens;
    uint32_t n_tokens;
    /* the session is expected to return, so the disk gets the pages too */
    bool returns;
};

/* Counters since the start: saved to host memory, copied back from there, preempted sequences that
 * were saved and that were not. */
struct offload_counts {
    uint64_t n_saved_tokens, n_fetched_tokens, n_swapped, n_not_swapped;
};

struct disk;

struct offload {
    struct kv_prices prices;
    struct offload_counts counts;
    uint32_t page_tokens;
    /* tier that gets saved turns, or NULL */
    struct disk *disk;
    /* NULL: no host memory */
    struct kv_pager *host;
    /* Device's pager of a hybrid model, whose snapshots are copied with the pages; else NULL. */
    struct kv_pager *states;
    /* size of a state in pages */
    uint32_t state_pages;
    /* the oldest first */
    struct offload_job job[OFFLOAD_JOBS];
    uint32_t n_jobs;
    /* Copies for the next batch, in order. */
    struct kv_copy *copy;
    uint32_t n_copies, cap;
    /* pages among them that come from the host */
    uint32_t n_fetched;
};

/* Initialises @p. @n_host_pages 0: nothing is saved. device->peer: the device's pager, of a hybrid
 * model, whose states have the size of @state_pages pages. Returns 0 or a negative errno. */
int offload_init(struct offload *p, const struct kv_prices *prices, const struct kv_opts *device,
                 uint32_t n_host_pages, uint32_t state_pages);
void offload_deinit(struct offload *p); /* accepts a zeroed one */

/* Queues the pages of @tokens[0, n_tokens) to be saved when there is time. @returns: the session is
 * expected to return, so they are saved on the disk as well. If memory is short, nothing is
 * saved. */
void offload_save(struct offload *p, const struct kv_isolation *share, const int32_t *tokens,
                  uint32_t n_tokens, bool returns);
/* Saves the pages of @seq, which is about to lose them, if copying them back is faster than
 * computing them. */
void offload_swap(struct offload *p, const struct kv_seq *seq, const struct kv_isolation *share,
                  const int32_t *tokens);
/* Saves a few queued pages that @device still has, in step @step, the next one. */
void offload_work(struct offload *p, const struct kv_pager *device, bool idle, uint64_t step);

/* Returns whether a page waits to be saved or copied. */
static inline bool offload_has_work(const struct offload *p) {
    return p->n_jobs + p->n_copies > 0;
}

/* Returns the length in tokens, a multiple of the page size, of the longest usable prefix of
 * @tokens[0, n_tokens) in host memory. */
uint32_t offload_has(const struct offload *p, const struct kv_isolation *share,
                     const int32_t *tokens, uint32_t n_tokens);
/* Returns whether copying tokens [from, to) back is faster than computing them. */
bool offload_pays(const struct offload *p, uint32_t from, uint32_t to);
/* Returns offload_pays() for a copy that begins after a wait of @ns. */
bool offload_pays_with(const struct offload *p, uint32_t from, uint32_t to, double ns);
/* Copies back up to @max_pages pages, and their snapshots, behind the end of @seq, which is its
 * committed length. Takes pages of the device that are free or idle, and leaves @reserve of them.
 * Returns the committed length after that. */
uint32_t offload_fetch(struct offload *p, struct kv_pager *device, struct kv_seq *seq,
                       const struct kv_isolation *share, const int32_t *tokens, uint32_t n_tokens,
                       uint32_t max_pages, uint32_t reserve);
/* Returns the number of pages that may still be copied back in a step for which other requests
 * wait. */
uint32_t offload_fetch_room(const struct offload *p);

/* Clears the copies, which a batch has taken. */
void offload_taken(struct offload *p);
