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

/* Hashes the beginning of an expression; equal expressions have equal hashes. */
static uint64_t hash_of_expr(const struct expr *e) {
    while (e && (e->kind == EXPR_SEQ || e->kind == EXPR_ALT))
        e = e->child[0];
    if (!e)
        return 0;
    return hash_step(e->kind, (uint64_t)e->id << 32 | e->n) +
           (e->kind == EXPR_BYTES ? bytes_hash(e->bytes, e->n) : 0);
}

static uint32_t nfa_share_hash(const struct nfa_shared *p) {
    uint64_t h = hash_step(p->kind, (uint64_t)p->flags << 32 | p->last);

    h = hash_step(h, (uint64_t)p->before << 32 | p->behind);
    return (uint32_t)(hash_step(h, hash_of_expr(p->x) + hash_of_expr(p->y)) >> 16);
}

static bool same_expr(const struct expr *x, const struct expr *y) {
    return x == y || (x && y && expr_same(x, y));
}

static bool same_part(const struct nfa_shared *p, const struct nfa_shared *q) {
    return p->kind == q->kind && p->flags == q->flags && p->last == q->last &&
           p->before == q->before && p->behind == q->behind && same_expr(p->x, q->x) &&
           same_expr(p->y, q->y) && same_expr(p->z, q->z);
}

bool nfa_find_shared(struct maker *m, struct nfa_shared *part) {
    if (m->b->failed || build_work(m->b, 2) < 0)
        return false;
    HASH_INDEX_EACH(m->shared_index, nfa_share_hash(part), i) {
        if (same_part(&m->shared[i], part)) {
            *part = m->shared[i];
            return true;
        }
    }
    return false;
}

void nfa_add_shared(struct maker *m, const struct nfa_shared *part) {
    if (m->b->failed ||
        maker_grow(m, &m->shared, m->n_shared, &m->cap_shared, sizeof(*m->shared)) < 0)
        return;
    m->shared[m->n_shared] = *part;
    if (hash_index_add(&m->shared_index, nfa_share_hash(part), m->n_shared++) < 0)
        build_no_memory(m->b);
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
