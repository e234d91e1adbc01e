/*
 * string - translates strings: lengths, patterns, formats. Formats are regular expressions over the
 * characters of the string.
 *
 * One pattern, or one format, is an expression of its own, if its lengths follow from it
 * (lower_text()). All other combinations are an intersection of automata: each pattern and format,
 * the negations of others, and the strings of the allowed lengths (facets_lang()). Such a product
 * has a copy of the pattern's states for each length, so a large maxLength is counted in a register
 * instead (counted_strings(), CALL_WITHIN).
 */

#include <assert.h>
#include <string.h>

#include "base/json_value.h"
#include "base/try.h"
#include "grammar/automaton/lang.h"
#include "grammar/front/schema/schema.h"

/* A maximum of at least WITHIN_FROM characters is counted in a register if a product with it could
 * have more than WITHIN_STATES states. */
#define WITHIN_FROM 64
#define WITHIN_STATES 16384
#define ROUNDS_TRIED 8   /* rounds compiled to measure how work grows */
#define ROUND_SIZE 1024  /* about the number of states of a string as written */
#define ROUND_STATES 256 /* most states of one round's minimal automaton */

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
    "(:" H16 "){5}::(" H16 ")?|" H16 "(:" H16 "){6}::|(" H16 ":){6}" IPV4 "|::(" H16               \
    ":){0,5}" IPV4 "|" H16 "::(" H16 ":){0,4}" IPV4 "|" H16 "(:" H16 ")::(" H16 ":){0,3}" IPV4     \
    "|" H16 "(:" H16 "){2}::(" H16 ":){0,2}" IPV4 "|" H16 "(:" H16 "){3}::(" H16 ":)?" IPV4        \
    "|" H16 "(:" H16 "){4}::" IPV4 ")"
#define ATEXT "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
#define EMAIL ATEXT "{1,20}(\\." ATEXT "{1,20}){0,2}@" LABEL "(\\." LABEL "){1,3}"
#define PCHAR "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
#define AUTHORITY "([a-zA-Z0-9._~!$&'()*+,;=:-]+@)?[a-zA-Z0-9]+([.-]+[a-zA-Z0-9]+)*(:[0-9]{1,5})?"
#define PATH "(" PCHAR "+(/" PCHAR "*)*)"
#define URI                                                                                        \
    "[a-zA-Z][a-zA-Z0-9+.-]*:(//" AUTHORITY "(/" PCHAR "*)*|(//)?/" PATH "?|" PATH ")(\\?(" PCHAR  \
    "|[/?])*)?(#(" PCHAR "|[/?])*)?"
/* A format is narrower than its standard if that needs tables or more than a regular language. */
#define COUNT "[0-9]{1,4}"
#define MINUTES COUNT "M(" COUNT "S)?" /* durations: RFC 3339, appendix A */
#define TIME_OF_DURATION "T(" COUNT "H(" MINUTES ")?|" MINUTES "|" COUNT "S)"
#define MONTHS COUNT "M(" COUNT "D)?"
#define DURATION                                                                                   \
    "P(" COUNT "W|(" COUNT "Y(" MONTHS ")?|" MONTHS "|" COUNT "D)(" TIME_OF_DURATION               \
    ")?|" TIME_OF_DURATION ")"
#define REGEX_ATOM                                                                                 \
    "([A-Za-z0-9_ ,:;=@#%&~<>/!'\"-]|\\\\[dDwWsSnrt.+*?^$(){}|/\\[\\]\\\\]|\\.|"                   \
    "\\[\\^?(a-z|A-Z|0-9|a-f|A-F|[A-Za-z0-9_.,:;=@#%<>!'\"(){}*+?$/ ]|"                            \
    "\\\\[dwsDWSnrt.+*?^$(){}|/\\[\\]\\\\-])+-?\\])"                                               \
    "([*+?]|\\{[0-9]{1,2},?\\}|\\{[0-9],[1-9][0-9]{1,2}\\})?"
