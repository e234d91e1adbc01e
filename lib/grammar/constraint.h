#pragma once

/*
 * constraint - the form that a request requires of its output, as it travels from front to worker:
 * the spans `grammar` and `triggers` of struct submit, both JSON.
 *
 * grammar: one node, an object with exactly one of these keys:
 *
 *     {"json_schema": schema}   {"json_object": true} {"regex": "..."} {"ebnf": "..."} {"choice":
 *                               ["a", "b"]} {"lark": "..."}
 *         may also have "compact": true, "any_format": true, "quoted": true (a regex or Lark inside
 *         a JSON string),
 *         "any_order": true (members of objects in any order),
 *         "python": true (JSON in which True, False and None may be written as well),
 *         "gemma": true (a schema's values in the notation of Gemma's calls),
 *         "call": true (an object's schema as keyword arguments: a="x", b=1),
 *         "property": "a" (the values of this property of the schema),
 *         "stop": "</tag>" (a schema's strings without quotes and escapes, up to this text),
 *         "declared_only": true (no properties beside declared ones without additionalProperties),
 *         and "param": err.param of a refusal
 *     {"literal": "text"}       special tokens spelled in it are those tokens
 *     {"sequence": [node, ...]} {"either": [node, ...]}
 *     {"repeat": node, "separator": node, "min": 0, "max": 3}   all but the first are optional
 *     {"members": [{"key": "text", "value": node, "optional": true}, ...], "before": node}
 *         BEFORE KEY VALUE for each member, in this order; optional ones may be missing
 *     {"free_text": "stop"}     any text without it; "" is allowed
 *
 * triggers: empty: the grammar describes the whole output. Otherwise
 *
 *     {"after": ["</think>", {"text": "{\"name\": \"f\"", "held": "..."}, ...], "start": [...],
 *      "repeat": false, "required": false,
 *      "quiet": {"open": "<think>", "close": "</think>", "now": false}}
 *
 * Nothing is constrained until the output's text (special tokens by their text) contains one of the
 * strings; the grammar describes what follows its last byte.
 *
 *   repeat false  the grammar holds to the end of the generation. With `required` no end token is
 *                 allowed before the trigger came.
 *   repeat true   where the grammar cannot go on, the output is free until the next trigger. Where
 *                 it may end and may also go on, every token is allowed: one that fits the grammar
 *                 goes on, any other ends it. The generation can end wherever the output is free
 *                 and wherever the grammar may end.
 *
 *   held          the grammar reads this text first, then what follows the trigger: for triggers
 *                 that are, or stand for, a part of what it describes
 *   start         triggers that count only where the output begins, or goes on behind what the
 *                 grammar held or behind quiet text
 *   quiet         triggers are only text between `open` and `close`. `open` counts at the start
 *                 (now true: it was the end of the prompt), behind `close` and behind what the
 *                 grammar held; white space may be before it
 *
 * The token that completes a trigger may reach beyond it: its last bytes are then the first that
 * the grammar reads. Tokens whose last bytes the grammar would refuse are masked while the output
 * is free, so a trigger is never followed by text that the grammar does not allow.
 */

#include <stdbool.h>
#include <stdint.h>

#include "grammar/grammar.h"

#define CONSTRAINT_TRIGGERS_MAX 16
#define CONSTRAINT_STARTS_MAX 1024
#define CONSTRAINT_TRIGGER_LEN_MAX 256
#define CONSTRAINT_MAX (16u << 20) /* bytes of the node's text; each source has its own limit */

/* Limits of the calls of many tools, which together are larger than one source may be: five times
 * the states of a source, some 3,000 tools. */
extern const struct grammar_limits CONSTRAINT_LIMITS;

/* Compiles the node @text. @v NULL: only checks, as the front does. @limits and @err may be NULL.
 * Returns 0, -ENOMEM, or -EINVAL with @err as grammar_compile() fills it; its param is that of the
 * refused source. */
int constraint_compile(struct grammar **out, const struct grammar_vocab *v, const char *text,
                       size_t len, const struct grammar_limits *limits, struct err *err);

/* Grammar and triggers, ready for any number of requests; never changes. */
struct constraint;

/* Compiles grammar and triggers. @v outlives the constraint. Errors as constraint_compile(). */
int constraint_new(struct constraint **out, const struct grammar_vocab *v, const char *grammar,
                   size_t n_grammar, const char *triggers, size_t n_triggers,
                   const struct grammar_limits *limits, struct err *err);
/* Makes token classes ahead, as grammar_prepare() does. */
void constraint_prepare(const struct constraint *c);
struct constraint *constraint_free(struct constraint *c);
DEFINE_FREEP(struct constraint, constraint)
size_t constraint_bytes(const struct constraint *c);     /* memory, for caches */
uint32_t constraint_n_words(const struct constraint *c); /* uint32_t of a mask */

/* ---- one request */

struct constraint_state;

/* Creates the state of one output, at its start; @c outlives it. For one thread at a time. 0 or
 * -ENOMEM. */
int constraint_state_new(struct constraint_state **out, const struct constraint *c);
struct constraint_state *constraint_state_free(struct constraint_state *s); /* accepts NULL */
DEFINE_FREEP(struct constraint_state, constraint_state)
size_t constraint_state_bytes(const struct constraint_state *s); /* memory, without @c's */
void constraint_state_reset(struct constraint_state *s);         /* back to the start */
/* Makes @dst (of the same constraint) equal to @src, its history included. Returns 0, -ENOMEM. */
int constraint_state_copy(struct constraint_state *dst, const struct constraint_state *src);

/* Returns true if every token is allowed now, so that no mask is needed. */
bool constraint_is_free(const struct constraint_state *s);
/* Sets the bits of the tokens that may come next, as grammar_mask() does. Returns their number,
 * 0 when the generation has ended or no token fits; -E2BIG, -ENOMEM. */
int64_t constraint_mask(struct constraint_state *s, uint32_t *bits);
/* Makes the mask with a limit: only @left tokens may still come (GRAMMAR_NO_MAX: no limit). Output
 * under the grammar is complete by then, a required trigger comes in time, and another trigger is
 * allowed only while enough tokens are left for the grammar behind it. If every token so far came
 * from such a mask, and @left is at least constraint_distance(), the mask is not empty. Returns the
 * number of allowed tokens. */
int64_t constraint_mask_within(struct constraint_state *s, uint32_t *bits, uint32_t left);
/* Makes masks that would take long fail with -EAGAIN from here on, as grammar_state_set_quick()
 * does. */
void constraint_set_quick(struct constraint_state *s, bool quick);
/* Returns true if every token is allowed even when only @left may still come. */
bool constraint_is_free_within(const struct constraint_state *s, uint32_t left);
/* Returns the fewest tokens until the output can end, as grammar_distance() does. */
uint32_t constraint_distance(struct constraint_state *s);
/* Accepts a token, with the errors of grammar_accept(). A token after the end is -EINVAL. */
int constraint_accept(struct constraint_state *s, int32_t token);
/* Takes the last @n accepted tokens back. At least CONSTRAINT_HISTORY can be taken back, else
 * -EINVAL. */
#define CONSTRAINT_HISTORY 128
int constraint_rollback(struct constraint_state *s, uint32_t n);
bool constraint_is_done(const struct constraint_state *s); /* an end token was accepted */
bool constraint_can_end(const struct constraint_state *s); /* an end token is allowed */
/* Returns forced bytes as grammar_forced() does; none while the output is free. */
size_t constraint_forced(struct constraint_state *s, uint8_t *out, size_t cap, int32_t *token);
