#pragma once

/*
 * trie - a prefix tree of byte strings, laid out for walking: the children of a node are
 * neighbours, sorted by byte, and the nodes below a node follow soon after it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util.h"

#define TRIE_MAX_LEN 1024 /* longer strings are left out */

/* A string for a trie, and its item. */
struct trie_string {
    const uint8_t *bytes;
    uint32_t len, item;
};

/* Kinds of text (kinds.c). */
enum {
    /* bytes of one set each, smaller sets first */
    ASCII_KINDS = 14,
    /* UTF-8 without ASCII and some rare characters */
    KIND_HIGH = 14,
    /* KIND_HIGH and ASCII, without characters that JSON strings escape */
    KIND_TEXT = 15,
    TEXT_KINDS = 16,
    KIND_NONE = 31,
    /* lengths up to here count */
    FREE_CHARS_MAX = 15,
};
#define ALL_KINDS ((1u << TEXT_KINDS) - 1)

/* The items of a node and of all below it are neighbours, from `items` on. */
struct trie_node {
    /* the first */
    uint32_t child;
    /* the first of items[] */
    uint32_t items;
    uint16_t n_children, n_items;
    uint8_t byte;
    /* kind of the texts below */
    uint8_t kind;
    /* Most characters that begin on a path below the node; 255: 255 or more, or no kind. */
    uint8_t height;
};

/* Immutable once it is made. Children have larger numbers than their node, and their items follow
 * the node's own items in the same order; the last of the n nodes has the last of the n_items
 * items. */
struct trie {
    /* node 0: the root */
    struct trie_node *node;
    uint32_t *item;
    /* for each node: text_bit() of the bytes below; only with kinds */
    uint64_t *below;
    uint32_t n, n_items;
    uint32_t max_len;
};

/* Sorts @v. Empty strings are left out. Returns 0, -ENOMEM, -EINVAL (more than 65535 equal
 * strings). */
int trie_init(struct trie *t, struct trie_string *v, uint32_t n);
/* Fills trie_node.kind, the first kind that has all texts below the node, and `below`. 0 or
 * -ENOMEM. */
int trie_find_kinds(struct trie *t);
void trie_deinit(struct trie *t);
size_t trie_bytes(const struct trie *t);
