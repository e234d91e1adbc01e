#pragma once

/*
 * vocab - the tokens of a model for grammars: their bytes in a prefix tree, the special tokens, and
 * the tokens that end a generation. Immutable, except for the token classes that mask/ stores in
 * it.
 */

#include "grammar/grammar.h"
#include "grammar/vocab/trie.h"

struct share;

/* Makes a vocabulary without classes, as grammar_vocab_new() describes its arguments. */
int vocab_new(struct grammar_vocab **out, const struct grammar_token *token, uint32_t n,
              const int32_t *ends, size_t n_ends);
struct grammar_vocab *vocab_free(struct grammar_vocab *v); /* accepts NULL; without its classes */
/* Gives @v the token classes that its grammars have in common (mask/share.h), which it does not
 * own. */
void vocab_set_share(struct grammar_vocab *v, struct share *s);
/* Returns what vocab_set_share() gave, or NULL. */
struct share *vocab_share(const struct grammar_vocab *v);

/* Returns the prefix tree of all tokens of text. */
const struct trie *vocab_trie(const struct grammar_vocab *v);
/* Returns a bit map of the tokens of KIND_TEXT, each character of which is one of UTF-8. */
const uint32_t *vocab_utf8_bits(const struct grammar_vocab *v);
/* Returns a bit map of the text tokens with at most @n_chars characters, up to FREE_CHARS_MAX. */
const uint32_t *vocab_at_most(const struct grammar_vocab *v, uint32_t n_chars);

/* Returns the number of tokens, special ones included. */
uint32_t vocab_n_tokens(const struct grammar_vocab *v);
/* Returns the ids of the *@n tokens that end an output. */
const int32_t *vocab_ends(const struct grammar_vocab *v, size_t *n);
const uint32_t *vocab_text_bits(const struct grammar_vocab *v); /* every item of the trie */
/* Returns the *@len bytes of @token, which must be an id of the vocabulary. */
const uint8_t *vocab_bytes(const struct grammar_vocab *v, int32_t token, size_t *len);
/* Returns the number of characters that begin in the bytes of @token. */
uint32_t vocab_n_chars(const struct grammar_vocab *v, int32_t token);
/* Returns the index of a token of text among the items of the prefix tree. */
uint32_t vocab_trie_place(const struct grammar_vocab *v, int32_t token);
/* Returns the number of characters that begin in @bytes. */
uint32_t utf8_n_chars(const uint8_t *bytes, size_t len);
int32_t vocab_special_at(const struct grammar_vocab *v, const char *s, size_t len, size_t *n);
bool vocab_is_special(const struct grammar_vocab *v, int32_t token);
bool vocab_is_end(const struct grammar_vocab *v, int32_t token);

/* Returns the number of set bits of a bit map of @n_words words. */
int64_t bits_count(const uint32_t *bits, uint32_t n_words);
/* Sets bit @i of a bit map, as masks of tokens are. */
static inline void set_bit(uint32_t *bits, uint32_t i) {
    bits[i / 32] |= 1u << (i % 32);
}
