/*
 * ebnf - grammars as llama.cpp writes them (GBNF): `name ::= alternatives`, string literals,
 * [classes], `.`, groups, quantifiers, # comments; `<marker>` and `<[id]>` are special tokens. A
 * rule ends where the next one begins, wherever the newlines are.
 */

#include <string.h>

#include "base/try.h"
#include "grammar/front/rulebook.h"
#include "grammar/front/source.h"
#include "grammar/vocab/vocab.h"

struct reader {
    struct source in;
    struct rulebook book;
    uint32_t depth;
};

static const struct source_escapes escapes = {"nrt\\\"[]-'/^.", "\n\r\t\\\"[]-'/^."};

static struct expr *ebnf_read_alternatives(struct reader *r);

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static void ebnf_skip_space(struct reader *r) {
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

static size_t ebnf_name_length(const struct reader *r) {
    const char *p = r->in.p;

    while (p < r->in.end && is_name_char(*p))
        p++;
    return (size_t)(p - r->in.p);
}

/* Returns whether the reader is at `name ::=`. */
static bool at_rule(struct reader *r) {
    const char *p = r->in.p;
    size_t n = ebnf_name_length(r);

    if (n == 0)
        return false;
    r->in.p += n;
    ebnf_skip_space(r);
    bool yes = source_skip(&r->in, "::=");

    r->in.p = p;
    return yes;
}

/* Reads the name at the current place. Sets *@out to its entry, which is made when it is new. */
static int ebnf_read_name(struct reader *r, uint32_t *out) {
    size_t len = ebnf_name_length(r);
    int e = rulebook_add(&r->book, r->in.b, r->in.p, len, out);

    r->in.p += len;
    return e;
}

static struct expr *ebnf_read_literal(struct reader *r) {
    struct build *b = r->in.b;
    struct expr_vec v = {0};

    while (!b->failed && !source_skip(&r->in, "\"")) {
        struct cp_set *one = build_alloc(b, 1, sizeof(*one));
        uint32_t cp;

        if (r->in.p == r->in.end || *r->in.p == '\n')
            return failed(source_invalid(&r->in, "the closing '\"' is missing"));
        if (one && source_read_char(&r->in, &escapes, &cp) == 0 && cp_set_add(b, one, cp, cp) == 0)
            expr_vec_add(b, &v, expr_chars(b, one, CHARS_TEXT));
    }
    return expr_seq_of(b, &v);
}

static struct expr *read_class(struct reader *r) {
    struct build *b = r->in.b;
    struct cp_set *set = build_alloc(b, 1, sizeof(*set));
    bool negate = source_skip(&r->in, "^");

    while (set && !source_skip(&r->in, "]")) {
        uint32_t lo, hi;

        if (r->in.p == r->in.end)
            return failed(source_invalid(&r->in, "the closing ']' is missing"));
        if (source_read_char(&r->in, &escapes, &lo) < 0)
            return NULL;
        hi = lo;
        if (r->in.end - r->in.p >= 2 && r->in.p[0] == '-' && r->in.p[1] != ']') {
            r->in.p++;
            if (source_read_char(&r->in, &escapes, &hi) < 0)
                return NULL;
        }
        if (hi < lo)
            return failed(source_invalid(&r->in, "the range is out of order"));
        if (cp_set_add(b, set, lo, hi) < 0)
            return NULL;
    }
    if (!set)
        return NULL;
    cp_set_normalize(set);
    if (negate && cp_set_invert(b, set) < 0)
        return NULL;
    return expr_chars(b, set, CHARS_TEXT);
}

/* Reads a special token, `<marker>` or `<[id]>`. */
static struct expr *read_token(struct reader *r) {
    const struct grammar_vocab *v = r->in.b->vocab;
    const char *from = r->in.p;
    uint64_t id = 0;
    size_t n = 0;

    while (r->in.p < r->in.end && *r->in.p != '>' && *r->in.p != '\n')
        r->in.p++;
    if (!source_skip(&r->in, ">"))
        return failed(source_invalid(&r->in, "the closing '>' is missing"));
    size_t len = (size_t)(r->in.p - from);

    if (from[1] == '[' && r->in.p[-2] == ']' && len > 4) {
        for (const char *p = from + 2; p < r->in.p - 2; p++) {
            if (*p < '0' || *p > '9' || id > INT32_MAX)
                return failed(source_invalid(&r->in, "the token number is malformed or too large"));
            id = id * 10 + (uint64_t)(*p - '0');
        }
        if (id > INT32_MAX || (v && id >= v->n))
            return failed(source_invalid(&r->in, "the vocabulary has no such token"));
        return expr_token(r->in.b, (int32_t)id);
    }
    if (!v)
        return expr_bytes(r->in.b, from, len);
    int32_t token = vocab_special_at(v, from, len, &n);

    if (token < 0 || n != len)
        return failed(source_invalid(&r->in, "the vocabulary has no such special token"));
    return expr_token(r->in.b, token);
}

static int ebnf_read_count(struct reader *r, uint32_t *out) {
    ebnf_skip_space(r);
    int found = source_read_number(&r->in, out);

    ebnf_skip_space(r);
    return found;
}

/* Reads one quantifier of *@x, if there is one. Returns whether there is. */
static bool ebnf_read_quantifier(struct reader *r, struct expr **x) {
    uint32_t min = 0, max = NO_MAX;

    ebnf_skip_space(r); /* no other construct begins with a quantifier's characters */
    if (source_skip(&r->in, "+")) {
        min = 1;
    } else if (source_skip(&r->in, "?")) {
        max = 1;
    } else if (source_skip(&r->in, "{")) {
        int has_min = ebnf_read_count(r, &min), has_max = 0;

        max = min;
        if (has_min >= 0 && source_skip(&r->in, ",")) {
            has_max = ebnf_read_count(r, &max);
            max = has_max ? max : NO_MAX;
        }
        if (!source_skip(&r->in, "}") || (!has_min && !has_max) || max < min)
            source_invalid(&r->in, "a bad {m,n}");
    } else if (!source_skip(&r->in, "*")) {
        return false;
    }
    *x = expr_repeat(r->in.b, *x, min, max);
    return *x != NULL;
}

static struct expr *ebnf_read_item(struct reader *r) {
    uint32_t name;

    if (source_skip(&r->in, "\""))
        return ebnf_read_literal(r);
    if (source_skip(&r->in, "["))
        return read_class(r);
    if (*r->in.p == '<')
        return read_token(r);
    if (source_skip(&r->in, "(")) {
        struct expr *x = ebnf_read_alternatives(r);

        if (!source_skip(&r->in, ")"))
            return failed(source_invalid(&r->in, "the closing ')' is missing"));
        return x;
    }
    if (source_skip(&r->in, "."))
        return expr_any_char(r->in.b, CHARS_TEXT);
    if (ebnf_name_length(r) == 0)
        return failed(
            source_invalid(&r->in, "expected a literal, a class, a group or the name of a rule"));
    if (ebnf_read_name(r, &name) < 0)
        return NULL;
    return expr_call(r->in.b, r->book.entry[name].rule);
}

static struct expr *ebnf_read_sequence(struct reader *r) {
    struct expr_vec v = {0};

    for (ebnf_skip_space(r); !r->in.b->failed && r->in.p < r->in.end && *r->in.p != '|' &&
                             *r->in.p != ')' && !at_rule(r);
         ebnf_skip_space(r)) {
        struct expr *x = ebnf_read_item(r);

        while (x && ebnf_read_quantifier(r, &x))
            ;
        expr_vec_add(r->in.b, &v, x);
    }
    return expr_seq_of(r->in.b, &v);
}

static struct expr *ebnf_read_alternatives(struct reader *r) {
    struct expr_vec v = {0};

    if (++r->depth > r->in.b->limits.max_depth)
        return failed(build_too_complex(r->in.b,
                                        "grammar, line %zu: groups are nested more than %u deep",
                                        source_line(&r->in), r->in.b->limits.max_depth));
    do {
        expr_vec_add(r->in.b, &v, ebnf_read_sequence(r));
    } while (!r->in.b->failed && source_skip(&r->in, "|"));
    r->depth--;
    return expr_alt_of(r->in.b, &v);
}

static int read_rule(struct reader *r) {
    uint32_t name;

    if (!at_rule(r))
        return source_invalid(&r->in, "expected `name ::=`");

    TRY(ebnf_read_name(r, &name));
    if (r->book.entry[name].defined)
        return source_invalid(&r->in, "this rule is defined twice");
    r->book.entry[name].defined = true;
    ebnf_skip_space(r);
    source_skip(&r->in, "::=");
    struct expr *body = ebnf_read_alternatives(r);

    r->in.b->rule[r->book.entry[name].rule].body = body;
    return r->in.b->failed;
}

static struct expr *ebnf_read_all(struct reader *r) {
    int e = 0;

    for (ebnf_skip_space(r); e == 0 && r->in.p < r->in.end; ebnf_skip_space(r))
        e = read_rule(r);
    if (e < 0 || rulebook_check(&r->book, r->in.b) < 0)
        return NULL;
    const struct rulebook_entry *root = rulebook_find(&r->book, "root", 4);

    if (!root)
        return failed(build_invalid(r->in.b, "grammar: the rule 'root' is missing"));
    return expr_call(r->in.b, root->rule);
}

struct expr *ebnf_read(struct build *b, const char *s, size_t len) {
    struct reader r = {.in = {.b = b, .start = s, .p = s, .end = s + len}};
    struct expr *e = ebnf_read_all(&r);

    rulebook_deinit(&r.book);
    return e;
}
