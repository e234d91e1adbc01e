/* The rows of usage compared with a naive list of events: sums, folding, text. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/limits/usage_table.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/rng.h"

#define DAY INT64_C(86400)
#define NOV_23 INT64_C(1795392000) /* 2026-11-23 00:00 UTC */
#define EVENTS 600

static struct usage_row row_of(int64_t at, const char *tenant, const char *key, const char *model) {
    struct usage_row row = {.date = usage_day(at), .sum = {1, 10, 5, 3}};

    snprintf(row.tenant, sizeof(row.tenant), "%s", tenant);
    snprintf(row.key, sizeof(row.key), "%s", key);
    snprintf(row.model, sizeof(row.model), "%s", model);
    return row;
}

static void add(struct usage_table *t, int64_t at, const char *tenant, const char *key,
                const char *model) {
    struct usage_row row = row_of(at, tenant, key, model);

    cr_assert_eq(usage_table_add(t, &row), 0);
}

Test(usage_table, days_and_months_are_those_of_utc_in_every_time_zone) {
    static const char *const zones[] = {"UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia",
                                        "CET-1CEST,M3.5.0,M10.5.0/3"};

    for (size_t i = 0; i < sizeof(zones) / sizeof(*zones); i++) {
        setenv("TZ", zones[i], 1);
        tzset();
        cr_expect_eq(usage_day(NOV_23), 20261123u);
        cr_expect_eq(usage_day(NOV_23 - 1), 20261122u);
        cr_expect_eq(usage_next_day(NOV_23 - 1), NOV_23);
        cr_expect_eq(usage_next_day(NOV_23), NOV_23 + DAY);
        cr_expect_eq(usage_next_month(NOV_23), NOV_23 + 8 * DAY);
        /* 2028-02-29, a leap day; 2026-10-25 and 2027-03-28 have 25 and 23 hours in Berlin. */
        cr_expect_eq(usage_day(INT64_C(1835395200)), 20280228u + 1);
        cr_expect_eq(usage_next_month(INT64_C(1835395200)), INT64_C(1835395200) + DAY);
        cr_expect_eq(usage_next_day(INT64_C(1792886400)), INT64_C(1792886400) + DAY);
        cr_expect_eq(usage_next_day(INT64_C(1806192000)), INT64_C(1806192000) + DAY);
        cr_expect_eq(usage_next_month(INT64_C(1798761599)), INT64_C(1798761600)); /* the year */
    }
}

Test(usage_table, sums_agree_with_a_naive_model_through_folding_and_text) {
    static const char *const names[] = {"a", "b", "", "-", "c d\t%\n", "\xc3\xa9"};
    struct event {
        int64_t at;
        uint32_t tenant;
    } events[EVENTS];
    struct usage_table t = {0};
    struct rng rng = {32};

    for (uint32_t i = 0; i < EVENTS; i++) {
        uint64_t r = rng_next(&rng);

        events[i] = (struct event){NOV_23 - (int64_t)(r % 90) * DAY, (uint32_t)(r >> 8) % 6};
        add(&t, events[i].at, events[i].tenant == 2 ? "none" : names[events[i].tenant],
            names[(r >> 16) % 6], names[(r >> 24) % 6]);
        if (i % 97 == 0)
            cr_assert_eq(usage_table_fold(&t, 20261123), 0);
    }
    for (uint32_t tenant = 0; tenant < 6; tenant++) {
        const char *name = tenant == 2 ? "none" : names[tenant];
        uint64_t day = 0, month = 0, all = 0;

        for (uint32_t i = 0; i < EVENTS; i++) {
            bool own = events[i].tenant == tenant;

            all += own;
            month += own && usage_day(events[i].at) / 100 == 202611;
            day += own && usage_day(events[i].at) == 20261123;
        }
        cr_expect_eq(usage_table_sum(&t, name, 20261123, 20261123).requests, day);
        cr_expect_eq(usage_table_sum(&t, name, 20261100, 20261131).requests, month);
        cr_expect_eq(usage_table_sum(&t, name, 0, 99999999).prompt_tokens, 10 * all);
    }
    usage_table_deinit(&t);
}

