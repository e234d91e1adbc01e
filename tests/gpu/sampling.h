#pragma once

/* sampling - checks the sampling kernels against the sampler of the host, and measures their times.
 * Part of kernels.c. */

#include "engine/sampler.h"
#include "tests/gpu/on_device.h"

static void check_sampling(bool tiny) {
    uint32_t n = tiny ? 501 : 151936, n_rounds = tiny ? 10 : 200, wrong = 0, wrong_digest = 0;
    float *logits = host_new(n * sizeof(float)), *on = device_new(n * 4), *z = device_new(n * 4);
    int32_t none = -1, *index = device_of(&none, 4), *sampled = device_new(4);
    struct sample_out *out = device_new(sizeof(*out)), got;
    struct sample_state *state = device_new(sizeof(*state));
    struct sampler sampler;

    must(api->fill(state, 0, sizeof(*state), stream), "fill");
    if (sampler_init(&sampler, n) < 0)
        abort();
    for (uint32_t round = 0; round < n_rounds; round++) {
        struct engine_param p = {.temperature = round % 5 ? 0.3f * (float)(round % 5) : 0,
                                 .top_p = round % 2 ? 0.9f : 1,
                                 .min_p = round % 7 ? 0 : 0.05f,
                                 .repetition = 1,
                                 .top_k = round % 3 ? 0 : 1 + round * 3,
                                 .seed = rng_next(&rng)};
        struct engine_want want = {
            .out_pos = round, .what = WANT_SAMPLE, .n_top = 5, .logprob = true};
        struct sample_want w = {.temperature = p.temperature,
                                .top_p = p.top_p,
                                .min_p = p.min_p,
                                .repetition = 1,
                                .seed = p.seed,
                                .out_pos = round,
                                .top_k = p.top_k,
                                .fed = -1,
                                .target = -1,
                                .n_top = 5,
                                .logprob = 1};
        struct engine_top top[ENGINE_TOP_MAX];
        struct engine_out host;

        for (uint32_t i = 0; i < n; i++)
            logits[i] = gauss() * (round % 4 ? 3.0f : 0.01f);
        must(api->copy(on, logits, n * 4, CUDA_TO_DEVICE, stream), "copy");
        struct sample_want *w_on = device_of(&w, sizeof(w));
        struct sample_args a = {.want = w_on,
                                .state = state,
                                .list_max = round % 6 == 5 ? 20 : SAMPLE_LIST,
                                .logits = on,
                                .z = z,
                                .mask_index = index,
                                .sampled = sampled,
                                .out = out,
                                .n_vocab = n,
                                .digest = true};
        launch_sampling(&a, &w, 1, 1u << round % 6);
        fetch(&got, out, sizeof(got));
        struct sample_job job = {logits, &want, &p, NULL, -1, -1, true};
        sampler_run(&sampler, &job, &host, top);
        wrong += got.token != host.token || got.logprob != host.logprob || got.n_top != 5 ||
                 got.top[4].token != top[4].token || got.top[4].logprob != top[4].logprob;
        wrong_digest += got.digest != host.digest;
        api->release(w_on);
    }
    report_check("samples that differ from the host's", wrong, 0);
    report_check("digests that differ from the host's", wrong_digest, 0);
    sampler_deinit(&sampler);
    free(logits);
    api->release(on);
    api->release(z);
    api->release(index);
    api->release(sampled);
    api->release(out);
    api->release(state);
}

/* Measures the sampling of @n rows of a large vocabulary, each by @n_blocks blocks. The lower
 * bound is the time of reading all logits once. */
static void time_sampling(const char *what, struct sample_want w, uint32_t n, uint32_t n_blocks,
                          double bandwidth) {
    enum { VOCAB = 151936, TIMES = 8 };
    size_t bytes = (size_t)n * VOCAB * sizeof(float);
    float *logits = host_new(bytes);
    struct sample_want *wants = host_new(n * sizeof(w));
    int32_t *none = host_new(n * sizeof(*none));
    double took[9];
    char name[80];

    w.fed = w.target = -1;
    w.repetition = 1;
    for (size_t i = 0; i < (size_t)n * VOCAB; i++)
        logits[i] = gauss() * 2.5f;
    for (uint32_t i = 0; i < n; i++) {
        wants[i] = w;
        wants[i].seed = i;
        none[i] = -1;
    }
    struct sample_args a = {.want = device_of(wants, n * sizeof(w)),
                            .state = device_new(n * sizeof(*a.state)),
                            .logits = device_of(logits, bytes),
                            .z = device_new(bytes),
                            .mask_index = device_of(none, n * sizeof(*none)),
                            .sampled = device_new(n * sizeof(int32_t)),
                            .out = device_new(n * sizeof(*a.out)),
                            .n_vocab = VOCAB,
                            .digest = true,
                            .list_max = SAMPLE_LIST};

    must(api->fill(a.state, 0, n * sizeof(*a.state), stream), "fill");
    for (int i = 0; i < 9; i++) {
        must(api->stream_wait(stream), "sampling");
        double start = report_now();

        for (int k = 0; k < TIMES; k++)
            launch_sampling(&a, &w, n, n_blocks);
        must(api->stream_wait(stream), "sampling");
        took[i] = (report_now() - start) / TIMES;
    }
    qsort(took, 9, sizeof(*took), compare_doubles);
    snprintf(name, sizeof(name), "sampling, %s, %u rows by %u blocks", what, n, n_blocks);
    report_time(name, took[4], (double)bytes, bandwidth);
    const void *done[] = {a.want, a.state, a.logits, a.z, a.mask_index, a.sampled, a.out};
    for (size_t i = 0; i < ARRAY_SIZE(done); i++)
        api->release((void *)done[i]);
    free(logits);
    free(wants);
    free(none);
}

static void time_samplings(double bandwidth) {
    static const struct {
        const char *what;
        struct sample_want w;
    } cases[] = {{"greedy", {.top_p = 1}},
                 {"temperature 1", {.temperature = 1, .top_p = 1}},
                 {"top_p 0.95", {.temperature = 0.7f, .top_p = 0.95f}},
                 {"top_k 20, top_p 0.9", {.temperature = 1, .top_p = 0.9f, .top_k = 20}},
                 {"5 top log probabilities", {.top_p = 1, .n_top = 5}}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        time_sampling(cases[i].what, cases[i].w, 1, 1, bandwidth);
        time_sampling(cases[i].what, cases[i].w, 1, SAMPLE_BLOCKS, bandwidth);
        time_sampling(cases[i].what, cases[i].w, 64, 2, bandwidth);
    }
}
