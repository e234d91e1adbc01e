#pragma once

/*
 * lang - regular languages of bytes as deterministic automata, with the operations that expressions
 * lack: intersection, complement, difference. A pattern beside a format, a length beside a pattern,
 * keys that no pattern matches, look-ahead and multiples are all products of such automata.
 *
 * States that the product does not reach are never made. What a state and an edge cost is counted
 * as work of the compilation; memory is the build's arena.
 */

#include "grammar/automaton/automaton.h"
#include "grammar/expr/lang_types.h"

#define LANG_MAX 60 /* languages in one product */

/* Functions that make languages and expressions follow expr.h: they return NULL once the build has
 * failed, and for an argument that is NULL. */

/* The language of an expression without calls (or of rules without any). */
const struct lang *lang_of(struct build *b, const struct expr *e);
/* Reads all of @in side by side. A text that leaves one of @must (bits) is dropped. */
const struct lang *lang_product(struct build *b, const struct lang *const *in, uint32_t n,
                                uint64_t must);
/* The texts that are accepted by exactly @want of the languages @care of a product. */
const struct lang *lang_select(struct build *b, const struct lang *product, uint64_t care,
                               uint64_t want);
/* Texts of all of @in, and of none of @not_in. At least one @in. */
const struct lang *lang_meet(struct build *b, const struct lang *const *in, uint32_t n,
                             const struct lang *const *not_in, uint32_t n_not);
/* Does the work of lang_meet() for strings of lang_strings(); states between characters have
 * LANG_BORDER. */
const struct lang *lang_meet_strings(struct build *b, const struct lang *const *in, uint32_t n,
                                     const struct lang *const *not_in, uint32_t n_not);
/* The strings of @l, which lang_meet_strings() made, of at most @max characters, which are counted
 * where they are read. */
struct expr *lang_within(struct build *b, const struct lang *l, uint32_t max);
/* Makes states of @l that accept the same texts (in the same languages of a product) one, in place;
 * edges lie in the order of their states. Very large ones stay as they are (lang_merge.c). */
int lang_merge(struct build *b, struct lang *l);
/* Returns whether two languages made by lang_of() or lang_meet() are equal. */
bool lang_equal(const struct lang *x, const struct lang *y);
bool lang_matches(const struct lang *l, const uint8_t *text, size_t n);
/* Everything that a JSON string can hold, each character in its shortest spelling. */
const struct lang *lang_strings(struct build *b);
/* Makes the strings of @min to @max characters (NO_MAX: no maximum). Unreachable states may
 * remain. */
const struct lang *lang_strings_of(struct build *b, uint32_t min, uint32_t max);
struct expr *lang_expr(struct build *b, const struct lang *l);
