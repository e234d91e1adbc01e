#pragma once

/* collect - a token class being made: classify.c reads all tokens for it, classify_like.c those
 * that a state reads otherwise than one whose class is there. */

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
    bool keeps;     /* then, when it has characters of several ones in UTF-8, as escapes are: tokens
                       are kept as they are reached */
    bool quick;
    /* With @keeps: the characters that have begun behind one more byte, at each depth of the way to
     * where the walk is; and those of the allowed tokens that are in no level. */
    uint16_t begun[TRIE_MAX_LEN + 1];
    struct counted_token *longest;
    uint32_t n_longest, cap_longest;
    struct trie_string *rest; /* item: index into c->rest */
    uint32_t n_rest, cap_rest, cap_text;
    struct region { /* subtrees of the trie whose tokens are copied from the similar class */
        uint32_t first, last, depth;
    } * region;
    uint32_t n_regions, cap_regions;
    int error;
    bool too_large;
};

#define AGREE_MAX 20 /* longer tokens are few */
#define AGREE_ALL TRIE_MAX_LEN

/* Returns how many characters two states of a plain rule read alike, whatever they are, and where
 * the rule may end within them. AGREE_MAX: at least that many; AGREE_ALL: all texts; -1: not even
 * the bytes that continue a character (agree.c). */
int states_agree(const struct grammar *g, uint32_t q, uint32_t r);
/* The most characters of a text of KIND_TEXT that a state of a plain rule reads without leaving it;
 * AGREE_MAX: so many, or more. *@ends: the rule may end behind one of at most AGREE_MAX. */
uint32_t state_reach(const struct grammar *g, uint32_t q, bool *ends);
/* Room for one more of @size in *@v, of which there are @n. 0 or -ENOMEM. */
int collect_grow(void *v, uint32_t n, uint32_t *cap, size_t size);
/* Token @id goes on after the rule ended at @depth bytes. */
void collect_add_rest(struct collector *k, uint32_t id, uint32_t depth, uint32_t n_chars);
void collect_begin(struct collector *k); /* resets @k for another walk */
/* Reads the tokens from @from, which is the state, as far as they differ from those of a state like
 * it. 1: there is none, or too many do. */
int collect_like(struct collector *k, const struct set *from);
/* Handles a state that reads, or refuses, most of the short texts: sets those in the walk's bits,
 * and leaves the other tokens to walk_tables(). Returns whether it did. */
bool collect_shorts(struct collector *k);
