#pragma once

/*
 * class - the tokens at a state, found once and remembered (struct token_class): classify.c makes a
 * class, mask.c puts it into a mask.
 */

#include "grammar/machine/machine.h"

#define CHEAP_VISITS 224u /* a walk that ends within so many nodes needs no class */

/* Selects how a class is made. */
struct class_opts {
    bool levels; /* in a loop rule: by number of characters, too */
    bool quick;  /* only when a short walk is enough, some 50 us; -EAGAIN otherwise */
};

/* Classifies the tokens at @state (classify.c): 0, 1 when that is not worth a class, -E2BIG when
 * they can be read in too many ways, -EAGAIN, -ENOMEM. *@n_visited: trie nodes looked at. */
int class_new(struct token_class **out, const struct grammar *g, uint32_t state,
              const struct class_opts *opts, uint64_t *n_visited);
/* The class of @state, made when this is the first time; *out NULL: it has none. Any thread. 0, or
 * with @quick -EAGAIN: it is not there, and to make it takes long. */
int class_of(const struct token_class **out, const struct grammar *g, uint32_t state, bool quick);
/* Returns whether it is undecided if @state has a class: a short walk may show that it needs
 * none. */
bool class_is_open(const struct grammar *g, uint32_t state);
/* Returns whether @state probably has a class that is not made yet and takes a long walk. */
bool class_is_missing(const struct grammar *g, uint32_t state);
/* Returns whether @state is in a loop behind which most texts may follow, and its class is not made
 * yet. */
bool class_is_long(const struct grammar *g, uint32_t state);
/* A mask was made by a walk from it that ended after so many nodes: within CHEAP_VISITS it needs no
 * class, otherwise the next mask makes one. */
void class_walked(const struct grammar *g, uint32_t state, uint64_t n_visited);
/* Frees the classes that belong to @g; those of the vocabulary stay. */
void classes_free(struct grammar *g);
void class_free(struct token_class *c); /* accepts NULL */

struct closing;
/* A mask being made. */
struct mask {
    uint32_t *bits;
    uint32_t n_words;
    int64_t n; /* number of set bits; valid while `counted` */
    bool counted;
};

/* Sets the tokens of @c in @mask, for configurations that have it and are @at but for their
 * registers, @n_regs of them; several only where these count characters of a loop. (mask.c)
 * @scratch: room for c->n_longest. @closing (or NULL): those that it lets pass (finish.h). */
void class_apply(struct machine *m, const struct token_class *c, const struct config *at,
                 const uint32_t *reg, uint32_t n_regs, struct mask *mask, uint8_t *scratch,
                 struct closing *closing);
int64_t mask_count(const struct mask *mask); /* tokens that are set */
/* Returns whether @c has most tokens of text, so that the rest of a mask is found quickly. */
bool class_has_most(const struct grammar_vocab *v, const struct token_class *c);
struct walk;
/* Walks from @others towards what @mask lacks. False: that is too much. (walk_need.c) */
bool walk_need(struct walk *w, const struct set *others, const struct mask *mask);
int64_t bits_count(const uint32_t *bits, uint32_t n_words); /* number of set bits */
/* Bit k: no byte of @s is in a text of kind k (free_chars.c). */
uint32_t kinds_without(const struct byte_set *s);

/* Sets token @i, and counts it if it was not. */
static inline void mask_set(struct mask *m, uint32_t i) {
    uint32_t bit = 1u << (i % 32);

    m->n += !(m->bits[i / 32] & bit);
    m->bits[i / 32] |= bit;
}
