/* members - the static tables of objects whose members come in any order. The sets of members that
 * an output has written are in machine/members.c. */

#include "grammar/automaton/members.h"

#include <string.h>

#define WORD_BITS 32

int members_copy(struct build *b, struct grammar *g) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_rules; i++)
        n += b->rule[i].members != NULL;
    if (n == 0)
        return 0;
    g->members = calloc(n, sizeof(*g->members));
    if (!g->members)
        return build_no_memory(b);
    for (uint32_t i = 0; i < b->n_rules; i++) {
        const struct members *from = b->rule[i].members;
        struct members *to = &g->members[g->n_members];

        if (!from)
            continue;
        size_t size = (from->n + WORD_BITS - 1) / WORD_BITS * sizeof(*to->must);

        to->n = from->n;
        to->distinct = from->distinct;
        to->must = malloc(MAX(2 * size, (size_t)1));
        if (!to->must)
            return build_no_memory(b);
        to->left = to->must + size / sizeof(*to->must);
        if (size > 0) {
            memcpy(to->must, from->must, size);
            memcpy(to->left, from->must, size);
        }
        g->rule[i].members = g->n_members++;
        g->bytes += sizeof(*to) + 2 * size;
    }
    return 0;
}

bool members_live(struct grammar *g, uint32_t rule, uint32_t i) {
    struct members *k = &g->members[g->rule[rule].members];
    uint32_t left = 0;

    if (i < k->n)
        k->left[i / WORD_BITS] &= ~(1u << i % WORD_BITS);
    for (uint32_t w = 0; w * WORD_BITS < k->n; w++)
        left |= k->left[w];
    return left == 0;
}

static bool widen(struct span *to, struct span from) {
    struct span old = *to;

    if (from.lo < from.hi) {
        bool empty = to->lo == to->hi;

        to->lo = empty ? from.lo : MIN(to->lo, from.lo);
        to->hi = empty ? from.hi : MAX(to->hi, from.hi);
    }
    to->others |= from.others;
    return old.lo != to->lo || old.hi != to->hi || old.others != to->others;
}

/* Widens the span of @q by those of its successors. Returns whether it has grown. */
static bool look_at(struct grammar *g, uint32_t q) {
    const struct state *s = &g->state[q];
    bool grown = false;

    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++)
        grown |= widen(&g->span[q], g->span[g->edge[i].to]);
    for (uint32_t i = s->call; i < s->call + s->n_calls; i++) {
        const struct call_desc *d = &g->desc[g->call[i].desc];
        struct span to = g->span[g->call[i].to];

        if (is_member(d))
            to = (struct span){.lo = (uint16_t)d->min, .hi = (uint16_t)(d->min + 1)};
        else if (d->kind == CALL_ONCE)
            to = (struct span){.others = true};
        grown |= widen(&g->span[q], to);
    }
    return grown;
}

int members_spans(struct build *b, struct grammar *g) {
    bool grown = g->n_members > 0;
    int r = 0;

    if (!grown)
        return 0;
    g->span = calloc(g->n_states, sizeof(*g->span));
    if (!g->span)
        return build_no_memory(b);
    g->bytes += g->n_states * sizeof(*g->span);
    while (r == 0 && grown) {
        grown = false;
        for (uint32_t q = g->n_states; q-- > 0;) {
            if (g->state[q].flags & STATE_MEMBERS)
                grown |= look_at(g, q);
        }
        r = build_work(b, (g->n_states + g->n_edges + g->n_calls) / 4);
    }
    return r;
}

void members_free(struct grammar *g) {
    for (uint32_t i = 0; i < g->n_members; i++)
        free(g->members[i].must);
    free(g->members);
    free(g->span);
}
