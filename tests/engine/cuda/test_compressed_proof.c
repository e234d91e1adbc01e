/*
 * Tests self-test and proof of models with compressed or chosen keys on the CUDA backend, without a
 * device: they must find each kernel that does nothing.
 */

#include <criterion/criterion.h>

#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/few.h"

/* @faulty: a kernel that is also tried with a mistake. */
static void try_kernels(const char *name, const char *const *kernels, size_t n,
                        const char *faulty) {
    struct fake_cuda *fake = fake_find();
    char path[TEST_DATA_PATH];

    ways_golden(name, path);
    cr_assert(ways_open(path));
    for (size_t i = 0; i < n; i += FEWER(1, 3)) {
        fake->broken = kernels[i];
        cr_expect(!ways_open(path), "%s does nothing", kernels[i]);
        fake->broken = NULL;
    }
    fake->faulty = faulty;
    cr_expect(!ways_open(path));
    fake->faulty = NULL;
}

Test(cuda_compressed_proof, a_device_that_is_wrong_is_refused) {
    static const char *const kernels[] = {"hc_in",         "hc_out",           "turn_heads",
                                          "compress",      "keep_rows",        "score_blocks",
                                          "choose_blocks", "attend_compressed"};

    try_kernels("deepseek4", kernels, ARRAY_SIZE(kernels), "compress");
}

/* without a choice of blocks no keys would be read */
Test(cuda_compressed_proof, a_device_that_is_wrong_about_chosen_keys_is_refused) {
    static const char *const kernels[] = {"mean_keys", "score_blocks", "attend_sparse",
                                          "merge_sparse"};

    try_kernels("qwen4exp", kernels, ARRAY_SIZE(kernels), "mean_keys");
}

Test(cuda_compressed_proof, a_device_that_is_wrong_about_pooled_keys_is_refused) {
    static const char *const kernels[] = {"attend_sparse_latent", "hc_mean", "compress",
                                          "score_blocks", "merge_sparse"};

    try_kernels("glm5-next", kernels, ARRAY_SIZE(kernels), "compress");
}
