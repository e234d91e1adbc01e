#pragma once

/*
 * plan - who runs how many rows in the next step, who is admitted, who is preempted. A pure
 * function of struct plan: it sees numbers, never a page, a token or a clock, so that it can be
 * held to its promises with random input. How it decides is told in docs/scheduler.md and at the
 * top of plan.c.
 */

#include <stdbool.h>
#include <stdint.h>
#include "scheduler/cost.h"
#include "scheduler/policy.h"

#define PLAN_NONE UINT32_MAX

/* Decision about a request, and its reason. */
enum plan_verdict {
    PLAN_UNSEEN,       /* waiting, and not considered */
    PLAN_RUN,          /* n_rows rows */
    PLAN_LAST,         /* a step computes its last token: no rows */
    PLAN_FOLLOW,       /* waits for pages that another request is computing */
    PLAN_WAIT_TIME,    /* the step's time is spent */
    PLAN_WAIT_ROWS,    /* the batch is full */
    PLAN_WAIT_PAGES,   /* no page is free; running: keeps its pages */
    PLAN_WAIT_SEQS,    /* waiting: max_seqs requests run */
    PLAN_WAIT_TURN,    /* waiting: an earlier request was overtaken max_bypass times */
    PLAN_WAIT_ALONE,   /* a request that must be alone runs, or it is one and others do */
    PLAN_PREEMPT,      /* running: gives its pages back and waits again */
    PLAN_WAIT_PICTURE, /* running: its next row is one of a picture that is not computed yet */
    PLAN_WAIT_SHARE,   /* waiting: the rest is reserved for tenants below their share */
};

/* Length that the steps of those that decode may have: itl_ns, half of it, four times as long. */
enum plan_pace { PLAN_PACE_NORMAL, PLAN_PACE_QUICK, PLAN_PACE_SLOW };

struct plan_req {
    /* In. Tokens and positions count what is under way in steps that were launched. */
    uint32_t n_tokens;   /* tokens, including the sample of a step in flight */
    uint32_t n_computed; /* positions computed; a waiting one has none */
    uint32_t n_stored;   /* computed positions in pages that are shared when full */
    uint32_t n_pages;    /* held */
    /* Running: of these, pages of reference count 1, which a preemption frees. */
    uint32_t n_exclusive;
    uint32_t n_target; /* tokens that it is expected to have at its end, >= n_tokens */
    uint32_t n_hit;    /* waiting: tokens in pages that exist */
    uint32_t n_idle;   /* those pages that no sequence holds */
    uint32_t n_share;  /* tokens that it may take over from others; whole pages */
    uint32_t n_hashes; /* chained hashes of its first pages: equal means equal up to there */
    const uint64_t *hash;
    bool unfit;   /* waiting: known to want more pages than there are; n_hit may be out of date */
    bool last;    /* a step in flight computes its last token */
    bool waits;   /* with @last: for a picture; no step computes any of it */
    bool whole;   /* its rows up to n_tokens are in one step or in none */
    bool alone;   /* no other request may be in its step */
    bool stalled; /* running: the last plan found no page for it */

    /* A draft of n_draft_max tokens may follow its last token. survival[i]: the probability that
     * tokens 0 to i are right. try_draft: plan it whatever is expected of it, if there is room. */
    uint32_t n_draft_max;
    const float *survival;
    bool try_draft;

    uint16_t group;      /* index of its tenant, in the order of turns; below plan.n_groups */
    uint8_t pace;        /* enum plan_pace */
    bool over;           /* waiting: would put its tenant above its share */
    bool begun;          /* has output, so that its client would notice a pause */
    bool victim;         /* may be preempted for a tenant that has less, see plan.fair_preempt */
    uint32_t leave_seqs; /* waiting: sequences that it must leave to other tenants */

    uint32_t n_bypassed; /* in and out: admissions that overtook it */
    /* In and out: steps in a row in which other prompts of its tenant had rows and it had none, up
     * to UINT8_MAX. */
    uint8_t n_passed;

