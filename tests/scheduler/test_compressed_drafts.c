/*
 * Drafts by the block of a model with compressed keys, whose window lies in the state: a request
 * gets the same as alone and without drafts, bit for bit, when drafts are wrong and windows and
 * blocks of 4 and 128 positions are truncated, behind the prefix of another request, and with so
 * few pages that requests preempt each other.
 */

#include <criterion/criterion.h>
#include <stdio.h>

#include "base/gguf.h"
#include "scheduler/draft/draft.h"
#include "tests/support/serving.h"
#include "tests/support/test_data.h"

#ifndef BACKEND
#define BACKEND "cpu"
#define N_REQUESTS 8
#endif
enum { COMMON = 114, OWN = 2 * N_REQUESTS + 3, OUT = 40, N_VOCAB = 384 };

static struct heard alone[N_REQUESTS], together[N_REQUESTS];
static int32_t prediction[N_REQUESTS][HEARD_MAX];
static bool predicts;

/* Submits requests that begin alike; outputs pass the end of a block of 128 positions. After short
 * outputs long ones are not expected, and soon lack pages. */
static void submit(struct sched *s, uint32_t i, bool drafts) {
    struct rng common = {1}, own = {100 + i};
    int32_t tokens[COMMON + OWN];
    uint32_t n = COMMON + 2 * i + 3;
    struct submit m = {.id = i + 1,
                       .seed = 50 + i,
                       .n_prompt = n,
                       .n_tokens = n,
                       .max_new = i < N_REQUESTS / 3 ? 1 : OUT,
                       .tokens = tokens,
                       .flags = SUBMIT_DIGESTS};

    for (uint32_t k = 0; k < n; k++)
        tokens[k] = (int32_t)rng_below(k < COMMON ? &common : &own, N_VOCAB);
    m.min_new = m.max_new;
    params_init(&m.sampling);
    m.sampling.temperature = i % 2;
    if (drafts && predicts)
        heard_predict(&alone[i], i + 5000, N_VOCAB, prediction[i], &m);
    cr_assert(sched_submit(s, &m) == 0);
}

Test(compressed_drafts, the_models_own_block_changes_no_bit) {
    static const struct draft_source *const only[] = {&draft_mtp, NULL};
    CLEANUP(gguf_freep) struct gguf *model = NULL;
    struct sched_opts o = {.depth = 1, .check = true, .no_speculation = true};
    struct msg_stats stats;
    struct err err = {0};
    char path[TEST_DATA_PATH];

    test_data_file(path, "golden", "deepseek4-mtp", ".gguf");
    cr_assert(gguf_open(&model, path, &err) == 0, "%s", err.message);
    struct serving w = {.model = model,
                        .backend = BACKEND,
                        .max_context = 176,
                        .max_seqs = N_REQUESTS,
                        .n_pages = 100,
                        .n_requests = 1,
                        .submit = submit};
    for (w.first = 0; w.first < N_REQUESTS; w.first++)
        serving_run(&w, &o, alone, &stats);
    w.first = 0;
    w.block = true;
    w.n_requests = N_REQUESTS;
    w.n_snapshots = 4 * N_REQUESTS;
    o.no_speculation = false;
    o.force_draft = 6;
    for (o.depth = 1; o.depth <= 2; o.depth++) {
        predicts = o.depth == 2;
        o.drafts = predicts ? NULL : only;
        o.force_chunk = o.depth == 1 ? 37 : 0;
        w.n_pages = o.depth == 1 ? 12 : 100;
        w.at_once = o.depth == 1 ? 0 : 1;
        serving_run(&w, &o, together, &stats);
        heard_compare(alone, together, N_REQUESTS);
        fprintf(stderr, "# depth %u: %lu of %lu, %lu preemptions, %lu snapshots\n", o.depth,
                stats.n_accepted, stats.n_drafted, stats.n_preemptions, stats.n_snapshots_used);
        cr_expect(stats.n_drafted > stats.n_accepted);
        cr_expect(!predicts || stats.n_accepted > 0);
        cr_expect(stats.n_snapshots_used > 0);
        cr_expect((stats.n_preemptions > 0) == (o.depth == 1));
    }
}
