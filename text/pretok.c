/*
 * Pre-tokenizers: the regular expressions by which models cut text into words, written as scanners.
 * Every alternative is tried in the expression's order, and what an alternative takes follows from
 * greedy matching, as explained where it is not plain. A byte that is not UTF-8 is a character of
 * its own that is neither letter, number nor space. tests/text/test_pretok.c holds them to PCRE2.
 */

#include "text/tokenizer_private.h"

#include <assert.h>
#include <string.h>

/* Length of the run of characters of class @any (or not of it) at the start, at most @max of
 * them. */
static size_t run(const char *s, size_t len, unsigned any, size_t max) {
    size_t at = 0;
    unsigned n;

    while (at < len && max-- && unicode_class_at(s + at, s + len, &n) & any)
        at += n;
    return at;
}

/* 's 't 're 've 'm 'll 'd at the apostrophe @s: its length or 0. Ignoring case, the long s (U+017F)
 * is an s too, as in every regex engine that knows Unicode. */
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

/*
 * White space at the start, by  \s*[\r\n]+ (only with @breaks) | \s+(?!\S) | \s+ .
 * The first takes the run up to its last line break. The second takes the run if the text ends
 * there, else gives back one character so that a space follows; the third is left with a single
 * one.
 */
static size_t white_space(const char *s, size_t len, bool breaks) {
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
    return at == len || last == 0 ? at : last;
}

/*
 * 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 */
static size_t next_gpt2(const struct pretok *p, const char *s, size_t len) {
    unsigned n, c = unicode_class_at(s, s + len, &n);
    size_t at = 0;

    if (*s == '\'') {
        size_t k = contraction(s, len, false);

        if (k)
            return k;
    }
    if (*s == ' ' && len > 1) {
        c = unicode_class_at(s + 1, s + len, &n);
        at = 1;
    }
    if (c & UC_SPACE)
        return white_space(s, len, false);
    if (c & (UC_LETTER | UC_NUMBER))
        return at + run(s + at, len - at, c, SIZE_MAX);
    return at + run(s + at, len - at, UC_OTHER | UC_MARK, SIZE_MAX);
}

/* First \p{N} alone; then the text between the numbers by gpt-2's expression, as if it ended there:
 * white space before a number is one word. */
static size_t next_digits(const struct pretok *p, const char *s, size_t len) {
    size_t n = run(s, len, UC_NUMBER, 1);
    unsigned m;

    if (n)
        return n;
    n = run(s, len, UC_SPACE, SIZE_MAX);
    if (n && n < len && unicode_class_at(s + n, s + len, &m) & UC_NUMBER)
        return n;
    return next_gpt2(p, s, len);
}

/*
 * (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?L+|\p{N}{1,digits}| ?[^\s L\p{N}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+        with L = p->letter
 */
static size_t next_modern(const struct pretok *p, const char *s, size_t len) {
    const char *end = s + len;
    unsigned n, m, c = unicode_class_at(s, end, &n);
    size_t at;

    if (*s == '\'') {
        size_t k = contraction(s, len, true);

        if (k)
            return k;
    }
    if (c & p->letter)
        return run(s, len, p->letter, SIZE_MAX);
    if (!(c & (UC_BREAK | UC_NUMBER)) && n < len && unicode_class_at(s + n, end, &m) & p->letter)
        return n + run(s + n, len - n, p->letter, SIZE_MAX);
    if (c & UC_NUMBER)
        return run(s, len, UC_NUMBER, p->digits);
    at = *s == ' ';
    at += run(s + at, len - at, (UC_OTHER | UC_MARK) & ~p->letter, SIZE_MAX);
    if (at > (*s == ' '))
        return at + run(s + at, len - at, UC_BREAK, SIZE_MAX);
    return white_space(s, len, true);
}

/* A row per name; names with the same rules have rows of their own. */
static const struct pretok table[] = {
    {.name = "gpt-2", .next = next_gpt2},
    {.name = "smollm", .next = next_digits},
    {.name = "llama-bpe",
     .next = next_modern,
     .letter = UC_LETTER,
     .digits = 3,
     .whole_words = true,
     .add_bos = true},
    {.name = "llama3",
     .next = next_modern,
     .letter = UC_LETTER,
     .digits = 3,
     .whole_words = true,
     .add_bos = true},
    {.name = "llama-v3",
     .next = next_modern,
     .letter = UC_LETTER,
     .digits = 3,
     .whole_words = true,
     .add_bos = true},
    {.name = "qwen2", .next = next_modern, .letter = UC_LETTER, .digits = 1, .nfc = true},
    {.name = "qwen35",
     .next = next_modern,
     .letter = UC_LETTER | UC_MARK,
     .digits = 1,
     .nfc = true},
};

const struct pretok *pretok_find(struct gguf_str name) {
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        if (strlen(table[i].name) == name.len && memcmp(table[i].name, name.data, name.len) == 0)
            return &table[i];
    }
    return NULL;
}

void pretok_list(char *out, size_t size) {
    struct buf b;

    assert(size > 0);
    buf_init(&b, size - 1);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        buf_printf(&b, "%s%s", i ? ", " : "", table[i].name);
    memcpy(out, b.data ? b.data : "", b.len + 1);
    buf_deinit(&b);
}
