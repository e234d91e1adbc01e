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

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "grammar/automaton/lang.h"
#include "grammar/front/source.h"
#include "text/categories.h"

#define AHEADS_MAX 64 /* look-aheads of one compilation, since they nest; a refusal names it */
#define FACTOR_DEPTH 16

struct reader {
    struct source in;
    enum char_mode mode;
    /* enum regex_options */
    unsigned options;
    uint32_t depth;
    /* searches a whole text, so look-ahead sees the end */
    bool search;
    /* place of the first anchor inside an alternative; NULL: none */
    const char *anchor;
};

static struct expr *regex_read_alternatives(struct reader *r);

static bool regex_at(const struct reader *r, char c) {
    return source_peek(&r->in, 0) == c;
}

static int read_unicode(struct reader *r, uint32_t *out) {
    if (!source_skip(&r->in, "{")) {
        TRY(source_read_hex(&r->in, 4, out));
        if (*out >= 0xd800 && *out < 0xdc00 && source_skip(&r->in, "\\u")) {
            uint32_t low = 0;

            if (source_read_hex(&r->in, 4, &low) < 0 || low < 0xdc00 || low > 0xdfff)
                return source_invalid(&r->in, "a lone surrogate");
            *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
        }
    } else {
        const char *from = r->in.p;
        uint32_t v = 0;

        while (r->in.p < r->in.end && *r->in.p != '}') {
            int d = hex_digit(*r->in.p++);

            if (d < 0 || v > 0x10ffff)
                return source_invalid(&r->in, "the escape sequence is not a valid code point");
            v = v * 16 + (uint32_t)d;
        }
        if (r->in.p == from)
            return source_invalid(&r->in, "a hexadecimal digit is missing in an escape sequence");
        if (!source_skip(&r->in, "}"))
            return source_invalid(&r->in, "the closing '}' is missing");
        *out = v;
    }
    return source_check_cp(&r->in, *out);
}

static int add_class(struct reader *r, char c, struct cp_set *out) {
    static const struct cp_range SPACE[] = {
        {9, 13},          {32, 32},         {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff},
    };
    static const struct cp_range WORD[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    char kind = c | 0x20;
    const struct cp_range *v = WORD;
    size_t n = 1; /* d: 0-9 */
    struct cp_set set = {0};

    if (kind == 's') {
        v = SPACE;
        n = ARRAY_SIZE(SPACE);
    } else if (kind == 'w') {
        n = ARRAY_SIZE(WORD);
    }
    for (size_t i = 0; i < n; i++)
        TRY(cp_set_add(r->in.b, &set, v[i].lo, v[i].hi));
    if (c != kind)
        TRY(cp_set_invert(r->in.b, &set));
    for (uint32_t i = 0; i < set.n; i++)
        TRY(cp_set_add(r->in.b, out, set.range[i].lo, set.range[i].hi));
    return 0;
}

/* Reads the property in braces behind \p, or with @negate behind \P, and adds its characters. */
static int read_property(struct reader *r, bool negate, struct cp_set *out) {
    const char *from = r->in.p + 1, *name = from, *end = regex_at(r, '{') ? from : r->in.end;
    struct cp_set set = {0};
    uint32_t wanted, n;
    char text[64];

    while (end < r->in.end && (isalnum((uint8_t)*end) || *end == '_' || *end == '='))
        end++;
    if (end == r->in.end || *end != '}')
        return source_invalid(&r->in, "\\p needs the name of a property in braces, as in \\p{L}");
    r->in.p = from;
    if (source_skip(&r->in, "gc=") || source_skip(&r->in, "General_Category="))
        name = r->in.p;
    wanted = unicode_property(name, (size_t)(end - name));
    if (!wanted) {
        snprintf(text, sizeof(text), "\\p{%.*s} is", (int)MIN(end - from, 50), from);
        return source_unsupported(&r->in, text);
    }
    const uint32_t *run = unicode_runs(&n);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t lo = run[i] >> 5, hi = i + 1 < n ? (run[i + 1] >> 5) - 1 : 0x10ffff;

        if ((wanted >> (run[i] & 31) & 1) && lo != 0xd800) /* no text has surrogates */
            TRY(cp_set_add(r->in.b, &set, lo, hi));
    }
    r->in.p = end + 1;
    if (negate)
        TRY(cp_set_invert(r->in.b, &set));
    for (uint32_t i = 0; i < set.n; i++)
        TRY(cp_set_add(r->in.b, out, set.range[i].lo, set.range[i].hi));
    return 0;
}

