#pragma once

/*
 * plan - who runs how many rows in the next step, who is admitted, who is preempted. A pure
 * function of struct plan: it sees numbers, never a page, a token or a clock, so random input can
 * test its promises. docs/design/scheduler.md and the top of plan.c describe how it decides.
 */

#include <stdbool.h>
#include <stdint.h>

#include "scheduler/cost.h"
#include "scheduler/policy.h"

#define PLAN_NONE UINT32_MAX

/* Decision about a request and its reason. */
enum plan_verdict {
    /* waiting, and not considered */
    PLAN_UNSEEN,
    /* n_rows rows */
    PLAN_RUN,
    /* a step computes its last token: no rows */
    PLAN_LAST,
    /* waits for pages that another request is computing */
    PLAN_FOLLOW,
    /* the step's time is spent */
    PLAN_WAIT_TIME,
    /* the batch is full */
    PLAN_WAIT_ROWS,
    /* no page is free; running: keeps its pages */
    PLAN_WAIT_PAGES,
    /* waiting: max_seqs requests run */
    PLAN_WAIT_SEQS,
    /* waiting: an earlier request was overtaken max_bypass times and is due */
    PLAN_WAIT_TURN,
    /* a request that must run alone runs; or this request must, and others run */
    PLAN_WAIT_ALONE,
    /* running: gives its pages back and waits again */
    PLAN_PREEMPT,
    /* running: its next row is a row of a picture that is not computed yet */
    PLAN_WAIT_PICTURE,
    /* waiting: the free pages or slots are reserved for tenants below their share */
    PLAN_WAIT_SHARE,
};

/* Target of steps by the class of a decoding request: itl_ns, half of it, or four times itl_ns. */
enum plan_pace { PLAN_PACE_NORMAL, PLAN_PACE_QUICK, PLAN_PACE_SLOW };

struct plan_req {
    /* Input. Tokens and positions include those of steps in flight. */
    /* tokens, with the sample of a step in flight */
    uint32_t n_tokens;
    /* positions computed; waiting: 0 */
    uint32_t n_computed;
    /* computed positions in pages that are shared when full */
    uint32_t n_stored;
    /* pages held */
    uint32_t n_pages;
    /* Running: held pages with reference count 1, which a preemption frees. */
    uint32_t n_exclusive;
    /* expected tokens at its end, >= n_tokens */
    uint32_t n_target;
    /* waiting: tokens in pages that exist */
    uint32_t n_hit;
    /* waiting: pages of n_hit that no sequence holds */
    uint32_t n_idle;
    /* tokens, in whole pages, that it may share with other requests */
    uint32_t n_share;
    /* chained hashes of its first pages: equal hashes mean equal tokens up to that page */
    uint32_t n_hashes;
    const uint64_t *hash;
    /* waiting: needs more pages than are free; n_hit may be out of date */
    bool unfit;
    /* a step in flight computes its last token */
    bool last;
    /* set with `last`: waits for a picture, and no step computes a row of it */
    bool waits;
    /* computes its rows up to n_tokens in one step */
    bool whole;
    /* quarantined: no other request may be in its step */
    bool alone;
    /* running: the last plan found no page for it */
    bool stalled;

    /* A draft of up to n_draft_max tokens may follow the last token. survival[i]: probability that
     * tokens 0 to i are right. try_draft: plan the draft whatever its expected gain, if there is
     * room. */
    uint32_t n_draft_max;
    const float *survival;
    bool try_draft;

    /* index of its tenant in the order of turns; below plan.n_groups */
    uint16_t group;
    /* enum plan_pace */
    uint8_t pace;
    /* waiting: its admission puts its tenant above its share */
    bool over;
    /* has output, so its client notices a pause */
    bool begun;
    /* of a tenant that is behind; starts: a part of its head start is left (plan.head_start_ns) */
    bool behind, starts;
    /* may be preempted for a tenant with fewer slots (plan.fair_preempt) */
    bool victim;
    /* waiting: slots that it must leave to other tenants */
    uint32_t leave_seqs;
    /* waiting: pages promised to other tenants beyond their shares, which it may take */
    uint32_t n_beyond;

    /* input and output: admissions that overtook it */
    uint32_t n_bypassed;
    /* Input and output: successive steps in which other prompts of its tenant had rows, or if it
     * decodes other requests, and this one had none, up to UINT8_MAX. */
    uint8_t n_passed;

    /* Output. */
    uint32_t n_rows;
    /* drafts among n_rows */
    uint32_t n_draft;
    /* position where its last follower stops following; 0: it has no follower */
    uint32_t n_led;
    enum plan_verdict verdict;
    /* was waiting and runs from this step on, with n_hit tokens in shared pages */
    bool admitted;
};

