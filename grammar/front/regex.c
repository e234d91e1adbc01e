/*
 * regex - regular expressions in the ECMA-262 dialect that JSON Schema's `pattern` uses, read by
 * recursive descent into an expression. Only what is regular is accepted: back references and
 * look-behind are refused, lazy quantifiers mean the same language as greedy ones.
 *
 * Look-ahead may stand between the parts of an alternative at the top level: `x(?=y)z` is x, then
 * those texts of z that also begin with a text of y, the intersection of two automata (lang.h).
 * Anchors may stand at the ends of such an alternative, and in a search without look-ahead anywhere
 * (regex_anchor.c).
 */

#include "grammar/automaton/lang.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/printable.h"
#include "base/try.h"
#include "text/categories.h"

#define AHEADS_MAX 64 /* look-aheads of one compilation, since they nest; a refusal names it */
#define FACTOR_DEPTH 16

struct reader {
    struct build *b;
    const char *start, *p, *end;
    enum char_mode mode;
    unsigned options; /* enum regex_options */
    uint32_t depth;
    bool search;        /* searches a whole text, so look-ahead sees the end */
    const char *anchor; /* place of the first anchor inside an alternative; NULL: none */
};

static struct expr *read_alternatives(struct reader *r);

static int invalid(struct reader *r, const char *what) {
    return build_invalid(r->b, "regular expression, byte %zu: %s", (size_t)(r->p - r->start), what);
}

static int unsupported(struct reader *r, const char *what) {
    return build_unsupported(r->b, "regular expression, byte %zu: %s is not supported",
                             (size_t)(r->p - r->start), what);
}

static bool at(const struct reader *r, char c) {
    return r->p < r->end && *r->p == c;
}

static bool skip(struct reader *r, const char *s) {
    size_t n = strlen(s);

    if ((size_t)(r->end - r->p) < n || memcmp(r->p, s, n) != 0)
        return false;
    r->p += n;
    return true;
}

/* Reads exactly @n hexadecimal digits at @p. */
static int read_hex(struct reader *r, int n, uint32_t *out) {
    uint32_t v = 0;

    for (int i = 0; i < n; i++) {
        int d = r->p < r->end ? hex_digit(*r->p) : -1;

        if (d < 0)
            return invalid(r, "a hexadecimal digit is missing in an escape sequence");
        v = v * 16 + (uint32_t)d;
        r->p++;
    }
    *out = v;
    return 0;
}

static int read_unicode(struct reader *r, uint32_t *out) {
    if (!skip(r, "{")) {
        int e = read_hex(r, 4, out);

        if (e == 0 && *out >= 0xd800 && *out < 0xdc00 && skip(r, "\\u")) {
            uint32_t low = 0;

            if (read_hex(r, 4, &low) < 0 || low < 0xdc00 || low > 0xdfff)
                return invalid(r, "a lone surrogate");
            *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
        }
    } else {
        const char *from = r->p;
        uint32_t v = 0;

        while (r->p < r->end && *r->p != '}') {
            int d = hex_digit(*r->p++);

            if (d < 0 || v > 0x10ffff)
                return invalid(r, "the escape sequence is not a valid code point");
            v = v * 16 + (uint32_t)d;
        }
        if (r->p == from)
            return invalid(r, "a hexadecimal digit is missing in an escape sequence");
        if (!skip(r, "}"))
            return invalid(r, "the closing '}' is missing");
        *out = v;
    }
    if (*out > 0x10ffff || (*out >= 0xd800 && *out <= 0xdfff))
        return invalid(r, "the escape sequence is not a valid code point");
    return 0;
}

