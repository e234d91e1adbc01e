/*
 * ebnf - grammars as llama.cpp writes them (GBNF): `name ::= alternatives`, string literals, [classes], `.`, groups,
 * * + ? {m,n}, # comments; `<marker>` and `<[id]>` are special tokens. A rule ends where the next one
 * begins, wherever the newlines are.
 */

#include "text/grammar/rulebook.h"
#include "text/grammar/trie.h"

#include <assert.h>
#include <string.h>

struct reader {
    struct build *b;
    const char *start, *p, *end;
    struct rulebook book;
    uint32_t depth;
};

static int read_alternatives(struct reader *r, struct expr **out);

static size_t line_of(const struct reader *r) {
    size_t n = 1;

    for (const char *p = r->start; p < r->p; p++)
        n += *p == '\n';
    return n;
}

static int invalid(struct reader *r, const char *what) {
    return build_invalid(r->b, "grammar, line %zu: %s", line_of(r), what);
}

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static void skip_space(struct reader *r) {
    while (r->p < r->end) {
        if (*r->p == '#') {
            while (r->p < r->end && *r->p != '\n')
                r->p++;
        } else if (strchr(" \t\r\n", *r->p) && *r->p) {
            r->p++;
        } else {
            return;
        }
    }
}

static bool skip(struct reader *r, const char *s) {
    size_t n = strlen(s);

    if ((size_t)(r->end - r->p) < n || memcmp(r->p, s, n) != 0)
        return false;
    r->p += n;
    return true;
}

static size_t name_length(const struct reader *r) {
    const char *p = r->p;

    while (p < r->end && is_name_char(*p))
        p++;
    return (size_t)(p - r->p);
}

/* Whether `name ::=` stands here. */
static bool at_rule(struct reader *r) {
    const char *p = r->p;
    size_t n = name_length(r);

    if (n == 0)
        return false;
    r->p += n;
    skip_space(r);
    bool yes = skip(r, "::=");

    r->p = p;
    return yes;
}

/* The name at the current place, made when it is new. */
static int read_name(struct reader *r, uint32_t *out) {
    size_t len = name_length(r);
    int e = rulebook_take(&r->book, r->b, r->p, len, out);

    r->p += len;
    return e;
}

