/*
 * pretok_rules - the pre-tokenizers that most models use, as scanners. The comment above each
 * function has the regular expression that it scans: it tries the alternatives in their order and
 * takes the same text as greedy matching. A byte that is not UTF-8 is a character of its own, a
 * symbol like U+FFFD.
 */

#include "base/util.h"
#include "text/pretok.h"

#define NOT_NUMBER ((unsigned)UC_OTHER | UC_LETTER | UC_MARK | UC_SPACE)

/* Returns the length of 's 't 're 've 'm 'll or 'd at the apostrophe @s, or 0. Ignoring case, the
 * long s (U+017F) is an s, too, as in every regex engine that knows Unicode. */
static size_t contraction(const char *s, size_t len, bool ignore_case) {
    unsigned fold = ignore_case ? 0x20 : 0;
    unsigned a = len > 1 ? (uint8_t)s[1] | fold : 0, b = len > 2 ? (uint8_t)s[2] | fold : 0;

    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    if (ignore_case && len > 2 && s[1] == '\xC5' && s[2] == '\xBF')
        return 3;
    return 0;
}

/* Scans \s*[\r\n]+|\s+(?!\S)|\s+, with @breaks; without it the first alternative is left out. The
 * first takes the run of white space up to its last line break. The second takes the run if the
 * text ends there, else all but its last character, so that white space follows. The third takes a
 * single character that is left. */
size_t pretok_white_space(const char *s, size_t len, bool breaks) {
    size_t at = 0, last = 0, broken = 0;

    while (at < len) {
        unsigned n, c = unicode_class_at(s + at, s + len, &n);

        if (!(c & UC_SPACE))
            break;
        last = at;
        at += n;
        if (c & UC_BREAK)
            broken = at;
    }
    if (breaks && broken)
        return broken;
    if (at == len || last == 0)
        return at;
    return last;
}

/*
 * 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 */
size_t pretok_gpt2(const struct pretok *p, const char *s, size_t len) {
    unsigned n, c = unicode_class_at(s, s + len, &n);
    size_t at = *s == '\'' ? contraction(s, len, false) : 0;

    if (at)
        return at;
    if (*s == ' ' && len > 1) {
        c = unicode_class_at(s + 1, s + len, &n);
        at = 1;
    }
    if (c & UC_SPACE)
        return pretok_white_space(s, len, false);
    if (c & UC_LETTER)
        return at + pretok_run(s + at, len - at, UC_LETTER, SIZE_MAX);
    if (c & UC_NUMBER)
        return at + pretok_run(s + at, len - at, UC_NUMBER, SIZE_MAX);
    return at + pretok_run(s + at, len - at, UC_OTHER | UC_MARK, SIZE_MAX);
}

/* \p{N}{1,digits} */
size_t pretok_numbers(const struct pretok *p, const char *s, size_t len) {
    size_t n = pretok_run(s, len, UC_NUMBER, p->digits);

    if (n)
        return n;
    return pretok_run(s, len, NOT_NUMBER, SIZE_MAX);
}

/* \p{N}+ */
size_t pretok_number_runs(const struct pretok *p, const char *s, size_t len) {
    size_t n = pretok_run(s, len, UC_NUMBER, SIZE_MAX);

    if (n)
        return n;
    return pretok_run(s, len, NOT_NUMBER, SIZE_MAX);
}

/* Returns the length of the one or two characters of class @any by which a piece of nothing else is
 * longer than groups of three; or the length of the piece. */
static size_t uneven_head(const char *s, size_t len, unsigned any) {
    size_t at = 0, count = 0;

    while (at < len) {
        size_t n = pretok_run(s + at, len - at, any, 1);

        if (n == 0)
            return len;
        at += n;
        count++;
    }
    if (count > 3 && count % 3)
        return pretok_run(s, len, any, count % 3);
    return len;
}

/* ^\p{N}{1,2}(?=(?:\p{N}{3})+$)
 * Follows number_runs: a run is counted once for its head and once for the rest. */
size_t pretok_number_heads(const struct pretok *p, const char *s, size_t len) {
    return uneven_head(s, len, UC_NUMBER);
}

/* ^\p{Nd}{1,2}(?=(?:\p{Nd}{3})+$)
 * Follows lone_digits. */
size_t pretok_digit_heads(const struct pretok *p, const char *s, size_t len) {
    return uneven_head(s, len, UC_DIGIT);
}

