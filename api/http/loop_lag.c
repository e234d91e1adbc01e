/*
 * The check callback runs once in an iteration, after the poll's callbacks. What has passed since
 * the last one, less what the loop slept in the poll (uv_metrics_idle_time), is what callbacks of
 * every kind took: timers, sockets, finished jobs of the pool, closed handles.
 *
 * Each of these phases begins with a mark: callbacks set their own (tests/lint/check_marks.py), the
 * prepare callback that of the poll, and the check callback that of closed handles.
 */

#include "api/http/loop_lag.h"

#include <assert.h>
#include <time.h>

#include "base/loop_bytes.h"

#define HALF_NS 30000000000u /* the longest iteration is known for one to two such times */
/* Callbacks that take less by the clock are not worth the call for the thread's CPU time, which no
 * vDSO answers: there are thousands in a busy second. */
#define SHORT_NS 1000000u

static uint64_t thread_cpu_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ---- the callback that takes longest ---- */

/* There is one loop in a thread. */
static _Thread_local struct {
    const char *what;
    /* by the clock */
    uint64_t since_ns;
    /* CPU time when it was last read */
    uint64_t cpu_ns;
    struct loop_lag_long most;
} marks;

/* Returns the CPU time since it was last read. */
static uint64_t marks_read_cpu(void) {
    uint64_t cpu = thread_cpu_ns(), used = cpu - marks.cpu_ns;

    marks.cpu_ns = cpu;
    return used;
}

void loop_lag_mark(const char *what) {
    uint64_t now = uv_hrtime(), used = now - marks.since_ns;

    if (used >= SHORT_NS) { /* the thread may have waited for a core */
        uint64_t cpu = marks_read_cpu();

        used = MIN(used, cpu);
    }
    if (marks.what && used >= marks.most.in_cpu_ns) {
        marks.most.in = marks.what;
        marks.most.in_cpu_ns = used;
    }
    marks.what = what;
    marks.since_ns = now;
    loop_watch_turn();
}

/* ---- the length of iterations ---- */

/* Notes the longest iteration of the current half minute and of the one before. A scrape within
 * half a minute of a long iteration sees it, and none after a minute does. */
static void note_longest(struct loop_lag *l, uint64_t now, uint64_t busy) {
    assert(now >= l->slot_ns);
    if (now - l->slot_ns >= HALF_NS) {
        l->longest_ns[1] = now - l->slot_ns < 2ull * HALF_NS ? l->longest_ns[0] : 0;
        l->longest_ns[0] = 0;
        l->slot_ns = now;
    }
    l->longest_ns[0] = MAX(l->longest_ns[0], busy);
}

static void loop_lag_on_check(uv_check_t *c) {
    struct loop_lag *l = c->data;
    uint64_t now = uv_hrtime(), idle = uv_metrics_idle_time(c->loop);

    loop_lag_mark("closed handles"); /* the next phase of the iteration */
    marks_read_cpu();
    uint64_t cpu = marks.cpu_ns;
    assert(l->open && now >= l->at_ns && cpu >= l->cpu_ns);
    if (!l->at_ns)
        loop_watch_set(true); /* what comes before the first iteration is the start */
    if (l->at_ns) {
        uint64_t passed = now - l->at_ns, slept = idle - l->idle_ns;
        uint64_t busy = passed > slept ? passed - slept : 0;

        l->on_iteration(l->ctx, busy, cpu - l->cpu_ns);
        note_longest(l, now, busy);
        marks.most.busy_ns = busy;
        marks.most.cpu_ns = cpu - l->cpu_ns;
        if (marks.most.cpu_ns >= LOOP_LAG_LONG_NS && marks.most.in)
            l->on_long(l->ctx, &marks.most);
    }
    marks.most = (struct loop_lag_long){0};
    l->at_ns = now;
    l->idle_ns = idle;
    l->cpu_ns = cpu;
}

/* Runs after the timers and idle handles, whose callbacks have marks of their own. */
static void loop_lag_on_prepare(uv_prepare_t *p) {
    loop_lag_mark("the poll");
}

void loop_lag_init(struct loop_lag *l, uv_loop_t *loop,
                   void (*on_iteration)(void *ctx, uint64_t busy_ns, uint64_t cpu_ns),
                   void (*on_long)(void *ctx, const struct loop_lag_long *it), void *ctx) {
    assert(on_iteration && on_long);
    *l = (struct loop_lag){.on_iteration = on_iteration, .on_long = on_long, .ctx = ctx};
    uv_check_init(loop, &l->check);
    l->check.data = l;
    uv_check_start(&l->check, loop_lag_on_check);
    uv_unref((uv_handle_t *)&l->check);
    uv_prepare_init(loop, &l->prepare);
    uv_prepare_start(&l->prepare, loop_lag_on_prepare);
    uv_unref((uv_handle_t *)&l->prepare);
    l->open = true;
}

void loop_lag_close(struct loop_lag *l) {
    if (!l->open)
        return;
    uv_close((uv_handle_t *)&l->check, NULL);
    uv_close((uv_handle_t *)&l->prepare, NULL);
    loop_watch_set(false);
    l->open = false;
}

uint64_t loop_lag_longest_ns(const struct loop_lag *l) {
    return MAX(l->longest_ns[0], l->longest_ns[1]);
}
