/*
 * The scheduler with a real engine and a small random model: in company, with shared prefixes, in
 * chunks, and after preemptions, a request gets the same as alone, bit for bit. The digests of the
 * logits are compared.
 */

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/few.h"
#include "tests/support/serving.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

enum { REQUESTS = 6, PROMPT = 70, COMMON = 48, OUT = 40, LONG = 190 };

static struct gguf *model;
static const char *backend;
static uint32_t n_snapshots, n_host_pages, n_prompt = PROMPT;
static uint32_t at_once;
static bool windows, encoder;
static uint64_t n_preemptions, n_cached;
/* tokens found in host memory, whether fetched or computed because that was faster */
static uint64_t n_found;

static void open_model(const char *arch, const char *with) {
    struct err err = {0};
    char path[64];

    n_preemptions = n_cached = 0;
    backend = with;
    tiny_model_temp(&(struct tiny_model){.arch = arch, .seed = 5}, path);
    cr_assert_eq(gguf_open(&model, path, &err), 0, "%s", err.message);
    unlink(path);
}

static void submit_one(struct sched *s, uint32_t i, uint32_t max_new) {
    static const uint16_t pools[] = {SUBMIT_POOL_CLS, SUBMIT_POOL_MEAN, SUBMIT_POOL_LAST};
    uint32_t what = i % REQUESTS; /* later requests repeat these */
    struct rng common = {1}, own = {100 + what};
    int32_t tokens[LONG];
    struct submit m = {
        .id = i + 1,
        .seed = 50 + what,
        .n_prompt = n_prompt - what,
        .n_tokens = n_prompt - what,
        .max_new = max_new,
        .tokens = tokens,
        .flags = encoder ? pools[what % ARRAY_SIZE(pools)] : SUBMIT_DIGESTS,
    };

    for (uint32_t k = 0; k < n_prompt; k++)
        tokens[k] = (int32_t)rng_below(k < COMMON ? &common : &own, 300);
    params_init(&m.sampling);
    m.sampling.temperature = what % 2 ? 1 : 0;
    m.sampling.repetition_penalty = what % 3 ? 1 : 1.2;
    cr_assert_eq(sched_submit(s, &m), 0);
}

static void submit(struct sched *s, uint32_t i, bool drafts) {
    submit_one(s, i, encoder ? 1 : OUT);
}

/* Submits requests with short answers, so that more are admitted than will fit. */
static void submit_short(struct sched *s) {
    submit_one(s, 0, 1);
}

/* Serves requests [from, to) together. */
static void serve(uint32_t from, uint32_t to, uint32_t n_pages, uint32_t chunk, uint32_t depth,
                  struct heard *all) {
    struct serving w = {
        .model = model,
        .backend = backend,
        .max_seqs = 8,
        .n_snapshots = n_snapshots,
        .n_host_pages = n_host_pages,
        .windows = windows,
        .max_context = n_prompt == LONG ? 256
                       : encoder        ? 64
                                        : 0,
        .n_pages = n_pages,
        .first = from,
        .at_once = at_once,
        .n_requests = to - from,
        .before = to - from > 1 ? submit_short : NULL,
        .submit = submit,
    };
    struct sched_opts so = {.depth = depth, .force_chunk = chunk, .check = true};
    struct msg_stats stats;

    serving_run(&w, &so, all, &stats);
    n_preemptions += stats.n_preemptions;
    n_cached += stats.n_cached_tokens;
    n_found += stats.n_fetched_tokens + stats.n_left_tokens;
}

Test(real_engine, company_changes_no_bit) {
    static struct heard alone[REQUESTS], together[REQUESTS];

    open_model("llama", "reference");
    for (uint32_t i = 0; i < REQUESTS; i++)
        serve(i, i + 1, 64, 0, 1, alone);
    for (uint32_t depth = 1; depth <= 2; depth++) {
        serve(0, REQUESTS, 64, 0, depth, together);
        heard_compare(alone, together, REQUESTS);
        serve(0, REQUESTS, 14, 7, depth, together);
        heard_compare(alone, together, REQUESTS);
    }
    cr_expect_gt(n_preemptions, 0);
    cr_expect_gt(n_cached, 100);
    gguf_free(model);
}

/* Prompts that are computed whole, few of which fit into a step; all begin alike and share
 * nothing. */
