/*
 * lark - grammars as Lark writes them, which is what OpenAI's custom tools come with: rules (lower case) and
 * terminals (upper case), strings, /regular expressions/, ranges, groups, [options], * + ? ~n ~n..m,
 * %import of the library `common`, %ignore. It starts at the rule `start`.
 *
 * Texts are those that Lark's own Earley parser reads with its dynamic lexer: there is no lexer that prefers
 * the longest terminal, and priorities only choose between trees. What %ignore names may stand at the start and
 * behind every terminal that a rule uses.
 *
 * A rule that begins with itself, as lists and operators do in Lark, becomes a repetition: `a: a x | y` is
 * y x*. Rules that begin with themselves by way of others are refused when the automaton is made.
 */

#include "text/grammar/lark.h"

#include <errno.h>
#include <string.h>

struct reader {
    struct build *b;
    const char *start, *p, *end;
    enum char_mode mode;
    uint32_t depth;
    bool over;             /* the definition has ended */
    bool terminal;         /* it is a terminal's */
    struct expr *ignored;  /* a call of what may be skipped; NULL: nothing may */
    struct expr_vec skips; /* what that is */
    struct rulebook book;
};

static int read_alternatives(struct reader *r, uint32_t self, struct expr **out);

static size_t line_of(const struct reader *r) {
    size_t n = 1;

    for (const char *p = r->start; p < r->p; p++)
        n += *p == '\n';
    return n;
}

static int invalid(struct reader *r, const char *what) {
    return build_invalid(r->b, "grammar, line %zu: %s", line_of(r), what);
}

static int unsupported(struct reader *r, const char *what) {
    return build_unsupported(r->b, "grammar, line %zu: %s not supported", line_of(r), what);
}

static bool skip(struct reader *r, const char *s) {
    size_t n = strlen(s);

    if ((size_t)(r->end - r->p) < n || memcmp(r->p, s, n) != 0)
        return false;
    r->p += n;
    return true;
}

static char peek(const struct reader *r, size_t i) {
    return (size_t)(r->end - r->p) > i ? r->p[i] : 0;
}

/* Blanks and comments; @lines: line breaks, too. */
static void skip_space(struct reader *r, bool lines) {
    for (;; r->p++) {
        char c = peek(r, 0);

        if (c == '#' || (c == '/' && peek(r, 1) == '/')) {
            while (r->p < r->end && *r->p != '\n')
                r->p++;
            c = peek(r, 0);
        }
        if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r')))
            return;
    }
}

/* Whether nothing more of the sequence comes. A line that begins with `|` goes on with the definition. */
static bool at_end(struct reader *r) {
    skip_space(r, r->depth > 1);
    char c = peek(r, 0);

    if (r->over || r->p == r->end)
        return true;
    if (c == '\n' || c == '\r') {
        skip_space(r, true);
        r->over = peek(r, 0) != '|';
        return true;
    }
    return c == '|' || c == ')' || c == ']' || (c == '-' && peek(r, 1) == '>');
}

/* ---- names */

static bool is_lower(char c) {
    return (c >= 'a' && c <= 'z') || c == '_' || (c >= '0' && c <= '9');
}

static bool is_upper(char c) {
    return (c >= 'A' && c <= 'Z') || c == '_' || (c >= '0' && c <= '9');
}

/* Of the name at the current place; 0: there is none. */
static size_t name_length(const struct reader *r, bool *terminal) {
    size_t n = 0;

    while (peek(r, n) == '_')
        n++;
    *terminal = peek(r, n) >= 'A' && peek(r, n) <= 'Z';
    if (!*terminal && !(peek(r, n) >= 'a' && peek(r, n) <= 'z'))
        return 0;
    while (*terminal ? is_upper(peek(r, n)) : is_lower(peek(r, n)))
        n++;
    return n;
}

static int call_of(struct reader *r, const char *s, size_t len, struct expr **out) {
    uint32_t i;
    int e = rulebook_take(&r->book, r->b, s, len, &i);

    if (e < 0)
        return e;
    *out = expr_call(r->b, r->book.entry[i].rule);
    return *out ? 0 : build_no_memory(r->b);
}

