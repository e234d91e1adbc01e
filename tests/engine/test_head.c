/*
 * Tests scores: a classifier's must be those of another implementation, those of a reranker that
 * answers by a word must follow from its logits, and other classifiers give no scores.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "engine/engine.h"
#include "engine/head.h"
#include "tests/support/tiny_model.h"

enum { N_VOCAB = 300 };

static const int32_t ids[] = {2, 100, 37, 210, 64, 64, 150, 9, 277, 131, 18, 3};

struct run {
    struct gguf *file;
    struct engine *engine;
    struct engine_result res;
};

static void open_run(struct run *r, struct gguf_writer *w, const char *backend) {
    struct err err = {0};
    char path[64];

    tiny_model_temp_of(w, path);
    cr_assert_eq(gguf_open(&r->file, path, &err), 0);
    unlink(path);
    struct engine_opts o = {.file = r->file,
                            .backend = backend,
                            .isa = "auto",
                            .n_threads = 1,
                            .n_pages = 4,
                            .page_tokens = 16,
                            .max_rows = 32,
                            .max_seqs = 1,
                            .max_wants = 4};
    cr_assert_eq(engine_new(&r->engine, &o, &err), 0, "%s", err.message);
}

static void close_run(struct run *r) {
    engine_free(r->engine);
    gguf_free(r->file);
}

/* Returns the hidden vector of row @row; with @sample, also samples at the last row. */
static const float *compute(struct run *r, uint32_t row, bool sample) {
    static const uint32_t start[] = {0, 1}, page[] = {2};
    const uint32_t n = ARRAY_SIZE(ids);
    struct engine_seq seq = {.n_rows = n, .n_prompt = n, .feed = -1};
    struct engine_param param = {
        .top_p = 1, .repetition = 1, .tokens = ids, .n_prompt = n, .n_tokens = n};
    struct engine_want want[] = {{.row = row, .what = WANT_HIDDEN}, {.row = n - 1}};
    struct engine_batch b = {.step = 1,
                             .n_rows = n,
                             .n_seqs = 1,
                             .n_wants = 1 + sample,
                             .n_params = 1,
                             .token = ids,
                             .seq = &seq,
                             .want = want,
                             .param = &param};

    b.table[KV_GLOBAL].start = start;
    b.table[KV_GLOBAL].page = page;
    cr_assert_eq(engine_launch(r->engine, &b), 0);
    cr_assert_eq(engine_seal(r->engine, 1), 0);
    cr_assert_eq(engine_wait(r->engine, 1, &r->res), 0);
    return r->res.out[0].vector;
}

/* llama-server of llama.cpp 0.7.0 with --pooling rank gives -1.881028 for the file and ids here
 * (/embedding, embd_normalize -1). */
Test(head, of_a_classifier_scores_as_llama_cpp_does) {
    static const char *const backends[] = {"reference", "cpu"};

    for (int i = 0; i < 2; i++) {
        struct gguf_writer w;
        struct run r;

        gw_init(&w);
        tiny_model_build(&(struct tiny_model){.arch = "bert",
                                              .n_embd = 192,
                                              .n_head = 6,
                                              .n_ff = 128,
                                              .n_vocab = N_VOCAB,
                                              .seed = 3,
                                              .pooling = 4,
                                              .n_labels = 1},
                         &w);
        open_run(&r, &w, backends[i]);
        gw_deinit(&w);
        cr_assert(engine_info(r.engine)->ranks);
        float score = engine_score(r.engine, compute(&r, 0, false));
        cr_expect_float_eq(score, -1.881028f, 4e-3f, "%s: %g", backends[i], (double)score);
        close_run(&r);
    }
}

