/*
 * Experts that the host computes beside a device: whole models judged by the reference backend, the
 * same bits however a sequence is computed, where they are placed, and calls that fail.
 */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/cuda/kernels.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

/* Activations of the host's experts are rounded to eight bits. */
#define NEAR 2e-2

/* A gate and an up; joined in one tensor, in a branch with norms of its own; with biases and
 * clamped gates. One of two layers, or both. */
Test(cuda_host_experts, every_architecture_is_near_the_reference) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3moe", .type = TENSOR_Q4_K, .n_ff = 512, .n_vocab = 64},
        {.arch = "gpt-oss", .type = TENSOR_MXFP4, .n_embd = 64, .n_ff = 64, .n_vocab = 64},
        {.arch = "llama", .type = TENSOR_Q6_K, .n_expert = 4, .n_expert_used = 2, .n_vocab = 64},
    };

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        char path[64];

        tiny_model_temp(&models[i], path);
        ways_near_reference_beside(models[i].arch, path, NEAR, i == 0 ? 1 : 2);
        unlink(path);
    }
}

/* Behind a dense layer, with an expert of all rows; gates and ups in one tensor, in a branch. */
Test(cuda_host_experts, golden_files_are_near_the_reference) {
    static const char *const files[] = {"glm4moe-mtp", "gemma4-moe"};

    for (size_t i = 0; i < FEW(ARRAY_SIZE(files)); i++) {
        char path[1024];

        ways_golden(files[i], path);
        ways_near_reference_beside(files[i], path, NEAR, 2);
    }
}

static void make_small(char path[64]) {
    const struct tiny_model m = {.arch = "qwen3moe",
                                 .type = TENSOR_Q4_K,
                                 .n_embd = 256,
                                 .n_ff = 256,
                                 .n_vocab = 64,
                                 .n_expert = 6,
                                 .n_expert_used = 3};

    tiny_model_temp(&m, path);
}

Test(cuda_host_experts, a_sequence_is_the_same_whatever_the_batch) {
    char path[64];

    make_small(path);
    for (uint32_t n = 1; n <= 2; n++) { /* of one of two layers, and of both */
        struct way way = ways_in_batches[2 - n];

        way.host_experts = n;
        way.n_threads = 1 + n;
        fake_find()->n_host_calls = fake_find()->n_graph_launches = 0;
        ways_compare(path, &way, 1);
        cr_expect(fake_find()->n_host_calls > 0 && fake_find()->n_graph_launches > 0);
    }
    unlink(path);
}

/* -- where they are placed --------------------------------------------------------------------- */

enum { LAYERS = 4 };

static struct gguf *file;

static void open_layers(void) {
    const struct tiny_model m = {.arch = "qwen3moe",
                                 .type = TENSOR_Q8_0,
                                 .n_layer = LAYERS,
                                 .n_ff = 512,
                                 .n_vocab = 64,
                                 .n_expert = 16,
                                 .n_expert_used = 2};
    struct err err;
    char path[64];

    tiny_model_temp(&m, path);
    cr_assert(gguf_open(&file, path, &err) == 0);
    unlink(path);
}

static struct engine_opts opts(const char *backend, uint32_t host_experts) {
    return (struct engine_opts){.file = file,
                                .backend = backend,
                                .isa = "auto",
                                .n_threads = 1,
                                .n_pages = 8,
                                .page_tokens = 16,
                                .max_rows = 16,
                                .max_seqs = 2,
                                .max_wants = 4,
                                .host_experts = host_experts};
}

/* Opens and closes; *out: what is known of it. */
static int try_open(const struct engine_opts *o, struct engine_info *out, struct err *err) {
    static char note[600];
    struct engine *e = NULL;
    int r = engine_new(&e, o, err);

    if (r == 0) {
        *out = *engine_info(e);
        snprintf(note, sizeof(note), "%s", out->note);
        out->note = note;
    }
    engine_free(e);
    cr_expect(fake_find()->n_live == 0);
    return r;
}

/* As few layers as leave room for the pages are the host's; it says so, and its results are
 * known by others than those of another placement. */
Test(cuda_host_experts, as_few_as_leave_room_are_placed) {
    const size_t reserve = 256 << 20, layer = 16 * 3 * 256 * 512;
    struct engine_info i, before;
    struct err err = {0};

    open_layers();
    struct engine_opts o = opts("cuda", 0), chosen = opts("cuda", ENGINE_HOST_AUTO);
    cr_assert(try_open(&o, &i, &err) == 0, "%s", err.message);
    cr_expect(i.n_expert_layers == LAYERS && i.n_host_layers == 0 && !i.note[0]);
    size_t all = fake_find()->peak_bytes + reserve + (1 << 20);
    for (uint32_t n = 0; n <= LAYERS; n += 2) {
        fake_find()->bytes = all - n * layer + layer / 4;
        before = i;
        cr_assert(try_open(&chosen, &i, &err) == 0, "%u: %s", n, err.message);
        cr_expect(i.n_host_layers == n && i.host_layers == n, "%u: %u", n, i.n_host_layers);
        cr_expect(i.host_expert_bytes == n * (layer / 32 * 34), "%u", n);
        bool same = memcmp(i.sources, before.sources, sizeof(i.sources)) == 0;
        cr_expect(same == (n == 0), "%u", n);
        if (n == 0)
            continue;
        o.host_experts = n - 1;
        cr_expect(try_open(&o, &i, &err) == -ENOMEM && strstr(err.message, "does not fit"),
                  "%u layers: %s", n - 1, err.message);
    }
    gguf_free(file);
}

