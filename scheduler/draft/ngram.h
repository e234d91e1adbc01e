#pragma once

/*
 * ngram - finds the last place in an array of tokens where the n tokens before a position stood
 * before.
 *
 * Two hash tables without chains, for a short and a long n-gram: a slot holds the position behind
 * the latest n-gram that hashes to it, and a hit is compared with the tokens. Memory is bounded,
 * adding and finding a token take constant time; what is overwritten is forgotten.
 */

#include <stdint.h>

#define NGRAM_SHORT 3u
#define NGRAM_LONG 8u
#define NGRAM_LOOK 32u /* a match is counted up to this length */

struct ngram {
    uint32_t *slot[2]; /* [mask + 1] position + 1; short, long */
    uint32_t mask;
};

/* For about @n_tokens tokens, at most @max (a power of two). 0 or -ENOMEM. */
int ngram_init(struct ngram *g, uint32_t n_tokens, uint32_t max);
void ngram_deinit(struct ngram *g);
/* The n-grams that end before position @end are at @end: what follows is tokens[end]. */
void ngram_add(struct ngram *g, const int32_t *tokens, uint32_t end);
/* The position in @tokens that follows the longest known match of what precedes @text[n], and its
 * length in @len, or 0. Found positions are below @n_tokens; a short match is only looked for
 * when no long one is found. */
uint32_t ngram_find(const struct ngram *g, const int32_t *tokens, uint32_t n_tokens,
                    const int32_t *text, uint32_t n, uint32_t *len);
/* Tokens that agree before a[i] and b[j], at most NGRAM_LOOK. */
uint32_t ngram_common(const int32_t *a, uint32_t i, const int32_t *b, uint32_t j);