static int add_class(struct reader *r, char c, struct cp_set *out) {
    static const struct cp_range SPACE[] = {
        {9, 13},          {32, 32},         {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff},
    };
    static const struct cp_range WORD[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    char kind = c | 0x20;
    const struct cp_range *v = kind == 's' ? SPACE : WORD;
    size_t n = kind == 's' ? ARRAY_SIZE(SPACE) : kind == 'w' ? ARRAY_SIZE(WORD) : 1; /* d: 0-9 */
    struct cp_set set = {0};
    int e = 0;

    for (size_t i = 0; e == 0 && i < n; i++)
        e = cp_set_add(r->b, &set, v[i].lo, v[i].hi);
    if (e == 0 && c != kind)
        e = cp_set_invert(r->b, &set);
    for (uint32_t i = 0; e == 0 && i < set.n; i++)
        e = cp_set_add(r->b, out, set.range[i].lo, set.range[i].hi);
    return e;
}

/* Reads the property in braces behind \p, or with @negate behind \P, and adds its characters. */
static int read_property(struct reader *r, bool negate, struct cp_set *out) {
    const char *from = r->p + 1, *name = from, *end = at(r, '{') ? from : r->end;
    struct cp_set set = {0};
    uint32_t wanted, n;
    char text[64];

    while (end < r->end && (isalnum((uint8_t)*end) || *end == '_' || *end == '='))
        end++;
    if (end == r->end || *end != '}')
        return invalid(r, "\\p needs the name of a property in braces, as in \\p{L}");
    r->p = from;
    if (skip(r, "gc=") || skip(r, "General_Category="))
        name = r->p;
    wanted = unicode_property(name, (size_t)(end - name));
    if (!wanted) {
        snprintf(text, sizeof(text), "\\p{%.*s}", (int)MIN(end - from, 50), from);
        return unsupported(r, text);
    }
    const uint32_t *run = unicode_runs(&n);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t lo = run[i] >> 5, hi = i + 1 < n ? (run[i + 1] >> 5) - 1 : 0x10ffff;

        if ((wanted >> (run[i] & 31) & 1) && lo != 0xd800) /* no text has surrogates */
            TRY(cp_set_add(r->b, &set, lo, hi));
    }
    r->p = end + 1;
    if (negate)
        TRY(cp_set_invert(r->b, &set));
    for (uint32_t i = 0; i < set.n; i++)
        TRY(cp_set_add(r->b, out, set.range[i].lo, set.range[i].hi));
    return 0;
}

static int read_cp(struct reader *r, uint32_t *cp) {
    size_t n = r->p < r->end ? utf8_sequence(r->p, (size_t)(r->end - r->p), cp) : 0;

    if (n == 0)
        return invalid(r, "invalid UTF-8");
    r->p += n;
    return 0;
}

/* Reads what follows a backslash: a class, which is added to @set (*is_class), or one code point.
 * */
static int read_escape(struct reader *r, struct cp_set *set, bool *is_class, uint32_t *cp) {
    static const char CONTROL[] = "t\tn\nr\rv\vf\f";

    *is_class = false;
    if (r->p == r->end)
        return invalid(r, "the expression ends with a backslash");
    char c = *r->p++;
    const char *control = memchr("tnrvf", c, 5) ? strchr(CONTROL, c) : NULL;

    if (memchr("dDwWsS", c, 6)) {
        *is_class = true;
        return add_class(r, c, set);
    }
    if (c == 'p' || c == 'P') {
        *is_class = true;
        return read_property(r, c == 'P', set);
    }
    if (control) {
        *cp = (uint8_t)control[1];
        return 0;
    }
    if (c == 'x')
        return read_hex(r, 2, cp);
    if (c == 'u')
        return read_unicode(r, cp);
    if (c == 'c' && r->p < r->end && ((*r->p | 0x20) >= 'a' && (*r->p | 0x20) <= 'z')) {
        *cp = (uint8_t)*r->p++ & 31;
        return 0;
    }
    if (c == '0' && !(r->p < r->end && *r->p >= '0' && *r->p <= '9')) {
        *cp = 0;
        return 0;
    }
    if (c >= '0' && c <= '9')
        return unsupported(r, "a back reference");
    if (c == 'b' || c == 'B')
        return unsupported(r, "\\b");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return unsupported(r, "this escape");
    r->p--;
    return read_cp(r, cp);
}

