/*
 * pin - keeps the pages of a session between its turns. An agent calls a tool and returns with its
 * whole conversation and a little more; computing the conversation again would cost more than the
 * rest of the turn. docs/design/fairness.md, "Sessions", describes what ends a pin and which one is
 * dropped first.
 *
 * Active sessions are those whose turns run or are pinned; their working sets fit. Other sessions
 * wait at the beginning of a turn, which bounds the number of active sessions without an option. If
 * a session whose pages are gone were admitted as soon as it fits, the next turn of an active
 * session would evict the pages of another one, and most prompts would be computed again.
 *
 * A session returns after a tool call as soon as the tool has run, and after an answer when a
 * person has read it. Only the front knows the kind of end, and reports it a moment later
 * (pin_turn_end()). Without a report the pauses after all kinds of end count.
 */

#include "scheduler/pin.h"

#include <assert.h>

#include "base/buggify.h"
#include "kvpager/tier.h"
#include "scheduler/plan.h"
#include "scheduler/policy.h"
#include "scheduler/request.h"
#include "scheduler/view.h"

void pin_init(struct pins *t, const struct sched_view *view) {
    assert(view->page_tokens > 0 && view->sessions);
    list_init(&t->pinned);
    list_init(&t->unused);
    t->view = view;
    for (uint32_t i = 0; i < PAUSE_AFTERS; i++)
        t->any.after[i].long_ms = PIN_LONG_START_MS;
    for (uint32_t i = 0; i < PIN_MAX; i++)
        list_push_back(&t->unused, &t->all[i].link);
}

static void pin_drop(struct pins *t, struct pin *k) {
    k->seq = kv_seq_free(k->seq);
    list_remove(&k->link);
    list_push_back(&t->unused, &k->link);
}

void pin_deinit(struct pins *t) {
    if (t->pinned.next)
        LIST_FOREACH(node, &t->pinned) pin_drop(t, LIST_ENTRY(node, struct pin, link));
}

/* ---- pauses ---- */

/* Returns the learnt pauses of @session, or NULL. */
static const struct pauses *known_pauses(const struct pins *t, uint64_t session) {
    const struct session *x = sessions_find(t->view->sessions, session);

    return x ? &x->pauses : NULL;
}

/* Returns the pauses of @session for an update; NULL if @session is 0. Values that a session lacks
 * are copied from those of all sessions. */
static struct pauses *pauses_of(struct pins *t, uint64_t session) {
    struct session *x = sessions_use(t->view->sessions, session);
    struct pauses *p = x ? &x->pauses : NULL;

    for (uint32_t i = 0; p && i < PAUSE_AFTERS; i++)
        if (p->after[i].long_ms <= 0)
            p->after[i].long_ms = t->any.after[i].long_ms;
    return p;
}

/* Updates the 90th percentile: up by 0.9 steps for a longer pause, down by 0.1 for a shorter one,
 * so it rests where one pause in ten is longer. */
static void pin_learn(struct pause *p, double ms, uint32_t first) {
    double gain = p->n_returned++ < first ? PIN_LEARN_FIRST : PIN_LEARN;

    assert(p->long_ms > 0);
    p->long_ms *= 1 + gain * (ms > p->long_ms ? PIN_QUANTILE : PIN_QUANTILE - 1);
    p->long_ms = MAX(PIN_LONG_MIN_MS, MIN(p->long_ms, PIN_LONG_MAX_MS));
}

void pin_note_turn(struct pins *t, uint64_t session, uint16_t tenant, int64_t now) {
    struct pauses *p = pauses_of(t, session);

    if (!p || p->ended_ns == 0)
        return;
    double ms = (double)(now - p->ended_ns) / 1e6;
    for (uint32_t i = 0; i < PAUSE_AFTERS; i++)
        if (i == PAUSE_AFTER_ANY || i == p->end) {
            if (p->after[i].n_returned == 0)
                p->after[i].long_ms = t->any.after[i].long_ms;
            pin_learn(&p->after[i], ms, PIN_FIRST);
            pin_learn(&t->any.after[i], ms, PIN_FIRST_ANY);
        }
    t->view->fair->tenant[tenant].turns.n_returned++;
    p->ended_ns = 0;
}