/* Reads what follows a backslash: a class, which is added to @set (*is_class), or one code point.
 * */
static int read_escape(struct reader *r, struct cp_set *set, bool *is_class, uint32_t *cp) {
    static const char CONTROL[] = "t\tn\nr\rv\vf\f";

    *is_class = false;
    if (r->in.p == r->in.end)
        return source_invalid(&r->in, "the expression ends with a backslash");
    char c = *r->in.p++;
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
        return source_read_hex(&r->in, 2, cp);
    if (c == 'u')
        return read_unicode(r, cp);
    if (c == 'c' && r->in.p < r->in.end && ((*r->in.p | 0x20) >= 'a' && (*r->in.p | 0x20) <= 'z')) {
        *cp = (uint8_t)*r->in.p++ & 31;
        return 0;
    }
    if (c == '0' && !(r->in.p < r->in.end && *r->in.p >= '0' && *r->in.p <= '9')) {
        *cp = 0;
        return 0;
    }
    if (c >= '0' && c <= '9')
        return source_unsupported(&r->in, "a back reference is");
    if (c == 'b' || c == 'B')
        return source_unsupported(&r->in, "\\b is");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return source_unsupported(&r->in, "this escape is");
    r->in.p--;
    return source_read_utf8(&r->in, cp);
}

/* Reads one end of a range in [...]. */
static int regex_read_member(struct reader *r, struct cp_set *set, bool *is_class, uint32_t *cp) {
    *is_class = false;
    if (!source_skip(&r->in, "\\"))
        return source_read_utf8(&r->in, cp);
    if (source_skip(&r->in, "b")) {
        *cp = 8;
        return 0;
    }
    return read_escape(r, set, is_class, cp);
}

/* Adds the other case of each ASCII letter of @set. */
static int regex_fold(struct reader *r, struct cp_set *set) {
    uint32_t n = set->n;

    for (uint32_t i = 0; i < n; i++) {
        struct cp_range upper = {MAX(set->range[i].lo, (uint32_t)'A'),
                                 MIN(set->range[i].hi, (uint32_t)'Z')};
        struct cp_range lower = {MAX(set->range[i].lo, (uint32_t)'a'),
                                 MIN(set->range[i].hi, (uint32_t)'z')};

        if (upper.lo <= upper.hi)
            TRY(cp_set_add(r->in.b, set, upper.lo + 32, upper.hi + 32));
        if (lower.lo <= lower.hi)
            TRY(cp_set_add(r->in.b, set, lower.lo - 32, lower.hi - 32));
    }
    return 0;
}

/* Adds both cases of the characters that [^...] excludes: ASCII letters, and the two others whose
 * other case is one. */
static int fold_all(struct reader *r, struct cp_set *set) {
    uint32_t n = set->n;

    TRY(regex_fold(r, set));
    for (uint32_t i = 0; i < n; i++) {
        struct cp_range x = set->range[i];

        if ((x.lo <= 's' && x.hi >= 's') || (x.lo <= 'S' && x.hi >= 'S'))
            TRY(cp_set_add(r->in.b, set, 0x17f, 0x17f));
        if ((x.lo <= 'k' && x.hi >= 'k') || (x.lo <= 'K' && x.hi >= 'K'))
            TRY(cp_set_add(r->in.b, set, 0x212a, 0x212a));
    }
    return 0;
}

