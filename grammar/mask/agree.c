/*
 * agree - finds up to which length two states of a rule read the same texts.
 *
 * The product of a pattern and a maxLength has a copy of each state of the pattern for each count,
 * and far from the limit the copies differ on long texts only. Example: with 60 characters left
 * instead of 59, only texts of 60 characters are read differently. Tokens are shorter, so the two
 * states allow the same ones, and the class of one serves for the other (classify_like.c).
 *
 * states_agree() visits pairs of states breadth-first, as in the test of Hopcroft and Karp whether
 * two automata are equivalent:
 *
 *     pair (q, r) behind 0 characters
 *     each byte c that both read leads to the pair (q behind c, r behind c), one character further
 *     a byte that only one of them reads, or an end of only one: they agree up to here
 *     a pair (q, q) need not be followed: it agrees on everything
 *
 * The continuation bytes of a UTF-8 character do not count, so a pair may lie in the middle of a
 * character. The search ends at the first difference, at AGREE_MAX characters, or when it has
 * looked at EDGES_MAX edges; what it has shown by then is a lower bound. If no pair is left without
 * a difference, the states are equivalent.
 *
 * state_reach() goes through the states behind one state in the same order, and finds how many
 * characters can be read before the rule must end.
 */

#include "grammar/mask/collect.h"

#include <assert.h>
#include <string.h>

#define PAIRS_MAX 512
#define PAIR_SLOTS 1024
#define EDGES_MAX 4000 /* edges that one search looks at */

struct pair {
    uint32_t q, r, chars;
};

/* now[]: the pairs behind `chars` characters, later[]: those behind one more; slot[] finds all. */
struct agreement {
    const struct grammar *g;
    struct pair pair[PAIRS_MAX];
    uint16_t slot[PAIR_SLOTS]; /* place + 1 */
    uint16_t now[2 * PAIRS_MAX], later[2 * PAIRS_MAX];
    uint32_t n, n_now, n_later, chars, n_edges;
    int least; /* a lower bound of the characters that the two states read alike */
    bool full; /* not all pairs could be followed */
};

/* Returns whether a byte of [@lo, @hi] continues a UTF-8 character. */
static bool goes_on(unsigned lo, unsigned hi) {
    return lo <= 0xbf && hi >= 0x80;
}

static void add_pair(struct agreement *a, uint32_t q, uint32_t r, uint32_t chars) {
    uint64_t h = ((uint64_t)q << 32 | r) * 0x9E3779B97F4A7C15u;
    uint32_t i = (uint32_t)(h >> 40) % PAIR_SLOTS;
    struct pair *p;

    if (q == r)
        return;
    while (a->slot[i] && (p = &a->pair[a->slot[i] - 1]) && (p->q != q || p->r != r))
        i = (i + 1) % PAIR_SLOTS;
    if (a->slot[i] && a->pair[a->slot[i] - 1].chars <= chars)
        return;
    if (!a->slot[i] && a->n == PAIRS_MAX) {
        a->full = true;
        return;
    }
    if (!a->slot[i])
        a->slot[i] = (uint16_t)++a->n;
    assert(chars == a->chars || chars == a->chars + 1);
    assert(a->n_now < ARRAY_SIZE(a->now) && a->n_later < ARRAY_SIZE(a->later));
    a->pair[a->slot[i] - 1] = (struct pair){q, r, chars};
    if (chars == a->chars)
        a->now[a->n_now++] = (uint16_t)(a->slot[i] - 1);
    else
        a->later[a->n_later++] = (uint16_t)(a->slot[i] - 1);
}

/* Sets *@to to where byte @at leads; @e is the first edge that does not end before @at. Returns the
 * last byte up to which that stays the same. */
static unsigned run_of(const struct edge *e, const struct edge *end, unsigned at, uint32_t *to) {
    *to = NO_STATE;
    if (e == end || e->lo > at)
        return e == end ? 255 : MIN(e->lo - 1u, 255u);
    *to = e->to;
    return MIN(e->hi, 255u);
}

/* Compares the states of pair @i at each byte, and at the end of the rule. */
static void compare(struct agreement *a, uint32_t i) {
    const struct grammar *g = a->g;
    const struct pair p = a->pair[i];
    const struct state *q = &g->state[p.q], *r = &g->state[p.r];
    const struct edge *e = g->edge + q->edge, *e_end = e + q->n_edges;
    const struct edge *f = g->edge + r->edge, *f_end = f + r->n_edges;

    if ((q->flags ^ r->flags) & STATE_ACCEPT)
        a->least = MIN(a->least, (int)a->chars);
    a->n_edges += (uint32_t)q->n_edges + r->n_edges;
    for (unsigned at = 0, last; at < 256; at = last + 1) {
        uint32_t x, y;

        for (; e < e_end && e->hi < at; e++) {
        }
        for (; f < f_end && f->hi < at; f++) {
        }
        last = MIN(run_of(e, e_end, at, &x), run_of(f, f_end, at, &y));
        bool inside = goes_on(at, last);

        if ((x == NO_STATE) != (y == NO_STATE))
            a->least = MIN(a->least, (int)a->chars - inside);
        else if (x != NO_STATE)
            add_pair(a, x, y, a->chars + !inside);
    }
}

