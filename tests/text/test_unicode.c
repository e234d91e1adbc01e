#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/rng.h"
#include "text/stops.h"
#include "text/unicode.h"

/* A second reading of the definition (Unicode 3.9, table 3-7), by value instead of by byte
 * ranges. */
static unsigned reference_decode(const uint8_t *s, size_t len, uint32_t *cp) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned n = s[0] < 0x80             ? 1
                 : (s[0] & 0xE0) == 0xC0 ? 2
                 : (s[0] & 0xF0) == 0xE0 ? 3
                 : (s[0] & 0xF8) == 0xF0 ? 4
                                         : 0;

    *cp = UNICODE_INVALID;
    if (n == 0 || n > len)
        return 1;
    uint32_t c = n == 1 ? s[0] : s[0] & (0x7Fu >> n);

    for (unsigned i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 1;
        c = c << 6 | (s[i] & 0x3F);
    }
    if (c < least[n] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 1;
    *cp = c;
    return n;
}

/* Bytes that are often nearly UTF-8. */
static size_t random_bytes(struct rng *r, char *out, size_t n) {
    static const uint8_t lead[] = {0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED,
                                   0xEF, 0xF0, 0xF1, 0xF4, 0xF5};

    for (size_t i = 0; i < n; i++) {
        switch (rng_below(r, 4)) {
        case 0:
            out[i] = (char)rng_below(r, 256);
            break;
        case 1:
            out[i] = (char)lead[rng_below(r, sizeof(lead))];
            break;
        default:
            out[i] = (char)(0x80 + rng_below(r, 64));
        }
    }
    return n;
}

Test(text_unicode, decoding_follows_the_definition) {
    struct rng r = {2};

    for (int round = 0; round < 200000; round++) {
        char s[12];
        size_t len = random_bytes(&r, s, 1 + rng_below(&r, sizeof(s)));
        bool valid = true;

        for (size_t i = 0; i < len;) {
            uint32_t got, want;
            unsigned n = unicode_decode(s + i, s + len, &got);

            cr_assert_eq(n, reference_decode((uint8_t *)s + i, len - i, &want));
            cr_assert_eq(got, want);
            valid &= want != UNICODE_INVALID;
            i += n;
        }
        cr_assert_eq(utf8_valid(s, len), valid);
    }
}

Test(text_unicode, incomplete_tail_is_what_more_bytes_could_complete) {
    struct rng r = {3};

    for (int round = 0; round < 8000; round++) {
        char s[16];
        size_t len = random_bytes(&r, s, 1 + rng_below(&r, 8)), want = 0;

        for (size_t n = 3; n >= 1 && !want; n--) {
            for (uint32_t v = 0; n <= len && v < 64 * 64 && !want; v++) {
                char t[4] = {0};
                uint32_t cp;

                memcpy(t, s + len - n, n);
                for (size_t i = n; i < 4; i++)
                    t[i] = (char)(0x80 | (v >> (i == n ? 0 : 6) & 63));
                for (size_t total = n + 1; total <= 4 && !want; total++) {
                    if (reference_decode((uint8_t *)t, total, &cp) == total)
                        want = n;
                }
            }
        }
        cr_assert_eq(utf8_incomplete_tail(s, len), want);
    }
    cr_assert_eq(utf8_incomplete_tail("", 0), 0);
}

Test(text_unicode, classes_of_every_code_point) {
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)cp);
        unsigned want = UC_OTHER, got, n;
        char s[4];

        if (cp >= 0xD800 && cp <= 0xDFFF)
            continue;
        if (cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO)
            want = UC_LETTER;
        else if (cat >= UTF8PROC_CATEGORY_MN && cat <= UTF8PROC_CATEGORY_ME)
            want = UC_MARK;
        else if (cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO)
            want = UC_NUMBER;
        else if ((cat >= UTF8PROC_CATEGORY_ZS && cat <= UTF8PROC_CATEGORY_ZP) ||
                 (cp >= 9 && cp <= 13) || cp == 0x85)
            want = UC_SPACE;
        if (cat == UTF8PROC_CATEGORY_ND)
            want |= UC_DIGIT;
        if (cat == UTF8PROC_CATEGORY_LU || cat == UTF8PROC_CATEGORY_LT)
            want |= UC_UPPER;
        else if (cat == UTF8PROC_CATEGORY_LL)
            want |= UC_LOWER;
        else if (cat >= UTF8PROC_CATEGORY_PC && cat <= UTF8PROC_CATEGORY_PO)
            want |= UC_PUNCT;
        else if (cat >= UTF8PROC_CATEGORY_SM && cat <= UTF8PROC_CATEGORY_SO)
            want |= UC_SYMBOL;
        if (cp == '\r' || cp == '\n')
            want |= UC_BREAK;
        n = unicode_encode(cp, s);
        got = unicode_class_at(s, s + n, &n);
        cr_assert_eq(got, want, "U+%04X: %u, expected %u", cp, got, want);
    }
}