Test(usage_table, rows_are_bounded_and_the_sums_of_this_month_stay) {
    struct usage_table t = {0};
    char model[32];

    for (uint32_t i = 0; i < 3 * USAGE_ROWS_MAX; i++) {
        snprintf(model, sizeof(model), "m%u", i % 4001);
        add(&t, NOV_23 - (int64_t)(i % 20) * DAY, i % 2 ? "a" : "b", "k", model);
    }
    cr_expect_leq(t.n, 2 * USAGE_ROWS_MAX + 100);
    cr_expect_eq(usage_table_sum(&t, "a", 20261100, 20261131).requests, 3 * USAGE_ROWS_MAX / 2);
    cr_assert_eq(usage_table_fold(&t, 20261123), 0);
    cr_expect_leq(t.n, USAGE_ROWS_MAX);
    cr_expect_eq(usage_table_sum(&t, "a", 20261100, 20261131).requests, 3 * USAGE_ROWS_MAX / 2);
    usage_table_deinit(&t);
}

Test(usage_table, the_newest_24_months_with_rows_stay) {
    struct usage_table t = {0};

    for (int64_t month = 0; month < 30; month++) { /* every third month of the earlier years */
        add(&t, NOV_23 - (month * 91 + 2) * DAY, "a", "k", "m");
        add(&t, NOV_23 - (month * 91 + 3) * DAY, "a", "k", "m");
    }
    add(&t, NOV_23 + DAY, "a", "k", "m"); /* the clock was wrong */
    cr_assert_eq(usage_table_fold(&t, 20261123), 0);
    cr_assert_eq(t.n, 24 + 3);
    cr_expect_eq(t.rows[0].date, usage_day(NOV_23 - (23 * 91 + 2) * DAY) / 100 * 100);
    cr_expect_eq(t.rows[0].sum.requests, 2);
    cr_expect_eq(t.rows[22].date, 20260821u, "the month before this has its days");
    cr_expect_eq(t.rows[26].date, 20261124u);
    usage_table_deinit(&t);
}

Test(usage_table, a_clock_that_jumps_ahead_costs_one_month) {
    static const uint32_t jumps[] = {20990105, 20990106, 20990217};
    struct usage_table t = {0};

    for (int64_t month = 0; month < 24; month++)
        add(&t, NOV_23 - month * 31 * DAY, "a", "k", "m");
    for (uint32_t i = 0; i < 3; i++) {
        struct usage_row row = row_of(NOV_23, "a", "k", "m");

        row.date = jumps[i];
        cr_assert_eq(usage_table_add(&t, &row), 0);
        cr_assert_eq(usage_table_fold(&t, jumps[i]), 0);
        cr_expect_eq(usage_table_sum(&t, "a", 0, 20261231).requests, i == 2 ? 22 : 23, "%u", i);
    }
    cr_assert_eq(usage_table_fold(&t, 20261124), 0); /* the clock is right again */
    cr_expect_eq(usage_table_sum(&t, "a", 0, 20261231).requests, 22);
    usage_table_deinit(&t);
}

Test(usage_table, a_clock_that_jumps_ahead_leaves_a_full_table_its_last_month) {
    struct usage_table t = {0};
    char tenant[32];

    for (uint32_t i = 0; i < USAGE_ROWS_MAX; i++) {
        snprintf(tenant, sizeof(tenant), "t%u", i % (USAGE_ROWS_MAX / 4));
        add(&t, NOV_23 - (int64_t)(i * 4 / USAGE_ROWS_MAX) * 31 * DAY, tenant, "k", "m");
    }
    struct usage_row row = row_of(NOV_23, "t1", "k", "m");
    row.date = 20990105;
    cr_assert_eq(usage_table_add(&t, &row), 0);
    cr_assert_eq(usage_table_fold(&t, 20990105), 0);
    cr_expect_leq(t.n, USAGE_ROWS_MAX);
    cr_expect_eq(usage_table_sum(&t, "t2", 20261100, 20261131).requests, 1);
    usage_table_deinit(&t);
}

