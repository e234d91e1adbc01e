#pragma once

/*
 * lang - regular languages of bytes as deterministic automata, with the operations that expressions
 * lack: intersection, complement, difference. A pattern beside a format, a length beside a pattern,
 * keys that no pattern matches, look-ahead and multiples are all products of such automata.
 *
 * States that the product does not reach are never made. States and edges count as work of the
 * compilation; memory is the build's arena.
 */

#include "grammar/automaton/automaton.h"
#include "grammar/expr/lang_types.h"

#define LANG_MAX 60 /* languages in one product */

/* Functions that make languages and expressions follow expr.h: they return NULL once the build has
 * failed, and for an argument that is NULL. */

/* Returns the language of an expression without recursive calls. */
const struct lang *lang_of(struct build *b, const struct expr *e);
/* Returns the product automaton of @in. Texts that are no prefix of a language of the bit set
 * @must are dropped. */
const struct lang *lang_product(struct build *b, const struct lang *const *in, uint32_t n,
                                uint64_t must);
/* Returns the texts of @product that, of the languages in @care, exactly those in @want accept.
 * States that the language of the bit @border accepts have LANG_BORDER; 0: none have. */
const struct lang *lang_select(struct build *b, const struct lang *product, uint64_t care,
                               uint64_t want, uint64_t border);
/* Returns the intersection of @in, at least one, without the union of @not_in. */
const struct lang *lang_meet(struct build *b, const struct lang *const *in, uint32_t n,
                             const struct lang *const *not_in, uint32_t n_not);
/* Does the work of lang_meet() for strings of lang_strings(); states between characters have
 * LANG_BORDER. */
const struct lang *lang_meet_strings(struct build *b, const struct lang *const *in, uint32_t n,
                                     const struct lang *const *not_in, uint32_t n_not);
/* Returns an expression for the strings of @l, made by lang_meet_strings(), of at most @max
 * characters; a register counts them. */
struct expr *lang_within(struct build *b, const struct lang *l, uint32_t max);
/* Minimizes @l in place (lang_merge.c); in a product, states of different languages stay apart.
 * Edges lie in the order of their states. Very large automata are not minimized. */
int lang_merge(struct build *b, struct lang *l);
bool lang_matches(const struct lang *l, const uint8_t *text, size_t n);
/* Returns all contents of JSON strings, each character in its shortest spelling. */
const struct lang *lang_strings(struct build *b);
const struct lang *lang_texts(struct build *b); /* any characters, in UTF-8; made once */
const struct lang *lang_keys(struct build *b);  /* json_long_key(), made once */
/* Makes the strings of @min to @max characters (NO_MAX: no maximum). Unreachable states may
 * remain. */
const struct lang *lang_strings_of(struct build *b, uint32_t min, uint32_t max);
struct expr *lang_expr(struct build *b, const struct lang *l);