static int read_set(struct reader *r, struct cp_set *set) {
    bool negate = source_skip(&r->in, "^"), is_class;
    uint32_t lo, hi;

    while (!regex_at(r, ']')) {
        if (r->in.p == r->in.end)
            return source_invalid(&r->in, "the closing ']' is missing");
        int e = regex_read_member(r, set, &is_class, &lo);

        if (e < 0)
            return e;
        if (is_class)
            continue;
        hi = lo;
        if (r->in.end - r->in.p >= 2 && r->in.p[0] == '-' && r->in.p[1] != ']') {
            r->in.p++;
            if ((e = regex_read_member(r, set, &is_class, &hi)) < 0)
                return e;
            if (is_class || hi < lo)
                return source_invalid(&r->in, "a range is out of order");
        }
        if ((e = cp_set_add(r->in.b, set, lo, hi)) < 0)
            return e;
    }
    r->in.p++;

    if (negate && r->options & REGEX_ANY_CASE)
        TRY(fold_all(r, set));
    cp_set_normalize(set);
    if (!negate)
        return 0;
    return cp_set_invert(r->in.b, set);
}

static struct expr *make_chars(struct reader *r, struct cp_set *set) {
    if (r->options & REGEX_ANY_CASE && regex_fold(r, set) < 0)
        return NULL;
    cp_set_normalize(set);
    return expr_chars(r->in.b, set, r->mode);
}

static struct expr *regex_read_group(struct reader *r) {
    if (source_skip(&r->in, "?")) {
        if (source_skip(&r->in, "=") || source_skip(&r->in, "!") || source_skip(&r->in, "<=") ||
            source_skip(&r->in, "<!"))
            return failed(source_unsupported(&r->in, "look-around is"));
        if (source_skip(&r->in, "<") || source_skip(&r->in, "P<")) {
            while (r->in.p < r->in.end && *r->in.p != '>')
                r->in.p++;
            if (!source_skip(&r->in, ">"))
                return failed(source_invalid(&r->in, "the closing '>' is missing"));
        } else if (!source_skip(&r->in, ":")) {
            return failed(source_unsupported(&r->in, "this kind of group is"));
        }
    }
    struct expr *x = regex_read_alternatives(r);

    if (!source_skip(&r->in, ")"))
        return failed(source_invalid(&r->in, "the closing ')' is missing"));
    return x;
}

static struct expr *read_anchor(struct reader *r) {
    if (!r->search || (r->options & REGEX_FROM_START))
        return failed(source_unsupported(&r->in, "an anchor inside the expression is"));
    if (!r->anchor)
        r->anchor = r->in.p;
    return expr_anchor(r->in.b, *r->in.p++);
}

static struct expr *read_atom(struct reader *r) {
    struct cp_set *set = build_alloc(r->in.b, 1, sizeof(*set));
    bool is_class = false;
    uint32_t cp = 0;

    if (!set)
        return NULL;
    if (source_skip(&r->in, "("))
        return regex_read_group(r);
    if (source_skip(&r->in, "[")) {
        if (read_set(r, set) < 0)
            return NULL;
        return make_chars(r, set);
    }
    if (source_skip(&r->in, ".")) {
        static const struct cp_range LINE_ENDS[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

        size_t n = r->options & REGEX_DOT_ALL ? 0 : ARRAY_SIZE(LINE_ENDS);

        for (size_t i = 0; i < n; i++)
            cp_set_add(r->in.b, set, LINE_ENDS[i].lo, LINE_ENDS[i].hi);
        if (cp_set_invert(r->in.b, set) < 0)
            return NULL;
        return make_chars(r, set);
    }
    if (memchr("*+?{", *r->in.p, 4))
        return failed(source_invalid(&r->in, "the quantifier has nothing to repeat"));
    if (*r->in.p == '^' || *r->in.p == '$')
        return read_anchor(r);
    int e;

    if (source_skip(&r->in, "\\"))
        e = read_escape(r, set, &is_class, &cp);
    else
        e = source_read_utf8(&r->in, &cp);

    if (e < 0 || (!is_class && cp_set_add(r->in.b, set, cp, cp) < 0))
        return NULL;
    return make_chars(r, set);
}

static struct expr *quantified(struct reader *r, struct expr *x) {
    uint32_t min = 0, max = NO_MAX;

