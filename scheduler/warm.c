/*
 * warm - when a turn has ended, the front knows how the next one will begin: the conversation as the chat template
 * writes it once the answer is part of it. Often that is not what the model wrote (reasoning is left out, calls are put in
 * other words), so the pages of the turn do not help from there on. A warm request (SUBMIT_PREWARM) is that text, and
 * asks for nothing but its pages.
 *
 *      submitted ──> warm.waiting ──nobody is there──> sched.waiting, sched.running ──> kept for the turn
 *                         ^                                         │
 *                         '──────────somebody comes─────────────────'
 *
 * It runs only when nobody waits and nobody runs, alone in steps of at most WARM_STEP_NS (or the few rows that any prompt
 * gets), with nothing launched behind them. So whoever comes waits for the end of one such step, and finds the house
 * empty: what was computed so far stays as cached pages, which cost nobody anything but the oldest of the pages that
 * nobody holds. It takes none that are pinned for others' turns. When its session comes back, or is no longer waited for,
 * it is over.
 *
 * It leaves no trace in what is counted of requests; its device time is its tenant's. No token depends on it: pages are
 * found by the tokens in them, and hold what anybody would compute.
 */

#include "scheduler/warm.h"

#include <string.h>
#include "scheduler/private.h"

#define WARM_STEP_NS INT64_C(10000000)

void warm_init(struct sched *s) {
    list_init(&s->warm.waiting);
    s->warm.max_step_ns = s->plan.max_step_ns;
}

void warm_deinit(struct warm *w) {
    for (uint32_t i = 0; i < WARM_DONE; i++)
        free(w->done[i].hash);
}

/* ---- what it was good for ---- */

static struct warm_done *done_of(struct warm *w, uint64_t session) {
    return &w->done[(session * 0x9E3779B97F4A7C15u) >> 56];
}

/* @r has its first pages now. */
static void note_done(struct sched *s, const struct request *r) {
    uint32_t t = s->rules.page_tokens, n = r->seq ? kv_seq_committed(r->seq) / t : 0;
    struct warm_done *d = done_of(&s->warm, r->session);

    n = MIN(n, r->n_hashes);
    if (n <= r->n_cached / t || (d->session == r->session && d->hash && n <= d->to))
        return;
    uint64_t *hash = malloc(n * sizeof(*hash));
    if (!hash)
        return;
    memcpy(hash, r->hash, n * sizeof(*hash));
    free(d->hash);
    *d = (struct warm_done){r->session, hash, r->n_cached / t, n};
}

void warm_found(struct sched *s, const struct request *r) {
    struct warm_done *d = done_of(&s->warm, r->session);
    uint32_t hit = MIN(r->n_computed / s->rules.page_tokens, r->n_hashes), i = d->from;

    if (!d->hash || d->session != r->session || r->n_preempted > 0)
        return;
    if (i > 0 && (i > r->n_hashes || d->hash[i - 1] != r->hash[i - 1]))
        return; /* something else than the turn */
    while (i < MIN(d->to, hit) && d->hash[i] == r->hash[i])
        i++;
    s->stats.n_prewarm_hit_tokens += (uint64_t)(i - d->from) * s->rules.page_tokens;
    free(d->hash);
    *d = (struct warm_done){0};
}

/* ---- coming and going ---- */

static void leave_queue(struct sched *s, struct request *r) {
    if (s->warm.now == r) {
        s->warm.now = NULL;
        s->plan.max_step_ns = s->warm.max_step_ns;
        turns_leave(s, r);
    } else if (!list_empty(&r->queued.link)) {
        s->warm.n_waiting--;
    }
    list_remove(&r->queued.link);
}

void warm_finish(struct sched *s, struct request *r, enum finish_reason why) {
    note_done(s, r);
    leave_queue(s, r);
    if (r->seq && (why == FINISH_STOP || why == FINISH_LENGTH)) {
        uint32_t n_tokens = kv_seq_committed(r->seq);

        pin_prewarmed(s, r);
        offload_save(&s->offload, &r->share, r->tokens, n_tokens,
                     pin_chance(&s->pins, r->session, r->turn.tenant), !r->seq);
    }
    r->seq = kv_seq_free(r->seq);
    request_finish(r, why);
    sched_note_news(s, r);
}

