#pragma once

/*
 * toolcall_random - random tools, random texts under the grammar of their calls, and whether what a
 * format's parser reads in such a text are calls of these tools whose arguments fit.
 */

#include "api/toolcall/toolcall.h"
#include "base/buf.h"
#include "base/rng.h"
#include "tests/support/schemas.h"
#include "grammar/constraint.h"

/* Tokens 0-255 are the bytes, this one is the end, and with @special the markers of formats
 * follow. */
#define RANDOM_END 256
struct grammar_vocab *random_vocab(bool special);
uint32_t random_n_tokens(bool special);

/* Appends the schema of an object to w->b, with @more behind its members; random_defs is what it
 * refers to. */
void random_object(struct schema_writer *w, int depth, const char *more);
extern const char random_defs[];
/* [{"function": ..}, ..] of @n tools, at most 4, written into w->b. */
yyjson_doc *random_tools(struct schema_writer *w, uint32_t n);
/* The grammar of @f for @tools; NULL: not all of them can be held. @loose, @after: as
 * toolcall_force() has it. */
struct constraint *random_constraint(const struct toolcall_format *f, yyjson_val *tools,
                                     const struct grammar_vocab *v, bool loose, bool after,
                                     const char *triggers);

/* A text under @c; false: it did not end in time. */
bool random_text(struct constraint *c, const struct toolcall_format *f, struct rng *r,
                 uint32_t n_tokens, struct buf *out);

/* A text of at most `limit` tokens; asserts that there is always a next one, that the end is never
 * further than the limit, and that it can end there. True: it was cut. */
struct random_cut {
    struct constraint *constraint;
    const struct toolcall_format *format;
    const char *trigger; /* that the text likes; or NULL */
    uint32_t n_tokens, limit;
};
bool random_text_within(const struct random_cut *cut, struct rng *r, struct buf *out);

struct random_reading {
    bool loose;   /* arguments need not fit */
    bool content; /* there may be text outside of calls, and no call */
};
/* Asserts that the calls in @text are complete and fit, in whatever pieces it comes; how many there
 * are. */
uint32_t random_calls_fit(const struct toolcall_format *f, yyjson_val *tools,
                          const struct buf *text, struct random_reading with);