    if (source_skip(&r->in, "+")) {
        min = 1;
    } else if (source_skip(&r->in, "?")) {
        max = 1;
    } else if (source_skip(&r->in, "{")) {
        if (source_need_number(&r->in, &min) < 0)
            return NULL;
        max = min;
        if (source_skip(&r->in, ",")) {
            max = NO_MAX;
            if (!regex_at(r, '}') && source_need_number(&r->in, &max) < 0)
                return NULL;
        }
        if (!source_skip(&r->in, "}"))
            return failed(source_invalid(&r->in, "the closing '}' is missing"));
        if (max < min)
            return failed(source_invalid(&r->in, "a range is out of order"));
    } else if (!source_skip(&r->in, "*")) {
        return x;
    }
    source_skip(&r->in, "?");
    if (regex_at(r, '+') || regex_at(r, '*'))
        return failed(source_unsupported(&r->in, "a possessive quantifier is"));
    return expr_repeat(r->in.b, x, min, max);
}

static bool at_branch_end(const struct reader *r) {
    return r->in.p == r->in.end || *r->in.p == '|' || *r->in.p == ')';
}

static bool at_ahead(const struct reader *r) {
    return r->search && r->in.end - r->in.p >= 3 && r->in.p[0] == '(' && r->in.p[1] == '?' &&
           (r->in.p[2] == '=' || r->in.p[2] == '!');
}

static struct expr *regex_read_sequence(struct reader *r) {
    struct expr_vec v = {0};

    while (!at_branch_end(r)) {
        if (r->depth == 1 && at_ahead(r))
            break;
        if (r->depth == 1 && regex_at(r, '$') && (r->in.p + 1 == r->in.end || r->in.p[1] == '|'))
            break;
        struct expr *x = read_atom(r);

        if (expr_vec_add(r->in.b, &v, x ? quantified(r, x) : NULL) < 0)
            return NULL;
    }
    return expr_seq_of(r->in.b, &v);
}

/* Sets *@out to the parts of the sequence *@e, or to @e itself if it is no sequence. Returns their
 * number. */
static uint32_t regex_parts(struct expr **e, struct expr *const **out) {
    *out = (*e)->kind == EXPR_SEQ ? (*e)->child : e;
    if ((*e)->kind != EXPR_SEQ)
        return 1;
    return (*e)->n;
}

/* Returns the length of the common prefix of @x and @y in characters, at most @n. */
static uint32_t regex_common(struct expr *x, struct expr *y, uint32_t n) {
    struct expr *const *p, *const *q;
    uint32_t n_x = regex_parts(&x, &p), n_y = regex_parts(&y, &q), i = 0;

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
            uint32_t same = v[k] ? regex_common(x, v[k], shared) : 0;

            shared = same ? same : shared;
        }
        for (uint32_t k = i; shared < NO_MAX && k < n; k++) {
            if (!v[k] || !regex_common(x, v[k], 1))
                continue;
            uint32_t n_parts = regex_parts(&v[k], &part);

            if (expr_vec_add(b, &rest, expr_seq(b, part + shared, n_parts - shared)) < 0)
                return NULL;
            v[k] = NULL;
        }
        if (rest.n) {
            regex_parts(&x, &part);
            x = expr_seq2(b, expr_seq(b, part, shared), alternatives(b, rest.v, rest.n, depth + 1));
        }
        if (expr_vec_add(b, &out, x) < 0 || build_work(b, n - i) < 0)
            return NULL;
    }
    return expr_alt(b, out.v, out.n);
}

static struct expr *regex_read_alternatives(struct reader *r) {
    struct expr_vec v = {0};

    if (++r->depth > r->in.b->limits.max_depth)
        return failed(build_too_complex(r->in.b,
                                        "regular expression: groups are nested more than %u deep",
                                        r->in.b->limits.max_depth));
    do {
        expr_vec_add(r->in.b, &v, regex_read_sequence(r));
    } while (!r->in.b->failed && source_skip(&r->in, "|"));
    r->depth--;
    if (r->in.b->failed)
        return NULL;
    return alternatives(r->in.b, v.v, v.n, 0);
}

