#pragma once

/*
 * offload - prefixes in host memory: what the device has no room for any more is copied back in
 * place of being computed again, where that is faster. How it works is told at the top of
 * offload.c and in docs/design/prefix-tiers.md.
 */

#include "engine/engine.h"
#include "kvpager/kvpager.h"
#include "scheduler/cost.h"

#define OFFLOAD_JOBS 64u /* ended turns that wait to be saved; more: the oldest is forgotten */
#define OFFLOAD_SAVE_PAGES 16u  /* at most saved in a step that has rows */
#define OFFLOAD_IDLE_PAGES 64u  /* and in one that has none */
#define OFFLOAD_FETCH_PAGES 64u /* at most brought back in a step where others decode */
#define OFFLOAD_SWAP_PAGES 256u /* copied in a step: no more of a preempted request is saved */

struct offload_job {
    struct kv_isolation share;
    struct kv_seq *saved; /* in the host's pager */
    int32_t *tokens;
    uint32_t n_tokens;
    bool returns; /* its session returns: the disk gets it, too */
};

struct disk;
struct sched_view;

struct offload {
    const struct sched_view *view;
    struct disk *disk;     /* NULL, or what has been saved is given to it */
    struct kv_pager *host; /* NULL: there is no host memory */
    /* NULL, or the device's pager of a hybrid model, whose snapshots go with the pages. */
    struct kv_pager *states;
    uint32_t state_pages;                 /* size of a state in pages */
    struct offload_job job[OFFLOAD_JOBS]; /* the oldest first */
    uint32_t n_jobs;
    /* Copies for the next batch, in the order in which they must be made. */
    struct engine_copy *copy;
    uint32_t n_copies, cap;
    uint32_t n_fetched; /* pages of them that come from the host */
};

/* Begins with page_tokens, stats and cost, which has the time of copies, of @view. @n_host_pages 0:
 * nothing is ever saved. device->peer: the device's pager, of a hybrid model. Returns 0 or a
 * negative errno. */
int offload_init(struct offload *p, const struct sched_view *view, const struct kv_opts *device,
                 uint32_t n_host_pages);
void offload_deinit(struct offload *p); /* accepts a zeroed one */

/* The pages of @tokens[0, n_tokens) are worth saving when there is time, and, where the session
 * @returns for them, also on the disk. No memory, nothing saved. */
void offload_save(struct offload *p, const struct kv_isolation *share, const int32_t *tokens,
                  uint32_t n_tokens, bool returns);
/* Saves those of @seq, which is going to lose them, if bringing them back is faster than
 * computing them. */
void offload_swap(struct offload *p, const struct kv_seq *seq, const struct kv_isolation *share,
                  const int32_t *tokens);
/* Saves a few pages of what waits for it, as far as @device still has them, in step @step, the
 * next one. */
void offload_work(struct offload *p, const struct kv_pager *device, bool idle, uint64_t step);

/* Returns whether a page waits to be copied. */
static inline bool offload_has_work(const struct offload *p) {
    return p->n_jobs + p->n_copies > 0;
}

/* Tokens of @tokens[0, n_tokens) that the host has, and can be gone on from; whole pages. */
uint32_t offload_has(const struct offload *p, const struct kv_isolation *share,
                     const int32_t *tokens, uint32_t n_tokens);
/* Returns whether bringing tokens [from, to) back is faster than computing them. */
bool offload_pays(const struct offload *p, uint32_t from, uint32_t to);
/* Returns the same when something else must be waited for, for @ns. */
bool offload_pays_with(const struct offload *p, uint32_t from, uint32_t to, double ns);
/* Brings back up to @max_pages pages behind what @seq, which ends at its committed length, has.
 * Takes pages of the device that are free or not held, and leaves @reserve of them. Returns
 * the length committed now. Snapshots of these pages come with them. */
uint32_t offload_fetch(struct offload *p, struct kv_pager *device, struct kv_seq *seq,
                       const struct kv_isolation *share, const int32_t *tokens, uint32_t n_tokens,
                       uint32_t max_pages, uint32_t reserve);
/* Pages that may still be brought back in this step, where others wait for it. */
uint32_t offload_fetch_room(const struct offload *p);

/* A batch has the copies now. */
void offload_taken(struct offload *p);
