/* The two larger pieces of an NFA: code points as bytes, and the members of an object. */

#include "grammar/automaton/nfa.h"

#include <assert.h>
#include <string.h>

#define LIST_STATES 65536

static unsigned encode(uint32_t cp, uint8_t *out) {
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    unsigned n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;

    for (unsigned i = n; i-- > 1; cp >>= 6)
        out[i] = (uint8_t)(0x80 | (cp & 0x3f));
    out[0] = (uint8_t)((0xf00u >> n) | cp);
    return n;
}

/* Adds the UTF-8 encodings of the code points [lo, hi], both of @n bytes, from byte @i on. Where
 * the first bytes differ, incomplete ranges at both ends are split off, and behind the bytes in
 * the middle any continuation bytes follow. */
static int add_utf8(struct maker *m, const uint8_t *lo, const uint8_t *hi, unsigned n,
                    uint32_t from, uint32_t to) {
    static const uint8_t LOW[3] = {0x80, 0x80, 0x80}, HIGH[3] = {0xbf, 0xbf, 0xbf};
    uint32_t next = to;
    int r = 0;

    if (n == 1)
        return nfa_add_bytes(m, from, lo[0], hi[0], to);
    bool whole_lo = memcmp(lo + 1, LOW, n - 1) == 0, whole_hi = memcmp(hi + 1, HIGH, n - 1) == 0;

    if (lo[0] == hi[0] || (whole_lo && whole_hi)) {
        r = nfa_state(m, &next);
        if (r == 0)
            r = nfa_add_bytes(m, from, lo[0], hi[0], next);
        return r < 0 ? r : add_utf8(m, lo + 1, hi + 1, n - 1, next, to);
    }
    uint8_t first[4], last[4];

    memcpy(first + 1, LOW, n - 1);
    memcpy(last + 1, HIGH, n - 1);
    if (!whole_lo) {
        last[0] = lo[0];
        r = add_utf8(m, lo, last, n, from, to);
    }
    first[0] = (uint8_t)(lo[0] + !whole_lo);
    last[0] = (uint8_t)(hi[0] - !whole_hi);
    if (r == 0 && first[0] <= last[0])
        r = add_utf8(m, first, last, n, from, to);
    if (r == 0 && !whole_hi) {
        first[0] = hi[0];
        r = add_utf8(m, first, hi, n, from, to);
    }
    return r;
}

static int add_range(struct maker *m, uint32_t lo, uint32_t hi, uint32_t from, uint32_t to) {
    static const struct cp_range LENGTH[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    int r;

    for (size_t i = 0; i < ARRAY_SIZE(LENGTH); i++) {
        uint32_t a = MAX(lo, LENGTH[i].lo), b = MIN(hi, LENGTH[i].hi);
        uint8_t first[4], last[4];

        if (a > b)
            continue;
        unsigned n = encode(a, first);

        encode(b, last);
        if ((r = add_utf8(m, first, last, n, from, to)) != 0)
            return r;
    }
    return 0;
}

/* Adds the shortest escape of a character that a JSON string cannot hold plainly. */
static int add_escaped(struct maker *m, uint32_t cp, uint32_t from, uint32_t to) {
    char c = (char)cp;
    uint8_t *text;
    size_t n;
    int r = json_escape(m->b, &c, 1, &text, &n);

    for (size_t i = 0; r == 0 && i < n; i++) {
        uint32_t next = to;

        r = i + 1 < n ? nfa_state(m, &next) : 0;
        if (r == 0)
            r = nfa_add_bytes(m, from, text[i], text[i], next);
        from = next;
    }
    return r;
}

int nfa_add_chars(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < e->set->n; i++) {
        uint32_t lo = e->set->range[i].lo, hi = e->set->range[i].hi;

        if (e->mode == CHARS_TEXT) {
            r = add_range(m, lo, hi, from, to);
            continue;
        }
        for (uint32_t c = lo; r == 0 && c <= MIN(hi, (uint32_t)'\\'); c++) {
            if (c < 0x20 || c == '"' || c == '\\')
                r = add_escaped(m, c, from, to);
        }
        static const struct cp_range PLAIN[] = {{0x20, '!'}, {'#', '['}, {']', 0x10ffff}};

        for (size_t k = 0; r == 0 && k < ARRAY_SIZE(PLAIN); k++) {
            if (MAX(lo, PLAIN[k].lo) <= MIN(hi, PLAIN[k].hi))
                r = add_range(m, MAX(lo, PLAIN[k].lo), MIN(hi, PLAIN[k].hi), from, to);
        }
    }
    return r;
}

