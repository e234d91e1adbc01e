/*
 * Cutters: what they refuse, pieces that are dropped, and the time that hostile expressions and
 * texts take. tests/text/test_pretok.c compares their cuts with PCRE2.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "tests/support/few.h"
#include "text/cutter.h"
#include "text/cutter_private.h"
#include "text/pretok.h"

static struct cutter *compiled(const char *text) {
    struct cutter *c = NULL;
    struct err err = {0};

    cr_assert_eq(cutter_new(&c, (struct gguf_str){text, strlen(text)}, &err), 0, "%s: %s", text,
                 err.message);
    return c;
}

/* The pieces of @s, separated by '|', matches in parentheses. */
static const char *pieces(const char *expression, const char *s) {
    static char out[256];
    CLEANUP(cutter_freep) struct cutter *c = compiled(expression);
    CLEANUP(cutter_deinit) struct cutter_search f = {0};
    size_t n, at = 0;
    bool match;

    *out = 0;
    cutter_begin(&f, c, s, strlen(s));
    while (cutter_next(&f, &n, &match) == 1) {
        snprintf(out + strlen(out), sizeof(out) - strlen(out), match ? "%s(%.*s)" : "%s%.*s",
                 at ? "|" : "", (int)n, s + at);
        at += n;
    }
    cr_assert_eq(at, strlen(s));
    return out;
}

Test(text_cutter, pieces_are_matches_and_what_is_between_them) {
    cr_assert_str_eq(pieces("b+", "abba"), "a|(bb)|a");
    cr_assert_str_eq(pieces("a|ab", "abab"), "(a)|b|(a)|b");
    cr_assert_str_eq(pieces("x*", "axxb"), "a|(xx)|b");
    cr_assert_str_eq(pieces("(?=b)", "abab"), "a|ba|b");
    cr_assert_str_eq(pieces("^.", "ab\ncd\n"), "(a)|b\n|(c)|d\n");
    cr_assert_str_eq(pieces(".$", "ab\ncd"), "a|(b)|\nc|(d)");
    cr_assert_str_eq(pieces("\\Aa|a\\z", "aaa"), "(a)|a|(a)");
    /* Ruby's syntax: behind braces + repeats once more */
    cr_assert_str_eq(pieces("\\d{1,2}+", "12345a"), "(12345)|a");
    cr_assert_str_eq(pieces("a?+ab|b", "aab"), "(aab)");
    cr_assert_str_eq(pieces("a?+ab|b", "ab"), "a|(b)");
    cr_assert_str_eq(pieces("[\\w&&[^a-c]]+", "abxyc"), "ab|(xy)|c");
    cr_assert_str_eq(pieces("\\S", "\xFF z"), "(\xFF)| |(z)");
    cr_assert_str_eq(pieces("a(?=bb|$)", "abbaba"), "(a)|bbab|(a)");
    cr_assert_str_eq(pieces("\\d{1,3}(?=(?:\\d{3})*\\b)", "1234567 89"), "(1)|(234)|(567)| |(89)");
    cr_assert_str_eq(pieces("(?!a(?=b(?!c)))[a-c]", "abcab"), "(a)|(b)|(c)|a|(b)");
    cr_assert_str_eq(pieces("(?:(?=ab|ba).){2}", "abaab"), "(ab)|aab");
    cr_assert_str_eq(pieces("(?=\\S\xC3\xA9).", "\xFF\xC3\xA9\xC3\xA9"),
                     "(\xFF)|(\xC3\xA9)|\xC3\xA9");
}

static const struct {
    const char *text, *message;
} refused[] = {
    {"", "an expression of 0 bytes"},
    {"(a", "a group without ) at byte 2"},
    {"a)", "a ) without a group at byte 1"},
    {"*", "a quantifier of nothing at byte 0"},
    {"[a", "a class that is empty or has no end at byte 2"},
    {"[]", "a class that is empty"},
    {"[[:alpha:]]", "a POSIX bracket is not supported at byte 1"},
    {"[z-a]", "a range without an end"},
    {"[a-\\d]", "a range without an end"},
    {"\\p{Greek}", "an unknown property"},
    {"\\pL", "a property without {name}"},
    {"\\p{L", "a property without }"},
    {"(?i:\\p{L})", "a property in a case-insensitive group"},
    {"(?i:\xC3\xA9)", "a case-insensitive letter beyond ASCII"},
    {"\\k", "an escape that is not supported"},
    {"\\1", "an escape that is not supported"},
    {"\\x{110000}", "a wrong number of a character"},
    {"\xFF", "a byte that is not UTF-8 at byte 0"},
    {"(?>ab)", "a group of an unknown kind"},
    {"(?<name>a)", "a group of an unknown kind"},
    {"(?<=ab)", "look-behind of something else than one character"},
    {"(?:(?=ab).){9}", "more than 8 look-aheads of several characters"},
    {"()++", "a possessive quantifier of something else than one character"},
    {"(?:ab)++", "a possessive quantifier of something else than one character"},
    {"a{300}", "a quantifier of more than 256 times"},
    {"a{3,2}", "a quantifier whose numbers fall"},
    {"a{2}?", "a question mark behind {n}"},
    {"a{x}", "a quantifier in braces without its numbers"},
    {"(?:(?:abcdefgh){200}){200}", "the expression is too large"},
    {"((((((((((((((((((((((((((((((((((", "too many levels"},
    {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "too many levels"},
};