/* Reads one end of a range in [...]. */
static int read_member(struct reader *r, struct cp_set *set, bool *is_class, uint32_t *cp) {
    *is_class = false;
    if (!skip(r, "\\"))
        return read_cp(r, cp);
    if (skip(r, "b")) {
        *cp = 8;
        return 0;
    }
    return read_escape(r, set, is_class, cp);
}

/* Adds the other case of each ASCII letter of @set. */
static int fold(struct reader *r, struct cp_set *set) {
    uint32_t n = set->n;
    int e = 0;

    for (uint32_t i = 0; i < n && e == 0; i++) {
        struct cp_range upper = {MAX(set->range[i].lo, (uint32_t)'A'),
                                 MIN(set->range[i].hi, (uint32_t)'Z')};
        struct cp_range lower = {MAX(set->range[i].lo, (uint32_t)'a'),
                                 MIN(set->range[i].hi, (uint32_t)'z')};

        if (upper.lo <= upper.hi)
            e = cp_set_add(r->b, set, upper.lo + 32, upper.hi + 32);
        if (e == 0 && lower.lo <= lower.hi)
            e = cp_set_add(r->b, set, lower.lo - 32, lower.hi - 32);
    }
    return e;
}

/* Adds both cases of the characters that [^...] excludes: ASCII letters, and the two others whose
 * other case is one. */
static int fold_all(struct reader *r, struct cp_set *set) {
    uint32_t n = set->n;
    int e = fold(r, set);

    for (uint32_t i = 0; i < n && e == 0; i++) {
        struct cp_range x = set->range[i];

        if ((x.lo <= 's' && x.hi >= 's') || (x.lo <= 'S' && x.hi >= 'S'))
            e = cp_set_add(r->b, set, 0x17f, 0x17f);
        if (e == 0 && ((x.lo <= 'k' && x.hi >= 'k') || (x.lo <= 'K' && x.hi >= 'K')))
            e = cp_set_add(r->b, set, 0x212a, 0x212a);
    }
    return e;
}

static int read_set(struct reader *r, struct cp_set *set) {
    bool negate = skip(r, "^"), is_class;
    uint32_t lo, hi;

    while (!at(r, ']')) {
        if (r->p == r->end)
            return invalid(r, "the closing ']' is missing");
        int e = read_member(r, set, &is_class, &lo);

        if (e < 0)
            return e;
        if (is_class)
            continue;
        hi = lo;
        if (r->end - r->p >= 2 && r->p[0] == '-' && r->p[1] != ']') {
            r->p++;
            if ((e = read_member(r, set, &is_class, &hi)) < 0)
                return e;
            if (is_class || hi < lo)
                return invalid(r, "a range is out of order");
        }
        if ((e = cp_set_add(r->b, set, lo, hi)) < 0)
            return e;
    }
    r->p++;

    TRY(negate && r->options & REGEX_ANY_CASE ? fold_all(r, set) : 0);
    cp_set_normalize(set);
    return negate ? cp_set_invert(r->b, set) : 0;
}

static struct expr *make_chars(struct reader *r, struct cp_set *set) {
    if (r->options & REGEX_ANY_CASE && fold(r, set) < 0)
        return NULL;
    cp_set_normalize(set);
    return expr_chars(r->b, set, r->mode);
}

static struct expr *read_group(struct reader *r) {
    if (skip(r, "?")) {
        if (skip(r, "=") || skip(r, "!") || skip(r, "<=") || skip(r, "<!"))
            return failed(unsupported(r, "look-around"));
        if (skip(r, "<") || skip(r, "P<")) {
            while (r->p < r->end && *r->p != '>')
                r->p++;
            if (!skip(r, ">"))
                return failed(invalid(r, "the closing '>' is missing"));
        } else if (!skip(r, ":")) {
            return failed(unsupported(r, "this kind of group"));
        }
    }
    struct expr *x = read_alternatives(r);

    return skip(r, ")") ? x : failed(invalid(r, "the closing ')' is missing"));
}

static struct expr *read_anchor(struct reader *r) {
    if (!r->search || (r->options & REGEX_FROM_START))
        return failed(unsupported(r, "an anchor inside the expression"));
    if (!r->anchor)
        r->anchor = r->p;
    return expr_anchor(r->b, *r->p++);
}

