/*
 * mask - which tokens may come next, from the token classes of the configurations.
 *
 * A mask is the union, over the configurations of the current set, of the tokens that each
 * can read. grammar_mask_within() (state.c) makes it in this order:
 *
 *  1. matcher_find_classes(): the token class of each configuration's state (class.h), where the
 *     state has one. A class answers for most of the vocabulary with a bit map.
 *  2. apply_class(): ORs the bit map into the mask, and settles the tokens that leave the rule by
 *     walking what they add with the real stack (class_apply()). Configurations that differ only in
 *     a count are applied together.
 *  3. mask_others(): the configurations without a class walk the trie together: walk_steps() up to
 *     LONG_WALK nodes, then walk_need() or walk_tables().
 *  4. mask_special(): special tokens that edges name; then end tokens, where the text may end.
 *
 * A class is an investment: it takes up to a millisecond to make, once per state, and saves a walk
 * at every later mask. Four rules decide when to invest:
 *
 * - Undecided. A state that has not been looked at may be one of the many that allow few tokens. It
 *   walks with the others (settle_undecided()). If that took at most CHEAP_VISITS nodes, the state
 *   needs no class; up to LONG_WALK nodes, the next mask makes its class; beyond, this one does.
 * - One at a time. A mask makes at most one class that needs a long walk. Other configurations that
 *   lack theirs are deferred: they walk together, which is one more walk however many they are
 *   (walk_deferred()).
 * - Not beside a wide one. When a class already allows most tokens of text, states whose classes
 *   are expensive walk only towards the tokens that are still missing (defer_expensive()).
 * - Not for a quick mask. A matcher that others wait for (grammar_state_set_quick()) fails with
 *   -EAGAIN where a class would have to be made or fuel runs out; a thread makes the mask then.
 *
 * Near the limit of tokens (@left), `closing` (closing.c) is asked about every set that a token
 * leads to: whether the shortest completion still fits. A class is applied as a whole only if all
 * its tokens fit.
 */

#include <assert.h>
#include <string.h>

#include "grammar/mask/class.h"
#include "grammar/mask/walk.h"
#include "grammar/match/finish.h"

/* A class at the configurations that have it. */
struct applied {
    const struct token_class *c;
    const struct config *at;
    /* call of the loop or counting rule, or NULL */
    const struct call_desc *desc;
    const struct grammar *g;
    struct mask *mask;
    /* or NULL */
    struct closing *closing;
    /* with a counted loop: characters so far, one per reading */
    const uint32_t *reg;
    /* least: the least of these */
    uint32_t n_regs, least;
    /* any text of so many characters fits; NO_MAX: nothing counts */
    uint32_t most;
    /* the rule may end wherever its states say */
    bool ends;
    uint64_t ends_at[TRIE_MAX_LEN / 64 + 1]; /* bits: behind so many characters, of a counted one */
    /* with names: the bytes with which the text may still become one */
    struct byte_set name;
};

/* Returns the bytes with which a name goes on from @node. */
static struct byte_set name_bytes(const struct names *names, uint32_t node) {
    struct byte_set set = {{0}};
    uint32_t c = node == NAMES_NONE ? 0 : names->node[node].child;

    for (; c; c = names->node[c].sibling)
        byte_set_add(&set, names->node[c].byte);
    return set;
}

/* Sets ends_at[] to the numbers of characters behind which a counted loop may end in some
 * reading. */
static void find_ends(struct applied *a) {
    const struct call_desc *d = a->desc;

    assert(d->kind == CALL_COUNTED);
    for (uint32_t k = 0; k < a->n_regs; k++) {
        assert(a->reg[k] <= d->max);
        uint32_t lo = d->min - MIN(d->min, a->reg[k]);
        uint32_t hi = d->max == NO_MAX ? TRIE_MAX_LEN : MIN(d->max - a->reg[k], TRIE_MAX_LEN);

        for (uint32_t w = lo / 64; lo <= hi && w <= hi / 64; w++) {
            uint32_t from = w == lo / 64 ? lo % 64 : 0, to = w == hi / 64 ? hi % 64 : 63;

            a->ends_at[w] |= UINT64_MAX >> (63 - (to - from)) << from;
        }
    }
}

/* Returns whether @bytes can be read in a rule that counts characters. */
static bool mask_reads(const struct applied *a, const uint8_t *bytes, size_t len) {
    const struct grammar *g = a->g;
    uint32_t q = a->at->state, reg = a->least;

    for (size_t i = 0; i < len; i++) {
        const struct state *from = &g->state[q];

        q = state_next(g, from, bytes[i]);
        if (q == NO_STATE ||
            !REGISTER_OF_CALL[a->desc->kind]->step(g, a->desc, from, q, bytes[i], &reg))
            return false;
    }
    return true;
}

/* Returns whether the rule may end at the end of rest[@i]. */
static bool mask_may_end(const struct applied *a, uint32_t i) {
    const struct rest_token *rest = &a->c->rest[i];

    if (a->desc->kind == CALL_COUNTED)
        return a->ends_at[rest->n_chars / 64] >> (rest->n_chars % 64) & 1;
    size_t len;
    const uint8_t *bytes = vocab_bytes(a->g->vocab, (int32_t)rest->id, &len);

    if (a->desc->kind == CALL_WITHIN)
        return mask_reads(a, bytes, rest->len);
    if (!byte_set_has(&a->name, rest->first))
        return true;
    uint32_t node = a->at->reg;

    for (uint32_t k = 0; k < rest->len && node != NAMES_NONE; k++)
        node = names_step(a->desc->names, node, bytes[k]);
    return REGISTER_NAMES.may_end(NULL, a->desc, 0, node);
}

