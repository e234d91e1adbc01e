/*
 * ending - masks of a constraint near the limit of its request, so that the constrained part is
 * complete when the last token has come.
 *
 *     position of the output            mask
 *     held by the grammar               grammar_mask_within()
 *     held, and the grammar may end     tokens that go on in it must leave time to end; tokens that
 *                                       it refuses end it and are free text
 *     free                              a token may complete a trigger if the text that the grammar
 *                                       then requires still fits
 *     free, a trigger is required       the same; once the tokens that are left are just enough,
 *                                       only tokens that come nearer to a trigger
 *
 * The distance to a trigger depends on how much of it the output ends with, a node of the triggers:
 * the fewest tokens that spell the rest of the trigger, or the rest of another one that begins with
 * a suffix of it. These distances are found when the constraint is compiled (ending_find_ways()),
 * by walking the tries of triggers and vocabulary together.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/result.h"
#include "base/try.h"
#include "grammar/constraint/private.h"
#include "grammar/match/finish.h"
#include "grammar/vocab/vocab.h"

/* Tokens kept in reserve when a required trigger begins to be forced. A caller that ends reasoning
 * itself writes the whole trigger, also where the output ends with a part of it already. */
#define SPARE 8
#define RESTS_MAX 64 /* tokens of one mask that go on behind a trigger, looked at one by one */

/* ---- tokens to a trigger */

struct spelling {
    const struct constraint *c;
    const struct trie *trie;
    uint32_t best;
};

/* Returns the fewest tokens that complete a trigger from @node of the triggers. */
static uint32_t to_trigger(const struct constraint *c, uint32_t node) {
    const struct trigger_node *t = c->triggers->node;
    uint32_t best = c->to_trigger[node];

    for (; t[node].fail != node; node = t[node].fail)
        best = MIN(best, c->to_trigger[t[node].fail]);
    return best;
}

static uint32_t cost_at(const struct constraint *c, uint32_t node) {
    const struct trigger_node *n = &c->triggers->node[node];

    if (n->end)
        return 0;
    if (n->becomes == node)
        return c->to_trigger[node];
    return to_trigger(c, n->becomes);
}

/* Finds the tokens below @at of the vocabulary's trie that spell triggers below @node. */
static void spell(struct spelling *s, uint32_t at, uint32_t node) {
    const struct trie_node *v = &s->trie->node[at];
    const struct trigger_node *t = s->c->triggers->node;

    for (uint32_t i = v->child; i < v->child + v->n_children; i++) {
        uint32_t c = t[node].child;

        while (c && t[c].byte != s->trie->node[i].byte)
            c = t[c].next;
        if (!c)
            continue;
        assert(c > node); /* ending_find_ways() goes backwards, so it knows the cost of c already */
        if (s->trie->node[i].n_items)
            s->best = MIN(s->best, finish_add(cost_at(s->c, c), 1));
        if (!t[c].end && t[c].becomes == c)
            spell(s, i, c);
    }
}

/* Returns the node to which the special token @id leads from @node along the trie of triggers; 0:
 * its bytes leave the trie. */
static uint32_t spell_special(const struct constraint *c, uint32_t node, int32_t id) {
    const struct trigger_node *t = c->triggers->node;
    size_t len;
    const uint8_t *bytes = vocab_bytes(c->vocab, id, &len);

    for (size_t i = 0; i < len; i++) {
        if (t[node].end || t[node].becomes != node)
            return 0;
        node = t[node].child;
        while (node && t[node].byte != bytes[i])
            node = t[node].next;
        if (!node)
            return 0;
    }
    if (len)
        return node;
    return 0;
}

/* Finds the fewest tokens that lead from each of the nodes [@from, @to) along the trie to the end
 * of a trigger. Children have larger numbers than their parents, so it goes backwards. */
static void ending_find_ways(struct constraint *c, uint32_t from, uint32_t to,
                             const int32_t *special, uint32_t n_special) {
    for (uint32_t node = to; node-- > from;) {
        struct spelling s = {c, &c->vocab->trie, FINISH_NEVER};

        spell(&s, 0, node);
        for (uint32_t i = 0; i < n_special; i++) {
            uint32_t next = spell_special(c, node, special[i]);

            if (next)
                s.best = MIN(s.best, finish_add(cost_at(c, next), 1));
        }
        c->to_trigger[node] = s.best;
    }
}

