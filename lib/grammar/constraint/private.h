#pragma once

/* The triggers of a constraint: Aho-Corasick over a few short strings; and the constraint itself.
 * Private to grammar/constraint/. */

#include "base/buf.h"
#include "grammar/constraint.h"

/* A prefix of a trigger, or of a mark. */
struct trigger_node {
    /* first child, next sibling; 0: none */
    uint32_t child, next;
    /* the longest proper suffix that is a node */
    uint32_t fail;
    /* where reading continues: the node itself, except at a quiet end */
    uint32_t becomes;
    uint8_t byte;
    /* a trigger ends here: */
    bool end;
    /* number of held bytes */
    uint16_t n_held;
    /* offset in triggers.held */
    uint32_t held;
};

/* Up to three tries in one array: from node 0 on, the triggers that count everywhere; from `quiet`
 * on, the mark that ends quiet text; from `open` on, the marks that begin quiet text and the
 * triggers that count at a start only, whose failure links lead to the first trie. A trie that is
 * not needed is absent and its number is 0; 0 < quiet < open if both exist. */
struct triggers {
    struct trigger_node *node;
    uint32_t n;
    uint32_t quiet, open;
    /* the root of the trie in which the output begins */
    uint32_t start;
    /* held bytes of every trigger */
    struct buf held;
    bool repeat, required;
};

/* Returns the number of nodes of the first trie, whose triggers count everywhere. */
static inline uint32_t triggers_n_everywhere(const struct triggers *t) {
    if (t->quiet)
        return t->quiet;
    if (t->open)
        return t->open;
    return t->n;
}

/* Parses the triggers; for an empty text *out is NULL. Returns 0, -ENOMEM, or -EINVAL with @err. */
int triggers_new(struct triggers **out, const char *text, size_t len, struct err *err);
struct triggers *triggers_free(struct triggers *t);
DEFINE_FREEP(struct triggers, triggers)
/* Reads bytes from @node until a trigger is complete. Returns the number of bytes read. If a
 * trigger is complete, *node is 0 and *found the node of its end; otherwise *found is NULL. */
size_t triggers_feed(const struct triggers *t, uint32_t *node, const void *bytes, size_t len,
                     const struct trigger_node **found);
/* Begins the grammar behind the trigger @found, with the @len bytes that follow it: as
 * grammar_restart(). */
int triggers_hold(const struct triggers *t, const struct trigger_node *found,
                  struct grammar_state *g, const uint8_t *rest, size_t len);
/* Returns the node after one more byte; a root if the bytes so far begin no trigger. */
uint32_t triggers_step(const struct triggers *t, uint32_t node, uint8_t byte);

/* Immutable; the tables below exist with triggers only. */
struct constraint {
    const struct grammar_vocab *vocab;
    struct grammar *grammar;
    /* NULL: the grammar holds from the start */
    struct triggers *triggers;
    /* Tokens that are excluded at a node of the triggers, because they would complete a trigger and
     * continue with bytes that the grammar refuses. Tokens of node i: crossing[first[i], first[i +
     * 1]). */
    uint32_t *first;
    int32_t *crossing;
    /* Lists the tokens that complete a trigger and may come, as first_done and done; behind each of
     * them at most `longest` bytes are needed. */
    uint32_t *first_done;
    int32_t *done;
    uint32_t longest;
    /* grammar_distance() of its start */
    uint32_t distance;
    /* for each node: tokens that complete a trigger (ending.c) */
    uint32_t *to_trigger;
};

/* Fills first, crossing, first_done, done and longest. Returns 0, -ENOMEM, -EINVAL with @err when
 * there are too many. */
int crossing_find(struct constraint *c, struct err *err);
/* Fills distance and to_trigger. Returns 0, -ENOMEM. */
int ending_find(struct constraint *c);

/* ---- one request */

/* FREE: triggers are looked for; HELD: the grammar decides; DONE: an end token was accepted. */
enum phase { FREE, HELD, DONE };

/* Position of an output in its constraint, before or after a token. */
struct position {
    /* grammar_n_accepted() */
    uint32_t n_accepted;
    /* FREE: node of the longest prefix of a trigger with which the output ends */
    uint32_t node;
    uint8_t phase;
    /* a trigger was completed */
    bool seen;
};

/* Invariants (constraint_check() in state.c): n is at most the length of `before`; without triggers
 * the phase is never FREE; at.n_accepted is the number of tokens that the grammar has accepted, and
 * that of earlier positions is no larger. */
struct constraint_state {
    const struct constraint *c;
    struct grammar_state *g;
    struct position at;
    /* before each token, oldest first */
    struct position before[2 * CONSTRAINT_HISTORY];
    uint32_t n;
    /* ending.c: two masks; NULL: not needed yet */
    uint32_t *scratch;
};

/* Returns true if the output may stop while it is free. */
static inline bool position_may_stop(const struct constraint_state *s) {
    return !s->c->triggers->required || s->at.seen;
}

/* Returns true if the grammar may end here, and text that does not fit it is free text again. */
static inline bool position_may_end(const struct constraint_state *s) {
    return s->at.phase == HELD && s->c->triggers && s->c->triggers->repeat && grammar_can_end(s->g);
}

/* Removes token @i from a mask. */
static inline void clear_bit(uint32_t *bits, int32_t i) {
    bits[i / 32] &= ~(1u << (i % 32));
}

/* Sets all tokens except those that complete a trigger at @node and continue wrongly. Returns their
 * number. */
uint32_t mask_free(const struct constraint *c, uint32_t node, bool ends, uint32_t *bits);
/* Adds to @bits, where the grammar may end, all tokens that are allowed behind its end. */
int64_t mask_add_free(const struct constraint_state *s, uint32_t *bits);
