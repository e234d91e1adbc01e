#pragma once

/*
 * spill - prefixes in host memory: what the device has no room for any more is copied back in place of being
 * computed again. How it works is told at the top of spill.c and in docs/scheduler.md.
 */

#include "engine/engine.h"
#include "kvpager/kvpager.h"

#define SPILL_JOBS 64u        /* ended turns that wait to be saved; more: the oldest is forgotten */
#define SPILL_SAVE_PAGES 16u  /* saved in a step */
#define SPILL_FETCH_PAGES 64u /* brought back in a step where others decode */
#define SPILL_SWAP_PAGES 256u /* of a request that yields: saved at once */

struct spill_job {
    struct kv_share share;
    struct kv_seq *saved; /* in the host's pager */
    int32_t *tokens;
    uint32_t n_tokens;
};

struct spill {
    struct kv_pager *host; /* NULL: there is no host memory */
    uint32_t page_tokens;
    struct spill_job job[SPILL_JOBS]; /* from job[first % SPILL_JOBS] on */
    uint32_t first, n_jobs;
    /* Copies for the next batch, in the order in which they must be made. */
    struct engine_copy *copy;
    uint32_t n_copies, cap;
    uint32_t n_fetched; /* pages of them that come from the host */
    uint64_t n_saved_tokens, n_fetched_tokens;
};

/* @host_pages 0: nothing is ever saved. 0 or a negative errno. */
int spill_init(struct spill *p, const struct kv_opts *device, uint32_t n_host_pages);
void spill_deinit(struct spill *p); /* accepts a zeroed one */

/* The pages of @tokens[0, n_tokens) are worth saving when there is time. No memory, nothing saved. */
void spill_save(struct spill *p, const struct kv_share *share, const int32_t *tokens,
                uint32_t n_tokens);
/* Saves those of @seq, which is going to lose them. */
void spill_swap(struct spill *p, const struct kv_seq *seq, const struct kv_share *share,
                const int32_t *tokens);
/* Saves a few pages of what waits for it, as far as @device still has them. */
void spill_work(struct spill *p, const struct kv_pager *device);

/* Tokens of @tokens[0, n_tokens) that the host has; whole pages. */
uint32_t spill_has(const struct spill *p, const struct kv_share *share, const int32_t *tokens,
                   uint32_t n_tokens);
/* Brings back up to @max_pages pages behind what @seq, which ends at its committed length, has. Takes pages of the
 * device that are free or nobody holds, and leaves @reserve of them. Returns the length committed now. */
uint32_t spill_fetch(struct spill *p, struct kv_pager *device, struct kv_seq *seq,
                     const struct kv_share *share, const int32_t *tokens, uint32_t n_tokens,
                     uint32_t max_pages, uint32_t reserve);

/* Hands the copies over to a batch: appends them to @out, which has room for p->n_copies. */
void spill_take(struct spill *p, struct engine_copy *out);
