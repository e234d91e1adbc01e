/*
 * distinct - items of an array that must differ (uniqueItems).
 *
 * Each item has one spelling, so items differ when their texts do. The machine stores the text that
 * has been read (machine.text), and the register of the array's rule is the list of its items: a
 * node for each item, the last one first (parent: the items before it; count: where its text
 * begins; call: its length beside MEMBERS_NODE). Nodes are frames to which nothing returns. The
 * frame of an open item has in its count a node without length, which says where the item begins.
 *
 * The match of a configuration in an item says which earlier items this item may still equal: it is
 * the position in machine.text behind the part that has been read, in the last earlier item that
 * begins with the same bytes; 0 if no earlier item does. Example: after `["ab","ac","a` the match
 * points behind `"a` of the second item, and both earlier items go on from it. So equal prefixes
 * have equal matches, a mask can be made without the text of the open item, and most positions have
 * no match.
 *
 * With n earlier items that begin alike, the item goes on only where more than n texts are
 * possible. Then one of its next bytes has this property, too, and no text runs into a dead end. A
 * lower bound of the number of texts is known for every state (grammar.n_texts).
 *
 * While a step only looks ahead, the text of an item that ends is not known. Such an item counts
 * but is compared with nothing. This leaves open only a token that contains the ends of two items,
 * and such tokens are read one by one (distinct_mask.c).
 */

#include "grammar/machine/distinct.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/machine/machine.h"

#define LOOKS_OF_STEP 8    /* items that can be compared in the time of a step */
#define UNKNOWN UINT32_MAX /* count of an item that ended in a look-ahead */

static bool distinct_is_open(const struct machine *m, uint32_t node) {
    return node && m->frame[node].call == MEMBERS_NODE;
}

static uint32_t length_of(const struct machine *m, uint32_t node) {
    return m->frame[node].call & ~MEMBERS_NODE;
}

/* Returns the count of a frame whose item begins here, behind those of @list. */
static uint32_t open_item(struct machine *m, uint32_t list) {
    if (!m->reads)
        return list;
    return machine_push(m, list, MEMBERS_NODE, m->n_text);
}

/* Returns the list with one more item, which ends here; @open is the count of its frame, made by
 * open_item(). In a look-ahead the item is UNKNOWN. */
static uint32_t distinct_add_item(struct machine *m, uint32_t open) {
    struct frame at = m->frame[open];

    if (!m->reads)
        return machine_push(m, distinct_is_open(m, open) ? at.parent : open, MEMBERS_NODE | 1,
                            UNKNOWN);
    assert(distinct_is_open(m, open) && at.count < m->n_text);
    return machine_push(m, at.parent, MEMBERS_NODE | (m->n_text - at.count), at.count);
}

/* Returns the match of an item before its first byte. */
static uint32_t first_match(const struct machine *m, uint32_t list) {
    while (list && m->frame[list].count == UNKNOWN)
        list = m->frame[list].parent;
    if (!list)
        return 0;
    return m->frame[list].count;
}

/* Returns the list of items before the item of @frame, or 0 if @frame is in no item. */
static uint32_t distinct_list(const struct machine *m, uint32_t frame) {
    for (; frame; frame = m->frame[frame].parent) {
        const struct call *c = &m->g->call[m->frame[frame].call];

        if (is_distinct(m->g, &m->g->desc[c->desc], c->to)) {
            uint32_t list = m->frame[frame].count;

            if (!distinct_is_open(m, list))
                return list;
            return m->frame[list].parent;
        }
    }
    return 0;
}

/* Returns the item whose text contains position @match. */
static uint32_t item_at(const struct machine *m, uint32_t frame, uint32_t match) {
    uint32_t node = distinct_list(m, frame);

    while (m->frame[node].count == UNKNOWN || m->frame[node].count > match)
        node = m->frame[node].parent;
    assert(node && match - m->frame[node].count <= length_of(m, node));
    return node;
}

