/*
 * pretok_deepseek - the pre-tokenizers of DeepSeek's models: several expressions, each of which
 * cuts the pieces of the one before. The comment above each function has the expression that it
 * scans.
 */

#include "base/util.h"
#include "text/pretok.h"

/* A set of characters: some classes, or ascending ranges. */
struct charset {
    unsigned classes;
    const uint32_t (*range)[2];
    size_t n;
};

static bool pretok_contains(const struct charset *set, uint32_t cp) {
    size_t lo = 0, hi = set->n;

    if (cp == UNICODE_INVALID)
        return false;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (cp > set->range[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < set->n && cp >= set->range[lo][0];
}

/* Returns whether the character at @s is in @set; *n: its length in bytes. */
static bool in_set(const struct charset *set, const char *s, const char *end, unsigned *n) {
    uint32_t cp;

    if (unicode_class_at(s, end, n) & set->classes)
        return true;
    unicode_decode(s, end, &cp);
    return pretok_contains(set, cp);
}

/* Returns the bytes of the run at the start: of characters in @set, or of characters outside of
 * @set. */
static size_t cut_runs(const struct charset *set, const char *s, size_t len) {
    const char *end = s + len;
    unsigned n;
    bool in = in_set(set, s, end, &n);
    size_t at = n;

    while (at < len && in_set(set, s + at, end, &n) == in)
        at += n;
    return at;
}

/* Returns the bytes of the space before the set in a match of \s?[set]+ at @s: 0 or the length of a
 * space; -1: no match begins there. */
static int spaced(const struct charset *set, const char *s, const char *end) {
    unsigned n, m, c = unicode_class_at(s, end, &n);

    if (c & UC_SPACE && s + n < end && in_set(set, s + n, end, &m))
        return (int)n;
    if (!in_set(set, s, end, &n))
        return -1;
    return 0;
}

/* \s?[set]+ */
static size_t cut_spaced(const struct charset *set, const char *s, size_t len) {
    const char *end = s + len;
    int front = spaced(set, s, end);
    size_t at = front > 0 ? (size_t)front : 0;
    unsigned n;

    if (front >= 0) {
        while (at < len && in_set(set, s + at, end, &n))
            at += n;
        return at;
    }
    do {
        unicode_class_at(s + at, end, &n);
        at += n;
    } while (at < len && spaced(set, s + at, end) < 0);
    return at;
}

/* [\r\n] */
size_t pretok_breaks(const struct pretok *p, const char *s, size_t len) {
    size_t at = 0;

    while (at < len && s[at] != '\r' && s[at] != '\n')
        at++;
    if (at)
        return at;
    return 1;
}

/* \s?[letters]+, where the letters are those with case as an early Unicode had them, some scripts
 * left out. */
size_t pretok_llm_letters(const struct pretok *p, const char *s, size_t len) {
    static const uint32_t range[][2] = {
        {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},
        {0xD8, 0xF6},       {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},
        {0x295, 0x2AF},     {0x370, 0x373},     {0x376, 0x376},     {0x377, 0x377},
        {0x37B, 0x37D},     {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},
        {0x38C, 0x38C},     {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},
        {0x48A, 0x52F},     {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},
        {0x13F8, 0x13FD},   {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},
        {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},
        {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},
        {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},
        {0x1FB6, 0x1FBC},   {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},
        {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},
        {0x1FF6, 0x1FFC},   {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210A, 0x2113},
        {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},
        {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},
        {0x213C, 0x213F},   {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2183},
        {0x2184, 0x2184},   {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},
        {0x2CF2, 0x2CF2},   {0x2CF3, 0x2CF3},   {0xA640, 0xA66D},   {0xA680, 0xA69B},
        {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},   {0xAB70, 0xABBF},
        {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},
        {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB}, {0x10C80, 0x10CB2},
        {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
    };
    static const struct charset letters = {0, range, ARRAY_SIZE(range)};

    return cut_spaced(&letters, s, len);
}

/* Scans \s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+ */
size_t pretok_llm_punct(const struct pretok *p, const char *s, size_t len) {
    static const uint32_t range[][2] = {{'!', '/'},       {':', '~'},       {0x2018, 0x201F},
                                        {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}};
    static const struct charset punct = {0, range, ARRAY_SIZE(range)};

    return cut_spaced(&punct, s, len);
}

/* \s+$ */
size_t pretok_llm_end(const struct pretok *p, const char *s, size_t len) {
    size_t at = 0, spaces = 0; /* spaces: start of the white space before @at */

    while (at < len) {
        unsigned n, c = unicode_class_at(s + at, s + len, &n);

        at += n;
        if (!(c & UC_SPACE))
            spaces = at;
    }
    if (spaces)
        return spaces;
    return len;
}

/* [\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+ */
size_t pretok_llm_cjk(const struct pretok *p, const char *s, size_t len) {
    static const uint32_t range[][2] = {{0x800, 0x9FA5}, {0xAC00, 0xD7FF}};
    static const struct charset cjk = {0, range, ARRAY_SIZE(range)};

    return cut_runs(&cjk, s, len);
}

/* \s?\p{L}+ */
size_t pretok_coder_letters(const struct pretok *p, const char *s, size_t len) {
    return cut_spaced(&(const struct charset){.classes = UC_LETTER}, s, len);
}

/* \s?\p{P}+ */
size_t pretok_coder_punct(const struct pretok *p, const char *s, size_t len) {
    return cut_spaced(&(const struct charset){.classes = UC_PUNCT}, s, len);
}

/* [\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+ */
size_t pretok_deepseek_cjk(const struct pretok *p, const char *s, size_t len) {
    static const uint32_t range[][2] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}};
    static const struct charset cjk = {0, range, ARRAY_SIZE(range)};

    return cut_runs(&cjk, s, len);
}

/* Cuts runs of characters of scripts without spaces: Thai from the vowel signs before letters on,
 * Lao, Burmese, Khmer, and of Han, Kana and Hangul. */
size_t pretok_afmoe_scripts(const struct pretok *p, const char *s, size_t len) {
    static const uint32_t range[][2] = {
        {0xE40, 0xEFF},   {0x1000, 0x109F}, {0x1100, 0x11FF}, {0x1780, 0x17FF}, {0x2F00, 0x2FDF},
        {0x3040, 0x30FF}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xA9E0, 0xA9FF}, {0xAA60, 0xAA7F},
        {0xAC00, 0xD7AF}, {0xF900, 0xFAFF}, {0xFF65, 0xFF9F},
    };
    static const struct charset scripts = {0, range, ARRAY_SIZE(range)};

    return cut_runs(&scripts, s, len);
}