#define REGEX_GROUP "(" REGEX_ATOM "|\\((\\?:)?(" REGEX_ATOM ")+(\\|(" REGEX_ATOM ")+)*\\)[*+?]?)"
#define REGEX "\\^?" REGEX_GROUP "+(\\|" REGEX_GROUP "+)*\\$?"
#define POINTER "(/([^~/\\x00-\\x1f]|~[01])*)*"
#define REFERENCE                                                                                  \
    "((//(" LABEL "(\\." LABEL ")*(:[0-9]{1,5})?(/" PCHAR "*)*)?|(/(" PCHAR "+(/" PCHAR            \
    "*)*)?)?|[a-zA-Z0-9._-]+(/" PCHAR "*)*)(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?)"
#define UUID "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"

#define ANY "[\\s\\S]*"
#define ANY_HOST "[^:/?#@ ]*"
#define ANY_MAIL ANY "@" ANY
#define ANY_DAY "[0-9]{4}-[0-9]{2}-[0-9]{2}"
#define ANY_URI "[a-zA-Z][a-zA-Z0-9+.-]*:" ANY

/* The formats. wide: a superset of what any reading of the standard accepts, for the negation of
 * the format; NULL: no such expression is known. */
static const struct {
    const char *name, *regex, *wide;
} FORMATS[] = {
    {"date", DATE, ANY_DAY},
    {"time", TIME, "[0-9]{2}:" ANY},
    {"date-time", DATE "T" TIME, ANY_DAY ANY},
    {"uuid", UUID, "(urn:uuid:)?[0-9a-fA-F-]*"},
    {"email", EMAIL, ANY_MAIL},
    {"ipv4", IPV4, "[0-9.]*"},
    {"ipv6", IPV6, ANY ":" ANY},
    {"uri", URI, ANY_URI},
    {"iri", URI, ANY_URI},
    {"uri-reference", URI "|" REFERENCE, NULL},
    {"iri-reference", URI "|" REFERENCE, NULL},
    {"uri-template", URI "|" REFERENCE, NULL},
    {"json-pointer", POINTER, "(/" ANY ")?"},
    {"relative-json-pointer", "(0|[1-9][0-9]{0,3})(#|" POINTER ")", "[0-9]" ANY},
    {"duration", DURATION, "P" ANY},
    {"regex", "(" REGEX ")?", NULL},
    {"idn-email", EMAIL, ANY_MAIL},
    {"idn-hostname", LABEL "(\\." LABEL "){0,3}", ANY_HOST},
    {"hostname", LABEL "(\\." LABEL "){0,3}", ANY_HOST},
};

static uint32_t string_times(uint32_t n, uint32_t k) {
    uint64_t x = (uint64_t)n * k;

    if (!n || !k)
        return 0;
    if (n == NO_MAX || k == NO_MAX || x >= NO_MAX)
        return NO_MAX;
    return (uint32_t)x;
}

static uint32_t plus(uint32_t a, uint32_t b) {
    if (a >= NO_MAX - b)
        return NO_MAX;
    return a + b;
}

/* Sets *@min and *@max to the least and the largest number of characters of a text of @e, which was
 * made from a regular expression. */
static void string_count_chars(const struct expr *e, uint32_t *min, uint32_t *max) {
    uint32_t lo, hi;

    if (e->atom) {
        *min = *max = 1;
        return;
    }
    *min = 0;
    *max = e->kind == EXPR_LANG ? NO_MAX : 0; /* a product of a look-ahead: not known */
    for (uint32_t i = 0; (e->kind == EXPR_SEQ || e->kind == EXPR_ALT) && i < e->n; i++) {
        string_count_chars(e->child[i], &lo, &hi);
        if (e->kind == EXPR_SEQ) {
            *min = plus(*min, lo);
            *max = plus(*max, hi);
        } else {
            *min = i ? MIN(*min, lo) : lo;
            *max = MAX(*max, hi);
        }
    }
    if (e->kind == EXPR_REPEAT) {
        string_count_chars(e->child[0], &lo, &hi);
        *min = string_times(lo, e->min);
        *max = string_times(hi, e->max);
    }
    assert(*min <= *max);
}

