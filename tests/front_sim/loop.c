#include "tests/front_sim/loop.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/loop_bytes.h"
#include "daemon/workers/file_work.h"

static struct list handles = {&handles, &handles};
/* file_work.link: work that has not run, that has, and that has and was left out of a poll */
static struct list works = {&works, &works}, works_done = {&works_done, &works_done};
static struct list works_left = {&works_left, &works_left};
/* Handles that are being closed, the last one first, as in libuv. */
static struct sim_handle *closing;
static uint64_t now_ms, n_timers;
static bool stopping; /* uv_stop() was called */

/* ---- handles ---- */

struct sim_handle *handle_new(uv_loop_t *loop, void *h, uv_handle_type type) {
    bool was = sim_enter();
    struct sim_handle *s = calloc(1, sizeof(*s));
    uv_handle_t *u = h;

    LIST_FOREACH(i, &handles)
    if (LIST_ENTRY(i, struct sim_handle, link)->h == u)
        sim_fail("HANDLES", "a handle of type %d is made again and is not closed", type);
    u->loop = loop;
    u->type = type;
    u->flags = 0;
    u->u.reserved[0] = s;
    s->h = u;
    s->fd = -1;
    list_init(&s->writes);
    list_push_back(&handles, &s->link);
    sim_leave(was);
    return s;
}

struct sim_handle *handle_usable(const void *h, const char *call) {
    const uv_handle_t *u = h;

    if (!u->u.reserved[0] || u->flags)
        sim_fail("HANDLES", "%s of a handle that is closed", call);
    return u->u.reserved[0];
}

int uv_is_active(const uv_handle_t *h) {
    return !h->flags && handle_of(h) && handle_of(h)->active;
}

int uv_is_closing(const uv_handle_t *h) {
    return h->flags != 0;
}

void uv_unref(uv_handle_t *h) {
    handle_usable(h, "uv_unref")->unref = true;
}

void uv_close(uv_handle_t *h, uv_close_cb cb) {
    bool was = sim_enter();
    struct sim_handle *s = handle_usable(h, "uv_close");

    sim_event("uv_close", h->type, 0);
    if (was && (h->type == UV_TCP || h->type == UV_NAMED_PIPE))
        sim_spend(SIM_CLOSE_NS);
    h->flags = HANDLE_CLOSING;
    s->closing = true;
    s->active = false;
    s->on_closed = cb;
    s->next_closing = closing;
    closing = s;
    stream_closing(s);
    process_closing(s);
    sim_leave(was);
}

uint32_t loop_handles(void) {
    uint32_t n = 0;

    LIST_FOREACH(i, &handles)
    n++;
    return n;
}

void loop_list(void) {
    LIST_FOREACH(i, &handles) {
        const struct sim_handle *s = LIST_ENTRY(i, struct sim_handle, link);

        fprintf(stderr, "handle: type %d active %d ref %d closing %d fd %d\n", s->h->type,
                s->active, !s->unref, s->closing, s->fd);
    }
}

/* ---- timers and what runs in each iteration ---- */

int uv_timer_init(uv_loop_t *loop, uv_timer_t *t) {
    handle_new(loop, t, UV_TIMER);
    return 0;
}

int uv_timer_start(uv_timer_t *t, uv_timer_cb cb, uint64_t timeout, uint64_t repeat) {
    bool was = sim_enter();

    if (uv_is_closing((uv_handle_t *)t)) {
        sim_leave(was);
        return UV_EINVAL;
    }
    struct sim_handle *s = handle_usable(t, "uv_timer_start");
    s->cb.timer = cb;
    s->due_ms = now_ms + timeout;
    s->repeat_ms = repeat;
    s->number = n_timers++;
    s->active = true;
    sim_leave(was);
    return 0;
}

int uv_timer_stop(uv_timer_t *t) {
    struct sim_handle *s =
        uv_is_closing((uv_handle_t *)t) ? NULL : handle_usable(t, "uv_timer_stop");

    if (s)
        s->active = false;
    return 0;
}

static struct sim_handle *first_timer(void) {
    struct sim_handle *first = NULL;

    LIST_FOREACH(i, &handles) {
        struct sim_handle *s = LIST_ENTRY(i, struct sim_handle, link);

        if (s->h->type == UV_TIMER && s->active &&
            (!first || s->due_ms < first->due_ms ||
             (s->due_ms == first->due_ms && s->number < first->number)))
            first = s;
    }
    return first;
}

