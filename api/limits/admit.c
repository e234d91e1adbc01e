#include "api/limits/admit.h"

#include <assert.h>
#include "api/generation/gen.h"
#include "api/private.h"

/*
 * The worker is fair with what it has been given; here it is decided what it is given. A free place goes to the
 * tenant with the fewest generations for his weight, and inside a tenant first come first served. A tenant that has
 * less than his share of the places finds one even when all are taken (a quarter more exist for that),
 * so that a flood by others does not make him wait for one of theirs to end.
 *
 * The queue only absorbs bursts. When it is full, who has the most in it for his weight loses his last one
 * to a tenant that has less: the flood is refused, not whoever comes after it. Where nothing of a tenant can be taken
 * its requests are refused unread.
 *
 * One timer looks after all that nobody else would wake: submits the channel could not take, deadlines of
 * what waits, and those who lost their places. It runs only while there is such a thing: an idle daemon does not
 * tick.
 */

#define TICK_MS 20
#define RETRY_MIN_MS 500
#define RETRY_MAX_MS 60000 /* what both SDKs still honour */

void admit_init(struct api *a) {
    list_init(&a->admit.busy);
    list_init(&a->admit.dropped);
    a->admit.mean_ms = 1000;
    uv_timer_init(a->loop, &a->admit.tick);
    a->admit.tick.data = a;
}

void admit_close(struct api *a) {
    uv_close((uv_handle_t *)&a->admit.tick, NULL);
}

bool admit_is_waiting(const struct waiter *w) {
    return !list_empty(&w->link);
}

/* ---- shares ---- */

static void note_busy(struct api *a, struct tenant *t) {
    bool is = t->stats.n_running + t->stats.n_queued > 0;

    if (is && list_empty(&t->link))
        list_push_back(&a->admit.busy, &t->link);
    else if (!is)
        list_remove(&t->link);
}

/* Whether @n more leave @t within his share of @total among those that are busy. */
static bool in_share(const struct api *a, const struct tenant *t, uint32_t n, uint32_t total) {
    double sum = list_empty(&t->link) ? tenant_weight(t) : 0;

    for (const struct list *l = a->admit.busy.next; l != &a->admit.busy; l = l->next)
        sum += tenant_weight(LIST_ENTRY(l, const struct tenant, link));
    return (t->stats.n_running + n) * sum <= total * tenant_weight(t);
}

/* A request larger than a limit runs alone rather than never. */
static bool fits(const struct api *a, const struct waiter *w) {
    const struct tenant *t = w->tenant;
    const struct api_tenant *c = &t->conf;
    uint32_t total = a->opts.max_running, n = a->admit.n_running + w->n;

    if (t->stats.n_running > 0 && c->max_running > 0 && t->stats.n_running + w->n > c->max_running)
        return false;
    if (t->stats.n_running > 0 && c->kv_tokens > 0 &&
        t->stats.n_context + w->n_context > c->kv_tokens)
        return false;
    if (a->admit.n_running == 0 || n <= total)
        return true;
    return n <= total + total / 4 && in_share(a, t, w->n, total);
}

static struct waiter *first_of(const struct tenant *t) {
    return list_empty(&t->waiting) ? NULL : LIST_ENTRY(t->waiting.next, struct waiter, link);
}

static struct waiter *last_of(const struct tenant *t) {
    return list_empty(&t->waiting) ? NULL : LIST_ENTRY(t->waiting.prev, struct waiter, link);
}

/* Whose turn it is: of those whose first waiter fits, the one with the fewest places for his weight. */
static struct waiter *next_waiter(const struct api *a) {
    struct waiter *best = NULL;
    double least = 0;

    for (const struct list *l = a->admit.busy.next; l != &a->admit.busy; l = l->next) {
        const struct tenant *t = LIST_ENTRY(l, const struct tenant, link);
        struct waiter *w = first_of(t);
        double has = t->stats.n_running / tenant_weight(t);

        if (w && fits(a, w) && (!best || has < least)) {
            best = w;
            least = has;
        }
    }
    return best;
}

