#pragma once

/*
 * grammar - constrained generation: computes which tokens may come next so that the whole text fits
 * a JSON Schema, a regular expression, a grammar (EBNF as GBNF writes it) or one of several
 * strings.
 *
 * A source is compiled once to a pushdown automaton over bytes (docs/design/grammar.md). A compiled
 * grammar never changes and may be used by any number of requests in any threads; each request has
 * its own grammar_state. The vocabulary must outlive its grammars, a grammar its states.
 *
 *     struct grammar_source src = {.kind = GRAMMAR_JSON_SCHEMA, .text = schema, .len = n};
 *     grammar_compile(&g, vocab, &src, NULL, &err);
 *     grammar_state_new(&s, g);
 *     while (!grammar_is_done(s)) {
 *         grammar_mask(s, bits);
 *         grammar_accept(s, sample(bits));
 *     }
 *
 * Limits bound the cost of a client's grammar: bytes, nesting, states, memory and work of a
 * compilation, and the work of one mask.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct tokenizer;

/* ---- vocabulary */

struct grammar_vocab;

struct grammar_token {
    const void
        *bytes; /* bytes that the token appends to the text; with len 0 it is never allowed */
    size_t len;
    /* a marker of the chat format: allowed where a grammar names it, never as text */
    bool special;
};

/* Sorts the tokens' bytes into a trie and classifies the tokens inside a JSON string: tens of
 * milliseconds. @ends: tokens that end a generation. The bytes are copied. Returns 0, -ENOMEM,
 * -EINVAL (an id out of range). */
int grammar_vocab_new(struct grammar_vocab **out, const struct grammar_token *token, uint32_t n,
                      const int32_t *ends, size_t n_ends);
int grammar_vocab_of(struct grammar_vocab **out, const struct tokenizer *t);
struct grammar_vocab *grammar_vocab_free(struct grammar_vocab *v);
DEFINE_FREEP(struct grammar_vocab, grammar_vocab)
uint32_t grammar_vocab_n_words(const struct grammar_vocab *v); /* uint32_t of a mask */
/* Returns the memory of the rules and token classes that the grammars of @v share, in bytes: at
 * most 64 MiB. */
size_t grammar_vocab_shared_bytes(const struct grammar_vocab *v);

/* ---- sources */

enum grammar_kind {
    /* draft 2020-12, the part in docs/reference/grammars.md */
    GRAMMAR_JSON_SCHEMA,
    /* any JSON object; no text */
    GRAMMAR_JSON_OBJECT,
    /* the whole text matches */
    GRAMMAR_REGEX,
    /* GBNF; starts at the rule `root` */
    GRAMMAR_EBNF,
    /* text: a JSON array of strings */
    GRAMMAR_CHOICE,
    /* Lark; starts at the rule `start` */
    GRAMMAR_LARK,
};

enum grammar_flags {
    /* JSON without any white space */
    GRAMMAR_COMPACT = 1 << 0,
    /* an unknown `format` is an annotation, not an error */
    GRAMMAR_ANY_FORMAT = 1 << 1,
    /* a regex or Lark: as JSON writes the text between the quotes of a string */
    GRAMMAR_QUOTED = 1 << 2,
    /* no members beside declared ones without additionalProperties */
    GRAMMAR_DECLARED_ONLY = 1 << 3,
    /* members in any order where possible (docs/reference) */
    GRAMMAR_ANY_ORDER = 1 << 4,
    /* True, False and None may be written, too (not where items must differ) */
    GRAMMAR_PYTHON = 1 << 5,
    /* a schema in the notation of Gemma's calls: expr/json.c */
    GRAMMAR_GEMMA = 1 << 6,
    /* an object's schema as the keyword arguments of a call */
    GRAMMAR_CALL = 1 << 7,
};

struct grammar_source {
    enum grammar_kind kind;
    unsigned flags;
    const char *text;
    size_t len;
    /* err.param of a refusal ("tools[2].function.parameters"); may be NULL */
    const char *param;
    /* NULL; or the values are strings, written without quotes and escapes: texts that do not
     * contain this text, which follows them */
    const char *stop;
    /* NULL; or the value is that of this property of the schema */
    const char *property;
};

