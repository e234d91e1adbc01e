/*
 * Self-test and proof of a model with condensed keys on the CUDA backend, without a device: each
 * kernel that does nothing is found.
 */

#include <criterion/criterion.h>
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/few.h"

Test(cuda_condensed_proof, a_device_that_is_wrong_is_refused) {
    static const char *const kernels[] = {"blend",         "spread",          "turn_heads",
                                          "condense",      "keep_rows",       "score_blocks",
                                          "choose_blocks", "attend_condensed"};
    struct fake_cuda *fake = fake_find();
    char path[TEST_DATA_PATH];

    ways_golden("deepseek4", path);
    cr_assert(ways_open(path));
    for (size_t i = 0; i < ARRAY_SIZE(kernels); i += FEWER(1, 3)) {
        fake->broken = kernels[i];
        cr_expect(!ways_open(path), "%s does nothing", kernels[i]);
        fake->broken = NULL;
    }
    fake->faulty = "condense";
    cr_expect(!ways_open(path));
    fake->faulty = NULL;
}
