/*
 * prewarm - computes the beginning of a session's next turn while the device is idle. When a turn
 * has ended, the front knows how the next one begins: the conversation as the chat template renders
 * it with the answer. Often that is not the text that the model wrote (reasoning is left out, calls
 * are formatted differently), so the pages of the turn do not help from there on. A prewarm
 * (SUBMIT_PREWARM) is a request for that text that asks only for its pages.
 *
 *      submitted --> prewarm.waiting --idle--> the queue, running --> pinned for the turn
 *                         ^                          |
 *                         '---- a request arrives ---'
 *
 * It runs only when no request waits or runs, alone in steps of at most PLAN_PREWARM_NS (or the few
 * rows that any prompt gets), and no step is launched behind them. So a request that arrives waits
 * for the end of one such step and finds nothing in flight. The rows computed so far stay as cached
 * pages, at the cost of the oldest idle pages; pinned pages of other turns are not taken. A prewarm
 * ends when its session comes back or is no longer expected.
 *
 * Counters of requests leave it out; its device time is charged to its tenant. No token depends on
 * it: pages are found by the tokens in them, and hold what any request would compute.
 */

#include "scheduler/prewarm.h"

#include <assert.h>
#include <string.h>

#include "scheduler/fair_share.h"
#include "scheduler/pictures.h"
#include "scheduler/pin.h"
#include "scheduler/plan.h"

void prewarm_init(struct prewarm *p, const struct sched_view *view) {
    p->view = view;
    list_init(&p->waiting);
}

/* ---- statistics ---- */

/* Remembers the pages that @r has computed for its session. */
static void note_done(struct prewarm *p, const struct request *r) {
    uint32_t t = p->view->page_tokens, n = request_n_stored(r) / t;
    struct session *own = sessions_use(p->view->sessions, r->session);

    n = MIN(n, r->n_hashes);
    if (!own || n <= r->n_cached / t || (own->done.hash && n <= own->done.to))
        return;
    uint64_t *hash = malloc(n * sizeof(*hash));
    if (!hash)
        return;
    memcpy(hash, r->hash, n * sizeof(*hash));
    free(own->done.hash);
    own->done = (struct prewarm_done){hash, r->n_cached / t, n};
}

void prewarm_found(struct prewarm *p, const struct request *r) {
    struct session *own = sessions_find(p->view->sessions, r->session);
    struct prewarm_done *d = own ? &own->done : NULL;

    if (!d || !d->hash || r->n_preempted > 0)
        return;
    uint32_t hit = MIN(r->n_computed / p->view->page_tokens, r->n_hashes), i = d->from;
    if (i > 0 && (i > r->n_hashes || d->hash[i - 1] != r->hash[i - 1]))
        return; /* another request than the expected turn */
    while (i < MIN(d->to, hit) && d->hash[i] == r->hash[i])
        i++;
    p->view->stats->n_prewarm_hit_tokens += (uint64_t)(i - d->from) * p->view->page_tokens;
    free(d->hash);
    *d = (struct prewarm_done){0};
}

/* ---- submission and end ---- */

static void prewarm_dequeue(struct prewarm *p, struct request *r) {
    assert(request_is_prewarm(r));
    if (p->now == r) {
        p->now = NULL;
        p->view->plan->prewarm = false;
        fair_exit_request(p->view->fair, r);
    } else if (!list_empty(&r->queued.link)) {
        assert(p->n_waiting > 0);
        p->n_waiting--;
    }
    list_remove(&r->queued.link);
}

void prewarm_finish(struct prewarm *p, struct request *r, enum finish_reason why) {
    note_done(p, r);
    prewarm_dequeue(p, r);
    if (r->seq && (why == FINISH_STOP || why == FINISH_LENGTH)) {
        uint32_t n_tokens = request_n_stored(r);

        pin_prewarmed(p->view->pins, r);
        pin_save(p->view, r, n_tokens);
    }
    request_free_pages(r);
    request_finish(r, why);
    pictures_release(p->view->pictures, r);
    request_note_pending(r, p->view->pending);
}

void prewarm_submit(struct prewarm *p, struct request *r) {
    if (!pin_expects(p->view->pins, r->session, r->prewarm.turn)) {
        prewarm_finish(p, r, FINISH_CANCELLED);
        return;
    }
    assert(request_is_prewarm(r) && r->session != 0 && p->n_waiting <= PREWARM_MAX);
    if (p->n_waiting == PREWARM_MAX)
        prewarm_finish(p, LIST_ENTRY(p->waiting.prev, struct request, queued.link),
                       FINISH_CANCELLED);
    list_push_front(&p->waiting, &r->queued.link);
    p->n_waiting++;
}