static void refused(const char *text, const char *why) {
    struct usage_table t = {0};
    struct err err = {0};

    cr_expect_eq(usage_table_read(&t, text, strlen(text), &err), -EINVAL, "%s", text);
    cr_expect(strstr(err.message, why), "%s", err.message);
    usage_table_deinit(&t);
}

Test(usage_table, what_is_no_table_is_refused_with_the_line) {
    refused("", "last line");
    refused("weft usage 2\nend 0\n", "line 1");
    refused("weft usage 1\n", "last line");
    refused("weft usage 1\nend 1\n", "line 2");
    refused("weft usage 1\n20261123\ta\tk\tm\t1\t2\t3\t4\nend 0\n", "line 3");
    refused("weft usage 1\n20261123\ta\tk\tm\t1\t2\t3\t4\nend 1", "line 3: is incomplete");
    refused("weft usage 1\n20261323\ta\tk\tm\t1\t2\t3\t4\nend 1\n", "line 2");
    refused("weft usage 1\n20261123\ta\tk\tm\t1\t2\t3\t-4\nend 1\n", "line 2");
    refused("weft usage 1\n20261123\ta%0\tk\tm\t1\t2\t3\t4\nend 1\n", "line 2");
    refused("weft usage 1\n20261123\t\tk\tm\t1\t2\t3\t4\nend 1\n", "line 2");
    refused("weft usage 1\n20261123\ta\tk\tm\t1\t2\t3\t4\t5\nend 1\n", "line 2");
    refused("weft usage 1\nend 0\nend 0\n", "line 3");
}

Test(usage_table, dates_have_a_month_and_at_most_31_days) {
    static const int64_t dates[] = {100, 131, 1231, 20261100, 20261123, 99991231};
    static const int64_t others[] = {-1,       -100,     0,        31,       99,       1300,
                                     20260001, 20261132, 20261199, 20261300, 99991232, 100000101};

    for (size_t i = 0; i < sizeof(dates) / sizeof(*dates); i++)
        cr_expect(usage_is_date(dates[i]), "%lld", (long long)dates[i]);
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        cr_expect_not(usage_is_date(others[i]), "%lld", (long long)others[i]);
}

#define NAME_63 "abcdefghijklmnopqrstuvwxyz_abcdefghijklmnopqrstuvwxyz_123456789"

/* Reads one row. Returns false if it is refused. */
static bool reads(const char *fields, struct usage_row *row) {
    struct usage_table t = {0};
    struct err err = {0};
    char text[700];

    snprintf(text, sizeof(text), "weft usage 1\n%s\nend 1\n", fields);
    bool read = usage_table_read(&t, text, strlen(text), &err) == 0;
    cr_expect_eq(read, t.n == 1, "%s", fields);
    cr_expect(read || strcmp(err.message, "line 2: is not a row of usage") == 0, "%s: %s", fields,
              err.message);
    if (read)
        *row = t.rows[0];
    usage_table_deinit(&t);
    return read;
}

