#pragma once

/* class - the token class of an automaton state (struct token_class), computed once: classify.c
 * makes a class, mask.c adds it to a mask. */

#include "grammar/machine/machine.h"

#define CHEAP_VISITS 224u /* nodes: a shorter walk needs no class */

/* Makes the class of @state (classify.c). @counted: in a loop, a count may forbid what the state
 * reads. @quick: only when a short walk is enough, some 50 us; -EAGAIN otherwise. Returns 0; 1 if
 * walks from the state are as fast without a class; -E2BIG if tokens can be read in too many ways;
 * -ENOMEM. *@work: what it took, in the time of a trie node that is visited. */
int class_new(struct token_class **out, const struct grammar *g, uint32_t state, bool counted,
              bool quick, uint64_t *work);
/* Sets *@out to the class of @state, which the first call makes; NULL if the state has none.
 * Thread-safe. Returns 0, or with @quick -EAGAIN if making the class would take long. */
int class_of(const struct token_class **out, const struct grammar *g, uint32_t state, bool quick);
/* Returns whether it is undecided if @state has a class: a short walk may show that it needs
 * none. */
bool class_is_open(const struct grammar *g, uint32_t state);
/* Returns whether @state probably has a class that is not made yet and takes a long walk. */
bool class_is_missing(const struct grammar *g, uint32_t state);
/* Returns whether @state is in a loop behind which most texts may follow, and its class is not made
 * yet. */
bool class_is_long(const struct grammar *g, uint32_t state);
/* Reports that a mask needed @n_visited nodes from the undecided @state. Up to CHEAP_VISITS the
 * state needs no class; otherwise the next mask makes one. */
void class_walked(const struct grammar *g, uint32_t state, uint64_t n_visited);
/* Frees the classes that belong to @g; those of the vocabulary stay. */
void classes_free(struct grammar *g);
void class_free(struct token_class *c); /* accepts NULL */

struct closing;
/* A mask being made. */
struct mask {
    uint32_t *bits;
    uint32_t n_words;
    /* number of set bits; valid while `counted` */
    int64_t n;
    bool counted;
};

/* Adds the tokens of class @c to @mask (mask.c), for @n_regs configurations that differ from @at
 * in their registers @reg only; more than one only in a counted loop. @closing, if not NULL, drops
 * tokens behind which the text cannot end in time (finish.h). */
void class_apply(struct machine *m, const struct token_class *c, const struct config *at,
                 const uint32_t *reg, uint32_t n_regs, struct mask *mask, struct closing *closing);
int64_t mask_count(const struct mask *mask); /* number of allowed tokens */
/* Returns whether @c allows most tokens of text at @at, so that the rest of a mask is found
 * quickly. */
bool class_has_most(const struct machine *m, const struct token_class *c, const struct config *at);
struct walk;
/* Adds the tokens that @others reads and @mask lacks (walk_need.c). Returns false, with no token
 * added, if @mask lacks too many. */
bool walk_need(struct walk *w, const struct set *others, const struct mask *mask);
/* Returns a bit set of the text kinds (free_chars.c) that contain no byte of @s. */
uint32_t kinds_without(const struct byte_set *s);

/* Allows token @i. */
static inline void mask_set(struct mask *m, uint32_t i) {
    uint32_t bit = 1u << (i % 32);

    m->n += !(m->bits[i / 32] & bit);
    m->bits[i / 32] |= bit;
}
