/*
 * walk_need - adds what further configurations allow to a mask that has most of the vocabulary.
 *
 * Example: the JSON string of a pattern without anchors, .*id[0-9]+.*, after `"my id`. In one
 * reading the text is still in front of the match, and its token class allows nearly every token;
 * in the others the digits begin, or have been read. These can only add tokens that the mask still
 * lacks, a few thousand with a quote, say. So these tokens are marked by their places in the trie
 * (find_need()), and walks skip each subtree without a mark.
 */

#include <assert.h>
#include <stdlib.h>

#include "grammar/mask/class.h"
#include "grammar/mask/walk.h"

#define MOST_SHARE 8    /* most of the vocabulary: all but n_items / this */
#define MANY_CONFIGS 16 /* larger sets are readings of a loop, which walk_steps() takes together */
#define NEED_VISITS 30000 /* nodes and steps of such a walk */

bool class_has_most(const struct machine *m, const struct token_class *c, const struct config *at) {
    const struct trie *t = &m->g->vocab->trie;
    const struct register_kind *k = register_at(m, at);

    if (k && k->n_free && k->n_free(m->g, desc_of(m, at->frame), at->state, at->reg) < t->max_len)
        return false;
    return c->bits && c->n_allowed >= t->n_items - t->n_items / MOST_SHARE;
}

/* Returns the tokens of text that @mask lacks, as bits by their places in the trie. NULL: they are
 * too many for this to help, or memory is short. */
static uint64_t *find_need(const struct grammar_vocab *v, const struct mask *mask) {
    const uint32_t *text = v->text;
    uint32_t n = v->trie.n_items;

    if (mask_count(mask) < n - n / MOST_SHARE)
        return NULL;
    uint64_t *need = calloc(n / 64 + 1, sizeof(*need));

    assert(mask->n_words == grammar_vocab_n_words(v));

    for (uint32_t w = 0; need && w < mask->n_words; w++) {
        for (uint32_t left = text[w] & ~mask->bits[w]; left; left &= left - 1) {
            uint32_t id = w * 32 + (uint32_t)__builtin_ctz(left), at = v->place[id];

            need[at / 64] |= 1ull << at % 64;
        }
    }
    return need;
}

/* Walks with walk_steps() from @others. Returns false if that takes too long or too many
 * configurations; the bits set by then are right, but not all. */
static bool steps_towards(struct walk *w, const struct set *others) {
    struct machine *m = w->m;
    uint64_t fuel = m->fuel;

    m->fuel = MIN(fuel, NEED_VISITS);
    w->max_visited = NEED_VISITS;
    walk_steps(w, others);
    bool done = m->error ? m->error == -ENOMEM : w->n_visited <= w->max_visited;

    m->error = done ? m->error : 0;
    m->fuel = fuel;
    w->max_visited = 0;
    return done;
}

bool walk_need(struct walk *w, const struct set *others, const struct mask *mask) {
    CLEANUP(freep) uint64_t *need = find_need(w->m->g->vocab, mask);

    if (!need)
        return false;
    w->need = need;
    if (others->end - others->begin < MANY_CONFIGS || !steps_towards(w, others))
        walk_tables(w, others);
    w->need = NULL;
    return true;
}
