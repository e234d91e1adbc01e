/*
 * The worker shares its time among the generations that it has; this file decides which it gets.
 * A free place goes to the tenant with the fewest running generations by weight, inside a tenant
 * first come, first served. A tenant below its share of the places is admitted even when all are
 * taken (a quarter more exist for that), so that a flood by others does not make it wait for one
 * of theirs to end.
 *
 * The queue only absorbs bursts. When it is full, the tenant with the longest queue by weight
 * loses its last waiter to a tenant with a shorter one: the flood is refused, not the requests
 * after it. Where nothing of a tenant can be queued its requests are refused before their bodies
 * are parsed.
 *
 * One timer serves what no event wakes: submits that the channel could not take, deadlines of
 * waiters, and waiters that lost their places. It runs only while one of these waits: an idle
 * daemon does not tick.
 *
 * Invariants: n_queued is the sum of waiter.n over all tenants' queues, and tenant.n_queued that
 * of its own; a tenant is in `busy` exactly while it has running or queued generations; a waiter
 * is in at most one list.
 */

#include "api/limits/admit.h"

#include <assert.h>

#include "api/http/loop_lag.h"
#include "api/limits/tenant.h"
#include "base/clock.h"
#include "base/rng.h"

#define TICK_MS 20
#define MEAN_START_MS 1000 /* assumed time of a generation before one has ended */
#define RETRY_MIN_MS 500
#define RETRY_MAX_MS 60000 /* longest Retry-After that OpenAI's and Anthropic's SDKs honour */
#define NOTIFY_NS 2000000  /* time in which dropped waiters are notified in an iteration */

void admit_init(struct admit *m, const struct admit_opts *opts) {
    assert(opts->loop && opts->clock && opts->rng && opts->retry);
    *m = (struct admit){.opts = *opts, .mean_ms = MEAN_START_MS};
    list_init(&m->busy);
    list_init(&m->dropped);
    uv_timer_init(opts->loop, &m->tick);
    m->tick.data = m;
}

void admit_stop(struct admit *m) {
    m->closed = true;
}

void admit_close(struct admit *m) {
    admit_stop(m);
    uv_close((uv_handle_t *)&m->tick, NULL);
}

/* ---- shares ---- */

/* Keeps @t in `busy` exactly while it has running or queued generations; called after these numbers
 * have changed. */
static void note_busy(struct admit *m, struct tenant *t) {
    bool is = t->stats.n_running + t->stats.n_queued > 0;

    assert(t->stats.n_queued <= m->n_queued && list_empty(&t->waiting) == !t->stats.n_queued);
    if (is && list_empty(&t->link))
        list_push_back(&m->busy, &t->link);
    else if (!is)
        list_remove(&t->link);
}

static double busy_weight(const struct admit *m) {
    double sum = 0;

    LIST_FOREACH_ENTRY(t, &m->busy, const struct tenant, link) {
        sum += tenant_weight(t);
    }
    return sum;
}

/* Returns true if @n more leave @t within its share of @total places, by weight among the busy
 * tenants, which weigh @busy: (running + n) / total <= weight / sum of weights. */
static bool in_share(const struct tenant *t, uint32_t n, uint32_t total, double busy) {
    double sum = list_empty(&t->link) ? busy + tenant_weight(t) : busy;

    return (t->stats.n_running + n) * sum <= total * tenant_weight(t);
}

/* Returns true if @w can be admitted now; the busy tenants weigh @busy. A request larger than a
 * limit runs alone rather than never. */
static bool admit_fits(const struct admit *m, const struct waiter *w, double busy) {
    const struct tenant *t = w->tenant;
    const struct api_tenant *c = &t->conf;
    uint32_t total = m->opts.max_running, n = m->n_running + w->n;

    if (t->stats.n_running > 0 && c->max_running > 0 && t->stats.n_running + w->n > c->max_running)
        return false;
    if (t->stats.n_running > 0 && c->kv_tokens > 0 &&
        t->stats.n_context + w->n_context > c->kv_tokens)
        return false;
    if (m->n_running == 0 || n <= total)
        return true;
    return n <= total + total / 4 && in_share(t, w->n, total, busy);
}

