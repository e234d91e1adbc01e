/*
 * nfc - normalises text to NFC. A code point that is a starter and never combines with the one
 * before it is a boundary: text before and after it is normalised independently (Unicode Standard
 * Annex 15, section 9). So only the short stretches around marks, decomposable letters and
 * conjoining jamo are examined, from the boundary before them to the boundary after them; other
 * text is copied.
 *
 * The decomposition of utf8proc uses bubble sort for marks, which takes hours for a megabyte of
 * them; this file sorts marks by counting. The composition of utf8proc is linear and is used.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <utf8proc.h>

#include "base/try.h"
#include "text/unicode.h"

/* most code points that one is decomposed to: 4 in Unicode, 18 with UTF8PROC_COMPAT */
#define DECOMPOSED_MAX 32

/* Code points between two boundaries; n <= cap. */
struct stretch {
    /* sorted: scratch for sorting, of the same size */
    int32_t *cp, *sorted;
    size_t n, cap;
};

static void stretch_deinit(struct stretch *s) {
    free(s->cp);
    free(s->sorted);
}

/* Returns whether @cp may change, or change the code point before it. May return true for a code
 * point that does not change. */
static bool unstable(uint32_t cp) {
    const utf8proc_property_t *p;

    if (cp < 0x300 || cp == UNICODE_INVALID || (cp >= 0xAC00 && cp <= 0xD7A3))
        return false;
    p = utf8proc_get_property((utf8proc_int32_t)cp);
    if (p->combining_class || (cp >= 0x1100 && cp <= 0x11FF) ||
        (p->decomp_seqindex != UINT16_MAX && p->decomp_type == 0))
        return true;
    return p->category == UTF8PROC_CATEGORY_MN || p->category == UTF8PROC_CATEGORY_MC ||
           p->category == UTF8PROC_CATEGORY_ME;
}

static int stretch_reserve(struct stretch *s, size_t extra) {
    size_t cap = MAX(s->cap * 2, s->n + extra);

    if (s->n + extra <= s->cap)
        return 0;
    if (!array_resize(&s->cp, cap, sizeof(*s->cp)) ||
        !array_resize(&s->sorted, cap, sizeof(*s->sorted)))
        return -ENOMEM;
    s->cap = cap;
    return 0;
}

static unsigned combining(int32_t cp) {
    return (uint8_t)utf8proc_get_property(cp)->combining_class;
}

static bool are_sorted(const int32_t *cp, size_t n) {
    for (size_t i = 1; i < n; i++) {
        if (combining(cp[i - 1]) > combining(cp[i]))
            return false;
    }
    return true;
}

/* Sorts @n marks by combining class, stably. */
static void sort_marks(int32_t *cp, int32_t *tmp, size_t n) {
    size_t at[257] = {0};

    if (are_sorted(cp, n)) /* as in nearly all text */
        return;
    for (size_t i = 0; i < n; i++)
        at[combining(cp[i]) + 1]++;
    for (size_t i = 1; i < 257; i++)
        at[i] += at[i - 1];
    for (size_t i = 0; i < n; i++)
        tmp[at[combining(cp[i])]++] = cp[i];
    memcpy(cp, tmp, n * sizeof(*cp));
}

static void order(struct stretch *s) {
    for (size_t i = 0; i < s->n;) {
        size_t begin = i;

        while (i < s->n && combining(s->cp[i]))
            i++;
        if (i - begin > 1)
            sort_marks(s->cp + begin, s->sorted + begin, i - begin);
        i += i == begin;
    }
}

