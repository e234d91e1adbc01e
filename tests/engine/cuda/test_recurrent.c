/*
 * Tests models with recurrent layers on the CUDA backend, without a device: logits against the
 * reference backend, the same bits for every division of a sequence into steps, and states that are
 * saved and loaded.
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
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

/* Returns what follows @name in a file of @n bytes: of a key its type and its value; of a tensor
 * the number of its dimensions (4 bytes), these (8 each), its type (4), the offset of its data. */
static uint8_t *behind_name(uint8_t *bytes, size_t n, const char *name) {
    uint8_t text[8 + 64];
    uint64_t len = strlen(name);

    cr_assert(len <= 64);
    memcpy(text, &len, 8);
    memcpy(text + 8, name, len);
    uint8_t *at = memmem(bytes, n, text, 8 + len);
    cr_assert(at, "%s", name);
    return at + 8 + len;
}

/* Writes PLaMo 2's golden model with states of @n_state values to @out. Returns its size. */
static size_t shrink_states(const struct gguf *g, uint32_t n_state, uint8_t *out) {
    const uint8_t *from = gguf_tensor(g, 0)->data;
    size_t head = gguf_tensor(g, 0)->file_offset, at = 0;

    memcpy(out, from - head, head);
    memcpy(behind_name(out, head, "plamo2.ssm.state_size") + 4, &n_state, 4);
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        uint8_t *entry = behind_name(out, head, t->name);
        uint64_t rows = t->ne[1], columns = t->ne[0], dim;
        uint32_t n_dims;

        memcpy(&n_dims, entry, 4);
        if (strstr(t->name, "ssm_x."))
            rows -= 2 * (16 - n_state);
        if (strstr(t->name, "ssm_b_norm") || strstr(t->name, "ssm_c_norm"))
            columns = n_state;
        for (uint32_t d = 0; d < MIN(n_dims, 2u); d++) {
            dim = d ? rows : columns;
            memcpy(entry + 4 + 8 * d, &dim, 8);
        }
        memcpy(entry + 4 + 8 * n_dims + 4, &at, 8);
        cr_assert(t->format->type == TENSOR_F32 && t->ne[2] == 1);
        memcpy(out + head + at, t->data, 4 * rows * columns);
        at += round_up(4 * rows * columns, 32);
    }
    return head + at;
}

/* Opens the file, of @n bytes, on @backend. Returns the reason of a refusal, or "". */
static const char *reason_on(const char *backend, const uint8_t *bytes, size_t n) {
    char path[] = "/tmp/weft-states-XXXXXX";
    const struct driver_opts o = {.backend = backend, .path = path, .max_rows = 8, .n_pages = 4};
    static struct err err;
    struct driver d;
    int fd = mkstemp(path);

    err = (struct err){0};
    cr_assert(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    if (driver_open(&d, &o, &err) == 0)
        driver_close(&d);
    close(fd);
    unlink(path);
    return err.message;
}

/* The CPU has lanes for rows of a state, the device a thread for each of its values. */
Test(cuda_recurrent, states_of_heads_that_16_does_not_divide_are_left_to_the_cpu) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    static uint8_t bytes[4 << 20];
    char path[TEST_DATA_PATH];

    ways_golden("plamo2", path);
    cr_assert_eq(gguf_open(&g, path, NULL), 0);
    cr_assert_lt(gguf_bytes(g), sizeof(bytes));
    size_t n = shrink_states(g, 8, bytes);
    cr_expect_str_empty(reason_on("cpu", bytes, n));
    const char *reason = reason_on("cuda", bytes, n);
    cr_expect(strstr(reason, "does not compute Mamba-1 states of heads of other than 16, 32, 64 or "
                             "128 values, which this plamo2 model has"),
              "%s", reason);
}
