/* The time that the event loop was busy, in /metrics. */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/generation/metrics.h"
#include "api/http/loop_lag.h"
#include "base/clock.h"
#include "world.h"

#define BUSY_NS 40000000

static void be_busy(uv_timer_t *t) {
    int64_t until = clock_now(clock_monotonic()) + BUSY_NS;

    while (clock_now(clock_monotonic()) < until)
        ;
    uv_close((uv_handle_t *)t, NULL);
}

/* Returns the value of the series in /metrics that begins with @name. */
static double metric(const struct reply *r, const char *name) {
    const char *at = strstr(r->body.data, name);

    cr_assert(at, "%s", name);
    return strtod(strchr(at, ' '), NULL);
}

static double busy_so_far(struct world *w) {
    struct reply r;

    world_get(w, "/metrics", &r);
    double v = metric(&r, "weft_loop_lag_seconds_sum");
    reply_deinit(&r);
    return v;
}

#define BUCKET(le) R"(weft_loop_lag_seconds_bucket{model_name="tiny",engine="0",le=")" le R"("})"

Test(loop_lag, a_busy_callback_is_seen_and_sleep_is_not) {
    struct world w;
    struct reply r;
    uv_timer_t t;
    struct api_stats s;

    world_init(&w);
    world_start(&w);
    world_turns(&w, 1); /* the measurement begins at the end of the first iteration */
    uv_timer_init(&w.loop, &t);
    uv_timer_start(&t, be_busy, 60, 0); /* the loop sleeps meanwhile */
    while (uv_is_active((uv_handle_t *)&t))
        uv_run(&w.loop, UV_RUN_ONCE);
    world_turns(&w, 2);
    world_get(&w, "/metrics", &r);
    cr_expect_geq(metric(&r, BUCKET("+Inf")) - metric(&r, BUCKET("0.03")), 1);
    cr_expect_geq(metric(&r, "weft_loop_cpu_seconds_count"), 2);
    cr_expect_geq(metric(&r, "weft_loop_lag_seconds_sum"), BUSY_NS / 1e9);
    reply_deinit(&r);
    api_stats(w.api, &s);
    cr_expect_geq(s.loop_lag_us, BUSY_NS / 1000);
    cr_expect_lt(s.loop_lag_us, 10000000);
    world_stop(&w);
}

static struct loop_lag_long seen;
static uint32_t n_seen;

static void on_long(void *ctx, const struct loop_lag_long *it) {
    cr_expect_eq(ctx, &seen);
    seen = *it;
    n_seen++;
}

static void on_iteration(void *ctx, uint64_t busy_ns, uint64_t cpu_ns) {
    cr_expect_eq(ctx, &seen);
}

static void be_busy_in_two(uv_timer_t *t) {
    struct timespec until, now;

    loop_lag_mark("short");
    for (int i = 0; i < 2; i++) {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &until);
        until.tv_nsec += i ? BUSY_NS : BUSY_NS / 10;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        do
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        while (now.tv_sec < until.tv_sec ||
               (now.tv_sec == until.tv_sec && now.tv_nsec < until.tv_nsec));
        loop_lag_mark(i ? "what comes later" : "long");
    }
    uv_timer_stop(t);
}

static void do_nothing(uv_timer_t *t) {
    uv_timer_stop(t);
}

static void run_timer(uv_loop_t *loop, uv_timer_cb cb) {
    uv_timer_t t;

    uv_timer_init(loop, &t);
    uv_timer_start(&t, cb, 5, 0);
    uv_run(loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&t, NULL);
    uv_run(loop, UV_RUN_DEFAULT);
}