Test(usage_table, each_field_of_a_row_is_read_to_its_limit) {
    struct usage_row row = {0};

    cr_assert(reads("20261123\ta%20b\t-\tm%7Fn%C3%A9\t1\t22\t333\t4444", &row));
    cr_expect_eq(row.date, 20261123u);
    cr_expect_str_eq(row.tenant, "a b");
    cr_expect_str_eq(row.key, "");
    cr_expect_str_eq(row.model, "m\x7fn\xc3\xa9");
    cr_expect_eq(row.sum.requests, 1u);
    cr_expect_eq(row.sum.prompt_tokens, 22u);
    cr_expect_eq(row.sum.cached_tokens, 333u);
    cr_expect_eq(row.sum.output_tokens, 4444u);
    cr_expect(reads("20261123\t" NAME_63 "\t" NAME_63 "\tm\t1\t2\t3\t4", &row));
    cr_expect_str_eq(row.tenant, NAME_63);
    cr_expect_str_eq(row.key, NAME_63);
    cr_expect(reads("20261123\t--\tk\tm\t0\t0\t0\t1000000000000000000", &row));
    cr_expect_str_eq(row.tenant, "--");
    cr_expect_eq(row.sum.output_tokens, USAGE_COUNT_MAX);
    static const char *const others[] = {
        "2026112\ta\tk\tm\t1\t2\t3\t4",
        "020261123\ta\tk\tm\t1\t2\t3\t4",
        "20261132\ta\tk\tm\t1\t2\t3\t4",
        "20261123\t" NAME_63 "x\tk\tm\t1\t2\t3\t4",
        "20261123\ta\t" NAME_63 "x\tm\t1\t2\t3\t4",
        "20261123\ta%00\tk\tm\t1\t2\t3\t4",
        "20261123\ta%c3%A9\tk\tm\t1\t2\t3\t4",
        "20261123\ta%G0\tk\tm\t1\t2\t3\t4",
        "20261123\ta%2\tk\tm\t1\t2\t3\t4",
        "20261123\ta b\tk\tm\t1\t2\t3\t4",
        "20261123\ta\x7f\tk\tm\t1\t2\t3\t4",
        "20261123\ta\tk\t\t1\t2\t3\t4",
        "20261123\ta\tk\tm\t\t2\t3\t4",
        "20261123\ta\tk\tm\t1000000000000000001\t2\t3\t4",
        "20261123\ta\tk\tm\t1\t1000000000000000001\t3\t4",
        "20261123\ta\tk\tm\t1\t2\t1000000000000000001\t4",
        "20261123\ta\tk\tm\t1\t2\t3\t1000000000000000001",
        "20261123\ta\tk\tm\t1\t2\t3\t00000000000000000004",
        "20261123\ta\tk\tm\t1\t2\t3\t:",
        "20261123\ta\tk\tm\t1\t2\t3\t/",
        "20261123\ta\tk\tm\t1\t2\t3",
        "20261123\ta\tk\tm\t1\t2\t3\t4\t",
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        cr_expect_not(reads(others[i], &row), "%s", others[i]);
}

/* Sums stop at their limit instead of starting anew. */
Test(usage_table, sums_have_a_limit) {
    struct usage_row row = row_of(NOV_23, "a", "k", "m");
    struct usage_table t = {0};

    row.sum = (struct usage_sum){USAGE_COUNT_MAX, USAGE_COUNT_MAX - 1, USAGE_COUNT_MAX, 0};
    cr_assert_eq(usage_table_add(&t, &row), 0);
    row.sum = (struct usage_sum){1, 1, 2, 1};
    cr_assert_eq(usage_table_add(&t, &row), 0);
    cr_expect_eq(t.n, 1);
    struct usage_sum s = usage_table_sum(&t, "a", row.date, row.date);
    cr_expect_eq(s.requests, USAGE_COUNT_MAX);
    cr_expect_eq(s.prompt_tokens, USAGE_COUNT_MAX);
    cr_expect_eq(s.cached_tokens, USAGE_COUNT_MAX);
    cr_expect_eq(s.output_tokens, 1u);
    cr_expect_eq(usage_table_sum(&t, "a", row.date + 1, row.date + 1).requests, 0u);
    cr_expect_eq(usage_table_sum(&t, "a", row.date - 1, row.date - 1).requests, 0u);
    usage_table_deinit(&t);
}
