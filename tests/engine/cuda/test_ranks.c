/*
 * Tests emulated devices that divide the matrices of a model (engine/cuda/ranks/ranks.c): they must
 * give the bits of one device, whichever is ahead of the others. Also tests devices that fail,
 * hang, or are too small.
 */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/gguf.h"
#include "base/mathx.h"
#include "base/rng.h"
#include "engine/cuda/kernels.h"
#include "tests/engine/cuda/several.h"
#include "tests/support/synth/synth.h"
#include "tests/support/test_data.h"

/* One narrow layer with two key heads. */
static void two_heads(char path[64]) {
    const struct tiny_model m = {.type = TENSOR_Q8_0,
                                 .n_layer = 1,
                                 .n_embd = 64,
                                 .n_ff = 64,
                                 .n_vocab = 40,
                                 .head_dim = 32,
                                 .max_context = 600};

    tiny_model_temp(&m, path);
}

/* Two layers of latent attention with four heads, experts in the second one. Queries come from a
 * latent vector of @q_rank values, or from the row itself if it is 0. */
static void latent(char path[64], uint32_t q_rank) {
    char shape[200];
    const char *argv[] = {"synth", "--shape", shape, "--format", "Q8_0", "-o", path, NULL};

    snprintf(shape, sizeof(shape),
             "glm-4.7-flash,n_layer=2,n_embd=64,n_head=4,head_dim=64,n_rot=32,q_rank=%u,kv_rank=64,"
             "v_dim=32,n_ff=64,n_shared=64,n_dense=64,n_vocab=300,n_expert=4,n_used=2",
             q_rank);
    snprintf(path, 64, "/tmp/weft-ranks-%d.gguf", (int)getpid());
    cr_assert(synth_main(ARRAY_SIZE(argv) - 1, (char **)argv) == 0);
}

static void keep_many(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                      const float *logits) {
    ((struct driver_out *)ctx)[pos] = (struct driver_out){out->token, out->logprob, out->digest};
}

/* Widths that do not divide into whole tiles, biases, norms of heads, tied outputs, both types of
 * pages; kernels launched early; experts for few and for many rows, with biases, with windows and
 * sinks, beside shared ones, in one tensor; norms after branches; delta nets; with different
 * devices ahead. */
Test(cuda_ranks, several_devices_compute_the_bits_of_one) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3", .type = TENSOR_Q4_K, .n_layer = 1, .n_vocab = 301},
        {.arch = "qwen2", .type = TENSOR_Q8_0, .n_embd = 96, .n_ff = 160, .tied = true},
        {.arch = "llama",
         .type = TENSOR_F32,
         .n_embd = 72,
         .n_ff = 90,
         .n_vocab = 41,
         .n_head = 8,
         .n_head_kv = 4,
         .head_dim = 32,
         .n_layer = 2},
        {.arch = "qwen3moe", .type = TENSOR_Q4_K, .n_layer = 1, .n_vocab = 41},
        {.arch = "glm4moe", .type = TENSOR_Q8_0, .n_embd = 64, .n_ff = 64, .n_vocab = 41},
        {.arch = "gpt-oss",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 96,
         .n_vocab = 41,
         .n_expert = 3,
         .n_expert_used = 3},
        {.arch = "gemma4",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 96,
         .n_vocab = 41,
         .n_expert = 5,
         .n_expert_used = 2,
         .n_kv_full = 2},
        {.arch = "qwen35moe",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 32,
         .n_vocab = 41,
         .n_expert = 5,
         .n_expert_used = 2},
        {.arch = "qwen3next",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 32,
         .n_vocab = 41,
         .n_expert = 5,
         .n_expert_used = 2},
        {.arch = "gpt-oss",
         .type = TENSOR_MXFP4,
         .n_embd = 64,
         .n_ff = 64,
         .n_vocab = 41,
         .n_expert = 3,
         .n_expert_used = 3},
    };
    struct fake_cuda *f = fake_find();

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        bool four = models[i].n_head_kv == 4;
        const char *devices = four ? "0,3,1,2" : i % 2 ? "1,0" : "0,1";
        enum engine_kv_type kv = i % 4 == 1   ? ENGINE_KV_Q8_0
                                 : i % 4 == 2 ? ENGINE_KV_Q4_0
                                              : ENGINE_KV_F16;

        f->n_devices = four ? 4 : 2;
        setenv("WEFT_CUDA_EARLY", i % 2 ? "0" : "1", 1);
        several_compare(&models[i], devices, kv);
    }
}