/* Returns the next item of the list @node that begins with the @n bytes at @begin, or 0. */
static uint32_t like(const struct machine *m, uint32_t node, uint32_t begin, uint32_t n) {
    for (; node; node = m->frame[node].parent) {
        if (m->frame[node].count != UNKNOWN && length_of(m, node) >= n &&
            memcmp(m->text + m->frame[node].count, m->text + begin, n) == 0)
            return node;
    }
    return 0;
}

uint32_t distinct_step(struct machine *m, uint32_t frame, uint32_t match, unsigned symbol) {
    uint32_t node = item_at(m, frame, match), begin = m->frame[node].count, n = match - begin;

    m->fuel -= MIN(m->fuel, m->frame[node].depth / LOOKS_OF_STEP);
    for (; node; node = like(m, m->frame[node].parent, begin, n)) {
        if (length_of(m, node) > n && m->text[m->frame[node].count + n] == symbol)
            return m->frame[node].count + n + 1;
    }
    return 0;
}

/* Returns whether the item with this match, if it ends here, equals one before it. */
static bool distinct_is_known(const struct machine *m, uint32_t frame, uint32_t match) {
    uint32_t node = item_at(m, frame, match), begin = m->frame[node].count, n = match - begin;

    while (node && length_of(m, node) > n)
        node = like(m, m->frame[node].parent, begin, n);
    return node != 0;
}

void distinct_next(const struct machine *m, uint32_t frame, uint32_t match, struct byte_set *out) {
    uint32_t node = item_at(m, frame, match), begin = m->frame[node].count, n = match - begin;

    for (; node; node = like(m, m->frame[node].parent, begin, n)) {
        if (length_of(m, node) > n)
            byte_set_add(out, m->text[m->frame[node].count + n]);
    }
}

uint32_t distinct_longest(const struct machine *m, uint32_t frame, uint32_t *n_unknown) {
    uint32_t longest = 0;

    *n_unknown = 0;
    for (uint32_t node = distinct_list(m, frame); node; node = m->frame[node].parent) {
        longest = MAX(longest, length_of(m, node));
        *n_unknown += m->frame[node].count == UNKNOWN;
    }
    return longest;
}

static uint64_t distinct_times(uint64_t x, uint64_t y) {
    return MIN(x * y, TEXTS_MAX);
}

/* Returns a lower bound of the number of different characters that the loop of @border reads. */
static uint64_t n_characters(const struct grammar *g, const struct state *border) {
    uint64_t n = 0;

    for (uint32_t i = border->edge; i < border->edge + border->n_edges; i++)
        n += (uint64_t)(g->edge[i].hi - g->edge[i].lo + 1) * g->n_texts[g->edge[i].to];
    return MIN(n, TEXTS_MAX);
}

uint64_t distinct_loop_texts(const struct grammar *g, uint32_t rule, uint32_t n) {
    uint64_t one = n_characters(g, &g->state[g->rule[rule].start]), all = 1;

    for (uint32_t i = 0; i < n && all < TEXTS_MAX && one > 1; i++)
        all = distinct_times(all, one);
    if (n == NO_MAX)
        return TEXTS_MAX;
    return all;
}

/* Returns a lower bound of the number of texts that lead from @c by an edge to the end of its
 * rule. */
static uint64_t n_texts_of(const struct machine *m, const struct config *c) {
    const struct grammar *g = m->g;
    const struct state *s = &g->state[c->state];
    const struct call *call = c->frame ? &g->call[m->frame[c->frame].call] : NULL;
    const struct call_desc *d = call ? &g->desc[call->desc] : NULL;

    if (!(s->flags & STATE_LOOP) || !d)
        return n_characters(g, s);
    if (d->kind != CALL_COUNTED || d->max == NO_MAX)
        return TEXTS_MAX;
    if (!(s->flags & STATE_BORDER))
        return distinct_times(g->n_texts[c->state],
                              distinct_loop_texts(g, s->rule, d->max - c->reg));
    if (c->reg >= d->max)
        return 0;
    return distinct_loop_texts(g, s->rule, d->max - c->reg);
}