/* Limits of a compilation; 0 stands for the default. Exceeding one gives a 400 with code
 * "grammar_too_complex". */
struct grammar_limits {
    /* bytes of one source: 1 MiB */
    size_t max_source;
    /* nesting in a source: 64 */
    uint32_t max_depth;
    /* states of the automaton: 200,000 */
    uint32_t max_states;
    /* steps of one compilation: 36,000,000, some 200 ms */
    uint64_t max_work;
    /* of expressions while compiling: 20 MiB */
    size_t max_memory;
    /* memory of a compiled grammar: 48 MiB */
    size_t max_bytes;
    /* blanks after a newline in JSON: 40 */
    uint32_t max_indent;
    /* NULL, or the counter to which the work is added, also after a refusal */
    uint64_t *work;
    /* NULL, or room for GRAMMAR_PLACE_MAX bytes: JSON pointer of what a schema was refused for; ""
     * where a refusal has no place, or none that fits */
    char *place;
};
#define GRAMMAR_PLACE_MAX 1024u

struct grammar;

/* 0, -ENOMEM, or -EINVAL with @err: status 400, code "grammar_invalid", "grammar_unsupported" or
 * "grammar_too_complex", and a message that names the place ("#/properties/a/not: ..."). @v NULL:
 * only checks; such a grammar has no states. @limits may be NULL. Calls
 * job_pause() (base/jobs.h): in an abandoned job it fails, and the error means nothing. */
int grammar_compile(struct grammar **out, const struct grammar_vocab *v,
                    const struct grammar_source *src, const struct grammar_limits *limits,
                    struct err *err);
/* Makes the token classes that the first masks of a schema would need longest for, in some
 * milliseconds to 30. May run on any thread while other threads use @g. Calls job_pause(), and ends
 * early in an abandoned job. */
void grammar_prepare(const struct grammar *g);
struct grammar *grammar_free(struct grammar *g);
DEFINE_FREEP(struct grammar, grammar)
size_t grammar_bytes(const struct grammar *g); /* memory, for caches */

/* ---- composition: tool calls in a model's own format
 *
 * A part is a number that one builder returned. Errors are sticky: after the first one every
 * call returns GRAMMAR_NO_PART, and grammar_build() reports it. Parts may be used more than
 * once; parts that are made alike are the same part. */

typedef int32_t grammar_part;
#define GRAMMAR_NO_PART (-1)
#define GRAMMAR_NO_MAX UINT32_MAX

struct grammar_builder;

/* Creates a builder without parts. @v, which outlives it, and @limits may be NULL. Returns 0 or
 * -ENOMEM. */
int grammar_builder_new(struct grammar_builder **out, const struct grammar_vocab *v,
                        const struct grammar_limits *limits);
struct grammar_builder *grammar_builder_free(struct grammar_builder *b); /* accepts NULL */
DEFINE_FREEP(struct grammar_builder, grammar_builder)

/* Makes a part that is exactly @text. Where it spells a special token of the vocabulary
 * ("<tool_call>"), it is that token. */
grammar_part grammar_literal(struct grammar_builder *b, const char *text, size_t len);
/* Makes a part of @src, which is read as grammar_compile() reads it. */
grammar_part grammar_part_of(struct grammar_builder *b, const struct grammar_source *src);
/* Concatenates @part[0, n); n 0: the empty text. */
grammar_part grammar_sequence(struct grammar_builder *b, const grammar_part *part, size_t n);
/* Makes a part that is any one of @part[0, n). */
grammar_part grammar_either(struct grammar_builder *b, const grammar_part *part, size_t n);
/* Repeats @part @min to @max times, with @separator (or GRAMMAR_NO_PART) in between. */
grammar_part grammar_repeat(struct grammar_builder *b, grammar_part part, grammar_part separator,
                            uint32_t min, uint32_t max);
/* Makes a part that is any valid UTF-8 text that does not contain @stop (may be ""); special
 * tokens are not text. */
