/*
 * free_chars - finds how many characters of a kind of text (kinds.h) a state reads, whichever
 * characters they are.
 *
 * Walks use it to take a subtree of the trie as a whole. Example: behind `"` in a string of at most
 * 10 letters, free_chars for the kind of letters is 10. A subtree with nothing but letters, at most
 * 9 of them long, is then allowed without a look at its tokens; one with 12 letters, or with a
 * digit in it, is walked.
 *
 * For kinds of ASCII bytes the number is the greatest solution of
 *
 *     free_chars(q, kind) = 1 + min over the bytes c of the kind of free_chars(q after c, kind)
 *     free_chars(q, kind) = 0 if a byte of the kind leads nowhere
 *
 * counted up to FREE_CHARS_MAX, which is what a state in a loop has. It is found by starting from
 * the maximum and lowering the numbers until nothing changes (lower_state()). Only edges count:
 * calls and ends of the rule can add texts, but never take one away, so the number is a lower bound
 * of what can be read.
 *
 * In UTF-8 the bytes that complete a character depend on those before. So there is a number for
 * each row of kinds.h, a state of the automaton for UTF-8; only the last byte of a character adds 1
 * to it. Row 0, between characters, has the number of the kind.
 *
 * In a loop rule, which counts characters, each byte of ASCII must lead back to the border between
 * characters, and states inside a character have the number 0. So in a subtree that is taken as a
 * whole each character of a token is one of the loop, and the vocabulary's count of characters is
 * right for it.
 */

#include <assert.h>
#include <string.h>

#include "grammar/automaton/nfa.h"
#include "grammar/mask/class.h"
#include "grammar/vocab/kinds.h"

uint32_t kinds_without(const struct byte_set *s) {
    uint32_t kinds = ALL_KINDS;

    for (unsigned c = 0; c < 256; c++) {
        for (unsigned k = 0; byte_set_has(s, (uint8_t)c) && k < TEXT_KINDS; k++) {
            if (kind_has(k, c))
                kinds &= ~(1u << k);
        }
    }
    return kinds;
}

#define FEWEST_BYTES 10 /* size of the smallest kind, digits */

/* One number for each kind. */
typedef uint8_t lanes __attribute__((vector_size(TEXT_KINDS)));

struct analysis {
    const struct grammar *g;
    /* by state: its free_chars; for the two kinds of UTF-8 see row */
    lanes *run;
    /* by edge: 0xff in the lanes of kinds that have none of its bytes */
    lanes *other;
    /* by state: its free_chars in each row of UTF-8 */
    uint8_t (*row)[ROWS];
    /* states with a free_chars that is not 0, in their order */
    uint32_t *some, n;
    /* by state: the last pass in which it changed; the present pass */
    uint8_t *when, pass;
    /* by byte: how many of the bytes below it each kind in ASCII has */
    lanes below[0x81];
};

/* Returns how many bytes of each kind an edge has; in a loop rule only an edge back to the border
 * has any. */
static lanes edge_counts(const struct analysis *r, const struct state *s, const struct edge *e) {
    bool inside = (s->flags & STATE_LOOP) && !(r->g->state[e->to].flags & STATE_BORDER);
    unsigned hi = inside ? 0 : MIN(e->hi + 1u, 0x80u);

    return r->below[hi] - r->below[MIN(e->lo, hi)];
}

/* Sets the numbers of @q to the most that they can be: the maximum for kinds whose bytes all have
 * an edge, 0 for the others. */
static void start_state(struct analysis *r, uint32_t q) {
    const struct state *s = &r->g->state[q];
    const struct edge *edge = &r->g->edge[s->edge];
    bool inside = (s->flags & STATE_LOOP) && !(s->flags & STATE_BORDER);
    bool high = s->n_edges && edge[s->n_edges - 1].hi >= 0x80;
    static const lanes NONE = {0};
    lanes all = NONE, whole = r->below[0x80];
    uint32_t n_bytes = 0;

    r->run[q] = NONE;
    for (uint32_t i = 0; i < s->n_edges; i++)
        n_bytes += edge[i].hi - edge[i].lo + 1u;
    /* Leaves out members, since the text that they read depends on the set. */
    if (n_bytes < FEWEST_BYTES || (s->flags & STATE_MEMBERS)) {
        memset(r->row[q], 0, ROWS);
        return;
    }
    memset(r->row[q], high ? FREE_CHARS_MAX : 0, ROWS);
    for (uint32_t i = 0; i < s->n_edges; i++) {
        lanes n = edge_counts(r, s, &edge[i]);

        r->other[s->edge + i] = (lanes)(n == NONE);
        all += n;
    }
    if (inside)
        r->row[q][0] = r->row[q][ROW_HIGH] = 0;
    else
        r->run[q] = (lanes)(all == whole) & (lanes)(whole != NONE) & FREE_CHARS_MAX;
    if (high || memcmp(&r->run[q], &NONE, sizeof(NONE)) != 0)
        r->some[r->n++] = q;
}