static void unqueue(struct api *a, struct waiter *w) {
    list_remove(&w->link);
    w->tenant->stats.n_queued -= w->n;
    a->admit.n_queued -= w->n;
}

/* The charges of its generations count it for the tenant; that is over when they start. */
static void admit(struct api *a, struct waiter *w) {
    struct tenant *t = w->tenant;

    a->admit.n_running += w->n;
    w->admitted(w);
    note_busy(a, t);
}

static void admit_waiting(struct api *a) {
    struct waiter *w;

    while (!a->closing && (w = next_waiter(a))) {
        unqueue(a, w);
        admit(a, w);
    }
}

/* ---- the queue ---- */

/* How often a place becomes free for @t, which has a part of those that run. */
static double place_ms(const struct api *a, const struct tenant *t) {
    double each_ms =
        a->admit.each_ms > 0 ? a->admit.each_ms : a->admit.mean_ms / MAX(a->opts.max_running, 1u);

    return each_ms * MAX(a->admit.n_running, 1u) / MAX(t->stats.n_running, 1u);
}

/* When it is the turn of one more of @t, behind those in the queue and those that were sent away before: else a crowd
 * returns all the time for places that it cannot have. Spread a little so that clients do not return together. */
static uint32_t retry_ms(struct api *a, struct tenant *t) {
    double each_ms = place_ms(a, t), most_ms = RETRY_MAX_MS * 0.8;
    int64_t now = clock_now(a->clock), each_ns = (int64_t)(MIN(each_ms, most_ms) * 1e6);

    t->away_ns = MAX(t->away_ns + each_ns, now + (t->stats.n_queued + 1) * each_ns);
    t->away_ns = MIN(t->away_ns, now + (int64_t)(most_ms * 1e6));
    double ms = MAX((double)(t->away_ns - now) / 1e6, RETRY_MIN_MS);
    return (uint32_t)(ms * (1 + 0.25 * rng_unit(&a->rng)));
}

static int refuse(struct api *a, struct tenant *t, uint32_t *retry, struct err *err) {
    *retry = retry_ms(a, t);
    return err_set_code(err, 429, "rate_limit_exceeded", NULL,
                        "Too many requests are waiting, try again in %.1fs.", *retry / 1000.0);
}

/* The tenant that has most in the queue for his weight, if it is more than @t will have with @n more. */
static struct tenant *greediest(const struct api *a, const struct tenant *t, uint32_t n) {
    double most = (t->stats.n_queued + n) / tenant_weight(t);
    struct tenant *found = NULL;

    for (const struct list *l = a->admit.busy.next; l != &a->admit.busy; l = l->next) {
        struct tenant *o = LIST_ENTRY(l, struct tenant, link);
        double has = o->stats.n_queued / tenant_weight(o);

        if (o != t && last_of(o) && last_of(o)->refused && has > most) {
            most = has;
            found = o;
        }
    }
    return found;
}

/* Makes room in the queue for @w at the cost of who has more in it. They are told by the timer: a client's
 * answer may begin its next request, and this is not the place for that. */
static bool push_out(struct api *a, const struct waiter *w) {
    while (a->admit.n_queued + w->n > a->opts.max_queued) {
        struct tenant *t = greediest(a, w->tenant, w->n);

        if (!t)
            return false;
        struct waiter *last = last_of(t);
        unqueue(a, last);
        note_busy(a, t);
        last->dropped = true;
        list_push_back(&a->admit.dropped, &last->link);
        admit_tick_later(a);
    }
    return true;
}

bool admit_is_free(const struct api *a, const struct waiter *w) {
    return list_empty(&w->tenant->waiting) && fits(a, w);
}

void admit_again(struct api *a, struct waiter *w) {
    struct tenant *t = w->tenant;

    list_init(&w->link);
    if (admit_is_free(a, w)) {
        admit(a, w);
        return;
    }
    list_push_back(&t->waiting, &w->link);
    t->stats.n_queued += w->n;
    a->admit.n_queued += w->n;
    note_busy(a, t);
    if (w->deadline_ns)
        admit_tick_later(a);
}

static bool has_queued_enough(const struct tenant *t, uint32_t n) {
    return t->conf.max_queued > 0 && t->stats.n_queued + n > t->conf.max_queued;
}

