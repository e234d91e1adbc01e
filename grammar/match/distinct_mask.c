/*
 * distinct_mask - what a mask does not know of items that must differ: token classes say nothing of
 * the items before, and a look-ahead does not know the text of an item that ends in it.
 *
 * Only the beginnings of the items before lead to what is refused: their bytes are followed into
 * the trie, and the tokens there are settled anew.
 */

#include "grammar/mask/class.h"
#include "grammar/match/finish.h"

struct settling {
    struct machine *m;
    const struct trie *trie;
    struct closing *closing; /* or NULL */
    struct mask *mask;
};

static void mask_clear(struct mask *mask, uint32_t id) {
    mask->n -= mask->bits[id / 32] >> (id % 32) & 1;
    mask->bits[id / 32] &= ~(1u << (id % 32));
}

/* The items of @node and all below it. */
static void clear_below(struct settling *k, const struct trie_node *n) {
    const struct trie_node *last = n;

    while (last->n_children)
        last = &k->trie->node[last->child + last->n_children - 1];
    for (uint32_t i = n->items; i < last->items + last->n_items; i++)
        mask_clear(k->mask, k->trie->item[i]);
}

/* The bytes that may lead to what is refused; false: there are none. Between items no class has
 * been used. */
static bool doubtful(const struct machine *m, const struct set *s, struct byte_set *out) {
    bool any = false;

    for (uint32_t i = s->begin; i < s->end; i++) {
        const struct config *c = &m->config[i];

        any = any || c->match;
        if (c->match)
            distinct_next(m, c->frame, c->match, out);
    }
    return any;
}

/* The tokens below @node, of which @s is behind: those that begin with doubtful bytes, or @all. */
static void settle(struct settling *k, const struct trie_node *node, const struct set *s,
                   bool all) {
    struct machine *m = k->m;
    struct byte_set bytes = {{0}};

    if (!doubtful(m, s, &bytes) && !all)
        return;
    for (uint32_t i = node->child; i < node->child + node->n_children && !m->error; i++) {
        const struct trie_node *n = &k->trie->node[i];
        uint32_t n_pruned = m->n_pruned;
        struct set next;

        if (!all && !byte_set_has(&bytes, n->byte))
            continue;
        bool ok = machine_step(m, s, n->byte, &next) && !m->error;

        if (!ok)
            clear_below(k, n);
        for (uint32_t t = n->items; ok && n->n_items && t < n->items + n->n_items; t++) {
            if (k->closing && !closing_fits(k->closing, &next))
                mask_clear(k->mask, k->trie->item[t]);
            else
                mask_set(k->mask, k->trie->item[t]);
        }
        if (ok)
            settle(k, n, &next, all || m->n_pruned != n_pruned);
        m->n_configs = next.begin;
    }
}

/* Returns whether a token that may hold the ends of two items leads anywhere. Whether the text can
 * end in time behind it was asked before, with unknown items (closing.c). */
static bool double_fits(struct settling *k, const struct set *at, int32_t token) {
    struct machine *m = k->m;
    uint32_t n_text = m->n_text, n_configs = m->n_configs;
    size_t len;
    const uint8_t *bytes = vocab_bytes(m->g->vocab, token, &len);
    struct set s = *at, next;
    bool ok = true;

    m->reads = true;
    for (size_t i = 0; ok && i < len; i++, s = next)
        ok = machine_read(m, bytes[i]) && machine_step(m, &s, bytes[i], &next) && !m->error;
    m->reads = false;
    m->n_text = n_text;
    m->n_configs = n_configs;
    return ok;
}

void distinct_settle(struct machine *m, const struct set *at, struct closing *closing,
                     struct mask *mask) {
    struct settling k = {m, vocab_trie(m->g->vocab), closing, mask};
    const struct grammar *g = m->g;

    if (!mask->counted) {
        mask->n = bits_count(mask->bits, mask->n_words);
        mask->counted = true;
    }
    settle(&k, &k.trie->node[0], at, false);
    for (uint32_t i = 0; i < g->n_doubles && !m->error; i++) {
        uint32_t id = g->doubles[i];

        if ((mask->bits[id / 32] >> (id % 32) & 1) && !double_fits(&k, at, (int32_t)id))
            mask_clear(mask, id);
    }
}