struct plan {
    /* Input. req has the running requests in order of virtual arrival, then the waiting ones in
     * queue order. */
    struct plan_req *req;
    uint32_t n_running, n_waiting;
    /* [n_running + n_waiting] */
    uint32_t *scratch;
    uint32_t page_tokens, n_available;
    uint32_t max_rows, max_seqs, max_bypass;
    /* tests: size of every prefill chunk; 0: by time */
    uint32_t force_chunk;
    /* each prompt is computed in one step */
    bool whole;
    /* tests: every draft is planned up to this length; 0: by gain */
    uint32_t force_draft;
    int64_t itl_ns, max_step_ns;
    /* a prewarm runs: steps are short, so that an arrival hardly waits */
    bool prewarm;
    /* tenants; 0 counts as 1 */
    uint32_t n_groups;
    /* [n_groups] their shares of the time for prefill */
    const float *group_weight;
    /* [n_groups] or NULL. Below 1: the largest part of a step in which other tenants decode that
     * the tenant's prefill may take. */
    const float *group_part;
    /* [n_groups] or NULL: above its share of the sequences */
    const bool *group_over;
    /* Most time that prefill of tenants above their share adds to a step, so that an arrival of
     * another tenant waits little; 0: no limit. PLAN_ADD_PART of decode's time is always
     * allowed. */
    int64_t add_ns;
    /* a tenant that is behind is expected back soon: the rows of others take turns */
    bool expects;
    /* Longest time of a step that leaves out all requests that are not `behind`, for one that
     * `starts`; 0: none does. */
    int64_t head_start_ns;
    /* reserved for requests of tenants below their share */
    uint32_t reserve_pages;
    /* Set when all slots are taken and a tenant with fewer slots waits for one: the lowest `victim`
     * without output is preempted. */
    bool fair_preempt;
    /* fair_preempt may take a victim with output */
    bool fair_preempt_begun;
    /* Size in pages of a recurrent state, 0: none. A draft copies it; a wrong draft copies it back
     * and computes the right tokens again. */
    uint32_t state_pages;
    /* Steps with drafts take draft_slower (at least 1) times the expected time. */
    float draft_slower;
    const struct cost *cost;
    /* time of this step that pictures took, in ns; prompts have the remaining time */
    int64_t spent_ns;
    /* number of the step; rotates the requests if not all fit */
    uint64_t turn;

    /* input and output: a victim was preempted, at most one per step */
    bool fair_preempted;

    /* Output. */
    /* requests that are not `behind` were left out of the step */
    bool leaves_out;
    uint32_t n_rows, n_seqs, n_drafts, n_admitted, n_preempted;
    /* pages not given out, including those that preemptions free */
    uint32_t n_left;
    /* the request that runs alone, or PLAN_NONE */
    uint32_t alone;
    struct cost_shape shape;
    int64_t expect_ns;
};

/* Fills the output fields of @p and of its requests. The decision takes at most n_available pages
 * plus those that its preemptions free. When any request can run and none is in flight, the plan
 * has rows, or it preempts or admits a request and the next plan has rows. */
void plan_step(struct plan *p);

/* Returns the expected time, in ns, of a decode step of shape @decode with @n drafted rows, of
 * which @right are expected to be right; plan_step() uses this time if nothing prefills. INFINITY:
 * the step may not have @n drafted rows. */
double plan_decode_ns(const struct plan *p, const struct cost_shape *decode, uint32_t n,
                      double right);

/* Returns the target of steps in which a request of pace @pace decodes, in ns. */
int64_t plan_pace_ns(const struct plan *p, enum plan_pace pace);
/* Returns the time limit, in ns, of a step whose least rows take @decode_ns: @target_ns up to 3/4
 * of @target_ns, 4/3 @decode_ns up to 3 @target_ns, and 2 (@decode_ns - @target_ns) beyond. */
int64_t plan_limit_beside(int64_t decode_ns, int64_t target_ns);

/* Return the pages that running request @r, or all of them, are expected to take until they end. */
uint32_t plan_promised_to(const struct plan *p, const struct plan_req *r);
uint64_t plan_promised(const struct plan *p);

/* Returns the pages that running requests lack for their least rows of the next step. */
uint64_t plan_next_pages(const struct plan *p);

/* Returns the pages that @n_tokens tokens need. */
static inline uint32_t plan_pages(const struct plan *p, uint32_t n_tokens) {
    return n_tokens / p->page_tokens + (n_tokens % p->page_tokens != 0);
}
