/*
 * Tests models with mixed or alternating residual streams and a table of n-grams on the CUDA
 * backend, without a device: logits against the reference backend, the same bits for every division
 * of a sequence into steps, and a file that changes while its table is read.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/ngram.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/synth/synth.h"

/* Rows attend to all keys, so that no choice of an indexer depends on the rounding of
 * activations. */
#define SMALL                                                                                      \
    "qwen3.8-flash-next,n_layer=4,n_embd=128,n_head=2,n_kv=1,head_dim=64,n_ff=64,n_shared=64,"     \
    "n_expert=8,n_used=2,n_rot=16,n_key=2,n_value=4,n_state=32,n_low=32,index_dim=32,"             \
    "n_chosen=2048,n_vocab=300,"

/* Writes a model of such a shape. */
static void make_model(char path[64], const char *shape, const char *format) {
    const char *argv[] = {"synth", "--shape", shape, "--format", format, "-o", path, NULL};

    snprintf(path, 64, "/tmp/weft-streams-XXXXXX");
    close(mkstemp(path));
    cr_assert(synth_main(ARRAY_SIZE(argv) - 1, (char **)argv) == 0);
}

/* Four streams, and a number without a kernel instance of its own; a table of floats, and one of
 * blocks. */
Test(cuda_streams, rows_are_near_the_reference) {
    static const char *const models[][2] = {{SMALL "n_table=100", "F16"},
                                            {SMALL "n_table=37,n_stream=3", "F32"},
                                            {SMALL "n_embd=512,n_table=50", "Q8_0"}};

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        char path[64];

        make_model(path, models[i][0], models[i][1]);
        ways_near_reference(models[i][0], path, 2e-2);
        unlink(path);
    }
}

/* Gemma 3n, whose random weights magnify what halves round. */
Test(cuda_streams, alternating_updates_are_as_near_as_rounding_allows) {
    char path[TEST_DATA_PATH];

    ways_golden("gemma3n", path);
    ways_near_halved("gemma3n", path);
    ways_compare(path, ways_in_batches, ARRAY_SIZE(ways_in_batches));
}

/* Tokens before a step come from a state: after a snapshot, a wrong draft, or a sample of the step
 * in flight. */
Test(cuda_streams, a_sequence_is_the_same_whatever_the_batch) {
    char path[TEST_DATA_PATH];

    ways_golden("qwen4exp", path);
    ways_compare(path, ways_back, ARRAY_SIZE(ways_back));
}

/* Experts on the host have no norm before them either. */
Test(cuda_streams, experts_of_the_host_are_near_the_reference) {
    char path[64];

    make_model(path, SMALL "n_table=100", "Q8_0");
    ways_near_reference_beside("experts of the host", path, 2e-2, 2, 0);
    unlink(path);
}

static int open_model(struct engine **e, struct gguf *file, char *devices, struct err *err) {
    const struct engine_opts o = {.file = file,
                                  .backend = "cuda",
                                  .devices = devices,
                                  .page_tokens = 16,
                                  .n_pages = 8,
                                  .max_rows = 16,
                                  .max_seqs = 1,
                                  .max_wants = 1};

    return engine_new(e, &o, err);
}

/* A row of a new sequence. */
static int run_step(struct engine *e, uint64_t step) {
    static const uint32_t start[2] = {0, 1}, page[1] = {3};
    static const int32_t token[1] = {5};
    const struct engine_seq seq = {.n_rows = 1, .feed = -1};
    const struct engine_batch b = {.step = step,
                                   .n_rows = 1,
                                   .n_seqs = 1,
                                   .token = token,
                                   .seq = &seq,
                                   .table[KV_GLOBAL] = {start, page}};
    struct engine_result result;

    return fake_run_step(e, &b, &result);
}

/* Rows of another table would belong to another model. */
Test(cuda_streams, a_step_fails_once_the_file_has_changed) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct engine *e = NULL;
    struct err err = {0};
    char path[64];

    make_model(path, SMALL "n_table=100", "F16");
    cr_assert(gguf_open(&file, path, &err) == 0);
    cr_assert(open_model(&e, file, NULL, &err) == 0, "%s", err.message);
    cr_expect(run_step(e, 1) == 0, "%s", engine_fault(e));
    cr_assert(truncate(path, 4096) == 0);
    cr_expect(run_step(e, 2) == -EIO);
    cr_expect(strstr(engine_fault(e), "the table of n-grams cannot be read"), "%s",
              engine_fault(e));
    engine_free(e);
    cr_expect(fake_find()->n_live == 0);
    unlink(path);
}

/* The table is 160 MiB; the rest of the model takes 1 MiB. */
Test(cuda_streams, the_table_takes_no_memory_of_the_device) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct engine *e = NULL;
    struct err err = {0};
    char path[64];

    make_model(path, SMALL "n_table=640000", "F16");
    cr_assert(gguf_open(&file, path, &err) == 0);
    unlink(path);
    fake_find()->bytes = 400 << 20;
    cr_expect(open_model(&e, file, NULL, &err) == 0, "%s", err.message);
    engine_free(e);
}

/* Reads of rows of the table that are in memory, in the place of the system's. */
static uint32_t n_reads, n_reads_asked; /* all; before the device is asked for tokens */
static bool away;                       /* none of them is in memory */

ssize_t preadv2(int fd, const struct iovec *v, int n, off_t at, int flags) {
    cr_assert(n == 1 && flags == RWF_NOWAIT);
    n_reads++;
    if (!away)
        return pread(fd, v->iov_base, v->iov_len, at);
    errno = EAGAIN;
    return -1;
}

