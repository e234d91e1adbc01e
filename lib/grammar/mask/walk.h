#pragma once

/* walk - finds the strings of a trie that the automaton can read, with two algorithms of equal
 * result: walk_steps.c for short walks, walk_tables.c for long ones. */

#include "grammar/machine/machine.h"

/* Invariants: `empty` and `need` require bits. A walk leaves the machine's sets as it found
 * them. */
struct walk {
    struct machine *m;
    const struct trie *trie;
    /* bit map of items: a walk sets the reached ones; or NULL */
    uint32_t *bits;
    /* walk_tables(): the bit map is zero, and the trie has all tokens of text */
    bool empty;
    /* increases by the number of bits that the walk sets */
    int64_t n_set;
    /* Called at every node that is reached alive; or NULL. False: the walk does not go on below it.
     * @s is valid during the call. With `ends`, text_bit() of bytes, it is called only where frame
     * 0 can end, and may be left out where none of the bytes is below. */
    uint64_t ends;
    /* visit does not look at @s, which may be NULL */
    bool blind;
    bool (*visit)(struct walk *w, uint32_t node, const struct set *s, uint32_t depth);
    /* Called for items [first, last) of a subtree all of which is reached from @s, @depth bytes
     * deep; or NULL: they are set in bits. */
    void (*accept)(struct walk *w, uint32_t first, uint32_t last, const struct set *s,
                   uint32_t depth);
    /* bits by place: walks only towards these items; or NULL: all */
    const uint64_t *need;
    /* bits: subtrees of these kinds of text may be taken whole */
    uint32_t kinds;
    /* stops beyond (0: no limit) */
    uint64_t n_visited, max_visited;
    void *arg;
};

/* Walks the trie from @from, one step of the machine per node. Errors and fuel are the
 * machine's. */
void walk_steps(struct walk *w, const struct set *from);
/* Does the work of walk_steps() for long walks: each set and its successor by a byte are
 * computed once. Fails with -E2BIG if there are too many sets, too. */
void walk_tables(struct walk *w, const struct set *from);