static void update_time(void) {
    now_ms = (uint64_t)sim.ns / 1000000;
}

static void run_timers(void) {
    struct sim_handle *s;

    while ((s = first_timer()) && s->due_ms <= now_ms) {
        uv_timer_t *t = (uv_timer_t *)s->h;

        sim_event("timer", s->due_ms, 0);
        s->active = false;
        if (s->repeat_ms)
            uv_timer_start(t, s->cb.timer, s->repeat_ms, s->repeat_ms);
        IN_FRONT(s->cb.timer(t));
    }
}

int uv_idle_init(uv_loop_t *loop, uv_idle_t *h) {
    handle_new(loop, h, UV_IDLE);
    return 0;
}

int uv_idle_start(uv_idle_t *h, uv_idle_cb cb) {
    struct sim_handle *s = handle_usable(h, "uv_idle_start");

    s->cb.idle = cb;
    s->active = true;
    return 0;
}

int uv_idle_stop(uv_idle_t *h) {
    if (!uv_is_closing((uv_handle_t *)h))
        handle_usable(h, "uv_idle_stop")->active = false;
    return 0;
}

int uv_check_init(uv_loop_t *loop, uv_check_t *h) {
    handle_new(loop, h, UV_CHECK);
    return 0;
}

int uv_check_start(uv_check_t *h, uv_check_cb cb) {
    struct sim_handle *s = handle_usable(h, "uv_check_start");

    s->cb.check = cb;
    s->active = true;
    return 0;
}

int uv_prepare_init(uv_loop_t *loop, uv_prepare_t *h) {
    handle_new(loop, h, UV_PREPARE);
    return 0;
}

int uv_prepare_start(uv_prepare_t *h, uv_prepare_cb cb) {
    struct sim_handle *s = handle_usable(h, "uv_prepare_start");

    s->cb.prepare = cb;
    s->active = true;
    return 0;
}

static void run_one(struct sim_handle *s) {
    switch (s->h->type) {
    case UV_IDLE:
        IN_FRONT(s->cb.idle((uv_idle_t *)s->h));
        break;
    case UV_PREPARE:
        IN_FRONT(s->cb.prepare((uv_prepare_t *)s->h));
        break;
    default:
        IN_FRONT(s->cb.check((uv_check_t *)s->h));
    }
}

/* Runs each handle of @type that is active now once. */
static void run_all(uv_handle_type type) {
    struct sim_handle *all[64];
    uint32_t n = 0;

    LIST_FOREACH(i, &handles) {
        struct sim_handle *s = LIST_ENTRY(i, struct sim_handle, link);

        if (s->h->type == type && s->active && n < ARRAY_SIZE(all))
            all[n++] = s;
    }
    for (uint32_t i = 0; i < n; i++) /* handles are freed only at the end of the iteration */
        if (all[i]->active)
            run_one(all[i]);
}

static bool any_idle(void) {
    LIST_FOREACH(i, &handles) {
        const struct sim_handle *s = LIST_ENTRY(i, struct sim_handle, link);

        if (s->h->type == UV_IDLE && s->active)
            return true;
    }
    return false;
}

/* ---- async, signals, work ---- */

int uv_async_init(uv_loop_t *loop, uv_async_t *h, uv_async_cb cb) {
    struct sim_handle *s = handle_new(loop, h, UV_ASYNC);

    s->cb.async = cb;
    s->active = true;
    return 0;
}

int uv_async_send(uv_async_t *h) {
    handle_usable(h, "uv_async_send")->n_pending = 1;
    return 0;
}

int uv_signal_init(uv_loop_t *loop, uv_signal_t *h) {
    handle_new(loop, h, UV_SIGNAL);
    return 0;
}

int uv_signal_start(uv_signal_t *h, uv_signal_cb cb, int signum) {
    struct sim_handle *s = handle_usable(h, "uv_signal_start");

    s->cb.signal = cb;
    s->signum = signum;
    s->active = true;
    return 0;
}

void sim_signal(int signum) {
    sim_event("signal", (uint64_t)signum, 0);
    LIST_FOREACH(i, &handles) {
        struct sim_handle *s = LIST_ENTRY(i, struct sim_handle, link);

        if (s->h->type == UV_SIGNAL && s->active && s->signum == signum)
            s->n_pending++;
    }
}

int file_work_start(void) {
    return 0;
}

