#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "base/rng.h"
#include "text/stops.h"

static struct stop_string str(const char *s) {
    return (struct stop_string){s, strlen(s)};
}

/* Tries every end and every stop string: the contract as written. */
static bool naive(const struct stop_string *s, uint32_t n, const char *text, size_t len,
                  struct stops_match *m) {
    for (size_t end = 1; end <= len; end++) {
        size_t best = 0;

        for (uint32_t i = 0; i < n; i++) {
            if (s[i].len <= end && s[i].len > best &&
                memcmp(text + end - s[i].len, s[i].data, s[i].len) == 0) {
                best = s[i].len;
                *m = (struct stops_match){i, end - best};
            }
        }
        if (best)
            return true;
    }
    return false;
}

static size_t naive_held(const struct stop_string *s, uint32_t n, const char *text, size_t len) {
    size_t best = 0;

    for (uint32_t i = 0; i < n; i++) {
        for (size_t k = 1; k < s[i].len && k <= len; k++) {
            if (k > best && memcmp(text + len - k, s[i].data, k) == 0)
                best = k;
        }
    }
    return best;
}

static void random_text(struct rng *r, char *out, size_t n) {
    for (size_t i = 0; i < n; i++)
        out[i] = (char)('a' + rng_below(r, 2 + rng_below(r, 2)));
}

static void one_case(struct rng *r) {
    char storage[STOPS_MAX][12], text[200];
    struct stop_string s[STOPS_MAX];
    uint32_t n = 1 + rng_below(r, STOPS_MAX);
    size_t len = rng_below(r, sizeof(text)), fed = 0;
    struct stops *stops = NULL;
    struct stops_match want = {0}, got = {0};
    bool expected, found = false;

    for (uint32_t i = 0; i < n; i++) {
        s[i] = (struct stop_string){storage[i], 2 + rng_below(r, 10)};
        random_text(r, storage[i], s[i].len);
    }
    random_text(r, text, len);
    expected = naive(s, n, text, len, &want);
    cr_assert_eq(stops_new(&stops, s, n), 0);
    while (fed < len && !found) {
        size_t k = rng_below(r, 9);

        k = MIN(k, len - fed);
        found = stops_feed(stops, text + fed, k, &got);
        fed += k;
        if (!found)
            cr_assert_eq(stops_held(stops), naive_held(s, n, text, fed));
    }
    cr_assert_eq(found, expected);
    if (found) {
        cr_assert_eq(got.begin, want.begin);
        cr_assert_eq(s[got.index].len, s[want.index].len);
        /* Whatever comes later changes nothing. */
        cr_assert(stops_feed(stops, "aaaaaaaaaaaaaaaa", 16, &got));
        cr_assert_eq(got.begin, want.begin);
    }
    stops_free(stops);
}

Test(text_stops, agree_with_naive_search_however_the_stream_is_cut) {
    struct rng r = {1};

    for (int i = 0; i < 20000; i++)
        one_case(&r);
}

Test(text_stops, first_end_wins_then_the_longest) {
    struct stop_string s[] = {str("b"), str("abc"), str("ab"), str("\xF0\x9F\x98\x80")};
    struct stops *stops = NULL;
    struct stops_match m;

    cr_assert_eq(stops_new(&stops, s, 4), 0);
    cr_assert(!stops_feed(stops, "xxa", 3, &m));
    cr_assert_eq(stops_held(stops), 1);
    cr_assert(stops_feed(stops, "bc", 2, &m));
    cr_assert_eq(m.index, 2);
    cr_assert_eq(m.begin, 2);
    stops_free(stops);

    cr_assert_eq(stops_new(&stops, s, 4), 0);
    cr_assert(!stops_feed(stops, "\xF0\x9F\x98", 3, &m));
    cr_assert_eq(stops_held(stops), 3);
    cr_assert(stops_feed(stops, "\x80", 1, &m));
    cr_assert_eq(m.index, 3);
    cr_assert_eq(m.begin, 0);
    stops_free(stops);
}

Test(text_stops, limits) {
    static char big[STOPS_LEN_MAX + 1];
    struct stop_string many[STOPS_MAX + 1];
    struct stops *s = NULL;
    struct stops_match m;

    for (size_t i = 0; i <= STOPS_MAX; i++)
        many[i] = (struct stop_string){big, STOPS_LEN_MAX};
    memset(big, 'x', sizeof(big));
    cr_assert_eq(stops_new(&s, many, STOPS_MAX + 1), -EINVAL);
    cr_assert_eq(stops_new(&s, many, STOPS_MAX), 0);
    cr_assert(stops_feed(s, big, STOPS_LEN_MAX, &m));
    cr_assert_eq(m.index, 0, "the first of equal strings");
    stops_free(s);
    many[3].len++;
    cr_assert_eq(stops_new(&s, many, 4), -EINVAL);
    many[3].len = 0;
    cr_assert_eq(stops_new(&s, many, 4), -EINVAL);
    cr_assert_eq(stops_new(&s, NULL, 0), 0);
    cr_assert(!stops_feed(s, big, sizeof(big), &m));
    cr_assert_eq(stops_held(s), 0);
    stops_free(s);
}

Test(text_stops, depth_256_sixteen_times_is_linear) {
    /* a^255 b: every byte follows a chain of fail links, and the sum of them is what is fed. */
    static char s[STOPS_LEN_MAX], text[1 << 20];
    struct stop_string one = {s, sizeof(s)};
    struct stops *stops = NULL;
    struct stops_match m;

    memset(s, 'a', sizeof(s));
    s[sizeof(s) - 1] = 'b';
    memset(text, 'a', sizeof(text));
    cr_assert_eq(stops_new(&stops, &one, 1), 0);
    cr_assert(!stops_feed(stops, text, sizeof(text), &m));
    cr_assert_eq(stops_held(stops), STOPS_LEN_MAX - 1);
    cr_assert(stops_feed(stops, "b", 1, &m));
    cr_assert_eq(m.begin, sizeof(text) + 1 - sizeof(s));
    stops_free(stops);
}
