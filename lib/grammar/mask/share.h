#pragma once

/* share - cache of the token classes of a vocabulary, shared by all grammars (share.c). */

#include "grammar/automaton/automaton.h"

struct share;

int share_new(struct share **out);         /* 0, -ENOMEM */
struct share *share_free(struct share *s); /* accepts NULL; no grammar may use it */
/* Returns the array of class pointers of @rule's states, one array for all grammars with an
 * equal rule; NULL if the rule is not shared. An entry is NULL until its class is made. Thread-
 * safe; the array lives as long as @s. @counted: the rule's characters are counted up to a
 * maximum. */
_Atomic(struct token_class *) *share_places(struct share *s, const struct grammar *g, uint32_t rule,
                                            bool counted);
/* Makes the classes of rule @rule of @g, one of enum shared_loop: 0 or an error of class_new(). */
int share_add_loop(struct share *s, const struct grammar *g, uint32_t rule);
/* Returns the class of state number @state of the loop @which, or NULL. */
struct token_class *share_loop_class(const struct share *s, unsigned which, uint32_t state);
/* Reserves @bytes of the memory for shared classes. Returns false if too little is left. */
bool share_spend(struct share *s, size_t bytes);
size_t share_bytes(const struct share *s); /* bytes that share_spend() has reserved */