uint64_t file_work_folder(const char *path) {
    return 0;
}

/* Replaces daemon/workers/file_work.c. */
void file_work_submit(struct file_work *w, uv_loop_t *loop) {
    list_push_back(&works, &w->link);
}

/* Runs one work request that has not run, as a whole. */
static bool work_run_one(void) {
    struct file_work *chosen = NULL;
    uint32_t n = 0;

    if (sim.files_hang)
        return false;
    LIST_FOREACH(i, &works) {
        if (sim_below(++n) == 0)
            chosen = LIST_ENTRY(i, struct file_work, link);
    }
    if (!chosen)
        return false;
    sim_event("work", 0, 0);
    loop_watch = NULL; /* a thread's time is not the loop's */
    IN_FRONT(chosen->run(chosen));
    loop_watch = sim_price;
    list_remove(&chosen->link);
    list_push_back(&works_done, &chosen->link);
    return true;
}

/* ---- the poll ---- */

#define READY_MAX 8192u

/* A handle or work that a poll may report. left_out: the last poll did not report it. */
struct ready {
    /* or: */
    struct sim_handle *handle;
    struct file_work *work;
    bool left_out;
};

static bool is_ready(const struct sim_handle *s) {
    switch (s->h->type) {
    case UV_ASYNC:
    case UV_SIGNAL:
        return s->active && s->n_pending > 0;
    case UV_PROCESS:
        return s->active && s->exited;
    case UV_POLL:
    case UV_TCP:
    case UV_NAMED_PIPE:
        return stream_ready(s) != 0;
    default:
        return false;
    }
}

/* Adds the works of @from to the @n entries of @out. Returns the new number. */
static uint32_t collect_works(struct ready *out, uint32_t n, struct list *from, bool left_out) {
    LIST_FOREACH(i, from) {
        assert(n < READY_MAX);
        out[n++] =
            (struct ready){.work = LIST_ENTRY(i, struct file_work, link), .left_out = left_out};
    }
    return n;
}

static uint32_t collect(struct ready *out) {
    uint32_t n = 0;

    LIST_FOREACH(i, &handles) {
        struct sim_handle *s = LIST_ENTRY(i, struct sim_handle, link);

        assert(n < READY_MAX);
        if (!s->closing && is_ready(s))
            out[n++] = (struct ready){.handle = s, .left_out = s->left_out};
        s->left_out = false;
    }
    n = collect_works(out, n, &works_left, true);
    return collect_works(out, n, &works_done, false);
}

static void tell_work(struct file_work *w) {
    list_remove(&w->link);
    sim_event("work done", 0, 0);
    IN_FRONT(w->done(w));
}

static void tell(struct sim_handle *s) {
    switch (s->h->type) {
    case UV_ASYNC:
        s->n_pending = 0;
        sim_event("async", 0, 0);
        IN_FRONT(s->cb.async((uv_async_t *)s->h));
        break;
    case UV_SIGNAL:
        s->n_pending--;
        IN_FRONT(s->cb.signal((uv_signal_t *)s->h, s->signum));
        break;
    case UV_PROCESS:
        process_tell(s);
        break;
    default:
        stream_tell(s);
    }
}

static void tell_ready(const struct ready *r) {
    if (r->work)
        tell_work(r->work);
    else if (!r->handle->closing && is_ready(r->handle))
        tell(r->handle);
}

static void leave_out(const struct ready *r) {
    if (r->handle) {
        r->handle->left_out = true;
        return;
    }
    list_remove(&r->work->link);
    list_push_back(&works_left, &r->work->link);
}

/* Reports a random part of what is ready, and all that the last poll left out, in random order.
 * Returns how many were ready. */
static uint32_t tell_some(void) {
    static struct ready all[READY_MAX];
    uint32_t n = collect(all), part = 0;

    if (n > 0)
        part = sim_between(1, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = i + sim_below(n - i);
        struct ready r = all[k];

        all[k] = all[i];
        if (i < part || r.left_out)
            tell_ready(&r);
        else
            leave_out(&r);
    }
    return n;
}

/* Lets the actors act whose time has come. */
static void world_acts(void) {
    for (uint32_t n = sim_below(sim.crowded ? 60 : 5); n > 0; n--) {
        uint32_t which = sim_below(6);

        if (which == 0)
            jobs_sim_run_one();
        else if (which == 1)
            work_run_one();
        else if (!actors_act())
            return;
    }
}