static int define(struct reader *r, const char *s, size_t len, uint32_t *rule) {
    uint32_t i;
    int e = rulebook_take(&r->book, r->b, s, len, &i);

    if (e < 0)
        return e;
    if (r->book.entry[i].defined)
        return build_invalid(r->b, "grammar, line %zu: '%.*s' was defined before", line_of(r),
                             (int)MIN(len, (size_t)100), s);
    r->book.entry[i].defined = true;
    *rule = r->book.entry[i].rule;
    return 0;
}

/* ---- terminals */

static int read_hex(struct reader *r, int n, uint32_t *out) {
    uint32_t v = 0;

    for (int i = 0; i < n; i++, r->p++) {
        char c = peek(r, 0);
        int d = c >= '0' && c <= '9' ? c - '0' : -1;

        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            d = (c | 0x20) - 'a' + 10;
        if (d < 0)
            return invalid(r, "a hexadecimal digit is missing");
        v = v * 16 + (uint32_t)d;
    }
    if (v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
        return invalid(r, "a bad code point");
    *out = v;
    return 0;
}

static int read_char(struct reader *r, uint32_t *cp) {
    if (skip(r, "\\")) {
        static const char FROM[] = "nrtfv\\\"'/", TO[] = "\n\r\t\f\v\\\"'/";
        char c = peek(r, 0);
        const char *at = c ? strchr(FROM, c) : NULL;

        r->p += c != 0;
        if (at) {
            *cp = (uint8_t)TO[at - FROM];
            return 0;
        }
        if (c == 'x' || c == 'u' || c == 'U')
            return read_hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, cp);
        return invalid(r, "an unknown escape");
    }
    unsigned n = r->p < r->end ? utf8_read(r->p, (size_t)(r->end - r->p), cp) : 0;

    if (n == 0)
        return invalid(r, "invalid UTF-8");
    r->p += n;
    return 0;
}

static struct expr *char_of(struct reader *r, uint32_t lo, uint32_t hi, bool any_case) {
    struct cp_set *set = arena_alloc(&r->b->arena, sizeof(*set));
    uint32_t other = lo ^ 0x20;
    bool letter = lo < 128 && ((lo | 0x20) >= 'a' && (lo | 0x20) <= 'z');

    if (!set || cp_set_add(r->b, set, lo, hi) < 0)
        return NULL;
    if (any_case && letter && cp_set_add(r->b, set, other, other) < 0)
        return NULL;
    cp_set_normalize(set);
    return expr_chars(r->b, set, r->mode);
}

/* Behind the first '"': the code points, and the one when there is just one. */
static int read_string(struct reader *r, struct expr **out, uint32_t *only) {
    const char *from = r->p;
    struct expr_vec v = {0};
    uint32_t cp = 0;
    bool any_case;

    while (peek(r, 0) != '"') { /* how it is read depends on what follows it */
        if (r->p == r->end || *r->p == '\n')
            return invalid(r, "'\"' is missing");
        r->p += 1 + (*r->p == '\\' && r->p + 1 < r->end);
    }
    const char *to = r->p;
    any_case = peek(r, 1) == 'i';
    for (r->p = from; r->p < to;) {
        int e = read_char(r, &cp);

        if (e == 0)
            e = expr_vec_add(r->b, &v, char_of(r, cp, cp, any_case));
        if (e < 0)
            return e;
    }
    if (r->p > to)
        return invalid(r, "an unknown escape");
    r->p = to + 1 + any_case;
    *only = v.n == 1 ? cp : UINT32_MAX;
    *out = expr_seq(r->b, v.v, v.n);
    return *out ? 0 : build_no_memory(r->b);
}

