/*
 * members - the members of an object, in any order: the register is the set of those written.
 *
 * Members are numbered in the order of their keys. Keys are read in the rule of the object itself,
 * where determinism makes them one trie: while a key is read there is one configuration, whatever
 * the number of keys. The members below a state of that trie have numbers without gaps, the state's
 * span. A state may be entered only while some member of its span has not been written, so that no
 * text begins a key that cannot be completed.
 *
 * Up to 32 members are the bits of a register. More are a list of words, the highest first: nodes
 * are frames (parent: the next word; count: its bits) that nothing returns to. Frames are interned,
 * so equal sets are equal numbers, and taking steps back forgets sets as it forgets frames.
 */

#include <assert.h>

#include "grammar/machine/machine.h"

#define WORD_BITS 32

uint32_t members_word(const struct machine *m, const struct members *k, uint32_t reg, uint32_t w) {
    if (k->n <= WORD_BITS)
        return reg;
    while (reg && m->frame[reg].call > (MEMBERS_NODE | w))
        reg = m->frame[reg].parent;
    if (!reg || m->frame[reg].call != (MEMBERS_NODE | w))
        return 0;
    return m->frame[reg].count;
}

/* Returns whether all required members are in the set. */
static bool members_may_end(const struct machine *m, const struct call_desc *d, uint32_t state,
                            uint32_t reg) {
    const struct members *k = members_of(m->g, state);

    for (uint32_t w = 0; w * WORD_BITS < k->n; w++) {
        if (k->must[w] & ~members_word(m, k, reg, w))
            return false;
    }
    return true;
}

/* Returns whether an edge of @state leads to a member that is not in the set. */
static bool members_is_open(const struct machine *m, uint32_t state, uint32_t reg) {
    const struct members *k = members_of(m->g, state);
    struct span s = m->g->span[state];

    if (s.others)
        return true;
    for (uint32_t w = s.lo / WORD_BITS; w * WORD_BITS < s.hi; w++) {
        uint32_t from = s.lo > w * WORD_BITS ? s.lo - w * WORD_BITS : 0;
        uint32_t to = MIN(s.hi - w * WORD_BITS, (uint32_t)WORD_BITS);
        uint64_t mask = (1ull << to) - (1ull << from);

        if (mask & ~(uint64_t)members_word(m, k, reg, w))
            return true;
    }
    return false;
}

uint32_t members_add(struct machine *m, const struct members *k, uint32_t reg, uint32_t i) {
    uint32_t above[MEMBERS_MAX / WORD_BITS], n = 0, w = i / WORD_BITS, bits = 1u << i % WORD_BITS;

    assert(i < k->n && k->n <= MEMBERS_MAX);
    if (k->n <= WORD_BITS)
        return reg | bits;
    for (; reg && m->frame[reg].call > (MEMBERS_NODE | w); reg = m->frame[reg].parent)
        above[n++] = reg;
    if (reg && m->frame[reg].call == (MEMBERS_NODE | w)) {
        bits |= m->frame[reg].count;
        reg = m->frame[reg].parent;
    }
    reg = machine_push(m, reg, MEMBERS_NODE | w, bits);
    while (n-- > 0 && reg)
        reg = machine_push(m, reg, m->frame[above[n]].call, m->frame[above[n]].count);
    return reg;
}

static bool members_enter(struct machine *m, const struct config *from, const struct call_desc *d,
                          uint32_t *kept, uint32_t *match) {
    *kept = from->reg;
    if (!is_member(d))
        return true;
    uint32_t word = members_word(m, members_of(m->g, from->state), from->reg, d->min / WORD_BITS);

    return !(word >> (d->min % WORD_BITS) & 1);
}

static bool members_return(struct machine *m, const struct call_desc *d, uint32_t state,
                           uint32_t frame, uint32_t *reg, uint32_t *match) {
    if (is_member(d))
        *reg = members_add(m, members_of(m->g, state), *reg, d->min);
    return true;
}

static bool members_is_frame(const struct members *k) {
    return k->n > WORD_BITS;
}

const struct register_kind REGISTER_MEMBERS = {.is_open = members_is_open,
                                               .may_end = members_may_end,
                                               .enter = members_enter,
                                               .on_return = members_return,
                                               .is_frame = members_is_frame};
