/* Strings: lengths, patterns, formats. Formats are regular expressions over the string's characters. */

#include "text/grammar/schema.h"

#include <stdio.h>
#include <string.h>

#define MONTHS31 "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
#define MONTHS30 "(0[469]|11)-(0[1-9]|[12][0-9]|30)"
#define FEBRUARY "02-(0[1-9]|1[0-9]|2[0-8])"
#define LEAP_YEAR "([0-9][0-9](0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26]|00)00)"
#define DATE "([0-9]{4}-(" MONTHS31 "|" MONTHS30 "|" FEBRUARY ")|" LEAP_YEAR "-02-29)"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,8})?"                                     \
    "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[a-zA-Z0-9]{1,30}(-[a-zA-Z0-9]{1,30})?"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 OCTET "(\\." OCTET "){3}"
#define H16 "[0-9a-fA-F]{1,4}"
#define IPV6                                                                                       \
    "(" H16 "(:" H16 "){7}|::(" H16 "(:" H16 "){0,6})?|" H16 "::(" H16 "(:" H16 "){0,5})?|" H16    \
    ":" H16 "::(" H16 "(:" H16 "){0,4})?|" H16 "(:" H16 "){2}::(" H16 "(:" H16 "){0,3})?|" H16     \
    "(:" H16 "){3}::(" H16 "(:" H16 "){0,2})?|" H16 "(:" H16 "){4}::(" H16 "(:" H16 ")?)?|" H16    \
    "(:" H16 "){5}::(" H16 ")?|" H16 "(:" H16 "){6}::)"
#define PCHAR "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
#define URI                                                                                        \
    "([a-zA-Z][a-zA-Z0-9+.-]{0,8}://" LABEL "(\\." LABEL ")*(:[0-9]{1,5})?(/" PCHAR                \
    "*)*|(mailto|urn|tel|data):" PCHAR "+)(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"
#define UUID "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"

static const struct {
    const char *name, *regex;
} FORMATS[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", UUID},
    {"email", "[a-zA-Z0-9_+-]{1,20}(\\.[a-zA-Z0-9_+-]{1,20}){0,2}@" LABEL "(\\." LABEL "){1,3}"},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uri", URI},
    {"hostname", LABEL "(\\." LABEL "){0,3}"},
};

static uint32_t times(uint32_t n, uint32_t k) {
    uint64_t x = (uint64_t)n * k;

    return n == NO_MAX || k == NO_MAX || x >= NO_MAX ? (n && k ? NO_MAX : 0) : (uint32_t)x;
}

static uint32_t plus(uint32_t a, uint32_t b) {
    return a >= NO_MAX - b ? NO_MAX : a + b;
}

/* The least and the largest number of characters of a text that fits @e, which a regular expression made. */
static void count_chars(const struct expr *e, uint32_t *min, uint32_t *max) {
    uint32_t lo, hi;

    if (e->atom) {
        *min = *max = 1;
        return;
    }
    *min = *max = 0;
    for (uint32_t i = 0; (e->kind == EXPR_SEQ || e->kind == EXPR_ALT) && i < e->n; i++) {
        count_chars(e->child[i], &lo, &hi);
        if (e->kind == EXPR_SEQ) {
            *min = plus(*min, lo);
            *max = plus(*max, hi);
        } else {
            *min = i ? MIN(*min, lo) : lo;
            *max = MAX(*max, hi);
        }
    }
    if (e->kind == EXPR_REPEAT) {
        count_chars(e->child[0], &lo, &hi);
        *min = times(lo, e->min);
        *max = times(hi, e->max);
    }
}

/* A pattern beside lengths: they follow from it, or it repeats one character and the counts are merged. */
static int limit_length(struct schema *s, const struct facets *f, struct expr **e) {
    uint32_t lo, hi;

    count_chars(*e, &lo, &hi);
    if (lo >= f->min_length && hi <= f->max_length)
        return 0;
    if ((*e)->kind == EXPR_REPEAT && (*e)->child[0]->atom) {
        *e = expr_repeat(s->b, (*e)->child[0], MAX((*e)->min, f->min_length),
                         MIN((*e)->max, f->max_length));
        return *e ? 0 : build_no_memory(s->b);
    }
    return schema_unsupported(s, f->lengths.path,
                              "beside a pattern or format from which it does not follow");
}

int lower_string(struct schema *s, const struct facets *f, struct expr **out) {
    struct build *b = s->b;
    struct expr *e = NULL;
    const char *name = yyjson_get_str(f->format.v);
    int r = 0;

    for (size_t i = 0; name && i < ARRAY_SIZE(FORMATS); i++) {
        if (strcmp(name, FORMATS[i].name) == 0)
            e = regex_of(b, FORMATS[i].regex, CHARS_JSON);
    }
    if (name && !e && build_work(b, 0) < 0)
        return build_no_memory(b);
    if (name && !e && !(b->flags & GRAMMAR_ANY_FORMAT))
        return schema_unsupported(s, f->format.path, "format '%.40s' is not supported", name);
    if (f->pattern.v) {
        if (e)
            return schema_unsupported(s, f->pattern.path, "pattern beside format");
        r = regex_read(b, yyjson_get_str(f->pattern.v), yyjson_get_len(f->pattern.v), CHARS_JSON,
                       REGEX_SEARCH, &e);
        if (r < 0 && b->err) {
            char why[300];

            snprintf(why, sizeof(why), "%.299s", b->err->message);
            bool complex = strcmp(b->err->code, "grammar_too_complex") == 0;
            bool invalid = strcmp(b->err->code, "grammar_invalid") == 0;

            if (!complex)
                return invalid ? schema_invalid(s, f->pattern.path, "%s", why)
                               : schema_unsupported(s, f->pattern.path, "%s", why);
        }
        if (r < 0)
            return r;
    }
    if (!e) {
        *out = f->min_length > f->max_length ? expr_never(b)
                                             : json_string(b, f->min_length, f->max_length);
        return *out ? 0 : build_no_memory(b);
    }
    r = limit_length(s, f, &e);
    if (r < 0)
        return r;
    *out = json_quoted(b, e);
    return *out ? 0 : build_no_memory(b);
}
