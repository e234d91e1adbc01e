#pragma once

/*
 * batch - a step as the engine takes it, built from a plan, and its results taken back to the
 * requests. There is one for each step that may be under way; all its arrays are allocated at the
 * start.
 */

#include "scheduler/cost.h"
#include "scheduler/request.h"

/* A request's share of the step, as it was at the launch. */
struct batch_item {
    struct request *request;
    uint32_t pos0, n_rows, want0, n_wants;
    uint32_t n_draft;  /* drafts among the rows */
    uint32_t n_right;  /* drafts that were right, once the results are taken */
    uint32_t n_late;   /* last samples that are not taken, because their masks were late */
    uint32_t snapshot; /* snapshot of the state behind the rows; KV_NO_SNAPSHOT: none is made */
    uint32_t backup;   /* snapshot of the state before a draft; KV_NO_SNAPSHOT: no state */
    bool passes;       /* the next snapshot of the same request replaces it */
    bool samples;      /* the last 1 + n_draft wants are its next tokens */
};

struct batch {
    struct engine_batch b;
    struct batch_item *item; /* [b.n_seqs] */
    struct cost_shape shape;
    int64_t launched_ns;
    int64_t expect_ns;
    int64_t draft_ns; /* time of the draft model before the launch */
    bool alone;
    bool drafts;      /* some rows are drafts: nothing is launched until their fate is known */
    bool prefills;    /* some sequence has more than one row that is neither draft nor replayed */
    bool replays;     /* some sequence computes again what was right of a draft */
    bool constrained; /* some request may need a mask */
    bool unsealed;    /* masks wait for the samples of the step before */
    uint32_t max_rows, max_seqs;
    uint32_t picture_width; /* engine_info.picture_width */
    /* Arrays to which b points. */
    int32_t *token;
    struct engine_seq *seq;
    struct engine_want *want;
    struct engine_param *param;
    uint32_t *start, *page;
    uint32_t *window;         /* page tables of KV_WINDOW; NULL: no windows */
    struct engine_copy *copy; /* [cap_copies] */
    uint32_t cap_copies;
    struct engine_copy *after; /* [max_seqs] states that are kept */
    uint32_t **mask;           /* [max_rows] of n_words, NULL where none was needed yet */
    uint32_t n_masks, n_words;
};

/* @windows: sequences have window pages. */
int batch_init(struct batch *t, uint32_t max_rows, uint32_t max_seqs, uint32_t max_seq_pages,
               uint32_t n_vocab, bool windows);
void batch_deinit(struct batch *t); /* accepts a zeroed one */

/* Empties the batch, its masks and copies too, and begins step @step (> 0). */
void batch_begin(struct batch *t, uint64_t step);
/* The next @n_rows rows of @r, whose pages have room for them. Counts them as computed, and the
 * sample that comes of them as pending. A pending sample of step - 1 is fed on the device. The
 * last @n_draft rows are the tokens @draft, behind all known ones; request_reserve() has made
 * room. */
void batch_add(struct batch *t, struct request *r, uint32_t n_rows, const int32_t *draft,
               uint32_t n_draft);

/* Tells @q, the last sequence of the batch, which is of @r, of its pictures; with their rows if it
 * @reads them: these are ready. */
void batch_add_pictures(struct batch *t, struct request *r, struct engine_seq *q, bool reads);

/* The next sequence of the batch is in the pages of @seq, the first @most at most. */
void batch_add_pages(struct batch *t, const struct kv_seq *seq, uint32_t most);

/* Copies that are made before the step, behind those that it has. 0 or -ENOMEM. */
int batch_copy(struct batch *t, const struct engine_copy *copy, uint32_t n);
/* An empty mask that stays until the next step is begun; NULL: no memory. */
uint32_t *batch_mask(struct batch *t);

/* Takes item @i's results to its request, which still runs or waits: adds the samples, drafts as
 * long as they were right, commits what was computed, unless it has given its pages back
 * meanwhile, and takes wrong drafts back. As request_add(); FINISH_NONE without a sample. */
int batch_take(struct batch *t, uint32_t i, const struct engine_result *res);
