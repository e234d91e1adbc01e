/*
 * distinct - items of an array that must differ (uniqueItems).
 *
 * Each item has one spelling, so that items differ when their texts do. What has been read is kept
 * (machine.text), and the register of the array's rule is the list of its items: a node a piece,
 * the last one first (parent: those before it; count: where its text begins; its length beside
 * MEMBERS_NODE). Nodes are frames that nothing returns to. The frame of an open item has in its
 * count a node without length, which says where the item begins.
 *
 * The mark of a configuration in an item says which texts the item may still become a second time:
 * it is the place in machine.text behind what has been read of the item, in the last of the items
 * before it that begin with that; 0 when none does. So equal beginnings have equal marks, a mask
 * can be made without the text of the item itself, and most positions have no mark.
 *
 * At a mark with n items the item goes on only where more than n texts are possible: then one
 * of its next bytes has this property, too, and no text runs into a dead end. How many there are
 * at least is known of every state (grammar.variety).
 *
 * Where a step only looks ahead the text of an item that ends is not known. It counts, but is
 * compared with nothing. What that leaves open is one token that has the ends of two items, and
 * such tokens are read one by one (distinct_mask.c).
 */

#include "grammar/machine/distinct.h"
#include "grammar/machine/machine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LOOKS_OF_STEP 8    /* items that are looked at in the time of a step */
#define UNKNOWN UINT32_MAX /* count of an item that ended in a look-ahead */

static bool is_open(const struct machine *m, uint32_t node) {
    return node && m->frame[node].call == MEMBERS_NODE;
}

static uint32_t length_of(const struct machine *m, uint32_t node) {
    return m->frame[node].call & ~MEMBERS_NODE;
}

/* Returns the count of a frame whose item begins here, behind those of @list. */
static uint32_t open_item(struct machine *m, uint32_t list) {
    return m->reads ? machine_push(m, list, MEMBERS_NODE, m->n_text) : list;
}

/* Returns the list with the item of such a frame, which ends here. */
static uint32_t add_item(struct machine *m, uint32_t open) {
    struct frame at = m->frame[open];

    if (!m->reads)
        return machine_push(m, is_open(m, open) ? at.parent : open, MEMBERS_NODE | 1, UNKNOWN);
    assert(is_open(m, open) && at.count < m->n_text);
    return machine_push(m, at.parent, MEMBERS_NODE | (m->n_text - at.count), at.count);
}

/* Returns the mark of an item of which nothing has been read. */
static uint32_t first_mark(const struct machine *m, uint32_t list) {
    while (list && m->frame[list].count == UNKNOWN)
        list = m->frame[list].parent;
    return list ? m->frame[list].count : 0;
}

/* The items before the one that @frame is in; 0 also where it is in none. */
static uint32_t list_of(const struct machine *m, uint32_t frame) {
    for (; frame; frame = m->frame[frame].parent) {
        const struct call *c = &m->g->call[m->frame[frame].call];

        if (is_distinct(m->g, &m->g->desc[c->desc], c->to)) {
            uint32_t list = m->frame[frame].count;

            return is_open(m, list) ? m->frame[list].parent : list;
        }
    }
    return 0;
}

/* The item whose text @mark is in. */
static uint32_t item_at(const struct machine *m, uint32_t frame, uint32_t mark) {
    uint32_t node = list_of(m, frame);

    while (m->frame[node].count == UNKNOWN || m->frame[node].count > mark)
        node = m->frame[node].parent;
    assert(node && mark - m->frame[node].count <= length_of(m, node));
    return node;
}

/* The next item of the list @node, or 0, that begins with the @n bytes at @begin. */
static uint32_t like(const struct machine *m, uint32_t node, uint32_t begin, uint32_t n) {
    for (; node; node = m->frame[node].parent) {
        if (m->frame[node].count != UNKNOWN && length_of(m, node) >= n &&
            memcmp(m->text + m->frame[node].count, m->text + begin, n) == 0)
            return node;
    }
    return 0;
}

uint32_t distinct_step(struct machine *m, uint32_t frame, uint32_t mark, unsigned symbol) {
    uint32_t node = item_at(m, frame, mark), begin = m->frame[node].count, n = mark - begin;

    m->fuel -= MIN(m->fuel, m->frame[node].depth / LOOKS_OF_STEP);
    for (; node; node = like(m, m->frame[node].parent, begin, n)) {
        if (length_of(m, node) > n && m->text[m->frame[node].count + n] == symbol)
            return m->frame[node].count + n + 1;
    }
    return 0;
}

/* Returns whether the item with this mark, if it ends here, equals one before it. */
static bool is_known(const struct machine *m, uint32_t frame, uint32_t mark) {
    uint32_t node = item_at(m, frame, mark), begin = m->frame[node].count, n = mark - begin;

    while (node && length_of(m, node) > n)
        node = like(m, m->frame[node].parent, begin, n);
    return node != 0;
}

void distinct_next(const struct machine *m, uint32_t frame, uint32_t mark, struct byte_set *out) {
    uint32_t node = item_at(m, frame, mark), begin = m->frame[node].count, n = mark - begin;

    for (; node; node = like(m, m->frame[node].parent, begin, n)) {
        if (length_of(m, node) > n)
            byte_set_add(out, m->text[m->frame[node].count + n]);
    }
}

