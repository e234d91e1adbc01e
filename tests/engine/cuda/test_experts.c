/*
 * Tests mixtures of experts on the CUDA backend, without a device. The reference backend gives the
 * expected logits; every division of a sequence into steps must give the same bits.
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

Test(cuda_experts, every_architecture_is_near_the_reference) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3moe", .type = TENSOR_Q4_K, .n_ff = 768, .n_vocab = 64, .n_layer = 1},
        {.arch = "llama", .type = TENSOR_Q6_K, .n_expert = 4, .n_expert_used = 2, .n_vocab = 64},
        {.arch = "qwen3moe", .type = TENSOR_Q8_0, .n_embd = 96, .n_ff = 32, .n_vocab = 64},
        {.arch = "qwen3moe", .type = TENSOR_NVFP4, .n_embd = 128, .n_ff = 64, .n_vocab = 64},
        {.arch = "llama",
         .type = TENSOR_F32,
         .n_ff = 80,
         .n_embd = 80,
         .n_expert = 40,
         .n_expert_used = 2,
         .n_vocab = 64},
    };

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        char path[64];

        tiny_model_temp(&models[i], path);
        ways_near_reference(models[i].arch, path, 4e-3);
        unlink(path);
    }
}

/* glm4moe: first a dense layer; a shared expert beside those that are chosen by sigmoids and a
 * bias. gpt-oss: windows, sinks, YaRN, biases of router and experts, clamped gates. Three and four
 * layers, whose random weights have different scales. */
Test(cuda_experts, golden_files_are_near_the_reference) {
    static const char *const files[] = {"glm4moe-mtp", "gpt-oss.mxfp4", "gpt-oss-f32",
                                        "gpt-oss.f16"};

    setenv("WEFT_CUDA_WIDE", "20", 1); /* together: 64 queries in a block */
    for (size_t i = 0; i < FEW(ARRAY_SIZE(files)); i++) {
        char path[1024];

        ways_golden(files[i], path);
        ways_near_reference(files[i], path, 6e-3);
    }
}

/* Shared experts with gates, without, and with a norm of both; routing by softmax and by sigmoids,
 * in groups; factors of branches; Mamba-2 before experts. The files have weights of F32, which the
 * device rounds to halves; the router behind Mamba-2 is farthest from the reference, by 0.011. */
Test(cuda_experts, mixtures_are_near_the_reference) {
    static const char *const files[] = {"afmoe",        "granitehybrid", "bailingmoe2", "qwen2moe",
                                        "ernie4-5-moe", "exaone-moe",    "granitemoe",  "olmoe",
                                        "deepseek",     "dots1",         "bailingmoe"};

    for (size_t i = 0; i < FEW(ARRAY_SIZE(files)); i++) {
        char path[1024];

        ways_golden(files[i], path);
        ways_near_reference(files[i], path, 1.2e-2);
    }
}

static uint32_t n_wgmma;

/* on_launch: counts products by wgmma. */
static void count_wgmma(const char *kernel, uint64_t number, void *args) {
    n_wgmma += strncmp(kernel, "matmul_wgmma", 12) == 0;
}

/* In a step with many rows, wgmma multiplies all matrices except those of experts and the
 * router. */
Test(cuda_experts, a_sequence_is_the_same_whatever_the_batch) {
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

    fake_find()->on_launch = count_wgmma;
    tiny_model_temp(&m, path);
    ways_compare(path, ways_in_batches, ARRAY_SIZE(ways_in_batches));
    unlink(path);
    cr_expect(n_wgmma > 0);
    fake_find()->on_launch = NULL;
    tiny_model_temp(&windowed, path);
    ways_compare(path, &ways_in_batches[1], 1);
    unlink(path);
}

/* Experts beside attention and half of a shared one; experts of masked softmaxes. */
Test(cuda_experts, golden_models_are_the_same_whatever_the_batch) {
    static const char *const names[] = {"cohere2moe", "phimoe"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        char path[TEST_DATA_PATH];

        ways_golden(names[i], path);
        ways_compare(path, ways_in_batches, ARRAY_SIZE(ways_in_batches));
    }
}