void warm_submit(struct sched *s, struct request *r) {
    struct warm *w = &s->warm;

    if (!pin_expects(s, r->session, r->warm.turn)) {
        warm_finish(s, r, FINISH_CANCELLED);
        return;
    }
    if (w->n_waiting == WARM_MAX)
        warm_finish(s, LIST_ENTRY(w->waiting.prev, struct request, queued.link), FINISH_CANCELLED);
    list_push_front(&w->waiting, &r->queued.link);
    w->n_waiting++;
}

/* @r goes on with the conversation of @w: at least half of it is the same. Agents ask other things in between. */
static bool continues(const struct request *r, const struct request *w) {
    uint32_t half = w->n_hashes / 2;

    return w->n_hashes == 0 || (half < r->n_hashes && r->hash[half] == w->hash[half]);
}

void warm_note_turn(struct sched *s, const struct request *r) {
    struct request *now = s->warm.now;

    if (r->session == 0)
        return;
    LIST_FOREACH(node, &s->warm.waiting) {
        struct request *w = LIST_ENTRY(node, struct request, queued.link);

        if (w->session == r->session && continues(r, w))
            warm_finish(s, w, FINISH_CANCELLED);
    }
    /* A step that it is in ends first, and what it brings is what this turn wants. */
    if (now && now->session == r->session && continues(r, now)) {
        now->warm.over = true;
        if (now->n_in_flight == 0)
            warm_finish(s, now, FINISH_CANCELLED);
    }
}

/* ---- its turn ---- */

uint32_t warm_attach(struct sched *s, const struct request *r) {
    struct kv_stats before, after;

    kv_pager_stats(s->pager, &before);
    uint32_t n = kv_seq_attach(r->seq, r->tokens, request_shareable(r));
    kv_pager_stats(s->pager, &after);
    s->warm.n_lookup_tokens += after.n_lookup_tokens - before.n_lookup_tokens;
    s->warm.n_hit_tokens += after.n_hit_tokens - before.n_hit_tokens;
    return n;
}

static void take_back(struct sched *s, struct request *r) {
    note_done(s, r);
    leave_queue(s, r);
    if (r->state == REQUEST_RUNNING) {
        r->seq = kv_seq_free(r->seq);
        r->n_computed = r->n_host = 0;
        r->n_preempted++;
        r->stalled = false;
        request_set_state(r, REQUEST_WAITING);
    }
    r->n_bypassed = 0;
    r->seen_step = 0;
    if (r->warm.over || !pin_expects(s, r->session, r->warm.turn)) {
        warm_finish(s, r, FINISH_CANCELLED);
        return;
    }
    list_push_front(&s->warm.waiting, &r->queued.link);
    s->warm.n_waiting++;
}

/* Without what is pinned for others. */
static bool fits(const struct sched *s, const struct request *r) {
    struct kv_match m = kv_pager_match(s->pager, &r->share, r->tokens, request_shareable(r));
    uint32_t need = plan_pages(&s->plan, r->max_tokens) + 1;

    return need - m.n_tokens / s->rules.page_tokens + m.n_idle <= kv_pager_available(s->pager);
}

static void start(struct sched *s, struct request *r) {
    list_remove(&r->queued.link);
    s->warm.n_waiting--;
    s->warm.now = r;
    s->plan.max_step_ns = MIN(s->warm.max_step_ns, WARM_STEP_NS);
    turns_enter(s, r, r->warm.tenant, r->warm.weight_milli, r->class);
    queue_insert(&s->waiting, &r->queued);
}

static bool is_only(const struct list *l, const struct request *r) {
    return list_empty(l) || (l->next == l->prev && l->next == &r->queued.link);
}

void warm_turn(struct sched *s) {
    struct warm *w = &s->warm;
    struct request *r = w->now;

    if (r) {
        bool others = !is_only(&s->waiting, r) || !is_only(&s->running, r);

        if ((others || !list_empty(&s->compiling)) && r->n_in_flight == 0)
            take_back(s, r);
        return;
    }
    if (!list_empty(&s->waiting) || !list_empty(&s->running) || !list_empty(&s->compiling))
        return;
    LIST_FOREACH(node, &w->waiting) {
        r = LIST_ENTRY(node, struct request, queued.link);
        if (pin_expects(s, r->session, r->warm.turn) && fits(s, r)) {
            start(s, r);
            return;
        }
        warm_finish(s, r, FINISH_CANCELLED);
    }
}