static bool comes_back(const struct pause *p) {
    return p->n_ended < PIN_TURNS_MIN || p->n_returned >= PIN_RETURNS_MIN * p->n_ended;
}

static bool others_come_back(const struct pins *t, uint16_t tenant) {
    const struct fair_tenant *f = &t->view->fair->tenant[tenant];

    return f->turns.n_ended < PIN_TENANT_TURNS / 4 ||
           f->turns.n_returned >= PIN_RETURNS_MIN * f->turns.n_ended;
}

bool pin_returns(const struct pins *t, uint64_t session, uint16_t tenant) {
    const struct pauses *p = known_pauses(t, session);
    const struct pause *all = p ? &p->after[PAUSE_AFTER_ANY] : NULL;

    if (all && all->n_ended >= PIN_TURNS_MIN)
        return comes_back(all);
    return others_come_back(t, tenant);
}

/* ---- keeping ---- */

/* Learns how much longer turns get. A turn has @n_tokens; the one before had @before, 0 if
 * unknown. */
static void learn_growth(float *growth, uint32_t before, uint32_t n_tokens) {
    float more = (float)n_tokens - (float)before;

    if (before > 0 && more > 0)
        *growth += (more - *growth) * (*growth > 0 ? PIN_LEARN_GROWTH : 1);
}

static void pin_count_end(struct pins *t, uint16_t tenant) {
    struct fair_tenant *f = &t->view->fair->tenant[tenant];

    if (++f->turns.n_ended < PIN_TENANT_TURNS)
        return;
    f->turns.n_ended /= 2;
    f->turns.n_returned /= 2;
}

struct pin_pages pin_pages(const struct pins *t) {
    struct kv_stats kv;

    kv_pager_stats(t->view->pager, &kv);
    return (struct pin_pages){kv.n_free + kv.n_cached, kv.n_pinned, kv.n_pages};
}

static bool pin_has_room(const struct pins *t, const struct request *r) {
    struct pin_pages p = pin_pages(t);

    return p.n_pinned + kv_seq_exclusive(r->seq) <= p.n_pages / PIN_MOST_DEN * PIN_MOST_NUM;
}

static bool is_worth_pinning(const struct pins *t, const struct request *r) {
    return request_n_stored(r) >= t->view->page_tokens && !t->view->no_sharing &&
           pin_returns(t, r->session, r->tenant);
}

/* Pins among which one is dropped: all, spare ones, those of tenants above their shares. */
enum pin_kind { PIN_ANY, PIN_SPARE, PIN_BEYOND };

static bool pin_is_of(const struct pins *t, const struct pin *k, enum pin_kind kind) {
    if (kind == PIN_SPARE)
        return k->spare;
    return kind == PIN_ANY || t->n_beyond[k->tenant] > 0;
}

/* Returns the pin of @kind to be dropped next, or NULL. */
static struct pin *next_victim(struct pins *t, enum pin_kind kind) {
    struct pin *best = NULL;
    int best_rank = -1;

    LIST_FOREACH_ENTRY(k, &t->pinned, struct pin, link) {
        if (!pin_is_of(t, k, kind))
            continue;
        int rank = 2 * (t->n_beyond[k->tenant] > 0) + (k->end == PAUSE_AFTER_ANSWER);

        if (rank > best_rank || (rank == best_rank && k->n_tokens < best->n_tokens)) {
            best = k;
            best_rank = rank;
        }
    }
    return best;
}

static bool drop_one(struct pins *t, enum pin_kind kind) {
    struct pin *k = next_victim(t, kind);

    if (!k)
        return false;
    t->n_beyond[k->tenant] -= MIN(t->n_beyond[k->tenant], k->n_exclusive);
    pin_drop(t, k);
    t->view->stats->n_pins_dropped++;
    return true;
}

/* Returns the 90th percentile of the pauses, ms; while few of the session are known, mixed with
 * that of all sessions. */