/* Appends the normal form of @text, which is valid UTF-8. @how: options of utf8proc. */
static int add_normalised(struct stretch *s, const char *text, size_t len, unsigned how,
                          struct buf *out) {
    utf8proc_ssize_t n;
    int boundary;

    s->n = 0;
    for (size_t i = 0; i < len;) {
        uint32_t cp;

        i += unicode_decode(text + i, text + len, &cp);
        TRY(stretch_reserve(s, DECOMPOSED_MAX));
        n = utf8proc_decompose_char(
            (utf8proc_int32_t)cp, s->cp + s->n, DECOMPOSED_MAX,
            (utf8proc_option_t)((how & ~(unsigned)UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE),
            &boundary);
        if (n < 1 || n > DECOMPOSED_MAX) {
            s->cp[s->n] = (int32_t)cp; /* utf8proc does not know the code point */
            n = 1;
        }
        s->n += (size_t)n;
    }
    order(s);
    assert(s->n <= s->cap);
    n = (utf8proc_ssize_t)s->n;
    if (how & UTF8PROC_COMPOSE)
        n = utf8proc_normalize_utf32(s->cp, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert(n >= 0 && (size_t)n <= s->n); /* utf8proc normalises in place */
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        char c[4];

        TRY(buf_add(out, c, unicode_encode((uint32_t)s->cp[i], c)));
    }
    return 0;
}

/* Returns the position of the next unstable code point at or after @at, and sets *@start to the
 * boundary before it. Both are @len if there is none. */
static size_t find_unstable(const char *text, size_t at, size_t len, size_t *start) {
    size_t last = at;

    while (at < len) {
        uint32_t cp;
        uint64_t eight;
        unsigned n;

        if (len - at >= 8) {
            memcpy(&eight, text + at, 8);
            if (!(eight & 0x8080808080808080u)) {
                last = at + 7;
                at += 8;
                continue;
            }
        }
        n = unicode_decode(text + at, text + len, &cp);
        if (unstable(cp)) {
            *start = last;
            return at;
        }
        /* Skips a byte that is not UTF-8, which combines with no character. */
        last = cp == UNICODE_INVALID ? at + 1 : at;
        at += n;
    }
    *start = len;
    return len;
}

/* Returns the position of the first stable code point at or after @at. */
static size_t find_stable(const char *text, size_t at, size_t len) {
    while (at < len) {
        uint32_t cp;
        unsigned n = unicode_decode(text + at, text + len, &cp);

        if (!unstable(cp))
            break;
        at += n;
    }
    return at;
}

int unicode_nfc(const char *text, size_t len, struct buf *out, bool *changed) {
    CLEANUP(stretch_deinit) struct stretch s = {0};
    size_t done = 0, before = out->len;
    size_t start, at = find_unstable(text, 0, len, &start);

    *changed = false;
    if (at == len)
        return 0;
    while (done < len) {
        size_t end = find_stable(text, at, len);

        assert(done <= start && start <= at && at <= end);
        TRY(buf_add(out, text + done, start - done));
        TRY(add_normalised(&s, text + start, end - start, UTF8PROC_STABLE | UTF8PROC_COMPOSE, out));
        done = end;
        at = find_unstable(text, done, len, &start);
    }
    *changed = out->len - before != len || memcmp(out->data + before, text, len) != 0;
    if (!*changed) {
        out->len = before;
        out->data[before] = 0;
    }
    return 0;
}

/* Returns the bytes of the first stretch of @text, len > 0: a character and those behind it up to
 * the next one of ASCII, which never combines with a character before it, or up to a byte that is
 * not UTF-8. A stretch is normalised without the others. */
static size_t stretch_bytes(const char *text, size_t len) {
    uint32_t cp;
    size_t at = unicode_decode(text, text + len, &cp);

    while (at < len && cp != UNICODE_INVALID && (uint8_t)text[at] >= 0x80) {
        unsigned n = unicode_decode(text + at, text + len, &cp);

        if (cp == UNICODE_INVALID)
            break;
        at += n;
    }
    return at;
}

int unicode_normal(const char *text, size_t len, enum unicode_form form, struct buf *out) {
    static const unsigned how[] = {
        [UNICODE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [UNICODE_NFD] = UTF8PROC_STABLE,
        [UNICODE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_COMPOSE,
        [UNICODE_NFKD] = UTF8PROC_STABLE | UTF8PROC_COMPAT,
    };
    CLEANUP(stretch_deinit) struct stretch s = {0};
    bool changed;

    if (form == UNICODE_NFC) {
        TRY(unicode_nfc(text, len, out, &changed));
        if (changed)
            return 0;
        return buf_add(out, text, len);
    }
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t cp;

        n = stretch_bytes(text + i, len - i);
        unicode_decode(text + i, text + len, &cp);
        if (cp == UNICODE_INVALID || (n == 1 && cp < 0x80))
            TRY(buf_add(out, text + i, n));
        else
            TRY(add_normalised(&s, text + i, n, how[form], out));
    }
    return 0;
}
