#pragma once

/* What the tests of grammars share: a small vocabulary, and whether a text fits a grammar. */

#include <criterion/criterion.h>

#include "base/rng.h"
#include "grammar/grammar.h"

#define TEST_END 256    /* the end token of the small vocabulary */
#define TEST_MARKER 257 /* its special token <tool_call> */
#define TEST_MARKER_END 258
#define TEST_CONTROL 259 /* without text */

/* Tokens 0-255 are the bytes; then the four above; then pieces of JSON, words and odd ends of
 * UTF-8. */
const struct grammar_vocab *test_vocab(void);
uint32_t test_n_tokens(void);
const char *test_token(uint32_t id, size_t *len);

/* Compiles for the small vocabulary; fails the test on an error. */
struct grammar *test_compile(enum grammar_kind kind, const char *text);
struct grammar *test_compile_with(enum grammar_kind kind, unsigned flags, const char *text);
/* Byte by byte: does @text fit as a whole? */
bool test_fits(const struct grammar *g, const char *text, size_t len);
/* Both lists end with NULL. */
void test_lists(enum grammar_kind kind, const char *source, const char *const *fits,
                const char *const *fits_not);
void test_lists_with(enum grammar_kind kind, unsigned flags, const char *source,
                     const char *const *fits, const char *const *fits_not);
/* The source is refused with @code, and the message has @part. */
void test_refused(enum grammar_kind kind, const char *source, const char *code, const char *part);
/* Compares the mask of @s with the acceptance of every single token, byte by byte. Returns the
 * allowed ones. */
uint32_t test_mask_is_exact(struct grammar_state *s, const struct grammar *g, uint32_t *bits);
/* Generates a text by random choices under the mask; ends when it may with probability 1 /
 * @patience per token. The length, or -1 when it did not end within @cap bytes. */
int test_random_text(const struct grammar *g, struct rng *r, uint32_t patience, char *out,
                     size_t cap);

#define YES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NONE ((const char *const[]){NULL})
