#pragma once

/*
 * cutter - cuts text by a regular expression of a tokenizer.json, whose author is not trusted.
 *
 * The expressions are those of Oniguruma in Ruby's syntax, which Hugging Face's library uses, as
 * far as pre-tokenizers need them: classes with categories of Unicode and intersections, groups,
 * alternatives, quantifiers (also lazy ones, and possessive ones of one character), groups of ASCII
 * letters of any case, look-ahead, look-behind of one character, ^ $ \A \z \b. Anything else is
 * refused with the place where it stands.
 *
 * A search takes the alternatives in their order, as backtracking engines do, but visits no pair of
 * a choice and a position twice: what failed once fails again, also in the search for the next
 * match, because no choice depends on what was matched before it. Hence a whole text takes time in
 * proportion to its length and to the size of the program. Look-ahead of several characters would
 * need more than one bit for such a pair; it is answered before (cutter_look.c).
 */

#include <stdbool.h>

#include "base/err.h"
#include "base/gguf.h"

/* Most bytes of an expression. */
#define CUTTER_TEXT_MAX 4096u

/* A compiled expression, immutable. */
struct cutter;

/* Compiles @text. Returns 0, -ENOMEM, or -EINVAL with @err, whose message has the place. */
int cutter_new(struct cutter **out, struct gguf_str text, struct err *err);
struct cutter *cutter_free(struct cutter *c);
DEFINE_FREEP(struct cutter, cutter)

/* A state of a search: instruction and position. */
struct cutter_state {
    uint32_t pc;
    size_t at;
};

/* The pieces of one text. Invariants: at <= from <= len + 1; bits has rows for positions
 * [base, top). */
struct cutter_search {
    const struct cutter *c;
    const char *s;
    /* at: end of the pieces so far; from: where the next match may begin */
    size_t len, at, from;
    /* a match behind the piece before it */
    size_t begin, end;
    bool pending, matched;
    /* pairs that were visited: a bit for each choice, a row for each position */
    uint64_t *bits;
    size_t base, top, cap;
    /* look-ahead of several characters: a bit for each, a byte for each position once looked */
    uint8_t *looks;
    size_t looks_cap;
    bool looked;
    struct cutter_state *stack;
    uint32_t n_stack, stack_cap;
    /* for job_pause() */
    uint32_t n_steps;
};

/* Begins with the text @s. A zeroed search is a new one; the memory of an old one is used again. */
void cutter_begin(struct cutter_search *f, const struct cutter *c, const char *s, size_t len);
/* Finds the next piece, a match or what lies between two matches: *@n > 0 bytes. Returns 1; 0: the
 * text ends; -ENOMEM; -ECANCELED in an abandoned job. */
int cutter_next(struct cutter_search *f, size_t *n, bool *match);
void cutter_deinit(struct cutter_search *f); /* accepts a zeroed one */
