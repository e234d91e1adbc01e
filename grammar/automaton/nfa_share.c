/*
 * nfa_share - makes parts that several alternatives of a rule have in common once.
 *
 * Schemas with anyOf or oneOf have alternatives of objects that differ in a few members. Example:
 *
 *     "{" "kind" ":" A "," X "}"          0 --{"kind":--> 2 --A,X--> 3 --}--> 1
 *     "{" "kind" ":" B "," X "}"                          2 --B,X--> 3
 *
 * Parts that begin alike from one state lead to one state (begin_alike()); parts that end alike
 * before one state are one way to it (nfa_end_alike()); lists of members that end alike share these
 * rows (nfa_parts.c). Without this the subset construction would find the same automaton, but its
 * sets would have a member for each alternative instead of one for each way on that differs: with
 * hundreds of alternatives most of the time would go there.
 *
 * A part is found by the states that it hangs on and by the expressions that it reads, in a hash
 * table that holds for one rule. Sharing is right because no other edges enter or leave the inner
 * states of a part: a text that is in such a state has gone through the beginning of the part, and
 * goes on with the rest of it.
 */

#include "grammar/automaton/nfa.h"

#include <assert.h>

/* Hashes the beginning of an expression; equal expressions have equal hashes. */
static uint64_t hash_of_expr(const struct expr *e) {
    while (e && (e->kind == EXPR_SEQ || e->kind == EXPR_ALT))
        e = e->child[0];
    if (!e)
        return 0;
    uint64_t h = hash_step(e->kind, (uint64_t)e->id << 32 | e->n);

    for (uint32_t i = 0; e->kind == EXPR_BYTES && i < e->n; i++)
        h = hash_step(h, e->bytes[i]);
    return h;
}

static uint64_t hash_of(const struct nfa_shared *p) {
    uint64_t h = hash_step(p->kind, (uint64_t)p->flags << 32 | p->last);

    h = hash_step(h, (uint64_t)p->before << 32 | p->behind);
    return hash_step(h, hash_of_expr(p->x) + hash_of_expr(p->y));
}

static bool same_expr(const struct expr *x, const struct expr *y) {
    return x == y || (x && y && expr_same(x, y));
}

static bool same_part(const struct nfa_shared *p, const struct nfa_shared *q) {
    return p->kind == q->kind && p->flags == q->flags && p->last == q->last &&
           p->before == q->before && p->behind == q->behind && same_expr(p->x, q->x) &&
           same_expr(p->y, q->y) && same_expr(p->z, q->z);
}

static bool is_taken(const struct maker *m, uint32_t at) {
    return m->shared[at].kind != NFA_NOT_SHARED && m->shared[at].stamp == m->shared_stamp;
}

static struct nfa_shared *place_of(const struct maker *m, const struct nfa_shared *p) {
    uint32_t at = (uint32_t)(hash_of(p) >> 16) & m->shared_mask;

    assert(p->kind != NFA_NOT_SHARED && m->n_shared * 2 <= m->shared_mask);
    while (is_taken(m, at) && !same_part(&m->shared[at], p))
        at = (at + 1) & m->shared_mask;
    return &m->shared[at];
}

static int grow(struct maker *m) {
    uint32_t n_old = m->shared ? m->shared_mask + 1 : 0, n = MAX(n_old * 2, 64u);
    struct nfa_shared *old = m->shared, *v = calloc(n, sizeof(*v));

    if (!v)
        return build_no_memory(m->b);
    m->shared = v;
    m->shared_mask = n - 1;
    for (uint32_t i = 0; i < n_old; i++) {
        if (old[i].kind != NFA_NOT_SHARED && old[i].stamp == m->shared_stamp)
            *place_of(m, &old[i]) = old[i];
    }
    free(old);
    return 0;
}

bool nfa_find_shared(struct maker *m, struct nfa_shared *part) {
    if (m->b->failed || (m->shared ? build_work(m->b, 2) : grow(m)) < 0)
        return false;
    const struct nfa_shared *p = place_of(m, part);
    bool known = is_taken(m, (uint32_t)(p - m->shared));

    if (known) {
        part->out = p->out;
        part->out_behind = p->out_behind;
    }
    return known;
}

void nfa_add_shared(struct maker *m, const struct nfa_shared *part) {
    if (m->b->failed || ((m->n_shared + 1) * 2 > m->shared_mask && grow(m) < 0))
        return;
    struct nfa_shared *p = place_of(m, part);

    assert(!is_taken(m, (uint32_t)(p - m->shared)));
    *p = *part;
    p->stamp = m->shared_stamp;
    m->n_shared++;
}

void nfa_forget_shared(struct maker *m) {
    m->shared_stamp++;
    m->n_shared = 0;
}

/* Returns the state behind expression @e, read from state @from. */
static uint32_t begin_alike(struct maker *m, const struct expr *e, uint32_t from) {
    struct nfa_shared part = {.kind = NFA_BEGINNING, .before = from, .x = e};

    if (!nfa_find_shared(m, &part)) {
        part.out = nfa_state(m);
        nfa_add(m, e, from, part.out);
        nfa_add_shared(m, &part);
    }
    return part.out;
}

uint32_t nfa_end_alike(struct maker *m, const struct expr *e, uint32_t to) {
    struct nfa_shared part = {.kind = NFA_END, .behind = to, .x = e};

    if (!nfa_find_shared(m, &part)) {
        part.out = nfa_state(m);
        nfa_add(m, e, part.out, to);
        nfa_add_shared(m, &part);
    }
    return part.out;
}

void nfa_add_alternative(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    const struct build *b = m->b;
    uint32_t first = 0, n = e->n;

    if (m->flat || e->kind != EXPR_SEQ || e->child[0]->kind != EXPR_BYTES) {
        nfa_add(m, e, from, to);
        return;
    }
    while (first + 1 < n && (e->child[first]->kind == EXPR_BYTES || e->child[first] == b->space[0]))
        from = begin_alike(m, e->child[first++], from);
    if (first + 1 < n && e->child[n - 1]->kind == EXPR_BYTES)
        to = nfa_end_alike(m, e->child[--n], to);
    nfa_add_sequence(m, e->child + first, n - first, from, to);
}
