#pragma once

/*
 * members - members of an object in any order, when they are compiled: which must be there, whether
 * they can, and to which of them a state leads.
 */

#include "grammar/automaton/automaton.h"

/* A grammar's own copies of what the build knows: g->members, in the order of their rules. Sets
 * auto_rule.members. */
int members_keep(struct build *b, struct grammar *g);
/* Member @i of @rule can be written (NO_MAX: none more can). Whether all that must be there can. */
bool members_live(struct grammar *g, uint32_t rule, uint32_t i);
/* Finds the span of every state: g->span. Dead ends have been cut. */
int members_spans(struct build *b, struct grammar *g);
void members_free(struct grammar *g);