int admit_glance(struct api *a, struct tenant *t, uint32_t *retry, struct err *err) {
    const struct waiter w = {.tenant = t,
                             .n = 1}; /* what is more finds no place where this finds none */
    bool room = a->admit.n_queued < a->opts.max_queued || greediest(a, t, 1);

    if (admit_is_free(a, &w) || (room && !has_queued_enough(t, 1)))
        return 0;
    t->stats.n_limited++;
    return refuse(a, t, retry, err);
}

int admit_enter(struct api *a, struct waiter *w, uint32_t *retry, struct err *err) {
    struct tenant *t = w->tenant;

    list_init(&w->link);
    if (admit_is_free(a, w)) {
        admit(a, w);
        return 0;
    }
    if (has_queued_enough(t, w->n) || !push_out(a, w)) {
        t->stats.n_limited++;
        return refuse(a, t, retry, err);
    }
    admit_again(a, w);
    return 0;
}

void admit_cancel(struct api *a, struct waiter *w) {
    if (!admit_is_waiting(w))
        return;
    if (w->dropped) {
        list_remove(&w->link);
        return;
    }
    unqueue(a, w);
    note_busy(a, w->tenant);
    admit_waiting(a);
}

/* @n places became free. */
static void note_end(struct api *a, uint32_t n) {
    struct admit *m = &a->admit;
    int64_t now = clock_now(a->clock);

    if (m->each_ms <= 0)
        m->each_ms = m->mean_ms / MAX(a->opts.max_running, 1u);
    if (m->last_end_ns && n > 0)
        m->each_ms += MIN(0.05 * n, 1.0) * ((double)(now - m->last_end_ns) / 1e6 / n - m->each_ms);
    m->last_end_ns = m->n_queued > 0 ? now : 0;
}

void admit_release(struct api *a, struct tenant *t, uint32_t n) {
    assert(a->admit.n_running >= n);
    note_end(a, n);
    a->admit.n_running -= n;
    note_busy(a, t);
    admit_waiting(a);
}

void admit_took(struct api *a, int64_t ns) {
    a->admit.mean_ms += 0.1 * ((double)ns / 1e6 - a->admit.mean_ms);
}

/* The first waiter whose deadline has passed; *more: others have one. */
static struct waiter *late(const struct api *a, int64_t now, bool *more) {
    *more = false;
    for (const struct list *l = a->admit.busy.next; l != &a->admit.busy; l = l->next) {
        const struct tenant *t = LIST_ENTRY(l, const struct tenant, link);

        for (const struct list *n = t->waiting.next; n != &t->waiting; n = n->next) {
            struct waiter *w = LIST_ENTRY(n, struct waiter, link);

            *more |= w->deadline_ns != 0;
            if (w->deadline_ns && now >= w->deadline_ns)
                return w;
        }
    }
    return NULL;
}

/* Whether a deadline is pending, after those that have passed were told. */
static bool expire(struct api *a) {
    int64_t now = clock_now(a->clock);
    struct waiter *w;
    bool more;

    while ((w = late(a, now, &more))) { /* the lists may have changed altogether */
        admit_cancel(a, w);
        w->expired(w);
    }
    return more;
}

static void tell_dropped(struct api *a) {
    while (!list_empty(&a->admit.dropped)) {
        struct waiter *w = LIST_ENTRY(list_pop_front(&a->admit.dropped), struct waiter, link);
        struct err err;
        uint32_t ms;

        w->tenant->stats.n_limited++;
        refuse(a, w->tenant, &ms, &err);
        w->refused(w, &err, ms);
    }
}

static void on_tick(uv_timer_t *t) {
    struct api *a = t->data;

    a->admit.ticking = false;
    gen_retry(a);
    tell_dropped(a);
    if (expire(a) || gen_any_pending(a))
        admit_tick_later(a);
}

void admit_tick_later(struct api *a) {
    if (a->admit.ticking || uv_is_closing((uv_handle_t *)&a->admit.tick))
        return;
    a->admit.ticking = true;
    uv_timer_start(&a->admit.tick, on_tick, TICK_MS, 0);
}