static void check_nfc(const char *s, size_t len) {
    utf8proc_uint8_t *want = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)len, &want,
                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    struct buf got;
    bool changed, differs;

    cr_assert_geq(n, 0);
    buf_init(&got, 1 << 20);
    cr_assert_eq(unicode_nfc(s, len, &got, &changed), 0);
    differs = (size_t)n != len || memcmp(want, s, len) != 0;
    cr_assert_eq(changed, differs);
    cr_assert_eq(got.len, changed ? (size_t)n : 0);
    cr_assert(!changed || memcmp(got.data, want, got.len) == 0);
    buf_deinit(&got);
    free(want);
}

Test(text_unicode, nfc_is_utf8procs) {
    /* Blocks full of marks, compositions, jamo, exclusions, singletons; and anything. */
    static const uint32_t block[][2] = {
        {'a', 26},          {0xC0, 0x100},   {0x300, 0x70},   {0x1100, 0x100},
        {0xAC00, 2000},     {0x900, 0x80},   {0x1E00, 0x200}, {0x2100, 0x100},
        {0xFB00, 0x60},     {0x5B0, 0x20},   {0x1D150, 0x80}, {0, 0xD800},
        {0x10000, 0x20000}, {0xF900, 0x200}, {0x9BE, 2},      {0xCC0, 0x20}};
    struct rng r = {4};

    for (int round = 0; round < 100000; round++) {
        char s[256];
        size_t len = 0;
        uint32_t a = rng_below(&r, ARRAY_SIZE(block)), b = rng_below(&r, ARRAY_SIZE(block));

        for (uint32_t i = 1 + rng_below(&r, 40); i > 0; i--) {
            const uint32_t *k = block[rng_below(&r, 4) == 0 ? b : a];

            len += unicode_encode(k[0] + rng_below(&r, k[1]), s + len);
        }
        check_nfc(s, len);
    }
    for (uint32_t cp = 1; cp < 0x110000; cp++) {
        char s[16] = "x";

        if (cp >= 0xD800 && cp <= 0xDFFF)
            continue;
        check_nfc(s, 1 + unicode_encode(cp, s + 1));
    }
}

Test(text_unicode, nfc_keeps_bytes_that_are_not_utf8) {
    static const char s[] = "\xFF"
                            "e\xCC\x81\xFF\xCC\x81\xE2\x82";
    static const char want[] = "\xFF\xC3\xA9\xFF\xCC\x81\xE2\x82";
    struct buf got;
    bool changed;

    buf_init(&got, 100);
    cr_assert_eq(unicode_nfc(s, sizeof(s) - 1, &got, &changed), 0);
    cr_assert(changed);
    cr_assert_eq(got.len, sizeof(want) - 1);
    cr_assert_eq(memcmp(got.data, want, got.len), 0);
    buf_deinit(&got);
}

/* Bytes behind the text would complete its last character. */
Test(text_unicode, nfc_ends_with_the_text) {
    struct buf got;
    bool changed;

    buf_init(&got, 100);
    cr_assert_eq(unicode_nfc("e\xCC\x81\xCC\x81", 4, &got, &changed), 0);
    cr_assert(changed);
    cr_assert_eq(got.len, 3);
    cr_assert_eq(memcmp(got.data, "\xC3\xA9\xCC", 3), 0);
    buf_deinit(&got);
}

Test(text_unicode, a_megabyte_of_marks_is_sorted_at_once, .timeout = 60) {
    /* Classes 230 and 220 in turn: sorting by exchanges would take 10^11 steps. */
    size_t n = 1 << 18, len = 4 * n;
    CLEANUP(freep) char *s = malloc(len);
    struct buf got;
    bool changed;

    for (size_t i = 0; i < n; i++)
        memcpy(s + 4 * i, "\xCC\x81\xCC\xA3", 4);
    buf_init(&got, 1 << 21);
    cr_assert_eq(unicode_nfc(s, len, &got, &changed), 0);
    cr_assert(changed);
    cr_assert_eq(got.len, len);
    cr_assert_eq(memcmp(got.data, "\xCC\xA3\xCC\xA3\xCC\xA3", 6), 0);
    cr_assert_eq(memcmp(got.data + len - 4, "\xCC\x81\xCC\x81", 4), 0);
    buf_deinit(&got);
}
