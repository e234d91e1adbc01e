/*
 * Mixtures of experts on the CUDA backend, without a device: whole models judged by the reference
 * backend, and the same bits however a sequence is computed.
 */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

#ifdef __SANITIZE_ADDRESS__ /* slow there; the first of each kind goes the same ways */
#define FEW(all) 1
#else
#define FEW(all) (all)
#endif

/* By 16 rows: expert_vec; the prompt at once: expert_wide. No seed has a row whose last pick is so
 * close to the next expert that another rounding takes that one. */
Test(cuda_experts, every_architecture_is_near_the_reference) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3moe", .type = TENSOR_Q4_K, .n_ff = 768, .n_vocab = 64, .n_layer = 1},
        {.arch = "llama",
         .type = TENSOR_Q6_K,
         .n_expert = 4,
         .n_expert_used = 2,
         .n_vocab = 64,
         .seed = 3},
        {.arch = "qwen3moe", .type = TENSOR_Q8_0, .n_embd = 96, .n_ff = 32, .n_vocab = 64},
        {.arch = "llama",
         .type = TENSOR_F32,
         .n_ff = 80,
         .n_embd = 80,
         .n_expert = 40,
         .n_expert_used = 2,
         .n_vocab = 64},
    };
    const struct way at_once = {.name = "at once", .forced = true, .fuse = "0"};
    const struct way by_16 = {.name = "by 16", .chunk = 16, .forced = true, .fuse = "16384"};

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        struct trace right = {0}, few = {0}, many = {0};
        char path[64];

        tiny_model_temp(&models[i], path);
        ways_run(path, "reference", &at_once, &right);
        ways_run(path, "cuda", &at_once, &many);
        ways_run(path, "cuda", &by_16, &few);
        unlink(path);
        double d = ways_distance(&many, &right);
        cr_expect(d < 4e-3, "%s %zu: %g", models[i].arch, i, d);
        for (uint32_t r = 0; r + 1 < LONGEST; r++)
            cr_expect(few.at[r].digest == many.at[r].digest, "%zu: position %u", i, r);
        free(right.logits);
        free(few.logits);
        free(many.logits);
    }
}

/* glm4moe: a dense layer first, then an expert of all rows around those that are picked by sigmoids
 * and a bias. gpt-oss: windows, sinks, YaRN, biases of router and experts, clamped gates. Three and
 * four layers, random weights of another scale. */
Test(cuda_experts, golden_files_are_near_the_reference) {
    static const struct {
        const char *name;
        uint64_t seed;
    } files[] = {{"glm4moe-mtp", 0}, {"gpt-oss.mxfp4", 0}, {"gpt-oss-f32", 0}, {"gpt-oss.f16", 3}};
    struct way at_once = {.name = "at once", .forced = true, .fuse = "0"};
    struct way by_16 = {.name = "by 16", .chunk = 16, .forced = true, .fuse = "16384"};

    setenv("WEFT_CUDA_WIDE", "20", 1); /* at once: 64 queries a block */
    for (size_t i = 0; i < FEW(ARRAY_SIZE(files)); i++) {
        struct trace right = {0}, few = {0}, many = {0};
        char path[1024];

        ways_golden(files[i].name, path);
        at_once.seed = by_16.seed = files[i].seed;
        ways_run(path, "reference", &at_once, &right);
        ways_run(path, "cuda", &at_once, &many);
        ways_run(path, "cuda", &by_16, &few);
        double d = ways_distance(&many, &right);
        cr_expect(d < 1e-2, "%s: %g", files[i].name, d);
        for (uint32_t r = 0; r + 1 < LONGEST; r++)
            cr_expect(few.at[r].digest == many.at[r].digest, "%s: position %u", files[i].name, r);
        free(right.logits);
        free(few.logits);
        free(many.logits);
    }
}

Test(cuda_experts, a_sequence_is_the_same_whatever_the_batch) {
    static const struct way ways[] = {
        {.name = "at once", .fuse = "0"},
        {.name = "in company, as graphs",
         .chunk = 35,
         .n_neighbours = 4,
         .graphs = true,
         .fuse = "16384"},
        {.name = "overlapped, other order of threads",
         .chunk = 9,
         .n_neighbours = NEIGHBOURS,
         .graphs = true,
         .overlap = true,
         .fuse = "1000000",
         .order = 77},
    };
    const struct tiny_model m = {.arch = "qwen3moe",
                                 .type = TENSOR_Q4_K,
                                 .n_embd = 256,
                                 .n_ff = 512,
                                 .n_vocab = 64,
                                 .n_expert = 6,
                                 .n_expert_used = 3};
    const struct tiny_model windowed = {
        .arch = "gpt-oss", .type = TENSOR_MXFP4, .n_embd = 64, .n_ff = 64, .n_vocab = 64};
    char path[64];

    tiny_model_temp(&m, path);
    ways_compare(path, ways, ARRAY_SIZE(ways));
    unlink(path);
    tiny_model_temp(&windowed, path);
    ways_compare(path, (const struct way[]){ways[0], ways[2]}, 2);
    unlink(path);
}