static int read_literal(struct reader *r, struct expr **out) {
    uint32_t lo, hi;
    int e = read_string(r, out, &lo);

    if (e < 0 || peek(r, 0) != '.' || peek(r, 1) != '.')
        return e;
    r->p += 2;
    if (!skip(r, "\""))
        return invalid(r, "a range needs a string on both sides");
    if ((e = read_string(r, out, &hi)) < 0)
        return e;
    if (lo == UINT32_MAX || hi == UINT32_MAX || hi < lo)
        return invalid(r, "a range needs one character on both sides, in order");
    *out = char_of(r, lo, hi, false);
    return *out ? 0 : build_no_memory(r->b);
}

static int read_regex(struct reader *r, struct expr **out) {
    const char *from = ++r->p;
    unsigned options = 0;

    while (r->p < r->end && *r->p != '/' && *r->p != '\n')
        r->p += 1 + (*r->p == '\\' && r->p + 1 < r->end);
    size_t len = (size_t)(r->p - from);

    if (!skip(r, "/"))
        return invalid(r, "'/' is missing at the end of a regular expression");
    for (; peek(r, 0) >= 'a' && peek(r, 0) <= 'z'; r->p++) {
        if (*r->p == 'x')
            return unsupported(r, "the flag x of a regular expression is");
        if (!strchr("imslu", *r->p))
            return invalid(r, "an unknown flag of a regular expression");
        options |= *r->p == 'i' ? REGEX_ANY_CASE : *r->p == 's' ? REGEX_DOT_ALL : 0;
    }
    return regex_read_with(r->b, from, len, r->mode, REGEX_WHOLE, options, out);
}

/* ---- items */

static int read_number(struct reader *r, uint32_t *out) {
    uint64_t v = 0;
    const char *from = r->p;

    while (peek(r, 0) >= '0' && peek(r, 0) <= '9' && v < NO_MAX)
        v = v * 10 + (uint64_t)(*r->p++ - '0');
    if (r->p == from || v >= NO_MAX)
        return invalid(r, "a bad count");
    *out = (uint32_t)v;
    return 0;
}

static int read_counts(struct reader *r, const char *between, const char *close, uint32_t *min,
                       uint32_t *max) {
    int e = 0;

    skip_space(r, false);
    if (*close && peek(r, 0) == ',')
        *min = 0;
    else
        e = read_number(r, min);
    *max = *min;
    if (e == 0 && skip(r, between)) {
        skip_space(r, false);
        *max = NO_MAX;
        if (!*close || peek(r, 0) != '}')
            e = read_number(r, max);
    }
    if (e == 0 && (!skip(r, close) || *max < *min))
        return invalid(r, "a bad count");
    return e;
}

static int read_quantifier(struct reader *r, struct expr **x) {
    uint32_t min = 0, max = NO_MAX;
    int e = 0;

    if (skip(r, "+")) {
        min = 1;
    } else if (skip(r, "?")) {
        max = 1;
    } else if (skip(r, "{")) {
        e = read_counts(r, ",", "}", &min, &max);
    } else if (!skip(r, "*")) {
        const char *p = r->p;

        skip_space(r, false);
        if (!skip(r, "~")) {
            r->p = p;
            return 0;
        }
        e = read_counts(r, "..", "", &min, &max);
    }
    if (e < 0)
        return e;
    *x = expr_repeat(r->b, *x, min, max);
    return *x ? 1 : build_no_memory(r->b);
}

static int read_group(struct reader *r, char close, struct expr **out) {
    int e = read_alternatives(r, NO_RULE, out);

    if (e < 0)
        return e;
    if (peek(r, 0) != close)
        return invalid(r, close == ')' ? "')' is missing" : "']' is missing");
    r->p++;
    if (close == ']')
        *out = expr_optional(r->b, *out);
    return *out ? 0 : build_no_memory(r->b);
}