/* Applies the lengths of @f to the pattern *@e where that takes no product: either all texts of the
 * pattern have such lengths, or it repeats one character, and the counts are merged. Returns
 * whether that was possible. */
static bool limit_length(struct build *b, const struct facets *f, struct expr **e) {
    uint32_t lo, hi;

    string_count_chars(*e, &lo, &hi);
    if (lo >= f->min_length && hi <= f->max_length)
        return true;
    if ((*e)->kind != EXPR_REPEAT || !(*e)->child[0]->atom)
        return false;
    *e = expr_repeat(b, (*e)->child[0], MAX((*e)->min, f->min_length),
                     MIN((*e)->max, f->max_length));
    return true;
}

/* A rule that was made for a pattern or format with lengths; equal ones share it. */
struct string_rule {
    struct string_rule *next;
    /* in the arena */
    const char *text;
    size_t len;
    uint32_t min, max, rule;
    uint8_t kind, notation;
};

static struct string_rule *string_find_rule(struct schema *s, const struct facets *f) {
    const struct text_rule *t = &f->text[0];
    const char *text = json_text(t->at.v);
    size_t len = json_len(t->at.v);
    struct string_rule *r = s->b->strings;

    for (; r && build_work(s->b, 1) == 0; r = r->next) {
        if (r->len == len && memcmp(r->text, text, r->len) == 0 && r->min == f->min_length &&
            r->max == f->max_length && r->kind == t->kind && r->notation == s->b->notation)
            break;
    }
    return r;
}

/* Makes the rule of @f with @body. Returns a call of the rule. */
static struct expr *string_add_rule(struct schema *s, const struct facets *f, struct expr *body) {
    struct build *b = s->b;
    yyjson_val *v = f->text[0].at.v;
    struct string_rule *r = build_alloc(b, 1, sizeof(*r));
    struct expr *call;
    assert(f->n_text == 1 && f->min_length <= f->max_length);

    if (!r)
        return NULL;
    *r = (struct string_rule){.next = b->strings,
                              .text = arena_strndup(&b->arena, json_text(v), json_len(v)),
                              .len = json_len(v),
                              .min = f->min_length,
                              .max = f->max_length,
                              .kind = (uint8_t)f->text[0].kind,
                              .notation = (uint8_t)b->notation};
    if (!r->text)
        return failed(build_no_memory(b));
    call = expr_rule(b, body);
    if (!call || build_work(b, r->len) < 0)
        return NULL;
    r->rule = call->id;
    b->strings = r;
    return call;
}

/* Measures the work of making an automaton of up to @n rounds of @round. */
static int work_of_rounds(struct build *b, struct expr *round, uint32_t n, uint64_t *work) {
    uint64_t before = b->work;

    lang_of(b, expr_repeat(b, round, 0, n));
    assert(b->work >= before);
    *work = b->work - before;
    return b->failed;
}

/* Replaces what a pattern repeats many times, as (...){2,500}, by the minimal automaton of one
 * round. nfa.c then copies it for each round; the alternative, a counted call, would leave several
 * configurations open, each with a stack of its own. Copying pays where the end of a round is
 * clear, so that twice as many rounds take about twice the work, which is tried with few rounds. */
static int compact_rounds(struct build *b, struct expr *e) {
    uint32_t n = e->kind == EXPR_SEQ || e->kind == EXPR_ALT ? e->n : 0;
    uint32_t most = e->max == NO_MAX ? e->min : e->max;
    const struct lang *l;
    uint64_t few, twice;

    TRY(build_work(b, 1));
    for (uint32_t i = 0; i < n; i++)
        TRY(compact_rounds(b, e->child[i]));
    if (e->kind != EXPR_REPEAT || e->child[0]->atom || most <= 2 * ROUNDS_TRIED ||
        e->child[0]->size > ROUND_SIZE)
        return 0;
    l = lang_of(b, e->child[0]);
    if (!l || l->n > ROUND_STATES)
        return b->failed;
    struct expr *round = lang_expr(b, l);

    TRY(work_of_rounds(b, round, ROUNDS_TRIED, &few));
    TRY(work_of_rounds(b, round, 2 * ROUNDS_TRIED, &twice));
    if (twice * 2 <= few * 5)
        e->child[0] = round;
    return 0;
}

