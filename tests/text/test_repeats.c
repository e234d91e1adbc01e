#include <criterion/criterion.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "text/repeats.h"

/* A text as tokens: words with the blank before them, single digits, other bytes. */
struct text {
    int32_t t[20000];
    uint32_t n;
};

static void put(struct text *x, const char *s) {
    while (*s) {
        uint32_t h = 2166136261u;
        const char *end = s + 1;

        if (*s == ' ' || isalpha((unsigned char)*s))
            while (isalpha((unsigned char)*end))
                end++;
        for (const char *c = s; c < end; c++)
            h = (h ^ (unsigned char)*c) * 16777619u;
        cr_assert_lt(x->n, ARRAY_SIZE(x->t));
        x->t[x->n++] = (int32_t)(h >> 1);
        s = end;
    }
}

static void PRINTF(2, 3) putf(struct text *x, const char *fmt, ...) {
    char line[1000];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    put(x, line);
}

/* Returns after how many tokens a window of 256, 1,024 or 4,096 tokens is a loop; 0: never. */
static uint32_t ends_at(const struct text *x) {
    for (uint32_t n = 16; n <= x->n; n += 16)
        for (uint32_t window = 256; window <= MIN(n, REPEATS_MAX); window *= 4)
            if (n % (window / 16) == 0 && repeats_loop(x->t + n - window, window))
                return n;
    return 0;
}

static const char *const words[] = {"sea",  "wind", "white", "sail", "road",  "long", "home",
                                    "work", "code", "light", "rain", "green", "old",  "house",
                                    "walk", "song", "river", "hand", "stone", "year"};

/* Writes @n words of no sense. */
static void put_words(struct text *x, struct rng *rng, int n) {
    for (int i = 0; i < n; i++)
        putf(x, " %s", words[rng_next(rng) % ARRAY_SIZE(words)]);
}

Test(repeats, exact_loops_of_every_period_up_to_a_quarter) {
    static struct text x;
    struct rng rng = {3};

    for (uint32_t n = 64; n <= REPEATS_MAX; n *= 4)
        for (uint32_t period = 1; period <= n / 4; period += 1 + period / 8) {
            for (uint32_t i = 0; i < n; i++)
                x.t[i] = i < period ? (int32_t)(rng_next(&rng) % 1000) : x.t[i - period];
            cr_expect(repeats_loop(x.t, n), "%u of %u", period, n);
        }
    for (uint32_t i = 0; i < REPEATS_MAX; i++) /* twice is no loop */
        x.t[i] = i < REPEATS_MAX / 2 ? (int32_t)i : x.t[i - REPEATS_MAX / 2];
    cr_expect_not(repeats_loop(x.t, REPEATS_MAX));
    cr_expect_not(repeats_loop(x.t, 15));
    cr_expect_not(repeats_loop(x.t, 0));
}

/* Loops as small models write them; each ends before the given number of tokens. */
Test(repeats, loops_with_variations) {
    struct rng rng = {11};

    static struct text sails, titles, worked, two, paragraph, noisy;
    put(&sails, "The sea is calm and the sky is blue, and far away I see the");
    for (int i = 0; i < 400; i++)
        put(&sails, " white sails,");
    cr_expect(ends_at(&sails) && ends_at(&sails) <= 288, "%u", ends_at(&sails));

    put(&titles, "Once upon a time there was a road.");
    for (int i = 0; i < 200; i++)
        putf(&titles, "\n\nTitle: The Long Road%s", i % 9 == 4 ? " Home." : ".");
    cr_expect(ends_at(&titles) && ends_at(&titles) <= 320, "%u", ends_at(&titles));

    for (int i = 1; i < 100; i++) /* a numbered list of one sentence */
        putf(&worked,
             "%d. I have worked on software engineering, software testing, and automation of the "
             "tests for many years.\n",
             i);
    cr_expect(ends_at(&worked) && ends_at(&worked) <= 1280, "%u", ends_at(&worked));

    for (int i = 0; i < 200; i++) /* two sentences by chance */
        put(&two, rng_next(&rng) % 2 ? " I am happy to help you with that question today."
                                     : " Please let me know if there is more to be done here.");
    cr_expect(ends_at(&two) && ends_at(&two) <= 512, "%u", ends_at(&two));

    for (int i = 0; i < 40; i++) { /* a paragraph of some two hundred tokens */
        struct rng same = {5};

        put_words(&paragraph, &same, 200);
        put_words(&paragraph, &rng, 2);
    }
    cr_expect(ends_at(&paragraph) && ends_at(&paragraph) <= 1400, "%u", ends_at(&paragraph));

    for (int i = 0; i < 1000; i++) /* one word of sixty is another one */
        put(&noisy, rng_next(&rng) % 60 == 0 ? " rain"
                                             : (i % 4 == 0   ? " no"
                                                : i % 4 == 1 ? "-"
                                                : i % 4 == 2 ? "sort"
                                                             : "--"));
    cr_expect(ends_at(&noisy) && ends_at(&noisy) <= 640, "%u", ends_at(&noisy));
}

