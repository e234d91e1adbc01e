/*
 * Tests models with attention to the keys of blocks that an indexer chooses, on the CUDA backend,
 * without a device: logits against the reference backend, and the same bits for every division of a
 * sequence into steps.
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

/* Rounding, which glm5-next multiplies (test_golden.c), moved rows by 6.0e-2. */
#define NEAR_POOLED 8e-2

/* Blocks of four positions and of two; pooled keys beside latent ones. */
static const char *const models[] = {"qwen4exp", "qwen4exp-r2", "glm5-next"};

Test(cuda_sparse, rows_are_near_the_reference) {
    char path[TEST_DATA_PATH];

    for (size_t i = 0; i < ARRAY_SIZE(models); i++) {
        ways_golden(models[i], path);
        ways_near_reference(models[i], path, i < 2 ? 3e-2 : NEAR_POOLED);
    }
}

/* Keys and values of these are rotated. */
Test(cuda_sparse, pages_of_other_formats_are_near_the_reference) {
    static const struct {
        struct kv_formats kv;
        double limit;
    } pages[] = {{{ENGINE_KV_Q8_0, ENGINE_KV_Q8_0}, 3e-2},
                 {{ENGINE_KV_Q4_0, ENGINE_KV_Q4_0}, 1.5e-1},
                 {{ENGINE_KV_Q8_0, ENGINE_KV_Q4_0}, 1e-1}};
    char path[TEST_DATA_PATH];

    ways_golden("qwen4exp", path);
    for (size_t i = 0; i < ARRAY_SIZE(pages); i++)
        ways_near_reference_in("qwen4exp", path, pages[i].limit, pages[i].kv);
    ways_golden("glm5-next", path);
    ways_near_reference_in("glm5-next", path, NEAR_POOLED, pages[0].kv);
    ways_near_reference_in("glm5-next", path, 2.5e-1, pages[1].kv);
}

/* Chunks end inside and at the end of blocks. */
Test(cuda_sparse, a_sequence_is_the_same_whatever_the_batch) {
    char path[TEST_DATA_PATH];

    ways_golden("qwen4exp-r2", path); /* cuda_streams covers the other one */
    ways_compare(path, ways_back, ARRAY_SIZE(ways_back));
    ways_golden("glm5-next", path);
    ways_compare(path, ways_back, ARRAY_SIZE(ways_back));
    ways_compare(path, ways_in_batches, ARRAY_SIZE(ways_in_batches));
}

/* More blocks than a row attends to, more rows than are scored in one launch. */
Test(cuda_sparse, a_long_sequence_is_the_same_in_chunks) {
    static uint64_t at_once[LONG], other[LONG];
    char path[TEST_DATA_PATH];

    for (size_t i = FEWER(0, 1); i < ARRAY_SIZE(models); i++) {
        ways_golden(models[i], path);
        ways_long(path, LONG, 0, at_once);
        ways_long(path, LONG, 61, other);
        for (uint32_t p = 0; p < LONG; p++)
            cr_expect(at_once[p] && at_once[p] == other[p], "%s, position %u", models[i], p);
    }
}

/* Blocks that each key head chooses. */
Test(cuda_sparse, heads_that_choose_have_the_same_bits_in_all_batches) {
    static uint64_t at_once[LONG], other[LONG];
    char path[TEST_DATA_PATH];

    ways_golden("minimax-m3", path);
    ways_compare(path, ways_in_batches, ARRAY_SIZE(ways_in_batches));
    ways_long(path, LONG, 0, at_once);
    ways_long(path, LONG, 61, other);
    for (uint32_t p = 0; p < LONG; p++)
        cr_expect(at_once[p] && at_once[p] == other[p], "position %u", p);
}

/* Writes a model of four layers with the head and indexer of Qwen3.8-Flash-Next, changed by
 * @what. */
static void make_model(char path[64], const char *what) {
    char shape[512];
    const char *argv[] = {"synth", "--shape", shape, "--format", "Q4_K_M", "-o", path, NULL};

    snprintf(path, 64, "/tmp/weft-sparse-XXXXXX");
    close(mkstemp(path));
    snprintf(shape, sizeof(shape),
             "qwen3.8-flash-next,n_layer=4,n_ff=64,n_shared=64,n_expert=4,n_used=2,n_vocab=512,"
             "n_table=64,%s",
             what);
    cr_assert(synth_main(ARRAY_SIZE(argv) - 1, (char **)argv) == 0);
}

Test(cuda_sparse, sizes_without_room_are_refused_by_name) {
    static const char *const cases[][2] = {
        {"n_embd=256,head_dim=272", "sparse attention with heads of more than 256 values"},
        {"n_embd=256,index_dim=144", "indexers of more than 256 heads or 128"},
        {"n_embd=256,n_index=170,index_dim=64", "more than 8192 values for a row"}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char path[64];
        struct driver_opts o = {.backend = "cuda", .path = path};
        struct err err = {0};
        struct driver d;

        make_model(path, cases[i][0]);
        cr_expect(driver_open(&d, &o, &err) == -EINVAL);
        cr_expect(strstr(err.message, cases[i][1]), "%s", err.message);
        unlink(path);
    }
}

/* Computes @n rows in one step and in steps of @chunk. */
static void compare_chunks(const char *what, uint32_t n, uint32_t chunk) {
    static uint64_t at_once[LONG], other[LONG];
    char path[64];

    make_model(path, what);
    ways_long(path, n, 0, at_once);
    ways_long(path, n, chunk, other);
    unlink(path);
    for (uint32_t p = 0; p < n; p++)
        cr_expect(at_once[p] && at_once[p] == other[p], "%s: position %u", what, p);
}

/* Opens a model with realistic widths: the counted memory suffices. */
Test(cuda_sparse, a_model_of_real_widths_opens) {
    char path[64];
    const struct driver_opts o = {.backend = "cuda", .path = path, .max_rows = 64, .max_seqs = 2};
    struct err err = {0};
    struct driver d;

    make_model(path, "n_low=320");
    fake_find()->idle = true; /* what kernels compute does not matter here */
    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    driver_close(&d);
    unlink(path);
}

/* A row sees so many keys that each has launches of its own, for which the notes of a graph
 * grow. */
Test(cuda_sparse, graphs_have_all_chunks_of_rows) {
    static int32_t token[128];
    struct fake_cuda *fake = fake_find();
    char path[64];
    const struct driver_opts o = {.backend = "cuda",
                                  .path = path,
                                  .n_pages = 262144 / 16,
                                  .max_rows = ARRAY_SIZE(token),
                                  .max_seqs = 1};
    struct err err = {0};
    struct driver d;

    make_model(path, "n_embd=256,n_low=32,n_head=24,n_kv=1,n_chosen=262144");
    fake->idle = true; /* launches are counted, not computed */
    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    struct driver_seq *s = driver_add(&d, token, ARRAY_SIZE(token), 1, NULL);
    driver_prefill(&d, s, 0);
    cr_expect_eq(fake->n_graphs, 1, "%llu launches", (unsigned long long)fake->n_launches);
    cr_expect(fake->n_launches > 256);
    driver_drop(&d, s);
    driver_close(&d);
    fake->idle = false;
    unlink(path);
}

/* The keys of a row fill several parts. */
Test(cuda_sparse, rows_of_several_parts_are_the_same_in_chunks) {
    compare_chunks("n_embd=256,n_low=32,n_head=4,n_kv=1,head_dim=64,n_rot=16,index_dim=32,"
                   "n_key=2,n_value=4,n_state=32,n_chosen=200",
                   FEWER(LONG, 140), 101);
}
