/*
 * ebnf - grammars as llama.cpp writes them (GBNF): `name ::= alternatives`, string literals,
 * [classes], `.`, groups,
 * * + ? {m,n}, # comments; `<marker>` and `<[id]>` are special tokens. A rule ends where the next
 *   one
 * begins, wherever the newlines are.
 */

#include "grammar/front/rulebook.h"
#include "grammar/front/source.h"
#include "grammar/vocab/vocab.h"

#include <assert.h>
#include <string.h>

struct reader {
    struct source in;
    struct rulebook book;
    uint32_t depth;
};

static const struct source_escapes escapes = {"nrt\\\"[]-'/^.", "\n\r\t\\\"[]-'/^."};

static int read_alternatives(struct reader *r, struct expr **out);

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static void skip_space(struct reader *r) {
    while (r->in.p < r->in.end) {
        if (*r->in.p == '#') {
            while (r->in.p < r->in.end && *r->in.p != '\n')
                r->in.p++;
        } else if (strchr(" \t\r\n", *r->in.p) && *r->in.p) {
            r->in.p++;
        } else {
            return;
        }
    }
}

static size_t name_length(const struct reader *r) {
    const char *p = r->in.p;

    while (p < r->in.end && is_name_char(*p))
        p++;
    return (size_t)(p - r->in.p);
}

/* Returns whether the reader is at `name ::=`. */
static bool at_rule(struct reader *r) {
    const char *p = r->in.p;
    size_t n = name_length(r);

    if (n == 0)
        return false;
    r->in.p += n;
    skip_space(r);
    bool yes = source_skip(&r->in, "::=");

    r->in.p = p;
    return yes;
}

/* The name at the current place, made when it is new. */
static int read_name(struct reader *r, uint32_t *out) {
    size_t len = name_length(r);
    int e = rulebook_take(&r->book, r->in.b, r->in.p, len, out);

    r->in.p += len;
    return e;
}

static int read_literal(struct reader *r, struct expr **out) {
    struct expr_vec v = {0};

    while (!source_skip(&r->in, "\"")) {
        struct cp_set *one = arena_alloc(&r->in.b->arena, sizeof(*one));
        uint32_t cp;

        if (r->in.p == r->in.end || *r->in.p == '\n')
            return source_invalid(&r->in, "the closing '\"' is missing");
        int e = one ? source_read_char(&r->in, &escapes, &cp) : build_no_memory(r->in.b);

        if (e == 0)
            e = cp_set_add(r->in.b, one, cp, cp);
        if (e == 0)
            e = expr_vec_add(r->in.b, &v, expr_chars(r->in.b, one, CHARS_TEXT));
        if (e < 0)
            return e;
    }
    *out = expr_seq(r->in.b, v.v, v.n);
    return *out ? 0 : build_no_memory(r->in.b);
}

static int read_class(struct reader *r, struct expr **out) {
    struct cp_set *set = arena_alloc(&r->in.b->arena, sizeof(*set));
    bool negate = source_skip(&r->in, "^");
    int e = set ? 0 : build_no_memory(r->in.b);

    while (e == 0 && !source_skip(&r->in, "]")) {
        uint32_t lo, hi;

        if (r->in.p == r->in.end)
            return source_invalid(&r->in, "the closing ']' is missing");
        e = source_read_char(&r->in, &escapes, &lo);
        hi = lo;
        if (e == 0 && r->in.end - r->in.p >= 2 && r->in.p[0] == '-' && r->in.p[1] != ']') {
            r->in.p++;
            e = source_read_char(&r->in, &escapes, &hi);
        }
        if (e == 0 && hi < lo)
            return source_invalid(&r->in, "the range is out of order");
        if (e == 0)
            e = cp_set_add(r->in.b, set, lo, hi);
    }
    if (e == 0) {
        cp_set_normalize(set);
        e = negate ? cp_set_invert(r->in.b, set) : 0;
    }
    if (e < 0)
        return e;
    *out = expr_chars(r->in.b, set, CHARS_TEXT);
    return *out ? 0 : build_no_memory(r->in.b);
}

/* `<marker>` or `<[id]>`. */
static int read_token(struct reader *r, struct expr **out) {
    const struct grammar_vocab *v = r->in.b->vocab;
    const char *from = r->in.p;
    uint64_t id = 0;
    size_t n = 0;

    while (r->in.p < r->in.end && *r->in.p != '>' && *r->in.p != '\n')
        r->in.p++;
    if (!source_skip(&r->in, ">"))
        return source_invalid(&r->in, "the closing '>' is missing");
    size_t len = (size_t)(r->in.p - from);

    if (from[1] == '[' && r->in.p[-2] == ']' && len > 4) {
        for (const char *p = from + 2; p < r->in.p - 2; p++) {
            if (*p < '0' || *p > '9' || id > INT32_MAX)
                return source_invalid(&r->in, "the token number is malformed or too large");
            id = id * 10 + (uint64_t)(*p - '0');
        }
        if (id > INT32_MAX || (v && id >= vocab_n_tokens(v)))
            return source_invalid(&r->in, "the vocabulary has no such token");
        *out = expr_token(r->in.b, (int32_t)id);
    } else if (!v) {
        *out = expr_bytes(r->in.b, from, len);
    } else {
        int32_t token = vocab_special_at(v, from, len, &n);

        if (token < 0 || n != len)
            return source_invalid(&r->in, "the vocabulary has no such special token");
        *out = expr_token(r->in.b, token);
    }
    return *out ? 0 : build_no_memory(r->in.b);
}