/* \p{Nd}++(?![\p{L}\p{M}_])
 * Finds the digits that \d{1,3}(?=(?:\d{3})*\b) cuts, which are those that no word continues;
 * digit_heads and digit_threes then cut them from the right. */
size_t pretok_lone_digits(const struct pretok *p, const char *s, size_t len) {
    const char *end = s + len;
    size_t at = 0;
    unsigned n;

    while (at < len) {
        size_t begin = at;

        at += pretok_run(s + at, len - at, UC_DIGIT, SIZE_MAX);
        if (at == begin) {
            unicode_class_at(s + at, end, &n);
            at += n;
            continue;
        }
        bool goes_on =
            at < len && (s[at] == '_' || unicode_class_at(s + at, end, &n) & (UC_LETTER | UC_MARK));
        if (!goes_on) {
            if (begin)
                return begin;
            return at;
        }
    }
    return len;
}

/* \p{Nd}{1,3} in a piece that ends with a digit
 * Follows lone_digits, whose other pieces do not end with a digit. */
size_t pretok_digit_threes(const struct pretok *p, const char *s, size_t len) {
    size_t last = len - 1;
    unsigned n;

    while (last > 0 && len - last < 4 && ((uint8_t)s[last] & 0xC0) == 0x80)
        last--;
    if (!(unicode_class_at(s + last, s + len, &n) & UC_DIGIT))
        return len;
    return pretok_run(s, len, UC_DIGIT, 3);
}

/* [^\n]+|[\n]+ */
size_t pretok_lines(const struct pretok *p, const char *s, size_t len) {
    size_t at = 1;

    while (at < len && (s[at] == '\n') == (*s == '\n'))
        at++;
    return at;
}

/*
 * (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?L+|\p{N}{1,digits}| ?[^\s L\p{N}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+        with L = p->letter; with p->no_tail the [\r\n]* is left out
 */
size_t pretok_modern(const struct pretok *p, const char *s, size_t len) {
    const char *end = s + len;
    unsigned n, m, c = unicode_class_at(s, end, &n);
    size_t at = *s == '\'' ? contraction(s, len, true) : 0;

    if (at)
        return at;
    if (c & p->letter)
        return pretok_run(s, len, p->letter, SIZE_MAX);
    if (!(c & (UC_BREAK | UC_NUMBER)) && n < len && unicode_class_at(s + n, end, &m) & p->letter)
        return n + pretok_run(s + n, len - n, p->letter, SIZE_MAX);
    if (c & UC_NUMBER)
        return pretok_run(s, len, UC_NUMBER, p->digits);
    at = *s == ' ';
    at += pretok_run(s + at, len - at, (UC_OTHER | UC_MARK) & ~p->letter, SIZE_MAX);
    if (at > (*s == ' '))
        return at + (p->no_tail ? 0 : pretok_run(s + at, len - at, UC_BREAK, SIZE_MAX));
    return pretok_white_space(s, len, true);
}

/* Scans \p{L}\p{M}* */
static size_t marked_letter(const char *s, size_t len) {
    size_t at = pretok_run(s, len, UC_LETTER, 1);

    if (!at)
        return 0;
    return at + pretok_run(s + at, len - at, UC_MARK, SIZE_MAX);
}

/* Scans (?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+ : words with one space between them. */
static size_t phrase(const char *s, size_t len) {
    size_t at = 0, n = marked_letter(s, len);

    while (n) {
        at += n;
        size_t space = at < len && s[at] == ' ';

        n = marked_letter(s + at + space, len - at - space);
        if (n)
            at += space;
    }
    return at;
}

/*
 * (?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|
 * [^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|
 * \s+(?!\S)|\s+
 */
size_t pretok_phrases(const struct pretok *p, const char *s, size_t len) {
    unsigned n, c = unicode_class_at(s, s + len, &n);
    size_t at = *s == '\'' ? contraction(s, len, true) : 0;

    if (at && (uint8_t)s[1] < 0x80) /* the long s is none */
        return at;
    if (c & UC_NUMBER)
        return n;
    at = phrase(s, len);
    if (at)
        return at;
    if (!(c & UC_BREAK))
        at = phrase(s + n, len - n);
    if (at)
        return n + at;
    size_t front = *s == ' ';
    at = front + pretok_run(s + front, len - front, UC_OTHER | UC_MARK, SIZE_MAX);
    if (at > front)
        return at + pretok_run(s + at, len - at, UC_BREAK, 1);
    return pretok_white_space(s, len, true);
}

