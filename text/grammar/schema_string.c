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

/* The rule of a pattern or format (with what lengths leave of it): equal ones are one rule. */
struct string_rule {
    struct string_rule *next;
    const char *text; /* in the arena */
    size_t len;
    uint32_t min, max, rule;
    bool is_format;
};

static struct string_rule *find_rule(struct schema *s, const struct facets *f, struct place at) {
    const char *text = yyjson_get_str(at.v);
    struct string_rule *r = s->b->strings;

    for (; r && build_work(s->b, 1) == 0; r = r->next) {
        if (r->len == yyjson_get_len(at.v) && memcmp(r->text, text, r->len) == 0 &&
            r->min == f->min_length && r->max == f->max_length &&
            r->is_format == (at.v == f->format.v))
            break;
    }
    return r;
}

static int add_rule(struct schema *s, const struct facets *f, struct place at, struct expr *body,
                    struct string_rule **out) {
    struct build *b = s->b;
    struct string_rule *r = arena_alloc(&b->arena, sizeof(*r));
    size_t len = yyjson_get_len(at.v);

    if (!r)
        return build_no_memory(b);
    *r = (struct string_rule){.next = b->strings,
                              .text = arena_strndup(&b->arena, yyjson_get_str(at.v), len),
                              .len = len,
                              .min = f->min_length,
                              .max = f->max_length,
                              .is_format = at.v == f->format.v};
    if (!r->text)
        return build_no_memory(b);
    int e = build_rule(b, NULL, &r->rule);

    if (e < 0)
        return e;
    b->rule[r->rule].body = body;
    b->strings = r;
    *out = r;
    return build_work(b, len);
}

/* A mistake in a pattern is reported with the place of the pattern. */
static int read_pattern(struct schema *s, struct place at, struct expr **out) {
    struct build *b = s->b;
    struct err why = {0}, *err = b->err;

    b->err = &why;
    int r =
        regex_read(b, yyjson_get_str(at.v), yyjson_get_len(at.v), CHARS_JSON, REGEX_SEARCH, out);

    b->err = err;
    if (r == 0)
        return 0;
    if (strcmp(why.code, "grammar_invalid") == 0)
        return schema_invalid(s, at.path, "%s", why.message);
    if (strcmp(why.code, "grammar_unsupported") == 0)
        return schema_unsupported(s, at.path, "%s", why.message);
    return build_too_complex(b, "%s", why.message);
}

static int read_format(struct schema *s, struct place at, struct expr **out) {
    const char *name = yyjson_get_str(at.v);

    *out = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(FORMATS); i++) {
        if (strcmp(name, FORMATS[i].name) != 0)
            continue;
        *out = regex_of(s->b, FORMATS[i].regex, CHARS_JSON);
        return *out ? 0 : build_no_memory(s->b);
    }
    if (s->b->flags & GRAMMAR_ANY_FORMAT)
        return 0;
    return schema_unsupported(s, at.path, "format '%.40s' is not supported", name);
}

int lower_string(struct schema *s, const struct facets *f, struct expr **out) {
    struct build *b = s->b;
    struct expr *e = NULL;
    struct place at = f->format;
    int r = 0;

    if (f->format.v)
        r = read_format(s, f->format, &e);
    if (r == 0 && f->pattern.v) {
        if (e)
            return schema_unsupported(s, f->pattern.path, "pattern beside format");
        at = f->pattern;
        r = read_pattern(s, at, &e);
    }
    if (r < 0)
        return r;
    if (!e) {
        *out = f->min_length > f->max_length ? expr_never(b)
                                             : json_any_string(b, f->min_length, f->max_length);
        return *out ? 0 : build_no_memory(b);
    }
    struct string_rule *rule = find_rule(s, f, at);

    if ((r = build_work(b, 1)) < 0)
        return r;
    if (!rule) {
        r = limit_length(s, f, &e);
        if (r == 0)
            r = add_rule(s, f, at, json_quoted(b, e), &rule);
        if (r < 0)
            return r;
    }
    *out = expr_call(b, rule->rule);
    return *out ? 0 : build_no_memory(b);
}