uint32_t distinct_longest(const struct machine *m, uint32_t frame, uint32_t *n_unknown) {
    uint32_t longest = 0;

    *n_unknown = 0;
    for (uint32_t node = list_of(m, frame); node; node = m->frame[node].parent) {
        longest = MAX(longest, length_of(m, node));
        *n_unknown += m->frame[node].count == UNKNOWN;
    }
    return longest;
}

static uint64_t times(uint64_t x, uint64_t y) {
    return MIN(x * y, VARIETY_MAX);
}

/* Characters of @border's loop, at least. */
static uint64_t n_characters(const struct grammar *g, const struct state *border) {
    uint64_t n = 0;

    for (uint32_t i = border->edge; i < border->edge + border->n_edges; i++)
        n += (uint64_t)(g->edge[i].hi - g->edge[i].lo + 1) * g->variety[g->edge[i].to];
    return MIN(n, VARIETY_MAX);
}

uint64_t distinct_loop_variety(const struct grammar *g, uint32_t rule, uint32_t n) {
    uint64_t one = n_characters(g, &g->state[g->rule[rule].start]), all = 1;

    for (uint32_t i = 0; i < n && all < VARIETY_MAX && one > 1; i++)
        all = times(all, one);
    return n == NO_MAX ? VARIETY_MAX : all;
}

/* At least so many texts lead from @c by an edge to the end of its rule. */
static uint64_t variety_of(const struct machine *m, const struct config *c) {
    const struct grammar *g = m->g;
    const struct state *s = &g->state[c->state];
    const struct call *call = c->frame ? &g->call[m->frame[c->frame].call] : NULL;
    const struct call_desc *d = call ? &g->desc[call->desc] : NULL;

    if (!(s->flags & STATE_LOOP) || !d)
        return n_characters(g, s);
    if (d->kind != CALL_COUNTED || d->max == NO_MAX)
        return VARIETY_MAX;
    if (!(s->flags & STATE_BORDER))
        return times(g->variety[c->state], distinct_loop_variety(g, s->rule, d->max - c->reg));
    return c->reg < d->max ? distinct_loop_variety(g, s->rule, d->max - c->reg) : 0;
}

/* Returns a lower bound of the number of texts from @c to the end of the item. */
static uint64_t variety_from(const struct machine *m, const struct config *c) {
    const struct grammar *g = m->g;
    uint64_t variety = variety_of(m, c);

    for (uint32_t f = c->frame; f && variety < VARIETY_MAX; f = m->frame[f].parent) {
        const struct call *call = &g->call[m->frame[f].call];
        const struct call_desc *d = &g->desc[call->desc];

        if (is_distinct(g, d, call->to))
            break;
        if (d->kind == CALL_REPEAT && d->max == NO_MAX)
            variety = VARIETY_MAX;
        variety = MAX(variety, g->variety[call->to]);
    }
    return variety;
}

/* Returns whether the item can still become a new one: whether the configurations of @s in it lead
 * to more texts than there are items before it that begin as it does. */
static bool can_differ(const struct machine *m, const struct set *s, const struct config *c) {
    uint32_t list = list_of(m, c->frame), node = item_at(m, c->frame, c->mark), n = 0;
    uint32_t begin = m->frame[node].count;
    uint64_t variety = 0;

    for (uint32_t i = s->begin; i < s->end && variety < VARIETY_MAX; i++) {
        const struct config *o = &m->config[i];

        if (o->mark == c->mark && list_of(m, o->frame) == list)
            variety = MAX(variety, variety_from(m, o));
    }
    if (variety == VARIETY_MAX)
        return true;
    for (; node && n < variety; node = like(m, m->frame[node].parent, begin, c->mark - begin))
        n += length_of(m, node) > c->mark - begin;
    return n < variety;
}

void distinct_prune(struct machine *m, struct set *s) {
    bool dead[SET_MAX], any = false;
    uint32_t n = s->begin;

    for (uint32_t i = s->begin; i < s->end; i++) {
        const struct config *c = &m->config[i];

        dead[i - s->begin] = c->mark && !can_differ(m, s, c);
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

static bool enter(struct machine *m, const struct config *from, const struct call_desc *d,
                  uint32_t *kept, uint32_t *mark) {
    *kept = from->reg;
    if (d->kind != CALL_ONCE)
        return true;
    if (!is_open_at(m, from->state, from->reg))
        return false;
    *mark = first_mark(m, from->reg);
    *kept = open_item(m, from->reg);
    return true;
}

static bool leave(struct machine *m, const struct call_desc *d, uint32_t state, uint32_t frame,
                  uint32_t *reg, uint32_t *mark) {
    if (d->kind != CALL_ONCE)
        return true;
    if (*mark && is_known(m, frame, *mark))
        return false;
    *mark = 0;
    *reg = add_item(m, *reg);
    return true;
}

static bool is_frame(const struct members *k) {
    return true;
}

const struct register_kind REGISTER_DISTINCT = {
    .is_open = is_open_at, .enter = enter, .leave = leave, .is_frame = is_frame};
