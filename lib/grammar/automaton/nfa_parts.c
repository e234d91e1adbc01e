/*
 * nfa_parts - the two larger pieces of an NFA: sets of code points, and the members of an object.
 *
 * Code points (nfa_add_chars()). The automaton reads bytes, so a range of code points becomes paths
 * over ranges of UTF-8 bytes. Within one length of the encoding the bytes order as the code points
 * do. Example: U+0080 to U+07FF are the bytes [C2-DF] [80-BF], and U+00E9 to U+0143 splits into
 *
 *     C3 [A9-BF]      the incomplete range behind the first byte
 *     C4 [80-BF]      all between: any continuation byte
 *     C5 [80-83]      the incomplete range behind the last byte
 *
 * In a JSON string the characters that need an escape (controls, quote, backslash) are added in
 * their shortest escape.
 *
 * Members (nfa_add_list()). Members of an object come in the order of the schema; some are
 * optional; the rest (members that the schema does not name) come last, and required members of
 * which nothing else is known may stand among the rest. A comma stands between two members, so
 * behind each member the automaton must know which ones can still come: written as an expression,
 * an optional member would be repeated in the alternatives of all those before it. The states are
 * made in rows from the last member to the first, so that a row can lead to the states of the rows
 * behind it. struct list_maker below explains the rows.
 */

#include <assert.h>
#include <string.h>

#include "grammar/automaton/nfa.h"

#define LIST_STATES 65536

static unsigned nfa_encode(uint32_t cp, uint8_t *out) {
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    unsigned n = 2;

    if (cp >= 0x800)
        n = cp < 0x10000 ? 3 : 4;
    for (unsigned i = n; i-- > 1; cp >>= 6)
        out[i] = (uint8_t)(0x80 | (cp & 0x3f));
    out[0] = (uint8_t)((0xf00u >> n) | cp);
    return n;
}

/* Adds the UTF-8 encodings of the code points [lo, hi], both of @n bytes, from byte @i on. Where
 * the first bytes differ, incomplete ranges at both ends are split off, and behind the bytes in
 * the middle any continuation bytes follow. */
static void add_utf8(struct maker *m, const uint8_t *lo, const uint8_t *hi, unsigned n,
                     uint32_t from, uint32_t to) {
    static const uint8_t LOW[3] = {0x80, 0x80, 0x80}, HIGH[3] = {0xbf, 0xbf, 0xbf};

    if (n == 1) {
        nfa_add_bytes(m, from, lo[0], hi[0], to);
        return;
    }
    bool whole_lo = memcmp(lo + 1, LOW, n - 1) == 0, whole_hi = memcmp(hi + 1, HIGH, n - 1) == 0;

    if (lo[0] == hi[0] || (whole_lo && whole_hi)) {
        uint32_t next = nfa_state(m);

        nfa_add_bytes(m, from, lo[0], hi[0], next);
        add_utf8(m, lo + 1, hi + 1, n - 1, next, to);
        return;
    }
    uint8_t first[4], last[4];

    memcpy(first + 1, LOW, n - 1);
    memcpy(last + 1, HIGH, n - 1);
    if (!whole_lo) {
        last[0] = lo[0];
        add_utf8(m, lo, last, n, from, to);
    }
    first[0] = (uint8_t)(lo[0] + !whole_lo);
    last[0] = (uint8_t)(hi[0] - !whole_hi);
    if (first[0] <= last[0])
        add_utf8(m, first, last, n, from, to);
    if (!whole_hi) {
        first[0] = hi[0];
        add_utf8(m, first, hi, n, from, to);
    }
}

static void add_range(struct maker *m, uint32_t lo, uint32_t hi, uint32_t from, uint32_t to) {
    static const struct cp_range LENGTH[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};

    for (size_t i = 0; i < ARRAY_SIZE(LENGTH); i++) {
        uint32_t a = MAX(lo, LENGTH[i].lo), b = MIN(hi, LENGTH[i].hi);
        uint8_t first[4], last[4];

        if (a > b)
            continue;
        nfa_encode(b, last);
        add_utf8(m, first, last, nfa_encode(a, first), from, to);
    }
}

/* Adds the shortest escape of a character that a JSON string cannot hold plainly. */
static void nfa_add_escaped(struct maker *m, uint32_t cp, uint32_t from, uint32_t to) {
    char c = (char)cp;
    uint8_t *text;
    size_t n;

    if (json_escape(m->b, &c, 1, &text, &n) == 0)
        nfa_add_literal(m, text, n, from, to);
}

