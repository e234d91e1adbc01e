/* Tests sampling in rounds: more rows than the engine has room for at a time. */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mathx.h"
#include "engine/engine.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/support/tiny_model.h"

enum { LISTED = 20, LISTED_VOCAB = 40 };

/* Returns the token that the mask of row @i allows; none of those that its list bans. */
static uint32_t listed_token(uint32_t i) {
    return (i + 20) % LISTED_VOCAB;
}

/* A prompt of LISTED rows, with a sample of each row, which has a list of its own and a mask of one
 * token. */
static void run_listed(const char *path, uint32_t max_seqs, uint64_t digest[LISTED]) {
    static int32_t bans[LISTED][4096], tokens[LISTED];
    static struct engine_param param[LISTED];
    static uint32_t mask[LISTED][(LISTED_VOCAB + 31) / 32];
    struct engine_want want[LISTED];
    uint32_t start[2] = {0, 2}, page[2] = {2, 1};
    struct engine_seq seq = {.n_rows = LISTED, .feed = -1};
    struct engine_result result;
    struct gguf *file;
    struct engine *e = NULL;
    struct err err = {0};

    cr_assert(gguf_open(&file, path, &err) == 0);
    struct engine_opts o = {.file = file,
                            .backend = "cuda",
                            .n_pages = 4,
                            .page_tokens = 16,
                            .max_rows = LISTED,
                            .max_seqs = max_seqs,
                            .max_wants = LISTED,
                            .digest = true};
    cr_assert(engine_new(&e, &o, &err) == 0, "%s", err.message);
    for (uint32_t i = 0; i < LISTED; i++) {
        for (uint32_t k = 0; k < 4096; k++)
            bans[i][k] = (int32_t)(i + k % 7);
        tokens[i] = (int32_t)i;
        param[i] = (struct engine_param){
            .top_p = 1, .repetition = 1, .bans = bans[i], .n_bans = ARRAY_SIZE(bans[i])};
        want[i] = (struct engine_want){.row = i, .param = i, .what = WANT_SAMPLE};
    }
    struct engine_batch b = {.step = 1,
                             .n_rows = LISTED,
                             .n_seqs = 1,
                             .n_wants = LISTED,
                             .n_params = LISTED,
                             .token = tokens,
                             .seq = &seq,
                             .table[KV_GLOBAL] = {start, page},
                             .want = want,
                             .param = param};
    cr_assert(engine_launch(e, &b) == 0);
    for (uint32_t i = 0; i < LISTED; i++) {
        uint32_t token = listed_token(i);

        memset(mask[i], 0, sizeof(mask[i]));
        mask[i][token / 32] = 1u << token % 32;
        cr_assert(engine_mask(e, 1, i, mask[i]) == 0);
    }
    cr_assert(engine_seal(e, 1) == 0);
    cr_assert(engine_wait(e, 1, &result) == 0);
    for (uint32_t i = 0; i < LISTED; i++) {
        digest[i] = result.out[i].digest;
        cr_expect_eq((uint32_t)result.out[i].token, listed_token(i), "want %u: %d", i,
                     result.out[i].token);
    }
    engine_free(e);
    gguf_free(file);
}

/* With room for the lists of two sequences, a round has five wants: not a whole group of packed
 * rows. */
Test(cuda, rounds_may_begin_anywhere) {
    struct tiny_model m = {.type = TENSOR_Q8_0, .n_layer = 1, .n_vocab = LISTED_VOCAB};
    uint64_t digest[2][LISTED];
    char path[64];

    tiny_model_temp(&m, path);
    run_listed(path, LISTED, digest[0]);
    run_listed(path, 2, digest[1]);
    for (uint32_t i = 0; i < LISTED; i++)
        cr_expect(digest[0][i] == digest[1][i], "want %u", i);
    unlink(path);
}

/* Lists and masks are uploaded in a stream of their own, for which the samples wait. */
Test(cuda, uploads_beside_a_step_change_no_bit) {
    struct tiny_model m = {.type = TENSOR_Q8_0, .n_layer = 1, .n_vocab = LISTED_VOCAB};
    uint64_t digest[2][LISTED];
    char path[64];

    tiny_model_temp(&m, path);
    for (int beside = 0; beside < 2; beside++) {
        uint32_t n_waits = fake_find()->n_waits;

        setenv("WEFT_CUDA_BESIDE", beside ? "1" : "0", 1);
        run_listed(path, 2, digest[beside]);
        cr_expect_eq(fake_find()->n_waits > n_waits, beside);
    }
    unsetenv("WEFT_CUDA_BESIDE");
    cr_expect(memcmp(digest[0], digest[1], sizeof(digest[0])) == 0);
    unlink(path);
}

