/*
 * Tests models with compressed keys and blended residual streams on the CUDA backend, without a
 * device. The reference backend gives the expected logits; every division of a sequence into steps
 * must give the same bits.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/synth/synth.h"

enum { LONG = 290 };

Test(cuda_compressed, rows_are_near_the_reference) {
    char path[TEST_DATA_PATH];

    ways_golden("deepseek4", path);
    ways_near_reference("deepseek4", path, 2e-2);
}

/* Chunks end inside and at the end of blocks. */
Test(cuda_compressed, a_sequence_is_the_same_whatever_the_batch) {
    char path[TEST_DATA_PATH];

    ways_golden("deepseek4", path);
    ways_compare(path, ways_back, ARRAY_SIZE(ways_back));
}

/* Two blocks of 128 positions, more short ones than a row attends to, and more rows than are scored
 * in one launch. */
Test(cuda_compressed, a_long_sequence_is_the_same_in_chunks) {
    static uint64_t at_once[LONG], other[LONG];
    char path[TEST_DATA_PATH];

    ways_golden("deepseek4", path);
    ways_long(path, LONG, 0, at_once);
    ways_long(path, LONG, 61, other);
    for (uint32_t i = 0; i < LONG; i++)
        cr_expect(at_once[i] && at_once[i] == other[i], "position %u", i);
}

/* Returns the digest of the logits after 41 tokens. The last token is computed with @page, the
 * pages of the others, or with copies of them by way of host memory. */
static uint64_t digest_with(const uint32_t page[3]) {
    static const uint32_t start[2] = {0, 3}, first[3] = {1, 0, 4};
    static const int32_t token[41] = {5, 6, 7, 200, 9, 11, 3};
    const struct engine_param param = {.top_p = 1, .repetition = 1};
    struct engine_copy copy[6] = {{.dir = 0}};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct engine *e = NULL;
    struct engine_result result;
    struct err err = {0};
    char path[TEST_DATA_PATH];

    cr_assert(gguf_open(&file, test_data_file(path, "golden", "deepseek4", ".gguf"), &err) == 0);
    const struct engine_opts o = {.file = file,
                                  .backend = "cuda",
                                  .n_pages = 8,
                                  .n_host_pages = 3,
                                  .page_tokens = 16,
                                  .max_rows = 40,
                                  .max_seqs = 1,
                                  .max_wants = 1,
                                  .digest = true};
    cr_assert(engine_new(&e, &o, &err) == 0, "%s", err.message);
    for (uint32_t i = 0; i < 3; i++) {
        copy[i] = (struct engine_copy){.src = first[i], .dst = i, .dir = COPY_D2H};
        copy[3 + i] = (struct engine_copy){.src = i, .dst = page[i], .dir = COPY_H2D};
    }
    for (uint64_t step = 1; step <= 2; step++) {
        const struct engine_seq seq = {
            .n_rows = step == 1 ? 40 : 1, .pos0 = step == 1 ? 0 : 40, .feed = -1};
        const struct engine_want want = {.row = seq.n_rows - 1, .what = WANT_SAMPLE};
        const struct engine_batch b = {.step = step,
                                       .n_rows = seq.n_rows,
                                       .n_seqs = 1,
                                       .n_wants = 1,
                                       .n_params = 1,
                                       .n_after = step == 1 && page[0] != first[0] ? 6 : 0,
                                       .token = token + seq.pos0,
                                       .seq = &seq,
                                       .table[KV_GLOBAL] = {start, step == 1 ? first : page},
                                       .want = &want,
                                       .param = &param,
                                       .after = copy};

        cr_assert(engine_launch(e, &b) == 0 && engine_seal(e, step) == 0);
        cr_assert(engine_wait(e, step, &result) == 0, "%s", engine_fault(e));
    }
    uint64_t digest = result.out[0].digest;
    engine_free(e);
    return digest;
}

Test(cuda_compressed, pages_that_come_back_from_the_host_are_the_same) {
    uint64_t right = digest_with((const uint32_t[]){1, 0, 4});

    cr_expect(right && digest_with((const uint32_t[]){5, 6, 7}) == right);
}