static struct expr *read_atom(struct reader *r) {
    struct cp_set *set = build_alloc(r->b, 1, sizeof(*set));
    bool is_class = false;
    uint32_t cp = 0;

    if (!set)
        return NULL;
    if (skip(r, "("))
        return read_group(r);
    if (skip(r, "["))
        return read_set(r, set) < 0 ? NULL : make_chars(r, set);
    if (skip(r, ".")) {
        static const struct cp_range LINE_ENDS[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

        size_t n = r->options & REGEX_DOT_ALL ? 0 : ARRAY_SIZE(LINE_ENDS);

        for (size_t i = 0; i < n; i++)
            cp_set_add(r->b, set, LINE_ENDS[i].lo, LINE_ENDS[i].hi);
        return cp_set_invert(r->b, set) < 0 ? NULL : make_chars(r, set);
    }
    if (memchr("*+?{", *r->p, 4))
        return failed(invalid(r, "the quantifier has nothing to repeat"));
    if (*r->p == '^' || *r->p == '$')
        return read_anchor(r);
    int e = skip(r, "\\") ? read_escape(r, set, &is_class, &cp) : read_cp(r, &cp);

    if (e < 0 || (!is_class && cp_set_add(r->b, set, cp, cp) < 0))
        return NULL;
    return make_chars(r, set);
}

static int read_number(struct reader *r, uint32_t *out) {
    uint64_t v = 0;
    const char *from = r->p;

    while (r->p < r->end && *r->p >= '0' && *r->p <= '9' && v < NO_MAX)
        v = v * 10 + (uint64_t)(*r->p++ - '0');
    if (r->p == from || v >= NO_MAX)
        return invalid(r, "the repetition count is malformed or too large");
    *out = (uint32_t)v;
    return 0;
}

static struct expr *quantified(struct reader *r, struct expr *x) {
    uint32_t min = 0, max = NO_MAX;

    if (skip(r, "+")) {
        min = 1;
    } else if (skip(r, "?")) {
        max = 1;
    } else if (skip(r, "{")) {
        if (read_number(r, &min) < 0)
            return NULL;
        max = min;
        if (skip(r, ",")) {
            max = NO_MAX;
            if (!at(r, '}') && read_number(r, &max) < 0)
                return NULL;
        }
        if (!skip(r, "}"))
            return failed(invalid(r, "the closing '}' is missing"));
        if (max < min)
            return failed(invalid(r, "a range is out of order"));
    } else if (!skip(r, "*")) {
        return x;
    }
    skip(r, "?");
    if (at(r, '+') || at(r, '*'))
        return failed(unsupported(r, "a possessive quantifier"));
    return expr_repeat(r->b, x, min, max);
}

static bool at_branch_end(const struct reader *r) {
    return r->p == r->end || *r->p == '|' || *r->p == ')';
}

static bool at_ahead(const struct reader *r) {
    return r->search && r->end - r->p >= 3 && r->p[0] == '(' && r->p[1] == '?' &&
           (r->p[2] == '=' || r->p[2] == '!');
}

static struct expr *read_sequence(struct reader *r) {
    struct expr_vec v = {0};

    while (!at_branch_end(r)) {
        if (r->depth == 1 && at_ahead(r))
            break;
        if (r->depth == 1 && at(r, '$') && (r->p + 1 == r->end || r->p[1] == '|'))
            break;
        struct expr *x = read_atom(r);

        if (expr_vec_add(r->b, &v, x ? quantified(r, x) : NULL) < 0)
            return NULL;
    }
    return expr_seq_of(r->b, &v);
}

/* Sets *@out to the parts of the sequence *@e, or to @e itself if it is no sequence. Returns their
 * number. */
static uint32_t parts_of(struct expr **e, struct expr *const **out) {
    *out = (*e)->kind == EXPR_SEQ ? (*e)->child : e;
    return (*e)->kind == EXPR_SEQ ? (*e)->n : 1;
}

/* Returns the length of the common prefix of @x and @y in characters, at most @n. */
static uint32_t common(struct expr *x, struct expr *y, uint32_t n) {
    struct expr *const *p, *const *q;
    uint32_t n_x = parts_of(&x, &p), n_y = parts_of(&y, &q), i = 0;

    while (i < MIN(MIN(n_x, n_y), n) && expr_same_chars(p[i], q[i]))
        i++;
    return i;
}

/* Makes the alternatives @v[0, @n), whose items it sets to NULL. Alternatives that begin with the
 * same characters share these: the automaton of a search then follows one trie of words instead of
 * each word on its own. */
static struct expr *alternatives(struct build *b, struct expr **v, uint32_t n, uint32_t depth) {
    struct expr_vec out = {0};