/* Computes the free_chars of @q in row @i from the values of its successors. */
static uint8_t row_free_chars(const struct analysis *r, uint32_t q, unsigned i) {
    const struct state *s = &r->g->state[q];
    const struct edge *e = r->g->edge + s->edge, *end = e + s->n_edges;
    unsigned run = FREE_CHARS_MAX;

    for (const struct row_range *range = kinds_row(i); range->hi; range++) {
        unsigned next = range->lo;

        while (e < end && e->hi < next)
            e++;
        for (const struct edge *at = e; next <= range->hi; at++) {
            if (at == end || at->lo > next)
                return 0;
            if ((s->flags & STATE_LOOP) && !range->row &&
                !(r->g->state[at->to].flags & STATE_BORDER))
                return 0;
            run = MIN(run, r->row[at->to][kinds_row_after(i, range)] + (range->row ? 0u : 1u));
            next = at->hi + 1u;
        }
    }
    return (uint8_t)run;
}

static bool lower_state(struct analysis *r, uint32_t q) {
    const struct state *s = &r->g->state[q];
    lanes run = r->run[q];
    static const uint8_t NONE[ROWS];
    bool any_row = memcmp(r->row[q], NONE, ROWS) != 0, changed = false;

    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
        lanes behind = (r->run[r->g->edge[i].to] + 1) | r->other[i];

        lanes less = (lanes)(behind < run);

        run = (behind & less) | (run & ~less);
    }
    /* Collects the new numbers in a copy, since a row may depend on other rows of the same state,
     * whose edges may lead back to it. */
    if (any_row) {
        uint8_t rows[ROWS];

        for (unsigned i = 0; i < ROWS; i++)
            rows[i] = r->row[q][i] ? row_free_chars(r, q, i) : 0;
        changed = memcmp(rows, r->row[q], ROWS) != 0;
        memcpy(r->row[q], rows, ROWS);
    }
    changed = changed || memcmp(&run, &r->run[q], sizeof(run)) != 0;
    r->run[q] = run;
    return changed;
}

/* Returns whether a successor of @q may have changed since @q was computed. */
static bool is_stale(const struct analysis *r, uint32_t q) {
    const struct state *s = &r->g->state[q];

    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
        if (r->when[r->g->edge[i].to] + 1u >= r->pass)
            return true;
    }
    return false;
}

/* Lowers the numbers until nothing changes. States are numbered in the order in which texts reach
 * them, so going from the last to the first, most states come after their successors and are right
 * after one pass. A number n is right after n passes at the latest. */
static int find_free_chars(struct build *b, struct analysis *r) {
    bool changed = true;
    int e = 0;

    for (unsigned c = 0; c < 0x80; c++) {
        r->below[c + 1] = r->below[c];
        for (unsigned k = 0; k < ASCII_KINDS; k++)
            r->below[c + 1][k] += kind_has(k, c);
    }
    for (uint32_t q = 0; q < r->g->n_states; q++)
        start_state(r, q);
    while (changed && e == 0) {
        changed = false;
        assert(r->pass < UINT8_MAX);
        r->pass++;
        for (uint32_t i = r->n; i-- > 0;) {
            if (is_stale(r, r->some[i]) && lower_state(r, r->some[i])) {
                r->when[r->some[i]] = r->pass;
                changed = true;
            }
        }
        e = build_work(b, r->n * 4ull);
    }
    for (uint32_t q = 0; q < r->g->n_states; q++) {
        assert(r->row[q][0] <= FREE_CHARS_MAX && r->row[q][ROW_HIGH] <= FREE_CHARS_MAX);
        r->run[q][KIND_HIGH] = r->row[q][ROW_HIGH];
        r->run[q][KIND_TEXT] = r->row[q][0];
    }
    return e;
}

int automaton_free_chars(struct build *b, struct grammar *g) {
    size_t n = MAX(g->n_states, 1u);
    struct analysis r = {.g = g,
                         .run = malloc(n * sizeof(lanes)),
                         .other = malloc(MAX(g->n_edges, 1u) * sizeof(lanes)),
                         .row = malloc(n * ROWS),
                         .some = malloc(n * sizeof(uint32_t)),
                         .when = calloc(n, 1)};
    int e;

    if (r.run && r.other && r.row && r.some && r.when)
        e = find_free_chars(b, &r);
    else
        e = build_no_memory(b);

    g->free_chars = (uint8_t(*)[TEXT_KINDS])r.run;
    g->bytes += n * sizeof(lanes);
    free(r.other);
    free(r.row);
    free(r.some);
    free(r.when);
    return e;
}