/* Latent attention: queries from a latent vector and from a product that heads divide; after a
 * dense layer, and before experts with a shared one. */
Test(cuda_ranks, heads_of_latent_attention_are_divided) {
    static struct trace one, two;
    struct fake_cuda *f = fake_find();

    f->n_devices = 2;
    for (uint32_t i = 0; i < FEW(2); i++) {
        char path[64];

        latent(path, i == 0 ? 64 : 0);
        f->ahead = 0;
        several_run(path, "0", ENGINE_KV_F16, 1, &one);
        f->ahead = -1;
        several_run(path, "0,1", ENGINE_KV_F16, 1, &two);
        several_expect_equal(&one, &two, &one.at[0][SHORT], i == 0 ? "a vector" : "a product");
        unlink(path);
    }
    f->ahead = 0;
}

/* Chunks of attention with experts whose inputs are weighed; windows with norms after branches. */
Test(cuda_ranks, golden_models_are_divided) {
    static const char *const names[] = {"llama4", "plamo3"};
    static struct trace one, two;
    struct fake_cuda *f = fake_find();

    f->n_devices = 2;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        char path[TEST_DATA_PATH];

        test_data_file(path, "golden", names[i], ".gguf");
        f->ahead = 0;
        several_run(path, "0", ENGINE_KV_F16, SEQS, &one);
        f->ahead = -1;
        several_run(path, "0,1", ENGINE_KV_F16, SEQS, &two);
        several_expect_equal(&one, &two, &one.at[0][PROMPT], names[i]);
    }
    f->ahead = 0;
}

/* -- beside the host --------------------------------------------------------------------------- */

/* FFNs that the host computes, between layers that are on the devices; norms after branches; a norm
 * after the last one. */
Test(cuda_ranks, ffns_of_the_host_are_those_beside_one_device) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3", .type = TENSOR_Q4_K, .n_layer = 3, .n_vocab = 41},
        {.arch = "gemma4",
         .type = TENSOR_Q8_0,
         .n_layer = 2,
         .n_embd = 64,
         .n_ff = 96,
         .n_vocab = 41,
         .n_kv_full = 2},
        {.arch = "qwen35", .type = TENSOR_Q8_0, .n_embd = 64, .n_ff = 64, .n_vocab = 41},
    };
    static struct trace all, one, two;
    struct fake_cuda *f = fake_find();

    f->n_devices = 2;
    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        char path[64];

        tiny_model_temp(&models[i], path);
        several_run(path, "0", ENGINE_KV_F16, SEQS, &all);
        several_device_layers = 1;
        several_run(path, "1", ENGINE_KV_F16, SEQS, &one);
        cr_expect(several_difference(&all, &one) != UINT32_MAX, "%s", models[i].arch);
        f->ahead = -1;
        f->n_host_calls = f->n_graph_launches = 0;
        several_run(path, "0,1", ENGINE_KV_F16, SEQS, &two);
        several_expect_equal(&one, &two, &one.at[0][PROMPT], models[i].arch);
        cr_expect(f->n_host_calls > 0 && f->n_graph_launches > 0);
        f->ahead = 0;
        several_device_layers = 0;
        unlink(path);
    }
}

/* -- meetings ---------------------------------------------------------------------------------- */

/* Waits in a step: two for each exchange of o, x, h, x, and one in which the first device gets the
 * others' logits, which the first chunk does not need. Before a step that is no graph the others
 * wait once for the samples of the first device, which they embed. */
enum { STEP = 9, BEGIN = 1, FIRST_CHUNK = BEGIN + STEP - 1 };