static double long_pause_ms(const struct pins *t, const struct pauses *p, enum pause_after end) {
    const struct pause *own = &p->after[end], *any = &t->any.after[end];
    double known = MIN(own->n_returned, PIN_FIRST) / (double)PIN_FIRST;

    return known * own->long_ms + (1 - known) * any->long_ms;
}

/* Returns when the pin of a turn that ended at @since expires. */
static int64_t until(const struct pins *t, const struct pauses *p, enum pause_after end,
                     int64_t since) {
    return since + (int64_t)(long_pause_ms(t, p, end) * PIN_SLACK * 1e6);
}

void pin_turn(struct pins *t, struct request *r, int64_t now) {
    struct pauses *p = pauses_of(t, r->session);

    if (p) {
        p->ended_ns = now;
        p->turn = r->id;
        p->end = PAUSE_AFTER_ANY;
        learn_growth(&t->view->fair->tenant[r->tenant].turns.growth, p->n_tokens, r->n_tokens);
        p->n_tokens = r->n_tokens;
        p->after[PAUSE_AFTER_ANY].n_ended++;
        pin_count_end(t, r->tenant);
    }
    if (!p || t->view->no_pins || !r->seq || request_pools(r) || !is_worth_pinning(t, r) ||
        !pin_has_room(t, r)) {
        request_free_pages(r);
        return;
    }
    if (list_empty(&t->unused))
        pin_drop(t, LIST_ENTRY(t->pinned.next, struct pin, link));
    assert(!list_empty(&t->unused));
    struct pin *k = LIST_ENTRY(list_pop_front(&t->unused), struct pin, link);
    k->n_exclusive = kv_seq_exclusive(r->seq);
    k->seq = STEAL(r->seq);
    kv_seq_pin(k->seq);
    k->session = r->session;
    k->turn = r->id;
    k->end = PAUSE_AFTER_ANY;
    k->spare = false;
    k->tenant = r->tenant;
    k->n_tokens = kv_seq_committed(k->seq);
    k->since_ns = now;
    k->until_ns = until(t, p, PAUSE_AFTER_ANY, now);
    list_push_back(&t->pinned, &k->link);
}

static struct pin *pin_of(const struct pins *t, uint64_t session, uint64_t turn) {
    LIST_FOREACH_ENTRY(k, &t->pinned, struct pin, link) {
        if (k->session == session && k->turn == turn)
            return k;
    }
    return NULL;
}

void pin_turn_end(struct pins *t, const struct turn_end *m) {
    struct pauses *p = (struct pauses *)known_pauses(t, m->session);
    struct pin *k = pin_of(t, m->session, m->id);
    enum pause_after end = m->calls ? PAUSE_AFTER_CALLS : PAUSE_AFTER_ANSWER;

    if (!p)
        return;
    /* Accepted once for each turn; only the last turn's pause is measured. */
    if (p->turn == m->id && p->ended_ns != 0 && p->end == PAUSE_AFTER_ANY) {
        p->end = end;
        p->after[end].n_ended++;
    }
    if (!k || k->end != PAUSE_AFTER_ANY)
        return;
    k->end = end;
    k->until_ns = until(t, p, end, k->since_ns);
    k->spare = end == PAUSE_AFTER_ANSWER && long_pause_ms(t, p, end) > PIN_SPARE_MS;
    if (!comes_back(&p->after[end]))
        pin_drop(t, k);
}

bool pin_expects(const struct pins *t, uint64_t session, uint64_t turn) {
    const struct pauses *p = known_pauses(t, session);

    if (!t->view->no_pins)
        return pin_of(t, session, turn) != NULL;
    return p && p->turn == turn && p->ended_ns != 0;
}

void pin_prewarmed(struct pins *t, struct request *r) {
    struct pin *k = pin_of(t, r->session, r->prewarm.turn);

    if (!k)
        return;
    k->seq = kv_seq_free(k->seq);
    if (!pin_has_room(t, r)) {
        pin_drop(t, k);
        return;
    }
    k->n_exclusive = kv_seq_exclusive(r->seq);
    k->seq = STEAL(r->seq);
    kv_seq_pin(k->seq);
    k->n_tokens = kv_seq_committed(k->seq);
}