Test(text_cutter, refusals_name_the_place) {
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        struct cutter *c = NULL;
        struct err err = {0};
        struct gguf_str text = {refused[i].text, strlen(refused[i].text)};

        cr_assert_eq(cutter_new(&c, text, &err), -EINVAL, "%s", refused[i].text);
        cr_assert_not_null(strstr(err.message, refused[i].message), "%s: %s", refused[i].text,
                           err.message);
    }
}

Test(text_cutter, matches_and_gaps_become_words_by_the_rule) {
    static const char *const want[PRETOK_RULES] = {
        [PRETOK_KEEP_ALL] = "b,aa,b,b,a,b,b,b,",
        [PRETOK_DROP_GAPS] = "b,b,b,b,b,b,",
        [PRETOK_DROP_MATCHES] = "aa,a,",
        [PRETOK_JOIN_MATCHES] = "b,aa,bb,a,bbb,",
        [PRETOK_JOIN_GAP_MATCH] = "b,aab,b,ab,b,b,",
        [PRETOK_JOIN_MATCH_GAP] = "baa,b,ba,b,b,b,",
    };
    CLEANUP(cutter_freep) struct cutter *c = compiled("b");
    CLEANUP(cutter_freep) struct cutter *all = compiled(".+");

    for (uint8_t i = 0; i < PRETOK_RULES; i++) {
        struct pretok p = {.cutter = {c, all}, .rule = {i}};
        CLEANUP(pretok_end) struct pretok_cursor cursor = {0};
        char got[32] = "";
        const char *word;
        size_t n;

        pretok_begin(&cursor, &p, "baabbabbb", 9);
        while (pretok_next(&cursor, &word, &n) == 1)
            snprintf(got + strlen(got), sizeof(got) - strlen(got), "%.*s,", (int)n, word);
        cr_assert_str_eq(got, want[i], "%s: %s", pretok_rules[i], got);
    }
}

/* An empty match parts two gaps, which no rule joins. */
Test(text_cutter, gaps_around_an_empty_match_stay_apart) {
    CLEANUP(cutter_freep) struct cutter *c = compiled("(?=A)|b");

    for (uint8_t i = PRETOK_JOIN_MATCHES; i < PRETOK_RULES; i++) {
        struct pretok p = {.cutter = {c}, .rule = {i}};
        CLEANUP(pretok_end) struct pretok_cursor cursor = {0};
        const char *word;
        size_t n;

        pretok_begin(&cursor, &p, "xyAz", 4);
        cr_assert(pretok_next(&cursor, &word, &n) == 1 && n == 2, "%s", pretok_rules[i]);
        cr_assert(pretok_next(&cursor, &word, &n) == 1 && n == 2, "%s", pretok_rules[i]);
        cr_assert_eq(pretok_next(&cursor, &word, &n), 0);
    }
}

/* Expressions that take exponential or quadratic time without the bits of pairs. */
Test(text_cutter, hostile_expressions_take_linear_time) {
    static const char *const hostile[] = {"(?:a+)+b",          "a+b|a",
                                          "(?:a|a)*b",         "(?:a*)*b|a",
                                          "(?:a?){50}a{50}b",  "(?:.*a){20}b",
                                          "\\s+(?!\\S)|\\s+b", "a{1,60}b",
                                          ".*?.*?.*?b",        "[ab]*c|(?=[ab])",
                                          "a(?=.*b)|b",        "(?!(?:a*)*b|(?:(?=.{9}b)a)*c)a"};
    size_t len = FEWER(2000000u, 200000u);
    CLEANUP(freep) char *s = malloc(len);

    for (int kind = 0; kind < 2; kind++) {
        memset(s, kind ? ' ' : 'a', len);
        for (size_t i = 0; i < ARRAY_SIZE(hostile); i++) {
            CLEANUP(cutter_freep) struct cutter *c = compiled(hostile[i]);
            CLEANUP(cutter_deinit) struct cutter_search f = {0};
            struct timespec begin, end;
            size_t n, sum = 0;
            bool match;

            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
            cutter_begin(&f, c, s, len);
            while (cutter_next(&f, &n, &match) == 1)
                sum += n;
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
            cr_assert_eq(sum, len);
            cr_assert_leq(f.cap, 4 * len + 256);
            /* each pair of an instruction and a position at most once, and some steps a match */
            cr_assert_lt(end.tv_sec - begin.tv_sec, 20, "%s", hostile[i]);
        }
    }
}

/* Sets against a naive model: an array of flags for each code point. */
Test(text_cutter, sets_are_those_of_a_naive_model) {
    enum { N = 0x110000 };
    CLEANUP(freep) bool *model = malloc(N);
    struct rng r = {3};

    for (int round = 0; round < FEWER(40, 8); round++) {
        CLEANUP(cutter_ranges_deinit) struct cutter_ranges ranges = {0};
        struct cutter_set set = {0};

        memset(model, 0, N);
        for (uint32_t i = rng_below(&r, 12); i > 0; i--) {
            uint32_t lo = rng_below(&r, rng_below(&r, 2) ? 300 : N);
            uint32_t hi = MIN(lo + rng_below(&r, 200), N - 1u);

            cr_assert_eq(cutter_ranges_add(&ranges, lo, hi), 0);
            memset(model + lo, 1, hi - lo + 1);
        }
        for (uint32_t k = rng_below(&r, 3); k > 0; k--) {
            cr_assert_eq(cutter_ranges_invert(&ranges), 0);
            for (uint32_t cp = 0; cp < N; cp++)
                model[cp] = !model[cp];
        }
        cutter_ranges_sort(&ranges);
        set.ranges = ranges;
        for (uint32_t cp = 128; cp < N; cp++)
            if (cutter_set_has(&set, cp) != model[cp])
                cr_assert_fail("U+%04X", cp);
    }
}
