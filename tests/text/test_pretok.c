/*
 * The scanners, and the cutters of the same expressions, against PCRE2 running these. Rules whose
 * name begins with a blank have no scanner.
 *
 * PCRE2 may know another version of Unicode, so only code points are used for which both agree;
 * where they do not, one of them must be unassigned. PCRE2's \s has U+180E, which Unicode took
 * away.
 */

#define PCRE2_CODE_UNIT_WIDTH 8

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <glob.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "tests/support/few.h"
#include "tests/support/test_data.h"
#include "tests/text/expect.h"
#include "text/tokenizer_private.h"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define MODERN(letter, digits)                                                                     \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[" letter "]+|\\p{N}" digits "| ?[^\\s" letter             \
                "\\p{N}]+[\\r\\n]*" SPACES
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* Before @begin each class of letters begins. */
#define CASED(begin, suffix, digits, tail)                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?(?:" begin UPPER ")*(?:" begin LOWER ")+" suffix                        \
    "|[^\\r\\n\\p{L}\\p{N}]?(?:" begin UPPER ")+(?:" begin LOWER ")*" suffix "|\\p{N}" digits      \
    "| ?[^\\s\\p{L}\\p{N}]+[" tail "]*" SPACES
#define DEEPSEEK                                                                                   \
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"                                           \
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" SPACES
#define LLM_CJK "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
#define LLM_PUNCT                                                                                  \
    "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+"
#define LLM_LETTERS                                                                                \
    "\\x{41}-\\x{5A}\\x{61}-\\x{7A}\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}"          \
    "\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}"         \
    "\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}"                  \
    "\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}"                         \
    "\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}"                 \
    "\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}"                 \
    "\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}"                 \
    "\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}"         \
    "\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}"        \
    "\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}"        \
    "\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}"          \
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}"        \
    "\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}"         \
    "\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"                  \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}"                 \
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}"               \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"         \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

#define AFMOE_SCRIPTS                                                                              \
    "\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-\\x{309F}\\x{30A0}-\\x{"   \
    "30FF}"                                                                                        \
    "\\x{FF65}-\\x{FF9F}\\x{2F00}-\\x{2FDF}\\x{E40}-\\x{E7F}\\x{E80}-\\x{EFF}\\x{1780}-\\x{17FF}"  \
    "\\x{1000}-\\x{109F}\\x{AA60}-\\x{AA7F}\\x{A9E0}-\\x{A9FF}\\x{AC00}-\\x{D7AF}"                 \
    "\\x{1100}-\\x{11FF}"

/* Each expression cuts the pieces of the one before. */
struct rule {
    const char *name;
    const char *expr[PRETOK_STAGES];
};