    /* Out. */
    uint32_t n_rows;
    uint32_t n_draft; /* drafts among n_rows */
    uint32_t n_led;   /* position where its last follower leaves it; 0: no follower */
    enum plan_verdict verdict;
    bool admitted; /* was waiting and runs from now on, with n_hit tokens from shared pages */
};

struct plan {
    /* In. req holds the running ones in order of virtual arrival, then the waiting ones in queue
     * order. */
    struct plan_req *req;
    uint32_t n_running, n_waiting;
    uint32_t *scratch; /* [n_running + n_waiting] */
    uint32_t page_tokens, n_available;
    uint32_t max_rows, max_seqs, max_bypass;
    uint32_t force_chunk; /* 0, or the size of every prefill chunk */
    bool whole;           /* each prompt is computed in one step */
    uint32_t force_draft; /* 0, or every draft is planned up to this length */
    int64_t itl_ns, max_step_ns;
    bool prewarm; /* one runs: a request that comes should hardly wait for the end of its step */
    uint32_t n_groups;         /* tenants; 0 counts as 1 */
    const float *group_weight; /* [n_groups]: how they share the time for prefill */
    /* [n_groups] or NULL. Less than 1: its prefill has this part of a step in which others
     * decode. */
    const float *group_part;
    const bool *group_over; /* [n_groups] or NULL: above its share of the sequences */
    /* 0, or what prefill of tenants that have or had more than others may add to a step, since a
     * tenant that comes now has to wait for its end. One PLAN_ADD_PART of decode's time is always
     * allowed. */
    int64_t add_ns;
    uint32_t reserve_pages; /* reserved for requests that are not over */
    /* Set when all slots are taken and a tenant that has less waits for one: the lowest `victim` is
     * preempted, */
    bool fair_preempt;
    bool fair_preempt_begun; /* also one with output */
    /* Size of a recurrent state in pages, which is copied before a draft, and back with the tokens
     * computed again where the draft was wrong. 0: there is none. */
    uint32_t state_pages;
    /* With drafts a step takes draft_slower (at least 1) times what is expected. */
    float draft_slower;
    const struct cost *cost;
    int64_t spent_ns; /* the time of the step that pictures had; prompts have the rest */
    uint64_t turn;    /* number of the step: rotates requests that do not all fit into one */

    bool fair_preempted; /* in and out: a victim was preempted; at most one per step */

    /* Out. */
    uint32_t n_rows, n_seqs, n_drafts, n_admitted, n_preempted;
    uint32_t n_left; /* pages not given out, those that preemption frees among them */
    uint32_t alone;  /* the request that runs alone, or PLAN_NONE */
    struct cost_shape shape;
    int64_t expect_ns;
};

/* Decides. The pages that its decision takes are at most n_available and what preemption frees.
 * When any request can run at all and none is in flight, rows are planned, or a request is
 * preempted or admitted and the next plan has rows. */
void plan_step(struct plan *p);

/* Returns what a step of the rows of @decode, one for each of its sequences, is expected to take
 * with @n drafted ones, of which @right are expected to be right: as plan_step() will find it where
 * nothing prefills. INFINITY: it may not have so many. */
double plan_decode_ns(const struct plan *p, const struct cost_shape *decode, uint32_t n,
                      double right);

/* Returns how long the steps of those that decode at @pace may be, in ns. */
int64_t plan_pace_ns(const struct plan *p, enum plan_pace pace);
/* Returns how long a step may take whose least rows take @decode_ns: @target_ns up to 3/4 of it,
 * twice @decode_ns where that is @target_ns or more, and a straight line between the two. */
int64_t plan_limit_beside(int64_t decode_ns, int64_t target_ns);

/* Pages that the running ones are expected to take until they end. */
uint64_t plan_promised(const struct plan *p);

/* Pages that they lack for the least that each of them should get in the next step. */
uint64_t plan_next_pages(const struct plan *p);

/* Pages that hold @n_tokens. */
static inline uint32_t plan_pages(const struct plan *p, uint32_t n_tokens) {
    return n_tokens / p->page_tokens + (n_tokens % p->page_tokens != 0);
}
