/*
 * distinct_mask - corrects a mask where the items of an array must differ (uniqueItems).
 *
 * mask.c makes the mask as if items need not differ: a token class knows a state and not the items
 * before it, and a look-ahead does not know the text of an item that ends in it (distinct.c). Two
 * corrections follow.
 *
 * Tokens that repeat an item (distinct_settle_below()). Example: after `["ab","a` the token `b"`
 * would repeat the first item. Only texts that go on as an earlier item does can repeat it. So the
 * bytes with which earlier items go on are followed from here into the trie, with the machine,
 * which refuses what repeats an item; the tokens at the nodes on these ways are set or cleared
 * anew. Where the machine has dropped a configuration on the way, all that is below is settled
 * anew, since a class may have allowed it for that configuration.
 *
 * Tokens with the ends of two items (double_fits()), as `1,1,`. The second item might equal the
 * first one of the token, whose text a look-ahead does not record. There are few such tokens
 * (grammar.doubles); each that is in the mask is read byte by byte with its text.
 */

#include "grammar/mask/class.h"
#include "grammar/match/finish.h"

struct settling {
    struct machine *m;
    const struct trie *trie;
    /* or NULL */
    struct closing *closing;
    struct mask *mask;
};

static void mask_clear(struct mask *mask, uint32_t id) {
    mask->n -= mask->bits[id / 32] >> (id % 32) & 1;
    mask->bits[id / 32] &= ~(1u << (id % 32));
}

/* Clears the tokens at @n and at all nodes below it. */
static void clear_below(struct settling *k, const struct trie_node *n) {
    const struct trie_node *last = n;

    while (last->n_children)
        last = &k->trie->node[last->child + last->n_children - 1];
    for (uint32_t i = n->items; i < last->items + last->n_items; i++)
        mask_clear(k->mask, k->trie->item[i]);
}

/* Adds to @out the bytes with which earlier items go on. Returns false if @s is in no item that
 * begins as an earlier one does. Between items nothing is to settle: no class is used there. */
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

/* Settles the tokens below @node, which the set @s has reached: those behind a doubtful byte, or
 * @all. */
static void distinct_settle_below(struct settling *k, const struct trie_node *node,
                                  const struct set *s, bool all) {
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
            distinct_settle_below(k, n, &next, all || m->n_pruned != n_pruned);
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
    struct settling k = {m, &m->g->vocab->trie, closing, mask};
    const struct grammar *g = m->g;

    if (!mask->counted) {
        mask->n = bits_count(mask->bits, mask->n_words);
        mask->counted = true;
    }
    distinct_settle_below(&k, &k.trie->node[0], at, false);
    for (uint32_t i = 0; i < g->n_doubles && !m->error; i++) {
        uint32_t id = g->doubles[i];

        if ((mask->bits[id / 32] >> (id % 32) & 1) && !double_fits(&k, at, (int32_t)id))
            mask_clear(mask, id);
    }
}