/* Writes a model whose shape is changed by @what, with matrices of @format. */
static void make_model(char path[64], const char *format, const char *what) {
    char shape[512];
    const char *argv[] = {"synth", "--shape", shape, "--format", format, "-o", path, NULL};

    snprintf(path, 64, "/tmp/weft-compressed-XXXXXX");
    close(mkstemp(path));
    snprintf(shape, sizeof(shape),
             "deepseek-v4-flash,n_layer=5,n_embd=256,n_head=4,head_dim=64,n_rot=16,"
             "q_rank=64,n_group=2,out_rank=32,n_ff=64,n_shared=64,n_expert=8,"
             "n_used=2,n_index=2,index_dim=32,n_chosen=4,window=8,%s",
             what);
    cr_assert(synth_main(ARRAY_SIZE(argv) - 1, (char **)argv) == 0);
}

/* Attention heads, and heads of an indexer, with more values than kernels support. */
Test(cuda_compressed, sizes_without_room_are_refused_by_name) {
    static const char *const cases[][2] = {
        {"head_dim=528", "heads of 528 values"},
        {"index_dim=144", "indexers of more than 256 heads or 128"},
        {"n_index=170,index_dim=48", "more than 8192 values for a row"}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char path[64];
        struct driver_opts o = {.backend = "cuda", .path = path};
        struct err err = {0};
        struct driver d;

        make_model(path, "F16", cases[i][0]);
        cr_expect(driver_open(&d, &o, &err) == -EINVAL);
        cr_expect(strstr(err.message, cases[i][1]), "%s", err.message);
        unlink(path);
    }
}

/* Pages, states and their memory are as planned; the plan leaves the driver's memory and a
 * twentieth of the device free. */
Test(cuda_compressed, what_is_told_of_memory_is_what_is_taken) {
    enum { DEVICE = 700 << 20, RESERVE = 256 << 20 };
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct fake_cuda *fake = fake_find();
    struct engine *e = NULL;
    struct engine_fit f;
    struct err err = {0};
    char path[64];

    make_model(path, "Q4_K_M",
               "n_layer=3,n_embd=512,n_head=8,head_dim=128,q_rank=256,n_group=4,out_rank=128,"
               "n_ff=256,n_shared=256,n_index=8,context=131072");
    cr_assert(gguf_open(&file, path, &err) == 0);
    unlink(path);
    struct engine_opts o = {.file = file,
                            .backend = "cuda",
                            .device_share = 1,
                            .page_tokens = 32,
                            .max_rows = 64,
                            .max_seqs = 2,
                            .max_wants = 4};
    fake->idle = true; /* what kernels compute does not matter here */
    fake->bytes = DEVICE;
    cr_assert(engine_fit(&f, &o, &err) == 0, "%s", err.message);
    fake->peak_bytes = 0;
    cr_assert(engine_new(&e, &o, &err) == 0, "%s", err.message);
    const struct engine_info *i = engine_info(e);
    cr_expect_eq(i->n_pages, f.n_pages);
    cr_expect_eq(i->n_states, f.n_states);
    cr_expect_eq(i->n_snapshots, f.n_snapshots);
    cr_expect_eq(i->max_context, f.context);
    cr_expect_eq(f.kv_bytes,
                 f.n_pages * i->page_bytes + (f.n_states + f.n_snapshots) * i->state_bytes);
    cr_expect(f.n_pages > 100 && f.n_states == 2 && f.n_snapshots > 0);
    size_t taken = fake->peak_bytes, usable = DEVICE - RESERVE;
    cr_expect(taken <= usable && taken > usable / 20 * 18, "%zu of %zu", taken, usable);
    cr_expect(f.weight_bytes + f.kv_bytes < taken);
    e = engine_free(e);
    fake->bytes = 1 << 20;
    o.device_share = 0;
    o.n_pages = f.n_pages;
    cr_expect(engine_new(&e, &o, &err) == -ENOMEM);
    const char *at = strstr(err.message, "weights ");
    cr_assert(at, "%s", err.message);
    double weights = atof(at + strlen("weights ")) * 0x1p20, told = (double)f.weight_bytes;
    cr_expect(weights > told * 0.95 && weights < told * 1.1, "%.0f, told are %.0f", weights, told);
}
