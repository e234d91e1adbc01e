/*
 * Tests emulated devices that divide a model by layers (engine/cuda/layers.c): they must give
 * the bits of one device, whichever is ahead of the others. Also tests devices that fail or hang.
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/engine/cuda/several.h"
#include "tests/support/test_data.h"

/* devices without access to each other's memory */
static void apart(int n) {
    fake_find()->n_devices = n;
    fake_find()->no_peers = true;
}

/* Models that ranks support and models that they do not: tied outputs, windows, norms over all
 * heads, delta nets, experts; on two and three devices, with different ones ahead. Steps with few
 * rows are one graph on each device. */
Test(cuda_layers, several_devices_compute_the_bits_of_one) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3", .type = TENSOR_Q4_K, .n_layer = 3, .n_vocab = 301},
        {.arch = "qwen2",
         .type = TENSOR_Q8_0,
         .n_embd = 96,
         .n_ff = 160,
         .n_layer = 2,
         .tied = true},
        {.arch = "olmo2",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 64,
         .n_vocab = 41,
         .n_layer = 2},
        {.arch = "gpt-oss",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 96,
         .n_vocab = 41,
         .n_layer = 3,
         .n_expert = 3,
         .n_expert_used = 3},
        {.arch = "qwen35moe",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 32,
         .n_vocab = 41,
         .n_expert = 5,
         .n_expert_used = 2},
        {.arch = "qwen3next", .type = TENSOR_Q8_0, .n_embd = 64, .n_ff = 64, .n_vocab = 41},
    };

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        const char *devices = i == 0 ? "2,0,1" : i % 2 ? "1,0" : "0,1";
        enum engine_kv_type kv = i % 3 == 1 ? ENGINE_KV_Q8_0 : ENGINE_KV_F16;

        apart(3);
        setenv("WEFT_CUDA_EARLY", i % 2 ? "0" : "1", 1);
        several_compare(&models[i], devices, kv);
    }
}

/* Mamba-2, short convolutions, latent attention, windows, gates and limits of activations, Kimi
 * delta attention, a norm of the embedding, temperatures of latent queries, chunks, Mamba-1, FFNs
 * without gates, values that are shorter than keys. */
Test(cuda_layers, golden_files_have_the_bits_of_one_device) {
    static const char *const names[] = {"nemotron-h-moe-mtp",
                                        "lfm2",
                                        "deepseek2-lite",
                                        "gemma3",
                                        "step35",
                                        "bailingmoe3",
                                        "muse-glimmer",
                                        "mistral4",
                                        "kimi-linear",
                                        "falcon-h1",
                                        "llama4",
                                        "jamba",
                                        "apertus",
                                        "plamo3",
                                        "mimo2"};
    static struct trace one, two;

    apart(2);
    for (size_t i = 0; i < FEW(ARRAY_SIZE(names)); i++) {
        char path[TEST_DATA_PATH];

        test_data_file(path, "golden", names[i], ".gguf");
        several_run(path, "1", ENGINE_KV_F16, SEQS, &one);
        several_run(path, "0,1", ENGINE_KV_F16, SEQS, &two);
        several_expect_equal(&one, &two, &one.at[0][PROMPT], names[i]);
    }
}

/* Layers that read other layers' keys or inputs; `auto` uses one device for them. */
Test(cuda_layers, what_crosses_otherwise_is_refused_by_name) {
    static struct outcome out;
    struct err err = {0};
    char path[TEST_DATA_PATH];

    apart(2);
    test_data_file(path, "golden", "gemma4-ple", ".gguf");
    cr_expect(several_try(path, "0,1", "cuda", &out, &err) < 0);
    cr_expect(strstr(err.message, "layers that share keys or inputs") != NULL, "%s", err.message);
    test_data_file(path, "golden", "deepseek4", ".gguf");
    cr_expect(several_try(path, "0,1", "cuda", &out, &err) < 0);
    cr_expect(strstr(err.message, "not divide residual streams") != NULL, "%s", err.message);
    test_data_file(path, "golden", "nanbeige", ".gguf");
    cr_expect(several_try(path, "0,1", "cuda", &out, &err) < 0);
    cr_expect(strstr(err.message, "layers that run several times") != NULL, "%s", err.message);
}

