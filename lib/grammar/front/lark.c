/*
 * lark - grammars as Lark writes them, which is what OpenAI's custom tools come with: rules (lower
 * case) and terminals (upper case), strings, /regular expressions/, ranges, groups, [options], * +
 * ? ~n ~n..m, %import of the library `common`, %ignore; as llguidance %json and a JSON Schema. It
 * starts at the rule `start`.
 *
 * Texts are those that Lark's own Earley parser reads with its dynamic lexer: there is no lexer
 * that prefers the longest terminal, and priorities only choose between trees. What %ignore names
 * may stand at the start and behind every terminal that a rule uses.
 *
 * A rule that begins with itself, as lists and operators do in Lark, becomes a repetition: `a: a x
 * | y` is y x*. Rules that begin with themselves by way of others are refused when the automaton is
 * made.
 */

#include "grammar/front/lark.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/json_value.h"
#include "base/try.h"
#include "grammar/front/source.h"

struct reader {
    struct source in;
    enum char_mode mode;
    uint32_t depth;
    /* the definition has ended */
    bool over;
    /* the definition is a terminal's */
    bool terminal;
    /* a call of the ignored rule; NULL without %ignore */
    struct expr *ignored;
    /* alternatives of `ignored` */
    struct expr_vec skips;
    struct rulebook book;
};

static const struct source_escapes escapes = {"abnrtfv\\\"'/", "\a\b\n\r\t\f\v\\\"'/"};

static struct expr *lark_read_alternatives(struct reader *r, uint32_t self);

/* Skips blanks and comments, and with @lines line breaks, too. */
static void lark_skip_space(struct reader *r, bool lines) {
    for (;; r->in.p++) {
        char c = source_peek(&r->in, 0);

        if (c == '#' || (c == '/' && source_peek(&r->in, 1) == '/')) {
            while (r->in.p < r->in.end && *r->in.p != '\n')
                r->in.p++;
            c = source_peek(&r->in, 0);
        }
        if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r')))
            return;
    }
}

/* Returns whether the sequence ends here. A line that begins with `|` continues the definition. */
static bool lark_at_end(struct reader *r) {
    lark_skip_space(r, r->depth > 1);
    char c = source_peek(&r->in, 0);

    if (r->over || r->in.p == r->in.end)
        return true;
    if (c == '\n' || c == '\r') {
        lark_skip_space(r, true);
        r->over = source_peek(&r->in, 0) != '|';
        return true;
    }
    return c == '|' || c == ')' || c == ']' || (c == '-' && source_peek(&r->in, 1) == '>');
}

/* ---- names */

static bool is_lower(char c) {
    return (c >= 'a' && c <= 'z') || c == '_' || (c >= '0' && c <= '9');
}

static bool is_upper(char c) {
    return (c >= 'A' && c <= 'Z') || c == '_' || (c >= '0' && c <= '9');
}

/* Returns the length of the name at the reader's place, or 0. */
static size_t lark_name_length(const struct reader *r, bool *terminal) {
    size_t n = 0;

    while (source_peek(&r->in, n) == '_')
        n++;
    *terminal = source_peek(&r->in, n) >= 'A' && source_peek(&r->in, n) <= 'Z';
    if (!*terminal && !(source_peek(&r->in, n) >= 'a' && source_peek(&r->in, n) <= 'z'))
        return 0;
    bool (*may_follow)(char) = *terminal ? is_upper : is_lower;

    while (may_follow(source_peek(&r->in, n)))
        n++;
    return n;
}

static struct expr *call_of(struct reader *r, const char *s, size_t len) {
    uint32_t i;

    if (rulebook_add(&r->book, r->in.b, s, len, &i) < 0)
        return NULL;
    return expr_call(r->in.b, r->book.entry[i].rule);
}

static int define(struct reader *r, const char *s, size_t len, uint32_t *rule) {
    uint32_t i;

    TRY(rulebook_add(&r->book, r->in.b, s, len, &i));
    if (r->book.entry[i].defined)
        return build_invalid(r->in.b, "grammar, line %zu: '%.*s' is defined twice",
                             source_line(&r->in), (int)MIN(len, (size_t)100), s);
    r->book.entry[i].defined = true;
    *rule = r->book.entry[i].rule;
    return 0;
}

