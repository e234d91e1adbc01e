/* The two larger pieces of an NFA: code points as bytes, and the members of an object. */

#include "text/grammar/nfa.h"

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

/* Code points [lo, hi] whose encodings are both @n bytes long, as bytes from position @i on: where
 * the first bytes differ, the ends that are not whole are cut off and the middle takes any bytes
 * after it. */
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
    int r = 0;

    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(LENGTH); i++) {
        uint32_t a = MAX(lo, LENGTH[i].lo), b = MIN(hi, LENGTH[i].hi);
        uint8_t first[4], last[4];

        if (a > b)
            continue;
        unsigned n = encode(a, first);

        encode(b, last);
        r = add_utf8(m, first, last, n, from, to);
    }
    return r;
}

/* What a JSON string cannot hold plainly, in its shortest form. */
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

/* Members in order. State (i, c): the first i members have been written or passed over, c of them
 * written (saturating at what still matters: nothing or something, unless members are counted). */
struct list_maker {
    struct maker *m;
    const struct expr_list *l;
    uint32_t top;         /* largest c */
    uint32_t *now, *next; /* states of row i and row i + 1 by c, NFA_NONE: not reached */
};

static int reach(struct list_maker *k, uint32_t *row, uint32_t c, uint32_t *out) {
    int r = row[c] == NFA_NONE ? nfa_state(k->m, &row[c]) : 0;

    *out = row[c];
    return r;
}

/* From each state of this row that may have one more: the separator when it is not the first, then
 * @x. */
static int add_member(struct list_maker *k, struct expr *x, uint32_t *to_row) {
    for (uint32_t t = 1; t <= k->top; t++) {
        uint32_t before = NFA_NONE, after;
        int r = 0;

        for (uint32_t c = t - 1; r == 0 && c <= t; c++) {
            bool allowed = c == t - 1 || (c == k->top && k->l->max == NO_MAX);

            if (!allowed || k->now[c] == NFA_NONE)
                continue;
            if (before == NFA_NONE)
                r = nfa_state(k->m, &before);
            if (r == 0)
                r = c == 0 ? nfa_add_empty(k->m, k->now[c], before)
                           : nfa_add(k->m, k->l->separator, k->now[c], before);
        }
        if (r == 0 && before != NFA_NONE) {
            r = reach(k, to_row, t, &after);
            if (r == 0)
                r = nfa_add(k->m, x, before, after);
        }
        if (r < 0)
            return r;
    }
    return 0;
}

static int add_row(struct list_maker *k, uint32_t i) {
    int r = add_member(k, k->l->member[i], k->next);

    for (uint32_t c = 0; r == 0 && k->l->optional[i] && c <= k->top; c++) {
        uint32_t to;

        if (k->now[c] == NFA_NONE)
            continue;
        r = reach(k, k->next, c, &to);
        if (r == 0)
            r = nfa_add_empty(k->m, k->now[c], to);
    }
    return r;
}

/* Any number of the rest: it leads back to its own row. */
static int add_rest(struct list_maker *k) {
    int r = 0;

    for (uint32_t c = 1, s; r == 0 && c <= k->top; c++)
        r = reach(k, k->now, c, &s);
    return r < 0 ? r : add_member(k, k->l->rest, k->now);
}

int nfa_add_list(struct maker *m, const struct expr_list *l, uint32_t from, uint32_t to) {
    uint32_t n_required = 0;
    struct expr_list plain = *l;
    struct list_maker k = {.m = m, .l = &plain};

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

    CLEANUP(freep) uint32_t *rows = malloc(2 * (k.top + 1) * sizeof(*rows));
    int r = rows ? 0 : build_no_memory(m->b);

    if (r < 0)
        return r;
    memset(rows, 0xff, 2 * (k.top + 1) * sizeof(*rows));
    k.now = rows;
    k.next = rows + k.top + 1;
    k.now[0] = from;
    for (uint32_t i = 0; r == 0 && i < l->n; i++) {
        if (plain.rest && l->n - i <= l->n_needs)
            r = add_rest(&k);
        if (r == 0)
            r = add_row(&k, i);
        uint32_t *swap = k.now;

        k.now = k.next;
        k.next = swap;
        memset(k.next, 0xff, (k.top + 1) * sizeof(*rows));
    }
    if (r == 0 && plain.rest)
        r = add_rest(&k);
    uint32_t last;

    r = r < 0 ? r : nfa_state(m, &last);
    for (uint32_t c = plain.min; r == 0 && c <= k.top; c++) {
        if (k.now[c] != NFA_NONE)
            r = nfa_add_empty(m, k.now[c], c ? last : to);
    }
    return r < 0 ? r : nfa_add(m, l->after, last, to);
}
