#include <criterion/criterion.h>
#include <string.h>
#include "base/util.h"
#include "proto/flight.h"

static struct flight f;
static struct flight_record r[64];

static void set_up(void) {
    memset(&f, 0, sizeof(f));
}

TestSuite(flight, .init = set_up);

Test(flight, what_repeats_is_one_record) {
    uint64_t a = 0, b = 0;

    for (int64_t t = 1; t <= 100; t++) {
        flight_note(&f, &a, 7, t <= 30 ? WHY_PROMPT : WHY_DECODE, 2, 0, t);
        flight_note(&f, &b, 8, WHY_PAGES, 0, 0, t);
    }
    cr_assert_eq(flight_story(&f, 7, r, 64), 2);
    cr_expect(r[0].why == WHY_PROMPT && r[0].n_steps == 30 && r[0].n_rows == 60);
    cr_expect(r[0].from_ns == 1 && r[0].until_ns == 31);
    cr_expect(r[1].why == WHY_DECODE && r[1].from_ns == 31 && r[1].until_ns == 100);
    cr_assert_eq(flight_story(&f, 8, r, 64), 1);
    cr_expect_eq(r[0].n_steps, 100);
    cr_expect_eq(flight_story(&f, 9, r, 64), 0);
}

Test(flight, events_are_records_of_their_own) {
    uint64_t a = 0;

    flight_note(&f, &a, 7, WHY_ADMITTED, 0, 10, 1);
    flight_note(&f, &a, 7, WHY_PREEMPTED, 0, 3, 2);
    flight_note(&f, &a, 7, WHY_ADMITTED, 0, 20, 3);
    flight_note(&f, &a, 7, WHY_ADMITTED, 0, 30, 4);
    cr_assert_eq(flight_story(&f, 7, r, 64), 4);
    cr_expect_eq(r[1].detail, 3);
    cr_expect_eq(r[3].detail, 30);
}

Test(flight, the_oldest_go_and_nobody_writes_into_anothers_record) {
    uint64_t old = 0, at;

    flight_note(&f, &old, 7, WHY_PAGES, 0, 0, 1);
    for (uint64_t i = 0; i < FLIGHT_RECORDS; i++) {
        at = 0;
        flight_note(&f, &at, 1000 + i, WHY_PROMPT, 1, 0, 2);
    }
    flight_note(&f, &old, 7, WHY_PAGES, 5, 0, 3);
    cr_assert_eq(flight_story(&f, 7, r, 64), 1);
    cr_expect(r[0].n_rows == 5 && r[0].from_ns == 3, "it begins anew");
    for (uint64_t i = 1; i < FLIGHT_RECORDS; i++)
        cr_assert(flight_story(&f, 1000 + i, r, 64) <= 1 && r[0].n_rows == 1);
}

Test(flight, a_long_story_has_its_end) {
    uint64_t a = 0;

    for (uint32_t i = 0; i < 200; i++)
        flight_note(&f, &a, 7, i % 2 ? WHY_TIME : WHY_PROMPT, i, 0, i);
    cr_assert_eq(flight_story(&f, 7, r, 64), 64);
    cr_expect_eq(r[63].n_rows, 199);
    cr_expect_eq(r[0].n_rows, 136);
}

Test(flight, garbage_is_not_believed) {
    uint64_t a = 0;

    flight_note(&f, &a, 7, WHY_TIME, 0, 0, 1);
    f.record[0].why = 200;
    cr_expect_eq(flight_story(&f, 7, r, 64), 0);
    f.n_records = UINT64_MAX;
    cr_expect_leq(flight_story(&f, 0, r, 64), 64);
    for (int why = 0; why <= WHY_N; why++)
        cr_expect(*flight_name((enum why)why) && *flight_text((enum why)why));
}