/* Returns a lower bound of the number of texts from @c to the end of the item. */
static uint64_t n_texts_from(const struct machine *m, const struct config *c) {
    const struct grammar *g = m->g;
    uint64_t n_texts = n_texts_of(m, c);

    for (uint32_t f = c->frame; f && n_texts < TEXTS_MAX; f = m->frame[f].parent) {
        const struct call *call = &g->call[m->frame[f].call];
        const struct call_desc *d = &g->desc[call->desc];

        if (is_distinct(g, d, call->to))
            break;
        if (d->kind == CALL_REPEAT && d->max == NO_MAX)
            n_texts = TEXTS_MAX;
        n_texts = MAX(n_texts, g->n_texts[call->to]);
    }
    return n_texts;
}

/* Returns whether the item can still become a new one: whether the configurations of @s in it lead
 * to more texts than there are items before it that begin as it does. */
static bool can_differ(const struct machine *m, const struct set *s, const struct config *c) {
    uint32_t list = distinct_list(m, c->frame), node = item_at(m, c->frame, c->match), n = 0;
    uint32_t begin = m->frame[node].count;
    uint64_t n_texts = 0;

    for (uint32_t i = s->begin; i < s->end && n_texts < TEXTS_MAX; i++) {
        const struct config *o = &m->config[i];

        if (o->match == c->match && distinct_list(m, o->frame) == list)
            n_texts = MAX(n_texts, n_texts_from(m, o));
    }
    if (n_texts == TEXTS_MAX)
        return true;
    for (; node && n < n_texts; node = like(m, m->frame[node].parent, begin, c->match - begin))
        n += length_of(m, node) > c->match - begin;
    return n < n_texts;
}

void distinct_prune(struct machine *m, struct set *s) {
    bool dead[SET_MAX], any = false;
    uint32_t n = s->begin;

    for (uint32_t i = s->begin; i < s->end; i++) {
        const struct config *c = &m->config[i];

        dead[i - s->begin] = c->match && !can_differ(m, s, c);
        any |= dead[i - s->begin];
    }
    for (uint32_t i = s->begin; any && i < s->end; i++) {
        if (!dead[i - s->begin])
            m->config[n++] = m->config[i];
    }
    if (any) {
        s->end = m->n_configs = n;
        m->n_pruned++;
    }
}

bool machine_read(struct machine *m, uint8_t byte) {
    if (m->n_text == 0)
        return true;
    if (m->n_text == m->cap_text || !m->text) {
        uint32_t cap = m->cap_text ? m->cap_text * 2 : 256;
        uint8_t *text = cap < MEMBERS_NODE ? realloc(m->text, cap) : NULL;

        if (!text) {
            m->error = -ENOMEM;
            return false;
        }
        m->text = text;
        m->cap_text = cap;
    }
    m->text[m->n_text++] = byte;
    return true;
}

/* Returns whether one more item may come. */
static bool is_open_at(const struct machine *m, uint32_t state, uint32_t reg) {
    uint32_t n = reg ? m->frame[reg].depth : 0;

    return m->g->span[state].others && n < members_of(m->g, state)->distinct;
}

static bool distinct_enter(struct machine *m, const struct config *from, const struct call_desc *d,
                           uint32_t *kept, uint32_t *match) {
    *kept = from->reg;
    if (d->kind != CALL_ONCE)
        return true;
    if (!is_open_at(m, from->state, from->reg))
        return false;
    *match = first_match(m, from->reg);
    *kept = open_item(m, from->reg);
    return true;
}

static bool distinct_return(struct machine *m, const struct call_desc *d, uint32_t state,
                            uint32_t frame, uint32_t *reg, uint32_t *match) {
    if (d->kind != CALL_ONCE)
        return true;
    if (*match && distinct_is_known(m, frame, *match))
        return false;
    *match = 0;
    *reg = distinct_add_item(m, *reg);
    return true;
}

static bool distinct_is_frame(const struct members *k) {
    return true;
}

const struct register_kind REGISTER_DISTINCT = {.is_open = is_open_at,
                                                .enter = distinct_enter,
                                                .on_return = distinct_return,
                                                .is_frame = distinct_is_frame};