void nfa_add_chars(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    for (uint32_t i = 0; i < e->set->n && !m->b->failed; i++) {
        uint32_t lo = e->set->range[i].lo, hi = e->set->range[i].hi;

        if (e->mode == CHARS_TEXT) {
            add_range(m, lo, hi, from, to);
            continue;
        }
        for (uint32_t c = lo; c <= MIN(hi, (uint32_t)'\\'); c++) {
            if (c < 0x20 || c == '"' || c == '\\')
                nfa_add_escaped(m, c, from, to);
        }
        static const struct cp_range PLAIN[] = {{0x20, '!'}, {'#', '['}, {']', 0x10ffff}};

        for (size_t k = 0; k < ARRAY_SIZE(PLAIN); k++) {
            if (MAX(lo, PLAIN[k].lo) <= MIN(hi, PLAIN[k].hi))
                add_range(m, MAX(lo, PLAIN[k].lo), MIN(hi, PLAIN[k].hi), from, to);
        }
    }
}

/* Makes the states for members in their order, from the last member to the first. State
 * behind(i, c): member i - 1 has just been written or, if i is the number of members, one of the
 * rest; it was the c-th member of the object, where all counts from `top` on are the same. Unless
 * minProperties or maxProperties counts members, `top` is 1. State before(i, t): one of the members
 * from i on, or of the rest, begins here as the t-th.
 *
 *     behind(i, c) --separator--> before(i, c + 1) --member k--> behind(k + 1, c + 1)   (k >= i)
 *
 * The keys that can come at before(i, t) are a trie. The trie of row i is the one of row i + 1 with
 * a further key: only the nodes on the way of that key are new, all others are shared. So the
 * number of states grows with the bytes of the keys and not with the square of their number, and
 * the sets of the subset construction stay small. */
struct list_maker {
    struct maker *m;
    const struct expr_list *l;
    /* largest c */
    uint32_t top;
    /* the row that is being made */
    uint32_t i;
    /* before(i, t) by t, made from before(i + 1, t); NFA_NONE: no member */
    uint32_t *before;
    /* behind(i + 1, c) and behind(i, c) by c */
    uint32_t *behind, *now;
    /* the state behind the last member */
    uint32_t last;
    /* every member from i on is optional */
    bool may_end;
};

static bool has_rest(const struct expr_list *l, uint32_t i) {
    return l->rest && l->n - i <= l->n_needs;
}

/* Returns the largest c of behind(i, c): without members of the rest, at most i have come. */
static uint32_t most_behind(const struct list_maker *k, uint32_t i) {
    if (has_rest(k->l, i))
        return k->top;
    return MIN(i, k->top);
}

#define NO_BYTE 256u

/* Gives state @to the edges of the trie's node @from (NFA_NONE: it has none), except the one of
 * @byte. Returns the target of that one, or NFA_NONE. */
static uint32_t copy_node(struct maker *m, uint32_t from, uint32_t to, unsigned byte) {
    uint32_t child = NFA_NONE, e = from == NFA_NONE ? NFA_NONE : m->nfa_head[from];

    for (; e != NFA_NONE; e = m->nfa_edge[e].next) {
        struct nfa_edge edge = m->nfa_edge[e];

        assert(edge.kind == NFA_BYTES && edge.lo == edge.hi);
        if (edge.lo == byte)
            child = edge.to;
        else
            nfa_add_bytes(m, to, edge.lo, edge.lo, edge.to);
    }
    e = from == NFA_NONE ? NFA_NONE : m->nfa_empty[from];
    for (; e != NFA_NONE; e = m->nfa_edge[e].next)
        nfa_add_empty(m, to, m->nfa_edge[e].to);
    return child;
}

/* Returns the trie of keys @old (NFA_NONE: an empty one) with a further key that leads to @to. The
 * states on the way of this key are new; @old stays as it is, since other rows use it. The last one
 * is no state of @to, so that a key may be the beginning of another. */
static uint32_t insert_key(struct maker *m, uint32_t old, const struct expr *key, uint32_t to) {
    uint32_t root = nfa_state(m), at = root;

    for (uint32_t i = 0; i < key->n && !m->b->failed; i++) {
        uint32_t child = copy_node(m, old, at, key->bytes[i]);
        uint32_t next = nfa_state(m);

        nfa_add_bytes(m, at, key->bytes[i], key->bytes[i], next);
        old = child;
        at = next;
    }
    copy_node(m, old, at, NO_BYTE);
    nfa_add_empty(m, at, to);
    return root;
}

/* Adds @x from *@root, which it makes if there is none, to @to. */
static void nfa_add_branch(struct maker *m, uint32_t *root, const struct expr *x, uint32_t to) {
    if (*root == NFA_NONE)
        *root = nfa_state(m);
    uint32_t from = nfa_state(m);

    nfa_add_empty(m, *root, from);
    nfa_add(m, x, from, to);
}

