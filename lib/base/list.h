#pragma once

/*
 * list - an intrusive doubly linked list. The head is a node too; an empty list points to itself.
 * Declare a list with what it holds: `struct list waiting; (request.link)`.
 *
 * A loop over a list counts its nodes for loop_bytes.h, so that each list that grows without a
 * bound is found by the tests of what walks it.
 */

#include <stdbool.h>

#include "base/loop_bytes.h"
#include "base/util.h"

/* Invariant: node->next->prev and node->prev->next are the node. */
struct list {
    struct list *prev, *next;
};

/* Initialises an empty list, or a node that is in no list. */
static inline void list_init(struct list *l) {
    l->prev = l->next = l;
}

/* For a head: returns true if the list is empty. For an initialised node: true if it is in no
 * list. */
static inline bool list_empty(const struct list *l) {
    return l->next == l;
}

/* Links @node, which must be in no list (it need not be initialised), before @at. */
static inline void list_insert_before(struct list *at, struct list *node) {
    node->prev = at->prev;
    node->next = at;
    at->prev->next = node;
    at->prev = node;
}

/* Appends @node to the list with head @l. */
static inline void list_push_back(struct list *l, struct list *node) {
    list_insert_before(l, node);
}

/* Puts @node at the front of the list with head @l. */
static inline void list_push_front(struct list *l, struct list *node) {
    list_insert_before(l->next, node);
}

/* Unlinks @node and makes it an empty list, so that removing it twice is harmless. */
static inline void list_remove(struct list *node) {
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

/* Removes the first node; NULL: the list is empty. */
static inline struct list *list_pop_front(struct list *l) {
    struct list *node = l->next;

    if (node == l)
        return NULL;
    list_remove(node);
    return node;
}

/* Returns the object whose @member is @node. */
#define LIST_ENTRY(node, type, member) CONTAINER_OF(node, type, member)

/* Iterates over the nodes of @l; the current node may be removed inside the loop. */
#define LIST_FOREACH(node, l)                                                                      \
    for (struct list *node = (l)->next, *node##_next = node->next;                                 \
         node != (l) && (loop_items(1), true); node = node##_next, node##_next = node->next)

/* Returns the object whose @member is @node, or NULL if @node is the head @l. */
#define LIST_ENTRY_OR_NULL(node, l, type, member)                                                  \
    ((node) == (l) ? NULL : LIST_ENTRY(node, type, member))

/* Iterates over the objects of @type that list @l links by @member; the current one may be
 * removed. */
#define LIST_FOREACH_ENTRY(x, l, type, member)                                                     \
    for (type *x = LIST_ENTRY_OR_NULL((l)->next, l, type, member), *x##_next;                      \
         x &&                                                                                      \
         (x##_next = LIST_ENTRY_OR_NULL((x)->member.next, l, type, member), loop_items(1), true);  \
         x = x##_next)