/* Reads a pattern; mistakes are reported with the place of the pattern in the schema. */
static struct expr *read_pattern(struct schema *s, struct place at, unsigned options) {
    struct build *b = s->b;
    struct err why = {0}, *err = b->err;

    b->err = &why;
    struct expr *e =
        regex_read_with(b, json_text(at.v), json_len(at.v), json_mode(b), REGEX_SEARCH, options);

    if (e)
        compact_rounds(b, e);
    b->err = err;
    if (!b->failed || !why.code[0])
        return e;
    b->failed = 0; /* the error is reported again below, with its place in the schema */
    if (strcmp(why.code, "grammar_invalid") == 0)
        return failed(schema_invalid(s, at.path, "%s", why.message));
    if (strcmp(why.code, "grammar_unsupported") == 0)
        return failed(schema_unsupported(s, at.path, "%s", why.message));
    return failed(build_too_complex(b, "%s", why.message));
}

static const char *string_find_format(const char *name, bool wide) {
    for (size_t i = 0; i < ARRAY_SIZE(FORMATS); i++) {
        if (strcmp(name, FORMATS[i].name) == 0) {
            if (wide)
                return FORMATS[i].wide;
            return FORMATS[i].regex;
        }
    }
    return NULL;
}

int format_contrary(yyjson_val *v) {
    const char *name = json_cstr(v);

    if (!name)
        return -1;
    if (!string_find_format(name, false)) { /* a number format or an annotation */
        if (strstr(name, "int"))
            return -1;
        return 0;
    }
    if (!string_find_format(name, true))
        return -1;
    return 1;
}

int format_known(struct schema *s, struct place at) {
    const char *name = json_cstr(at.v);

    if (string_find_format(name, false))
        return 1;
    if (!(s->b->flags & GRAMMAR_ANY_FORMAT))
        return schema_unsupported(s, at.path, "format '%.40s' is not supported", name);
    return 0;
}

static struct expr *string_read_text(struct schema *s, const struct text_rule *t,
                                     unsigned options) {
    if (t->kind == TEXT_FORMAT || t->kind == TEXT_NOT_FORMAT)
        return regex_of(s->b, string_find_format(json_cstr(t->at.v), t->kind == TEXT_NOT_FORMAT),
                        json_mode(s->b));
    return read_pattern(s, t->at, options);
}

/* Languages that were read before, by the text that they come from. */
struct lang_memo {
    struct lang_memo *next;
    yyjson_val *v;
    uint8_t kind;
    enum char_mode mode;
    const struct lang *lang;
};

static const struct lang *values_lang(struct schema *s, yyjson_val *list) {
    struct expr_vec v = {0};
    yyjson_val *item;
    size_t i, n;

    /* The value of a const is not a list but the value itself. */
    n = yyjson_is_arr(list) ? yyjson_arr_size(list) : 1;
    item = yyjson_is_arr(list) ? yyjson_arr_get_first(list) : list;
    for (i = 0; i < n; i++, item = json_next(item)) {
        uint8_t *text;
        size_t len;

        if (!yyjson_is_str(item))
            continue;
        if (json_spell(s->b, json_text(item), json_len(item), &text, &len) < 0)
            return NULL;
        expr_vec_add(s->b, &v, expr_bytes(s->b, text, len));
    }
    return lang_of(s->b, expr_alt_of(s->b, &v));
}