/* ---- terminals */

static struct expr *char_of(struct reader *r, uint32_t lo, uint32_t hi, bool any_case) {
    struct cp_set *set = build_alloc(r->in.b, 1, sizeof(*set));
    uint32_t other = lo ^ 0x20;
    bool letter = lo < 128 && ((lo | 0x20) >= 'a' && (lo | 0x20) <= 'z');

    if (!set || cp_set_add(r->in.b, set, lo, hi) < 0)
        return NULL;
    if (any_case && letter && cp_set_add(r->in.b, set, other, other) < 0)
        return NULL;
    cp_set_normalize(set);
    return expr_chars(r->in.b, set, r->mode);
}

/* Reads a string behind its first '"'. Sets *@only to its code point if there is just one, for a
 * range, else to UINT32_MAX. */
static struct expr *read_string(struct reader *r, uint32_t *only) {
    const char *from = r->in.p;
    struct expr_vec v = {0};
    uint32_t cp = 0;
    bool any_case;

    while (source_peek(&r->in, 0) != '"') { /* finds the end first, since the flag stands there */
        if (r->in.p == r->in.end || *r->in.p == '\n')
            return failed(source_invalid(&r->in, "the closing '\"' is missing"));
        r->in.p += 1 + (*r->in.p == '\\' && r->in.p + 1 < r->in.end);
    }
    const char *to = r->in.p;
    any_case = source_peek(&r->in, 1) == 'i';
    for (r->in.p = from; r->in.p < to;) {
        if (source_read_char(&r->in, &escapes, &cp) < 0 ||
            expr_vec_add(r->in.b, &v, char_of(r, cp, cp, any_case)) < 0)
            return NULL;
    }
    /* The two loops agree on the end: both take a backslash with the character behind it, and
     * neither the digits of an escape sequence nor bytes of UTF-8 are quotes. */
    assert(r->in.p == to);
    r->in.p = to + 1 + any_case;
    *only = v.n == 1 ? cp : UINT32_MAX;
    return expr_seq_of(r->in.b, &v);
}

static struct expr *lark_read_literal(struct reader *r) {
    uint32_t lo, hi;
    struct expr *x = read_string(r, &lo);

    if (!x || source_peek(&r->in, 0) != '.' || source_peek(&r->in, 1) != '.')
        return x;
    r->in.p += 2;
    if (!source_skip(&r->in, "\""))
        return failed(source_invalid(&r->in, "a range needs a string on both sides"));
    if (!read_string(r, &hi))
        return NULL;
    if (lo == UINT32_MAX || hi == UINT32_MAX || hi < lo)
        return failed(
            source_invalid(&r->in, "a range needs one character on both sides, in order"));
    return char_of(r, lo, hi, false);
}

static struct expr *read_regex(struct reader *r) {
    const char *from = ++r->in.p;
    unsigned options = 0;

    while (r->in.p < r->in.end && *r->in.p != '/' && *r->in.p != '\n')
        r->in.p += 1 + (*r->in.p == '\\' && r->in.p + 1 < r->in.end);
    size_t len = (size_t)(r->in.p - from);

    if (!source_skip(&r->in, "/"))
        return failed(source_invalid(&r->in, "the closing '/' of a regular expression is missing"));
    for (; source_peek(&r->in, 0) >= 'a' && source_peek(&r->in, 0) <= 'z'; r->in.p++) {
        if (*r->in.p == 'x')
            return failed(source_unsupported(&r->in, "the flag x of a regular expression is"));
        if (!strchr("imslu", *r->in.p))
            return failed(source_invalid(&r->in, "unknown flag of a regular expression"));
        if (*r->in.p == 'i')
            options |= REGEX_ANY_CASE;
        else if (*r->in.p == 's')
            options |= REGEX_DOT_ALL;
    }
    return regex_read_with(r->in.b, from, len, r->mode, REGEX_WHOLE, options);
}

/* ---- items */