/* Leaves out waits of a step that is noted, of the graph that is captured from the next one, and of
 * launches of that graph. Without the last wait of the first device for the others no graph is
 * captured. */
Test(cuda_ranks, a_wait_that_is_missing_in_a_graph_is_seen) {
    enum { READS = STEP, CAPTURE = READS + 2, NOTED = FIRST_CHUNK + BEGIN };
    enum { CAPTURED = NOTED + READS + CAPTURE + BEGIN + READS };
    enum { LATER = CAPTURED + CAPTURE, LAST = LATER + 2 * (OUTPUTS - 2) };
    static struct trace right, same;
    struct fake_cuda *f = fake_find();
    char path[64];

    two_heads(path);
    f->n_devices = 2;
    setenv("WEFT_CUDA_BESIDE", "0", 1); /* waits for other devices alone */
    f->n_waits = 0;
    several_run(path, "0,1", ENGINE_KV_F16, 1, &right);
    cr_expect(f->n_waits == LAST, "%u", f->n_waits);
    cr_expect(f->n_graph_launches == OUTPUTS - 2);
    for (uint32_t i = 1; i <= FEW(READS); i++) {
        cr_expect(several_misses(path, false, NOTED + i, &right), "wait %u", i);
        cr_expect(several_misses(path, false, CAPTURED + 1 + i, &right), "graph, wait %u", i);
    }
    for (uint32_t i = LATER + 1; i < FEW(LAST); i++)
        cr_expect(several_misses(path, false, i, &right), "wait %u", i);
    f->n_waits = 0;
    f->n_graph_launches = 0;
    f->forget_wait = LATER;
    several_run(path, "0,1", ENGINE_KV_F16, 1, &same);
    cr_expect(f->n_graph_launches == 0 && several_difference(&right, &same) == UINT32_MAX);
    f->forget_wait = 0;
    unlink(path);
}

/* The third step that decodes gets its token from the second one, which is still in flight. */
Test(cuda_ranks, a_wait_for_samples_that_is_missing_is_seen) {
    enum { BEFORE = FIRST_CHUNK + 3 * (BEGIN + STEP) };
    static struct trace right;
    struct fake_cuda *f = fake_find();
    char path[64];

    setenv("WEFT_CUDA_GRAPHS", "0", 1);
    two_heads(path);
    f->n_devices = 2;
    several_run(path, "0,1", ENGINE_KV_F16, 1, &right);
    cr_expect(several_misses(path, false, BEFORE + BEGIN, &right));
    unlink(path);
}

/* A page in host memory, and so on disk, must not depend on the number of devices. With latent
 * attention each device has the whole page, and the first one writes it. */
Test(cuda_ranks, pages_go_to_the_host_and_back) {
    fake_find()->n_devices = 2;
    setenv("WEFT_CUDA_CHECK", "1", 1); /* with self-test and proof */
    for (int i = 0; i < FEW(2); i++) {
        struct outcome one = {0}, two = {0};
        char path[64];

        if (i)
            latent(path, 64);
        else
            two_heads(path);
        several_try_both(path, true, &one, &two);
        cr_expect(strcmp(one.isa, "sm_90") == 0 && strcmp(two.isa, "sm_90 x2") == 0, "%s", two.isa);
        unlink(path);
    }
}

/* Runs self-test and proof; pages in host memory must be those of one device. */
Test(cuda_ranks, ffns_of_the_host_are_proved) {
    struct outcome one = {0}, two = {0};
    char path[64];

    tiny_model_temp(&several_dense, path);
    fake_find()->n_devices = 2;
    setenv("WEFT_CUDA_CHECK", "1", 1);
    several_device_layers = 1;
    several_try_both(path, true, &one, &two);
    cr_expect(strstr(two.note, "the FFNs of the last 1 of 2 layers are in host memory") != NULL,
              "%s", two.note);
    cr_expect(strstr(two.note, "without") == NULL, "%s", two.note);
    several_device_layers = 0;
    unlink(path);
}