/* ---- what repeats itself and is none */

Test(repeats, lists_and_tables_go_on) {
    struct rng rng = {17};

    static struct text numbers, squares, rooms, days, html, json;
    for (int i = 1; i < 1500; i++)
        putf(&numbers, "%d, ", i);
    cr_expect_eq(ends_at(&numbers), 0, "%u", ends_at(&numbers));
    for (int i = 1; i < 400; i++)
        putf(&squares, "| %d | %d | %d |\n", i, i * i, i * i * i);
    cr_expect_eq(ends_at(&squares), 0, "%u", ends_at(&squares));
    for (int i = 100; i < 600; i++)
        putf(&rooms, "Room %d is available.\n", i);
    cr_expect_eq(ends_at(&rooms), 0, "%u", ends_at(&rooms));
    for (int i = 1; i < 32; i++)
        putf(&days, "| 2026-05-%02d | 9:00 | 17:00 | yes |\n", i);
    cr_expect_eq(ends_at(&days), 0, "%u", ends_at(&days));
    for (int i = 1; i < 200; i++)
        putf(&html, "  <tr><td>%d</td><td>%s %s</td><td>%d</td></tr>\n", i,
             words[rng_next(&rng) % 20], words[rng_next(&rng) % 20], (int)(rng_next(&rng) % 900));
    cr_expect_eq(ends_at(&html), 0, "%u", ends_at(&html));
    for (int i = 1; i < 200; i++)
        putf(&json,
             R"({"id": %d, "name": "%s", "active": %s, "score": %d},)"
             "\n",
             i, words[rng_next(&rng) % 20], rng_next(&rng) % 2 ? "true" : "false",
             (int)(rng_next(&rng) % 100));
    cr_expect_eq(ends_at(&json), 0, "%u", ends_at(&json));
}

Test(repeats, code_goes_on) {
    struct rng rng = {19};

    static struct text cases, tests, csv, sql;
    for (int i = 0; i < 200; i++)
        putf(&cases, "    case %d:\n        return \"%s\";\n", i, words[rng_next(&rng) % 20]);
    cr_expect_eq(ends_at(&cases), 0, "%u", ends_at(&cases));
    for (int i = 0; i < 100; i++)
        putf(&tests, "    def test_%s_%s(self):\n        self.assertEqual(add(%d, %d), %d)\n\n",
             words[rng_next(&rng) % 20], words[rng_next(&rng) % 20], i, i + 3, 2 * i + 3);
    cr_expect_eq(ends_at(&tests), 0, "%u", ends_at(&tests));
    for (int i = 0; i < 300; i++)
        putf(&csv, "%s,%s,%d.%02d\n", words[rng_next(&rng) % 20], words[rng_next(&rng) % 20],
             (int)(rng_next(&rng) % 100), (int)(rng_next(&rng) % 100));
    cr_expect_eq(ends_at(&csv), 0, "%u", ends_at(&csv));
    for (int i = 0; i < 150; i++)
        putf(&sql, "INSERT INTO users (id, name, mail) VALUES (%d, '%s', '%s@example.com');\n", i,
             words[rng_next(&rng) % 20], words[rng_next(&rng) % 20]);
    cr_expect_eq(ends_at(&sql), 0, "%u", ends_at(&sql));
}

Test(repeats, poems_and_prose_go_on) {
    struct rng rng = {23};

    static struct text song, prose, twice;
    for (int verse = 0; verse < 30; verse++) {
        put_words(&song, &rng, 28);
        for (int i = 0; i < 2; i++)
            put(&song, "\nAnd the sea, the sea, the open sea,\nit calls my name, it calls for me,");
        put(&song, "\n");
    }
    cr_expect_eq(ends_at(&song), 0, "%u", ends_at(&song));
    put_words(&prose, &rng, 9000);
    cr_expect_eq(ends_at(&prose), 0, "%u", ends_at(&prose));
    for (int i = 0; i < 3; i++) { /* a file that is shown whole after each change */
        struct rng same = {29};

        put_words(&twice, &same, 900);
        put_words(&twice, &rng, 40);
    }
    cr_expect_eq(ends_at(&twice), 0, "%u", ends_at(&twice));
}