/* Script=Han of Unicode 15. */
static const uint32_t han_range[][2] = {
    {0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},
    {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},
    {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},   {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3},
    {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739}, {0x2B740, 0x2B81D},
    {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
    {0x30000, 0x3134A}, {0x31350, 0x323AF},
};

const uint32_t (*pretok_han(size_t *n))[2] {
    *n = ARRAY_SIZE(han_range);
    return han_range;
}

bool pretok_is_han(uint32_t cp) {
    for (size_t i = 0; i < ARRAY_SIZE(han_range) && cp >= han_range[i][0]; i++) {
        if (cp <= han_range[i][1])
            return true;
    }
    return false;
}

static size_t han_run(const char *s, size_t len) {
    size_t at = 0;

    while (at < len) {
        uint32_t cp;
        unsigned n = unicode_decode(s + at, s + len, &cp);

        if (cp == UNICODE_INVALID || !pretok_is_han(cp))
            break;
        at += n;
    }
    return at;
}

/* Returns the class of the character at @s if it can be in a word, or 0. */
static unsigned word_class(const struct pretok *p, const char *s, const char *end, unsigned *n) {
    uint32_t cp;
    unsigned c = unicode_class_at(s, end, n) & (UC_LETTER | UC_MARK | UC_UPPER | UC_LOWER);

    if (!c || !p->han || (uint8_t)*s < 0x80)
        return c;
    unicode_decode(s, end, &cp);
    if (pretok_is_han(cp))
        return 0;
    return c;
}

/*
 * Scans U*L+ at @s, or else U+. U is every letter and mark except lower case, L every one except
 * upper case; a character without case is both. *@lower: the first alternative matched. U* takes
 * the run of U. If a lower case letter follows, L+ begins there. Otherwise U* gives back characters
 * until one is L, which is the last one that is both, and L+ ends behind it. If there is none, the
 * run of U is the match of U+.
 */
static size_t cased_word(const struct pretok *p, const char *s, size_t len, bool *lower) {
    const char *end = s + len;
    size_t at = 0, both = 0;
    unsigned n, c = 0;

    while (at < len && (c = word_class(p, s + at, end, &n)) && !(c & UC_LOWER)) {
        at += n;
        if (!(c & UC_UPPER))
            both = at;
    }
    *lower = true;
    if (at < len && c & UC_LOWER) {
        while (at < len && (c = word_class(p, s + at, end, &n)) && !(c & UC_UPPER))
            at += n;
        return at;
    }
    *lower = both > 0;
    if (both)
        return both;
    return at;
}

/* Scans [^\r\n\p{L}\p{N}]?U*L+ | [^\r\n\p{L}\p{N}]?U+L* at @s; 0: neither matches. A mark may be
 * the character before the word or a part of the word: the first alternative is tried with both
 * before the second. */
static size_t word_with_front(const struct pretok *p, const char *s, size_t len) {
    unsigned n, c = unicode_class_at(s, s + len, &n);
    bool lower;
    size_t r;

    if (c & (UC_BREAK | UC_NUMBER))
        return 0;
    if (c & UC_LETTER)
        return cased_word(p, s, len, &lower);
    r = n < len ? cased_word(p, s + n, len - n, &lower) : 0;
    if (r && lower)
        return n + r;
    if (c & UC_MARK)
        return cased_word(p, s, len, &lower);
    if (!r)
        return 0;
    return n + r;
}

/*
 * [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+C|
 * [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*C|\p{N}{1,digits}|
 * ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ with C = (?i:'s|'t|'re|'ve|'m|'ll|'d)? or,
 * without p->suffix, nothing. With p->han \p{Han}+ is the first alternative, the classes of letters
 * exclude it, and the tail of punctuation is [\r\n]*.
 */
size_t pretok_cased(const struct pretok *p, const char *s, size_t len) {
    size_t at = p->han ? han_run(s, len) : 0, front;

    if (at)
        return at;
    at = word_with_front(p, s, len);
    if (at)
        return at +
               (p->suffix && at < len && s[at] == '\'' ? contraction(s + at, len - at, true) : 0);
    at = pretok_run(s, len, UC_NUMBER, p->digits);
    if (at)
        return at;
    front = *s == ' ';
    at = front + pretok_run(s + front, len - front, UC_OTHER | UC_MARK, SIZE_MAX);
    if (at == front)
        return pretok_white_space(s, len, true);
    while (at < len && (s[at] == '\r' || s[at] == '\n' || (s[at] == '/' && !p->han)))
        at++;
    return at;
}
