#pragma once

/* collect - collects the tokens of a token class (classify.c). */

#include "grammar/mask/class.h"
#include "grammar/mask/walk.h"

#define CLASS_FUEL 1000000 /* steps of making one: some 10 ms */
#define SHORT_WALK 1500    /* nodes; beyond, tables are faster */

/* Invariants: @keeps only with @counts and without c->base, and c->level is there then; rest[],
 * c->rest[] and c->rest_text[] have n_rest entries. */
struct collector {
    struct walk walk;
    const struct grammar *g;
    struct token_class *c;
    const struct byte_set *follow;
    uint32_t state; /* the state that is classified */
    bool counts;    /* in a loop rule: with levels */
    /* Adds tokens as they are reached: in a counted loop with escapes, each of which is one
     * character of the string and several of UTF-8. */
    bool keeps;
    bool quick;
    /* With @keeps: number of characters that begin up to each depth of the current path; and the
     * allowed tokens that have too many characters for a level. */
    uint16_t begun[TRIE_MAX_LEN + 1];
    struct counted_token *longest;
    uint32_t n_longest, cap_longest;
    struct trie_string *rest; /* item: index into c->rest */
    uint32_t n_rest, cap_rest, cap_text;
    uint64_t work; /* nodes visited by walks that were given up */
    int error;
    bool too_large;
};

/* Adds token @id, of which the rule reads the first @depth bytes. */
void collect_add_rest(struct collector *k, uint32_t id, uint32_t depth, uint32_t n_chars);
void collect_begin(struct collector *k); /* resets @k for another walk */
