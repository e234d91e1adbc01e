/*
 * plan_admit - step 3 of a plan: admits waiting requests, and preempts a slot for a tenant's share.
 *
 * The room is the available pages less those that running requests are expected to take. A request
 * that does not fit may be overtaken max_bypass times; then all later ones wait. The last slots and
 * pages are reserved for tenants below their share, and what other tenants are expected to take
 * beyond their shares does not count against these: it is preempted first.
 */

#include <assert.h>

#include "base/buggify.h"
#include "base/util.h"
#include "scheduler/plan_private.h"

/* Returns the pages that waiting request @r must take, with the idle ones that it finds cached. */
static uint32_t full_need(const struct plan *p, const struct plan_req *r) {
    return plan_pages(p, r->n_target) - r->n_hit / p->page_tokens + r->n_idle;
}

static void plan_admit(struct plan_work *w, uint32_t i) {
    struct plan_req *r = &w->p->req[i];

    assert(i >= w->p->n_running && !r->admitted && r->n_idle <= w->available);
    r->admitted = true;
    r->n_computed = r->n_stored = r->n_hit;
    r->n_pages = r->n_hit / w->p->page_tokens;
    w->available -= r->n_idle;
    w->p->n_admitted++;
    r->verdict = PLAN_WAIT_TIME;
    if (r->waits)
        r->verdict = PLAN_WAIT_PICTURE;
    else if (r->alone)
        r->verdict = PLAN_WAIT_ALONE;
    else if (plan_lag(r) == 1 && w->rows < w->max_rows &&
             plan_pages_to_add(w->p, r, 1) <= w->available)
        plan_set_rows(w, r, 1);
}

/* Returns whether @r must leave the free slots to other tenants, or, if it is over its share, the
 * free pages. */
static bool plan_must_yield(const struct plan *p, const struct plan_req *r, uint32_t need,
                            int64_t room) {
    uint32_t in = p->n_running + p->n_admitted;

    if (in == 0)
        return false;
    if (r->leave_seqs > 0 && in + r->leave_seqs >= p->max_seqs)
        return true;
    return r->over && need + (int64_t)p->reserve_pages > room;
}

/* Returns whether @r may overtake waiting request @o without being counted: its tenant is behind,
 * and that of @o is not, so virtual time bounds the wait. */
static bool plan_passes(const struct plan_req *r, const struct plan_req *o) {
    return r->behind && !o->behind;
}

/* Counts the admission of request @i for the earlier ones that it overtakes. */
static void note_overtaken(struct plan *p, uint32_t i) {
    for (uint32_t k = p->n_running; k < i; k++) {
        struct plan_req *o = &p->req[k];

        if (!o->admitted && o->verdict != PLAN_WAIT_SHARE && !plan_passes(&p->req[i], o))
            o->n_bypassed++;
    }
}

/* Returns whether an earlier request that was not admitted must not be overtaken by request @i. */
static bool plan_is_due_before(const struct plan *p, uint32_t i) {
    for (uint32_t k = p->n_running; k < i; k++) {
        const struct plan_req *o = &p->req[k];
        bool waits = o->verdict == PLAN_WAIT_PAGES || o->verdict == PLAN_WAIT_TURN;

        if (waits && o->n_bypassed >= p->max_bypass && !plan_passes(&p->req[i], o))
            return true;
    }
    return false;
}

void plan_admissions(struct plan_work *w) {
    struct plan *p = w->p;
    uint32_t n = p->n_running + p->n_waiting;
    int64_t room = (int64_t)p->n_available - (int64_t)plan_promised(p);

    if (BUGGIFY(plan_admits_nobody) && p->n_running > 0)
        return;
    for (uint32_t i = p->n_running; i < n; i++) {
        struct plan_req *r = &p->req[i];

        if (p->n_running + p->n_admitted >= p->max_seqs) {
            r->verdict = PLAN_WAIT_SEQS;
            continue;
        }
        if (plan_is_due_before(p, i)) {
            r->verdict = PLAN_WAIT_TURN;
            continue;
        }
        r->verdict = PLAN_WAIT_PAGES;
        uint32_t need = full_need(p, r);
        if (plan_must_yield(p, r, need, room)) {
            r->verdict = PLAN_WAIT_SHARE; /* later requests do not wait for it */
            continue;
        }
        /* Alone in the pool every request fits, whatever its expected output. */
        bool possible = !r->unfit && r->n_idle <= w->available;
        bool fits = need <= room + r->n_beyond || p->n_running + p->n_admitted == 0;
        if (!possible || !fits)
            continue;
        room -= need;
        plan_admit(w, i);
        note_overtaken(p, i);
    }
}

/* A waiting tenant with fewer slots gets one from the tenant with most: its lowest request without
 * output is preempted, or with fair_preempt_begun its lowest one. Nothing else is planned; the
 * waiting request is admitted in the next plan, when the pages are free. */
bool plan_preempt_for_share(struct plan_work *w) {
    struct plan *p = w->p;

    for (int begun = 0; begun <= p->fair_preempt_begun && p->fair_preempt && !p->fair_preempted;
         begun++)
        for (uint32_t i = p->n_running; i-- > 1 && !p->fair_preempted;) {
            struct plan_req *r = &p->req[i];

            if (!r->victim || r->last || r->begun != (bool)begun)
                continue;
            plan_preempt(w, r);
            p->fair_preempted = true;
        }
    return p->n_preempted > 0;
}