/* In a rule, what is ignored may follow a terminal. */
static int read_item(struct reader *r, struct expr **out) {
    bool terminal = true;
    size_t n;
    int e;

    if (skip(r, "("))
        return read_group(r, ')', out);
    if (skip(r, "["))
        return read_group(r, ']', out);
    if (skip(r, "\"")) {
        e = read_literal(r, out);
    } else if (peek(r, 0) == '/') {
        e = read_regex(r, out);
    } else if ((n = name_length(r, &terminal)) > 0) {
        e = call_of(r, r->p, n, out);
        r->p += n;
        if (peek(r, 0) == '{' && !strchr(" ,0123456789", peek(r, 1)))
            return unsupported(r, "templates are");
    } else {
        char c = peek(r, 0);

        return c == '<' || c == '%' || c == '&' || c == '~'
                   ? unsupported(r, "special tokens, %json, & and ~ of terminals are")
                   : invalid(r, "this is not an item of a rule");
    }
    if (e == 0 && terminal && !r->terminal && r->ignored) {
        *out = expr_seq2(r->b, *out, r->ignored);
        e = *out ? 0 : build_no_memory(r->b);
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
            e = expr_vec_add(r->b, &v, x);
        if (e < 0)
            return e;
    }
    *out = expr_seq(r->b, v.v, v.n);
    if (!*out)
        return build_no_memory(r->b);
    if (!r->over && skip(r, "->")) { /* the name of a tree */
        bool terminal;

        skip_space(r, false);
        size_t n = name_length(r, &terminal);

        if (n == 0 || terminal)
            return invalid(r, "a name is missing behind ->");
        r->p += n;
        if (!at_end(r))
            return invalid(r, "nothing may follow the name behind ->");
    }
    return 0;
}

/* What follows when @x begins with a call of @self; NULL: it does not. */
static struct expr *tail_of(struct reader *r, struct expr *x, uint32_t self) {
    if (x->kind == EXPR_CALL && x->id == self)
        return expr_empty(r->b);
    if (x->kind == EXPR_SEQ && x->child[0]->kind == EXPR_CALL && x->child[0]->id == self)
        return expr_seq(r->b, x->child + 1, x->n - 1);
    return NULL;
}

/* @self: the rule that they are, or NO_RULE. */
static int read_alternatives(struct reader *r, uint32_t self, struct expr **out) {
    struct expr_vec v = {0}, tails = {0};

    if (++r->depth > r->b->limits.max_depth)
        return build_too_complex(r->b, "grammar, line %zu: groups are nested more than %u deep",
                                 line_of(r), r->b->limits.max_depth);
    do {
        struct expr *x = NULL, *tail = NULL;
        int e = read_sequence(r, &x);

        if (e == 0 && self != NO_RULE)
            tail = tail_of(r, x, self);
        if (e == 0)
            e = expr_vec_add(r->b, tail ? &tails : &v, tail ? tail : x);
        if (e < 0)
            return e;
    } while (!r->over && skip(r, "|"));
    r->depth--;
    *out = expr_alt(r->b, v.v, v.n);
    if (tails.n && *out)
        *out =
            expr_seq2(r->b, *out, expr_repeat(r->b, expr_alt(r->b, tails.v, tails.n), 0, NO_MAX));
    return *out ? 0 : build_no_memory(r->b);
}

/* ---- statements */

static int read_definition(struct reader *r) {
    const char *name;
    uint32_t rule;
    size_t n;

    while (skip(r, "?") || skip(r, "!"))
        ;
    name = r->p;
    if ((n = name_length(r, &r->terminal)) == 0)
        return invalid(r, "expected a rule, a terminal or a directive");
    r->p += n;
    if (peek(r, 0) == '{' || peek(r, 0) == '[')
        return unsupported(r, "templates and attributes of rules are");
    if (skip(r, ".")) { /* a priority */
        r->p += peek(r, 0) == '-';
        if (read_number(r, &rule) < 0)
            return -EINVAL;
    }
    skip_space(r, false);
    if (!skip(r, ":"))
        return invalid(r, "expected ':'");
    struct expr *body = NULL;
    int e = define(r, name, n, &rule);

    r->over = false;
    if (e == 0)
        e = read_alternatives(r, rule, &body);
    if (e == 0 && !r->over && r->p < r->end)
        return invalid(r, "a bracket without its other one");
    r->b->rule[rule].body = e == 0 ? body : NULL;
    return e;
}

