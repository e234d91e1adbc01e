#pragma once

/*
 * ngram - finds the last earlier occurrence, in an array of tokens, of the n tokens before a
 * position.
 *
 * Two hash tables without chains serve a short and a long n-gram: a slot holds the position after
 * the latest n-gram with its hash, and a hit is compared with the tokens. Memory is bounded, adding
 * and finding take constant time, and overwritten n-grams are forgotten.
 */

#include <stdint.h>

#define NGRAM_SHORT 3u
#define NGRAM_LONG 8u
#define NGRAM_LOOK 32u /* most tokens of a match that are counted */

struct ngram {
    /* [mask + 1] position + 1; short, long */
    uint32_t *slot[2];
    uint32_t mask;
};

/* Allocates slots for about @n_tokens tokens, at most @max (a power of two). Returns 0 or
 * -ENOMEM. */
int ngram_init(struct ngram *g, uint32_t n_tokens, uint32_t max);
void ngram_deinit(struct ngram *g);
/* Adds the n-grams that end before position @end: tokens[end] follows them. */
void ngram_add(struct ngram *g, const int32_t *tokens, uint32_t end);
/* Returns the position in @tokens after the longest known match of the tokens before @text[n], and
 * its length in @len; 0: no match. Positions are below @n_tokens. A short match is only looked for
 * when there is no long one. */
uint32_t ngram_find(const struct ngram *g, const int32_t *tokens, uint32_t n_tokens,
                    const int32_t *text, uint32_t n, uint32_t *len);
/* Returns the number of tokens that agree before a[i] and b[j], at most NGRAM_LOOK. */
uint32_t ngram_common(const int32_t *a, uint32_t i, const int32_t *b, uint32_t j);
