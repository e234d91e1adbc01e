/* Tests the counts of bank conflicts (simt_banks.h) on accesses whose passes are known. */

#include <criterion/criterion.h>

#include "base/util.h"
#include "tests/engine/cuda/simt_banks.h"

static int load; /* its address stands for an instruction */

/* Notes @n_lanes lanes that access @n bytes each, @step bytes apart. */
static void note_row(const char *kernel, uint32_t n_lanes, size_t n, uintptr_t step) {
    for (uint32_t i = 0; i < n_lanes; i++)
        simt_banks_note(kernel, i, 4096 + i * step, n, &load);
}

Test(banks, passes_of_known_accesses) {
    static const struct {
        const char *name;
        uint32_t n_lanes;
        size_t n;
        uintptr_t step;
        uint64_t passes, least;
    } rows[] = {
        {"words in order", 32, 4, 4, 1, 1},      {"the same word", 32, 4, 0, 1, 1},
        {"every second word", 32, 4, 8, 2, 1},   {"a column", 32, 4, 128, 32, 1},
        {"a padded column", 32, 4, 132, 1, 1},   {"halves in order", 32, 2, 2, 1, 1},
        {"8 bytes in order", 32, 8, 8, 2, 2},    {"16 bytes in order", 32, 16, 16, 4, 4},
        {"rows of 64 bytes", 32, 16, 64, 16, 4}, {"8 lanes", 8, 16, 16, 1, 1},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        note_row(rows[i].name, rows[i].n_lanes, rows[i].n, rows[i].step);
        simt_banks_count();
        struct simt_banks b = simt_banks_of(rows[i].name);
        cr_expect(b.accesses == 1, "%s: %zu accesses", rows[i].name, (size_t)b.accesses);
        cr_expect(b.passes == rows[i].passes, "%s: %zu passes", rows[i].name, (size_t)b.passes);
        cr_expect(b.least == rows[i].least, "%s: least %zu", rows[i].name, (size_t)b.least);
    }
}

/* Lanes run one after the other: the second access of a lane is noted before the first one of the
 * next lane. */
Test(banks, accesses_of_a_loop_are_told_apart) {
    for (uint32_t lane = 0; lane < 64; lane++)
        for (uintptr_t k = 0; k < 3; k++)
            simt_banks_note("loop", lane, 4096 + lane * 4 + k * 1024, 4, &load);
    simt_banks_count();
    struct simt_banks b = simt_banks_of("loop");
    cr_expect(b.accesses == 6 && b.passes == 6 && b.least == 6, "%zu, %zu, %zu", (size_t)b.accesses,
              (size_t)b.passes, (size_t)b.least);
}
