/* Numbers of pictures: one for each content, and prefixes with them in a pager. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "kvpager/kvpager.h"
#include "kvpager/media.h"

static struct kv_medium medium(uint32_t i) {
    struct kv_medium m = {
        .n_rows = 4, .n_columns = 2, .n_lines = 2, .n_positions = 2, .width = 56, .height = 56};

    memcpy(m.digest + 28, &i, sizeof(i));
    return m;
}

/* Every byte of the content counts, also one of the last ones. */
Test(kv_media, another_content_has_another_number) {
    struct kv_medium a = medium(1);
    struct kv_media m;

    cr_assert_eq(kv_media_init(&m, 64), 0);
    int32_t n = kv_media_number(&m, &a);
    cr_expect_lt(n, 0);
    cr_expect_eq(kv_media_number(&m, &a), n);
    for (size_t i = 0; i < sizeof(a); i++) {
        struct kv_medium b = a;

        ((uint8_t *)&b)[i] ^= 1;
        cr_expect_neq(kv_media_number(&m, &b), n, "byte %zu", i);
    }
    cr_expect_eq(kv_media_number(&m, &a), n);
    kv_media_deinit(&m);
}

/* Random contents compared with a list of all numbers that were ever assigned. */
Test(kv_media, numbers_are_never_given_out_again) {
    enum { MAX_KNOWN = 8, CONTENTS = 24, TURNS = 4000 };
    int32_t last[CONTENTS] = {0};
    uint32_t at[CONTENTS] = {0};
    uint8_t owner[TURNS + 1] = {0};
    struct rng r = {5};
    struct kv_media m;

    cr_assert_eq(kv_media_init(&m, MAX_KNOWN), 0);
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        uint32_t i = rng_below(&r, CONTENTS), n_since = 0;
        struct kv_medium x = medium(i);
        int32_t n = kv_media_number(&m, &x);

        cr_assert(n < 0 && n >= -TURNS);
        cr_assert(owner[-n] == 0 || owner[-n] == i + 1, "number %d is another content's", n);
        owner[-n] = (uint8_t)(i + 1);
        for (uint32_t k = 0; k < CONTENTS; k++)
            n_since += at[k] > at[i];
        if (last[i] < 0 && n_since < MAX_KNOWN)
            cr_assert_eq(n, last[i], "forgotten too early");
        last[i] = n;
        at[i] = turn;
    }
    cr_expect_leq(m.n_known, MAX_KNOWN);
    m.last = INT32_MIN;
    struct kv_medium x = medium(CONTENTS);
    cr_expect_eq(kv_media_number(&m, &x), 0);
    kv_media_deinit(&m);
}

Test(kv_media, a_content_is_found_by_its_number) {
    struct kv_medium a = medium(1), b = medium(2);
    struct kv_media m;

    cr_assert_eq(kv_media_init(&m, 2), 0);
    int32_t n = kv_media_number(&m, &a);
    cr_expect_eq(memcmp(kv_media_find(&m, n), &a, sizeof(a)), 0);
    cr_expect_null(kv_media_find(&m, n - 1));
    cr_expect_null(kv_media_find(&m, 0), "no number is that of an entry without content");
    cr_expect_eq(memcmp(kv_media_find(&m, kv_media_number(&m, &b)), &b, sizeof(b)), 0);
    b = medium(3);
    kv_media_number(&m, &b); /* forgets a */
    cr_expect_null(kv_media_find(&m, n));
    kv_media_deinit(&m);
}

Test(kv_media, there_is_a_power_of_two_of_buckets) {
    const uint32_t n_buckets[] = {[1] = 1, [2] = 2, [3] = 4, [8] = 8, [9] = 16};

    for (uint32_t max = 1; max < ARRAY_SIZE(n_buckets); max++) {
        struct kv_media m;

        if (n_buckets[max] == 0)
            continue;
        cr_assert_eq(kv_media_init(&m, max), 0);
        cr_expect_eq(m.n_buckets, n_buckets[max], "for %u", max);
        kv_media_deinit(&m);
    }
}

/* Writes a prompt of tokens and pictures of four rows each. */
static uint32_t put(int32_t *out, uint32_t n, struct kv_media *m, uint32_t picture) {
    struct kv_medium x = medium(picture);

    for (uint32_t i = 0; i < x.n_rows; i++)
        out[n++] = kv_media_number(m, &x);
    return n;
}

Test(kv_media, a_prefix_is_found_under_its_own_pictures_only) {
    struct kv_opts o = {.n_pages = 16, .page_tokens = 2, .max_seqs = 2, .max_seq_tokens = 32};
    struct kv_isolation key = {{1}};
    struct kv_pager *p;
    struct kv_media m;
    struct kv_seq *s;
    int32_t a[12] = {7, 8, 9}, b[12];

    cr_assert_eq(kv_media_init(&m, 8), 0);
    uint32_t n = put(a, put(a, 3, &m, 1), &m, 2);
    cr_assert_eq(kv_pager_new(&p, &o), 0);
    cr_assert_eq(kv_seq_new(&s, p, &key), 0);
    cr_assert_eq(kv_seq_grow(s, n), 0);
    kv_seq_commit(s, a, n);
    s = kv_seq_free(s);
    cr_expect_eq(kv_pager_match(p, &key, a, n).n_tokens, 10);
    memcpy(b, a, sizeof(b));
    put(b, 7, &m, 3); /* another second picture */
    cr_expect_eq(kv_pager_match(p, &key, b, n).n_tokens, 6);
    put(b, 3, &m, 2); /* another first picture */
    cr_expect_eq(kv_pager_match(p, &key, b, n).n_tokens, 2);
    kv_media_deinit(&m);
    kv_pager_free(p);
}