static int read_count(struct reader *r, uint32_t *out) {
    uint64_t v = 0;

    skip_space(r);
    const char *from = r->in.p;

    while (r->in.p < r->in.end && *r->in.p >= '0' && *r->in.p <= '9' && v < NO_MAX)
        v = v * 10 + (uint64_t)(*r->in.p++ - '0');
    if (v >= NO_MAX)
        return source_invalid(&r->in, "the repetition count is malformed or too large");
    *out = (uint32_t)v;
    int found = r->in.p > from;

    skip_space(r);
    return found;
}

static int read_quantifier(struct reader *r, struct expr **x) {
    uint32_t min = 0, max = NO_MAX;

    skip_space(r); /* nothing else begins with one of these */
    if (source_skip(&r->in, "+")) {
        min = 1;
    } else if (source_skip(&r->in, "?")) {
        max = 1;
    } else if (source_skip(&r->in, "{")) {
        int has_min = read_count(r, &min), has_max = 0;

        if (has_min < 0)
            return has_min;
        max = min;
        if (source_skip(&r->in, ",")) {
            has_max = read_count(r, &max);
            if (has_max < 0)
                return has_max;
            max = has_max ? max : NO_MAX;
        }
        if (!source_skip(&r->in, "}") || (!has_min && !has_max) || max < min)
            return source_invalid(&r->in, "a bad {m,n}");
    } else if (!source_skip(&r->in, "*")) {
        return 0;
    }
    *x = expr_repeat(r->in.b, *x, min, max);
    return *x ? 1 : build_no_memory(r->in.b);
}

static int read_item(struct reader *r, struct expr **out) {
    uint32_t name;
    int e;

    if (source_skip(&r->in, "\""))
        return read_literal(r, out);
    if (source_skip(&r->in, "["))
        return read_class(r, out);
    if (*r->in.p == '<')
        return read_token(r, out);
    if (source_skip(&r->in, "(")) {
        e = read_alternatives(r, out);
        if (e < 0)
            return e;
        return source_skip(&r->in, ")") ? 0 : source_invalid(&r->in, "the closing ')' is missing");
    }
    if (source_skip(&r->in, ".")) {
        struct cp_set *all = arena_alloc(&r->in.b->arena, sizeof(*all));

        if (!all || cp_set_invert(r->in.b, all) < 0)
            return build_no_memory(r->in.b);
        *out = expr_chars(r->in.b, all, CHARS_TEXT);
        return *out ? 0 : build_no_memory(r->in.b);
    }
    if (name_length(r) == 0)
        return source_invalid(&r->in, "expected a literal, a class, a group or the name of a rule");
    e = read_name(r, &name);
    if (e < 0)
        return e;
    *out = expr_call(r->in.b, r->book.entry[name].rule);
    return *out ? 0 : build_no_memory(r->in.b);
}

static int read_sequence(struct reader *r, struct expr **out) {
    struct expr_vec v = {0};

    for (skip_space(r); r->in.p < r->in.end && *r->in.p != '|' && *r->in.p != ')' && !at_rule(r);
         skip_space(r)) {
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
    return *out ? 0 : build_no_memory(r->in.b);
}

static int read_alternatives(struct reader *r, struct expr **out) {
    struct expr_vec v = {0};

    if (++r->depth > r->in.b->limits.max_depth)
        return build_too_complex(r->in.b, "grammar, line %zu: groups are nested more than %u deep",
                                 source_line(&r->in), r->in.b->limits.max_depth);
    do {
        struct expr *x = NULL;
        int e = read_sequence(r, &x);

        if (e == 0)
            e = expr_vec_add(r->in.b, &v, x);
        if (e < 0)
            return e;
    } while (source_skip(&r->in, "|"));
    r->depth--;
    *out = expr_alt(r->in.b, v.v, v.n);
    return *out ? 0 : build_no_memory(r->in.b);
}

static int read_rule(struct reader *r) {
    uint32_t name;

    if (!at_rule(r))
        return source_invalid(&r->in, "expected `name ::=`");
    int e = read_name(r, &name);

    if (e < 0)
        return e;
    if (r->book.entry[name].defined)
        return source_invalid(&r->in, "this rule is defined twice");
    r->book.entry[name].defined = true;
    skip_space(r);
    source_skip(&r->in, "::=");
    struct expr *body = NULL;

    e = read_alternatives(r, &body);
    r->in.b->rule[r->book.entry[name].rule].body = body;
    return e;
}

static int read_all(struct reader *r, struct expr **out) {
    int e = 0;

    for (skip_space(r); e == 0 && r->in.p < r->in.end; skip_space(r))
        e = read_rule(r);
    if (e == 0)
        e = rulebook_check(&r->book, r->in.b);
    if (e < 0)
        return e;
    const struct rulebook_entry *root = rulebook_find(&r->book, "root", 4);

    if (!root)
        return build_invalid(r->in.b, "grammar: the rule 'root' is missing");
    *out = expr_call(r->in.b, root->rule);
    return *out ? 0 : build_no_memory(r->in.b);
}

int ebnf_read(struct build *b, const char *s, size_t len, struct expr **out) {
    struct reader r = {.in = {.b = b, .start = s, .p = s, .end = s + len}};
    int e = read_all(&r, out);

    rulebook_deinit(&r.book);
    return e;
}
