#pragma once

/*
 * mutant - deliberate bugs, to measure whether the tests would find them. In programs for that
 * purpose, compiled with -DWEFT_MUTANTS, each can be switched on at run time
 * (tests/mutants/mutants.h has the list and what each is about); everywhere else MUTANT() is the
 * correct expression and nothing more.
 */

#ifdef WEFT_MUTANTS
#define MUTANT(name, correct, wrong)                                                               \
    (__extension__({                                                                               \
        extern int mutant_##name;                                                                  \
        mutant_##name;                                                                             \
    })                                                                                             \
         ? (wrong)                                                                                 \
         : (correct))
#else
#define MUTANT(name, correct, wrong) (correct)
#endif
