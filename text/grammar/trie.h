#pragma once

/*
 * trie - byte strings by their prefixes, laid out for walking: the children of a node are
 * neighbours, sorted by byte, and what lies below a node follows soon after it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/util.h"

#define TRIE_MAX_LEN 1024 /* longer strings are left out */

struct trie_string {
    const uint8_t *bytes;
    uint32_t len, item;
};

struct trie_node {
    uint32_t child; /* the first */
    uint32_t items; /* the first of items[] */
    uint16_t n_children, n_items;
    uint8_t byte;
};

struct trie {
    struct trie_node *node; /* node 0: the root */
    uint32_t *item;
    uint32_t n, n_items;
    uint32_t max_len;
};

/* Sorts @v. Empty strings are left out. 0, -ENOMEM, -EINVAL (more than 65535 equal strings). */
int trie_init(struct trie *t, struct trie_string *v, uint32_t n);
void trie_deinit(struct trie *t);
size_t trie_bytes(const struct trie *t);

struct grammar_vocab;
struct token_class;
/* The private side of a vocabulary. */
const struct trie *vocab_trie(const struct grammar_vocab *v);
uint32_t vocab_n_tokens(const struct grammar_vocab *v);
const int32_t *vocab_ends(const struct grammar_vocab *v, size_t *n);
const uint8_t *vocab_bytes(const struct grammar_vocab *v, int32_t token, size_t *len);
int32_t vocab_special_at(const struct grammar_vocab *v, const char *s, size_t len, size_t *n);
bool vocab_is_special(const struct grammar_vocab *v, int32_t token);
bool vocab_is_end(const struct grammar_vocab *v, int32_t token);
/* Classes of a shared loop's states, NULL where there is none. */
struct token_class *vocab_shared_class(const struct grammar_vocab *v, unsigned loop,
                                       uint32_t state);