    for (uint32_t i = 0; i < n; i++) {
        struct expr *x = v[i];
        struct expr *const *part;
        struct expr_vec rest = {0};
        uint32_t shared = NO_MAX;

        if (!x)
            continue;
        for (uint32_t k = i + 1; depth < FACTOR_DEPTH && k < n; k++) {
            uint32_t same = v[k] ? common(x, v[k], shared) : 0;

            shared = same ? same : shared;
        }
        for (uint32_t k = i; shared < NO_MAX && k < n; k++) {
            if (!v[k] || !common(x, v[k], 1))
                continue;
            uint32_t n_parts = parts_of(&v[k], &part);

            if (expr_vec_add(b, &rest, expr_seq(b, part + shared, n_parts - shared)) < 0)
                return NULL;
            v[k] = NULL;
        }
        if (rest.n) {
            parts_of(&x, &part);
            x = expr_seq2(b, expr_seq(b, part, shared), alternatives(b, rest.v, rest.n, depth + 1));
        }
        if (expr_vec_add(b, &out, x) < 0 || build_work(b, n - i) < 0)
            return NULL;
    }
    return expr_alt(b, out.v, out.n);
}

static struct expr *read_alternatives(struct reader *r) {
    struct expr_vec v = {0};

    if (++r->depth > r->b->limits.max_depth)
        return failed(build_too_complex(r->b,
                                        "regular expression: groups are nested more than %u deep",
                                        r->b->limits.max_depth));
    do {
        expr_vec_add(r->b, &v, read_sequence(r));
    } while (!r->b->failed && skip(r, "|"));
    r->depth--;
    return r->b->failed ? NULL : alternatives(r->b, v.v, v.n, 0);
}

static struct expr *anything(struct reader *r) {
    struct expr *c = r->options & REGEX_CANONICAL ? json_canonical_char(r->b)
                     : r->mode == CHARS_JSON      ? json_char_unshared(r->b)
                                                  : expr_any_char(r->b, CHARS_TEXT);

    return expr_repeat(r->b, c, 0, NO_MAX);
}

/* Makes the loop over any text behind what a search looks for. Since such a loop accepts all that
 * may follow a match, its state makes all others superfluous (`open`, nfa.h). */
static struct expr *anything_behind(struct reader *r) {
    struct expr *e = anything(r);

    if (e)
        e->open = true;
    return e;
}

/* Returns the closing parenthesis of the group at @p, or NULL if it is missing. */
static const char *group_end(const char *p, const char *end) {
    bool in_set = false;
    int depth = 0;

    for (; p < end; p++) {
        if (*p == '\\') {
            p++;
        } else if (in_set || *p == '[') {
            in_set = *p != ']';
        } else if (*p == '(') {
            depth++;
        } else if (*p == ')' && --depth == 0) {
            return p;
        }
    }
    return NULL;
}

/* Reads one alternative of the top level from here to its end. *@open: any text may follow it. */
static struct expr *read_rest(struct reader *r, bool whole, bool *open) {
    struct build *b = r->b;
    struct expr *x = read_sequence(r), *y;

    if (!x)
        return NULL;
    if (!at_ahead(r)) {
        if (at(r, ')'))
            return failed(invalid(r, "')' without '('"));
        *open = !skip(r, "$") && !whole;
        return x;
    }
    bool not = r->p[2] == '!';
    const char *end = group_end(r->p, r->end), *from = r->p + 3;

