#pragma once

/* walk_nodes - steps at a trie node that walk_steps.c and walk_tables.c share. Both accept a
 * subtree as a whole if a state reads all texts of its kind (kinds.c). */

#include "grammar/machine/machine.h"
#include "grammar/mask/walk.h"

/* Returns whether a configuration of @s reads all texts of this kind and up to this height. */
static inline bool reads_all(const struct walk *w, const struct set *s, uint8_t kind,
                             uint8_t height) {
    const struct machine *m = w->m;

    if (!(w->kinds >> kind & 1) || height > FREE_CHARS_MAX)
        return false;
    for (uint32_t i = s->begin; i < s->end; i++) {
        const struct config *c = &m->config[i];

        if (m->g->free_chars[c->state][kind] < height)
            continue;
        const struct register_kind *k = register_at(m, c);

        if (!k || !k->n_free || k->n_free(m->g, desc_of(m, c->frame), c->state, c->reg) >= height)
            return true;
    }
    return false;
}

/* Returns whether no item of [first, last) is needed. */
static inline bool node_is_idle(const struct walk *w, uint32_t first, uint32_t last) {
    if (first == last)
        return true;
    uint32_t i = first / 64, end = (last - 1) / 64;
    uint64_t head = UINT64_MAX << first % 64, tail = UINT64_MAX >> (63 - (last - 1) % 64);

    if (i == end)
        return !(w->need[i] & head & tail);
    if ((w->need[i] & head) || (w->need[end] & tail))
        return false;
    for (i++; i < end && !w->need[i]; i++) {
    }
    return i == end;
}

/* Returns whether no item at or below child @i of @n, whose own items end at @last, is needed. */
static inline bool is_idle_child(const struct walk *w, const struct trie_node *n, uint32_t i,
                                 uint32_t last) {
    const struct trie_node *child = &w->trie->node[n->child + i];

    return w->need && node_is_idle(w, child->items, i + 1 < n->n_children ? child[1].items : last);
}

/* Sets the items [first, last) of the trie in the walk's bit map, if it has one. */
static inline void set_items(struct walk *w, uint32_t first, uint32_t last) {
    for (uint32_t i = first; w->bits && i < last; i++) {
        uint32_t *word = &w->bits[w->trie->item[i] / 32], bit = 1u << (w->trie->item[i] % 32);

        w->n_set += !(*word & bit);
        *word |= bit;
    }
}

/* Accepts the items [first, last) below a node of which @s reads all texts. */
static inline void node_accept(struct walk *w, uint32_t first, uint32_t last, const struct set *s,
                               uint32_t depth) {
    if (w->accept) {
        w->accept(w, first, last, s, depth);
        return;
    }
    set_items(w, first, last);
}

/* Handles a reached node. Returns whether to visit its children. */
static inline bool node_reach(struct walk *w, uint32_t node, const struct set *s, uint32_t depth) {
    const struct trie_node *n = &w->trie->node[node];

    w->n_visited++;
    set_items(w, n->items, n->items + n->n_items);
    if (w->visit && (s->can_end || !w->ends) && !w->visit(w, node, s, depth))
        return false;
    return s->end > s->begin && n->n_children;
}

/* Returns true after an error, or if the limit of nodes is exceeded. */
static inline bool has_stopped(const struct walk *w) {
    return w->m->error || (w->max_visited && w->n_visited > w->max_visited);
}