Test(cuda_ranks, states_go_to_the_host_and_back) {
    fake_find()->n_devices = 2;
    several_move_states();
}

enum { MANY = 140 };

/* More wants than rows of logits in one round: ranks compute them in rounds. */
Test(cuda_ranks, many_wants_are_sampled_in_rounds) {
    static struct many { struct driver_out at[MANY]; } one, two;
    struct rng rng = {5};
    int32_t prompt[MANY];
    char path[64];

    two_heads(path);
    fake_find()->n_devices = 2;
    for (uint32_t i = 0; i < MANY; i++)
        prompt[i] = (int32_t)rng_below(&rng, 40);
    for (int ahead = 0; ahead <= FEW(2); ahead++) {
        struct driver_opts o = {.backend = "cuda",
                                .devices = ahead ? "0,1" : "0",
                                .path = path,
                                .max_rows = MANY,
                                .on_out = keep_many,
                                .ctx = ahead ? two.at : one.at};
        struct err err = {0};
        struct driver d;

        fake_find()->ahead = ahead;
        cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
        struct driver_seq *s = driver_add(&d, prompt, MANY, 1, NULL);
        s->every_row = true;
        driver_prefill(&d, s, 0);
        driver_drop(&d, s);
        driver_close(&d);
        cr_expect(one.at[MANY - 1].digest != 0);
        cr_expect(ahead == 0 || memcmp(&one, &two, sizeof(one)) == 0, "ahead %d", ahead);
    }
    fake_find()->ahead = 0;
    unlink(path);
}

static int unit[64];
static uint32_t n_units;

static void keep_unit(const char *kernel, uint64_t number, void *args) {
    if (strcmp(kernel, "scale_tiles") == 0 && n_units < ARRAY_SIZE(unit))
        unit[n_units++] = ((struct scale_args *)args)->unit;
}

/* Makes the first rows of a matrix, which the first rank gets, 64 times as large. */
static void enlarge(const char *path, const char *name) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct err err = {0};

    cr_assert(gguf_open(&file, path, &err) == 0);
    const struct tensor *t = gguf_tensor(file, 0);
    for (uint64_t i = 0; strcmp(t->name, name) != 0; i++)
        t = gguf_tensor(file, i);
    int fd = open(path, O_RDWR);
    for (size_t at = 0; at < t->n_bytes / 2; at += t->format->block_bytes) {
        uint16_t half;

        memcpy(&half, t->data + at, sizeof(half));
        half = mx_float_to_half(64 * mx_half_to_float(half));
        cr_assert(pwrite(fd, &half, sizeof(half), (off_t)(t->file_offset + at)) == sizeof(half));
    }
    close(fd);
}

/* The whole tensor decides which scales are too small for half precision, not a rank's part. */
Test(cuda_ranks, a_matrix_has_one_unit) {
    static struct trace one, two;
    char path[64];

    two_heads(path);
    enlarge(path, "blk.0.ffn_up.weight");
    fake_find()->n_devices = 2;
    several_run(path, "0", ENGINE_KV_F16, 1, &one);
    fake_find()->on_launch = keep_unit;
    several_run(path, "0,1", ENGINE_KV_F16, 1, &two);
    fake_find()->on_launch = NULL;
    cr_expect(several_difference(&one, &two) == UINT32_MAX);
    cr_expect(n_units == 2 * 8, "q, k, v, o, gate, up, down, output: %u", n_units);
    for (uint32_t i = 0; i + 1 < n_units; i += 2)
        cr_expect(unit[i] == unit[i + 1], "matrix %u: %d, %d", i / 2, unit[i], unit[i + 1]);
    unlink(path);
}

/* -- faults ------------------------------------------------------------------------------------ */

/* The model has every kind of layer whose results ranks exchange: attention, a delta net, experts
 * and a shared expert. */