int states_agree(const struct grammar *g, uint32_t q, uint32_t r, uint64_t *n_looked) {
    assert(g->state[q].rule == g->state[r].rule && g->rule[g->state[q].rule].plain);
    CLEANUP(freep) struct agreement *a = calloc(1, sizeof(*a));

    if (!a)
        return -1;
    a->g = g;
    a->least = AGREE_ALL;
    add_pair(a, q, r, 0);
    for (; a->chars <= AGREE_MAX && a->least == AGREE_ALL && a->n_now; a->chars++) {
        for (uint32_t i = 0; i < a->n_now && a->n_edges < EDGES_MAX; i++)
            compare(a, a->now[i]);
        a->full = a->full || a->n_edges >= EDGES_MAX;
        if (a->full)
            a->least = MIN(a->least, (int)a->chars - 1);
        memcpy(a->now, a->later, a->n_later * sizeof(*a->now));
        a->n_now = a->n_later;
        a->n_later = 0;
    }
    *n_looked += sizeof(*a) / 256 + a->n_edges;
    return a->n_now ? MIN(a->least, AGREE_MAX) : a->least;
}

struct reach {
    const struct grammar *g;
    const struct auto_rule *rule;
    uint8_t *level; /* by state: 1 + the most characters that are known to lead to it */
    uint32_t now[PAIRS_MAX], later[PAIRS_MAX], n_now, n_later, n_edges;
    bool ends, full;
};

/* Records that @q is reached with @chars characters, and adds it to @list unless as many characters
 * have led there before. */
static void add_reached(struct reach *r, uint32_t q, uint32_t chars, uint32_t *list, uint32_t *n) {
    if (r->level[q - r->rule->start] > chars)
        return;
    r->level[q - r->rule->start] = (uint8_t)(chars + 1);
    r->ends = r->ends || (r->g->state[q].flags & STATE_ACCEPT);
    r->full = r->full || *n == PAIRS_MAX;
    if (*n < PAIRS_MAX)
        list[(*n)++] = q;
}

/* Returns whether a byte of the edge occurs in texts of KIND_TEXT. */
static bool is_of_text(const struct edge *e) {
    return e->hi >= ' ' && e->lo < TOKEN_SYMBOL &&
           (e->lo != e->hi || (e->lo != '"' && e->lo != '\\'));
}

/* Adds the targets of the edges of @q, which is @chars characters deep. */
static void reach_from(struct reach *r, uint32_t q, uint32_t chars) {
    const struct state *s = &r->g->state[q];

    r->n_edges += s->n_edges;
    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
        const struct edge *e = &r->g->edge[i];

        if (!is_of_text(e))
            continue;
        if (goes_on(e->lo, e->hi))
            add_reached(r, e->to, chars, r->now, &r->n_now);
        if (e->lo < 0x80 || e->hi > 0xbf)
            add_reached(r, e->to, chars + 1, r->later, &r->n_later);
    }
}

uint32_t state_reach(const struct grammar *g, uint32_t q, bool *ends, uint64_t *n_looked) {
    struct reach r = {.g = g, .rule = &g->rule[g->state[q].rule], .now = {q}, .n_now = 1};
    CLEANUP(freep) uint8_t *level = calloc(r.rule->n_states, 1);
    uint32_t chars = 0;

    *ends = true;
    assert(r.rule->plain);
    if (!level)
        return AGREE_MAX;
    r.level = level;
    *n_looked += r.rule->n_states / 256;
    for (; chars < AGREE_MAX; chars++) {
        uint32_t n_edges = r.n_edges;

        for (uint32_t i = 0; i < r.n_now && r.n_edges <= EDGES_MAX && !r.full; i++)
            reach_from(&r, r.now[i], chars);
        *n_looked += r.n_edges - n_edges;
        if (r.n_edges > EDGES_MAX || r.full)
            return AGREE_MAX;
        if (r.n_later == 0)
            break;
        memcpy(r.now, r.later, r.n_later * sizeof(*r.now));
        r.n_now = r.n_later;
        r.n_later = 0;
    }
    *ends = r.ends;
    return chars;
}
