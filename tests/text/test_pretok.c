/*
 * The scanners against PCRE2 running the expressions that they stand for.
 *
 * PCRE2 may know another version of Unicode, so only code points are used for which both agree;
 * where they do not, one of them must be unassigned. PCRE2's \s has U+180E, which Unicode took away.
 */

#define PCRE2_CODE_UNIT_WIDTH 8

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include "base/rng.h"
#include "text/tokenizer_private.h"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define MODERN(letter, digits)                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[" letter "]+|\\p{N}" digits               \
    "| ?[^\\s" letter "\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

struct rule {
    char name[16];
    char first[16]; /* cuts before the second does, when not empty */
    char second[200];
};

static struct rule rules[] = {
    {"gpt-2", "", GPT2},
    {"smollm", "\\p{N}", GPT2},
    {"llama-bpe", "", MODERN("\\p{L}", "{1,3}")},
    {"qwen2", "", MODERN("\\p{L}", "")},
    {"qwen35", "", MODERN("\\p{L}\\p{M}", "")},
};

#define TEXT_CHARS 64

/* A text for both sides. What is no UTF-8 for us is U+FFFD for PCRE2: also no letter, number or space. */
struct text {
    char ours[TEXT_CHARS * 4], theirs[TEXT_CHARS * 4];
    size_t n_ours, n_theirs;
};

static pcre2_code *compile(const char *expr) {
    int error;
    PCRE2_SIZE at;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)expr, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                  &error, &at, NULL);

    cr_assert_not_null(c, "%s at %zu", expr, at);
    return c;
}

/* Bit i of @cut: a word ends after byte i. The gaps between matches are words too. */
static void cut_by(pcre2_code *c, const char *s, size_t begin, size_t end, bool *cut) {
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(c, NULL);
    size_t at = begin;

    while (at < end && pcre2_match(c, (PCRE2_SPTR)s + begin, end - begin, at - begin,
                                   PCRE2_NO_UTF_CHECK, m, NULL) > 0) {
        PCRE2_SIZE *o = pcre2_get_ovector_pointer(m);

        cr_assert_gt(o[1], o[0]);
        if (o[0])
            cut[begin + o[0] - 1] = true;
        at = begin + o[1];
        cut[at - 1] = true;
    }
    cut[end - 1] = true;
    pcre2_match_data_free(m);
}

struct oracle {
    pcre2_code *first, *second;
};

/* Ends of words as numbers of characters. */
static size_t their_cuts(const struct oracle *o, const struct text *t, size_t *out) {
    bool coarse[TEXT_CHARS * 4] = {0}, cut[TEXT_CHARS * 4] = {0};
    size_t n = 0, chars = 0, begin = 0;

    if (o->first)
        cut_by(o->first, t->theirs, 0, t->n_theirs, coarse);
    coarse[t->n_theirs - 1] = true;
    for (size_t i = 0; i < t->n_theirs; i++) {
        if (coarse[i]) {
            cut_by(o->second, t->theirs, begin, i + 1, cut);
            begin = i + 1;
        }
    }
    for (size_t i = 0; i < t->n_theirs; i++) {
        chars += (t->theirs[i] & 0xC0) != 0x80;
        if (cut[i])
            out[n++] = chars;
    }
    return n;
}

static size_t our_cuts(const struct pretok *p, const struct text *t, size_t *out) {
    size_t n = 0, chars = 0;

    for (size_t i = 0; i < t->n_ours;) {
        size_t len = p->next(p, t->ours + i, t->n_ours - i), end = i + len;

        cr_assert(len > 0 && len <= t->n_ours - i);
        while (i < end) {
            uint32_t cp;

            i += unicode_decode(t->ours + i, t->ours + t->n_ours, &cp);
            chars++;
        }
        cr_assert_eq(i, end, "a word ends inside a character");
        out[n++] = chars;
    }
    return n;
}

static void add(struct text *t, uint32_t cp) {
    unsigned n;

    if (cp == UNICODE_INVALID) {
        t->ours[t->n_ours++] = (char)0xFF;
        cp = 0xFFFD;
        n = unicode_encode(cp, t->theirs + t->n_theirs);
    } else {
        n = unicode_encode(cp, t->theirs + t->n_theirs);
        memcpy(t->ours + t->n_ours, t->theirs + t->n_theirs, n);
        t->n_ours += n;
    }
    t->n_theirs += n;
}

static void compare(const struct pretok *p, const struct oracle *o, const struct text *t) {
    size_t want[TEXT_CHARS * 4], got[TEXT_CHARS * 4];
    size_t n_want = their_cuts(o, t, want), n_got = our_cuts(p, t, got);
    bool equal = n_want == n_got && memcmp(want, got, n_got * sizeof(*got)) == 0;
    struct buf b;

    if (equal)
        return;
    buf_init(&b, 4096);
    for (size_t i = 0; i < t->n_theirs; i++)
        buf_printf(&b, "\\x%02X", (uint8_t)t->theirs[i]);
    buf_add_str(&b, " expected");
    for (size_t i = 0; i < n_want; i++)
        buf_printf(&b, " %zu", want[i]);
    buf_add_str(&b, " got");
    for (size_t i = 0; i < n_got; i++)
        buf_printf(&b, " %zu", got[i]);
    cr_assert_fail("%s: %s", p->name, b.data);
}

