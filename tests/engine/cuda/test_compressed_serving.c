/*
 * Tests requests to a model with compressed keys, or to MODEL, on the CUDA backend, without a
 * device. In company, in chunks, after another request's prefix, and with drafts of which some are
 * wrong, a request must get the same bits as alone; also after its pages and states return from
 * host memory, and in another worker.
 */

#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/gguf.h"
#include "tests/support/few.h"
#include "tests/support/serving.h"
#include "tests/support/test_data.h"

#ifndef MODEL
#define MODEL "deepseek4"
#endif

enum {
    REQUESTS = FEWEST(3, 2),
    /* requests of a run */
    MOST = 4,
    COMMON = 114,
    OWN = 8,
    OUT = FEWEST(18, 13),
    N_VOCAB = 384,
    GIVEN = 5
};

static struct heard alone[MOST], together[MOST];
static int32_t prediction[REQUESTS][HEARD_MAX];

/* number of requests without a common prefix, which are then repeated; 0: all */
static uint32_t n_different;
static uint32_t n_given; /* tokens of the output that are sent as part of the prompt */

/* Requests with a common prefix; outputs pass the end of a block of 128 positions, some by a wrong
 * draft. */
static void submit(struct sched *s, uint32_t i, bool drafts) {
    uint32_t what = n_different ? i % n_different : i, n = COMMON + 2 * what + 3;
    struct rng common = {n_different ? 200 + what : 1}, own = {100 + what};
    int32_t tokens[COMMON + OWN + GIVEN];
    struct submit m = {.id = i + 1,
                       .seed = 50 + what,
                       .n_prompt = n,
                       .n_tokens = n + n_given,
                       .max_new = OUT,
                       .min_new = OUT,
                       .tokens = tokens,
                       .flags = SUBMIT_DIGESTS};

    for (uint32_t k = 0; k < n; k++)
        tokens[k] = (int32_t)rng_below(k < COMMON ? &common : &own, N_VOCAB);
    memcpy(tokens + n, alone[i].token, n_given * sizeof(*tokens));
    params_init(&m.sampling);
    m.sampling.temperature = what % 2;
    if (drafts)
        heard_predict(&alone[i], i + 5000, N_VOCAB, prediction[i], &m);
    cr_assert(sched_submit(s, &m) == 0);
}

static void open_golden(struct gguf **out) {
    struct err err = {0};
    char path[TEST_DATA_PATH];

    test_data_file(path, "golden", MODEL, ".gguf");
    cr_assert(gguf_open(out, path, &err) == 0, "%s", err.message);
}

Test(cuda_compressed_serving, no_way_of_serving_changes_a_bit) {
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

/* Two requests, one after the other, on pages for one, and both again: then they return from host
 * memory. Then another worker with the first one's file continues in the middle of their
 * outputs. */
Test(cuda_compressed_serving, what_comes_back_changes_no_bit) {
    CLEANUP(gguf_freep) struct gguf *model = NULL;
    struct msg_stats stats;

    open_golden(&model);
    n_different = 2;
    struct serving w = {.model = model,
                        .backend = "cuda",
                        .max_context = 160,
                        .max_seqs = 1,
                        .n_pages = 12,
                        .n_requests = 1,
                        .at_once = 1,
                        .submit = submit};
    struct sched_opts o = {.depth = 1, .check = true, .no_speculation = true};

    for (w.first = 0; w.first < 2; w.first++)
        serving_run(&w, &o, alone, &stats);
    memcpy(alone + 2, alone, 2 * sizeof(*alone));
    w.first = 0;
    w.n_requests = 4;
    w.host_kv_bytes = 8 << 20;
    w.n_host_pages = 60;
    w.n_snapshots = 20;
    o.disk.fd = memfd_create("disk", MFD_CLOEXEC);
    o.disk.n_bytes = 8 << 20;
    o.disk.in_step = true;
    cr_assert(o.disk.fd > 0);
    serving_run(&w, &o, together, &stats);
    heard_compare(alone, together, 4);
    cr_expect(stats.n_fetched_tokens >= 2 * 96, "%lu", stats.n_fetched_tokens);
    w.n_requests = 2;
    w.n_given = n_given = GIVEN;
    serving_run(&w, &o, together, &stats);
    close(o.disk.fd);
    for (uint32_t i = 0; i < 2; i++) {
        memcpy(together[i].token, alone[i].token, GIVEN * sizeof(*alone->token));
        memcpy(together[i].digest, alone[i].digest, GIVEN * sizeof(*alone->digest));
    }
    heard_compare(alone, together, 2);
    cr_expect(stats.n_disk_loaded_tokens >= 2 * 96, "%lu", stats.n_disk_loaded_tokens);
    cr_expect(stats.n_disk_loaded_snapshots == 2);
}
