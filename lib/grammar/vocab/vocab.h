#pragma once

/*
 * vocab - the tokens of a model for grammars: their bytes in a prefix tree, the special tokens, and
 * the tokens that end a generation. Immutable, except for the token classes that mask/ stores in
 * it.
 */

#include "grammar/grammar.h"
#include "grammar/vocab/trie.h"

struct share;

/* A vocabulary. Arrays by token have n entries, bit maps grammar_vocab_n_words(). */
struct grammar_vocab {
    /* tokens, special ones included */
    uint32_t n;
    /* tokens of text */
    struct trie trie;
    struct trie special;
    /* bits: the items of the trie */
    uint32_t *text;
    /* bits: those of KIND_TEXT, each character of which is one of UTF-8 */
    uint32_t *utf8;
    /* bits: those with at most this many characters */
    uint32_t *at_most[FREE_CHARS_MAX + 1];
    /* index of each text token in trie.item */
    uint32_t *place;
    /* number of characters that begin in each token */
    uint16_t *n_chars;
    /* bytes of all tokens */
    uint8_t *bytes;
    /* token t: bytes[begin[t], begin[t + 1]) */
    size_t *begin;
    uint8_t *is_special;
    /* tokens that end an output */
    int32_t *ends;
    size_t n_ends;
    /* classes that its grammars have in common (mask/share.h), not owned */
    struct share *share;
};

/* Makes a vocabulary without classes, as grammar_vocab_new() describes its arguments. */
int vocab_new(struct grammar_vocab **out, const struct grammar_token *token, uint32_t n,
              const int32_t *ends, size_t n_ends);
struct grammar_vocab *vocab_free(struct grammar_vocab *v); /* accepts NULL; without its classes */

/* Returns the *@len bytes of @token, which must be an id of the vocabulary. */
const uint8_t *vocab_bytes(const struct grammar_vocab *v, int32_t token, size_t *len);
int32_t vocab_special_at(const struct grammar_vocab *v, const char *s, size_t len, size_t *n);
bool vocab_is_end(const struct grammar_vocab *v, int32_t token);

/* Returns the number of set bits of a bit map of @n_words words. */
int64_t bits_count(const uint32_t *bits, uint32_t n_words);
/* Sets bit @i of a bit map, as masks of tokens are. */
static inline void set_bit(uint32_t *bits, uint32_t i) {
    bits[i / 32] |= 1u << (i % 32);
}
