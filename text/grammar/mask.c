/*
 * mask - which tokens may come next. A configuration whose state has a token class takes it from
 * there; the tokens that end its rule are settled by walking what they add with the real stack. All
 * other configurations walk the trie of the vocabulary together: they allow few tokens, or they
 * would have a class.
 */

#include "text/grammar/class.h"
#include "text/grammar/finish.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

static void set_bit(uint32_t *bits, uint32_t i) {
    bits[i / 32] |= 1u << (i % 32);
}

struct applied {
    const struct token_class *c;
    const struct config *at;
    const struct call_desc *desc; /* of a loop, or NULL */
    const struct grammar_vocab *vocab;
    uint32_t *bits;
    struct closing *near; /* or NULL */
};

/* Whether the loop may end where rest[@i] ends it. */
static bool may_end(const struct applied *a, uint32_t i) {
    if (!a->desc)
        return true;
    uint32_t n = a->c->rest[i].n_chars;

    if (a->desc->kind == CALL_COUNTED)
        return (uint64_t)a->at->reg + n >= a->desc->min &&
               (a->desc->max == NO_MAX || n <= a->desc->max - a->at->reg);
    size_t len;
    const uint8_t *bytes = vocab_bytes(a->vocab, (int32_t)a->c->rest[i].id, &len);
    uint32_t node = a->at->reg;

    for (uint32_t k = 0; k < a->c->rest_len[i] && node != NAMES_NONE; k++)
        node = names_step(a->desc->names, node, bytes[k]);
    return node == NAMES_NONE || (node != 0 && !a->desc->names->node[node].end);
}

static bool visit_rest(struct walk *w, uint32_t node, const struct set *s, uint32_t depth) {
    struct applied *a = w->arg;
    const struct trie_node *n = &w->trie->node[node];

    if (n->n_items && a->near && !closing_fits(a->near, s))
        return true;
    for (uint32_t i = n->items; i < n->items + n->n_items; i++) {
        if (may_end(a, w->trie->item[i]))
            set_bit(a->bits, a->c->rest[w->trie->item[i]].id);
    }
    return true;
}

static void add_bits(uint32_t *restrict to, const uint32_t *restrict from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        to[i] |= from[i];
}

/* All of the class but the tokens with more than @most characters, where others may have set those
 * too. */
static void add_short(const struct token_class *c, uint32_t most, uint32_t *bits, uint32_t n_words,
                      uint8_t *scratch) {
    uint32_t n = 0;

    for (; n < c->n_longest && c->longest[n].n_chars > most; n++)
        scratch[n] = bits[c->longest[n].id / 32] >> (c->longest[n].id % 32) & 1;
    add_bits(bits, c->bits, n_words);
    for (uint32_t i = 0; i < n; i++) {
        if (!scratch[i])
            bits[c->longest[i].id / 32] &= ~(1u << (c->longest[i].id % 32));
    }
}

/* The tokens that do not end the rule. */
static void apply_inside(const struct applied *a, uint8_t *scratch) {
    const struct token_class *c = a->c;
    uint32_t n_words = grammar_vocab_n_words(a->vocab), *bits = a->bits;

    if (!c->bits) {
        for (uint32_t i = 0; i < c->n_ids; i++)
            set_bit(bits, c->ids[i]);
    } else if (a->desc && a->desc->kind == CALL_COUNTED && a->desc->max != NO_MAX) {
        uint32_t most = a->desc->max - a->at->reg;

        assert(c->level);
        if (most < CLASS_LEVELS)
            add_bits(bits, c->level[most], n_words);
        else
            add_short(c, most, bits, n_words, scratch);
    } else {
        add_bits(bits, c->bits, n_words);
    }
}

void class_apply(struct machine *m, const struct token_class *c, const struct config *where,
                 uint32_t *bits, uint8_t *scratch, struct closing *near) {
    const struct grammar *g = m->g;
    struct config at = *where;
    struct applied a = {.c = c, .at = &at, .vocab = g->vocab, .bits = bits, .near = near};

    if ((g->state[at.state].flags & STATE_LOOP) && at.frame)
        a.desc = &g->desc[g->call[m->frame[at.frame].call].desc];
    if (!near || closing_class_fits(near, &at))
        apply_inside(&a, scratch);
    if (c->after.n <= 1)
        return;
    struct set below = set_open(m);

    machine_leave(m, &below, 0, at.frame);
    struct walk w = {.m = m, .trie = &c->after, .visit = visit_rest, .arg = &a};

    walk_trie(&w, 0, &below, 0);
    m->n_configs = below.begin;
}