/* Leaves out a wait for x from the previous device, and a wait for the samples of the last step. */
Test(cuda_layers, a_wait_that_is_missing_is_seen) {
    static struct trace right;
    struct fake_cuda *f = fake_find();
    char path[64];

    tiny_model_temp(&several_dense, path);
    apart(2);
    setenv("WEFT_CUDA_BESIDE", "0", 1); /* waits for other devices alone */
    f->n_waits = 0;
    several_run(path, "0,1", ENGINE_KV_F16, 1, &right);
    uint32_t n = f->n_waits;
    cr_expect(n > OUTPUTS + 1 && n <= 2 * (OUTPUTS + 1), "%u", n);
    for (uint32_t i = 2; i <= FEW(n); i++)
        cr_expect(several_misses(path, false, i, &right), "wait %u of %u", i, n);
    unlink(path);
}

/* -- parts of a batch -------------------------------------------------------------------------- */

static uint32_t n_embeds; /* of batches, or of parts of one */

static void count_embeds(const char *kernel, uint64_t number, void *args) {
    n_embeds += strcmp(kernel, "embed") == 0;
}

/* Pages of both sizes, windows and sinks, experts, states; on three devices. */
Test(cuda_layers, a_batch_in_parts_has_the_bits_of_one_device) {
    static const struct tiny_model models[] = {
        {.type = TENSOR_Q8_0,
         .n_layer = 3,
         .n_embd = 64,
         .n_ff = 64,
         .n_vocab = 40,
         .head_dim = 32,
         .max_context = 400},
        {.arch = "gpt-oss",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 96,
         .n_vocab = 41,
         .n_layer = 2,
         .n_expert = 3,
         .n_expert_used = 3,
         .max_context = 400},
        {.arch = "qwen35",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 64,
         .n_vocab = 41,
         .max_context = 400},
    };
    static struct trace one, several;
    struct fake_cuda *f = fake_find();

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        char path[64];

        tiny_model_temp(&models[i], path);
        apart(3);
        several_run_long(path, "0", &one);
        f->ahead = -1;
        n_embeds = 0;
        f->on_launch = count_embeds;
        several_run_long(path, i ? "1,0" : "2,0,1", &several);
        f->on_launch = NULL;
        f->ahead = 0;
        cr_expect(n_embeds == 6, "one more than steps: %u", n_embeds);
        several_expect_equal(&one, &several, &one.at[1][LONG - 1], path);
        unlink(path);
    }
}

Test(cuda_layers, a_wait_that_is_missing_between_parts_is_seen) {
    static struct trace right;
    const struct tiny_model m = {.type = TENSOR_Q8_0,
                                 .n_layer = 2,
                                 .n_embd = 64,
                                 .n_ff = 64,
                                 .n_vocab = 40,
                                 .head_dim = 32,
                                 .max_context = 400};
    struct fake_cuda *f = fake_find();
    char path[64];

    tiny_model_temp(&m, path);
    apart(2);
    setenv("WEFT_CUDA_BESIDE", "0", 1); /* waits for other devices alone */
    f->n_waits = 0;
    several_run_long(path, "0,1", &right);
    cr_expect(f->n_waits == 9, "hands over 1, 2, 1, 1, 1, and fed 3 times: %u", f->n_waits);
    for (uint32_t i = 2; i <= FEW(4u); i++)
        cr_expect(several_misses(path, true, i, &right), "wait %u", i);
    unlink(path);
}

/* -- drafts ------------------------------------------------------------------------------------ */

enum { DRAFTS = 150 };
static struct driver_out drafted[2][DRAFTS];
static uint32_t n_drafted;
/* graphs that the run recorded after it had opened the model */
static uint64_t n_recorded;

static void keep_draft(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                       const float *logits) {
    struct driver_out *to = ctx;

    cr_assert(n_drafted < DRAFTS);
    to[n_drafted++] = (struct driver_out){out->token, out->logprob, out->digest};
}

/* Runs a prompt in chunks of @chunk, steps with drafts after each, steps with holes, and drafts
 * after these. @block has the drafting block, if not NULL. */
