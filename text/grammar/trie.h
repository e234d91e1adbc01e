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

/* A string to be put into a trie, and what it stands for. */
struct trie_string {
    const uint8_t *bytes;
    uint32_t len, item;
};

/* Kinds of text (kinds.c). */
enum {
    ASCII_KINDS = 14, /* bytes of one set each, smaller sets first */
    KIND_HIGH = 14,   /* UTF-8 without ASCII and some rare characters */
    KIND_TEXT = 15,   /* the same with ASCII but what a JSON string has to escape */
    TEXT_KINDS = 16,
    KIND_NONE = 31,
    RUNWAY_MAX = 15, /* lengths up to here count */
};
#define ALL_KINDS ((1u << TEXT_KINDS) - 1)

/* The items of a node and of all below it are neighbours, from `items` on. */
struct trie_node {
    uint32_t child; /* the first */
    uint32_t items; /* the first of items[] */
    uint16_t n_children, n_items;
    uint8_t byte;
    uint8_t kind; /* of the texts below it */
    /* Characters that begin on a way down from it, at most; 255: or more, or of no kind. */
    uint8_t height;
};

/* Immutable once it is made. Children have larger numbers than their node, and their items follow
 * its own in their order; n nodes, of which the last has the last of n_items items. */
struct trie {
    struct trie_node *node; /* node 0: the root */
    uint32_t *item;
    uint64_t *below; /* of each node: text_bit() of the bytes below it; only with kinds */
    uint32_t n, n_items;
    uint32_t max_len;
};

/* Sorts @v. Empty strings are left out. 0, -ENOMEM, -EINVAL (more than 65535 equal strings). */
int trie_init(struct trie *t, struct trie_string *v, uint32_t n);
/* Fills trie_node.kind, the first kind that has all texts below the node, and `below`. 0 or
 * -ENOMEM. */
int trie_find_kinds(struct trie *t);
void trie_deinit(struct trie *t);
size_t trie_bytes(const struct trie *t);

struct grammar_vocab;
struct token_class;
/* The private side of a vocabulary. */
const struct trie *vocab_trie(const struct grammar_vocab *v);
/* That of all but the short texts: those of KIND_TEXT with at most RUNWAY_MAX characters. */
const struct trie *vocab_odd_trie(const struct grammar_vocab *v);
const uint32_t *vocab_short_bits(const struct grammar_vocab *v); /* the short texts */
/* Bits: the tokens of text with at most @n_chars characters, up to RUNWAY_MAX. */
const uint32_t *vocab_at_most(const struct grammar_vocab *v, uint32_t n_chars);
/* The tokens of text with more than @n_chars characters, *@n of them, the longest first. */
const uint32_t *vocab_longer(const struct grammar_vocab *v, uint32_t n_chars, uint32_t *n);

/* The short texts, by their characters (shorts.c): those with c of them are id[first[c], first[c +
 * 1]), in their order. bytes[at[c], at[c + 1]) has of each the length of the beginning that it has
 * in common with the one before, that of the rest, and the rest. */
struct shorts {
    uint32_t *id;
    uint8_t *bytes;
    uint32_t first[RUNWAY_MAX + 2], at[RUNWAY_MAX + 2];
};
/* Of the tokens whose bits are set. 0 or -ENOMEM; then it is to be freed as well. */
int shorts_init(struct shorts *s, const struct grammar_vocab *v, const uint32_t *is_short);
void shorts_deinit(struct shorts *s);
const struct shorts *vocab_shorts(const struct grammar_vocab *v);
uint32_t vocab_n_tokens(const struct grammar_vocab *v);
const int32_t *vocab_ends(const struct grammar_vocab *v, size_t *n);
const uint32_t *vocab_text_bits(const struct grammar_vocab *v); /* all items of its trie */
const uint8_t *vocab_bytes(const struct grammar_vocab *v, int32_t token, size_t *len);
uint32_t vocab_n_chars(const struct grammar_vocab *v, int32_t token);
/* Where a token of text is among the items of the trie. */
uint32_t vocab_trie_place(const struct grammar_vocab *v, int32_t token);
uint32_t utf8_n_chars(const uint8_t *bytes, size_t len); /* that begin there */
int32_t vocab_special_at(const struct grammar_vocab *v, const char *s, size_t len, size_t *n);
bool vocab_is_special(const struct grammar_vocab *v, int32_t token);
bool vocab_is_end(const struct grammar_vocab *v, int32_t token);
/* Classes of a shared loop's states, NULL where there is none. */
struct share *vocab_share(const struct grammar_vocab *v);
struct token_class *vocab_shared_class(const struct grammar_vocab *v, unsigned loop,
                                       uint32_t state);