/* Returns whether all pages of @pinned are part of @seq. */
static bool is_part_of(const struct kv_seq *pinned, const struct kv_seq *seq) {
    uint32_t n_pinned, n;
    const kv_page *a = kv_seq_pages(pinned, &n_pinned), *b = kv_seq_pages(seq, &n);

    return n_pinned > 0 && n_pinned <= n && a[n_pinned - 1] == b[n_pinned - 1];
}

void pin_admitted(struct pins *t, const struct request *r) {
    if (r->session == 0 || t->view->no_pins)
        return;
    LIST_FOREACH_ENTRY(k, &t->pinned, struct pin, link) {
        if (k->session == r->session && is_part_of(k->seq, r->seq))
            pin_drop(t, k);
    }
    const struct pauses *p = pauses_of(t, r->session);
    uint32_t had = MIN(p->n_tokens, r->n_prompt) / t->view->page_tokens * t->view->page_tokens;
    uint32_t has = MAX(r->n_computed, r->n_host);
    if (r->n_preempted == 0 && had > has)
        t->view->stats->n_recomputed_tokens += had - has;
}

static void pin_expire(struct pins *t, int64_t now) {
    LIST_FOREACH_ENTRY(k, &t->pinned, struct pin, link) {
        if (k->until_ns <= now || BUGGIFY(pin_expires))
            pin_drop(t, k);
    }
}

/* Returns the pages by which active sessions, running or in a pause, will grow before one of them
 * probably ends. */
static uint64_t growth_pages(const struct pins *t) {
    const struct fair_tenant *tenant = t->view->fair->tenant;
    double tokens = 0;

    LIST_FOREACH_ENTRY(k, &t->pinned, struct pin, link) {
        tokens += (double)tenant[k->tenant].turns.growth;
    }
    LIST_FOREACH_ENTRY(r, t->view->running, const struct request, queued.link) {
        tokens += r->session ? (double)tenant[r->tenant].turns.growth : 0;
    }
    return (uint64_t)(tokens * PIN_GROWTH_TURNS) / t->view->page_tokens;
}

/* Counts the pages that tenants hold, and the pinned ones among them that are beyond their
 * shares. */
static void note_held(struct pins *t, int64_t now) {
    struct fair_share *f = t->view->fair;
    uint32_t n_pinned[FAIR_TENANTS] = {0};

    LIST_FOREACH_ENTRY(k, &t->pinned, const struct pin, link) {
        n_pinned[k->tenant] += k->n_exclusive;
    }
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        t->n_held[i] = f->tenant[i].n_pages + n_pinned[i];
        t->n_beyond[i] = 0;
        if (n_pinned[i] > 0)
            t->n_beyond[i] = fair_beyond(f, i, f->tenant[i].n_pages, n_pinned[i], now);
    }
}

void pin_begin_step(struct pins *t, int64_t now) {
    uint64_t need = plan_next_pages(t->view->plan);

    pin_expire(t, now);
    note_held(t, now);
    while (kv_pager_available(t->view->pager) < need && drop_one(t, PIN_ANY))
        ;
    t->growth_pages = growth_pages(t);
    t->spare_pages = 0;
    LIST_FOREACH_ENTRY(k, &t->pinned, const struct pin, link) {
        t->spare_pages += k->spare ? k->n_exclusive : 0;
    }
    t->beyond_pages = 0;
    for (uint32_t i = 0; i < t->view->fair->n_tenants; i++)
        t->beyond_pages += t->n_beyond[i];
}

/* Returns whether most of @r is cached: its session was active a moment ago, and it costs
 * little. */
static bool is_returning(const struct pins *t, const struct request *r) {
    const struct pauses *p = known_pauses(t, r->session);

    if (!p || p->n_tokens == 0)
        return false;
    uint32_t had = MIN(p->n_tokens, r->n_prompt) / t->view->page_tokens * t->view->page_tokens;
    return r->seen_hit + r->n_tokens / PIN_LOST_MOST >= had;
}

