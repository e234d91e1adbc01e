/* Regular expressions: a byte of flags, the expression, a newline, a text. If PCRE2 accepts the
 * expression too, and it has no construct that the two languages define differently, both give the
 * same result for the text. */

#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/masks.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tests/grammar/grammar_support.h"

/* Returns true for ASCII without escapes, without groups that have a name or a flag, and without
 * the possessive forms of PCRE2: such an expression means the same in ECMAScript and in PCRE2. */
static bool is_common(const char *s) {
    for (size_t i = 0; s[i]; i++) {
        if (s[i] < ' ' || s[i] > '~' || s[i] == '\\' || s[i] == '^' || s[i] == '$')
            return false;
        if (s[i] == '(' && (s[i + 1] == '?' || s[i + 1] == '*'))
            return false;
        if (s[i] == '[' &&
            (s[i + 1] == ']' || s[i + 1] == ':' || s[i + 1] == '.' || strchr(s + i + 1, '[')))
            return false;
        if (strchr("*+?}", s[i]) && s[i + 1] == '+')
            return false;
        if (s[i] == '{' || s[i] == '}')
            return false;
    }
    return true;
}

static void compare(const char *expr, const char *text, size_t len) {
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    struct grammar_source src = {.kind = GRAMMAR_REGEX, .text = expr, .len = strlen(expr)};
    struct err err = {0};
    PCRE2_SIZE at;
    int error;
    pcre2_code *c =
        pcre2_compile((PCRE2_SPTR)expr, PCRE2_ZERO_TERMINATED,
                      PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOTALL, &error, &at, NULL);

    if (c && grammar_compile(&g, test_vocab(), &src, masks_limits(src.len), &err) == 0) {
        pcre2_match_data *m = pcre2_match_data_create_from_pattern(c, NULL);
        int n = pcre2_match(c, (PCRE2_SPTR)text, len, 0, 0, m, NULL);

        pcre2_match_data_free(m);
        if (n > 0 || n == PCRE2_ERROR_NOMATCH)
            FUZZ_ASSERT((n > 0) == test_fits(g, text, len));
    }
    pcre2_code_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    if (len == 0)
        return -1;
    const uint8_t *end = memchr(data, '\n', len);
    size_t n = end ? (size_t)(end - data) - 1 : len - 1;

    if (end == data)
        return -1;
    masks_check(GRAMMAR_REGEX, data[0] & GRAMMAR_QUOTED, data + 1, n, 24, len);
    CLEANUP(freep) char *expr = fuzz_text(data + 1, n);
    size_t behind = end ? len - n - 2 : 0;

    if (strlen(expr) == n && n < 40 && behind < 40 && is_common(expr)) {
        for (size_t i = 0; i < behind; i++)
            if (end[1 + i] < ' ' || end[1 + i] > '~')
                return 0;
        compare(expr, (const char *)end + 1, behind);
    }
    return 0;
}