/* Each row comes to all its places, whether it is in memory or not, and is read once. */
Test(cuda_streams, equal_rows_of_the_table_are_read_once) {
    enum { N = 40, ROWS = 25 };
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct err err = {0};
    char path[64];

    make_model(path, SMALL "n_table=100", "F16");
    cr_assert(gguf_open(&file, path, &err) == 0);
    unlink(path);
    const struct tensor *t = gguf_find(file, "per_layer_token_embd.weight");
    cr_assert(t);
    CLEANUP(freep) uint8_t *got = malloc(N * t->row_bytes), *right = malloc(t->row_bytes);
    for (int i = 0; i < 2; i++) {
        struct ngram_find find[N];

        away = i == 1;
        n_reads = 0;
        memset(got, 0, N * t->row_bytes);
        for (uint32_t k = 0; k < N; k++)
            find[k] = (struct ngram_find){.row = 7 * (N - k) % ROWS, .to = k};
        cr_expect(ngram_read_all(file, t, find, N, got));
        cr_expect_eq(n_reads, ROWS);
        for (uint32_t k = 0; k < N; k++) {
            cr_assert(ngram_read(file, t, 7 * (N - k) % ROWS, right));
            cr_expect(memcmp(got + k * t->row_bytes, right, t->row_bytes) == 0, "place %u", k);
        }
        find[0] = (struct ngram_find){.row = UINT32_MAX};
        cr_expect(!ngram_read_all(file, t, find, 1, got));
    }
}

/* on_launch of fake_api.h. */
static void count_asked(const char *kernel, uint64_t number, void *args) {
    if (strcmp(kernel, "ngram_ask") == 0)
        n_reads_asked = n_reads;
}

/* Two chunks of a prompt, the second one launched while the first one runs: what it reads is not
 * what the first one uploads. */
Test(cuda_streams, rows_of_a_prompt_are_read_while_the_device_computes) {
    static const uint32_t start[2] = {0, 2}, page[2] = {3, 4};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct engine *e = NULL;
    struct err err = {0};
    int32_t token[16];
    char path[64];

    make_model(path, SMALL "n_table=5000", "F16");
    cr_assert(gguf_open(&file, path, &err) == 0);
    unlink(path);
    cr_assert(open_model(&e, file, NULL, &err) == 0, "%s", err.message);
    fake_find()->on_launch = count_asked;
    for (uint32_t i = 0; i < 2; i++) {
        const struct engine_seq seq = {.n_rows = 16, .pos0 = 16 * i, .feed = -1};
        const struct engine_batch b = {.step = 1 + i,
                                       .n_rows = 16,
                                       .n_seqs = 1,
                                       .token = token,
                                       .seq = &seq,
                                       .table[KV_GLOBAL] = {start, page}};

        for (int32_t k = 0; k < 16; k++)
            token[k] = 16 * (int32_t)i + k;
        n_reads = 0;
        cr_assert(engine_launch(e, &b) == 0 && engine_seal(e, 1 + i) == 0, "%s", engine_fault(e));
        cr_expect(n_reads > 0 && 3 * n_reads_asked > 2 * n_reads, "%u of %u reads", n_reads_asked,
                  n_reads);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_result result;

        cr_expect(engine_wait(e, 1 + i, &result) == 0, "%s", engine_fault(e));
    }
    fake_find()->on_launch = NULL;
    engine_free(e);
}

/* Devices that divide the layers, and those that divide matrices. */
Test(cuda_streams, several_devices_are_refused_by_name) {
    static const char *const peers[] = {"0", "1"};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    char path[64];
    struct err err = {0};

    make_model(path, SMALL "n_table=100", "F16");
    cr_assert(gguf_open(&file, path, &err) == 0);
    unlink(path);
    fake_find()->n_devices = 2;
    for (size_t i = 0; i < ARRAY_SIZE(peers); i++) {
        struct engine *e = NULL;

        setenv("WEFT_CUDA_PEERS", peers[i], 1);
        cr_expect(open_model(&e, file, "0,1", &err) < 0);
        cr_expect(strstr(err.message, "does not divide residual streams between devices"), "%s",
                  err.message);
    }
}

/* Opens with self-test and proof, which must find each kernel that does nothing. */
Test(cuda_streams, updates_that_are_wrong_are_refused) {
    static const char *const kernels[] = {"alt_predict", "alt_begin", "alt_correct",
                                          "alt_end",     "laurel",    "thin_gates"};
    struct fake_cuda *fake = fake_find();
    char path[TEST_DATA_PATH];

    ways_golden("gemma3n", path);
    cr_assert(ways_open(path));
    for (size_t i = 0; i < ARRAY_SIZE(kernels); i++) {
        fake->broken = kernels[i];
        cr_expect(!ways_open(path), "%s does nothing", kernels[i]);
        fake->broken = NULL;
    }
}

Test(cuda_streams, a_device_that_is_wrong_is_refused) {
    static const char *const kernels[] = {"mix_norm",    "mix_bend",  "mix_mean",
                                          "hc_out",      "ngram_ask", "ngram_decode",
                                          "ngram_weigh", "ngram_add", "ngram_keep"};
    struct fake_cuda *fake = fake_find();
    char path[64];

    make_model(path, SMALL "n_table=100", "F16");
    cr_assert(ways_open(path));
    for (size_t i = 0; i < ARRAY_SIZE(kernels); i += FEWER(1, 3)) {
        fake->broken = kernels[i];
        cr_expect(!ways_open(path), "%s does nothing", kernels[i]);
        fake->broken = NULL;
    }
    fake->faulty = "ngram_ask";
    cr_expect(!ways_open(path));
    fake->faulty = NULL;
    unlink(path);
}