/* Computes a step of one row of which the mask allows only @allowed, and returns its sample. */
static int32_t masked_step(struct engine *e, uint64_t step, uint32_t allowed) {
    static uint32_t mask[(LISTED_VOCAB + 31) / 32];
    struct engine_result result;

    memset(mask, 0, sizeof(mask));
    mask[allowed / 32] = 1u << allowed % 32;
    cr_assert(fake_run_row(e, step, mask, &result) == 0);
    return result.out[0].token;
}

/* Without its wait for the upload, a step samples by the mask of the step before the last, which
 * had the same memory. */
Test(cuda, a_missing_wait_for_an_upload_is_seen) {
    struct tiny_model m = {.type = TENSOR_Q8_0, .n_layer = 1, .n_vocab = LISTED_VOCAB};
    struct fake_cuda *fake = fake_find();
    struct engine *e = NULL;
    struct gguf *file;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    cr_assert(gguf_open(&file, path, &err) == 0);
    struct engine_opts o = {.file = file,
                            .backend = "cuda",
                            .n_pages = 1,
                            .page_tokens = 16,
                            .max_rows = 1,
                            .max_seqs = 1,
                            .max_wants = 1};
    cr_assert(engine_new(&e, &o, &err) == 0, "%s", err.message);
    for (uint32_t i = 0; i < 4; i++)
        cr_expect_eq(masked_step(e, 1 + i, 10 + i), 10 + (int32_t)i);
    fake->n_waits = 0;
    fake->forget_wait = 1;
    cr_expect_eq(masked_step(e, 5, 30), 12);
    fake->forget_wait = 0;
    cr_expect_eq(masked_step(e, 6, 31), 31);
    engine_free(e);
    gguf_free(file);
    unlink(path);
}

/* Returns the most probable token after one token, with @samplers for a request whose tokens are
 * @tokens. */
static int32_t next_token(const char *path, const struct engine_samplers *samplers,
                          const int32_t tokens[3]) {
    struct engine_param param = {
        .top_p = 1, .repetition = 1, .samplers = samplers, .tokens = tokens, .n_tokens = 3};
    struct engine_want want = {.what = WANT_SAMPLE, .logprob = true, .n_top = 2};
    struct engine_seq seq = {.n_rows = 1, .feed = -1};
    uint32_t start[2] = {0, 1}, page[1] = {0};
    struct engine_result result;
    struct engine *e = NULL;
    int32_t row = 5, token;
    struct gguf *file;
    struct err err = {0};

    cr_assert(gguf_open(&file, path, &err) == 0);
    struct engine_opts o = {.file = file,
                            .backend = "cuda",
                            .n_pages = 1,
                            .page_tokens = 16,
                            .max_rows = 1,
                            .max_seqs = 1,
                            .max_wants = 1};
    cr_assert(engine_new(&e, &o, &err) == 0, "%s", err.message);
    struct engine_batch b = {.step = 1,
                             .n_rows = 1,
                             .n_seqs = 1,
                             .n_wants = 1,
                             .n_params = 1,
                             .token = &row,
                             .seq = &seq,
                             .table[KV_GLOBAL] = {start, page},
                             .want = &want,
                             .param = &param};
    cr_assert(engine_launch(e, &b) == 0 && engine_seal(e, 1) == 0);
    cr_assert(engine_wait(e, 1, &result) == 0);
    token = result.out[0].token;
    /* Log probabilities are those of the logits before all samplers. */
    cr_expect_eq(token == result.out[0].top[0].token,
                 mx_bits_of(result.out[0].logprob) == mx_bits_of(result.out[0].top[0].logprob));
    engine_free(e);
    gguf_free(file);
    return token;
}

Test(cuda, samplers_that_the_kernels_have_not_are_the_hosts) {
    struct tiny_model m = {.type = TENSOR_Q8_0, .n_layer = 1, .n_vocab = 40};
    struct engine_samplers dry = {.dry_multiplier = 1000, .dry_base = 2, .dry_allowed = 1};
    char path[64];

    tiny_model_temp(&m, path);
    int32_t tokens[3] = {7, 0, 7}, best = next_token(path, NULL, tokens);
    if (best == 7)
        tokens[0] = tokens[2] = 8;
    tokens[1] = best; /* 7 BEST 7: BEST again would be a repetition */
    int32_t other = next_token(path, &dry, tokens);
    cr_expect_neq(other, best);
    tokens[0] = 6;
    cr_expect_eq(next_token(path, &dry, tokens), best);
    unlink(path);
}
