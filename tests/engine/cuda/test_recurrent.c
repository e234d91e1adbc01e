/*
 * Tests models with recurrent layers on the CUDA backend, without a device: logits against the
 * reference backend, the same bits for every division of a sequence into steps, and states that are
 * saved and loaded.
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

/* Heads of 16 and 64 values, beta and alpha separate and joined, tiled and interleaved heads, dense
 * FFNs and experts with a shared one; Mamba-2, experts without gates; Kimi delta attention beside
 * latent attention with gates, experts in groups; Mamba-1, also with the steps of heads. */
Test(cuda_recurrent, every_architecture_is_near_the_reference) {
    static const char *const names[] = {"qwen35-mtp",      "lfm2",        "nemotron-h-moe-mtp",
                                        "bailingmoe3-mtp", "jamba",       "qwen3next",
                                        "qwen35moe-mtp",   "lfm2moe",     "bailingmoe3",
                                        "falcon-h1",       "kimi-linear", "plamo2"};

    for (size_t i = 0; i < MAX(FEW(ARRAY_SIZE(names)), (size_t)5); i++) { /* each kind of state */
        char path[TEST_DATA_PATH];

        ways_golden(names[i], path);
        ways_near_reference(names[i], path,
                            2e-2); /* 4e-3 on average: random weights of any scale */
    }
}

Test(cuda_recurrent, experts_in_blocks_are_near_the_reference) {
    const struct tiny_model t = {.arch = "qwen35moe", .type = TENSOR_Q4_K};
    char path[64];

    tiny_model_temp(&t, path);
    ways_near_reference("qwen35moe of Q4_K", path, 2e-2);
    unlink(path);
}

Test(cuda_recurrent, a_sequence_is_the_same_whatever_the_batch) {
    char path[1024];

    ways_golden("qwen35moe-mtp", path);
    ways_compare(path, ways_back, ARRAY_SIZE(ways_back));
    ways_golden("nemotron-h-moe-mtp", path);
    ways_compare(path, &ways_back[2], 2);
    ways_golden("bailingmoe3-mtp", path);
    ways_compare(path, &ways_back[2], 2);
    ways_golden("kimi-linear", path);
    ways_compare(path, &ways_back[2], 2);
    ways_golden("falcon-h1", path);
    ways_compare(path, &ways_back[2], 2);
    ways_golden("nemotron-h-puzzle", path);
    ways_compare(path, &ways_back[2], 2);
    ways_golden("jamba", path);
    ways_compare(path, &ways_back[2], 2);
    ways_golden("plamo2", path);
    ways_compare(path, ways_back, ARRAY_SIZE(ways_back));
}

/* Proves a device with one state: kernels cannot use snapshots in host memory instead. */
Test(cuda_recurrent, a_single_state_is_proved) {
    char path[1024];
    const struct driver_opts o = {.backend = "cuda",
                                  .path = path,
                                  .max_rows = 20,
                                  .n_pages = 8,
                                  .max_seqs = 1,
                                  .n_snapshots = 2,
                                  .host_kv_bytes = 1 << 20};
    struct err err = {0};
    struct driver d;

    ways_golden("qwen3next", path);
    setenv("WEFT_CUDA_CHECK", "1", 1);
    int r = driver_open(&d, &o, &err);
    cr_assert(r == 0, "%s", err.message);
    driver_close(&d);
}

/* Kernels that do nothing, kernels that fail, and each 97th call failing. */
Test(cuda_recurrent, a_device_that_is_wrong_is_refused) {
    static const struct {
        const char *model, *kernel;
    } wrong[] = {
        {"lfm2", "conv"},
        {"lfm2", "conv_keep"},
        {"nemotron-h-moe-mtp", "mamba_in"},
        {"nemotron-h-moe-mtp", "mamba"},
        {"nemotron-h-moe-mtp", "mamba_out"},
        {"bailingmoe3-mtp", "kda"},
        {"jamba", "scan_in"},
        {"jamba", "scan"},
        {"plamo2", "scan_heads"},
        {"qwen35-mtp", "delta_in"},
        {"qwen35-mtp", "delta"},
        {"qwen35-mtp", "delta_out"},
    };
    struct fake_cuda *fake = fake_find();
    char path[1024];

    ways_golden("qwen35-mtp", path);
    cr_assert(ways_open(path));
    uint32_t n = fake->n_calls;
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        ways_golden(wrong[i].model, path);
        fake->broken = wrong[i].kernel;
        cr_expect(!ways_open(path), "%s does nothing", wrong[i].kernel);
        fake->broken = NULL;
        fake->faulty = wrong[i].kernel;
        cr_expect(!ways_open(path), "%s fails", wrong[i].kernel);
        fake->faulty = NULL;
        fake->fail_at = 0;
        fake->sticky = false;
    }
    cr_expect(n > 500, "%u calls", n);
    for (fake->fail_at = 97; fake->fail_at < n - 20;
         fake->fail_at += 97) { /* except calls at closing */
        fake->failed_capture = false;
        bool opened = ways_open(path); /* and runs without graphs, if a capture failed */
        cr_expect(opened == fake->failed_capture, "call %u of %u", fake->fail_at, n);
    }
}
