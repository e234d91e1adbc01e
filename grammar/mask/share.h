#pragma once

/* share - token classes of a vocabulary that grammars have in common: share.c. */

#include "grammar/automaton/automaton.h"

struct share;

int share_new(struct share **out);         /* 0, -ENOMEM */
struct share *share_free(struct share *s); /* accepts NULL; no grammar uses it any more */
/* The places of the classes of @rule's states, from its start on, the same for every grammar that
 * has an equal rule; NULL: it is not shared. They hold NULL until a class is made. Any thread; they
 * live as long as @s. @counted: the rule's characters are counted up to a maximum. */
_Atomic(struct token_class *) *share_places(struct share *s, const struct grammar *g, uint32_t rule,
                                            bool counted);
/* Makes the classes of rule @rule of @g, one of enum shared_loop: 0 or an error of class_new(). */
int share_add_loop(struct share *s, const struct grammar *g, uint32_t rule);
/* The class of state @state of the loop @which, counted from its start, or NULL. */
struct token_class *share_loop_class(const struct share *s, unsigned which, uint32_t state);
/* Takes @bytes of the room for shared classes. Returns whether there was enough. */
bool share_spend(struct share *s, size_t bytes);