Test(real_engine, company_changes_no_bit_of_encoders) {
    static const char *const names[] = {"bert",           "nomic-bert",  "jina-bert-v2",
                                        "nomic-bert-moe", "modern-bert", "gemma-embedding"};
    static struct heard alone[REQUESTS], together[REQUESTS];

    encoder = true;
    n_prompt = 29;
    for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
        open_model(names[k], "cpu");
        for (uint32_t i = 0; i < REQUESTS; i++)
            serve(i, i + 1, 64, 0, 1, alone);
        cr_expect_eq(alone[0].n_vector, 256);
        serve(0, REQUESTS, 64, 0, 1, together);
        heard_compare(alone, together, REQUESTS);
        serve(0, REQUESTS, 4, 7, 1, together);
        heard_compare(alone, together, REQUESTS);
        cr_expect_eq(n_cached, 0);
        gguf_free(model);
    }
}

/* The state is in no page: prefixes are shared only where there is a snapshot, and preempted
 * requests begin at one or at the start. */
Test(real_engine, company_changes_no_bit_of_hybrid_models) {
    static struct heard alone[REQUESTS], together[REQUESTS];

    open_model("qwen35", "cpu");
    for (uint32_t i = 0; i < REQUESTS; i++)
        serve(i, i + 1, 64, 0, 1, alone);
    for (n_snapshots = 0; n_snapshots <= 9; n_snapshots += FEWER(3, 9))
        for (uint32_t depth = 1; depth <= 2; depth++) {
            cr_expect(n_snapshots > 0 || n_cached == 0);
            serve(0, REQUESTS, 64, 0, depth, together);
            heard_compare(alone, together, REQUESTS);
            serve(0, REQUESTS, 20, 7, depth, together);
            heard_compare(alone, together, REQUESTS);
        }
    cr_expect_gt(n_preemptions, 0);
    cr_expect_gt(n_cached, 0);
    gguf_free(model);
}

/* Sends all requests twice on few pages: the second time their prefixes come back from host memory,
 * with the states after them. */
Test(real_engine, what_comes_back_from_host_memory_changes_no_bit_of_hybrid_models) {
    static struct heard alone[2 * REQUESTS], together[2 * REQUESTS];

    n_prompt = LONG;
    open_model("qwen35", "cpu");
    for (uint32_t i = 0; i < REQUESTS; i++)
        serve(i, i + 1, 64, 0, 1, alone);
    memcpy(alone + REQUESTS, alone, REQUESTS * sizeof(*alone));
    n_host_pages = 200;
    n_snapshots = 100;
    at_once = 1;
    for (uint32_t depth = 1; depth <= 2; depth++) {
        serve(0, 2 * REQUESTS, 18, depth == 2 ? 7 : 0, depth, together);
        heard_compare(alone, together, 2 * REQUESTS);
    }
    cr_expect_geq(n_found, 2 * REQUESTS * 16);
    gguf_free(model);
}

/* Alone with the keys of all positions in every layer; in company with the keys of the last
 * positions in layers with a window, whether prefix hits find them or not. */
Test(real_engine, company_changes_no_bit_of_models_with_windows) {
    static const char *const names[] = {"gpt-oss-f32", "gemma3", "gemma4-ple", "laguna"};
    static struct heard alone[REQUESTS], together[REQUESTS];
    struct err err = {0};
    char path[TEST_DATA_PATH];

    n_prompt = LONG;
    n_preemptions = n_cached = 0;
    backend = "cpu";
    for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
        test_data_file(path, "golden", names[k], ".gguf");
        cr_assert_eq(gguf_open(&model, path, &err), 0, "%s", err.message);
        windows = false;
        for (uint32_t i = 0; i < REQUESTS; i++)
            serve(i, i + 1, 120, 0, 1, alone);
        windows = true;
        for (uint32_t depth = FEWER(1, 2); depth <= 2; depth++) {
            serve(0, REQUESTS, 120, 0, depth, together);
            heard_compare(alone, together, REQUESTS);
            serve(0, REQUESTS, 66, 7, depth, together);
            heard_compare(alone, together, REQUESTS);
        }
        gguf_free(model);
    }
    cr_expect_gt(n_preemptions, 0);
    cr_expect_gt(n_cached, 0);
}