Test(cuda_host_experts, the_host_must_have_room_for_its_part) {
    struct engine_info i;
    struct err err = {0};

    open_layers();
    struct engine_opts o = opts("cuda", 2);
    o.memory = 2 << 20;
    cr_expect(try_open(&o, &i, &err) == -ENOMEM);
    cr_expect(strstr(err.message, "the experts of 2 layers, of 4") != NULL, "%s", err.message);
    gguf_free(file);
}

/* On the CPU there is nothing to place. */
Test(cuda_host_experts, without_a_device_nothing_is_placed) {
    struct engine_info i;
    struct err err = {0};

    open_layers();
    struct engine_opts o = opts("cpu", 2);
    cr_assert(try_open(&o, &i, &err) == 0, "%s", err.message);
    cr_expect(i.n_host_layers == 0 && i.host_layers == 0 && i.n_expert_layers == LAYERS);
    gguf_free(file);
}

/* -- what goes wrong --------------------------------------------------------------------------- */

/* Rows are not the host's, or it takes the picks of others. */
static void spoil(const char *kernel, uint64_t number, void *args) {
    struct hand_over_args *a = args;

    if (strcmp(kernel, "hand_over") == 0)
        a->n_used = 1;
}

/* A device that computes something else is refused when it is opened. */
Test(cuda_host_experts, what_is_handed_over_is_proved) {
    struct engine_info i;
    struct err err = {0};
    char path[64];

    make_small(path);
    cr_assert(gguf_open(&file, path, &err) == 0);
    setenv("WEFT_CUDA_CHECK", "1", 1);
    struct engine_opts o = opts("cuda", 1);
    o.max_rows = 32;
    cr_expect(try_open(&o, &i, &err) == 0, "%s", err.message);
    cr_expect(strstr(i.note, "without") == NULL, "%s", i.note);
    fake_find()->on_launch = spoil;
    cr_expect(try_open(&o, &i, &err) < 0 && strstr(err.message, "does not compute"), "%s",
              err.message);
    gguf_free(file);
    unlink(path);
}

/* Opens, computes two rows, one a step. Returns the first error. *n_open: calls up to the steps. */
static int try_steps(uint32_t *n_open, struct err *err) {
    static const int32_t tokens[] = {5, 6};
    static const uint32_t start[2] = {0, 1}, page[1] = {1};
    struct engine_param param = {.top_p = 1, .repetition = 1};
    const struct engine_opts o = opts("cuda", 1);
    struct engine *e = NULL;
    int r = engine_new(&e, &o, err);

    *n_open = fake_find()->n_calls;
    for (uint64_t step = 1; step <= 2 && r == 0; step++) {
        struct engine_seq seq = {.n_rows = 1, .pos0 = (uint32_t)step - 1, .feed = -1};
        struct engine_want want = {.what = WANT_SAMPLE};
        struct engine_batch b = {.step = step,
                                 .n_rows = 1,
                                 .n_seqs = 1,
                                 .n_wants = 1,
                                 .n_params = 1,
                                 .token = tokens + step - 1,
                                 .seq = &seq,
                                 .table[KV_GLOBAL] = {start, page},
                                 .want = &want,
                                 .param = &param};
        struct engine_result result;

        r = engine_launch(e, &b);
        r = r < 0 ? r : engine_seal(e, step);
        r = r < 0 ? r : engine_wait(e, step, &result);
    }
    engine_free(e);
    return r;
}

Test(cuda_host_experts, every_call_may_fail_once) {
    const struct tiny_model m = {.arch = "qwen3moe",
                                 .type = TENSOR_Q8_0,
                                 .n_embd = 64,
                                 .n_ff = 64,
                                 .n_vocab = 40,
                                 .n_head = 2,
                                 .n_head_kv = 1,
                                 .head_dim = 32,
                                 .n_expert = 4,
                                 .n_expert_used = 2};
    struct fake_cuda *fake = fake_find();
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    cr_assert(gguf_open(&file, path, &err) == 0);
    fake->n_calls = 0;
    uint32_t n_open, opened;
    cr_assert(try_steps(&n_open, &err) == 0, "%s", err.message);
    uint32_t n = fake->n_calls;
    for (uint32_t i = 1; i < n; i += i < n_open ? 15 : 1) { /* all of opening's: test_backend.c */
        fake->n_calls = 0;
        fake->fail_at = i;
        fake->sticky = i % 2;
        fake->failed_capture = false;
        err = (struct err){0};
        int r = try_steps(&opened, &err);
        cr_expect(r < 0 || fake->failed_capture, "call %u", i);
        cr_expect(r == 0 || r == -EIO || err.message[0], "call %u: %d without a word", i, r);
        cr_expect(fake->n_live == 0, "call %u: %d left", i, fake->n_live);
    }
    fake->fail_at = 0;
    gguf_free(file);
    unlink(path);
}