/* tanh(0.5) = 0.46211716 */
Test(head, of_a_vector_without_a_number_has_none) {
    float dense[] = {1}, out[] = {2}, mid[1], bias[] = {0.25f};
    struct head h = {
        .n_embd = 1, .n_mid = 1, .dense = dense, .dense_bias = bias, .out = out, .mid = mid};

    cr_expect_float_eq(head_score(&h, &(float){0.25f}), 0.92423432f, 1e-7);
    cr_expect_eq(head_score(&h, &(float){1e30f}), 2);
    cr_expect_eq(head_score(&h, &(float){-INFINITY}), -2);
    cr_expect(isnan(head_score(&h, &(float){NAN})));
}

Test(head, of_words_is_the_difference_of_their_logits) {
    struct gguf_writer w;
    const char *token[N_VOCAB];
    struct run r;

    for (int i = 0; i < N_VOCAB; i++)
        token[i] = i == 77 ? "yes" : i == 201 ? "no" : "-";
    gw_init(&w);
    gw_u32(&w, "qwen3.pooling_type", 4);
    gw_strings(&w, "tokenizer.ggml.tokens", N_VOCAB, token);
    tiny_model_build(&(struct tiny_model){.arch = "qwen3", .type = TENSOR_F32}, &w);
    open_run(&r, &w, "reference");
    gw_deinit(&w);
    cr_assert(engine_info(r.engine)->ranks);
    const float *v = compute(&r, ARRAY_SIZE(ids) - 1, true);
    const float *logits = engine_peek(r.engine, 1);
    cr_expect_float_eq(engine_score(r.engine, v), logits[77] - logits[201], 1e-3f);
    close_run(&r);
}

/* The words of the classes are unknown, since the file has no texts. */
Test(head, of_words_needs_texts) {
    static const uint32_t number[N_VOCAB];
    struct gguf_writer w;
    struct run r;

    gw_init(&w);
    gw_u32(&w, "qwen3.pooling_type", 4);
    gw_array(&w, "tokenizer.ggml.tokens", GGUF_U32, N_VOCAB, number, sizeof(number));
    tiny_model_build(&(struct tiny_model){.arch = "qwen3", .type = TENSOR_F32}, &w);
    open_run(&r, &w, "cpu");
    gw_deinit(&w);
    cr_expect(!engine_info(r.engine)->ranks);
    close_run(&r);
}

Test(head, of_other_models_is_none) {
    for (int labels = 0; labels < 2; labels++) {
        struct gguf_writer w;
        struct run r;

        gw_init(&w);
        tiny_model_build(&(struct tiny_model){.arch = labels ? "bert" : "qwen3",
                                              .n_vocab = N_VOCAB,
                                              .n_labels = 5},
                         &w);
        open_run(&r, &w, "cpu");
        gw_deinit(&w);
        cr_expect(!engine_info(r.engine)->ranks);
        close_run(&r);
    }
}

/* Golden values are llama.cpp 0.7.0's on the same file, with --pooling none, which applies the
 * matrices to every row: the first and the last four values of the first token. */
Test(head, vectors_behind_the_pooling_are_those_of_llama_cpp) {
    static const float golden[] = {-0.022171f, 0.110177f,  -0.023677f, 0.526925f,
                                   -1.304646f, -0.034712f, 0.592877f,  -0.157155f};
    const struct tiny_model t = {.arch = "gemma-embedding",
                                 .n_embd = 192,
                                 .n_head = 6,
                                 .n_ff = 128,
                                 .n_vocab = N_VOCAB,
                                 .seed = 3};
    struct gguf_writer w;
    struct run r;
    float v[192];

    gw_init(&w);
    tiny_model_build(&t, &w);
    open_run(&r, &w, "reference");
    gw_deinit(&w);
    cr_assert(engine_info(r.engine)->widens && !engine_info(r.engine)->ranks);
    memcpy(v, compute(&r, 0, false), sizeof(v));
    engine_widen(r.engine, v);
    for (uint32_t i = 0; i < ARRAY_SIZE(golden); i++)
        cr_expect_float_eq(v[i < 4 ? i : 184 + i], golden[i], 4e-3, "%u: %g", i,
                           (double)v[i < 4 ? i : 184 + i]);
    close_run(&r);
}