static int read_counts(struct reader *r, const char *between, const char *close, uint32_t *min,
                       uint32_t *max) {
    int e = 0;

    lark_skip_space(r, false);
    if (*close && source_peek(&r->in, 0) == ',')
        *min = 0;
    else
        e = source_need_number(&r->in, min);
    *max = *min;
    if (e == 0 && source_skip(&r->in, between)) {
        lark_skip_space(r, false);
        *max = NO_MAX;
        if (!*close || source_peek(&r->in, 0) != '}')
            e = source_need_number(&r->in, max);
    }
    if (e == 0 && (!source_skip(&r->in, close) || *max < *min))
        return source_invalid(&r->in, "the repetition count is malformed or too large");
    return e;
}

/* Reads one quantifier of *@x, if there is one. Returns whether there is. */
static bool lark_read_quantifier(struct reader *r, struct expr **x) {
    uint32_t min = 0, max = NO_MAX;

    if (source_skip(&r->in, "+")) {
        min = 1;
    } else if (source_skip(&r->in, "?")) {
        max = 1;
    } else if (source_skip(&r->in, "{")) {
        read_counts(r, ",", "}", &min, &max);
    } else if (!source_skip(&r->in, "*")) {
        const char *p = r->in.p;

        lark_skip_space(r, false);
        if (!source_skip(&r->in, "~")) {
            r->in.p = p;
            return false;
        }
        read_counts(r, "..", "", &min, &max);
    }
    *x = expr_repeat(r->in.b, *x, min, max);
    return *x != NULL;
}

static struct expr *lark_read_group(struct reader *r, char close) {
    struct expr *x = lark_read_alternatives(r, NO_RULE);

    if (source_peek(&r->in, 0) != close)
        return failed(source_invalid(&r->in, close == ')' ? "the closing ')' is missing"
                                                          : "the closing ']' is missing"));
    r->in.p++;
    if (close != ']')
        return x;
    return expr_optional(r->in.b, x);
}

/* Reads the schema behind %json; its values are a terminal. */
static struct expr *read_schema(struct reader *r) {
    char *from = (char *)(uintptr_t)r->in.p;
    yyjson_doc *doc;

    if (build_work(r->in.b, (uint64_t)(r->in.end - from) / 16) < 0) /* json_parse() copies it all */
        return NULL;
    int e = json_parse(&doc, from, (size_t)(r->in.end - from),
                       YYJSON_READ_STOP_WHEN_DONE | YYJSON_READ_NUMBER_AS_RAW);
    size_t len = yyjson_doc_get_read_size(doc);

    yyjson_doc_free(doc);
    if (e == -ENOMEM)
        return failed(build_no_memory(r->in.b));
    if (e < 0)
        return failed(source_invalid(&r->in, "a JSON Schema is missing behind %json"));
    if (r->terminal || r->mode != CHARS_TEXT)
        return failed(source_unsupported(&r->in, "%json in a terminal or inside a string is"));
    r->in.p += len;
    return schema_read(r->in.b, from, len);
}

/* Reads one item of a sequence. In a rule, ignored text may follow a terminal. */
static struct expr *lark_read_item(struct reader *r) {
    bool terminal = true;
    struct expr *x;
    size_t n;

    if (source_skip(&r->in, "("))
        return lark_read_group(r, ')');
    if (source_skip(&r->in, "["))
        return lark_read_group(r, ']');
    if (source_skip(&r->in, "\"")) {
        x = lark_read_literal(r);
    } else if (source_peek(&r->in, 0) == '/') {
        x = read_regex(r);
    } else if (source_skip(&r->in, "%json")) {
        x = read_schema(r);
    } else if ((n = lark_name_length(r, &terminal)) > 0) {
        x = call_of(r, r->in.p, n);
        r->in.p += n;
        if (source_peek(&r->in, 0) == '{' && !strchr(" ,0123456789", source_peek(&r->in, 1)))
            return failed(source_unsupported(&r->in, "templates are"));
    } else {
        char c = source_peek(&r->in, 0);

        if (c == '<' || c == '%' || c == '&' || c == '~')
            return failed(source_unsupported(
                &r->in, "special tokens, %regex, %lark, & and ~ of terminals are"));
        return failed(
            source_invalid(&r->in, "expected a string, a regular expression, a group or a name"));
    }
    if (!terminal || r->terminal || !r->ignored)
        return x;
    return expr_seq2(r->in.b, x, r->ignored);
}

