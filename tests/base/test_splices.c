#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "base/splices.h"

/* Makes a blob of @n bytes that begin with letter @c. */
static struct blob *letters(char c, size_t n) {
    struct buf text = {.max = 1000};

    for (size_t i = 0; i < n; i++)
        cr_assert_eq(buf_add_char(&text, (char)(c + i % 26)), 0);
    return blob_new(&text);
}

/* Random texts are compared with the bytes that a naive writer copies. */
Test(splices, each_part_of_a_text_is_in_its_place) {
    struct rng rng = {.state = 61};

    for (int round = 0; round < 2000; round++) {
        CLEANUP(buf_deinit) struct buf own = {.max = 1000}, want = {.max = 10000}, got = want;
        CLEANUP(spliced_deinit) struct spliced text = {0}, copy = {0};
        struct blob *b = letters('A', 1 + rng_below(&rng, 50));
        uint32_t n = rng_below(&rng, 6);

        for (uint32_t i = 0; i < n; i++) {
            size_t from = rng_below(&rng, (uint32_t)b->text.len + 1);
            size_t len = rng_below(&rng, (uint32_t)(b->text.len - from) + 1);

            for (uint32_t k = rng_below(&rng, 4); k > 0; k--) {
                cr_assert_eq(buf_add_char(&own, (char)('a' + k)), 0);
                cr_assert_eq(buf_add_char(&want, (char)('a' + k)), 0);
            }
            cr_assert_eq(splices_add(&text.in, b, from, len, own.len), 0);
            cr_assert_eq(buf_add(&want, b->text.data + from, len), 0);
        }
        blob_unref(b);
        cr_assert_eq(buf_add_char(&own, '.') + buf_add_char(&want, '.'), 0);
        cr_assert_not_null(text.text = blob_new(&own));
        cr_assert_eq(spliced_copy(&copy, &text), 0);
        cr_assert_eq(spliced_len(&copy), want.len);
        size_t from = rng_below(&rng, (uint32_t)want.len + 1), len = want.len - from;
        len = rng_below(&rng, (uint32_t)len + 1);
        cr_assert_eq(spliced_read(&copy, from, len, &got), 0);
        cr_assert(got.len == len && (len == 0 || memcmp(got.data, want.data + from, len) == 0));
        for (size_t at = 0; at < want.len; at++) {
            struct splice p = spliced_part(&text, at);

            cr_assert(p.len > 0 && p.len <= want.len - at);
            cr_assert_eq(memcmp(p.blob->text.data + p.from, want.data + at, p.len), 0);
        }
    }
}

Test(splices, a_part_of_a_text_has_what_is_inserted_in_it) {
    CLEANUP(splices_deinit) struct splices all = {0}, some = {0};
    struct blob *b = letters('A', 3);

    for (size_t at = 0; at < 40; at += 10)
        cr_assert_eq(splices_add(&all, b, 1, 2, at), 0);
    cr_assert_eq(splices_add(&all, b, 0, 0, 50), 0);
    cr_expect_eq(all.len, 8);
    cr_assert_eq(splices_copy(&some, &all, 10, 30), 0);
    cr_assert_eq(some.n, 2);
    cr_expect(some.part[0].at == 0 && some.part[1].at == 10 && some.len == 4);
    cr_expect_eq(b->refs, 7);
    splices_deinit(&all);
    cr_expect_eq(b->refs, 3);
    blob_unref(b);
}