/* CPU time counts, so other programs do not affect the result. */
Test(loop_lag, a_long_iteration_is_told_with_what_took_the_longest) {
    struct loop_lag l;
    uv_loop_t loop;

    uv_loop_init(&loop);
    uv_loop_configure(&loop, UV_METRICS_IDLE_TIME);
    loop_lag_init(&l, &loop, on_iteration, on_long, &seen);
    run_timer(&loop, do_nothing);
    run_timer(&loop, do_nothing);
    cr_expect_eq(n_seen, 0);
    run_timer(&loop, be_busy_in_two);
    run_timer(&loop, do_nothing);
    cr_expect_eq(n_seen, 1);
    cr_assert(seen.in);
    cr_expect_str_eq(seen.in, "long");
    cr_expect(seen.in_cpu_ns >= BUSY_NS && seen.in_cpu_ns < seen.cpu_ns);
    cr_expect_geq(seen.busy_ns, BUSY_NS);
    loop_lag_close(&l);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_expect_eq(uv_loop_close(&loop), 0);
}

#define S_NS UINT64_C(1000000000)

/* The longest iteration is that of the current half minute and of the one before. */
Test(loop_lag, a_long_iteration_is_known_for_up_to_a_minute) {
    static const struct {
        uint64_t age_s, before_s, current_s, longest_s;
    } rows[] = {{1, 400, 300, 400}, {31, 400, 300, 300}, {61, 400, 300, 0}};
    struct loop_lag l;
    uv_loop_t loop;

    uv_loop_init(&loop);
    uv_loop_configure(&loop, UV_METRICS_IDLE_TIME);
    loop_lag_init(&l, &loop, on_iteration, on_long, &seen);
    run_timer(&loop, do_nothing);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        uint64_t age_ns = rows[i].age_s * S_NS;

        if (l.at_ns < age_ns)
            continue; /* the machine runs since less than a minute */
        l.slot_ns = l.at_ns - age_ns;
        l.longest_ns[1] = rows[i].before_s * S_NS;
        l.longest_ns[0] = rows[i].current_s * S_NS;
        run_timer(&loop, do_nothing);
        cr_expect_eq(loop_lag_longest_ns(&l) / (100 * S_NS), rows[i].longest_s / 100, "row %zu", i);
    }
    loop_lag_close(&l);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_expect_eq(uv_loop_close(&loop), 0);
}

static void use_cpu(int64_t ns) {
    struct timespec t;
    int64_t until = 0, now;

    do {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
        until = until ? until : now + ns;
    } while (now < until);
}

static void on_async(uv_async_t *a) {
    use_cpu(BUSY_NS);
}

static void on_closed(uv_handle_t *h) {
    use_cpu(BUSY_NS);
}

/* Callbacks without a mark count for their phase. */
Test(loop_lag, the_phases_of_an_iteration_are_told_apart) {
    struct loop_lag l;
    uv_loop_t loop;
    uv_async_t a;

    uv_loop_init(&loop);
    uv_loop_configure(&loop, UV_METRICS_IDLE_TIME);
    loop_lag_init(&l, &loop, on_iteration, on_long, &seen);
    uv_async_init(&loop, &a, on_async);
    uv_run(&loop, UV_RUN_NOWAIT);
    uv_async_send(&a);
    uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_eq(n_seen, 1);
    cr_expect_str_eq(seen.in, "the poll");
    uv_close((uv_handle_t *)&a, on_closed);
    uv_run(&loop, UV_RUN_NOWAIT);
    run_timer(&loop, do_nothing);
    cr_assert_eq(n_seen, 2);
    cr_expect_str_eq(seen.in, "closed handles");
    loop_lag_close(&l);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_expect_eq(uv_loop_close(&loop), 0);
}

static void end(uv_timer_t *t) {
    uv_close((uv_handle_t *)t, NULL);
}

Test(loop_lag, waiting_is_no_lag) {
    struct world w;
    uv_timer_t t;
    double before;

    world_init(&w);
    world_start(&w);
    world_turns(&w, 2);
    before = busy_so_far(&w);
    uv_timer_init(&w.loop, &t);
    uv_timer_start(&t, end, 1500, 0);
    while (uv_is_active((uv_handle_t *)&t))
        uv_run(&w.loop, UV_RUN_ONCE);
    world_turns(&w, 2);
    cr_expect_lt(busy_so_far(&w) - before, 1.4);
    world_stop(&w);
}
