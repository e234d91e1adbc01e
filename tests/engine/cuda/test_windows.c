/*
 * Tests Gemma 2, 3 and 4, Laguna, Step 3.5, MiMo V2, Muse Glimmer, Mistral 3 and Olmo 3 on the CUDA
 * backend, without a device: norms after branches and of the embedding, scaled activations, capped
 * scores and logits, GELU, layers with other heads and rotary positions, inputs of layers, layers
 * without keys, experts beside a dense FFN, limited activations, gates of attention with weights of
 * their own, queries that grow with their position, values that are shorter than keys. The
 * reference backend gives the expected logits; every division of a sequence into steps must give
 * the same bits.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/gguf.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

Test(cuda_windows, golden_files_are_near_the_reference) {
    /* The first and the third have unscaled scores, so that rounding the weights to half precision
     * alone moves the reference's logits by 1.2e-2. */
    static const struct {
        const char *name;
        double limit;
    } files[] = {{"gemma4-ple", 3e-2},   {"gemma4-moe", 6e-3}, {"gemma4", 3e-2},
                 {"gemma3", 6e-3},       {"gemma2", 6e-3},     {"laguna", 1.5e-2},
                 {"mistral3", 6e-3},     {"phi3", 1e-2},       {"minimax-m2", 1.5e-2},
                 {"muse-glimmer", 1e-2}, {"mimo2", 1e-2}};

    setenv("WEFT_CUDA_WIDE", "20", 1); /* together: 64 queries in a block */
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        char path[1024];

        ways_golden(files[i].name, path);
        ways_near_reference(files[i].name, path, files[i].limit);
    }
}

/* Keys of 192 numbers and values of 128 in pages of eight bits. */
Test(cuda_windows, short_values_of_eight_bits_are_near_the_reference) {
    const struct kv_formats eight = {ENGINE_KV_Q8_0, ENGINE_KV_Q8_0};
    char path[TEST_DATA_PATH];

    ways_golden("mimo2", path);
    ways_near_reference_in("mimo2", path, 5e-2, eight);
}

/* Step 3.5 has sigmoid gates of heads, and limits of activations that differ by layer and between
 * experts and the shared FFN. */
Test(cuda_windows, limits_and_gates_of_heads_are_near_the_reference) {
    char path[1024];

    ways_golden("step35", path);
    ways_near_halved("step35", path);
}

/* Writes a copy of the file at @path whose branches are a thousandth as large. */
static void save_quiet(const char *path, char out[64]) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct err err = {0};

    cr_assert(gguf_open(&file, path, &err) == 0, "%s", err.message);
    size_t n = gguf_bytes(file);
    uint8_t *bytes = malloc(n);
    FILE *f = fopen(path, "rb");
    cr_assert(bytes && f && fread(bytes, 1, n, f) == n);
    fclose(f);
    for (uint64_t i = 0; i < gguf_n_tensors(file); i++) {
        const struct tensor *t = gguf_tensor(file, i);

        if (!strstr(t->name, "attn_output.") && !strstr(t->name, "ffn_down."))
            continue;
        cr_assert(t->format->type == TENSOR_F32);
        for (size_t k = 0; k < t->n_bytes; k += sizeof(float)) {
            float x;

            memcpy(&x, bytes + t->file_offset + k, sizeof(x));
            x *= 1e-3F;
            memcpy(bytes + t->file_offset + k, &x, sizeof(x));
        }
    }
    snprintf(out, 64, "/tmp/weft-quiet-XXXXXX");
    int fd = mkstemp(out);
    f = fd < 0 ? NULL : fdopen(fd, "wb");
    cr_assert(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    free(bytes);
}

/* Muse Glimmer's norms after branches have an epsilon of 1e-8. It matters if branches are small:
 * the model's own epsilon would reduce them by a third and more. */
Test(cuda_windows, norms_of_small_branches_are_near_the_reference) {
    char path[TEST_DATA_PATH], quiet[64];

    ways_golden("muse-glimmer", path);
    save_quiet(path, quiet);
    ways_near_reference("muse-glimmer, small branches", quiet, 1e-2);
    unlink(quiet);
}

/* Mistral 3: queries are scaled up from position 10 on, and further at each multiple of ten. */
Test(cuda_windows, queries_that_grow_are_near_the_reference) {
    struct tiny_model m = {.arch = "mistral3", .type = TENSOR_Q8_0};
    struct gguf_writer w;
    char path[64];

    gw_init(&w);
    tiny_model_build(&m, &w);
    gw_f32(&w, "mistral3.attention.temperature_scale", 0.5f);
    gw_u32(&w, "mistral3.rope.scaling.original_context_length", 10);
    tiny_model_temp_of(&w, path);
    gw_deinit(&w);
    ways_near_reference("mistral3, far positions", path, 4e-3);
    unlink(path);
}