static int find_triggers(struct constraint *c) {
    const struct triggers *t = c->triggers;
    uint32_t n = c->vocab->n, n_special = 0;
    CLEANUP(freep) int32_t *special = malloc(MAX(n, 1u) * sizeof(*special));

    c->to_trigger = malloc(t->n * sizeof(*c->to_trigger));
    if (!c->to_trigger || !special)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        if (c->vocab->is_special[i] && !vocab_is_end(c->vocab, (int32_t)i))
            special[n_special++] = (int32_t)i;
    }
    /* In quiet text no trigger counts before its end mark, so spelling the mark comes first; the
     * trie of what begins quiet text is no way to a trigger. */
    for (uint32_t i = 0; i < t->n; i++)
        c->to_trigger[i] = FINISH_NEVER;
    ending_find_ways(c, 0, triggers_n_everywhere(t), special, n_special);
    if (t->quiet)
        ending_find_ways(c, t->quiet, t->open, special, n_special);
    return 0;
}

int ending_find(struct constraint *c) {
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;

    TRY(grammar_state_new(&s, c->grammar));
    if (c->triggers && c->triggers->required)
        TRY(find_triggers(c));
    c->distance = grammar_distance(s);
    return 0;
}

uint32_t constraint_distance(struct constraint_state *s) {
    const struct constraint *c = s->c;

    if (s->at.phase == HELD) {
        if (s->n == 0 && !c->triggers)
            return c->distance;
        return grammar_distance(s->g);
    }
    if (s->at.phase == DONE || position_may_stop(s))
        return 0;
    uint32_t n = to_trigger(c, s->at.node);

    if (n >= FINISH_NEVER || c->distance == GRAMMAR_NO_MAX)
        return GRAMMAR_NO_MAX;
    return n + c->distance;
}

/* ---- masks */

static bool has_bit(const uint32_t *bits, int32_t i) {
    return bits[i / 32] >> (i % 32) & 1;
}

/* Returns whether @after tokens suffice for the text that must follow @token, which completes a
 * trigger when it is read from @node. *@n_rests counts tokens that go on behind the trigger, which
 * cost a search each: from RESTS_MAX on they are taken for too late. */
static bool done_fits(struct constraint_state *s, uint32_t node, int32_t token, uint32_t after,
                      uint32_t *n_rests) {
    size_t len;
    const uint8_t *bytes = vocab_bytes(s->c->vocab, token, &len);
    const struct trigger_node *found;
    size_t n = triggers_feed(s->c->triggers, &node, bytes, len, &found);

    assert(found);
    if ((n == len && found->n_held == 0) || s->c->distance == GRAMMAR_NO_MAX)
        return s->c->distance <= after || s->c->distance == GRAMMAR_NO_MAX;
    if (++*n_rests > RESTS_MAX ||
        triggers_hold(s->c->triggers, found, s->g, bytes + n, len - n) < 0)
        return false;
    uint32_t distance = grammar_distance(s->g);

    grammar_rollback(s->g, 1);
    return distance <= after;
}

/* Clears the tokens that complete a trigger, read from @node, when too few tokens are left for the
 * text behind it. Leaves those in @keep (or NULL) alone. */
static void clear_late(struct constraint_state *s, uint32_t node, uint32_t after,
                       const uint32_t *keep, uint32_t *bits) {
    const struct constraint *c = s->c;
    uint32_t n_rests = 0;

    if (after >= c->longest)
        return;
    for (uint32_t i = c->first_done[node]; i < c->first_done[node + 1]; i++) {
        int32_t t = c->done[i];

        if (has_bit(bits, t) && !(keep && has_bit(keep, t)) &&
            !done_fits(s, node, t, after, &n_rests))
            clear_bit(bits, t);
    }
}

struct approach {
    const struct constraint *c;
    const struct trie *trie;
    /* tokens to a trigger */
    uint32_t *bits, most;
};

static void allow_near(struct approach *a, uint32_t at, uint32_t node) {
    const struct triggers *t = a->c->triggers;
    const struct trie_node *v = &a->trie->node[at];

    for (uint32_t i = v->child; i < v->child + v->n_children; i++) {
        const struct trie_node *child = &a->trie->node[i];
        uint32_t next = triggers_step(t, node, child->byte);

        if (t->node[next].end)
            continue;
        for (uint32_t k = child->items;
             to_trigger(a->c, next) <= a->most && k < child->items + child->n_items; k++)
            set_bit(a->bits, a->trie->item[k]);
        if (next != 0 && next != t->quiet && next != t->open)
            allow_near(a, i, next);
    }
}

