#pragma once

/* plan_private - working state and helpers that plan.c and the plan_*.c files share. */

#include "scheduler/plan.h"

/* Working state of one plan. */
struct plan_work {
    struct plan *p;
    /* pages that are not given out yet */
    uint32_t available;
    /* rows given out */
    uint32_t rows;
    uint32_t max_rows;
    /* target for the step's time: the strictest pace, or max_step_ns */
    int64_t target_ns;
    /* limit of the step's time; above target_ns if decode leaves too little of the target */
    int64_t limit_ns;
    /* limit_ns, apart from probes, is above target_ns */
    bool misses;
    /* a running request decodes, or waits for its last token */
    bool decodes;
    bool short_of_pages;
    /* prompts that may have rows; the first n_prompts of plan.scratch, in order of their tenants */
    uint32_t n_prompts;
    struct cost_shape shape;
    /* part of `shape`: the rows that decode, without drafts */
    struct cost_shape decode;
};

/* Returns the tokens of @r whose keys are not computed yet. */
static inline uint32_t plan_lag(const struct plan_req *r) {
    return r->n_tokens - r->n_computed;
}

/* Returns the pages that @r must take for @n_rows rows. */
static inline uint32_t plan_pages_to_add(const struct plan *p, const struct plan_req *r,
                                         uint32_t n_rows) {
    uint32_t n = plan_pages(p, r->n_computed + n_rows);

    return n - MIN(n, r->n_pages);
}

/* Returns whether request @i runs, or is admitted in this step. */
static inline bool plan_is_here(const struct plan *p, uint32_t i) {
    return i < p->n_running || p->req[i].admitted;
}

/* Returns true if @r lacks only the last token, so that one row samples the next one. */
static inline bool plan_is_decode(const struct plan_req *r) {
    return !r->alone && !r->last && plan_lag(r) == 1;
}

/* Returns true if the rows of @r are a chunk of its prompt, or of tokens whose pages a preemption
 * freed. */
static inline bool plan_is_prefill(const struct plan_req *r) {
    return !r->alone && !r->last && plan_lag(r) > 1;
}

/* Replaces the rows of @r by @n_rows rows, whose pages must be available. */
void plan_set_rows(struct plan_work *w, struct plan_req *r, uint32_t n_rows);
/* Adds drafts to decode rows; plan_draft.c. */
void plan_add_drafts(struct plan_work *w);
/* Preempts @r: frees its pages; it waits again. */
void plan_preempt(struct plan_work *w, struct plan_req *r);
/* Makes pages available for @n_rows rows of running request @i, if necessary by preempting lower
 * requests whose preemption frees pages. Returns true if they are available. */
bool plan_make_room(struct plan_work *w, uint32_t i, uint32_t n_rows);

/* Leaves decode rows of tenants that are not behind out of a step that should be short, if a tenant
 * is expected; plan_turns.c. */
void plan_cut_decodes(struct plan_work *w);
/* Counts the step in n_passed of decoding requests without a row. */
void plan_note_turns(struct plan_work *w);
/* Returns the time of a step that is cut while a tenant is expected. */
int64_t plan_turn_ns(const struct plan *p);

/* Admits waiting requests while there is room; plan_admit.c. */
void plan_admissions(struct plan_work *w);
/* Preempts a request for a tenant with fewer slots. Returns true if it did; nothing else is planned
 * then. */
bool plan_preempt_for_share(struct plan_work *w);

/* Sets the limits on time and rows, once decode rows are planned; plan_time.c. */
void plan_set_limits(struct plan_work *w);
/* Sets the time limit of a step whose first prompt chunk is of @r: raises it where decode leaves
 * too little and subtracts the time that pictures took. */
void plan_set_prompt_limit(struct plan_work *w, const struct plan_req *r);
/* Divides the rest of the step's time among prefills. */
void plan_prefills(struct plan_work *w);
/* Counts the step in n_passed of prompts without rows whose tenant has prompts with rows. */
void plan_note_passed(struct plan_work *w);
/* Extends the rows of @r to at most @cap rows while the step stays below @limit_ns. Gives fewer
 * than PLAN_MIN_CHUNK rows only if @r lacks no more. */
void plan_extend(struct plan_work *w, struct plan_req *r, int64_t limit_ns, uint32_t cap);
/* Gives request @i at least one row, even if the step then exceeds its limit, so that no request
 * starves. */
void plan_min_chunk(struct plan_work *w, uint32_t i);
