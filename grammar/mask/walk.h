#pragma once

/* walk - which strings of a trie the automaton can read, in two ways that give the same:
 * walk_steps.c for short walks, walk_tables.c for long ones. */

#include "grammar/machine/machine.h"

/* Invariants: with `empty`, `need` or short_to there are bits; `same` only for walk_like(), shorts
 * only for walk_tables(). The machine's sets are those of before when it has ended. */
struct walk {
    struct machine *m;
    const struct trie *trie;
    uint32_t *bits; /* by item: those that are reached are set; or NULL */
    bool empty;     /* walk_tables(): no bit is set before, for a trie of all text */
    int64_t n_set;  /* grows by those that were not set */
    /* Called at every node that is reached alive; or NULL. False: the walk does not go on below it.
     * @s is valid during the call. With `ends`, text_bit() of bytes, it is called only where frame
     * 0 can end, and may be left out where none of the bytes is below. */
    uint64_t ends;
    bool blind; /* visit does not look at @s, which may be NULL */
    bool (*visit)(struct walk *w, uint32_t node, const struct set *s, uint32_t depth);
    /* Called for items [first, last) of a subtree all of which is reached from @s, @depth bytes
     * deep; or NULL: they are set in bits. */
    void (*take)(struct walk *w, uint32_t first, uint32_t last, const struct set *s,
                 uint32_t depth);
    /* walk_like(): items [first, last), of a subtree @depth bytes deep, are read as from the other
     * set. */
    void (*same)(struct walk *w, uint32_t first, uint32_t last, uint32_t depth);
    /* walk_tables(): the short texts of a vocabulary with @short_from to @short_to characters are
     * read besides the trie, as far as they set bits; short_to 0: none. */
    uint32_t short_from, short_to;
    const uint64_t *need; /* bits by place: walks only towards these items; or NULL: all */
    uint32_t kinds;       /* bits: subtrees of these kinds of text may be taken whole */
    uint64_t whole;       /* so may any of these bytes (text_bit()) of which every text is read */
    uint64_t n_visited, max_visited; /* stops beyond (0: no limit) */
    void *arg;
};

/* Walks the whole trie from @from. Errors and fuel are those of the machine; sets that it made are
 * taken off again. For short walks: every node is a step of the machine. */
void walk_steps(struct walk *w, const struct set *from);
/* Walks as walk_steps() does, for long walks: every set, and its step by a byte, is computed once.
 * -E2BIG also when there are too many sets. */
void walk_tables(struct walk *w, const struct set *from);
/* Walks as walk_tables() does when bits are those reached from @like: looks only where the two
 * differ, and stops beyond max_visited. Without `take`. */
void walk_like(struct walk *w, const struct set *from, const struct set *like);
