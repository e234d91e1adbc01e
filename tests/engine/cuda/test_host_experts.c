/*
 * Tests experts that the host computes beside a device: logits against the reference backend, the
 * same bits for every division of a sequence into steps, placement, and calls that fail.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/archs.h"
#include "engine/cuda/kernels.h"
#include "engine/picks.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

/* Activations of the host's experts are rounded to eight bits. */
#define NEAR 2.5e-2

/* Gate and up; joined in one tensor, in a branch with norms of its own; with biases and clamped
 * gates; with inputs that are weighed. Some experts of each layer are the host's. */
Test(cuda_host_experts, every_architecture_is_near_the_reference) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3moe", .type = TENSOR_Q4_K, .n_ff = 512, .n_vocab = 64},
        {.arch = "gpt-oss", .type = TENSOR_MXFP4, .n_embd = 64, .n_ff = 64, .n_vocab = 64},
        {.arch = "llama", .type = TENSOR_Q6_K, .n_expert = 4, .n_expert_used = 2, .n_vocab = 64},
        {.arch = "llama4", .type = TENSOR_Q8_0, .n_vocab = 64},
    };

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        char path[64];

        tiny_model_temp(&models[i], path);
        int fd = ways_placed(path, 2, true, false);
        ways_near_reference_beside(models[i].arch, path, NEAR, 2, fd);
        close(fd);
        unlink(path);
    }
}

/* After a dense layer, with a shared expert; gates and ups in one tensor, in a branch; behind a
 * layer norm; in a latent space, of numbers and widths that differ by layer. All experts of the
 * last layer are the host's. */
