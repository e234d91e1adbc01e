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
#include "grammar/front/source.h"

#include <errno.h>
#include <string.h>
#include "base/json_value.h"

struct reader {
    struct source in;
    enum char_mode mode;
    uint32_t depth;
    bool over;             /* the definition has ended */
    bool terminal;         /* it is a terminal's */
    struct expr *ignored;  /* a call of what may be skipped; NULL: nothing may */
    struct expr_vec skips; /* what that is */
    struct rulebook book;
};

static const struct source_escapes escapes = {"abnrtfv\\\"'/", "\a\b\n\r\t\f\v\\\"'/"};

static int read_alternatives(struct reader *r, uint32_t self, struct expr **out);

/* Blanks and comments; @lines: line breaks, too. */
static void skip_space(struct reader *r, bool lines) {
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
static bool at_end(struct reader *r) {
    skip_space(r, r->depth > 1);
    char c = source_peek(&r->in, 0);

    if (r->over || r->in.p == r->in.end)
        return true;
    if (c == '\n' || c == '\r') {
        skip_space(r, true);
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
static size_t name_length(const struct reader *r, bool *terminal) {
    size_t n = 0;

    while (source_peek(&r->in, n) == '_')
        n++;
    *terminal = source_peek(&r->in, n) >= 'A' && source_peek(&r->in, n) <= 'Z';
    if (!*terminal && !(source_peek(&r->in, n) >= 'a' && source_peek(&r->in, n) <= 'z'))
        return 0;
    while (*terminal ? is_upper(source_peek(&r->in, n)) : is_lower(source_peek(&r->in, n)))
        n++;
    return n;
}

static int call_of(struct reader *r, const char *s, size_t len, struct expr **out) {
    uint32_t i;
    int e = rulebook_take(&r->book, r->in.b, s, len, &i);

    if (e < 0)
        return e;
    *out = expr_call(r->in.b, r->book.entry[i].rule);
    return *out ? 0 : build_no_memory(r->in.b);
}

static int define(struct reader *r, const char *s, size_t len, uint32_t *rule) {
    uint32_t i;
    int e = rulebook_take(&r->book, r->in.b, s, len, &i);

    if (e < 0)
        return e;
    if (r->book.entry[i].defined)
        return build_invalid(r->in.b, "grammar, line %zu: '%.*s' is defined twice",
                             source_line(&r->in), (int)MIN(len, (size_t)100), s);
    r->book.entry[i].defined = true;
    *rule = r->book.entry[i].rule;
    return 0;
}

/* ---- terminals */

static struct expr *char_of(struct reader *r, uint32_t lo, uint32_t hi, bool any_case) {
    struct cp_set *set = arena_alloc(&r->in.b->arena, sizeof(*set));
    uint32_t other = lo ^ 0x20;
    bool letter = lo < 128 && ((lo | 0x20) >= 'a' && (lo | 0x20) <= 'z');

    if (!set || cp_set_add(r->in.b, set, lo, hi) < 0)
        return NULL;
    if (any_case && letter && cp_set_add(r->in.b, set, other, other) < 0)
        return NULL;
    cp_set_normalize(set);
    return expr_chars(r->in.b, set, r->mode);
}

/* Behind the first '"': the code points, and the one when there is just one. */
static int read_string(struct reader *r, struct expr **out, uint32_t *only) {
    const char *from = r->in.p;
    struct expr_vec v = {0};
    uint32_t cp = 0;
    bool any_case;

    while (source_peek(&r->in, 0) != '"') { /* how it is read depends on what follows it */
        if (r->in.p == r->in.end || *r->in.p == '\n')
            return source_invalid(&r->in, "the closing '\"' is missing");
        r->in.p += 1 + (*r->in.p == '\\' && r->in.p + 1 < r->in.end);
    }
    const char *to = r->in.p;
    any_case = source_peek(&r->in, 1) == 'i';
    for (r->in.p = from; r->in.p < to;) {
        int e = source_read_char(&r->in, &escapes, &cp);

        if (e == 0)
            e = expr_vec_add(r->in.b, &v, char_of(r, cp, cp, any_case));
        if (e < 0)
            return e;
    }
    if (r->in.p > to)
        return source_invalid(&r->in, "unknown escape sequence");
    r->in.p = to + 1 + any_case;
    *only = v.n == 1 ? cp : UINT32_MAX;
    *out = expr_seq(r->in.b, v.v, v.n);
    return *out ? 0 : build_no_memory(r->in.b);
}

static int read_literal(struct reader *r, struct expr **out) {
    uint32_t lo, hi;
    int e = read_string(r, out, &lo);

    if (e < 0 || source_peek(&r->in, 0) != '.' || source_peek(&r->in, 1) != '.')
        return e;
    r->in.p += 2;
    if (!source_skip(&r->in, "\""))
        return source_invalid(&r->in, "a range needs a string on both sides");
    if ((e = read_string(r, out, &hi)) < 0)
        return e;
    if (lo == UINT32_MAX || hi == UINT32_MAX || hi < lo)
        return source_invalid(&r->in, "a range needs one character on both sides, in order");
    *out = char_of(r, lo, hi, false);
    return *out ? 0 : build_no_memory(r->in.b);
}

static int read_regex(struct reader *r, struct expr **out) {
    const char *from = ++r->in.p;
    unsigned options = 0;

    while (r->in.p < r->in.end && *r->in.p != '/' && *r->in.p != '\n')
        r->in.p += 1 + (*r->in.p == '\\' && r->in.p + 1 < r->in.end);
    size_t len = (size_t)(r->in.p - from);

    if (!source_skip(&r->in, "/"))
        return source_invalid(&r->in, "the closing '/' of a regular expression is missing");
    for (; source_peek(&r->in, 0) >= 'a' && source_peek(&r->in, 0) <= 'z'; r->in.p++) {
        if (*r->in.p == 'x')
            return source_unsupported(&r->in, "the flag x of a regular expression is");
        if (!strchr("imslu", *r->in.p))
            return source_invalid(&r->in, "unknown flag of a regular expression");
        options |= *r->in.p == 'i' ? REGEX_ANY_CASE : *r->in.p == 's' ? REGEX_DOT_ALL : 0;
    }
    return regex_read_with(r->in.b, from, len, r->mode, REGEX_WHOLE, options, out);
}

/* ---- items */

static int read_number(struct reader *r, uint32_t *out) {
    uint64_t v = 0;
    const char *from = r->in.p;

    while (source_peek(&r->in, 0) >= '0' && source_peek(&r->in, 0) <= '9' && v < NO_MAX)
        v = v * 10 + (uint64_t)(*r->in.p++ - '0');
    if (r->in.p == from || v >= NO_MAX)
        return source_invalid(&r->in, "the repetition count is malformed or too large");
    *out = (uint32_t)v;
    return 0;
}

static int read_counts(struct reader *r, const char *between, const char *close, uint32_t *min,
                       uint32_t *max) {
    int e = 0;

    skip_space(r, false);
    if (*close && source_peek(&r->in, 0) == ',')
        *min = 0;
    else
        e = read_number(r, min);
    *max = *min;
    if (e == 0 && source_skip(&r->in, between)) {
        skip_space(r, false);
        *max = NO_MAX;
        if (!*close || source_peek(&r->in, 0) != '}')
            e = read_number(r, max);
    }
    if (e == 0 && (!source_skip(&r->in, close) || *max < *min))
        return source_invalid(&r->in, "the repetition count is malformed or too large");
    return e;
}

static int read_quantifier(struct reader *r, struct expr **x) {
    uint32_t min = 0, max = NO_MAX;
    int e = 0;

    if (source_skip(&r->in, "+")) {
        min = 1;
    } else if (source_skip(&r->in, "?")) {
        max = 1;
    } else if (source_skip(&r->in, "{")) {
        e = read_counts(r, ",", "}", &min, &max);
    } else if (!source_skip(&r->in, "*")) {
        const char *p = r->in.p;

        skip_space(r, false);
        if (!source_skip(&r->in, "~")) {
            r->in.p = p;
            return 0;
        }
        e = read_counts(r, "..", "", &min, &max);
    }
    if (e < 0)
        return e;
    *x = expr_repeat(r->in.b, *x, min, max);
    return *x ? 1 : build_no_memory(r->in.b);
}

static int read_group(struct reader *r, char close, struct expr **out) {
    int e = read_alternatives(r, NO_RULE, out);

    if (e < 0)
        return e;
    if (source_peek(&r->in, 0) != close)
        return source_invalid(&r->in, close == ')' ? "the closing ')' is missing"
                                                   : "the closing ']' is missing");
    r->in.p++;
    if (close == ']')
        *out = expr_optional(r->in.b, *out);
    return *out ? 0 : build_no_memory(r->in.b);
}

/* Behind %json: a schema, whose values are a terminal. */
static int read_schema(struct reader *r, struct expr **out) {
    char *from = (char *)(uintptr_t)r->in.p;
    int e = build_work(r->in.b, (uint64_t)(r->in.end - from) / 16); /* the rest is copied */

    if (e < 0)
        return e;
    yyjson_doc *doc;
    e = json_parse(&doc, from, (size_t)(r->in.end - from),
                   YYJSON_READ_STOP_WHEN_DONE | YYJSON_READ_NUMBER_AS_RAW);
    size_t len = yyjson_doc_get_read_size(doc);

    yyjson_doc_free(doc);
    if (e == -ENOMEM)
        return e;
    if (e < 0)
        return source_invalid(&r->in, "a JSON Schema is missing behind %json");
    if (r->terminal || r->mode != CHARS_TEXT)
        return source_unsupported(&r->in, "%json in a terminal or inside a string is");
    e = schema_read(r->in.b, from, len, out);
    r->in.p += len;
    return e;
}

/* In a rule, what is ignored may follow a terminal. */
static int read_item(struct reader *r, struct expr **out) {
    bool terminal = true;
    size_t n;
    int e;

    if (source_skip(&r->in, "("))
        return read_group(r, ')', out);
    if (source_skip(&r->in, "["))
        return read_group(r, ']', out);
    if (source_skip(&r->in, "\"")) {
        e = read_literal(r, out);
    } else if (source_peek(&r->in, 0) == '/') {
        e = read_regex(r, out);
    } else if (source_skip(&r->in, "%json")) {
        e = read_schema(r, out);
    } else if ((n = name_length(r, &terminal)) > 0) {
        e = call_of(r, r->in.p, n, out);
        r->in.p += n;
        if (source_peek(&r->in, 0) == '{' && !strchr(" ,0123456789", source_peek(&r->in, 1)))
            return source_unsupported(&r->in, "templates are");
    } else {
        char c = source_peek(&r->in, 0);

        return c == '<' || c == '%' || c == '&' || c == '~'
                   ? source_unsupported(&r->in,
                                        "special tokens, %regex, %lark, & and ~ of terminals are")
                   : source_invalid(&r->in,
                                    "expected a string, a regular expression, a group or a name");
    }
    if (e == 0 && terminal && !r->terminal && r->ignored) {
        *out = expr_seq2(r->in.b, *out, r->ignored);
        e = *out ? 0 : build_no_memory(r->in.b);
    }
    return e;
}

static int read_sequence(struct reader *r, struct expr **out) {
    struct expr_vec v = {0};

    while (!at_end(r)) {
        struct expr *x = NULL;
        int e = read_item(r, &x);

        for (int more = e == 0; more; more = e > 0)
            e = read_quantifier(r, &x);
        if (e == 0)
            e = expr_vec_add(r->in.b, &v, x);
        if (e < 0)
            return e;
    }
    *out = expr_seq(r->in.b, v.v, v.n);
    if (!*out)
        return build_no_memory(r->in.b);
    if (!r->over && source_skip(&r->in, "->")) { /* the name of a tree */
        bool terminal;

        skip_space(r, false);
        size_t n = name_length(r, &terminal);

        if (n == 0 || terminal)
            return source_invalid(&r->in, "a name is missing behind ->");
        r->in.p += n;
        if (!at_end(r))
            return source_invalid(&r->in, "nothing may follow the name behind ->");
    }
    return 0;
}

/* Returns what follows the call of @self with which @x begins, or NULL when @x begins otherwise. */
static struct expr *tail_of(struct reader *r, struct expr *x, uint32_t self) {
    if (x->kind == EXPR_CALL && x->id == self)
        return expr_empty(r->in.b);
    if (x->kind == EXPR_SEQ && x->child[0]->kind == EXPR_CALL && x->child[0]->id == self)
        return expr_seq(r->in.b, x->child + 1, x->n - 1);
    return NULL;
}

/* @self: the rule that they are, or NO_RULE. */
static int read_alternatives(struct reader *r, uint32_t self, struct expr **out) {
    struct expr_vec v = {0}, tails = {0};

    if (++r->depth > r->in.b->limits.max_depth)
        return build_too_complex(r->in.b, "grammar, line %zu: groups are nested more than %u deep",
                                 source_line(&r->in), r->in.b->limits.max_depth);
    do {
        struct expr *x = NULL, *tail = NULL;
        int e = read_sequence(r, &x);

        if (e == 0 && self != NO_RULE)
            tail = tail_of(r, x, self);
        if (e == 0)
            e = expr_vec_add(r->in.b, tail ? &tails : &v, tail ? tail : x);
        if (e < 0)
            return e;
    } while (!r->over && source_skip(&r->in, "|"));
    r->depth--;
    *out = expr_alt(r->in.b, v.v, v.n);
    if (tails.n && *out)
        *out = expr_seq2(r->in.b, *out,
                         expr_repeat(r->in.b, expr_alt(r->in.b, tails.v, tails.n), 0, NO_MAX));
    return *out ? 0 : build_no_memory(r->in.b);
}

/* ---- statements */

static int read_definition(struct reader *r) {
    const char *name;
    uint32_t rule;
    size_t n;

    while (source_skip(&r->in, "?") || source_skip(&r->in, "!"))
        ;
    name = r->in.p;
    if ((n = name_length(r, &r->terminal)) == 0)
        return source_invalid(&r->in, "expected a rule, a terminal or a directive");
    r->in.p += n;
    if (source_peek(&r->in, 0) == '{' || source_peek(&r->in, 0) == '[')
        return source_unsupported(&r->in, "templates and attributes of rules are");
    if (source_skip(&r->in, ".")) { /* a priority */
        r->in.p += source_peek(&r->in, 0) == '-';
        if (read_number(r, &rule) < 0)
            return -EINVAL;
    }
    skip_space(r, false);
    if (!source_skip(&r->in, ":"))
        return source_invalid(&r->in, "expected ':'");
    struct expr *body = NULL;
    int e = define(r, name, n, &rule);

    r->over = false;
    if (e == 0)
        e = read_alternatives(r, rule, &body);
    if (e == 0 && !r->over && r->in.p < r->in.end)
        return source_invalid(&r->in, "a bracket has no counterpart");
    r->in.b->rule[rule].body = e == 0 ? body : NULL;
    return e;
}

static int import_one(struct reader *r, const char *as, size_t as_len) {
    bool terminal;
    size_t n = name_length(r, &terminal);
    const char *regex = lark_common(r->in.p, n);
    struct expr *body = NULL;
    uint32_t rule;

    if (!regex)
        return source_unsupported(&r->in, n ? "this terminal of common is" : "such an import is");
    int e = define(r, as ? as : r->in.p, as ? as_len : n, &rule);

    r->in.p += n;
    if (e == 0)
        e = regex_read(r->in.b, regex, strlen(regex), r->mode, REGEX_WHOLE, &body);
    if (e == 0)
        r->in.b->rule[rule].body = body;
    return e;
}

/* common.NAME [-> NAME], or common (NAME, ...). */
static int read_import(struct reader *r) {
    bool terminal;

    skip_space(r, false);
    if (!source_skip(&r->in, "common"))
        return source_unsupported(&r->in, "an import of anything but common is");
    if (source_skip(&r->in, ".")) {
        const char *name = r->in.p, *as = NULL;
        size_t n = name_length(r, &terminal), as_len = 0;

        r->in.p += n;
        skip_space(r, false);
        if (source_skip(&r->in, "->")) {
            skip_space(r, false);
            as = r->in.p;
            if (!(as_len = name_length(r, &terminal)))
                return source_invalid(&r->in, "a name is missing behind ->");
        }
        const char *end = r->in.p + as_len;

        r->in.p = name;
        int e = import_one(r, as, as_len);
        r->in.p = as ? end : r->in.p;
        return e;
    }
    skip_space(r, false);
    if (!source_skip(&r->in, "("))
        return source_invalid(&r->in, "expected a terminal of common");
    do {
        skip_space(r, true);
        int e = import_one(r, NULL, 0);

        if (e < 0)
            return e;
        skip_space(r, true);
    } while (source_skip(&r->in, ","));
    return source_skip(&r->in, ")") ? 0 : source_invalid(&r->in, "the closing ')' is missing");
}

static int read_ignore(struct reader *r) {
    struct expr *x = NULL;

    r->terminal = true;
    r->over = false;
    int e = read_alternatives(r, NO_RULE, &x);

    return e < 0 ? e : expr_vec_add(r->in.b, &r->skips, x);
}

static int read_statement(struct reader *r) {
    int e = build_work(r->in.b, 1);

    if (e < 0)
        return e;
    if (source_skip(&r->in, "%import"))
        return read_import(r);
    if (source_skip(&r->in, "%ignore"))
        return read_ignore(r);
    return source_peek(&r->in, 0) == '%' ? source_unsupported(&r->in, "this directive is")
                                         : read_definition(r);
}

/* Somewhere there is an %ignore: what is ignored is a rule. */
static int make_ignored(struct reader *r, uint32_t *rule) {
    static const char word[] = "%ignore";

    *rule = NO_RULE;
    if (!memmem(r->in.start, (size_t)(r->in.end - r->in.start), word, sizeof(word) - 1))
        return 0;
    int e = build_rule(r->in.b, "%ignore", rule);

    if (e == 0)
        r->ignored = expr_call(r->in.b, *rule);
    return e < 0 ? e : r->ignored ? 0 : build_no_memory(r->in.b);
}

static int read_all(struct reader *r, struct expr **out) {
    uint32_t ignored;
    int e = make_ignored(r, &ignored);

    for (skip_space(r, true); e == 0 && r->in.p < r->in.end; skip_space(r, true))
        e = read_statement(r);
    if (e == 0)
        e = rulebook_check(&r->book, r->in.b);
    if (e < 0)
        return e;
    const struct rulebook_entry *start = rulebook_find(&r->book, "start", 5);

    if (!start)
        return build_invalid(r->in.b, "grammar: the rule 'start' is missing");
    *out = expr_call(r->in.b, start->rule);
    if (r->ignored) {
        r->in.b->rule[ignored].body =
            expr_repeat(r->in.b, expr_alt(r->in.b, r->skips.v, r->skips.n), 0, NO_MAX);
        if (!r->in.b->rule[ignored].body)
            return build_no_memory(r->in.b);
        *out = expr_seq2(r->in.b, r->ignored, *out);
    }
    return *out ? 0 : build_no_memory(r->in.b);
}

int lark_read(struct build *b, const char *s, size_t len, enum char_mode mode, struct expr **out) {
    struct reader r = {.in = {.b = b, .start = s, .p = s, .end = s + len}, .mode = mode};
    int e = read_all(&r, out);

    rulebook_deinit(&r.book);
    return e;
}