static bool work_waits(void) {
    return !sim.files_hang && !list_empty(&works);
}

/* Advances time, when nothing is ready, until something may be. */
static void pass_time(void) {
    const struct sim_handle *timer = first_timer();
    int64_t next = actors_next_ns();

    if (jobs_sim_wait() || work_waits())
        next = MIN(next, sim.ns + sim_between(1000, 400000));
    if (timer)
        next = MIN(next, (int64_t)timer->due_ms * 1000000);
    if (next == INT64_MAX) {
        loop_list();
        sim_fail("WAKES", "the loop sleeps and nothing will wake it");
    }
    if (next <= sim.ns)
        return;
    sim.idle_ns += next - sim.ns;
    sim.ns = next;
}

static void poll_all(bool waits) {
    do {
        world_acts();
        update_time();
        if (tell_some() || !waits)
            return;
        pass_time();
        update_time();
        if (sim.deadline_ns && sim.ns > sim.deadline_ns)
            sim_fail("DEADLINE", "the front has not ended in its time");
    } while (!first_timer() || first_timer()->due_ms > now_ms);
}

/* ---- the loop ---- */

/* Reports the handles that were closed before, the last one first. What is closed meanwhile waits
 * for the next iteration. */
static void run_closing(void) {
    struct sim_handle *s = closing;

    closing = NULL;
    while (s) {
        struct sim_handle *next = s->next_closing;
        uv_handle_t *h = s->h;
        uv_close_cb cb = s->on_closed;

        stream_closed(s);
        list_remove(&s->link);
        free(s);
        h->flags = HANDLE_CLOSED;
        h->u.reserved[0] = NULL;
        sim_event("closed", h->type, 0);
        if (cb)
            IN_FRONT(cb(h));
        s = next;
    }
}

static bool is_alive(void) {
    if (!list_empty(&works) || !list_empty(&works_done) || !list_empty(&works_left))
        return true;
    LIST_FOREACH(i, &handles) {
        const struct sim_handle *s = LIST_ENTRY(i, struct sim_handle, link);

        if ((s->active && !s->unref) || s->closing || stream_busy(s))
            return true;
    }
    return false;
}

static void pass_stopped(int64_t until) {
    sim.stopped_ns += until - sim.ns;
    sim.ns = until;
}

/* Stops the front between two iterations, as SIGSTOP or a machine that sleeps does, while
 * everything else goes on. */
static void stop_front(void) {
    int64_t until = sim.ns + sim_between(1000, SIM_PAUSE_MS) * INT64_C(1000000);

    sim_event("pause", (uint64_t)until, 0);
    while (actors_next_ns() < until) {
        pass_stopped(MAX(sim.ns, actors_next_ns()));
        actors_act();
    }
    pass_stopped(MAX(sim.ns, until));
}

int uv_run(uv_loop_t *loop, uv_run_mode mode) {
    bool was = sim_enter();

    assert(mode == UV_RUN_DEFAULT);
    update_time();
    loop_watch = sim_price;
    while (is_alive() && !stopping) {
        sim.n_events++;
        if (sim.pauses && sim.deadline_ns == 0 && sim_one_in(sim.has_read ? 40 : 4000))
            stop_front();
        sim.has_read = false;
        update_time();
        run_timers();
        run_all(UV_IDLE);
        run_all(UV_PREPARE);
        poll_all(!any_idle() && !closing);
        run_all(UV_CHECK);
        run_closing();
        sim_iteration();
    }
    stopping = false;
    loop_watch = NULL;
    sim_leave(was);
    return 0;
}

void uv_stop(uv_loop_t *loop) {
    stopping = true;
}

int uv_loop_init(uv_loop_t *loop) {
    memset(loop, 0, sizeof(*loop));
    update_time();
    return 0;
}

int uv_loop_configure(uv_loop_t *loop, uv_loop_option option, ...) {
    return 0;
}

int uv_loop_close(uv_loop_t *loop) {
    if (loop_handles() == 0)
        return 0;
    loop_list();
    sim_fail("HANDLES", "the loop is closed and %u handles are not", loop_handles());
}

uint64_t uv_now(const uv_loop_t *loop) {
    return now_ms;
}

uint64_t uv_hrtime(void) {
    return (uint64_t)sim.ns;
}

uint64_t uv_metrics_idle_time(uv_loop_t *loop) {
    return (uint64_t)sim.idle_ns;
}