/* Makes before(i, @t) from before(i + 1, @t), which k->before[@t] still has. */
static void add_before(struct list_maker *k, uint32_t t) {
    const struct expr_list *l = k->l;
    const struct expr *x = k->i < l->n ? l->member[k->i] : NULL;
    uint32_t *root = &k->before[t];

    if (x && !l->optional[k->i])
        *root = NFA_NONE;
    if (x && (x->kind != EXPR_SEQ || x->child[0]->kind != EXPR_BYTES)) {
        uint32_t others = *root;

        *root = NFA_NONE; /* the trie of the row behind stays as it is */
        nfa_add_branch(k->m, root, x, k->behind[t]);
        if (others != NFA_NONE)
            nfa_add_empty(k->m, *root, others);
    } else if (x && k->i >= l->n - l->n_needs) {
        assert(!l->optional[k->i]);
        nfa_add_branch(k->m, root, x, k->behind[t]);
    } else if (x) {
        uint32_t value = nfa_state(k->m);

        *root = insert_key(k->m, *root, x->child[0], value);
        nfa_add_sequence(k->m, x->child + 1, x->n - 1, value, k->behind[t]);
    }
    if (has_rest(l, k->i))
        nfa_add_branch(k->m, root, l->rest, k->now[t]);
}

static void make_row(struct list_maker *k) {
    uint32_t most = most_behind(k, k->i);
    struct build *b = k->m->b;

    for (uint32_t c = 1; c <= most; c++)
        k->now[c] = nfa_state(k->m);
    for (uint32_t t = 1; t <= MIN(most + 1, k->top) && !b->failed; t++)
        add_before(k, t);
    for (uint32_t c = 1; c <= most && !b->failed; c++) {
        uint32_t t = MIN(c + 1, k->top);

        if (k->may_end && c >= k->l->min)
            nfa_add_empty(k->m, k->now[c], k->last);
        if (k->before[t] != NFA_NONE && (c < k->top || k->l->max == NO_MAX))
            nfa_add(k->m, k->l->separator, k->now[c], k->before[t]);
    }
}

/* Makes row k->i, or takes the states of an equal row of an earlier list: alternatives of objects
 * often end with the same members. Rows that count members are not shared. */
static void nfa_add_row(struct list_maker *k) {
    const struct expr_list *l = k->l;
    bool inner = k->i < l->n;
    struct nfa_shared part = {.kind = NFA_ROW,
                              .flags = k->may_end | has_rest(l, k->i) << 1 | inner << 2 |
                                       (inner && l->optional[k->i]) << 3 |
                                       (inner && k->i >= l->n - l->n_needs) << 4 | (k->i > 0) << 5,
                              .before = k->before[1],
                              .behind = inner ? k->behind[1] : NFA_NONE,
                              .last = k->last,
                              .x = inner ? l->member[k->i] : NULL,
                              .y = has_rest(l, k->i) ? l->rest : NULL,
                              .z = l->separator};

    bool shared = k->top == 1 && l->max == NO_MAX;

    if (shared && nfa_find_shared(k->m, &part)) {
        k->before[1] = part.out;
        k->now[1] = part.out_behind;
        return;
    }
    make_row(k);
    part.out = k->before[1];
    part.out_behind = k->now[1];
    if (shared)
        nfa_add_shared(k->m, &part);
}

void nfa_add_list(struct maker *m, const struct expr_list *l, uint32_t from, uint32_t to) {
    uint32_t n_required = 0;
    struct expr_list plain = *l;
    struct list_maker k = {.m = m, .l = &plain, .i = l->n, .may_end = true};

    assert(l->n_needs <= l->n && l->min <= l->max);
    for (uint32_t i = 0; i < l->n; i++)
        n_required += !l->optional[i];
    if (plain.min <= n_required)
        plain.min = 0;
    if (!plain.rest && plain.max >= plain.n)
        plain.max = NO_MAX;
    k.top = plain.max == NO_MAX ? MAX(plain.min, 1u) : MAX(plain.max, 1u);
    if (((uint64_t)k.top + 1) * (l->n + 1) > LIST_STATES) {
        build_too_complex(m->b, "counting the members of an object takes too many states");
        return;
    }
    if (plain.max == 0) {
        if (n_required == 0 && plain.min == 0)
            nfa_add_empty(m, from, to);
        return;
    }
    CLEANUP(freep) uint32_t *rows = malloc(3 * (k.top + 1) * sizeof(*rows));

    if (!rows)
        build_no_memory(m->b);
    k.last = nfa_end_alike(m, l->after, to);
    if (m->b->failed)
        return;
    memset(rows, 0xff, 3 * (k.top + 1) * sizeof(*rows));
    k.before = rows;
    k.now = rows + k.top + 1;
    k.behind = k.now + k.top + 1;
    for (;; k.i--) {
        k.may_end = k.may_end && (k.i == l->n || l->optional[k.i]);
        nfa_add_row(&k);
        if (m->b->failed || k.i == 0)
            break;
        uint32_t *swap = k.now;

        k.now = k.behind;
        k.behind = swap;
    }
    if (k.may_end && plain.min == 0)
        nfa_add_empty(m, from, to);
    if (k.before[1] != NFA_NONE)
        nfa_add_empty(m, from, k.before[1]);
}
