/*
 * Requests to a model with condensed keys on the CUDA backend, without a device: what a request
 * gets in company, in chunks, behind another's prefix and with drafts, some of which are wrong, is
 * bit for bit what it gets alone.
 */

#include <criterion/criterion.h>
#include "base/gguf.h"
#include "tests/support/serving.h"
#include "tests/support/test_data.h"

enum { REQUESTS = 3, COMMON = 114, OWN = 8, OUT = 18, N_VOCAB = 384 };

static struct heard alone[REQUESTS], together[REQUESTS];
static int32_t prediction[REQUESTS][HEARD_MAX];

/* Begin alike; outputs pass the end of a block of 128 positions, some with a wrong draft. */
static void submit(struct sched *s, uint32_t i, bool drafts) {
    struct rng common = {1}, own = {100 + i};
    int32_t tokens[COMMON + OWN];
    uint32_t n = COMMON + 2 * i + 3;
    struct submit m = {.id = i + 1,
                       .seed = 50 + i,
                       .n_prompt = n,
                       .n_tokens = n,
                       .max_new = OUT,
                       .min_new = OUT,
                       .tokens = tokens,
                       .flags = SUBMIT_DIGESTS};

    for (uint32_t k = 0; k < n; k++)
        tokens[k] = (int32_t)rng_below(k < COMMON ? &common : &own, N_VOCAB);
    params_init(&m.sampling);
    m.sampling.temperature = i % 2;
    if (drafts)
        heard_predict(&alone[i], i + 5000, N_VOCAB, prediction[i], &m);
    cr_assert(sched_submit(s, &m) == 0);
}

static void open_golden(struct gguf **out) {
    struct err err = {0};
    char path[TEST_DATA_PATH];

    test_data_file(path, "golden", "deepseek4", ".gguf");
    cr_assert(gguf_open(out, path, &err) == 0, "%s", err.message);
}

Test(cuda_condensed_serving, no_way_of_serving_changes_a_bit) {
    CLEANUP(gguf_freep) struct gguf *model = NULL;
    struct msg_stats stats;

    open_golden(&model);
    struct serving w = {.model = model,
                        .backend = "cuda",
                        .max_context = 160,
                        .max_seqs = REQUESTS,
                        .n_pages = 60,
                        .n_requests = 1,
                        .submit = submit};
    struct sched_opts o = {.depth = 1, .check = true, .no_speculation = true};

    for (w.first = 0; w.first < REQUESTS; w.first++)
        serving_run(&w, &o, alone, &stats);
    w.first = 0;
    w.n_requests = REQUESTS;
    w.n_snapshots = 6;
    o.no_speculation = false;
    o.force_draft = 6;
    for (o.depth = 1; o.depth <= 2; o.depth++) {
        o.force_chunk = o.depth == 1 ? 37 : 0;
        w.n_pages = o.depth == 1 ? 12 : 60;
        w.at_once = o.depth == 1 ? 0 : 1;
        serving_run(&w, &o, together, &stats);
        heard_compare(alone, together, REQUESTS);
        cr_expect(stats.n_drafted > stats.n_accepted && stats.n_accepted > 0);
        cr_expect(stats.n_snapshots_used > 0);
    }
}
