#pragma once

/* members - compile-time analysis of objects whose members come in any order: which are
 * required, which can be written, and which a state leads to. */

#include "grammar/automaton/automaton.h"

/* Copies the members of the build to g->members, in the order of their rules, and sets
 * auto_rule.members. */
int members_copy(struct build *b, struct grammar *g);
/* Records that member @i of @rule can be written (NO_MAX: no more can). Returns whether all
 * required members can. */
bool members_live(struct grammar *g, uint32_t rule, uint32_t i);
/* Fills g->span for every state. States that cannot reach an end must have been removed. */
int members_spans(struct build *b, struct grammar *g);
void members_free(struct grammar *g);