static struct waiter *admit_first(const struct tenant *t) {
    if (list_empty(&t->waiting))
        return NULL;
    return LIST_ENTRY(t->waiting.next, struct waiter, link);
}

static struct waiter *admit_last(const struct tenant *t) {
    if (list_empty(&t->waiting))
        return NULL;
    return LIST_ENTRY(t->waiting.prev, struct waiter, link);
}

/* Returns the next waiter to admit, or NULL: of the tenants whose first waiter fits, that of the
 * one with the fewest running generations by weight. */
static struct waiter *next_waiter(const struct admit *m) {
    struct waiter *best = NULL;
    double least = 0, busy = busy_weight(m);

    LIST_FOREACH_ENTRY(t, &m->busy, const struct tenant, link) {
        struct waiter *w = admit_first(t);
        double has = t->stats.n_running / tenant_weight(t);

        if (w && admit_fits(m, w, busy) && (!best || has < least)) {
            best = w;
            least = has;
        }
    }
    return best;
}

static void unqueue(struct admit *m, struct waiter *w) {
    assert(w->tenant->stats.n_queued >= w->n && m->n_queued >= w->n);
    list_remove(&w->link);
    w->tenant->stats.n_queued -= w->n;
    m->n_queued -= w->n;
}

/* Admits @w. The tenant's numbers change in w->admitted(), where the charges of the generations
 * begin to run. */
static void admit_one(struct admit *m, struct waiter *w) {
    struct tenant *t = w->tenant;

    assert(list_empty(&w->link) && !w->dropped);

    m->n_running += w->n;
    m->changed_ns = clock_now(m->opts.clock);
    w->admitted(w);
    note_busy(m, t);
}

void admit_waiting(struct admit *m) {
    struct waiter *w;

    /* Each iteration takes a waiter from the queue. An answer may begin the next request of a
     * connection, but only of those that it has read ahead (conn.c). */
    while (!m->closed && (w = next_waiter(m))) {
        unqueue(m, w);
        admit_one(m, w);
    }
}

/* ---- the queue ---- */

/* Returns the mean time in ms until a place becomes free for @t, which has a part of the places. */
static double place_ms(const struct admit *m, const struct tenant *t) {
    uint32_t n = MAX(m->n_running, 1u);
    double each_ms = MAX(m->each_ms, m->mean_ms / n); /* a tenant may wait while slots are free */

    return each_ms * n / MAX(t->stats.n_running, 1u);
}

/* Returns the time in ms in which no generation has begun or ended. Where the rate at which places
 * become free is constant, the next one is as far away. Generations that are all longer than
 * `mean_ms` are thus noticed before one of them has ended. */
static double still_ms(const struct admit *m) {
    if (!m->n_running)
        return 0;
    return (double)(clock_now(m->opts.clock) - m->changed_ns) / 1e6;
}

double admit_wait_ms(const struct admit *m, const struct tenant *t, uint32_t n_before) {
    return MAX(place_ms(m, t), still_ms(m)) * (n_before + 1);
}

/* Estimates when one more request of @t could be admitted: behind its queue and behind the requests
 * that were refused before, because these would otherwise all come back for the first place. A
 * random part keeps clients from returning together. */
static uint32_t admit_retry_ms(struct admit *m, struct tenant *t) {
    double each_ms = place_ms(m, t), most_ms = RETRY_MAX_MS * 0.8;
    int64_t now = clock_now(m->opts.clock), each_ns = (int64_t)(MIN(each_ms, most_ms) * 1e6);

    t->away_ns = MAX(t->away_ns + each_ns, now + (t->stats.n_queued + 1) * each_ns);
    t->away_ns = MIN(t->away_ns, now + (int64_t)(most_ms * 1e6));
    double least_ms = MIN(MAX(still_ms(m), RETRY_MIN_MS), most_ms);
    double ms = MAX((double)(t->away_ns - now) / 1e6, least_ms);
    return (uint32_t)(ms * (1 + 0.25 * rng_unit(m->opts.rng)));
}

