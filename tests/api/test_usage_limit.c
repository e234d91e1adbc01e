/* Quotas per day and month compared with a naive list of requests, with a clock that the test
 * sets. */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/limits/tenant.h"
#include "api/limits/usage.h"
#include "api/limits/usage_limit.h"
#include "base/rng.h"

#define DAY INT64_C(86400)
#define NOV_23 INT64_C(1795392000) /* 2026-11-23 00:00 UTC */

static int64_t now_s;
static uv_loop_t loop;
static struct usage u;
static struct tenant t;

static int64_t clock_of(void *ctx) {
    return now_s;
}

static void setup(void) {
    const struct usage_opts o = {.loop = &loop, .unix_s = clock_of};

    now_s = NOV_23 + 10 * 3600;
    uv_loop_init(&loop);
    cr_assert_eq(usage_init(&u, &o), 0);
    usage_start(&u);
    t = (struct tenant){.conf = {.name = "a", .weight = 1}};
}

static void teardown(void) {
    usage_close(&u);
    uv_run(&loop, UV_RUN_DEFAULT);
    usage_deinit(&u);
    cr_expect_eq(uv_loop_close(&loop), 0);
}

/* Sends a request that may need @need tokens and uses @used. Returns true if it was admitted. */
static bool ask(uint64_t need, uint64_t used, struct err *err, uint32_t *retry_ms) {
    if (usage_limit_check(&u, &t, need, retry_ms, err) < 0)
        return false;
    usage_count(&u, "a", "k", "m", &(struct usage_sum){1, used, 0, 0});
    return true;
}

Test(usage_limit, the_reason_and_the_time_are_told, .init = setup, .fini = teardown) {
    struct err err = {0};
    uint32_t ms = 0;

    t.conf.requests_per_day = 2;
    t.conf.tokens_per_month = 1000;
    t.mean_output = 40;
    cr_expect(ask(100, 100, &err, &ms));
    cr_expect_not(ask(901, 0, &err, &ms));
    cr_expect_eq(err.status, 429);
    cr_expect_str_eq(err.code, "insufficient_quota");
    cr_expect_str_eq(err.message,
                     "Quota exceeded: tokens per month, the limit is 1000. The request "
                     "may need 901 tokens, and 900 are left: a smaller max_tokens may "
                     "fit (without it, 80 are reserved for an answer). A new month begins at "
                     "2026-12-01 00:00 UTC.");
    cr_expect_eq(ms, (uint32_t)((8 * DAY - 10 * 3600) * 1000));
    cr_expect(ask(900, 100, &err, &ms));
    cr_expect_not(ask(1, 1, &err, &ms));
    cr_expect(
        strstr(err.message, "requests per day, the limit is 2. A new day begins at 2026-11-24"),
        "%s", err.message);
    cr_expect_eq(ms, (uint32_t)(14 * 3600 * 1000));
    cr_expect_eq(t.stats.n_limited, 2);
}

Test(usage_limit, what_live_generations_reserved_counts, .init = setup, .fini = teardown) {
    struct err err = {0};
    uint32_t ms = 0;

    t.conf.tokens_per_day = 100;
    t.stats.n_reserved = 60;
    cr_expect_not(ask(41, 0, &err, &ms));
    cr_expect(ask(40, 40, &err, &ms));
}

Test(usage_limit, a_clock_that_jumps_finds_the_counts_of_its_day, .init = setup, .fini = teardown) {
    struct err err = {0};
    uint32_t ms = 0;

    t.conf.requests_per_day = 1;
    cr_expect(ask(1, 1, &err, &ms));
    now_s += DAY;
    cr_expect(ask(1, 1, &err, &ms));
    now_s -= DAY;
    cr_expect_not(ask(1, 1, &err, &ms), "the day was used before the jump");
    now_s += 400 * DAY;
    cr_expect(ask(1, 1, &err, &ms));
    now_s -= 399 * DAY;
    cr_expect_not(ask(1, 1, &err, &ms));
}

Test(usage_limit, windows_agree_with_a_naive_model, .init = setup, .fini = teardown) {
    enum { N = 3000 };
    static struct {
        int64_t at;
        uint64_t tokens;
    } done[N];
    struct rng rng = {6};
    uint32_t n = 0, n_refused = 0;

    setenv("TZ", "Europe/Berlin", 1); /* its days of 23 and 25 hours must not matter */
    tzset();
    t.conf = (struct api_tenant){.name = "a",
                                 .requests_per_day = 9,
                                 .requests_per_month = 150,
                                 .tokens_per_day = 700,
                                 .tokens_per_month = 9000};
    /* 2026-10-21; the clock passes 2026-10-25, two ends of years, and 2028-02-29 */
    now_s = INT64_C(1792540800);
    for (uint32_t i = 0; i < N; i++) {
        uint64_t r = rng_next(&rng), need = 20 + r % 100, used = need - (r >> 8) % 20;
        bool is_latest = true; /* the clock has not shown a later time yet */
        uint64_t day_requests = 0, day_tokens = 0, month_requests = 0, month_tokens = 0;
        struct err err = {0};
        uint32_t ms = 0;

        now_s += (int64_t)((r >> 16) % 36000);
        if ((r >> 40) % 50 == 0)
            now_s -= 3 * DAY; /* the clock is set back */
        time_t now = (time_t)now_s;
        struct tm is = *gmtime(&now);
        for (uint32_t k = 0; k < n; k++) {
            time_t at = (time_t)done[k].at;
            struct tm was = *gmtime(&at);
            is_latest = is_latest && at <= now;
            bool month = was.tm_year == is.tm_year && was.tm_mon == is.tm_mon;
            bool day = month && was.tm_mday == is.tm_mday;

            day_requests += day;
            month_requests += month;
            day_tokens += day ? done[k].tokens : 0;
            month_tokens += month ? done[k].tokens : 0;
        }
        bool fits = day_requests < 9 && month_requests < 150 && day_tokens + need <= 700 &&
                    month_tokens + need <= 9000;
        cr_assert_eq(ask(need, used, &err, &ms), fits, "request %u: %s", i, err.message);
        n_refused += !fits;
        if (fits) {
            done[n].at = now_s;
            done[n++].tokens = used;
            continue;
        }
        if (!is_latest)
            continue;
        now_s += ms / 1000; /* waits as long as Retry-After says */
        cr_assert(usage_limit_check(&u, &t, 20, &ms, &err) == 0, "%u: %s", i, err.message);
    }
    cr_expect_gt(n_refused, 50u);
    cr_expect_gt(n, 500u);
}
