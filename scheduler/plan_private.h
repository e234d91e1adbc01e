#pragma once

/* plan_private - what the files of a plan share while a step is decided. */

#include "scheduler/plan.h"

/* Working state of one plan. */
struct plan_work {
    struct plan *p;
    uint32_t available; /* pages not yet given out */
    uint32_t rows;      /* rows given out */
    uint32_t max_rows;
    int64_t target_ns; /* target for the step's time: the strictest pace, or max_step_ns */
    int64_t
        limit_ns; /* limit of the step's time: more where decode leaves too little of the target */
    bool misses;  /* limit_ns is more than target_ns, if the step is no probe */
    bool decodes; /* a running request decodes, or waits for its last token */
    bool short_of_pages;
    struct cost_shape shape;
    struct cost_shape decode; /* part of `shape`: the rows that decode, without drafts */
};

/* Tokens that @r lacks: those of which the keys are to be computed. */
static inline uint32_t plan_lag(const struct plan_req *r) {
    return r->n_tokens - r->n_computed;
}

/* Pages that @r has to take for @n_rows rows. */
static inline uint32_t plan_pages_to_take(const struct plan *p, const struct plan_req *r,
                                          uint32_t n_rows) {
    uint32_t n = plan_pages(p, r->n_computed + n_rows);

    return n > r->n_pages ? n - r->n_pages : 0;
}

/* @r lacks the last one only: a row brings its next token. */
static inline bool plan_is_decode(const struct plan_req *r) {
    return !r->alone && !r->last && plan_lag(r) == 1;
}

/* Rows of @r are a chunk of its prompt, or of what it lost. */
static inline bool plan_is_prefill(const struct plan_req *r) {
    return !r->alone && !r->last && plan_lag(r) > 1;
}

/* Gives @r @n_rows rows instead of those that it has; their pages are there. */
void plan_set_rows(struct plan_work *w, struct plan_req *r, uint32_t n_rows);
/* Adds drafts to the rows of those that decode; plan_draft.c. */
void plan_add_drafts(struct plan_work *w);
/* @r gives its pages back and waits again. */
void plan_preempt(struct plan_work *w, struct plan_req *r);
/* Pages for @n_rows rows of running request @i, taken from lower ones if need be, but not from
 * those whose preemption would free nothing. Whether they are there. */
bool plan_make_room(struct plan_work *w, uint32_t i, uint32_t n_rows);

/* Admits waiting requests while the room lasts; plan_admit.c. */
void plan_admissions(struct plan_work *w);
/* Preempts a slot for a tenant that has fewer. Whether it did: then nothing else is planned. */
bool plan_preempt_for_share(struct plan_work *w);

/* The limits on time and rows, once it is known how many decode; plan_time.c. */
void plan_set_limits(struct plan_work *w);
/* Sets the limit of a step in which @r has the first chunk of a prompt: more where decode leaves
 * too little, less what pictures had. */
void plan_set_prompt_limit(struct plan_work *w, const struct plan_req *r);
/* Divides the rest of the step's time among prefills. */
void plan_prefills(struct plan_work *w);
/* Gives @r what it can have until @limit_ns, at most @cap rows; less than PLAN_MIN_CHUNK only if
 * that is all there is. */
void plan_extend(struct plan_work *w, struct plan_req *r, int64_t limit_ns, uint32_t cap);
/* Gives request @i a row at least, however long the step takes then, so that it ends one day. */
void plan_min_chunk(struct plan_work *w, uint32_t i);
