#pragma once

/*
 * mutants - the edits of tests/mutants (apply.py), which are in this program's copy of the pager
 * and the scheduler, or of the front, switched off: seeded bugs, and rules of the policy that can
 * be ablated. The environment variable WEFT_MUTANT switches one on at the start.
 */

#include <stdint.h>

enum mutant_kind { MUTANT_mutant, MUTANT_ablation };

struct mutant {
    enum mutant_kind kind;
    const char *name, *text;
    int *on;
};

extern const struct mutant mutants[];
extern const uint32_t n_mutants;