static int admit_refuse(struct admit *m, struct tenant *t, uint32_t *retry, struct err *err) {
    *retry = admit_retry_ms(m, t);
    return err_set_code(err, 429, "rate_limit_exceeded", NULL,
                        "Too many requests are waiting. Please try again in %.1fs.",
                        *retry / 1000.0);
}

/* Returns the tenant with the longest queue by weight, if it is longer than that of @t with @n
 * more; else NULL. */
static struct tenant *longest_queue(const struct admit *m, const struct tenant *t, uint32_t n) {
    double most = (t->stats.n_queued + n) / tenant_weight(t);
    struct tenant *found = NULL;

    LIST_FOREACH_ENTRY(o, &m->busy, struct tenant, link) {
        double has = o->stats.n_queued / tenant_weight(o);

        if (o != t && admit_last(o) && admit_last(o)->refused && has > most) {
            most = has;
            found = o;
        }
    }
    return found;
}

/* Takes the place of @w in the queue. The timer notifies it: an answer may start the client's next
 * request, which must not enter here. */
static void drop(struct admit *m, struct waiter *w, bool late) {
    unqueue(m, w);
    note_busy(m, w->tenant);
    w->dropped = true;
    w->late = late;
    list_push_back(&m->dropped, &w->link);
    admit_tick_later(m);
}

/* Makes room in the queue for @w by dropping waiters of tenants with longer queues. Returns false
 * if there is no such tenant. */
static bool drop_waiters(struct admit *m, const struct waiter *w) {
    /* At most max_queued iterations: each drops a waiter. */
    while (m->n_queued + w->n > m->opts.max_queued) {
        struct tenant *t = longest_queue(m, w->tenant, w->n);

        if (!t)
            return false;
        drop(m, admit_last(t), false);
    }
    return true;
}

bool admit_is_free(const struct admit *m, const struct waiter *w) {
    return list_empty(&w->tenant->waiting) && admit_fits(m, w, busy_weight(m));
}

/* Makes the earliest deadline no later than that of @w, which has one. */
static void note_deadline(struct admit *m, const struct waiter *w) {
    if (!m->deadline_ns || w->deadline_ns < m->deadline_ns)
        m->deadline_ns = w->deadline_ns;
}

void admit_again(struct admit *m, struct waiter *w) {
    struct tenant *t = w->tenant;
    assert(w->n > 0 && w->admitted);

    list_init(&w->link);
    if (admit_is_free(m, w)) {
        admit_one(m, w);
        return;
    }
    list_push_back(&t->waiting, &w->link);
    t->stats.n_queued += w->n;
    m->n_queued += w->n;
    note_busy(m, t);
    if (!w->deadline_ns)
        return;
    note_deadline(m, w);
    admit_tick_later(m);
}

static bool has_queued_enough(const struct tenant *t, uint32_t n) {
    return t->conf.max_queued > 0 && t->stats.n_queued + n > t->conf.max_queued;
}

int admit_precheck(struct admit *m, struct tenant *t, uint32_t *retry, struct err *err) {
    const struct waiter w = {.tenant = t,
                             .n = 1}; /* if there is no place for one, there is none for more */
    bool room = m->n_queued < m->opts.max_queued || longest_queue(m, t, 1);

    if (admit_is_free(m, &w) || (room && !has_queued_enough(t, 1)))
        return 0;
    t->stats.n_limited++;
    return admit_refuse(m, t, retry, err);
}