/* Members in order, made from the last one to the first. State behind(i, c): member i - 1 has been
 * written or, with i the number of members, one of the rest, as member number c of all; c saturates
 * at top: nothing or something, unless members are counted. State before(i, t): one of the members
 * from i on, or of the rest, begins, as number t.
 *
 *     behind(i, c) --separator--> before(i, c + 1) --member k--> behind(k + 1, c + 1)   (k >= i)
 *
 * The keys that can come are a trie below before(i, t). That of i is the one of i + 1 with a key
 * more: only the way of that key is new, all else is shared. So states and work are those of the
 * bytes of keys, and the sets of subset construction are small, however many members there are. */
struct list_maker {
    struct maker *m;
    const struct expr_list *l;
    uint32_t top;           /* largest c */
    uint32_t i;             /* the row: what lies before and behind are those of i and i + 1 */
    uint32_t *before;       /* before(i, t) by t; NFA_NONE: nothing can come */
    uint32_t *behind, *now; /* behind(i + 1, c) and behind(i, c) by c */
    uint32_t last;          /* after all */
    bool may_end;           /* all members from i on are optional */
};

static bool has_rest(const struct expr_list *l, uint32_t i) {
    return l->rest && l->n - i <= l->n_needs;
}

/* Returns the largest c of behind(i, c): before the rest each member has come at most once. */
static uint32_t most_behind(const struct list_maker *k, uint32_t i) {
    return has_rest(k->l, i) ? k->top : MIN(i, k->top);
}

/* *@root, a trie of keys (NFA_NONE: an empty one), with a further key that leads to @to; the states
 * on its way are new. */
static int insert_key(struct maker *m, uint32_t *root, const struct expr *key, uint32_t to) {
    uint32_t old = *root, at;
    int r = nfa_state(m, &at);

    *root = at;
    for (uint32_t i = 0; r == 0 && i < key->n; i++) {
        uint32_t child = NFA_NONE, next = to;
        uint32_t e = old == NFA_NONE ? NFA_NONE : m->nfa_head[old];

        for (; r == 0 && e != NFA_NONE; e = m->nfa_edge[e].next) {
            struct nfa_edge edge = m->nfa_edge[e];

            assert(edge.kind == NFA_BYTES && edge.lo == edge.hi);
            if (edge.lo == key->bytes[i])
                child = edge.to;
            else
                r = nfa_add_bytes(m, at, edge.lo, edge.lo, edge.to);
        }
        e = old == NFA_NONE ? NFA_NONE : m->nfa_empty[old];
        for (; r == 0 && e != NFA_NONE; e = m->nfa_edge[e].next)
            r = nfa_add_empty(m, at, m->nfa_edge[e].to);
        assert(i + 1 < key->n || child == NFA_NONE); /* no key is the beginning of another */
        if (r == 0 && i + 1 < key->n)
            r = nfa_state(m, &next);
        if (r == 0)
            r = nfa_add_bytes(m, at, key->bytes[i], key->bytes[i], next);
        old = child;
        at = next;
    }
    return r;
}

/* *@root, to which @x from there to @to is added. */
static int add_branch(struct maker *m, uint32_t *root, const struct expr *x, uint32_t to) {
    uint32_t from;
    int r = *root == NFA_NONE ? nfa_state(m, root) : 0;

    if (r == 0)
        r = nfa_state(m, &from);
    if (r == 0)
        r = nfa_add_empty(m, *root, from);
    return r < 0 ? r : nfa_add(m, x, from, to);
}

