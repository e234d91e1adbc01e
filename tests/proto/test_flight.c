#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tests/support/flight_read.h"

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

Test(flight, a_token_ends_a_record) {
    uint64_t a = 0;

    flight_note(&f, &a, 7, WHY_PROMPT, 9, 0, 1);
    flight_note_token(&f, &a, 7, 5);
    cr_assert_eq(flight_story(&f, 7, r, 64), 2);
    cr_expect(r[0].why == WHY_PROMPT && r[0].n_steps == 1 && r[0].until_ns == 5);
    cr_expect(r[1].why == WHY_DECODE && r[1].n_steps == 0 && r[1].from_ns == 5);
    flight_note(&f, &a, 7, WHY_TIME, 0, 3, 8);
    cr_assert_eq(flight_story(&f, 7, r, 64), 2, "the decision names what has begun");
    cr_expect(r[1].why == WHY_TIME && r[1].n_steps == 1 && r[1].from_ns == 5);
    cr_expect(r[1].until_ns == 8 && r[1].detail == 3);
    flight_note_token(&f, &a, 7, 9);
    flight_note(&f, &a, 7, WHY_ENDED, 0, 1, 9);
    cr_assert_eq(flight_story(&f, 7, r, 64), 4);
    cr_expect(r[2].why == WHY_DECODE && r[2].n_steps == 0 && r[3].from_ns == 9);
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

/* ---- the tape ---- */

#define RING 1024u

static uint64_t tape_memory[(sizeof(struct flight_tape) + RING) / sizeof(uint64_t)];
static struct flight_tape *tape = (struct flight_tape *)tape_memory;

/* Record @i: as many bytes as it says, all of them its number. */
static void write_record(uint32_t i) {
    uint8_t data[100];

    memset(data, (int)i, sizeof(data));
    flight_tape_write(tape, RING, data, i % 89 + 1);
}

/* Checks that the tape has whole records that follow each other up to @last; how many. */
static uint32_t check_records(uint32_t last) {
    CLEANUP(buf_deinit) struct buf out = {.max = 1 << 20};
    uint32_t n = 0, len;

    cr_assert_eq(flight_tape_read(tape, RING, &out), 0);
    for (size_t at = 0; at < out.len; at += sizeof(len) + len, n++)
        memcpy(&len, out.data + at, sizeof(len));
    for (uint32_t i = last + 1 - n, at = 0; i <= last; i++, at += (uint32_t)sizeof(len) + len) {
        memcpy(&len, out.data + at, sizeof(len));
        cr_assert_eq(len, i % 89 + 1);
        for (uint32_t k = 0; k < len; k++)
            cr_assert_eq((uint8_t)out.data[at + sizeof(len) + k], (uint8_t)i);
    }
    return n;
}

Test(flight, the_tape_has_the_last_records_whole) {
    memset(tape_memory, 0, sizeof(tape_memory));
    cr_assert_eq(check_records(0), 0);
    for (uint32_t i = 1; i < 2000; i++) {
        write_record(i);
        cr_assert_geq(check_records(i), MIN(i, RING / 98 - 1));
    }
}

Test(flight, what_a_dead_writer_left_half_written_is_not_read) {
    for (uint32_t n = 0; n < 108; n++) {
        memset(tape_memory, 0, sizeof(tape_memory));
        for (uint32_t i = 1; i <= 200; i++)
            write_record(i);
        tape->n_begun += 108; /* it dies behind byte n */
        for (uint32_t k = 0; k < n; k++)
            tape->ring[(tape->n_bytes + k) % RING] = 0xee;
        cr_assert_geq(check_records(200), 5);
    }
}

Test(flight, a_record_too_long_for_the_tape_is_left_out) {
    static uint8_t data[RING];

    memset(tape_memory, 0, sizeof(tape_memory));
    write_record(1);
    flight_tape_write(tape, RING, data, RING / 8 - 7);
    cr_expect_eq(check_records(1), 1);
    flight_tape_write(tape, RING, data, RING / 8 - 8);
    cr_expect_eq(tape->n_bytes, RING / 8 + 10);
}

Test(flight, an_empty_record_is_read) {
    CLEANUP(buf_deinit) struct buf out = {.max = 1 << 20};

    memset(tape_memory, 0, sizeof(tape_memory));
    flight_tape_write(tape, RING, "", 0);
    cr_assert_eq(flight_tape_read(tape, RING, &out), 0);
    cr_expect_eq(out.len, sizeof(uint32_t));
}

/* The oldest record lost its begin to the last one, which has the length of a record there. */
Test(flight, a_record_without_its_begin_is_not_read) {
    CLEANUP(buf_deinit) struct buf out = {.max = 1 << 20};
    uint32_t data[16];

    memset(tape_memory, 0, sizeof(tape_memory));
    for (uint32_t i = 0; i < 20; i++) {
        for (uint32_t k = 0; k < ARRAY_SIZE(data); k++)
            data[k] = i == 19 && k == 3 ? sizeof(data) : 0x01010000 + k;
        flight_tape_write(tape, RING, data, sizeof(data));
    }
    cr_assert_eq(flight_tape_read(tape, RING, &out), 0);
    cr_expect_eq(out.len, RING / (sizeof(data) + 8) * (sizeof(data) + 4));
}

Test(flight, a_damaged_tape_is_not_believed) {
    uint32_t state = 1;

    for (int round = 0; round < 20000; round++) {
        CLEANUP(buf_deinit) struct buf out = {.max = 1 << 20};

        memset(tape_memory, 0, sizeof(tape_memory));
        for (uint32_t i = 1; i < 60; i++)
            write_record(i);
        for (int k = 0; k < 6; k++) {
            state = state * 1664525 + 1013904223;
            ((uint8_t *)tape_memory)[(state >> 8) % (k ? sizeof(tape_memory) : 16)] =
                (uint8_t)(state >> 24);
        }
        flight_tape_read(tape, RING, &out);
        cr_assert_leq(out.len, RING);
    }
}

/* The worker wrote any number of bytes over its counters: no record is longer than the ring, and
 * the search ends. */
Test(flight, a_tape_without_the_count_of_begun_bytes_is_not_believed) {
    CLEANUP(buf_deinit) struct buf out = {.max = 1 << 20};
    uint32_t word[RING / 4];

    for (size_t i = 0; i < ARRAY_SIZE(word); i++)
        word[i] = 2 * RING;
    memcpy(tape->ring, word, RING);
    tape->n_begun = 1;
    tape->n_bytes = 64 * RING;
    cr_assert_eq(flight_tape_read(tape, RING, &out), 0);
    cr_expect_eq(out.len, 0);
}

/* ---- the file ---- */

static struct flight *memory;

static void set_up_file(struct buf *file) {
    uint64_t a = 0;

    memory = calloc(1, FLIGHT_BYTES);
    cr_assert(memory);
    for (uint32_t i = 0; i < FLIGHT_STEPS + 7; i++)
        flight_note_step(memory, &(struct flight_step){.step = i + 1});
    flight_note(memory, &a, 7, WHY_PROMPT, 3, 0, 5);
    flight_note(memory, &a, 7, WHY_DECODE, 1, 0, 6);
    flight_tape_write(flight_tape_of(memory), FLIGHT_TAPE_BYTES, "one", 3);
    flight_tape_write(flight_tape_of(memory), FLIGHT_TAPE_BYTES, "three", 5);
    buf_init(file, FLIGHT_FILE_MAX);
    cr_assert_eq(flight_file_write(file, memory, FLIGHT_TAPE_BYTES, "1.2", 99), 0);
}

Test(flight, a_file_has_all_of_it) {
    CLEANUP(buf_deinit) struct buf file = {0};
    struct flight_file got;
    size_t at = 0;
    uint32_t len;

    set_up_file(&file);
    cr_assert_eq(flight_file_parse(&got, file.data, file.len), 0);
    cr_expect_str_eq(got.version, "1.2");
    cr_expect_eq(got.at_ns, 99);
    cr_assert(got.n_steps == FLIGHT_STEPS && got.n_records == 2);
    for (uint32_t i = 0; i < got.n_steps; i++)
        cr_assert_eq(got.step[i].step, i + 8);
    cr_expect(got.record[0].why == WHY_PROMPT && got.record[1].why == WHY_DECODE);
    cr_expect(memcmp(flight_file_next(&got, &at, &len), "one", 3) == 0 && len == 3);
    cr_expect(memcmp(flight_file_next(&got, &at, &len), "three", 5) == 0 && len == 5);
    cr_expect_null(flight_file_next(&got, &at, &len));
    free(memory);
}

Test(flight, a_damaged_file_is_refused) {
    CLEANUP(buf_deinit) struct buf file = {0};
    struct flight_file got;
    uint32_t len;

    set_up_file(&file);
    for (size_t n = 0; n < file.len; n += n < 200 ? 1 : 37)
        cr_assert_eq(flight_file_parse(&got, file.data, n), -EINVAL);
    for (uint32_t i = 0; i < 80; i++) {
        char was = file.data[i];

        file.data[i] ^= (char)0xff;
        if (flight_file_parse(&got, file.data, file.len) == 0)
            for (size_t at = 0; flight_file_next(&got, &at, &len);)
                cr_assert_leq(at, file.len);
        file.data[i] = was;
    }
    free(memory);
}
