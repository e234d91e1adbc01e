#pragma once

#include "text/grammar/run.h"

/* Classifies the tokens at @state (classify.c): 0, 1 when that is not worth a class, -E2BIG when
 * they can be read in too many ways, -ENOMEM. *@n_visited: trie nodes looked at. */
int class_new(struct token_class **out, const struct grammar *g, uint32_t state, bool levels,
              uint64_t *n_visited);
/* The class of @state, made when this is the first time: NULL: it has none. Any thread. */
const struct token_class *class_of(const struct grammar *g, uint32_t state);
/* Frees the classes that belong to @g. */
void classes_free(struct grammar *g);
void class_free(struct token_class *c);
struct closing;
/* Sets the tokens of @c in @bits, for a configuration that has it (mask.c). @near (or NULL): those
 * that it lets pass (finish.h). */
void class_apply(struct machine *m, const struct token_class *c, const struct config *at,
                 uint32_t *bits, uint8_t *scratch, struct closing *near);
