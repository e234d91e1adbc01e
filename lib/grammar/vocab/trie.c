/*
 * trie - builds a prefix tree from sorted strings, in one recursion over their common prefixes.
 *
 * The children of a node are written as one block before any of their own children. So a walk that
 * is refused at most children looks at neighbours in memory, and a walk that is never refused still
 * moves forward.
 */

#include "grammar/vocab/trie.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/try.h"

static int by_bytes(const void *x, const void *y) {
    const struct trie_string *a = x, *b = y;
    int c = memcmp(a->bytes, b->bytes, MIN(a->len, b->len));

    if (c)
        return c;
    if (a->len != b->len) {
        if (a->len < b->len)
            return -1;
        return 1;
    }
    return (a->item > b->item) - (a->item < b->item);
}

/* Returns the number of nodes, which is that of the different prefixes of the strings. */
static size_t count_nodes(const struct trie_string *v, uint32_t n) {
    size_t nodes = 1;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t same = 0;

        while (i && same < v[i].len && same < v[i - 1].len &&
               v[i].bytes[same] == v[i - 1].bytes[same])
            same++;
        nodes += v[i].len - same;
    }
    return nodes;
}

/* Adds v[lo, hi), whose first @depth bytes are equal and lead to @node. */
static int trie_fill(struct trie *t, const struct trie_string *v, uint32_t lo, uint32_t hi,
                     uint32_t depth, uint32_t node) {
    uint32_t first = lo, child = t->n;

    t->node[node].items = t->n_items;
    for (; first < hi && v[first].len == depth; first++)
        t->item[t->n_items++] = v[first].item;
    if (first - lo > UINT16_MAX)
        return -EINVAL;
    assert(child > node);
    t->node[node].n_items = (uint16_t)(first - lo);
    t->node[node].child = child;
    for (uint32_t i = first; i < hi; i++) {
        if (i == first || v[i].bytes[depth] != v[i - 1].bytes[depth])
            t->node[t->n++].byte = v[i].bytes[depth];
    }
    t->node[node].n_children = (uint16_t)(t->n - child);
    for (uint32_t i = first, end; i < hi; i = end, child++) {
        end = i + 1;
        while (end < hi && v[end].bytes[depth] == v[i].bytes[depth])
            end++;

        TRY(trie_fill(t, v, i, end, depth + 1, child));
        uint8_t chars = (t->node[child].byte & 0xc0) != 0x80;

        t->node[node].height =
            MAX(t->node[node].height, (uint8_t)MIN(t->node[child].height + chars, 255));
    }
    return 0;
}

int trie_init(struct trie *t, struct trie_string *v, uint32_t n) {
    uint32_t k = 0;

    *t = (struct trie){0};
    for (uint32_t i = 0; i < n; i++) {
        if (v[i].len && v[i].len <= TRIE_MAX_LEN)
            v[k++] = v[i];
    }
    if (k)
        qsort(v, k, sizeof(*v), by_bytes);
    for (uint32_t i = 0; i < k; i++)
        t->max_len = MAX(t->max_len, v[i].len);
    t->node = calloc(count_nodes(v, k), sizeof(*t->node));
    t->item = malloc(MAX(k, 1u) * sizeof(*t->item));
    t->n = 1;
    int r = t->node && t->item ? trie_fill(t, v, 0, k, 0, 0) : -ENOMEM;

    assert(r < 0 || (t->n == count_nodes(v, k) && t->n_items == k));
    if (r < 0)
        trie_deinit(t);
    return r;
}

void trie_deinit(struct trie *t) {
    free(t->node);
    free(t->item);
    free(t->below);
    *t = (struct trie){0};
}

size_t trie_bytes(const struct trie *t) {
    return t->n * sizeof(*t->node) + t->n_items * sizeof(*t->item);
}