static const struct rule rules[] = {
    {"gpt-2", {GPT2}},
    {"modern-bert", {GPT2}},
    {"smollm", {"\\p{N}", GPT2}},
    {"llama-bpe", {MODERN("\\p{L}", "{1,3}")}},
    {"glm4", {MODERN("\\p{L}", "{1,3}")}},
    {"minicpm5", {"\\p{N}{1,3}", MODERN("\\p{L}", "+")}},
    {"qwen2", {MODERN("\\p{L}", "")}},
    {"qwen35", {MODERN("\\p{L}\\p{M}", "")}},
    {"bailingmoe",
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"
      "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"laguna", {"[^\\n]+|[\\n]+", MODERN("\\p{L}", "")}},
    {"seed-coder",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" SPACES}},
    {"gpt-4o", {CASED("[", CONTRACTION "?", "{1,3}", "\\r\\n/")}},
    {"tekken", {CASED("[", "", "", "\\r\\n/")}},
    {"kimi-k2", {"\\p{sc:Han}+|" CASED("(?!\\p{sc:Han})[", CONTRACTION "?", "{1,3}", "\\r\\n")}},
    {"deepseek-v3",
     {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+", DEEPSEEK}},
    {"afmoe",
     {"\\p{N}+", "^\\p{N}{1,2}(?=(?:\\p{N}{3})+$)", "\\p{N}{1,3}", "[" AFMOE_SCRIPTS "]+",
      DEEPSEEK}},
    {"tiny_aya",
     {"\\p{Nd}{1,3}(?=(?:\\p{Nd}{3})*(?![\\p{L}\\p{M}\\p{Nd}_]))",
      CASED("[", CONTRACTION "?", "{1,3}", "\\r\\n/")}},
    {"exaone-moe",
     {"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
      "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}"
      "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"deepseek-llm",
     {"[\\r\\n]", "\\s?[" LLM_LETTERS "]+", LLM_PUNCT, "\\s+$", LLM_CJK, "\\p{N}+"}},
    {"deepseek-coder", {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", LLM_CJK, "\\p{N}"}},
    {" bloom", {" ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964})]+"}},
    {" falcon", {"[\\p{P}$+<=>^`|~]+", GPT2, "[0-9][0-9][0-9]"}},
    {" cl100k",
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}"
      "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++\\z|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"}},
    {" lazy", {"[a-z]+?[A-Z]|\\d{2,}?\\.|(?:ab?){2,4}|\\s{3}"}},
    {" around", {"(?<=\\d)\\.(?=\\d)|(?<!\\p{L})'|(?<=')[\\p{L}\\p{Nd}]+(?!\\p{L})"}},
    {" ahead",
     {"\\p{L}+?(?=\\p{N}\\p{N}|\\s+(?!\\p{L}|\\p{N}\\s)\\S)|\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N})"
      ")",
      "(?!\\p{Lu}(?:\\p{Ll}(?!\\s))+).|(?=(?:\\s*\\S){0,9}?!)\\s|(?=\\p{L}*\\z)\\p{L}"}},
    {" empty", {"(?<=[a-z])(?=[A-Z])|(?=\\n)|x*", "\\p{Lu}?"}},
    {" case", {"(?i:sk|[k-m]+)|(?i:K)x|[^\\P{L}\\d_]+(?-i:S)?"}},
    {" empty choices", {"(?:a?|b)*c|(?:|s)+7|(?:\\p{L}?){3}\\."}},
};

static size_t rule_numbers[ARRAY_SIZE(rules)];

#define TEXT_CHARS 64

/* A text for both sides. What is no UTF-8 for us is U+FFFD for PCRE2: also no letter, number or
 * space. */
struct text {
    char *ours, *theirs;
    size_t n_ours, n_theirs;
};

struct short_text {
    char ours[TEXT_CHARS * 4], theirs[TEXT_CHARS * 4];
};

static struct text empty(struct short_text *room) {
    return (struct text){.ours = room->ours, .theirs = room->theirs};
}

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
    size_t at = begin, last = SIZE_MAX;

    while (at < end && pcre2_match(c, (PCRE2_SPTR)s + begin, end - begin, at - begin,
                                   PCRE2_NO_UTF_CHECK, m, NULL) > 0) {
        PCRE2_SIZE *o = pcre2_get_ovector_pointer(m);

        if (o[0] == o[1] && o[0] == last) { /* no empty match right behind another one */
            while (++at < end && ((uint8_t)s[at] & 0xC0) == 0x80)
                continue;
            continue;
        }
        last = o[1];
        if (o[0])
            cut[begin + o[0] - 1] = true;
        at = begin + o[1];
        if (o[1])
            cut[at - 1] = true;
    }
    cut[end - 1] = true;
    pcre2_match_data_free(m);
}

/* p: the scanners, NULL: none; cut: the cutters. */
struct oracle {
    const char *name;
    const struct pretok *p;
    struct pretok cut;
    pcre2_code *expr[PRETOK_STAGES];
    unsigned n;
};

/* Compiles the expressions of @rule as cutters. */
static void oracle_cut(struct oracle *o, const struct rule *rule) {
    for (unsigned k = 0; k < PRETOK_STAGES && rule->expr[k]; k++) {
        CLEANUP(buf_deinit) struct buf b = {.max = CUTTER_TEXT_MAX};
        struct err err = {0};

        /* PCRE2's name of the script, and Oniguruma's */
        for (const char *s = rule->expr[k]; *s; s++)
            if (strncmp(s, "sc:Han", 3) != 0 || buf_add_str(&b, "Script=") != 0)
                buf_add(&b, s, 1);
            else
                s += 2;
        int r = cutter_new(&o->cut.cutter[k], (struct gguf_str){b.data, b.len}, &err);

        cr_assert_eq(r, 0, "%s: %s", b.data, err.message);
    }
}

static void oracle_init(struct oracle *o, const struct rule *rule) {
    *o = (struct oracle){.p = pretok_find((struct gguf_str){rule->name, strlen(rule->name)})};
    o->name = rule->name;
    cr_assert(o->p || *rule->name == ' ', "%s", rule->name);
    oracle_cut(o, rule);
    while (o->n < PRETOK_STAGES && rule->expr[o->n]) {
        o->expr[o->n] = compile(rule->expr[o->n]);
        pcre2_jit_compile(o->expr[o->n++], PCRE2_JIT_COMPLETE);
    }
}

static void oracle_deinit(struct oracle *o) {
    for (unsigned i = 0; i < o->n; i++)
        pcre2_code_free(o->expr[i]);
    for (unsigned k = 0; k < PRETOK_STAGES; k++)
        cutter_free(o->cut.cutter[k]);
}

/* Ends of words as numbers of characters. */
static size_t their_cuts(const struct oracle *o, const struct text *t, size_t *out) {
    CLEANUP(freep) bool *cut = calloc(t->n_theirs, sizeof(*cut));
    CLEANUP(freep) bool *coarse = calloc(t->n_theirs, sizeof(*coarse));
    size_t n = 0, chars = 0;

    cut[t->n_theirs - 1] = true;
    for (unsigned k = 0; k < o->n; k++) {
        size_t begin = 0;

        memcpy(coarse, cut, t->n_theirs * sizeof(*cut));
        for (size_t i = 0; i < t->n_theirs; i++) {
            if (coarse[i]) {
                cut_by(o->expr[k], t->theirs, begin, i + 1, cut);
                begin = i + 1;
            }
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
    CLEANUP(pretok_end) struct pretok_cursor c = {0};
    size_t n = 0, chars = 0, i = 0, len;
    const char *word;

    pretok_begin(&c, p, t->ours, t->n_ours);
    while (pretok_next(&c, &word, &len) == 1) {
        cr_assert_eq(word, t->ours + i);
        size_t end = i + len;

        if (len > t->n_ours - i)
            cr_assert_fail("a word of %zu bytes, %zu are left", len, t->n_ours - i);
        while (i < end) {
            uint32_t cp;

            i += unicode_decode(t->ours + i, t->ours + t->n_ours, &cp);
            chars++;
        }
        if (i != end)
            cr_assert_fail("a word ends inside a character");
        out[n++] = chars;
    }
    cr_assert_eq(i, t->n_ours);
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

/* Fails with the text and the ends from the last one that is the same on. */
static void fail(const struct oracle *o, const struct text *t, const size_t *want, size_t n_want,
                 const size_t *got, size_t n_got) {
    size_t same = 0, from = 0, chars = 0;
    struct buf b;

    while (same < MIN(n_want, n_got) && want[same] == got[same])
        same++;
    while (same > 0 && chars < want[same - 1])
        chars += (t->theirs[++from] & 0xC0) != 0x80;
    buf_init(&b, 4096);
    for (size_t i = from; i < MIN(t->n_theirs, from + 200); i++)
        buf_printf(&b, "\\x%02X", (uint8_t)t->theirs[i]);
    buf_add_str(&b, " expected");
    for (size_t i = same; i < MIN(n_want, same + 20); i++)
        buf_printf(&b, " %zu", want[i] - chars);
    buf_add_str(&b, " got");
    for (size_t i = same; i < MIN(n_got, same + 20); i++)
        buf_printf(&b, " %zu", got[i] - chars);
    cr_assert_fail("%s: %s", o->name, b.data);
}

static void compare(const struct oracle *o, const struct text *t) {
    CLEANUP(freep) size_t *want = calloc(t->n_theirs, sizeof(*want));
    CLEANUP(freep) size_t *got = calloc(t->n_ours, sizeof(*got));
    const struct pretok *by[] = {o->p, &o->cut};
    size_t n_want = their_cuts(o, t, want);

    for (size_t i = 0; i < ARRAY_SIZE(by); i++) {
        size_t n_got = by[i] ? our_cuts(by[i], t, got) : 0;

        if (by[i] && (n_want != n_got || memcmp(want, got, n_got * sizeof(*got)) != 0))
            fail(o, t, want, n_want, got, n_got);
    }
}

#define HAN 0x8000u /* beside the classes */

/* Code points of which both sides have the same class, *n of them. */
static uint32_t *shared_code_points(size_t *n) {
    static const char *const expr[] = {"\\p{L}",           "\\p{M}",  "\\p{N}", "\\s",
                                       "[\\p{Lu}\\p{Lt}]", "\\p{Ll}", "\\p{P}", "\\p{S}",
                                       "\\p{sc:Han}",      "\\p{Nd}", "\\p{Cn}"};
    static const unsigned class[] = {UC_LETTER, UC_MARK,   UC_NUMBER, UC_SPACE, UC_UPPER, UC_LOWER,
                                     UC_PUNCT,  UC_SYMBOL, HAN,       UC_DIGIT, 0};
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
        if (!(theirs & (UC_LETTER | UC_MARK | UC_NUMBER | UC_SPACE)))
            theirs |= UC_OTHER;
        ours = unicode_class_at(s, s + len, &len) & ~(unsigned)UC_BREAK;
        ours |= pretok_is_han(cp) ? HAN : 0;
        if (ours == theirs)
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
        0x10FFFF, '_',   '4',    '5',
    };

    if (rng_below(r, 8))
        return special[rng_below(r, ARRAY_SIZE(special))];
    return cps[rng_below(r, (uint32_t)n_cps)];
}

static struct criterion_test_params all_rules(void) {
    for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
        rule_numbers[i] = i;
    return cr_make_param_array(size_t, rule_numbers, ARRAY_SIZE(rules));
}

ParameterizedTestParameters(text_pretok, cuts_as_pcre2_does) {
    return all_rules();
}

ParameterizedTest(size_t *rule, text_pretok, cuts_as_pcre2_does) {
    struct rng r = {5};
    size_t n_cps;
    CLEANUP(freep) uint32_t *cps = shared_code_points(&n_cps);
    CLEANUP(oracle_deinit) struct oracle o = {0};

    oracle_init(&o, &rules[*rule]);
    for (int round = 0; round < FEWER(40000, 4000); round++) {
        struct short_text room;
        struct text t = empty(&room);
        uint32_t n = 1 + rng_below(&r, round % 4 ? 8 : TEXT_CHARS - 1);
        uint32_t few[3] = {pick(&r, cps, n_cps), pick(&r, cps, n_cps), pick(&r, cps, n_cps)};

        for (uint32_t i = 0; i < n; i++)
            add(&t, round % 3 ? pick(&r, cps, n_cps) : few[rng_below(&r, 3)]);
        compare(&o, &t);
    }
}

/* All texts of up to five characters of one of each kind. */
ParameterizedTestParameters(text_pretok, every_short_text) {
    return all_rules();
}

ParameterizedTest(size_t *rule, text_pretok, every_short_text) {
    static const uint32_t kind[] = {'\'', 's', 'X', '7', ' ', '\n', '.', 0x301, 0x4E2D};
    CLEANUP(oracle_deinit) struct oracle o = {0};

    oracle_init(&o, &rules[*rule]);
    for (uint32_t len = 1, n = ARRAY_SIZE(kind); len <= FEWEST(5, 4);
         len++, n *= ARRAY_SIZE(kind)) {
        for (uint32_t v = 0; v < n; v++) {
            struct short_text room;
            struct text t = empty(&room);

            for (uint32_t i = 0, k = v; i < len; i++, k /= ARRAY_SIZE(kind))
                add(&t, kind[k % ARRAY_SIZE(kind)]);
            compare(&o, &t);
        }
    }
}

/* Real text: the pages and some sources of this repository, and the texts of the vocabularies. */
ParameterizedTestParameters(text_pretok, real_text) {
    return all_rules();
}

ParameterizedTest(size_t *rule, text_pretok, real_text) {
    static const char *const patterns[] = {"%s/docs/*.md",         "%s/README.md",
                                           "%s/lib/text/*.c",      "%s/tests/text/*.c",
                                           "%s/tests/grammar/*.c", "%s/vocab/*.inp"};
    CLEANUP(oracle_deinit) struct oracle o = {0};
    size_t n_bytes = 0;
    glob_t found = {0};

    oracle_init(&o, &rules[*rule]);
    for (size_t i = 0; i < ARRAY_SIZE(patterns); i++) {
        char pattern[4096];

        bool is_last = i + 1 == ARRAY_SIZE(patterns);
        snprintf(pattern, sizeof(pattern), patterns[i],
                 is_last ? test_data() : getenv("WEFT_SOURCE"));
        glob(pattern, i ? GLOB_APPEND : 0, NULL, &found);
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        size_t len;
        CLEANUP(freep) char *text = expect_read(found.gl_pathv[i], &len);

        n_bytes += len;
        compare(&o, &(struct text){text, text, len, len});
    }
    globfree(&found);
    cr_assert_gt(n_bytes, 500000);
}

/* A text of one thing many times must not take more than linear time: 64 times the length, at most
 * 64 times the steps and a factor for the noise of the clock. */
Test(text_pretok, words_take_linear_time) {
    static const char *const unit[] = {"a",   "A", "aA", "Aa\xCC\x81",   " ",        "\n",   " \n",
                                       "7",   ".", "'s", "\xE4\xB8\xAD", "\xCC\x81", "\x01", "/",
                                       "\xFF"};

    for (size_t k = 0; k < ARRAY_SIZE(unit); k++) {
        struct buf b;

        buf_init(&b, 1 << 20);
        while (b.len < FEWER(1000000u, 100000u) && buf_add_str(&b, unit[k]) == 0)
            continue;
        cr_assert_geq(b.len, FEWER(1000000u, 100000u));
        for (size_t i = 0; i < ARRAY_SIZE(rules) && *rules[i].name != ' '; i++) {
            struct gguf_str name = {rules[i].name, strlen(rules[i].name)};
            struct timespec begin, end;
            struct pretok_cursor c;
            size_t n = 0, len;
            const char *word;

            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
            pretok_begin(&c, pretok_find(name), b.data, b.len);
            while (pretok_next(&c, &word, &len) == 1)
                n += len;
            pretok_end(&c);
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
            cr_assert_eq(n, b.len);
            /* Linear: some 20 ms; a scan of the rest for each word: minutes. */
            cr_assert_lt(end.tv_sec - begin.tv_sec, 3, R"(%s, "%s")", rules[i].name, unit[k]);
        }
        buf_deinit(&b);
    }
}

/* What llama.cpp's files name and nothing here serves is not taken for something else. */
Test(text_pretok, unknown_names_are_unknown) {
    static const char *const unknown[] = {
        "gpt-22",   "gpt",         "",         "default",    "falcon",
        "bloom",    "poro-chat",   "viking",   "superbpe",   "chameleon",
        "jais-2",   "youtu",       "spark2_5", "whitespace", "gpt3-finnish",
        "ufakzeka", "roberta-bpe", "bert-bge"};
    char known[256];

    for (size_t i = 0; i < ARRAY_SIZE(unknown); i++)
        cr_assert_null(pretok_find((struct gguf_str){unknown[i], strlen(unknown[i])}));
    pretok_list(known, sizeof(known));
    for (size_t i = 0; i < ARRAY_SIZE(rules) && *rules[i].name != ' '; i++) {
        const struct pretok *p =
            pretok_find((struct gguf_str){rules[i].name, strlen(rules[i].name)});

        cr_assert_not_null(p);
        cr_assert_not_null(strstr(known, p->names[0]), "%s", known);
    }
}
