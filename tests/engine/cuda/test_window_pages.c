/*
 * Tests pages of layers with a window on the CUDA backend, without a device. In company, with only
 * the last keys of those layers kept, a request must get the same bits as alone with the keys of
 * all positions.
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/gguf.h"
#include "tests/support/serving.h"
#include "tests/support/test_data.h"

enum { REQUESTS = 2, LONGEST = 90, COMMON = 48, OUT = 3 };

/* Requests with a common prefix; the first is much longer, so that its window leaves pages that the
 * others share. */
static void submit(struct sched *s, uint32_t i, bool drafts) {
    struct rng common = {1}, own = {100 + i};
    int32_t tokens[LONGEST];
    uint32_t n = LONGEST - 20 * i;
    struct submit m = {.id = i + 1,
                       .seed = 50 + i,
                       .n_prompt = n,
                       .n_tokens = n,
                       .max_new = OUT,
                       .tokens = tokens,
                       .flags = SUBMIT_DIGESTS};

    for (uint32_t k = 0; k < n; k++)
        tokens[k] = (int32_t)rng_below(k < COMMON ? &common : &own, 300);
    params_init(&m.sampling);
    m.sampling.temperature = i % 2;
    cr_assert(sched_submit(s, &m) == 0);
}

Test(cuda_window_pages, company_changes_no_bit) {
    static struct heard alone[REQUESTS], together[REQUESTS];
    CLEANUP(gguf_freep) struct gguf *model = NULL;
    struct err err = {0};
    struct msg_stats stats;
    char path[TEST_DATA_PATH];

    setenv("WEFT_CUDA_FAKE_DEVICES", "2", 1);
    setenv("WEFT_CUDA_PEERS", "0", 1);
    test_data_file(path, "golden", "gemma3", ".gguf");
    cr_assert(gguf_open(&model, path, &err) == 0, "%s", err.message);
    struct serving w = {.model = model,
                        .backend = "cuda",
                        .max_seqs = 4,
                        .max_context = 256,
                        .n_pages = 60,
                        .n_requests = 1,
                        .submit = submit};
    struct sched_opts o = {.depth = 1, .check = true};

    for (w.first = 0; w.first < REQUESTS; w.first++)
        serving_run(&w, &o, alone, &stats);
    cr_expect(stats.n_windows == 0);
    w.first = 0;
    w.n_requests = REQUESTS;
    w.windows = true;
    setenv("WEFT_CUDA_CHECK", "1", 1); /* with the proof, which uses window pages, too */
    o.depth = 2;
    o.force_chunk = 37;
    serving_run(&w, &o, together, &stats);
    heard_compare(alone, together, REQUESTS);
    cr_expect(stats.n_windows > 0 && stats.n_windows < w.n_pages, "%u", (unsigned)stats.n_windows);
    w.devices = "0,1"; /* each device has some of the layers and their window pages */
    serving_run(&w, &o, together, &stats);
    heard_compare(alone, together, REQUESTS);
    cr_expect(stats.n_windows > 0 && stats.n_windows < w.n_pages, "%u", (unsigned)stats.n_windows);
}