static struct expr *lark_read_sequence(struct reader *r) {
    struct expr_vec v = {0};

    while (!r->in.b->failed && !lark_at_end(r)) {
        struct expr *x = lark_read_item(r);

        while (x && lark_read_quantifier(r, &x))
            ;
        expr_vec_add(r->in.b, &v, x);
    }
    if (!r->in.b->failed && !r->over && source_skip(&r->in, "->")) { /* names a tree: no effect */
        bool terminal;

        lark_skip_space(r, false);
        size_t n = lark_name_length(r, &terminal);

        if (n == 0 || terminal)
            return failed(source_invalid(&r->in, "a name is missing behind ->"));
        r->in.p += n;
        if (!lark_at_end(r))
            return failed(source_invalid(&r->in, "nothing may follow the name behind ->"));
    }
    return expr_seq_of(r->in.b, &v);
}

/* Returns what follows the call of @self with which @x begins, or NULL when @x begins otherwise. */
static struct expr *lark_tail(struct reader *r, struct expr *x, uint32_t self) {
    if (x->kind == EXPR_CALL && x->id == self)
        return expr_empty(r->in.b);
    if (x->kind == EXPR_SEQ && x->child[0]->kind == EXPR_CALL && x->child[0]->id == self)
        return expr_seq(r->in.b, x->child + 1, x->n - 1);
    return NULL;
}

/* Reads alternatives. @self: the rule whose body they are, or NO_RULE; alternatives that begin with
 * a call of it become a repetition. */
static struct expr *lark_read_alternatives(struct reader *r, uint32_t self) {
    struct build *b = r->in.b;
    struct expr_vec v = {0}, tails = {0};

    if (++r->depth > b->limits.max_depth)
        return failed(build_too_complex(b, "grammar, line %zu: groups are nested more than %u deep",
                                        source_line(&r->in), b->limits.max_depth));
    do {
        struct expr *x = lark_read_sequence(r);
        struct expr *tail = x && self != NO_RULE ? lark_tail(r, x, self) : NULL;

        expr_vec_add(b, tail ? &tails : &v, tail ? tail : x);
    } while (!b->failed && !r->over && source_skip(&r->in, "|"));
    r->depth--;
    struct expr *first = expr_alt_of(b, &v);

    if (!tails.n)
        return first;
    return expr_seq2(b, first, expr_repeat(b, expr_alt_of(b, &tails), 0, NO_MAX));
}

/* ---- statements */

static int read_definition(struct reader *r) {
    const char *name;
    uint32_t rule;
    size_t n;

    while (source_skip(&r->in, "?") || source_skip(&r->in, "!"))
        ;
    name = r->in.p;
    if ((n = lark_name_length(r, &r->terminal)) == 0)
        return source_invalid(&r->in, "expected a rule, a terminal or a directive");
    r->in.p += n;
    if (source_peek(&r->in, 0) == '{' || source_peek(&r->in, 0) == '[')
        return source_unsupported(&r->in, "templates and attributes of rules are");
    if (source_skip(&r->in, ".")) { /* a priority: it chooses between trees only */
        r->in.p += source_peek(&r->in, 0) == '-';
        if (source_need_number(&r->in, &rule) < 0)
            return -EINVAL;
    }
    lark_skip_space(r, false);
    if (!source_skip(&r->in, ":"))
        return source_invalid(&r->in, "expected ':'");
    r->over = false;
    if (define(r, name, n, &rule) < 0)
        return r->in.b->failed;
    struct expr *body = lark_read_alternatives(r, rule);

    if (!r->over && r->in.p < r->in.end)
        return source_invalid(&r->in, "a bracket has no counterpart");
    r->in.b->rule[rule].body = body;
    return r->in.b->failed;
}

