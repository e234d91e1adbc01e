#include "tests/mutants/mutants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#ifndef MUTANTS_TABLE
#define MUTANTS_TABLE "mutants_table.inc"
#endif

#define X(kind, name, text)                                                                        \
    extern int mutant_##name;                                                                      \
    int mutant_##name;
#include MUTANTS_TABLE
#undef X

const struct mutant mutants[] = {
#define X(kind, name, text) {MUTANT_##kind, #name, text, &mutant_##name},
#include MUTANTS_TABLE
#undef X
};
const uint32_t n_mutants = ARRAY_SIZE(mutants);

/* For programs that know nothing of mutants. */
__attribute__((constructor)) static void switch_on(void) {
    const char *name = getenv("WEFT_MUTANT");
    uint32_t i = 0;

    if (!name)
        return;
    while (i < n_mutants && strcmp(mutants[i].name, name) != 0)
        i++;
    if (i == n_mutants) {
        fprintf(stderr, "WEFT_MUTANT=%s: no such mutant\n", name);
        exit(2);
    }
    *mutants[i].on = 1;
}
