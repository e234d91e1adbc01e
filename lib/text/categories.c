#include "text/categories.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#include "base/util.h"

#define RUNS_MAX 8192 /* most runs; Unicode 15 has about 4,000 */

static uint32_t runs[RUNS_MAX], n_runs;

static void find_runs(void) {
    utf8proc_category_t last = (utf8proc_category_t)-1;

    for (utf8proc_int32_t cp = 0; cp <= 0x10ffff; cp++) {
        utf8proc_category_t c = utf8proc_category(cp);

        if (c == last)
            continue;
        assert(n_runs < RUNS_MAX);
        runs[n_runs++] = (uint32_t)cp << 5 | (uint32_t)c;
        last = c;
    }
}

const uint32_t *unicode_runs(uint32_t *n) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, find_runs);
    *n = n_runs;
    return runs;
}

uint32_t unicode_property(const char *name, size_t len) {
    /* Names of categories, by number as in utf8proc_category_t. */
    static const char *const NAMES[][2] = {
        {"Cn", "Unassigned"},
        {"Lu", "Uppercase_Letter"},
        {"Ll", "Lowercase_Letter"},
        {"Lt", "Titlecase_Letter"},
        {"Lm", "Modifier_Letter"},
        {"Lo", "Other_Letter"},
        {"Mn", "Nonspacing_Mark"},
        {"Mc", "Spacing_Mark"},
        {"Me", "Enclosing_Mark"},
        {"Nd", "Decimal_Number"},
        {"Nl", "Letter_Number"},
        {"No", "Other_Number"},
        {"Pc", "Connector_Punctuation"},
        {"Pd", "Dash_Punctuation"},
        {"Ps", "Open_Punctuation"},
        {"Pe", "Close_Punctuation"},
        {"Pi", "Initial_Punctuation"},
        {"Pf", "Final_Punctuation"},
        {"Po", "Other_Punctuation"},
        {"Sm", "Math_Symbol"},
        {"Sc", "Currency_Symbol"},
        {"Sk", "Modifier_Symbol"},
        {"So", "Other_Symbol"},
        {"Zs", "Space_Separator"},
        {"Zl", "Line_Separator"},
        {"Zp", "Paragraph_Separator"},
        {"Cc", "Control"},
        {"Cf", "Format"},
        {"Cs", "Surrogate"},
        {"Co", "Private_Use"},
    };
    static const char *const GROUPS[] = {"Letter", "Mark",      "Number", "Punctuation",
                                         "Symbol", "Separator", "Other"};
    static const char *const INITIALS = "LMNPSZC";
    char initial = len == 1 ? *name : 0;
    uint32_t out = 0;

    if (len == 3 && memcmp(name, "Any", 3) == 0)
        return UINT32_MAX;
    if ((len == 2 && memcmp(name, "LC", 2) == 0) ||
        (len == 12 && memcmp(name, "Cased_Letter", 12) == 0))
        return 1u << UTF8PROC_CATEGORY_LU | 1u << UTF8PROC_CATEGORY_LL | 1u << UTF8PROC_CATEGORY_LT;
    for (size_t i = 0; i < ARRAY_SIZE(GROUPS); i++)
        initial =
            len == strlen(GROUPS[i]) && memcmp(name, GROUPS[i], len) == 0 ? INITIALS[i] : initial;
    for (size_t i = 0; i < ARRAY_SIZE(NAMES); i++) {
        bool same = initial && NAMES[i][0][0] == initial;

        for (size_t k = 0; k < 2; k++)
            same = same || (len == strlen(NAMES[i][k]) && memcmp(name, NAMES[i][k], len) == 0);
        out |= (uint32_t)same << i;
    }
    return out;
}
