#pragma once

/* collect - collects the tokens of a token class: classify.c reads all tokens, classify_like.c only
 * those that the state reads differently from a similar state that has a class. */

#include "grammar/mask/class.h"
#include "grammar/mask/walk.h"

#define CLASS_FUEL 1000000 /* steps of making one: some 10 ms */
#define SHORT_WALK 1500    /* nodes; beyond, tables are faster */

/* Invariants: @keeps only with @counts and without c->base, and c->level is there then; rest[],
 * c->rest[] and c->rest_text[] have n_rest entries; regions are disjoint and in the order of the
 * trie. */
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
    struct region { /* subtrees of the trie whose tokens are copied from the similar class */
        uint32_t first, last, depth;
    } * region;
    uint32_t n_regions, cap_regions;
    uint64_t work;     /* nodes visited by walks that were given up */
    uint64_t n_looked; /* edges looked at besides walks, each a quarter of the work of a node */
    int error;
    bool too_large;
};

#define AGREE_MAX 20 /* longer tokens are few */
#define AGREE_ALL TRIE_MAX_LEN

/* Returns the largest n such that two states of a plain rule read the same texts of up to n
 * characters without leaving the rule, and the rule may end behind the same ones of those with
 * fewer (agree.c). AGREE_MAX: n or more; AGREE_ALL: all texts; -1: they differ within a character.
 * Adds what it did to *@n_looked. */
int states_agree(const struct grammar *g, uint32_t q, uint32_t r, uint64_t *n_looked);
/* Returns the most characters of a text of KIND_TEXT that a state of a plain rule reads without
 * leaving the rule, at most AGREE_MAX. *@ends: the rule may end within AGREE_MAX characters. Adds
 * what it did to *@n_looked. */
uint32_t state_reach(const struct grammar *g, uint32_t q, bool *ends, uint64_t *n_looked);
/* Adds token @id, of which the rule reads the first @depth bytes. */
void collect_add_rest(struct collector *k, uint32_t id, uint32_t depth, uint32_t n_chars);
void collect_begin(struct collector *k); /* resets @k for another walk */
/* Copies the class of a similar state and reads the tokens that differ. Returns 1 if no state is
 * similar enough. */
int collect_like(struct collector *k, const struct set *from);
/* Handles a state that reads, or refuses, most of the short texts: sets the short texts in the
 * walk's bits and leaves the other tokens to walk_tables(). Returns false for other states. */
bool collect_shorts(struct collector *k);
