#pragma once

/*
 * toolcall_random - makes random tools and random texts under the grammar of their calls, and
 * checks that a format's parser reads calls of these tools with fitting arguments in such a text.
 */

#include "api/toolcall/toolcall.h"
#include "base/buf.h"
#include "base/rng.h"
#include "grammar/constraint.h"
#include "tests/support/schemas.h"

/* Tokens 0-255 are the bytes, this token is the end, and with @special the markers of formats
 * follow. */
#define RANDOM_END 256
struct grammar_vocab *random_vocab(bool special);
uint32_t random_n_tokens(bool special);
/* Makes a vocabulary with @n tokens, at most RANDOM_MORE, behind these. */
#define RANDOM_MORE 200u
struct grammar_vocab *random_vocab_with(bool special, const struct grammar_token *more, uint32_t n);

/* Appends the schema of an object to w->b, with @more behind its members; it refers to
 * random_defs. */
void random_object(struct schema_writer *w, int depth, const char *more);
extern const char random_defs[];
/* Writes [{"function": ..}, ..] of @n tools, at most 4, to w->b. */
yyjson_doc *random_tools(struct schema_writer *w, uint32_t n);
/* Writes the node of calls of @tools, at most 8; NULL: @f cannot write all of them. The caller
 * frees it. */
char *random_calls(const struct toolcall_format *f, yyjson_val *tools, bool loose, bool after);
/* Compiles the grammar of @f for @tools; NULL: the format cannot write all of them. @loose, @after:
 * as for toolcall_force(). */
struct constraint *random_constraint(const struct toolcall_format *f, yyjson_val *tools,
                                     const struct grammar_vocab *v, bool loose, bool after,
                                     const char *triggers);

/* Makes a text under @c. Returns false if it did not end in time. */
bool random_text(struct constraint *c, const struct toolcall_format *f, struct rng *r,
                 uint32_t n_tokens, struct buf *out);

/* Makes a text of at most `limit` tokens. Asserts that there is always a next token, that the end
 * is never further than the limit, and that the text can end there. Returns true if it was cut. */
struct random_cut {
    struct constraint *constraint;
    const struct toolcall_format *format;
    /* trigger with which the text preferably begins, or NULL */
    const char *trigger;
    uint32_t n_tokens, limit;
};
/* Writes a text that ends within some @max tokens, or as soon as it can. */
void random_text_short(struct constraint *c, const struct toolcall_format *f, struct rng *r,
                       uint32_t n_tokens, uint32_t max, struct buf *out);
bool random_text_within(const struct random_cut *cut, struct rng *r, struct buf *out);

struct random_reading {
    /* arguments need not fit */
    bool loose;
    /* text outside of calls is allowed, and no call is required */
    bool content;
};
/* Asserts that the calls in @text are complete and fit, in whatever pieces it arrives. Returns
 * their number. */
uint32_t random_calls_fit(const struct toolcall_format *f, yyjson_val *tools,
                          const struct buf *text, struct random_reading with);