grammar_part grammar_free_text(struct grammar_builder *b, const char *stop, size_t len);
/* A member of grammar_members(): @key, a literal that is not empty, then @value. */
struct grammar_member {
    grammar_part key, value;
    bool optional;
};
/* Makes the members @m, each once, in this order, with @before before each; optional ones may be
 * missing. The number of states grows with the bytes of the keys. */
grammar_part grammar_members(struct grammar_builder *b, const struct grammar_member *m, size_t n,
                             grammar_part before);
/* Compiles @root. A refusal that comes from no source in particular has the param of the sources if
 * they have one in common. The builder may be freed afterwards. */
int grammar_build(struct grammar **out, struct grammar_builder *b, grammar_part root,
                  struct err *err);

/* ---- one request */

struct grammar_state;

/* Creates the matcher of one output, at its start. @g, which outlives it, must have been compiled
 * with a vocabulary. Returns 0 or -ENOMEM. */
int grammar_state_new(struct grammar_state **out, const struct grammar *g);
struct grammar_state *grammar_state_free(struct grammar_state *s);
DEFINE_FREEP(struct grammar_state, grammar_state)
size_t grammar_state_bytes(const struct grammar_state *s); /* memory, without the grammar's */
/* Makes @dst (of the same grammar) equal to @src, its history included. Returns 0, -ENOMEM. */
int grammar_state_copy(struct grammar_state *dst, const struct grammar_state *src);
void grammar_state_reset(struct grammar_state *s); /* back to the start */

/* Sets bit t % 32 of bits[t / 32] for exactly the tokens t that may come next, and clears the
 * others. End tokens are allowed where the text may end. Returns the number of allowed tokens; 0
 * when the text has ended, or when no token of the vocabulary fits; -E2BIG when the grammar is too
 * ambiguous here; -ENOMEM. */
int64_t grammar_mask(struct grammar_state *s, uint32_t *bits);
/* Makes the mask with a limit: only @left tokens may still come, the next one included
 * (GRAMMAR_NO_MAX: no limit). A token is allowed if the text can be completed in time behind it. If
 * every token so far came from such a mask, and @left is at least grammar_distance(), the mask is
 * not empty. Returns the number of allowed tokens; 0: no token is allowed, or the text has
 * ended. */
int64_t grammar_mask_within(struct grammar_state *s, uint32_t *bits, uint32_t left);
/* Makes masks that would take long fail with -EAGAIN from here on (some 0.3 ms and more: a missing
 * token class, a text near its limit, many readings); the state is then unchanged, and other masks
 * are not affected. A copy of the state, which is not quick, can make the mask on another
 * thread. */
void grammar_state_set_quick(struct grammar_state *s, bool quick);
/* Returns the fewest tokens that spell the completion with the fewest bytes: 0 where the text may
 * end; GRAMMAR_NO_MAX when none is known, and grammar_mask_within() has no limit then. */
uint32_t grammar_distance(struct grammar_state *s);
/* Accepts a token. Returns 0; -EINVAL: @token is not allowed (nothing changes); -E2BIG, -ENOMEM as
 * grammar_mask(). */
int grammar_accept(struct grammar_state *s, int32_t token);
bool grammar_is_done(const struct grammar_state *s); /* an end token was accepted */
bool grammar_can_end(const struct grammar_state *s);
bool grammar_must_end(const struct grammar_state *s); /* only an end token may come */
/* Starts again at the beginning of the grammar and reads @bytes there, as one accepted token.
 * -EINVAL: they do not fit (nothing changes). */
int grammar_restart(struct grammar_state *s, const void *bytes, size_t len);
/* Takes the last @n accepted tokens back. At least GRAMMAR_HISTORY can be taken back; -EINVAL:
 * the history is shorter (nothing changes). */
#define GRAMMAR_HISTORY 128
int grammar_rollback(struct grammar_state *s, uint32_t n);
uint32_t grammar_n_accepted(const struct grammar_state *s);
/* Writes to @out the bytes that must follow because the grammar allows nothing else, and returns
 * their number, at most @cap; 0 when there is a choice or an end. *@token: the special token that
 * must come right after them, or -1. */
size_t grammar_forced(struct grammar_state *s, uint8_t *out, size_t cap, int32_t *token);