static void run_drafts(const char *path, const char *block, const char *devices, uint32_t chunk,
                       struct driver_out *out) {
    struct driver_opts o = {.backend = "cuda",
                            .devices = (char *)devices,
                            .path = path,
                            .block = block,
                            .n_pages = 60,
                            .max_rows = MAX(chunk, 16u),
                            .max_seqs = SEQS,
                            .drafts = true,
                            .on_out = keep_draft,
                            .ctx = out};
    struct driver_seq *s[SEQS];
    struct err err = {0};
    struct driver d;

    n_drafted = 0;
    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    cr_assert(d.info->n_slots > 0, "%s", d.info->note);
    n_recorded = fake_find()->n_graphs;
    for (uint32_t i = 0; i < SEQS; i++) {
        uint32_t n = chunk > PROMPT ? chunk : PROMPT;
        struct rng rng = {i + 1};
        int32_t prompt[LONG];

        for (uint32_t k = 0; k < n; k++)
            prompt[k] = (int32_t)rng_below(&rng, d.info->n_vocab);
        s[i] = driver_add(&d, prompt, n - i, 4 * OUTPUTS, NULL);
        driver_prefill(&d, s[i], chunk);
    }
    for (uint32_t t = 0; t < OUTPUTS + 2; t++) {
        d.holes = !block && t >= 2 && t < OUTPUTS;
        if (block && !d.holes)
            driver_block(&d, s, SEQS);
        for (uint32_t k = 0; k < 2 && !block && !d.holes; k++) {
            driver_draft(&d, s, SEQS, k);
            for (uint32_t i = 0; i < SEQS; i++)
                s[i]->draft[k] = (int32_t)(t + k + i);
        }
        driver_decode(&d, s, SEQS, 1, false);
    }
    for (uint32_t i = 0; i < SEQS; i++)
        driver_drop(&d, s[i]);
    n_recorded = fake_find()->n_graphs - n_recorded;
    driver_close(&d);
}

/* The block is on the last device, with an embedding of its own or with the tiles of the output
 * matrix. */
Test(cuda_layers, the_models_block_drafts_what_it_does_on_one_device) {
    static const struct tiny_model models[] = {
        {.arch = "glm4moe", .type = TENSOR_Q8_0, .n_blocks = 2, .n_vocab = 41},
        {.arch = "qwen35",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 64,
         .n_vocab = 41,
         .n_blocks = 1},
        {.arch = "qwen35",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 64,
         .n_vocab = 41,
         .n_blocks = 1,
         .tied = true},
    };

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        char path[64];

        tiny_model_temp(&models[i], path);
        apart(2);
        run_drafts(path, NULL, "1", 11, drafted[0]);
        uint32_t n = n_drafted;
        cr_assert(n > 2 * OUTPUTS * SEQS && drafted[0][n - 1].digest != 0);
        fake_find()->ahead = -1;
        run_drafts(path, NULL, "1,0", 11, drafted[1]);
        fake_find()->ahead = 0;
        cr_expect(n_drafted == n && memcmp(drafted[0], drafted[1], sizeof(drafted[0])) == 0, "%zu",
                  i);
        unlink(path);
    }
}

/* Activations that a block drafter reads cross devices together with x, also for parts of a
 * batch. */
Test(cuda_layers, a_block_drafter_drafts_what_it_does_on_one_device) {
    static const char *const pairs[][2] = {{"qwen35-mtp", "qwen35-dflash"},
                                           {"qwen35-mtp", "qwen35-dflash2"},
                                           {"qwen3", "qwen3-dspark"}};

    for (size_t i = 0; i < FEW(2 * ARRAY_SIZE(pairs)); i++) {
        char path[2][TEST_DATA_PATH];
        uint32_t chunk = i % 2 ? LONG : 11;

        test_data_file(path[0], "golden", pairs[i / 2][0], ".gguf");
        test_data_file(path[1], "golden", pairs[i / 2][1], ".gguf");
        apart(3);
        run_drafts(path[0], path[1], "1", chunk, drafted[0]);
        uint32_t n = n_drafted;
        cr_assert(n > 2 * OUTPUTS * SEQS && drafted[0][n - 1].digest != 0);
        fake_find()->ahead = -1;
        run_drafts(path[0], path[1], "2,1,0", chunk, drafted[1]);
        fake_find()->ahead = 0;
        cr_expect(n_drafted == n && memcmp(drafted[0], drafted[1], sizeof(drafted[0])) == 0,
                  "%s, %u rows", pairs[i / 2][1], chunk);
    }
}