static int import_one(struct reader *r, const char *as, size_t as_len) {
    bool terminal;
    size_t n = lark_name_length(r, &terminal);
    const char *regex = lark_common(r->in.p, n);
    uint32_t rule;

    if (!regex)
        return source_unsupported(&r->in, n ? "this terminal of common is" : "such an import is");
    int e = define(r, as ? as : r->in.p, as ? as_len : n, &rule);

    r->in.p += n;
    if (e < 0)
        return e;
    struct expr *body = regex_read(r->in.b, regex, strlen(regex), r->mode);

    r->in.b->rule[rule].body = body;
    return r->in.b->failed;
}

/* Reads what follows %import: common.NAME [-> NAME], or common (NAME, ...). */
static int read_import(struct reader *r) {
    bool terminal;

    lark_skip_space(r, false);
    if (!source_skip(&r->in, "common"))
        return source_unsupported(&r->in, "an import of anything but common is");
    if (source_skip(&r->in, ".")) {
        const char *name = r->in.p, *as = NULL;
        size_t n = lark_name_length(r, &terminal), as_len = 0;

        r->in.p += n;
        lark_skip_space(r, false);
        if (source_skip(&r->in, "->")) {
            lark_skip_space(r, false);
            as = r->in.p;
            if (!(as_len = lark_name_length(r, &terminal)))
                return source_invalid(&r->in, "a name is missing behind ->");
        }
        const char *end = r->in.p + as_len;

        r->in.p = name;
        int e = import_one(r, as, as_len);
        r->in.p = as ? end : r->in.p;
        return e;
    }
    lark_skip_space(r, false);
    if (!source_skip(&r->in, "("))
        return source_invalid(&r->in, "expected a terminal of common");
    do {
        lark_skip_space(r, true);
        TRY(import_one(r, NULL, 0));
        lark_skip_space(r, true);
    } while (source_skip(&r->in, ","));
    if (!source_skip(&r->in, ")"))
        return source_invalid(&r->in, "the closing ')' is missing");
    return 0;
}

static int read_ignore(struct reader *r) {
    r->terminal = true;
    r->over = false;
    return expr_vec_add(r->in.b, &r->skips, lark_read_alternatives(r, NO_RULE));
}

static int read_statement(struct reader *r) {
    TRY(build_work(r->in.b, 1));
    if (source_skip(&r->in, "%import"))
        return read_import(r);
    if (source_skip(&r->in, "%ignore"))
        return read_ignore(r);
    if (source_peek(&r->in, 0) == '%')
        return source_unsupported(&r->in, "this directive is");
    return read_definition(r);
}

/* Makes the rule of the ignored terminals if the source has an %ignore. */
static int make_ignored(struct reader *r, uint32_t *rule) {
    static const char word[] = "%ignore";

    *rule = NO_RULE;
    if (!memmem(r->in.start, (size_t)(r->in.end - r->in.start), word, sizeof(word) - 1))
        return 0;
    int e = build_rule(r->in.b, "%ignore", rule);

    if (e == 0)
        r->ignored = expr_call(r->in.b, *rule);
    return r->in.b->failed;
}

static struct expr *lark_read_all(struct reader *r) {
    struct build *b = r->in.b;
    uint32_t ignored;
    int e = make_ignored(r, &ignored);

    for (lark_skip_space(r, true); e == 0 && r->in.p < r->in.end; lark_skip_space(r, true))
        e = read_statement(r);
    if (e < 0 || rulebook_check(&r->book, b) < 0)
        return NULL;
    const struct rulebook_entry *start = rulebook_find(&r->book, "start", 5);

    if (!start)
        return failed(build_invalid(b, "grammar: the rule 'start' is missing"));
    struct expr *x = expr_call(b, start->rule);

    if (!r->ignored)
        return x;
    struct expr *skips = expr_repeat(b, expr_alt_of(b, &r->skips), 0, NO_MAX);

    b->rule[ignored].body = skips;
    return expr_seq2(b, r->ignored, x);
}

struct expr *lark_read(struct build *b, const char *s, size_t len, enum char_mode mode) {
    struct reader r = {.in = {.b = b, .start = s, .p = s, .end = s + len}, .mode = mode};
    struct expr *e = lark_read_all(&r);

    rulebook_deinit(&r.book);
    return e;
}