static int import_one(struct reader *r, const char *as, size_t as_len) {
    bool terminal;
    size_t n = name_length(r, &terminal);
    const char *regex = lark_common(r->p, n);
    struct expr *body = NULL;
    uint32_t rule;

    if (!regex)
        return unsupported(r, n ? "this terminal of common is" : "such an import is");
    int e = define(r, as ? as : r->p, as ? as_len : n, &rule);

    r->p += n;
    if (e == 0)
        e = regex_read(r->b, regex, strlen(regex), r->mode, REGEX_WHOLE, &body);
    if (e == 0)
        r->b->rule[rule].body = body;
    return e;
}

/* common.NAME [-> NAME], or common (NAME, ...). */
static int read_import(struct reader *r) {
    bool terminal;

    skip_space(r, false);
    if (!skip(r, "common"))
        return unsupported(r, "an import of anything but common is");
    if (skip(r, ".")) {
        const char *name = r->p, *as = NULL;
        size_t n = name_length(r, &terminal), as_len = 0;

        r->p += n;
        skip_space(r, false);
        if (skip(r, "->")) {
            skip_space(r, false);
            as = r->p;
            if (!(as_len = name_length(r, &terminal)))
                return invalid(r, "a name is missing behind ->");
        }
        const char *end = r->p + as_len;

        r->p = name;
        int e = import_one(r, as, as_len);
        r->p = as ? end : r->p;
        return e;
    }
    skip_space(r, false);
    if (!skip(r, "("))
        return invalid(r, "expected a terminal of common");
    do {
        skip_space(r, true);
        int e = import_one(r, NULL, 0);

        if (e < 0)
            return e;
        skip_space(r, true);
    } while (skip(r, ","));
    return skip(r, ")") ? 0 : invalid(r, "')' is missing");
}

static int read_ignore(struct reader *r) {
    struct expr *x = NULL;

    r->terminal = true;
    r->over = false;
    int e = read_alternatives(r, NO_RULE, &x);

    return e < 0 ? e : expr_vec_add(r->b, &r->skips, x);
}

static int read_statement(struct reader *r) {
    int e = build_work(r->b, 1);

    if (e < 0)
        return e;
    if (skip(r, "%import"))
        return read_import(r);
    if (skip(r, "%ignore"))
        return read_ignore(r);
    return peek(r, 0) == '%' ? unsupported(r, "this directive is") : read_definition(r);
}

/* Somewhere there is an %ignore: what is ignored is a rule. */
static int make_ignored(struct reader *r, uint32_t *rule) {
    static const char word[] = "%ignore";

    *rule = NO_RULE;
    if (!memmem(r->start, (size_t)(r->end - r->start), word, sizeof(word) - 1))
        return 0;
    int e = build_rule(r->b, "%ignore", rule);

    if (e == 0)
        r->ignored = expr_call(r->b, *rule);
    return e < 0 ? e : r->ignored ? 0 : build_no_memory(r->b);
}

static int read_all(struct reader *r, struct expr **out) {
    uint32_t ignored;
    int e = make_ignored(r, &ignored);

    for (skip_space(r, true); e == 0 && r->p < r->end; skip_space(r, true))
        e = read_statement(r);
    if (e == 0)
        e = rulebook_check(&r->book, r->b);
    if (e < 0)
        return e;
    const struct rulebook_entry *start = rulebook_find(&r->book, "start", 5);

    if (!start)
        return build_invalid(r->b, "grammar: there is no rule 'start'");
    *out = expr_call(r->b, start->rule);
    if (r->ignored) {
        r->b->rule[ignored].body =
            expr_repeat(r->b, expr_alt(r->b, r->skips.v, r->skips.n), 0, NO_MAX);
        if (!r->b->rule[ignored].body)
            return build_no_memory(r->b);
        *out = expr_seq2(r->b, r->ignored, *out);
    }
    return *out ? 0 : build_no_memory(r->b);
}

int lark_read(struct build *b, const char *s, size_t len, enum char_mode mode, struct expr **out) {
    struct reader r = {.b = b, .start = s, .p = s, .end = s + len, .mode = mode};
    int e = read_all(&r, out);

    rulebook_deinit(&r.book);
    return e;
}