static bool has_waited(const struct pins *t, const struct request *r, int64_t now) {
    int64_t patience = r->session && !is_returning(t, r) ? PIN_FORCE_NS : PIN_FORCE_PLAIN_NS;

    return now - r->since_ns >= patience;
}

/* Returns the pages that waiting request @r lacks, as far as its last lookup tells. */
static uint32_t pages_lacking(const struct pins *t, const struct request *r) {
    return plan_pages(t->view->plan, r->n_tokens) - r->seen_hit / t->view->page_tokens;
}

/* Returns whether the tenant of waiting request @r is within its share of the pages, also with what
 * it pins and with @r. */
static bool pin_is_within(const struct pins *t, const struct request *r, int64_t now) {
    uint32_t n = t->n_held[r->tenant] + pages_lacking(t, r);

    return !fair_is_over(t->view->fair, r->tenant, n, t->view->n_pages, true, now);
}

static bool pin_delays(const struct pins *t, const struct request *r, uint64_t room, int64_t now) {
    uint64_t need = pages_lacking(t, r) + t->growth_pages;

    if (r->session == 0 || r->seen_step == 0 || is_returning(t, r) ||
        list_empty(t->view->running) || list_empty(&t->pinned))
        return false;
    if (need <= room + t->spare_pages || now - r->since_ns >= PIN_FORCE_NS)
        return false;
    return need > room + t->beyond_pages || !pin_is_within(t, r, now);
}

void pin_pause(struct pins *t, uint64_t room, int64_t now) {
    LIST_FOREACH_ENTRY(r, t->view->waiting, struct request, queued.link) {
        r->paused = pin_delays(t, r, room, now);
    }
}

/* Returns the pages that @r will take. Cached pages are not taken, but idle ones among them are no
 * longer available. */
static uint64_t need_of(struct pins *t, const struct request *r) {
    struct kv_match m =
        request_match(r, t->view->pager, request_shareable(r), t->view->page_tokens);

    return plan_pages(t->view->plan, request_target(r, t->view->estimate)) -
           m.n_tokens / t->view->page_tokens + m.n_idle;
}

/* Drops spare pins for the first request that has waited a little, also one of a paused session: a
 * spare pin is worth less than its turn. */
static void drop_spares(struct pins *t, struct request *const *r, uint32_t n, uint64_t promised,
                        int64_t now) {
    uint32_t i = 0;

    while (i < n && now - r[i]->since_ns < PIN_FORCE_PLAIN_NS)
        i++;
    if (i == n || t->spare_pages == 0)
        return;
    uint64_t need = promised + need_of(t, r[i]) + t->growth_pages;
    while (need > kv_pager_available(t->view->pager) && drop_one(t, PIN_SPARE))
        ;
}

/* Drops pins of tenants above their shares for the first request of one within its share. */
static void drop_beyond(struct pins *t, struct request *const *r, uint32_t n, uint64_t promised,
                        int64_t now) {
    uint32_t i = 0;

    while (i < n && t->beyond_pages > 0 && !pin_is_within(t, r[i], now))
        i++;
    if (i == n || t->beyond_pages == 0)
        return;
    uint64_t need = promised + need_of(t, r[i]);
    while (need > kv_pager_available(t->view->pager) && drop_one(t, PIN_BEYOND))
        ;
}

void pin_release_for_waiting(struct pins *t, struct request *const *r, uint32_t n,
                             uint64_t promised, int64_t now) {
    uint32_t i = 0;

    if (list_empty(&t->pinned) || n == 0)
        return;
    drop_spares(t, r, n, promised, now);
    drop_beyond(t, r, n, promised, now);
    while (t->view->plan->n_running > 0 && i < n && !has_waited(t, r[i], now))
        i++;
    while (i < n && promised + need_of(t, r[i]) > kv_pager_available(t->view->pager) &&
           drop_one(t, PIN_ANY))
        ;
}

void pin_save(const struct sched_view *v, const struct request *r, uint32_t n_tokens) {
    struct kv_keys k = request_prefix(r, n_tokens);

    kv_tier_save(v->tier, &k, pin_returns(v->pins, r->session, r->tenant));
}