/* The graphs of passes that draft are recorded before the first request, with the drafts of a
 * device that was not warmed up; steps with holes, which the model's own block has, are not. */
Test(cuda_layers, drafts_are_recorded_before_the_first_request) {
    static const char *const pairs[][2] = {{"qwen35-mtp", NULL}, {"qwen35-mtp", "qwen35-dflash"}};

    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
        char path[2][TEST_DATA_PATH];
        uint32_t n[2];

        test_data_file(path[0], "golden", pairs[i][0], ".gguf");
        if (pairs[i][1])
            test_data_file(path[1], "golden", pairs[i][1], ".gguf");
        apart(2);
        for (int warm = 0; warm < 2; warm++) {
            setenv("WEFT_CUDA_WARM", warm ? "1" : "0", 1);
            run_drafts(path[0], pairs[i][1] ? path[1] : NULL, "1", 11, drafted[warm]);
            n[warm] = n_drafted;
            if (warm)
                cr_expect_eq(n_recorded, pairs[i][1] ? 0 : 1, "%u", (unsigned)n_recorded);
            else
                cr_expect_geq(n_recorded, 2);
        }
        setenv("WEFT_CUDA_WARM", "0", 1);
        cr_expect(n[0] == n[1] && memcmp(drafted[0], drafted[1], n[0] * sizeof(*drafted[0])) == 0,
                  "%zu", i);
    }
}

/* -- pages and states -------------------------------------------------------------------------- */

/* The second run has self-test and proof, which leave their own numbers in the page. */
Test(cuda_layers, pages_go_to_the_host_and_back) {
    char path[64];

    tiny_model_temp(&several_dense, path);
    apart(2);
    for (int check = 0; check < 2; check++) {
        struct outcome one = {0}, two = {0};

        setenv("WEFT_CUDA_CHECK", check ? "1" : "0", 1);
        several_try_both(path, !check, &one, &two);
        cr_expect(strcmp(two.isa, "sm_90 x2") == 0, "%s", two.isa);
        cr_expect(strcmp(one.note, two.note) == 0, "%s", two.note);
    }
    unlink(path);
}

/* Moves states of layers on both devices, and states of which one device has none. */
Test(cuda_layers, states_go_to_the_host_and_back) {
    apart(2);
    several_move_states();
}

/* The kinds of devices and the border between them are part of the engine's identity. */
Test(cuda_layers, devices_of_two_kinds_have_some_layers_each) {
    struct outcome out = {0};
    struct err err = {0};
    char path[64];

    tiny_model_temp(&several_dense, path);
    fake_find()->n_devices = 2;
    fake_find()->other_kind = true;
    cr_assert(several_try(path, "0,1", "cuda", &out, &err) == 0, "%s", err.message);
    cr_expect(out.digest[0] && out.digest[1]);
    cr_expect(strcmp(out.isa, "sm_90:1+sm_91") == 0, "%s", out.isa);
    unlink(path);
}

Test(cuda_layers, a_device_that_hangs_is_given_up) {
    char path[64];

    tiny_model_temp(&several_dense, path);
    apart(2);
    several_hang(path);
    unlink(path);
}

/* each opening waits 200 ms until the free memory of both devices has settled */
Test(cuda_layers, calls_may_fail_once) {
    char path[64];

    tiny_model_temp(&several_dense, path);
    apart(2);
    several_fail_calls(path, 23, 8, 2);
    unlink(path);
}

/* A device's pages hold only its own layers. */
Test(cuda_layers, memory_adds_up) {
    struct fake_cuda *f = fake_find();
    struct err err = {0};
    char path[64];

    tiny_model_temp(&several_dense, path);
    apart(2);
    f->bytes = (size_t)1 << 30;
    uint32_t one = several_pages(path, "0", &err), two = several_pages(path, "0,1", &err);
    cr_expect(one > 1000 && two > one / 10 * 19, "%u, %u: %s", one, two, err.message);
    several_device_layers = 1;
    cr_expect(several_pages(path, "0,1", &err) == 0);
    cr_expect(strstr(err.message, "device-layers cannot be combined") != NULL, "%s", err.message);
    several_device_layers = 0;
    unlink(path);
}