static bool visit_rest(struct walk *w, uint32_t node, const struct set *s, uint32_t depth) {
    struct applied *a = w->arg;
    const struct trie_node *n = &w->trie->node[node];

    if (n->n_items && a->closing && !closing_fits(a->closing, s))
        return true;
    for (uint32_t i = n->items; i < n->items + n->n_items; i++) {
        if (a->ends || mask_may_end(a, w->trie->item[i]))
            mask_set(a->mask, a->c->rest[w->trie->item[i]].id);
    }
    return true;
}

/* Adds the @n bits of @from. */
static void add_bits(struct mask *to, const uint32_t *from, uint32_t n) {
    if (to->counted && to->n == 0) {
        memcpy(to->bits, from, to->n_words * sizeof(*from));
        to->n = n;
        return;
    }
    for (uint32_t i = 0; i < to->n_words; i++)
        to->bits[i] |= from[i];
    to->counted = false;
}

int64_t mask_count(const struct mask *mask) {
    assert(!mask->counted || (mask->n >= 0 && mask->n <= (int64_t)mask->n_words * 32));
    if (mask->counted)
        return mask->n;
    return bits_count(mask->bits, mask->n_words);
}

/* Sets token @id of the class if it leaves enough of the characters that are counted; @chars: text
 * has so many characters left. */
static void add_read(struct machine *m, const struct applied *a, uint32_t id, uint32_t chars) {
    const struct grammar_vocab *v = a->g->vocab;
    uint32_t n = v->n_chars[id];
    bool is_text = v->utf8[id / 32] >> (id % 32) & 1;
    size_t len;
    const uint8_t *bytes = vocab_bytes(v, (int32_t)id, &len);

    if (n <= a->most ||
        (!(is_text && n > chars) && (!m->quick || machine_spend(m)) && mask_reads(a, bytes, len)))
        mask_set(a->mask, id);
}

/* Adds from a class the tokens that leave enough of the counted characters. Tokens with at most as
 * many characters as may come anywhere are added as bits; between characters, texts in UTF-8 with
 * more are left out; the others are read. An escape is one character: a text may end one, and
 * counts no character for it. */
static void add_counted(struct machine *m, const struct applied *a) {
    const struct grammar_vocab *v = a->g->vocab;
    const struct token_class *c = a->c;
    bool border = a->g->state[a->at->state].flags & STATE_BORDER;
    uint32_t left = border ? a->desc->max - MIN(a->desc->max, a->least) : NO_MAX;
    const uint32_t *at_most = v->at_most[MIN(a->most, (uint32_t)FREE_CHARS_MAX)];
    const uint32_t *at_limit = left > FREE_CHARS_MAX ? v->text : v->at_most[left];
    const uint32_t *is_text = v->utf8;

    for (uint32_t i = 0; i < c->n_ids; i++)
        add_read(m, a, c->ids[i], left);
    a->mask->counted = a->mask->counted && !c->bits;
    for (uint32_t w = 0; c->bits && w < a->mask->n_words && !m->error; w++) {
        uint32_t unsure = c->bits[w] & ~at_most[w] & (~is_text[w] | at_limit[w]);

        a->mask->bits[w] |= c->bits[w] & at_most[w];
        for (; unsure; unsure &= unsure - 1)
            add_read(m, a, w * 32 + (uint32_t)__builtin_ctz(unsure), left);
    }
}

/* Adds the tokens that do not end the rule, as far as the register allows them. */
static void apply_inside(struct machine *m, const struct applied *a) {
    const struct token_class *c = a->c;

    if (a->most < a->g->vocab->trie.max_len)
        add_counted(m, a);
    else if (c->bits)
        add_bits(a->mask, c->bits, c->n_allowed);
    else
        for (uint32_t i = 0; i < c->n_ids; i++)
            mask_set(a->mask, c->ids[i]);
}

void class_apply(struct machine *m, const struct token_class *c, const struct config *where,
                 const uint32_t *reg, uint32_t n_regs, struct mask *mask, struct closing *closing) {
    const struct grammar *g = m->g;
    struct config at = *where;
    struct applied a = {.c = c,
                        .at = &at,
                        .g = g,
                        .mask = mask,
                        .closing = closing,
                        .reg = reg,
                        .n_regs = n_regs,
                        .least = reg[0],
                        .most = NO_MAX};

    assert(n_regs > 0);
    for (uint32_t k = 1; k < n_regs; k++)
        a.least = MIN(a.least, reg[k]);
    if (g->state[at.state].flags & (STATE_LOOP | STATE_WITHIN))
        a.desc = desc_of(m, at.frame);
    if (a.desc && REGISTER_OF_CALL[a.desc->kind]->n_free)
        a.most = REGISTER_OF_CALL[a.desc->kind]->n_free(g, a.desc, at.state, a.least);
    a.ends = !a.desc ||
             (a.desc->kind == CALL_COUNTED && a.desc->max == NO_MAX && reg[0] >= a.desc->min) ||
             (a.desc->kind == CALL_WITHIN && a.most >= g->vocab->trie.max_len);
    apply_inside(m, &a);
    if (c->after.n <= 1)
        return;
    if (!a.ends && a.desc->kind == CALL_COUNTED)
        find_ends(&a);
    if (a.desc && a.desc->kind == CALL_NAMES)
        a.name = name_bytes(a.desc->names, at.reg);
    struct set below = set_open(m);

    machine_return(m, &below, 0, at.frame, 0);
    struct walk w = {
        .m = m, .trie = &c->after, .visit = visit_rest, .blind = closing == NULL, .arg = &a};

    walk_steps(&w, &below);
    m->n_configs = below.begin;
}
