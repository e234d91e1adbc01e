#pragma once

/* lang_types - the data types of a deterministic automaton, below the modules that make
 * automata. */

#include <stdint.h>

/* Symbols lo to hi (bytes; special tokens from TOKEN_SYMBOL on) lead to state @to. */
struct edge {
    uint16_t lo, hi;
    uint32_t to;
};

struct lang_state {
    uint32_t edge, n_edges;
    /* bit i: language i of the product; bit 0 alone in a single language, but for LANG_BORDER of
     * lang_meet_strings() */
    uint64_t accepts;
};
#define LANG_BORDER 2u /* between the characters of a string */

/* State 0 is the start. n 0: the empty language. Edges of a state are neighbours, sorted, disjoint,
 * and lead to states below n. */
struct lang {
    uint32_t n, n_edges;
    struct lang_state *state;
    struct edge *edge;
};