/* Code points of which both sides have the same class, *n of them. */
static uint32_t *shared_code_points(size_t *n) {
    static const char *const expr[] = {"\\p{L}", "\\p{M}", "\\p{N}", "\\s", "\\p{Cn}"};
    static const unsigned class[] = {UC_LETTER, UC_MARK, UC_NUMBER, UC_SPACE, 0};
    pcre2_code *c[ARRAY_SIZE(expr)];
    pcre2_match_data *m;
    uint32_t *out = malloc(0x110000 * sizeof(*out));

    for (size_t i = 0; i < ARRAY_SIZE(expr); i++)
        c[i] = compile(expr[i]);
    m = pcre2_match_data_create_from_pattern(c[0], NULL);
    *n = 0;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        unsigned len, theirs = 0, ours;
        bool unassigned = false;

        if ((cp >= 0xD800 && cp <= 0xDFFF) || (cp >= 0x40000 && cp < 0xE0000) || cp >= 0xE2000)
            continue;
        len = unicode_encode(cp, s);
        for (size_t i = 0; i < ARRAY_SIZE(expr); i++) {
            if (pcre2_match(c[i], (PCRE2_SPTR)s, len, 0, PCRE2_NO_UTF_CHECK, m, NULL) > 0) {
                theirs |= class[i];
                unassigned |= class[i] == 0;
            }
        }
        ours = unicode_class_at(s, s + len, &len) & ~(unsigned)UC_BREAK;
        if (ours == (theirs ? theirs : UC_OTHER))
            out[(*n)++] = cp;
        else
            cr_assert(unassigned || cp == 0x180E || ours == UC_OTHER, "U+%04X: %u, theirs %u", cp,
                      ours, theirs);
    }
    cr_assert_gt(*n, 250000);
    pcre2_match_data_free(m);
    for (size_t i = 0; i < ARRAY_SIZE(expr); i++)
        pcre2_code_free(c[i]);
    return out;
}

static uint32_t pick(struct rng *r, const uint32_t *cps, size_t n_cps) {
    static const uint32_t special[] = {
        '\'',     '\'',  's',    'S',  't',   'r',     'e',    'E',    'v',    'l',
        'L',      'm',   'd',    'D',  0x17F, 0x212A,  ' ',    ' ',    ' ',    ' ',
        '\t',     '\n',  '\n',   '\r', '\r',  0xB,     0x85,   0xA0,   0x2028, 0x3000,
        0x1C,     '1',   '2',    '3',  0x661, 0xB2,    0x2160, 'a',    0xE9,   0x4E2D,
        0x301,    0x93F, 0x20E0, '.',  '!',   0x1F600, 0x200D, 0xFE0F, 0x2019, UNICODE_INVALID,
        0x10FFFF,
    };

    if (rng_below(r, 8))
        return special[rng_below(r, ARRAY_SIZE(special))];
    return cps[rng_below(r, (uint32_t)n_cps)];
}

ParameterizedTestParameters(text_pretok, cuts_as_pcre2_does) {
    return cr_make_param_array(struct rule, rules, ARRAY_SIZE(rules));
}

ParameterizedTest(struct rule *rule, text_pretok, cuts_as_pcre2_does) {
    struct gguf_str name = {rule->name, strlen(rule->name)};
    const struct pretok *p = pretok_find(name);
    struct oracle o = {rule->first[0] ? compile(rule->first) : NULL, compile(rule->second)};
    struct rng r = {5};
    size_t n_cps;
    CLEANUP(freep) uint32_t *cps = shared_code_points(&n_cps);

    cr_assert_not_null(p);
    for (int round = 0; round < 60000; round++) {
        struct text t = {0};
        uint32_t n = 1 + rng_below(&r, round % 4 ? 8 : TEXT_CHARS - 1);
        uint32_t few[3] = {pick(&r, cps, n_cps), pick(&r, cps, n_cps), pick(&r, cps, n_cps)};

        for (uint32_t i = 0; i < n; i++)
            add(&t, round % 3 ? pick(&r, cps, n_cps) : few[rng_below(&r, 3)]);
        compare(p, &o, &t);
    }
    pcre2_code_free(o.first);
    pcre2_code_free(o.second);
}

/* All texts of up to five characters of one of each kind. */
ParameterizedTestParameters(text_pretok, every_short_text) {
    return cr_make_param_array(struct rule, rules, ARRAY_SIZE(rules));
}

ParameterizedTest(struct rule *rule, text_pretok, every_short_text) {
    static const uint32_t kind[] = {'\'', 's', 'x', '7', ' ', '\t', '\n', '.', 0x301};
    struct gguf_str name = {rule->name, strlen(rule->name)};
    const struct pretok *p = pretok_find(name);
    struct oracle o = {rule->first[0] ? compile(rule->first) : NULL, compile(rule->second)};

    for (uint32_t len = 1, n = ARRAY_SIZE(kind); len <= 5; len++, n *= ARRAY_SIZE(kind)) {
        for (uint32_t v = 0; v < n; v++) {
            struct text t = {0};

            for (uint32_t i = 0, k = v; i < len; i++, k /= ARRAY_SIZE(kind))
                add(&t, kind[k % ARRAY_SIZE(kind)]);
            compare(p, &o, &t);
        }
    }
    pcre2_code_free(o.first);
    pcre2_code_free(o.second);
}

Test(text_pretok, unknown_names_are_unknown) {
    char known[256];

    cr_assert_null(pretok_find((struct gguf_str){"gpt-22", 6}));
    cr_assert_null(pretok_find((struct gguf_str){"gpt", 3}));
    cr_assert_null(pretok_find((struct gguf_str){"", 0}));
    pretok_list(known, sizeof(known));
    for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
        cr_assert_not_null(strstr(known, rules[i].name), "%s", known);
}