    if (!end)
        return failed(invalid(r, "the closing ')' is missing"));
    if (++b->n_aheads > AHEADS_MAX)
        return failed(unsupported(r, "a pattern with more than 64 look-aheads"));
    y = regex_read_with(b, from, (size_t)(end - from), r->mode, REGEX_SEARCH,
                        r->options | REGEX_FROM_START);
    const struct lang *ahead = lang_of(b, y), *l;

    r->p = end + 1;
    y = ahead ? read_rest(r, whole, open) : NULL;
    if (y && *open)
        y = expr_seq2(b, y, anything_behind(r));
    *open = false;
    if (y && r->anchor) {
        r->p = r->anchor;
        return failed(unsupported(r, "an anchor beside look-ahead"));
    }
    l = lang_of(b, y);
    l = not ? lang_meet(b, &l, 1, &ahead, 1)
            : lang_meet(b, (const struct lang *[]){l, ahead}, 2, NULL, 0);
    return expr_seq2(b, x, lang_expr(b, l));
}

/* Reads all alternatives of the top level. Alternatives without `^` share one loop over the text
 * before them, and those without `$` share one over the text behind: a loop for each would need a
 * state for each set of alternatives that has matched so far. */
static struct expr *read_top(struct reader *r, enum regex_kind kind) {
    struct expr_vec v[2][2] = {0}; /* alternatives: [may begin anywhere][may end anywhere] */
    struct build *b = r->b;

    do {
        bool from_start = skip(r, "^") || kind == REGEX_WHOLE || (r->options & REGEX_FROM_START);
        bool open = false;
        struct expr *x = read_rest(r, kind == REGEX_WHOLE, &open);

        if (expr_vec_add(b, &v[!from_start][open], x) < 0)
            return NULL;
    } while (skip(r, "|"));
    struct expr *part[2][2];

    for (int i = 0; i < 4; i++)
        part[i / 2][i % 2] = alternatives(b, v[i / 2][i % 2].v, v[i / 2][i % 2].n, 0);
    for (int open = 0; open < 2; open++) {
        if (v[1][open].n)
            part[1][open] = expr_seq2(b, anything(r), part[1][open]);
        part[0][open] = expr_alt2(b, part[0][open], part[1][open]);
    }
    if (v[0][1].n + v[1][1].n)
        part[0][1] = expr_seq2(b, part[0][1], anything_behind(r));
    return expr_alt2(b, part[0][0], part[0][1]);
}

struct expr *regex_read_with(struct build *b, const char *s, size_t len, enum char_mode mode,
                             enum regex_kind kind, unsigned options) {
    struct reader r = {.b = b,
                       .start = s,
                       .p = s,
                       .end = s + len,
                       .mode = mode,
                       .options = options,
                       .depth = 1,
                       .search = kind == REGEX_SEARCH};

    /* Strips a group around the whole pattern, so that its alternatives are those at the top. */
    if (r.search && len > 2 && s[0] == '(' && s[1] != '?' && group_end(s, s + len) == s + len - 1) {
        r.p++;
        r.end--;
    }
    /* A look-ahead and the text that it looks at meet as automata over bytes, so each character
     * must have one spelling. */
    if (memmem(s, len, "(?=", 3) || memmem(s, len, "(?!", 3))
        r.options |= REGEX_CANONICAL;
    struct expr *e = read_top(&r, kind);
    bool counted = false;

    if (r.anchor)
        e = regex_resolve_anchors(b, e, &counted);
    r.p = r.anchor;
    return counted ? failed(unsupported(&r, "an anchor inside a counted group")) : e;
}

struct expr *regex_read(struct build *b, const char *s, size_t len, enum char_mode mode) {
    return regex_read_with(b, s, len, mode, REGEX_WHOLE, 0);
}

struct expr *regex_of(struct build *b, const char *s, enum char_mode mode) {
    unsigned flags = b->flags;
    struct expr *e = regex_read(b, s, strlen(s), mode);

    b->flags = flags;
    assert(e || b->failed == -ENOMEM || b->work > b->limits.max_work || b->arena.full);
    return e;
}