/* Llama 4: chunks of 24 positions, of which blocks of few and of many queries see different parts,
 * and experts whose inputs are weighed. */
Test(cuda_windows, chunks_are_near_the_reference) {
    const struct tiny_model m = {.arch = "llama4", .type = TENSOR_Q8_0, .n_vocab = 64};
    char path[64];

    tiny_model_temp(&m, path);
    ways_near_reference("llama4", path, 4e-3);
    setenv("WEFT_CUDA_WIDE", "20", 1); /* together: 64 queries in a block */
    ways_near_reference("llama4, many queries in a block", path, 4e-3);
    ways_compare(path, ways_in_batches, ARRAY_SIZE(ways_in_batches));
    unlink(path);
}

/* FFNs without gates behind layer norms and RMS norms; windows, norms after branches. */
Test(cuda_windows, golden_models_are_the_same_whatever_the_batch) {
    static const char *const names[] = {"starcoder2", "apertus", "plamo3", "mimo2"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        char path[TEST_DATA_PATH];

        ways_golden(names[i], path);
        ways_compare(path, ways_in_batches, ARRAY_SIZE(ways_in_batches));
    }
}

/* Granite and MiniCPM: embedding, branches, scores and logits times factors of the file. */
Test(cuda_windows, scaled_branches_are_near_the_reference) {
    static const char *const archs[] = {"granite", "minicpm"};
    static const struct {
        const char *key;
        float value;
    } scales[] = {{"embedding_scale", 3}, {"residual_scale", 0.22f}, {"logit_scale", 2}};

    for (size_t i = 0; i < ARRAY_SIZE(archs); i++) {
        struct tiny_model m = {.arch = archs[i], .type = TENSOR_Q8_0};
        struct gguf_writer w;
        char path[64], key[64];

        gw_init(&w);
        tiny_model_build(&m, &w);
        for (size_t k = 0; k < ARRAY_SIZE(scales); k++) {
            snprintf(key, sizeof(key), "%s.%s", archs[i], scales[k].key);
            gw_f32(&w, key, scales[k].value);
        }
        tiny_model_temp_of(&w, path);
        gw_deinit(&w);
        ways_near_reference(archs[i], path, 4e-3);
        unlink(path);
    }
}

/* Olmo 2: a norm over all heads, and no norm before a branch. */
Test(cuda_windows, norms_over_all_heads_are_near_the_reference) {
    const struct tiny_model m = {.arch = "olmo2", .type = TENSOR_Q8_0};
    char path[64];

    tiny_model_temp(&m, path);
    ways_near_reference("olmo2", path, 4e-3);
    ways_compare(path, ways_in_batches, 1);
    unlink(path);
}

/* Layers without rotary positions, norms after branches, a fused FFN, an FFN without a gate,
 * biases, Mamba-2 and dense FFNs. */
Test(cuda_windows, dense_models_are_near_the_reference) {
    static const char *const files[] = {"exaone4",  "glm4",     "arcee",    "granitehybrid-dense",
                                        "smollm3",  "gemma",    "seed-oss", "exaone",
                                        "ernie4-5", "internlm2"};

    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        char path[1024];

        ways_golden(files[i], path);
        ways_near_reference(files[i], path, 1e-2);
    }
}

/* Heads of 512 values. */
Test(cuda_windows, large_heads_are_near_the_reference) {
    const struct tiny_model m = {.arch = "qwen3",
                                 .type = TENSOR_Q8_0,
                                 .head_dim = 512,
                                 .n_head = 4,
                                 .n_head_kv = 2,
                                 .n_layer = 1,
                                 .n_vocab = 64};
    char path[64];

    tiny_model_temp(&m, path);
    ways_near_reference("512", path, 4e-3);
    unlink(path);
}

Test(cuda_windows, a_sequence_is_the_same_whatever_the_batch) {
    static const char *const files[] = {"gemma4-moe", "gemma4-ple", "laguna",      "mistral3",
                                        "gemma2",     "step35",     "muse-glimmer"};

    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        char path[1024];

        ways_golden(files[i], path);
        ways_compare(path, &ways_in_batches[i % 2], 1);
    }
}
