#pragma once

/*
 * nfa - the automaton of one rule as Thompson builds it, with calls as symbols; dfa.c makes it
 * deterministic. One object serves all rules of a compilation in turn.
 */

#include "grammar/automaton/automaton.h"

enum { NFA_EMPTY, NFA_BYTES, NFA_CALL };
#define NFA_NONE UINT32_MAX
#define NFA_TOKENS_MAX 4096u /* special tokens that a grammar may name */

struct nfa_edge {
    /* next: next edge of the same state */
    uint32_t next, to;
    uint32_t desc;
    uint16_t lo, hi;
    uint8_t kind;
};

/* A subautomaton that later alternatives may share (nfa_share.c). */
struct nfa_shared {
    enum { NFA_BEGINNING, NFA_END, NFA_ROW } kind;
    uint32_t flags;
    /* states at which the part is attached */
    uint32_t before, behind, last;
    /* the expressions that the part reads; may be NULL */
    const struct expr *x, *y, *z;
    /* states of the part */
    uint32_t out, out_behind;
};

/* State of making the rules' automata, with the arrays of the grammar that grow meanwhile. */
struct maker {
    struct build *b;
    struct grammar *g;
    uint32_t cap_states, cap_edges, cap_calls, cap_descs, cap_rules, cap_tokens;

    /* NFA of the current rule */
    struct nfa_edge *nfa_edge;
    /* first edge and first empty edge of each state */
    uint32_t *nfa_head, *nfa_empty;
    uint32_t n_nfa_edges, cap_nfa_edges, n_nfa, cap_nfa, cap_nfa_empty;
    /* A state that accepts whatever the other states of a set with it accept, or NFA_NONE. */
    uint32_t nfa_open;
    /* parts of the current rule */
    struct nfa_shared *shared;
    uint32_t n_shared, cap_shared;
    struct hash_index shared_index;
    /* without calls: repetitions and rules are copied (lang.c) */
    bool flat;
};

void maker_free(struct maker *m); /* frees what is not the grammar's */
/* Makes room for one more element of @v. */
int maker_grow(struct maker *m, void *v, uint32_t n, uint32_t *cap, size_t size);

/* Functions that add to the NFA. Once the build has failed they add nothing, and the states that
 * they return have no meaning. */

uint32_t nfa_state(struct maker *m); /* a new state */
/* Add an edge: an empty one, one for each byte from @lo to @hi, or edges and states for @n bytes
 * one after the other. */
void nfa_add_empty(struct maker *m, uint32_t from, uint32_t to);
void nfa_add_bytes(struct maker *m, uint32_t from, unsigned lo, unsigned hi, uint32_t to);
void nfa_add_literal(struct maker *m, const uint8_t *bytes, size_t n, uint32_t from, uint32_t to);
/* Adds @e between two states. Rules that are needed for it are added to the build. */
void nfa_add(struct maker *m, const struct expr *e, uint32_t from, uint32_t to);
/* Adds the concatenation of @n expressions, at least one. */
void nfa_add_sequence(struct maker *m, struct expr *const *x, uint32_t n, uint32_t from,
                      uint32_t to);
/* Adds one of several alternatives between two states, sharing parts with earlier ones. */
void nfa_add_alternative(struct maker *m, const struct expr *e, uint32_t from, uint32_t to);
/* Returns a state from which @e leads to @to; equal ends share it. */
uint32_t nfa_end_alike(struct maker *m, const struct expr *e, uint32_t to);
/* Looks for a part equal to @part. Returns whether there is one, with its states in part->out. */
bool nfa_find_shared(struct maker *m, struct nfa_shared *part);
void nfa_add_shared(struct maker *m, const struct nfa_shared *part); /* @part must be new */
void nfa_add_chars(struct maker *m, const struct expr *e, uint32_t from,
                   uint32_t to); /* EXPR_CHARS */
void nfa_add_list(struct maker *m, const struct expr_list *l, uint32_t from, uint32_t to);

/* Makes the states of @rule by subset construction (dfa.c). */
int dfa_make(struct maker *m, uint32_t rule);
/* Makes the states of an expression without calls. The automaton accepts the texts of @e except
 * the empty one. */
int dfa_flat(struct maker *m, const struct expr *e);
/* Removes states that cannot end, refuses left recursion, finds first and follow bytes
 * (analyse.c). */
int automaton_analyse(struct build *b, struct grammar *g);
/* Finds how far each state reads texts of each kind: free_chars.c. */
int automaton_free_chars(struct build *b, struct grammar *g);
/* Adds token classes for states where they save time (classify.c). */
int automaton_classify(struct build *b, struct grammar *g);

/* Returns a hash of @n numbers. */
static inline uint32_t numbers_hash(const uint32_t *v, uint32_t n) {
    uint64_t h = n;

    for (uint32_t i = 0; i < n; i++)
        h = hash_step(h, v[i]);
    return (uint32_t)(h >> 16);
}