Test(cuda_host_experts, golden_files_are_near_the_reference) {
    static const char *const files[] = {"glm4moe-mtp", "gemma4-moe", "cohere2moe",
                                        "nemotron-h-puzzle"};

    for (size_t i = 0; i < FEW(ARRAY_SIZE(files)); i++) {
        char path[1024];

        ways_golden(files[i], path);
        int fd = ways_placed(path, 3, true, true);
        ways_near_reference_beside(files[i], path, NEAR, 2, fd);
        close(fd);
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

static uint32_t n_beside, n_apart, n_sums;

/* on_launch: rows must reach the host before the device multiplies its experts, so that both work
 * at the same time; the sum must wait for both. Layers whose experts are all the host's launch no
 * products. */
static void see_order(const char *kernel, uint64_t number, void *args) {
    bool beside = fake_find()->beside;

    (void)number;
    (void)args;
    if (strncmp(kernel, "expert_", 7) == 0) {
        n_beside += beside;
        n_apart += !beside;
    }
    bool is_sum = strcmp(kernel, "combine") == 0;

    cr_expect_eq(beside && (is_sum || strcmp(kernel, "hand_over") == 0), 0, "%s", kernel);
    n_sums += is_sum;
}

Test(cuda_host_experts, a_sequence_is_the_same_whatever_the_batch) {
    char path[64];

    make_small(path);
    for (uint32_t n = 1; n <= 2; n++) { /* all experts of the second layer, and some of both */
        int fd = ways_placed(path, 1 + n, true, n == 1);
        struct way way = ways_in_batches[2 - n];

        way.placed_fd = fd;
        way.n_threads = 1 + n;
        fake_find()->n_host_calls = fake_find()->n_graph_launches = 0;
        fake_find()->on_launch = see_order;
        n_beside = n_apart = n_sums = 0;
        ways_compare(path, &way, 1);
        fake_find()->on_launch = NULL;
        cr_expect(n_beside >= n_sums && n_apart == 0, "%u, %u, %u", n_beside, n_apart, n_sums);
        cr_expect(fake_find()->n_host_calls > 0 && fake_find()->n_graph_launches > 0);
        close(fd);
    }
    unlink(path);
}

/* -- placement --------------------------------------------------------------------------------- */

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

/* Opens and closes the model; *out gets its identity. */
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

/* The host gets as few experts as leave room for the pages; the note says so, and the engine's
 * identity differs from that of another placement. */
Test(cuda_host_experts, as_few_as_leave_room_are_placed) {
    const size_t reserve = 256 << 20, one = 3 * 256 * 512, layer = 16 * one;
    struct engine_info i, before;
    struct err err = {0};

    open_layers();
    struct engine_opts o = opts("cuda", 0), chosen = opts("cuda", ENGINE_HOST_AUTO);
    cr_assert(try_open(&o, &i, &err) == 0, "%s", err.message);
    cr_expect(i.n_expert_layers == LAYERS && i.n_host_layers == 0 && !i.note[0]);
    size_t all = fake_find()->peak_bytes + reserve + (1 << 20);
    for (uint32_t n = 0; n <= LAYERS; n += 2) {
        fake_find()->bytes = all - n * layer + one / 4;
        before = i;
        cr_assert(try_open(&chosen, &i, &err) == 0, "%u: %s", n, err.message);
        cr_expect(i.n_host_experts <= 16 * n && i.n_host_experts + 16 > 16 * n, "%u: %u", n,
                  i.n_host_experts);
        cr_expect(i.host_expert_bytes == i.n_host_experts * (one / 32 * 34), "%u", n);
        bool same = memcmp(i.sources, before.sources, sizeof(i.sources)) == 0;
        cr_expect(same == (n == 0), "%u", n);
        if (n == 0)
            continue;
        cr_expect(strstr(i.note, "in host memory") != NULL, "%s", i.note);
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
    cr_expect(strstr(err.message, "32 of 64 experts") != NULL, "%s", err.message);
    gguf_free(file);
}

/* the CPU backend has nothing to place */
Test(cuda_host_experts, without_a_device_nothing_is_placed) {
    struct engine_info i;
    struct err err = {0};

    open_layers();
    struct engine_opts o = opts("cpu", 2);
    cr_assert(try_open(&o, &i, &err) == 0, "%s", err.message);
    cr_expect(i.n_host_layers == 0 && i.n_host_experts == 0 && i.n_expert_layers == LAYERS);
    gguf_free(file);
}

/* -- dense FFNs -------------------------------------------------------------------------------- */

static const struct tiny_model dense = {
    .type = TENSOR_Q8_0, .n_layer = LAYERS, .n_ff = 512, .n_vocab = 64};

/* The FFN of the last layer, also with a norm after it. The host computes once for each layer and
 * step. */
Test(cuda_host_experts, dense_ffns_are_near_the_reference) {
    static const char *const archs[] = {"llama", "gemma4"};
    static const struct way way = {.chunk = 24, .forced = true, .fuse = "1", .device_layers = 1};

    for (size_t i = 0; i < FEW(ARRAY_SIZE(archs)); i++) {
        const struct tiny_model m = {
            .arch = archs[i], .type = TENSOR_Q8_0, .n_ff = 512, .n_vocab = 64};
        struct trace right = {0}, got = {0};
        char path[64];

        tiny_model_temp(&m, path);
        ways_run(path, "reference", &way, &right);
        fake_find()->n_host_calls = 0;
        ways_run(path, "cuda", &way, &got);
        cr_expect(fake_find()->n_host_calls == 2 + OUTPUTS - 1, "%s: %lu", archs[i],
                  fake_find()->n_host_calls);
        double d = ways_distance(&got, &right);
        cr_expect(d > 0 && d < NEAR, "%s: %g", archs[i], d);
        free(right.logits);
        free(got.logits);
        unlink(path);
    }
}

/* Alone, in company, with graphs, and in another order of threads. */
Test(cuda_host_experts, dense_ffns_are_the_same_whatever_the_batch) {
    struct way ways[2] = {ways_in_batches[0], ways_in_batches[1]};
    char path[64];

    tiny_model_temp(&dense, path);
    fake_find()->n_graph_launches = 0;
    for (int i = 0; i < 2; i++) {
        ways[i].device_layers = 2;
        ways[i].n_threads = 1 + (uint32_t)i;
    }
    ways_compare(path, ways, 2);
    cr_expect(fake_find()->n_graph_launches > 0);
    unlink(path);
}

/* The host gets as few FFNs as leave room for the pages; the engine's identity differs from that of
 * another placement. A worker's successor keeps the placement, whatever room there is then. */
Test(cuda_host_experts, as_few_dense_ffns_as_leave_room_are_placed) {
    const size_t reserve = 256 << 20, layer = 3 * 256 * 512 / 32 * 34;
    struct engine_info i, before;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&dense, path);
    cr_assert(gguf_open(&file, path, &err) == 0);
    struct engine_opts o = opts("cuda", 0), chosen = o;
    chosen.device_layers = ENGINE_HOST_AUTO;
    cr_assert(try_open(&o, &i, &err) == 0, "%s", err.message);
    size_t all = fake_find()->peak_bytes + reserve + (1 << 20);
    for (uint32_t n = 0; n < LAYERS; n++) {
        fake_find()->bytes = all - n * layer + layer / 4;
        before = i;
        cr_assert(try_open(&chosen, &i, &err) == 0, "%u: %s", n, err.message);
        cr_expect(i.n_host_ffn <= n && i.n_host_ffn + 3 >= n, "%u: %u", n, i.n_host_ffn);
        cr_expect(i.host_ffn_bytes == i.n_host_ffn * layer, "%lu", i.host_ffn_bytes);
        bool same = memcmp(i.sources, before.sources, sizeof(i.sources)) == 0;
        cr_expect(same == (i.n_host_ffn == before.n_host_ffn), "%u", n);
        bool told = strstr(i.note, "in host memory") != NULL;
        cr_expect(told == (i.n_host_ffn > 0), "%s", i.note);
    }
    cr_expect(i.n_host_ffn > 0);
    o.device_layers = LAYERS - i.n_host_ffn + 1;
    cr_expect(try_open(&o, &i, &err) == -ENOMEM && strstr(err.message, "does not fit"), "%s",
              err.message);
    o.device_layers = 1;
    o.experts_fd = memfd_create("experts", MFD_CLOEXEC);
    cr_expect(try_open(&o, &i, &err) == 0 && i.n_host_ffn == LAYERS - 1, "%s", err.message);
    fake_find()->bytes = (size_t)1 << 32;
    chosen.experts_fd = o.experts_fd;
    chosen.keeps_place = true;
    cr_expect(try_open(&chosen, &i, &err) == 0 && i.n_host_ffn == LAYERS - 1, "%s", err.message);
    chosen.keeps_place = false;
    cr_expect(try_open(&chosen, &i, &err) == 0 && i.n_host_ffn == 0, "%s", err.message);
    close(o.experts_fd);
    gguf_free(file);
    unlink(path);
}

/* Models whose FFNs have no norm of their own are not divided; and the host takes no more than it
 * has room for. */
Test(cuda_host_experts, what_the_host_cannot_have_is_refused) {
    const struct tiny_model m = {.arch = "olmo2", .n_vocab = 64};
    struct engine_info i;
    struct err err = {0};
    char path[2][64];

    tiny_model_temp(&m, path[0]);
    cr_assert(gguf_open(&file, path[0], &err) == 0);
    struct engine_opts o = opts("cuda", 0);
    o.device_layers = 1;
    cr_expect(try_open(&o, &i, &err) == -EINVAL, "%s", err.message);
    cr_expect(strstr(err.message, "the FFNs of olmo2 models") != NULL, "%s", err.message);
    o.device_layers = ENGINE_HOST_AUTO;
    cr_expect(try_open(&o, &i, &err) == 0 && i.n_host_ffn == 0, "%s", err.message);
    gguf_free(file);
    tiny_model_temp(&dense, path[1]);
    cr_assert(gguf_open(&file, path[1], &err) == 0);
    o.file = file;
    o.device_layers = 1;
    o.memory = 1 << 20;
    cr_expect(try_open(&o, &i, &err) == -ENOMEM, "%s", err.message);
    cr_expect(strstr(err.message, "the FFNs of 3 of 4 layers") != NULL, "%s", err.message);
    gguf_free(file);
    unlink(path[0]);
    unlink(path[1]);
}

/* -- failures ---------------------------------------------------------------------------------- */

/* Faults: only the first pick, or only half of the values, of a row is handed over. */
static void spoil(const char *kernel, uint64_t number, void *args) {
    struct hand_over_args *a = args;

    if (strcmp(kernel, "hand_over") != 0)
        return;
    if (a->n_used > 0)
        a->n_used = 1;
    else
        a->n /= 2;
}

/* A device with wrong results is refused when it is opened. */
Test(cuda_host_experts, what_is_handed_over_is_proved) {
    struct engine_info i;
    struct err err = {0};
    char path[64];

    make_small(path);
    cr_assert(gguf_open(&file, path, &err) == 0);
    setenv("WEFT_CUDA_CHECK", "1", 1);
    struct engine_opts o = opts("cuda", 1);
    o.max_rows = 32;
    o.experts_fd = ways_placed(path, 2, true, false);
    o.keeps_place = true;
    cr_expect(try_open(&o, &i, &err) == 0, "%s", err.message);
    cr_expect(strstr(i.note, "without") == NULL, "%s", i.note);
    fake_find()->on_launch = spoil;
    close(o.experts_fd);
    o.experts_fd = 0;
    o.keeps_place = false;
    cr_expect(try_open(&o, &i, &err) < 0 && strstr(err.message, "computes wrong results"), "%s",
              err.message);
    gguf_free(file);
    unlink(path);
}

Test(cuda_host_experts, what_is_handed_over_for_a_dense_ffn_is_proved) {
    struct engine_info i;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&dense, path);
    cr_assert(gguf_open(&file, path, &err) == 0);
    setenv("WEFT_CUDA_CHECK", "1", 1);
    struct engine_opts o = opts("cuda", 0);
    o.max_rows = 32;
    o.device_layers = 2;
    cr_expect(try_open(&o, &i, &err) == 0, "%s", err.message);
    cr_expect(strstr(i.note, "without") == NULL, "%s", i.note);
    fake_find()->on_launch = spoil;
    cr_expect(try_open(&o, &i, &err) < 0 && strstr(err.message, "computes wrong results"), "%s",
              err.message);
    gguf_free(file);
    unlink(path);
}

/* Returns options with the placement file @fd. */
static struct engine_opts placed(int fd) {
    struct engine_opts o = opts("cuda", 1);

    o.experts_fd = fd;
    o.keeps_place = true;
    return o;
}

/* The file of counts must have the picks of each row and layer, including those of the host's
 * experts. */
Test(cuda_host_experts, picks_are_counted) {
    uint32_t n_open;
    struct engine_info info;
    uint64_t sum = 0, hosts = 0;
    struct err err = {0};
    struct picks k;
    char path[64];
    const struct tiny_model small = {.arch = "qwen3moe",
                                     .type = TENSOR_Q8_0,
                                     .n_embd = 64,
                                     .n_ff = 64,
                                     .n_vocab = 64,
                                     .n_expert = 6,
                                     .n_expert_used = 3};

    tiny_model_temp(&small, path);
    int fd = ways_placed(path, 2, true, false);
    cr_assert(gguf_open(&file, path, &err) == 0);
    const struct engine_opts o = placed(fd);
    cr_assert(ways_try_steps(&o, PICKS_STEPS, &n_open, &info, &err) == 0, "%s", err.message);
    cr_expect(info.n_picks == PICKS_STEPS * 2 * 3, "%lu", info.n_picks);
    picks_open(&k, fd, file, &(struct model_shape){.n_layer = 2, .n_expert = 6});
    cr_assert(picks_placed(&k) != NULL);
    for (uint32_t i = 0; i < 12; i++) {
        sum += picks_counts(&k)[i];
        if ((i % 6 + i / 6) % 2 == 0)
            hosts += picks_counts(&k)[i];
        cr_expect(picks_counts(&k)[i] <= PICKS_STEPS);
    }
    cr_expect(sum == info.n_picks && hosts == info.n_host_picks && hosts > 0 && hosts < sum);
    picks_close(&k);
    gguf_free(file);
    close(fd);
    unlink(path);
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
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    cr_assert(gguf_open(&file, path, &err) == 0);
    int fd = ways_placed(path, 2, true, false);
    const struct engine_opts o = placed(fd);
    ways_fail_calls(&o, 3);
    close(fd);
    gguf_free(file);
    unlink(path);
}