static int read_hex(struct reader *r, int n, uint32_t *out) {
    uint32_t v = 0;

    for (int i = 0; i < n; i++) {
        char c = r->p < r->end ? *r->p : 0;
        int d = c >= '0' && c <= '9' ? c - '0' : -1;

        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            d = (c | 0x20) - 'a' + 10;
        if (d < 0)
            return invalid(r, "a hexadecimal digit is missing");
        v = v * 16 + (uint32_t)d;
        r->p++;
    }
    if (v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
        return invalid(r, "a bad code point");
    *out = v;
    return 0;
}

static int read_char(struct reader *r, uint32_t *cp) {
    if (skip(r, "\\")) {
        static const char FROM[] = "nrt\\\"[]-'/^.", TO[] = "\n\r\t\\\"[]-'/^.";
        char c = r->p < r->end ? *r->p++ : 0;
        const char *at = c ? strchr(FROM, c) : NULL;

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

static int read_literal(struct reader *r, struct expr **out) {
    struct expr_vec v = {0};

    while (!skip(r, "\"")) {
        struct cp_set *one = arena_alloc(&r->b->arena, sizeof(*one));
        uint32_t cp;

        if (r->p == r->end || *r->p == '\n')
            return invalid(r, "'\"' is missing");
        int e = one ? read_char(r, &cp) : build_no_memory(r->b);

        if (e == 0)
            e = cp_set_add(r->b, one, cp, cp);
        if (e == 0)
            e = expr_vec_add(r->b, &v, expr_chars(r->b, one, CHARS_TEXT));
        if (e < 0)
            return e;
    }
    *out = expr_seq(r->b, v.v, v.n);
    return *out ? 0 : build_no_memory(r->b);
}

static int read_class(struct reader *r, struct expr **out) {
    struct cp_set *set = arena_alloc(&r->b->arena, sizeof(*set));
    bool negate = skip(r, "^");
    int e = set ? 0 : build_no_memory(r->b);

    while (e == 0 && !skip(r, "]")) {
        uint32_t lo, hi;

        if (r->p == r->end)
            return invalid(r, "']' is missing");
        e = read_char(r, &lo);
        hi = lo;
        if (e == 0 && r->end - r->p >= 2 && r->p[0] == '-' && r->p[1] != ']') {
            r->p++;
            e = read_char(r, &hi);
        }
        if (e == 0 && hi < lo)
            return invalid(r, "a range is out of order");
        if (e == 0)
            e = cp_set_add(r->b, set, lo, hi);
    }
    if (e == 0) {
        cp_set_normalize(set);
        e = negate ? cp_set_invert(r->b, set) : 0;
    }
    if (e < 0)
        return e;
    *out = expr_chars(r->b, set, CHARS_TEXT);
    return *out ? 0 : build_no_memory(r->b);
}

/* `<marker>` or `<[id]>`. */
static int read_token(struct reader *r, struct expr **out) {
    const struct grammar_vocab *v = r->b->vocab;
    const char *from = r->p;
    uint64_t id = 0;
    size_t n = 0;

    while (r->p < r->end && *r->p != '>' && *r->p != '\n')
        r->p++;
    if (!skip(r, ">"))
        return invalid(r, "'>' is missing");
    size_t len = (size_t)(r->p - from);

    if (from[1] == '[' && r->p[-2] == ']' && len > 4) {
        for (const char *p = from + 2; p < r->p - 2; p++) {
            if (*p < '0' || *p > '9' || id > INT32_MAX)
                return invalid(r, "a bad token number");
            id = id * 10 + (uint64_t)(*p - '0');
        }
        if (id > INT32_MAX || (v && id >= vocab_n_tokens(v)))
            return invalid(r, "the vocabulary has no such token");
        *out = expr_token(r->b, (int32_t)id);
    } else if (!v) {
        *out = expr_bytes(r->b, from, len);
    } else {
        int32_t token = vocab_special_at(v, from, len, &n);

        if (token < 0 || n != len)
            return invalid(r, "the vocabulary has no such special token");
        *out = expr_token(r->b, token);
    }
    return *out ? 0 : build_no_memory(r->b);
}

static int read_count(struct reader *r, uint32_t *out) {
    uint64_t v = 0;
    const char *from = r->p;

    while (r->p < r->end && *r->p >= '0' && *r->p <= '9' && v < NO_MAX)
        v = v * 10 + (uint64_t)(*r->p++ - '0');
    if (v >= NO_MAX)
        return invalid(r, "a bad count");
    *out = (uint32_t)v;
    return r->p > from;
}

static int read_quantifier(struct reader *r, struct expr **x) {
    uint32_t min = 0, max = NO_MAX;

    if (skip(r, "+")) {
        min = 1;
    } else if (skip(r, "?")) {
        max = 1;
    } else if (skip(r, "{")) {
        int has_min = read_count(r, &min), has_max = 0;

        if (has_min < 0)
            return has_min;
        max = min;
        if (skip(r, ",")) {
            has_max = read_count(r, &max);
            if (has_max < 0)
                return has_max;
            max = has_max ? max : NO_MAX;
        }
        if (!skip(r, "}") || (!has_min && !has_max) || max < min)
            return invalid(r, "a bad {m,n}");
    } else if (!skip(r, "*")) {
        return 0;
    }
    *x = expr_repeat(r->b, *x, min, max);
    return *x ? 1 : build_no_memory(r->b);
}

static int read_item(struct reader *r, struct expr **out) {
    uint32_t name;
    int e;

    if (skip(r, "\""))
        return read_literal(r, out);
    if (skip(r, "["))
        return read_class(r, out);
    if (*r->p == '<')
        return read_token(r, out);
    if (skip(r, "(")) {
        e = read_alternatives(r, out);
        if (e < 0)
            return e;
        return skip(r, ")") ? 0 : invalid(r, "')' is missing");
    }
    if (skip(r, ".")) {
        struct cp_set *all = arena_alloc(&r->b->arena, sizeof(*all));

        if (!all || cp_set_invert(r->b, all) < 0)
            return build_no_memory(r->b);
        *out = expr_chars(r->b, all, CHARS_TEXT);
        return *out ? 0 : build_no_memory(r->b);
    }
    if (name_length(r) == 0)
        return invalid(r, "this is not an item of a rule");
    e = read_name(r, &name);
    if (e < 0)
        return e;
    *out = expr_call(r->b, r->book.entry[name].rule);
    return *out ? 0 : build_no_memory(r->b);
}

static int read_sequence(struct reader *r, struct expr **out) {
    struct expr_vec v = {0};

    for (skip_space(r); r->p < r->end && *r->p != '|' && *r->p != ')' && !at_rule(r);
         skip_space(r)) {
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
    return *out ? 0 : build_no_memory(r->b);
}

static int read_alternatives(struct reader *r, struct expr **out) {
    struct expr_vec v = {0};

    if (++r->depth > r->b->limits.max_depth)
        return build_too_complex(r->b, "grammar, line %zu: groups are nested more than %u deep",
                                 line_of(r), r->b->limits.max_depth);
    do {
        struct expr *x = NULL;
        int e = read_sequence(r, &x);

        if (e == 0)
            e = expr_vec_add(r->b, &v, x);
        if (e < 0)
            return e;
    } while (skip(r, "|"));
    r->depth--;
    *out = expr_alt(r->b, v.v, v.n);
    return *out ? 0 : build_no_memory(r->b);
}

static int read_rule(struct reader *r) {
    uint32_t name;

    if (!at_rule(r))
        return invalid(r, "expected `name ::=`");
    int e = read_name(r, &name);

    if (e < 0)
        return e;
    if (r->book.entry[name].defined)
        return invalid(r, "this rule was defined before");
    r->book.entry[name].defined = true;
    skip_space(r);
    skip(r, "::=");
    struct expr *body = NULL;

    e = read_alternatives(r, &body);
    r->b->rule[r->book.entry[name].rule].body = body;
    return e;
}

static int read_all(struct reader *r, struct expr **out) {
    int e = 0;

    for (skip_space(r); e == 0 && r->p < r->end; skip_space(r))
        e = read_rule(r);
    if (e == 0)
        e = rulebook_check(&r->book, r->b);
    if (e < 0)
        return e;
    const struct rulebook_entry *root = rulebook_find(&r->book, "root", 4);

    if (!root)
        return build_invalid(r->b, "grammar: there is no rule 'root'");
    *out = expr_call(r->b, root->rule);
    return *out ? 0 : build_no_memory(r->b);
}

int ebnf_read(struct build *b, const char *s, size_t len, struct expr **out) {
    struct reader r = {.b = b, .start = s, .p = s, .end = s + len};
    int e = read_all(&r, out);

    rulebook_deinit(&r.book);
    return e;
}