/* Clears the bits of all tokens that bring the output no nearer to a trigger, or to one that leaves
 * too few tokens for the text behind it. */
static void approach(struct constraint_state *s, uint32_t after, uint32_t *bits) {
    const struct constraint *c = s->c;
    uint32_t n_words = constraint_n_words(c), *kept = s->scratch;
    uint32_t node = s->at.node;
    uint32_t most = MIN(after - MIN(after, c->distance), to_trigger(c, node) - 1);
    struct approach a = {c, &c->vocab->trie, kept, most};

    memset(kept, 0, n_words * sizeof(*kept));
    for (uint32_t i = c->first_done[node]; i < c->first_done[node + 1]; i++)
        set_bit(kept, (uint32_t)c->done[i]);
    if (after >= c->distance)
        allow_near(&a, 0, node);
    for (uint32_t id = 0; after >= c->distance && id < c->vocab->n; id++) {
        uint32_t next = node;
        const struct trigger_node *found;
        size_t len;

        if (!c->vocab->is_special[id] || vocab_is_end(c->vocab, (int32_t)id))
            continue;
        const uint8_t *bytes = vocab_bytes(c->vocab, (int32_t)id, &len);

        triggers_feed(c->triggers, &next, bytes, len, &found);
        if (!found && to_trigger(c, next) <= a.most)
            set_bit(kept, id);
    }
    for (uint32_t i = 0; i < n_words; i++)
        bits[i] &= kept[i];
}

static int need_scratch(struct constraint_state *s) {
    if (!s->scratch)
        s->scratch = malloc(2ul * constraint_n_words(s->c) * sizeof(*s->scratch));
    return enomem_unless(s->scratch);
}

/* Returns whether the required trigger has to begin now. */
static bool ending_is_due(const struct constraint_state *s, uint32_t after) {
    const struct constraint *c = s->c;

    if (position_may_stop(s))
        return false;
    uint32_t n = to_trigger(c, c->triggers->start);

    return n < FINISH_NEVER && c->distance != GRAMMAR_NO_MAX &&
           after < (uint64_t)n + c->distance + SPARE;
}

static int64_t free_within(struct constraint_state *s, uint32_t after, uint32_t *bits) {
    int64_t n = mask_free(s->c, s->at.node, position_may_stop(s), bits);
    bool due = ending_is_due(s, after);

    if (!due && after >= s->c->longest)
        return n;
    if (due && need_scratch(s) < 0)
        return -ENOMEM;
    if (due)
        approach(s, after, bits);
    clear_late(s, s->at.node, after, NULL, bits);
    return bits_count(bits, constraint_n_words(s->c));
}

/* Makes the mask where the grammar may end, from @bits, the tokens that it allows with @after
 * tokens left. Tokens that it would allow only with more time must not come; tokens that it never
 * allows here end it and are free text. */
static int64_t end_mask_within(struct constraint_state *s, uint32_t after, uint32_t *bits) {
    uint32_t n_words = constraint_n_words(s->c);

    if (need_scratch(s) < 0)
        return -ENOMEM;
    uint32_t *near = s->scratch, *all = s->scratch + n_words;
    int64_t n = grammar_mask(s->g, all);

    if (n < 0)
        return n;
    memcpy(near, bits, n_words * sizeof(*near));
    mask_add_free(s, bits);
    clear_late(s, s->c->triggers->open, after, near, bits);
    for (uint32_t i = 0; i < n_words; i++)
        bits[i] &= near[i] | ~all[i];
    return bits_count(bits, n_words);
}

int64_t constraint_mask_within(struct constraint_state *s, uint32_t *bits, uint32_t left) {
    if (left == GRAMMAR_NO_MAX || s->at.phase == DONE)
        return constraint_mask(s, bits);
    if (s->at.phase == FREE)
        return free_within(s, MAX(left, 1u) - 1, bits);
    int64_t n = grammar_mask_within(s->g, bits, left);

    if (n < 0 || !position_may_end(s))
        return n;
    return end_mask_within(s, MAX(left, 1u) - 1, bits);
}

bool constraint_is_free_within(const struct constraint_state *s, uint32_t left) {
    return constraint_is_free(s) && (left == GRAMMAR_NO_MAX || left > s->c->longest);
}