static struct expr *anything(struct reader *r) {
    struct expr *c;

    if (r->mode == CHARS_TEXT)
        c = expr_any_char(r->in.b, CHARS_TEXT);
    else if (r->options & REGEX_CANONICAL)
        c = json_canonical_char(r->in.b);
    else
        c = json_char_unshared(r->in.b);
    return expr_repeat(r->in.b, c, 0, NO_MAX);
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
    struct build *b = r->in.b;
    struct expr *x = regex_read_sequence(r), *y;

    if (!x)
        return NULL;
    if (!at_ahead(r)) {
        if (regex_at(r, ')'))
            return failed(source_invalid(&r->in, "')' without '('"));
        *open = !source_skip(&r->in, "$") && !whole;
        return x;
    }
    bool negative = r->in.p[2] == '!';
    const char *end = group_end(r->in.p, r->in.end), *from = r->in.p + 3;

    if (!end)
        return failed(source_invalid(&r->in, "the closing ')' is missing"));
    if (++b->n_aheads > AHEADS_MAX)
        return failed(source_unsupported(&r->in, "a pattern with more than 64 look-aheads is"));
    y = regex_read_with(b, from, (size_t)(end - from), r->mode, REGEX_SEARCH,
                        r->options | REGEX_FROM_START);
    const struct lang *ahead = lang_of(b, y), *l;

    r->in.p = end + 1;
    y = ahead ? read_rest(r, whole, open) : NULL;
    if (y && *open)
        y = expr_seq2(b, y, anything_behind(r));
    *open = false;
    if (y && r->anchor) {
        r->in.p = r->anchor;
        return failed(source_unsupported(&r->in, "an anchor beside look-ahead is"));
    }
    l = lang_of(b, y);
    if (negative)
        l = lang_meet(b, &l, 1, &ahead, 1);
    else
        l = lang_meet(b, (const struct lang *[]){l, ahead}, 2, NULL, 0);
    return expr_seq2(b, x, lang_expr(b, l));
}

/* Reads all alternatives of the top level. Alternatives without `^` share one loop over the text
 * before them, and those without `$` share one over the text behind: a loop for each would need a
 * state for each set of alternatives that has matched so far. */
static struct expr *read_top(struct reader *r, enum regex_kind kind) {
    struct expr_vec v[2][2] = {0}; /* alternatives: [may begin anywhere][may end anywhere] */
    struct build *b = r->in.b;

    do {
        bool from_start =
            source_skip(&r->in, "^") || kind == REGEX_WHOLE || (r->options & REGEX_FROM_START);
        bool open = false;
        struct expr *x = read_rest(r, kind == REGEX_WHOLE, &open);

        if (expr_vec_add(b, &v[!from_start][open], x) < 0)
            return NULL;
    } while (source_skip(&r->in, "|"));
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
    struct reader r = {.in = {.b = b, .start = s, .p = s, .end = s + len, .is_regex = true},
                       .mode = mode,
                       .options = options,
                       .depth = 1,
                       .search = kind == REGEX_SEARCH};

    /* Strips a group around the whole pattern, so that its alternatives are those at the top. */
    if (r.search && len > 2 && s[0] == '(' && s[1] != '?' && group_end(s, s + len) == s + len - 1) {
        r.in.p++;
        r.in.end--;
    }
    /* A look-ahead and the text that it looks at meet as automata over bytes, so each character
     * must have one spelling. */
    if (memmem(s, len, "(?=", 3) || memmem(s, len, "(?!", 3))
        r.options |= REGEX_CANONICAL;
    struct expr *e = read_top(&r, kind);
    bool counted = false;

    if (r.anchor)
        e = regex_resolve_anchors(b, e, &counted);
    r.in.p = r.anchor;
    if (counted)
        return failed(source_unsupported(&r.in, "an anchor inside a counted group is"));
    return e;
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