/* Returns whether @r continues the conversation of prewarm @w: at least half of it is the same.
 * Agents send unrelated requests in between. */
static bool prewarm_continues(const struct request *r, const struct request *w) {
    uint32_t half = w->n_hashes / 2;

    return w->n_hashes == 0 || (half < r->n_hashes && r->hash[half] == w->hash[half]);
}

void prewarm_note_turn(struct prewarm *p, const struct request *r) {
    struct request *now = p->now;

    if (r->session == 0)
        return;
    LIST_FOREACH_ENTRY(w, &p->waiting, struct request, queued.link) {
        if (w->session == r->session && prewarm_continues(r, w))
            prewarm_finish(p, w, FINISH_CANCELLED);
    }
    /* If this turn continues the prewarm and a step has it, the prewarm runs until the step ends,
     * because the turn needs the result. */
    if (now && now->session == r->session && prewarm_continues(r, now)) {
        now->prewarm.over = true;
        if (now->n_in_flight == 0)
            prewarm_finish(p, now, FINISH_CANCELLED);
    }
}

/* ---- when a prewarm runs ---- */

void prewarm_count(struct prewarm *p, uint32_t before, uint32_t n_asked, uint32_t n) {
    if (before == 0)
        p->n_lookup_tokens += n_asked;
    p->n_hit_tokens += n - before;
}

static void prewarm_requeue(struct prewarm *p, struct request *r) {
    assert(p->now == r && r->n_in_flight == 0);
    note_done(p, r);
    prewarm_dequeue(p, r);
    if (r->state == REQUEST_RUNNING) {
        request_free_pages(r);
        r->n_computed = r->n_host = 0;
        r->n_preempted++;
        r->stalled = false;
        request_set_state(r, REQUEST_WAITING);
        pictures_release(p->view->pictures, r);
    }
    r->n_bypassed = 0;
    r->seen_step = 0;
    if (r->prewarm.over || !pin_expects(p->view->pins, r->session, r->prewarm.turn)) {
        prewarm_finish(p, r, FINISH_CANCELLED);
        return;
    }
    list_push_front(&p->waiting, &r->queued.link);
    p->n_waiting++;
}

/* Returns whether the prewarm fits into free and idle pages, without dropping pins of others. */
static bool prewarm_fits(const struct prewarm *p, const struct request *r) {
    struct kv_match m =
        request_match(r, p->view->pager, request_shareable(r), p->view->page_tokens);
    uint32_t need = plan_pages(p->view->plan, r->max_tokens) + 1;

    return need - m.n_tokens / p->view->page_tokens + m.n_idle <=
           pin_pages(p->view->pins).n_available;
}

static void prewarm_start_request(struct prewarm *p, struct request *r) {
    assert(!p->now && p->n_waiting > 0 && r->state == REQUEST_WAITING);
    list_remove(&r->queued.link);
    p->n_waiting--;
    p->now = r;
    p->view->plan->prewarm = true;
    fair_enter_request(p->view->fair, r, r->prewarm.tenant, r->prewarm.weight_milli, r->class);
    queue_insert(p->view->waiting, &r->queued);
}

static bool is_only(const struct list *l, const struct request *r) {
    return list_empty(l) || (l->next == l->prev && l->next == &r->queued.link);
}

bool prewarm_is_stuck(const struct prewarm *p) {
    return p->now && p->now->n_in_flight == 0 && pictures_why(p->now) != WHY_N;
}

/* Lets the prewarm that runs go on, wait or end. */
static void prewarm_judge(struct prewarm *p, struct request *r) {
    bool others = !is_only(p->view->waiting, r) || !is_only(p->view->running, r);

    if ((others || !list_empty(p->view->compiling)) && r->n_in_flight == 0)
        prewarm_requeue(p, r);
    else if (prewarm_is_stuck(p))
        prewarm_finish(p, r, FINISH_CANCELLED);
}

void prewarm_turn(struct prewarm *p) {
    if (p->now)
        prewarm_judge(p, p->now);
    if (!list_empty(p->view->waiting) || !list_empty(p->view->running) ||
        !list_empty(p->view->compiling))
        return;
    LIST_FOREACH_ENTRY(w, &p->waiting, struct request, queued.link) {
        if (pin_expects(p->view->pins, w->session, w->prewarm.turn) && prewarm_fits(p, w)) {
            prewarm_start_request(p, w);
            return;
        }
        prewarm_finish(p, w, FINISH_CANCELLED);
    }
}
