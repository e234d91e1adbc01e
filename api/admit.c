#include "api/admit.h"

#include <assert.h>
#include "api/gen.h"
#include "api/private.h"

/*
 * First come first served is right here although the scheduler is fair between tenants: its fairness
 * works on what it has been given, and max_running is meant to be well above what runs at once. The queue
 * only absorbs bursts beyond that; its bound is what makes overload visible at once.
 *
 * One timer looks after all that nobody else would wake: submits the channel could not take, and
 * deadlines of what waits. It runs only while there is such a thing: an idle daemon does not tick.
 */

#define TICK_MS 20
#define RETRY_MIN_MS 500
#define RETRY_MAX_MS 60000 /* what both SDKs still honour */

void admit_init(struct api *a) {
    list_init(&a->admit.waiting);
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

/* A request larger than the limit runs alone rather than never. */
static bool fits(const struct api *a, uint32_t n) {
    return a->admit.n_running == 0 || a->admit.n_running + n <= a->opts.max_running;
}

static void admit_waiting(struct api *a) {
    while (!list_empty(&a->admit.waiting) && !a->closing) {
        struct waiter *w = LIST_ENTRY(a->admit.waiting.next, struct waiter, link);

        if (!fits(a, w->n))
            break;
        list_remove(&w->link);
        a->admit.n_queued -= w->n;
        a->admit.n_running += w->n;
        w->admitted(w);
    }
}

/* When a place in the queue should be free, spread a little so that clients do not return together. */
static uint32_t retry_ms(struct api *a) {
    double ms = a->admit.mean_ms * (a->admit.n_queued + 1) / MAX(a->opts.max_running, 1u);

    ms = MIN(MAX(ms, RETRY_MIN_MS), RETRY_MAX_MS * 0.8);
    return (uint32_t)(ms * (1 + 0.25 * rng_unit(&a->rng)));
}

int admit_enter(struct api *a, struct waiter *w, uint32_t *retry, struct err *err) {
    struct admit *m = &a->admit;

    list_init(&w->link);
    if (list_empty(&m->waiting) && fits(a, w->n)) {
        m->n_running += w->n;
        w->admitted(w);
        return 0;
    }
    if (m->n_queued + w->n > a->opts.max_queued) {
        *retry = retry_ms(a);
        return err_set_code(err, 429, "rate_limit_exceeded", NULL,
                            "Too many requests are waiting, try again in %.1fs.", *retry / 1000.0);
    }
    list_push_back(&m->waiting, &w->link);
    m->n_queued += w->n;
    if (w->deadline_ns)
        admit_tick_later(a);
    return 0;
}

void admit_cancel(struct api *a, struct waiter *w) {
    if (!admit_is_waiting(w))
        return;
    list_remove(&w->link);
    a->admit.n_queued -= w->n;
    admit_waiting(a);
}

void admit_release(struct api *a, uint32_t n) {
    assert(a->admit.n_running >= n);
    a->admit.n_running -= n;
    admit_waiting(a);
}

void admit_took(struct api *a, int64_t ns) {
    a->admit.mean_ms += 0.1 * ((double)ns / 1e6 - a->admit.mean_ms);
}

/* Whether a deadline is pending, after those that have passed were told. */
static bool expire(struct api *a) {
    int64_t now = clock_now(a->clock);
    bool more = false, again;

    do {
        again = false;
        more = false;
        LIST_FOREACH(node, &a->admit.waiting) {
            struct waiter *w = LIST_ENTRY(node, struct waiter, link);

            more |= w->deadline_ns != 0;
            if (!w->deadline_ns || now < w->deadline_ns)
                continue;
            admit_cancel(a, w);
            w->expired(w);
            again = true; /* the list may have changed altogether */
            break;
        }
    } while (again);
    return more;
}

static void on_tick(uv_timer_t *t) {
    struct api *a = t->data;

    a->admit.ticking = false;
    gen_retry(a);
    if (expire(a) || gen_any_pending(a))
        admit_tick_later(a);
}

void admit_tick_later(struct api *a) {
    if (a->admit.ticking || uv_is_closing((uv_handle_t *)&a->admit.tick))
        return;
    a->admit.ticking = true;
    uv_timer_start(&a->admit.tick, on_tick, TICK_MS, 0);
}