int admit_enter(struct admit *m, struct waiter *w, uint32_t *retry, struct err *err) {
    struct tenant *t = w->tenant;
    assert(w->n > 0 && w->admitted);

    list_init(&w->link);
    if (admit_is_free(m, w)) {
        admit_one(m, w);
        return 0;
    }
    if (has_queued_enough(t, w->n) || !drop_waiters(m, w)) {
        t->stats.n_limited++;
        return admit_refuse(m, t, retry, err);
    }
    admit_again(m, w);
    return 0;
}

void admit_cancel(struct admit *m, struct waiter *w) {
    if (list_empty(&w->link))
        return;
    if (w->dropped) {
        list_remove(&w->link);
        return;
    }
    unqueue(m, w);
    note_busy(m, w->tenant);
    admit_waiting(m);
}

/* Notes that @n places became free: each_ms follows the mean time between such events while
 * requests wait, by 5 % for each of them. */
static void note_end(struct admit *m, uint32_t n) {
    int64_t now = clock_now(m->opts.clock);

    if (m->each_ms <= 0)
        m->each_ms = m->mean_ms / MAX(m->opts.max_running, 1u);
    if (m->last_end_ns && n > 0)
        m->each_ms += MIN(0.05 * n, 1.0) * ((double)(now - m->last_end_ns) / 1e6 / n - m->each_ms);
    m->last_end_ns = m->n_queued > 0 ? now : 0;
}

void admit_release(struct admit *m, struct tenant *t, uint32_t n) {
    assert(m->n_running >= n);
    note_end(m, n);
    m->changed_ns = clock_now(m->opts.clock);
    m->n_running -= n;
    note_busy(m, t);
    admit_waiting(m);
}

void admit_took(struct admit *m, int64_t ns) {
    m->mean_ms += 0.1 * ((double)ns / 1e6 - m->mean_ms);
}

/* Drops the waiters whose deadlines have passed, in one pass through the queues, for which another
 * deadline must have come. Returns true if waiters with deadlines are left. */
static bool drop_late(struct admit *m) {
    int64_t now = clock_now(m->opts.clock);

    if (m->n_queued == 0)
        m->deadline_ns = 0;
    if (!m->deadline_ns || now < m->deadline_ns)
        return m->deadline_ns != 0;
    m->deadline_ns = 0;
    LIST_FOREACH_ENTRY(t, &m->busy, struct tenant, link) {
        LIST_FOREACH_ENTRY(w, &t->waiting, struct waiter, link) {
            if (w->deadline_ns && now >= w->deadline_ns)
                drop(m, w, true);
            else if (w->deadline_ns)
                note_deadline(m, w);
        }
    }
    admit_waiting(m);
    return m->deadline_ns != 0;
}

static void notify(struct admit *m, struct waiter *w) {
    bool late = w->late;
    struct err err;
    uint32_t ms;

    assert(w->dropped);
    w->dropped = w->late = false;
    if (late) {
        w->expired(w);
        return;
    }
    w->tenant->stats.n_limited++;
    admit_refuse(m, w->tenant, &ms, &err);
    w->refused(w, &err, ms);
}

/* Notifies dropped waiters for a while; the timer continues. Each callback may free any of them. */
static void notify_dropped(struct admit *m) {
    int64_t began = clock_now(m->opts.clock);
    struct list *node;

    while (clock_now(m->opts.clock) - began < NOTIFY_NS && (node = list_pop_front(&m->dropped)))
        notify(m, LIST_ENTRY(node, struct waiter, link));
    if (!list_empty(&m->dropped))
        admit_tick_later(m);
}

static void admit_on_tick(uv_timer_t *t) {
    struct admit *m = t->data;

    loop_lag_mark("requests that wait");
    m->ticking = false;
    bool again = m->opts.retry(m->opts.ctx);
    if (drop_late(m) || again)
        admit_tick_later(m);
    notify_dropped(m);
}

void admit_tick_later(struct admit *m) {
    if (m->ticking || uv_is_closing((uv_handle_t *)&m->tick))
        return;
    m->ticking = true;
    uv_timer_start(&m->tick, admit_on_tick, TICK_MS, 0);
}