const struct lang *text_lang(struct schema *s, const struct text_rule *t) {
    struct lang_memo *m = s->langs;

    for (; m && build_work(s->b, 1) == 0; m = m->next) {
        bool equal =
            m->v == t->at.v && (m->kind == TEXT_NOT_FORMAT) == (t->kind == TEXT_NOT_FORMAT);

        equal = equal ||
                (t->kind != TEXT_NOT_ENUM && m->kind == t->kind && yyjson_equals(m->v, t->at.v));

        if (equal && m->mode == json_mode(s->b))
            return m->lang;
    }
    m = build_alloc(s->b, 1, sizeof(*m));
    if (!m)
        return NULL;
    *m = (struct lang_memo){
        .next = s->langs, .v = t->at.v, .kind = (uint8_t)t->kind, .mode = json_mode(s->b)};
    if (t->kind == TEXT_NOT_ENUM)
        m->lang = values_lang(s, t->at.v);
    else
        m->lang = lang_of(s->b, string_read_text(s, t, REGEX_CANONICAL));
    if (m->lang)
        s->langs = m;
    return m->lang;
}

/* Returns the strings that satisfy @f, as an intersection. @borders: states between characters are
 * marked, as lang_meet_strings() does. */
static const struct lang *facets_meet(struct schema *s, const struct facets *f, bool borders) {
    const struct lang *in[LANG_MAX], *not_in[LANG_MAX];
    uint32_t n = 0, n_not = 0;

    if (f->n_text > LANG_MAX - 2)
        return failed(build_too_complex(s->b, "more than %u patterns for one value", LANG_MAX - 2));
    if (f->min_length || f->max_length != NO_MAX)
        in[n++] = lang_strings_of(s->b, f->min_length, f->max_length);
    else
        in[n++] = lang_strings(s->b);
    for (uint32_t i = 0; !s->b->failed && i < f->n_text; i++) {
        const struct text_rule *t = &f->text[i];

        *(text_is_negated(t) ? &not_in[n_not++] : &in[n++]) = text_lang(s, t);
    }
    assert(n > 0 && n + n_not <= LANG_MAX);
    if (borders)
        return lang_meet_strings(s->b, in, n, not_in, n_not);
    return lang_meet(s->b, in, n, not_in, n_not);
}

const struct lang *facets_lang(struct schema *s, const struct facets *f) {
    return facets_meet(s, f, false);
}

/* Makes strings whose characters are counted up to a maximum. NULL: the build has failed, or a
 * product with the count has few states, which pays for a pattern. */
static struct expr *counted_strings(struct schema *s, const struct facets *f) {
    struct facets open = *f;

    if (f->max_length < WITHIN_FROM || f->max_length == NO_MAX)
        return NULL;
    open.max_length = NO_MAX;
    const struct lang *l = facets_meet(s, &open, true);
    bool few = l && f->n_text > 0 && (uint64_t)l->n * f->max_length <= WITHIN_STATES;

    if (!l || few)
        return NULL;
    return lang_within(s->b, l, f->max_length);
}

/* Returns whether no text of @e, which was made from a regular expression, has the character
 * @c. */
static bool avoids(const struct expr *e, char c) {
    bool without = e->kind != EXPR_LANG && e->kind != EXPR_CALL;

    for (uint32_t i = 0; e->kind == EXPR_CHARS && i < e->set->n; i++)
        without = without && ((uint8_t)c < e->set->range[i].lo || (uint8_t)c > e->set->range[i].hi);
    if (e->kind == EXPR_BYTES)
        return !memchr(e->bytes, c, e->n);
    if (e->kind == EXPR_REPEAT)
        return avoids(e->child[0], c);
    for (uint32_t i = 0; (e->kind == EXPR_SEQ || e->kind == EXPR_ALT) && i < e->n; i++)
        without = without && avoids(e->child[i], c);
    return without;
}

/* Returns whether texts of @e cannot contain what ends a string. */
static bool may_stand(const struct build *b, const struct expr *e) {
    return b->notation == NOTATION_JSON || avoids(e, *b->stop);
}