/* before(i, @t) from before(i + 1, @t). */
static int add_before(struct list_maker *k, uint32_t t) {
    const struct expr_list *l = k->l;
    const struct expr *x = k->i < l->n ? l->member[k->i] : NULL;
    uint32_t *root = &k->before[t], value;
    int r = 0;

    if (x && !l->optional[k->i])
        *root = NFA_NONE;
    if (x && (k->i >= l->n - l->n_needs || x->kind == EXPR_NEVER)) {
        assert(!l->optional[k->i]);
        r = add_branch(k->m, root, x, k->behind[t]);
    } else if (x) {
        assert(x->kind == EXPR_SEQ && x->n > 1 && x->child[0]->kind == EXPR_BYTES);
        r = nfa_state(k->m, &value);
        if (r == 0)
            r = insert_key(k->m, root, x->child[0], value);
        if (r == 0)
            r = nfa_add_sequence(k->m, x->child + 1, x->n - 1, value, k->behind[t]);
    }
    return r < 0 || !has_rest(l, k->i) ? r : add_branch(k->m, root, l->rest, k->now[t]);
}

static int make_row(struct list_maker *k) {
    uint32_t most = most_behind(k, k->i);
    int r = 0;

    for (uint32_t c = 1; r == 0 && c <= most; c++)
        r = nfa_state(k->m, &k->now[c]);
    for (uint32_t t = 1; r == 0 && t <= MIN(most + 1, k->top); t++)
        r = add_before(k, t);
    for (uint32_t c = 1; r == 0 && c <= most; c++) {
        uint32_t t = MIN(c + 1, k->top);

        if (k->may_end && c >= k->l->min)
            r = nfa_add_empty(k->m, k->now[c], k->last);
        if (r == 0 && k->before[t] != NFA_NONE && (c < k->top || k->l->max == NO_MAX))
            r = nfa_add(k->m, k->l->separator, k->now[c], k->before[t]);
    }
    return r;
}

/* Rows of several lists that are the same are the same states, where no members are counted. */
static int add_row(struct list_maker *k) {
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

    if (k->top > 1 || l->max != NO_MAX)
        return make_row(k);
    int r = nfa_find_shared(k->m, &part);

    assert(r <= 0 || part.out == NFA_NONE || part.out < k->m->n_nfa);
    if (r) {
        k->before[1] = part.out;
        k->now[1] = part.out_behind;
        return MIN(r, 0);
    }
    r = make_row(k);
    part.out = k->before[1];
    part.out_behind = k->now[1];
    return r < 0 ? r : nfa_add_shared(k->m, &part);
}

int nfa_add_list(struct maker *m, const struct expr_list *l, uint32_t from, uint32_t to) {
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
    if (((uint64_t)k.top + 1) * (l->n + 1) > LIST_STATES)
        return build_too_complex(m->b, "counting the members of an object takes too many states");
    if (plain.max == 0)
        return n_required || plain.min ? 0 : nfa_add_empty(m, from, to);

    CLEANUP(freep) uint32_t *rows = malloc(3 * (k.top + 1) * sizeof(*rows));
    int r = rows ? 0 : build_no_memory(m->b);

    k.last = to;
    if (r == 0)
        r = nfa_end_alike(m, l->after, &k.last);
    if (r < 0)
        return r;
    memset(rows, 0xff, 3 * (k.top + 1) * sizeof(*rows));
    k.before = rows;
    k.now = rows + k.top + 1;
    k.behind = k.now + k.top + 1;
    for (;; k.i--) {
        k.may_end = k.may_end && (k.i == l->n || l->optional[k.i]);
        r = add_row(&k);
        if (r < 0 || k.i == 0)
            break;
        uint32_t *swap = k.now;

        k.now = k.behind;
        k.behind = swap;
    }
    if (r == 0 && k.may_end && plain.min == 0)
        r = nfa_add_empty(m, from, to);
    if (r == 0 && k.before[1] != NFA_NONE)
        r = nfa_add_empty(m, from, k.before[1]);
    return r;
}
