#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/jobs.h"

struct piece {
    struct job job;
    /* of its thread's time */
    int64_t work_ns;
    int result;
    atomic_bool ran, hold;
    bool done;
    int64_t done_at;
};

static atomic_int wakes, in_wake;

static void wake(void *ctx) {
    (void)ctx;
    atomic_fetch_add(&in_wake, 1);
    usleep(50);
    atomic_fetch_add(&wakes, 1);
    atomic_fetch_sub(&in_wake, 1);
}

static int64_t now(void) {
    return clock_now(clock_monotonic());
}

static int64_t thread_time(void) {
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void run(struct job *j) {
    struct piece *p = CONTAINER_OF(j, struct piece, job);
    int64_t end = thread_time() + p->work_ns;

    atomic_store(&p->ran, true);
    while ((thread_time() < end || atomic_load(&p->hold)) && p->result == 0)
        p->result = job_pause();
}

static void done(struct job *j) {
    struct piece *p = CONTAINER_OF(j, struct piece, job);

    cr_assert(!p->done, "told twice");
    p->done = true;
    p->done_at = now();
}

static struct jobs *pool(uint32_t n_running, uint32_t n_threads) {
    struct jobs_opts o = {.name = "test",
                          .n_running = n_running,
                          .n_threads = n_threads,
                          .clock = clock_monotonic(),
                          .wake = wake};
    struct jobs *p = NULL;

    cr_assert_eq(jobs_new(&p, &o), 0);
    return p;
}

static void put(struct jobs *p, struct piece *e, uint32_t tenant, int64_t work_ns) {
    e->work_ns = work_ns;
    e->job = (struct job){.run = run, .done = done, .tenant = tenant, .weight = 1};
    cr_assert_eq(jobs_submit(p, &e->job), 0);
}

static void settle(struct jobs *p) {
    for (int patience = 100000; jobs_n(p) > 0; patience--) {
        cr_assert(patience > 0, "%u jobs do not end", jobs_n(p));
        jobs_deliver(p, JOBS_WITHOUT_BUDGET);
        cr_assert(jobs_n(p) > 0 || atomic_load(&in_wake) == 0, "what is woken may be gone");
        usleep(20);
    }
}

static void wait_for(atomic_bool *flag) {
    for (int patience = 100000; !atomic_load(flag); patience--) {
        cr_assert(patience > 0);
        usleep(100);
    }
}

Test(jobs, each_job_is_run_and_told_once) {
    struct piece e[100] = {0};
    struct jobs *p = pool(3, 8);

    for (int k = 0; k < 100; k++)
        put(p, &e[k], (uint32_t)k % 7, k * 10000);
    settle(p);
    for (int k = 0; k < 100; k++)
        cr_expect(e[k].done && e[k].ran && e[k].result == 0);
    struct jobs_stats s;
    jobs_stats(p, &s);
    cr_expect_eq(s.n_done, 100u);
    cr_expect_eq(s.n_waiting + s.n_begun, 0u);
    cr_expect_gt(s.busy_ns, 0u);
    cr_expect_gt(atomic_load(&wakes), 0);
    jobs_free(p);
}

/* The one place is held by work that lasts until it is told to end. */
Test(jobs, another_tenants_job_is_done_in_the_middle_of_a_long_one) {
    struct piece lasting = {0}, small = {0};
    struct jobs *p = pool(1, 4);

    atomic_store(&lasting.hold, true);
    put(p, &lasting, 1, 0);
    wait_for(&lasting.ran);
    put(p, &small, 2, 1000000);
    for (int patience = 100000; !small.done; patience--) {
        cr_assert(patience > 0, "it waits for the other tenant's job");
        usleep(100);
        jobs_deliver(p, JOBS_WITHOUT_BUDGET);
    }
    cr_expect(!lasting.done);
    atomic_store(&lasting.hold, false);
    settle(p);
    cr_expect(lasting.done && lasting.result == 0);
    jobs_free(p);
}

Test(jobs, a_small_job_overtakes_a_long_one_of_its_own_tenant) {
    struct piece lasting = {0}, small = {0};
    struct jobs *p = pool(1, 8);

    put(p, &lasting, 1, 50000000);
    wait_for(&lasting.ran);
    put(p, &small, 1, 0);
    settle(p);
    cr_expect_lt(small.done_at, lasting.done_at);
    jobs_free(p);
}

Test(jobs, an_abandoned_job_ends_wherever_it_is) {
    struct piece running = {0}, paused = {0}, waiting[8] = {0};
    struct jobs *p = pool(1, 2);

    atomic_store(&running.hold, true);
    atomic_store(&paused.hold, true);
    put(p, &running, 1, 0);
    put(p, &paused, 2, 0);
    wait_for(&running.ran);
    wait_for(&paused.ran);
    for (int k = 0; k < 8; k++)
        put(p, &waiting[k], 3, 0); /* no thread is left */
    for (int k = 0; k < 8; k++)
        jobs_abandon(p, &waiting[k].job);
    jobs_deliver(p, JOBS_WITHOUT_BUDGET);
    for (int k = 0; k < 8; k++)
        cr_expect(waiting[k].done && !waiting[k].ran);
    jobs_abandon(p, &paused.job);
    jobs_abandon(p, &running.job);
    jobs_abandon(p, &running.job);
    settle(p);
    cr_expect_eq(paused.result, -ECANCELED);
    cr_expect_eq(running.result, -ECANCELED);
    jobs_free(p);
}

Test(jobs, all_can_be_abandoned_together) {
    struct piece e[20] = {0};
    struct jobs *p = pool(2, 6);

    for (int k = 0; k < 20; k++) {
        atomic_store(&e[k].hold, true);
        put(p, &e[k], (uint32_t)k % 4, 0);
    }
    wait_for(&e[0].ran);
    jobs_abandon_all(p);
    settle(p);
    for (int k = 0; k < 20; k++)
        cr_expect(e[k].done && (!e[k].ran || e[k].result == -ECANCELED));
    jobs_free(p);
}

static atomic_llong delivering_ns;

/* A clock on which only deliveries take time. */
static int64_t read_deliveries(struct clock *c) {
    return atomic_load(&delivering_ns);
}

static void done_slowly(struct job *j) {
    atomic_fetch_add(&delivering_ns, 1000000);
    done(j);
}

static void wait_until_ended(struct jobs *p) {
    struct jobs_stats s;

    for (int patience = 100000; patience > 0; patience--) {
        jobs_stats(p, &s);
        if (s.n_waiting + s.n_begun == 0)
            return;
        usleep(100);
    }
    cr_assert_fail("jobs do not end");
}

Test(jobs, deliveries_have_a_budget_and_are_charged) {
    static struct clock clock = {read_deliveries};
    struct jobs_opts o = {
        .name = "test", .n_running = 2, .n_threads = 4, .clock = &clock, .wake = wake};
    struct piece many[20] = {0}, one = {0};
    struct jobs *p = NULL;
    int n = 0;

    cr_assert_eq(jobs_new(&p, &o), 0);
    for (int k = 0; k < 20; k++) {
        many[k].job = (struct job){.run = run, .done = done_slowly, .tenant = 1, .weight = 1};
        cr_assert_eq(jobs_submit(p, &many[k].job), 0);
    }
    wait_until_ended(p);
    one.job = (struct job){.run = run, .done = done_slowly, .tenant = 2, .weight = 1};
    cr_assert_eq(jobs_submit(p, &one.job), 0);
    wait_until_ended(p);
    cr_expect(jobs_deliver(p, 3000000), "others are left");
    for (int k = 0; k < 20; k++)
        n += many[k].done;
    cr_expect_eq(n + one.done, 3, "a millisecond each");
    cr_expect(one.done, "the other tenant's job waits for one of them, not for all");
    cr_expect(jobs_deliver(p, 0));
    cr_expect_eq(jobs_n(p), 17u, "one without a budget");
    cr_expect(!jobs_deliver(p, JOBS_WITHOUT_BUDGET));
    cr_expect_eq(jobs_n(p), 0u);
    jobs_free(p);
}

Test(jobs, what_is_no_job_is_not_paused) {
    cr_expect_eq(job_pause(), 0);
}

Test(jobs, what_runs_in_the_background_waits_for_all_others) {
    struct piece back = {0}, front[4] = {0};
    struct jobs *p = pool(1, 8);

    back.work_ns = 20000000;
    back.job = (struct job){.run = run, .done = done, .tenant = 1, .weight = 1, .background = true};
    cr_assert_eq(jobs_submit(p, &back.job), 0);
    wait_for(&back.ran);
    for (int k = 0; k < 4; k++)
        put(p, &front[k], 2, 10000000);
    settle(p);
    for (int k = 0; k < 4; k++)
        cr_expect_lt(front[k].done_at, back.done_at);
    jobs_free(p);
}