/* Makes the strings of a single pattern or format as an expression, in which repetitions may be
 * counters. NULL: the build has failed, or its lengths take a product. */
static struct expr *lower_text(struct schema *s, const struct facets *f) {
    const struct string_rule *rule = string_find_rule(s, f);

    if (build_work(s->b, 1) < 0)
        return NULL;
    if (rule)
        return expr_call(s->b, rule->rule);
    struct expr *e = string_read_text(s, &f->text[0], 0);

    if (!e || !may_stand(s->b, e) || !limit_length(s->b, f, &e))
        return NULL;
    return string_add_rule(s, f, json_quoted(s->b, e));
}

/* Makes the strings of @f, without quotes. A pattern that all strings match, like `(...)?` without
 * anchors, is ignored, so that only the length is counted. */
static struct expr *strings_expr(struct schema *s, const struct facets *f) {
    struct build *b = s->b;

    if (f->n_text == 1 && f->text[0].kind == TEXT_PATTERN) {
        const struct lang *l = text_lang(s, &f->text[0]), *all = lang_strings(b);

        if (b->notation == NOTATION_JSON && l && all && lang_equal(l, all))
            return expr_repeat(b, json_canonical_char(b), f->min_length, f->max_length);
    }
    struct expr *e = counted_strings(s, f);

    if (e)
        return e;
    return lang_expr(b, facets_lang(s, f));
}

/* Strings of some lengths in a notation other than JSON's, which equal ones share. */
struct length_rule {
    struct length_rule *next;
    uint32_t min, max;
    /* quoted: a call of a rule */
    struct expr *strings, *quoted;
    enum notation notation;
};

/* Makes the strings of @r without quotes. Those of different maxima that are counted in a register
 * share its rule. */
static struct expr *strings_of_length(struct schema *s, const struct facets *f,
                                      const struct length_rule *r) {
    struct build *b = s->b;

    for (const struct length_rule *q = b->lengths; q && build_work(b, 1) == 0; q = q->next) {
        bool alike = q->notation == r->notation && q->min == r->min;

        if (alike && q->strings->kind == EXPR_WITHIN && r->max >= WITHIN_FROM && r->max != NO_MAX)
            return expr_within(b, q->strings->id, r->max);
    }
    return strings_expr(s, f);
}

/* Makes the strings that have a length alone. */
static struct expr *any_string(struct schema *s, const struct facets *f) {
    struct build *b = s->b;
    struct length_rule *r = b->lengths;

    if (b->notation == NOTATION_JSON)
        return json_any_string(b, f->min_length, f->max_length);
    if (f->min_length == 0 && f->max_length == NO_MAX)
        return json_quoted(b, b->text);
    for (; r && build_work(b, 1) == 0; r = r->next) {
        if (r->min == f->min_length && r->max == f->max_length && r->notation == b->notation)
            return expr_call(b, r->quoted->id);
    }
    r = build_alloc(b, 1, sizeof(*r));
    if (!r)
        return NULL;
    *r = (struct length_rule){
        .min = f->min_length, .max = f->max_length, .notation = b->notation, .next = b->lengths};
    r->strings = strings_of_length(s, f, r);
    r->quoted = r->strings ? expr_rule(b, json_quoted(b, r->strings)) : NULL;
    if (!r->quoted)
        return NULL;
    b->lengths = r;
    return r->quoted;
}

struct expr *lower_string(struct schema *s, const struct facets *f) {
    bool one = f->n_text == 1 && f->text[0].kind <= TEXT_FORMAT;

    if (f->min_length > f->max_length)
        return expr_never(s->b);
    if (f->n_text == 0)
        return any_string(s, f);
    struct expr *e = one ? lower_text(s, f) : NULL;

    if (e || s->b->failed)
        return e;
    e = json_quoted(s->b, strings_expr(s, f));
    if (one)
        return string_add_rule(s, f, e);
    return expr_rule(s->b, e);
}
