/* What /metrics says of the time that the event loop was busy. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "world.h"

#define BUSY_NS 40000000

static void be_busy(uv_timer_t *t) {
    int64_t until = clock_now(clock_monotonic()) + BUSY_NS;

    while (clock_now(clock_monotonic()) < until)
        ;
    uv_close((uv_handle_t *)t, NULL);
}

/* The value of the series in /metrics that begins with @name. */
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

#define BUCKET(le) "weft_loop_lag_seconds_bucket{model_name=\"tiny\",engine=\"0\",le=\"" le "\"}"

Test(loop_lag, a_busy_callback_is_seen_and_sleep_is_not) {
    struct world w;
    struct reply r;
    uv_timer_t t;
    struct api_stats s;

    world_init(&w);
    world_start(&w);
    uv_timer_init(&w.loop, &t);
    uv_timer_start(&t, be_busy, 60, 0); /* meanwhile the loop sleeps */
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