Test(cuda_ranks, every_call_may_fail_once) {
    const struct tiny_model m = {.arch = "qwen35moe",
                                 .type = TENSOR_Q8_0,
                                 .n_embd = 64,
                                 .n_ff = 32,
                                 .n_vocab = 40,
                                 .head_dim = 32,
                                 .n_expert = 3,
                                 .n_expert_used = 2};
    char path[64];

    tiny_model_temp(&m, path);
    several_fail_calls(path, 1, 8, 50);
    unlink(path);
}

Test(cuda_ranks, every_call_may_fail_once_beside_the_host) {
    char path[64];

    tiny_model_temp(&several_dense, path);
    several_device_layers = 1;
    several_fail_calls(path, 1, 9, 30);
    several_device_layers = 0;
    unlink(path);
}

Test(cuda_ranks, a_device_that_hangs_is_given_up) {
    char path[64];

    two_heads(path);
    several_hang(path);
    unlink(path);
}

/* -- sizes and refusals ------------------------------------------------------------------------ */

/* except for pages that each device has whole */
Test(cuda_ranks, memory_adds_up) {
    struct fake_cuda *f = fake_find();
    struct err err = {0};
    char path[64];

    two_heads(path);
    f->n_devices = 2;
    f->bytes = (size_t)1 << 30;
    uint32_t one = several_pages(path, "0", &err), two = several_pages(path, "0,1", &err);
    cr_expect(one > 1000 && two > one / 10 * 19, "%u, %u", one, two);
    unlink(path);
    latent(path, 64);
    one = several_pages(path, "0", &err);
    two = several_pages(path, "0,1", &err);
    cr_expect(one > 1000 && two >= one && two < one / 10 * 11, "latent: %u, %u", one, two);
    unlink(path);
}

/* Two devices have room for more FFNs than one; the host has the others. */
Test(cuda_ranks, layers_add_up) {
    const struct tiny_model m = {
        .type = TENSOR_Q8_0, .n_layer = 4, .n_ff = 512, .n_vocab = 64, .max_context = 64};
    const size_t ffn = 3 * 256 * 512 / 32 * 34;
    struct fake_cuda *f = fake_find();
    struct err err = {0};
    struct engine_fit one, two;
    char path[64];

    tiny_model_temp(&m, path);
    f->n_devices = 2;
    several_device_layers = ENGINE_HOST_AUTO;
    f->bytes = (size_t)1 << 30;
    cr_assert(several_fit(path, "0", &err).n_host_ffn == 0, "%s", err.message);
    /* the least memory with which one device leaves two FFNs to the host */
    for (size_t step = (size_t)1 << 29; step > ffn / 8; step /= 2) {
        f->bytes -= step;
        one = several_fit(path, "0", &err);
        f->bytes += one.n_pages == 0 || one.n_host_ffn > 2 ? step : 0;
    }
    f->bytes -= ffn / 4;
    one = several_fit(path, "0", &err);
    two = several_fit(path, "0,1", &err);
    cr_expect(one.n_host_ffn == 3 && two.n_host_ffn < 3, "%u, %u: %s", one.n_host_ffn,
              two.n_host_ffn, err.message);
    cr_expect(two.host_ffn_bytes == two.n_host_ffn * ffn);
    several_device_layers = 0;
    unlink(path);
}

/* Refused options: a malformed list, a missing device, heads that do not divide, two kinds of
 * devices, unsupported models. */
Test(cuda_ranks, what_is_not_computed_is_refused_by_name) {
    static const struct {
        const char *arch, *devices, *why;
    } cases[] = {
        {"llama", "0,", "up to 8 different device numbers"},
        {"llama", "0,0", "up to 8 different device numbers"},
        {"llama", "0,9", "CUDA device 9: there are 3"},
        {"llama", "9,0", "CUDA device 9: there are 3"},
        {"llama", "0,1,2", "3 devices for the 2 layers of the model"},
        {"gemma4", "0,1", "2 devices do not divide the 1 key heads of layer 1"},
        {"olmo2", "0,1",
         "does not divide norms over all heads together between devices, and this olmo2"},
    };

    fake_find()->n_devices = 3;
    fake_find()->other_kind = true;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tiny_model m = {.arch = cases[i].arch, .type = TENSOR_Q8_0, .n_layer = 2};
        struct err err = {0};
        struct outcome out;
        char path[64];

        tiny_model_temp(&m, path);
        cr_expect(several_try(path, cases[i].devices, "cuda", &out, &err) < 0, "case %zu", i);
        cr_expect(strstr(err.message, cases[i].why) != NULL, "case %zu: %s", i, err.message);
        cr_expect(fake_find()->n_live == 0);
        unlink(path);
    }
}

