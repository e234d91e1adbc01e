/* distinct_new - computes the tables for items that must differ, when the automaton is compiled. */

#include <stdlib.h>

#include "grammar/machine/distinct.h"

/* Returns a lower bound of the number of texts that begin with call @c: as many as the callee has,
 * or as many as there are behind it. 0: not known yet. */
static uint32_t by_call(const struct grammar *g, const struct call *c) {
    const struct call_desc *d = &g->desc[c->desc];
    uint32_t start = g->n_texts[g->rule[d->rule].start], to = g->n_texts[c->to];

    if (start == 0 || to == 0)
        return 0;
    if (d->kind == CALL_NAMES || (d->kind == CALL_REPEAT && d->max == NO_MAX))
        return TEXTS_MAX;
    if (d->kind == CALL_COUNTED)
        start = (uint32_t)distinct_loop_texts(g, d->rule, d->max);
    return MAX(start, to);
}

/* Returns a lower bound for a state whose successors are known; 0: some are not. Texts that begin
 * with different bytes differ. Texts of calls may coincide, and so may those behind the end of a
 * rule and those inside it, except where an item ends. */
static uint32_t n_texts_at(const struct grammar *g, const struct state *s, const bool *is_item) {
    uint64_t n = 0, best = (s->flags & STATE_ACCEPT) != 0;

    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
        if (g->n_texts[g->edge[i].to] == 0)
            return 0;
        n += (uint64_t)(g->edge[i].hi - g->edge[i].lo + 1) * g->n_texts[g->edge[i].to];
    }
    best = is_item[s->rule] ? best + n : MAX(best, n);
    for (uint32_t i = s->call; i < s->call + s->n_calls; i++) {
        n = by_call(g, &g->call[i]);
        if (n == 0)
            return 0;
        best = MAX(best, n);
    }
    return (uint32_t)MIN(best, TEXTS_MAX);
}

/* Finds the bound of every state. A state that is unknown in the end lies on a cycle, or leads to
 * one, and has unlimited texts. */
static int find_n_texts(struct build *b, struct grammar *g, const bool *is_item) {
    bool changed = true;
    int r = 0;

    g->n_texts = calloc(MAX(g->n_states, 1u), sizeof(*g->n_texts));
    if (!g->n_texts)
        return build_no_memory(b);
    g->bytes += g->n_states * sizeof(*g->n_texts);
    for (uint32_t i = 0; i < g->n_rules; i++) {
        if (g->rule[i].loop)
            g->n_texts[g->rule[i].start] = 1;
    }
    while (r == 0 && changed) {
        changed = false;
        for (uint32_t q = g->n_states; q-- > 0;) {
            if (g->n_texts[q] == 0) {
                g->n_texts[q] = n_texts_at(g, &g->state[q], is_item);
                changed |= g->n_texts[q] != 0;
            }
        }
        r = build_work(b, (g->n_states + g->n_edges + g->n_calls) / 4);
    }
    for (uint32_t q = 0; q < g->n_states; q++) {
        if (g->n_texts[q] == 0)
            g->n_texts[q] = TEXTS_MAX;
    }
    return r;
}

/* Calls @each with every rule of items that must differ, and with the members of the array's
 * rule. */
static void each_item(struct grammar *g,
                      void (*each)(struct grammar *g, uint32_t rule, struct members *k, void *arg),
                      void *arg) {
    for (uint32_t q = 0; q < g->n_states; q++) {
        const struct state *s = &g->state[q];

        for (uint32_t i = s->call; (s->flags & STATE_MEMBERS) && i < s->call + s->n_calls; i++) {
            const struct call_desc *d = &g->desc[g->call[i].desc];
            struct members *k = &g->members[g->rule[s->rule].members];

            if (d->kind == CALL_ONCE && k->distinct)
                each(g, d->rule, k, arg);
        }
    }
}

static void mark_item(struct grammar *g, uint32_t rule, struct members *k, void *arg) {
    ((bool *)arg)[rule] = true;
}

/* Limits the number of items that must differ to the number of texts that an item can have. */
static void limit_items(struct grammar *g, uint32_t rule, struct members *k, void *arg) {
    k->distinct = MIN(k->distinct, g->n_texts[g->rule[rule].start]);
}

/* Returns true for a byte that can end an item: the last of a string, object, array, name or
 * number. */
static bool may_end_item(uint8_t c) {
    return c == '"' || c == '}' || c == ']' || c == 'e' || c == 'l' || (c >= '0' && c <= '9');
}

/* Returns whether @s may hold the end of an item, a comma, and the end of another item. */
static bool is_double(const uint8_t *s, size_t len) {
    bool one = false, comma = false;

    for (size_t i = 0; i < len; i++) {
        if (may_end_item(s[i]) && comma)
            return true;
        one = one || may_end_item(s[i]);
        comma = comma || (one && s[i] == ',');
    }
    return false;
}

static int find_doubles(struct build *b, struct grammar *g) {
    uint32_t n = b->vocab->n, n_doubles = 0;

    for (int pass = 0; pass < 2; pass++) {
        g->n_doubles = 0;
        for (uint32_t i = 0; i < n; i++) {
            size_t len;
            const uint8_t *bytes = vocab_bytes(b->vocab, (int32_t)i, &len);

            if (b->vocab->is_special[i] || !is_double(bytes, len))
                continue;
            if (pass)
                g->doubles[g->n_doubles] = i;
            g->n_doubles++;
        }
        if (pass)
            break;
        n_doubles = g->n_doubles;
        g->doubles = malloc(MAX(n_doubles, 1u) * sizeof(*g->doubles));
        if (!g->doubles)
            return build_no_memory(b);
    }
    g->bytes += n_doubles * sizeof(*g->doubles);
    return build_work(b, n / 4);
}

int distinct_new(struct build *b, struct grammar *g) {
    bool any = false;

    for (uint32_t i = 0; i < g->n_members; i++)
        any |= g->members[i].distinct != 0;
    if (!any)
        return 0;
    bool *is_item = calloc(MAX(g->n_rules, 1u), sizeof(*is_item));

    if (!is_item)
        return build_no_memory(b);
    each_item(g, mark_item, is_item);
    int r = find_n_texts(b, g, is_item);

    free(is_item);
    if (r < 0)
        return r;
    each_item(g, limit_items, NULL);
    if (!b->vocab)
        return 0;
    return find_doubles(b, g);
}
