#pragma once

/*
 * finish - the distance of a text from its end: finish.c measures the automaton when it is
 * compiled, closing.c finds the shortest completion of a text that is being generated.
 */

#include "grammar/machine/machine.h"

#define FINISH_NEVER (1u << 30) /* bytes or tokens: no path is known */

/* Shortest path from a state of a rule to the end of the rule. */
struct path {
    /* bytes; of a loop: to the border between characters; in a rule whose register has members:
     * without any of them */
    uint32_t rest;
    /* bytes if it continues by an edge */
    uint32_t step;
    /* symbol of that edge: a byte or a special token */
    uint16_t symbol;
};

/* Describes paths through g->members[] of the same index. */
struct members_path {
    /* bytes from behind a member to the next one; to the end */
    uint32_t rule, gap, tail;
    /* bytes of the key; rule of what comes behind it, or NO_RULE */
    uint32_t *key, *callee;
};

struct finish {
    /* one per state */
    struct path *path;
    /* Gives, for each state of a rule with members, the bytes to where a member may begin;
     * negative: minus the bytes of its key that have been read. May be NULL. */
    int32_t *slot;
    /* parallel to g->members */
    struct members_path *members;
    /* for each node of g->names[i]: bytes until the key is no listed name */
    uint32_t **escape;
    /* maximum of each escape[i] */
    uint32_t *escape_max;
    /* for each state: 1 + bytes, 0: unknown (closing.c) */
    _Atomic uint32_t *reach;
    uint32_t n_names, n_members;
    /* maximum over all paths */
    uint32_t rest_max;
    /* the first byte from here on that is a token; 256: none */
    uint16_t next[257];
    size_t bytes;
};

/* Sets g->finish, for the vocabulary of @b. 0, or as build_work(). */
int finish_new(struct build *b, struct grammar *g);
struct finish *finish_free(struct finish *f);

/* Returns the bytes from state @q, with register @reg of @m, to the end of its rule, which @d
 * called (NULL: unknown, as in classify.c): an upper bound, at most FINISH_NEVER. */
uint32_t finish_rest(const struct machine *m, uint32_t q, uint32_t reg, const struct call_desc *d);
/* Returns finish_rest() of a path that continues by an edge, whose symbol is written to *symbol. */
uint32_t finish_step(const struct machine *m, uint32_t q, uint32_t reg, const struct call_desc *d,
                     unsigned *symbol);
/* Returns the bytes that a call takes. */
uint32_t finish_call(const struct grammar *g, const struct call_desc *d);

/* Add and multiply such numbers; a result that is too large is FINISH_NEVER. */
static inline uint32_t finish_add(uint32_t x, uint32_t y) {
    return MIN(x + y, FINISH_NEVER);
}

/* Multiplies with saturation. */
static inline uint32_t finish_times(uint32_t n, uint32_t x) {
    return (uint32_t)MIN((uint64_t)n * x, FINISH_NEVER);
}

/* ---- one mask: closing.c */

struct closing;

/* Allocates the scratch memory for one request's masks. Returns 0 or -ENOMEM. */
int closing_new(struct closing **out);
struct closing *closing_free(struct closing *k); /* accepts NULL */
size_t closing_memory(const struct closing *k);  /* bytes of @k itself */
/* Begins a mask for set @at of @m, with @left tokens after the next one. Returns false if the
 * grammar's shortest texts are not known; the other functions must not be called then. */
bool closing_begin(struct closing *k, struct machine *m, const struct set *at, uint32_t left);
/* Returns whether the text can end in time after a token that leads to @s. */
bool closing_fits(struct closing *k, const struct set *s);
/* Returns whether the text can end in time after any text that a configuration of @s reads without
 * leaving its rule. */
bool closing_fits_inside(struct closing *k, const struct set *s);
/* Returns whether the text can end in time after every token of the class of configuration @c. */
bool closing_class_fits(struct closing *k, const struct config *c);
/* If some token did not fit, sets the tokens that begin the shortest completion, if it ends in
 * time. Returns false if all tokens fitted. */
bool closing_add_plan(struct closing *k, uint32_t *bits);
/* Returns the tokens of the shortest known completion of @at; 0: the text may end there. */
uint32_t closing_distance(struct closing *k, const struct set *at);
/* Returns an upper bound of the bytes of the shortest completion; cheap. */
uint32_t closing_bytes(struct closing *k, const struct set *at);

/* Returns closing_bytes() for the current position of @s (state.c). */
uint32_t grammar_bytes_left(struct grammar_state *s);

struct mask;
/* Corrects @mask, made for @at, for tokens that would repeat an earlier item. If @closing is not
 * NULL, tokens must also leave time for the end (distinct_mask.c). */
void distinct_settle(struct machine *m, const struct set *at, struct closing *closing,
                     struct mask *mask);
