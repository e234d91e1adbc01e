#pragma once

/*
 * batch - a step in the form that the engine takes, built from a plan; takes results back to the
 * requests. Each step that may be in flight has one; all its arrays are allocated at the start.
 */

#include "scheduler/cost.h"
#include "scheduler/request.h"

/* A request's share of the step, as it was at the launch. */
struct batch_item {
    struct request *request;
    uint32_t pos0, n_rows, want0, n_wants;
    /* number of drafts among the rows */
    uint32_t n_draft;
    /* drafts that were right, once the results are taken */
    uint32_t n_right;
    /* number of last samples that are discarded because their masks were late */
    uint32_t n_late;
    /* snapshot of the state behind the rows; KV_NO_SNAPSHOT: none is made */
    uint32_t snapshot;
    /* snapshot of the state before a draft; KV_NO_SNAPSHOT: no state */
    uint32_t backup;
    /* the next snapshot of the request replaces this one */
    bool passes;
    /* the last 1 + n_draft wants are its next tokens */
    bool samples;
};

struct batch {
    struct engine_batch b;
    /* [b.n_seqs] */
    struct batch_item *item;
    struct cost_shape shape;
    int64_t launched_ns;
    int64_t expect_ns;
    /* time that the draft model took before the launch */
    int64_t draft_ns;
    bool alone;
    /* some rows are drafts: no step is launched behind it */
    bool drafts;
    /* some sequence has more than one row that is neither draft nor replayed */
    bool prefills;
    /* some sequence computes the right tokens of a draft again */
    bool replays;
    /* some request may need a mask */
    bool constrained;
    /* masks depend on samples of the previous step, so this step samples when it is sealed */
    bool unsealed;
    uint32_t max_rows, max_seqs;
    /* engine_info.picture_width */
    uint32_t picture_width;
    /* Arrays to which b points. */
    int32_t *token;
    struct engine_seq *seq;
    struct engine_want *want;
    struct engine_param *param;
    uint32_t *start, *page;
    /* page tables of window pages (KV_WINDOW); NULL: none */
    uint32_t *window;
    /* [cap_copies] */
    struct engine_copy *copy;
    uint32_t cap_copies;
    /* [max_seqs] copies of states into snapshots, after the step */
    struct engine_copy *after;
    /* [max_rows] masks of n_words, allocated at first use */
    uint32_t **mask;
    uint32_t n_masks, n_words;
};

/* Allocates all arrays. @windows: sequences have window pages. Returns 0 or -ENOMEM. */
int batch_init(struct batch *t, uint32_t max_rows, uint32_t max_seqs, uint32_t max_seq_pages,
               uint32_t n_vocab, bool windows);
void batch_deinit(struct batch *t); /* accepts a zeroed one */

/* Begins step @step (> 0) with no rows, masks and copies. */
void batch_begin(struct batch *t, uint64_t step);
/* Adds the next @n_rows rows of @r, whose pages have room for them. Counts them as computed and
 * their sample as pending. If the sample of the previous step is pending, the engine takes it as
 * input on the device. The last @n_draft rows are the tokens @draft, which follow all known tokens;
 * request_reserve() has made room for them. */
void batch_add(struct batch *t, struct request *r, uint32_t n_rows, const int32_t *draft,
               uint32_t n_draft);

/* Gives @q, the last sequence of the batch and of request @r, the positions of its pictures, and
 * with @reads also their rows, which must be ready. */
void batch_add_pictures(struct batch *t, struct request *r, struct engine_seq *q, bool reads);

/* Sets the page table of the next sequence to at most the first @most pages of @seq. */
void batch_add_pages(struct batch *t, const struct kv_seq *seq, uint32_t most);

/* Appends @n copies to those that the engine makes before the rows of the step. Returns 0 or
 * -ENOMEM. */
int batch_copy(struct batch *t, const struct engine_copy *copy, uint32_t n);
/* Returns an empty mask that stays until batch_begin(); NULL: no memory. */
uint32_t *batch_mask(struct batch *t);

/* Gives the results of item @i to its request, which must not have ended: appends the samples and
 * the right drafts, removes wrong drafts, and commits the computed positions unless a preemption
 * took the pages. Returns as request_add(); FINISH_NONE without a sample. */
int batch_handle(struct batch *t, uint32_t i, const struct engine_result *res);