#define LETTER_OR_MARK (UC_LETTER | UC_MARK)
#define PUNCT_OR_SYMBOL (UC_PUNCT | UC_SYMBOL)

static bool is_ascii_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Returns the length of letters at @s with the character that may precede them; 0: there are
 * none. */
static size_t deepseek_letters(const char *s, size_t len) {
    unsigned n, m, c = unicode_class_at(s, s + len, &n);
    size_t at = 1;

    if (c & PUNCT_OR_SYMBOL && (uint8_t)*s < 0x80 && len > 1 && is_ascii_letter(s[1])) {
        while (at < len && is_ascii_letter(s[at]))
            at++;
        return at;
    }
    if (c & LETTER_OR_MARK)
        return pretok_run(s, len, LETTER_OR_MARK, SIZE_MAX);
    if (c & (UC_BREAK | PUNCT_OR_SYMBOL) || n == len)
        return 0;
    if (unicode_class_at(s + n, s + len, &m) & LETTER_OR_MARK)
        return n + pretok_run(s + n, len - n, LETTER_OR_MARK, SIZE_MAX);
    return 0;
}

/*
 * [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
 *  ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ Numbers, and control characters without a letter
 *  behind them, match none of the alternatives.
 */
size_t pretok_deepseek(const struct pretok *p, const char *s, size_t len) {
    size_t at = deepseek_letters(s, len), front = *s == ' ';
    unsigned n;

    if (at)
        return at;
    at = front + pretok_run(s + front, len - front, PUNCT_OR_SYMBOL, SIZE_MAX);
    if (at > front)
        return at + pretok_run(s + at, len - at, UC_BREAK, SIZE_MAX);
    if (unicode_class_at(s, s + len, &n) & UC_SPACE)
        return pretok_white_space(s, len, true);
    for (at = n; at < len; at += n) {
        unsigned c = unicode_class_at(s + at, s + len, &n);

        if (c & (LETTER_OR_MARK | PUNCT_OR_SYMBOL | UC_SPACE) || deepseek_letters(s + at, len - at))
            break;
    }
    return at;
}