Test(cuda_ranks, auto_takes_one_device_where_several_do_not_compute_the_model) {
    struct tiny_model m = {.arch = "olmo2", .type = TENSOR_Q8_0, .n_layer = 2};
    struct outcome out = {0};
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    fake_find()->n_devices = 2;
    cr_assert(several_try(path, "1,0", "auto", &out, &err) == 0, "%s", err.message);
    cr_expect(strcmp(out.isa, "sm_90") == 0, "%s", out.isa);
    cr_expect(strstr(out.note, "one device computes: the cuda backend does not divide norms") !=
                  NULL,
              "%s", out.note);
    unlink(path);
}

/* Each named device is probed before any is opened; `auto` continues with the first one. */
Test(cuda_ranks, a_device_that_is_of_no_use_is_named) {
    struct outcome out = {0};
    struct err err = {0};
    char path[64];

    two_heads(path);
    fake_find()->n_devices = 3;
    fake_find()->no_code = 2;
    cr_expect(several_try(path, "0,2,1", "cuda", &out, &err) < 0);
    cr_expect(strstr(err.message, "no code for CUDA device 1, fake device") != NULL, "%s",
              err.message);
    cr_expect(fake_find()->n_calls < 12, "%u calls", fake_find()->n_calls);
    cr_assert(several_try(path, "0,1", "auto", &out, &err) == 0, "%s", err.message);
    cr_expect(strcmp(out.isa, "sm_90") == 0, "%s", out.isa);
    cr_expect(strstr(out.note, "no code for CUDA device 1") != NULL, "%s", out.note);
    unlink(path);
}

/* Drafting blocks need one device, so the model is served without its block. */
Test(cuda_ranks, blocks_that_draft_are_left_out) {
    struct tiny_model m = {
        .arch = "glm4moe", .type = TENSOR_Q8_0, .n_layer = 1, .n_blocks = 1, .n_vocab = 40};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct engine *e = NULL;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    fake_find()->n_devices = 2;
    cr_assert(gguf_open(&file, path, &err) == 0);
    const struct engine_opts o = {.file = file,
                                  .backend = "cuda",
                                  .devices = "0,1",
                                  .drafts = true,
                                  .n_pages = 4,
                                  .page_tokens = 16,
                                  .max_rows = 16,
                                  .max_seqs = 2,
                                  .max_wants = 16};
    cr_assert(engine_new(&e, &o, &err) == 0, "%s", err.message);
    cr_expect(strstr(engine_info(e)->note, "block is not used for drafts: this backend") != NULL,
              "%s", engine_info(e)->note);
    engine_free(e);
    unlink(path);
}

/* the host would have to compute beside each device */
Test(cuda_ranks, experts_of_the_host_are_for_one_device) {
    struct tiny_model m = {.arch = "qwen3moe", .type = TENSOR_Q8_0, .n_layer = 1};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct engine *e = NULL;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    fake_find()->n_devices = 2;
    cr_assert(gguf_open(&file, path, &err) == 0);
    const struct engine_opts o = {.file = file,
                                  .backend = "cuda",
                                  .devices = "0,1",
                                  .host_experts = 1,
                                  .n_pages = 4,
                                  .page_tokens = 16,
                                  .max_rows = 16,
                                  .max_seqs = 2,
                                  .max_wants = 16};
    cr_expect(engine_new(&e, &o, &err) < 0);
    cr_expect(strstr(err.message, "host-experts cannot be combined") != NULL, "%s", err.message);
    engine_free(e);
    unlink(path);
}
