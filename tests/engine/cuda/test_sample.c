/* Sampling on the device against the sampler of the host: the same token, log probabilities and digest for the
 * same logits, whatever the parameters. */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <string.h>
#include "base/rng.h"
#include "engine/cuda/kernels.h"
#include "engine/sampler.h"
#include "tests/engine/cuda/simt.h"

enum { VOCAB = 1003, LISTS = 40 };

struct scene {
    float logits[VOCAB], z[VOCAB];
    uint32_t mask[(VOCAB + 31) / 32];
    int32_t tokens[LISTS], bans[LISTS], fed, sampled;
    struct engine_bias bias[LISTS];
    struct engine_param param;
    struct engine_want want;
    bool masked;
};

static float gauss(struct rng *r) {
    return (float)(rng_unit(r) + rng_unit(r) + rng_unit(r) - 1.5) * 4;
}

static void make_logits(struct scene *s, struct rng *r) {
    uint32_t kind = rng_below(r, 6);

    for (uint32_t i = 0; i < VOCAB; i++) {
        float g = gauss(r);

        s->logits[i] = kind == 0   ? 0.5f                    /* all equal */
                       : kind == 1 ? roundf(g)               /* many ties */
                       : kind == 2 ? g * 20                  /* one stands out */
                       : kind == 3 ? (i % 9 ? -INFINITY : g) /* few are possible */
                                   : g;
    }
    if (rng_below(r, 8) == 0)
        s->logits[rng_below(r, VOCAB)] = NAN;
    if (rng_below(r, 8) == 0)
        s->logits[rng_below(r, VOCAB)] = INFINITY;
    if (rng_below(r, 16) == 0)
        for (uint32_t i = 0; i < VOCAB; i++)
            s->logits[i] = -INFINITY;
}

static void make(struct scene *s, struct rng *r) {
    static const float temperatures[] = {0, 1e-6f, 0.2f, 1, 1, 2};

    *s = (struct scene){.fed = rng_below(r, 2) ? (int32_t)rng_below(r, VOCAB) : -1};
    make_logits(s, r);
    for (uint32_t i = 0; i < LISTS; i++) {
        s->tokens[i] = (int32_t)rng_below(r, 60);
        s->bans[i] = (int32_t)rng_below(r, VOCAB);
        s->bias[i] = (struct engine_bias){(int32_t)rng_below(r, 30), gauss(r)};
    }
    s->param = (struct engine_param){
        .temperature = temperatures[rng_below(r, 6)],
        .top_p = rng_below(r, 2) ? 1 : (float)rng_unit(r),
        .min_p = rng_below(r, 4) ? 0 : (float)rng_unit(r) * 0.3f,
        .repetition = rng_below(r, 3) ? 1 : 1.3f,
        .presence = rng_below(r, 3) ? 0 : 0.7f,
        .frequency = rng_below(r, 3) ? 0 : 0.4f,
        .top_k = rng_below(r, 2)   ? 0
                 : rng_below(r, 2) ? 1 + rng_below(r, 30)
                                   : rng_below(r, 1200),
        .seed = rng_next(r),
        .choice = rng_below(r, 3),
        .n_bias = rng_below(r, 3) ? 0 : rng_below(r, LISTS),
        .n_bans = rng_below(r, 3) ? 0 : rng_below(r, LISTS),
        .bias = s->bias,
        .bans = s->bans,
        .tokens = s->tokens,
        .n_prompt = rng_below(r, LISTS / 2),
        .n_tokens = LISTS,
    };
    s->want = (struct engine_want){.out_pos = rng_below(r, 1000),
                                   .what = WANT_SAMPLE,
                                   .n_top = (uint8_t)(rng_below(r, 2) ? 0 : rng_below(r, 21)),
                                   .logprob = rng_below(r, 2)};
    s->masked = rng_below(r, 3) == 0;
    for (size_t i = 0; i < ARRAY_SIZE(s->mask); i++)
        s->mask[i] = (uint32_t)rng_next(r) & (uint32_t)rng_next(r);
}

static uint32_t list_penalties(const struct engine_param *p, struct penal *list) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_tokens; i++) {
        uint32_t j = 0;

        while (j < n && list[j].token != p->tokens[i])
            j++;
        if (j == n)
            list[n++] = (struct penal){p->tokens[i], 0};
        list[j].count += i >= p->n_prompt;
    }
    return n;
}

static struct sample_state state; /* as it is left by the rounds before */

/* @n_blocks a row, with room for @list_max tokens on its list. */
static void run_device(struct scene *s, uint32_t n_blocks, uint32_t list_max,
                       struct sample_out *out) {
    const struct engine_param *p = &s->param;
    struct penal penal[LISTS];
    struct bias_entry bias[LISTS];
    int32_t mask_index = s->masked ? 0 : -1;

    for (uint32_t i = 0; i < LISTS; i++)
        bias[i] = (struct bias_entry){s->bias[i].token, s->bias[i].bias};
    struct sample_want w = {
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .repetition = p->repetition,
        .presence = p->presence,
        .frequency = p->frequency,
        .seed = p->seed,
        .choice = p->choice,
        .out_pos = s->want.out_pos,
        .top_k = p->top_k,
        .n_bias = p->n_bias,
        .n_bans = p->n_bans,
        .n_penals = list_penalties(p, penal),
        .fed = s->fed >= 0 ? 0 : -1,
        .target = -1,
        .n_top = s->want.n_top,
        .logprob = s->want.logprob,
    };
    struct sample_args a = {
        .want = &w,
        .state = &state,
        .list_max = list_max,
        .logits = s->logits,
        .z = s->z,
        .bias = bias,
        .ban = s->bans,
        .penal = penal,
        .mask = s->mask,
        .mask_index = &mask_index,
        .fed_from = &s->fed,
        .sampled = &s->sampled,
        .out = out,
        .n_vocab = VOCAB,
        .mask_words = ARRAY_SIZE(s->mask),
        .digest = true,
    };
    struct simt_dim grid = {n_blocks, 1, 1};
    uint32_t needs = sample_needs(&w, VOCAB);

    simt_launch(kernel_sample_scan, grid, 0, &a);
    if (needs & SAMPLE_WEIGH)
        simt_launch(kernel_sample_weigh, grid, 0, &a);
    if (needs & SAMPLE_DRAW)
        simt_launch(kernel_sample_draw, grid, 0, &a);
}

static void compare(const struct scene *s, const struct engine_out *host,
                    const struct sample_out *device, int round) {
    cr_assert(device->token == host->token, "round %d: %d, not %d", round, device->token,
              host->token);
    cr_expect(s->sampled == host->token && device->digest == host->digest, "round %d", round);
    cr_expect(device->logprob == host->logprob, "round %d: %g, not %g", round,
              (double)device->logprob, (double)host->logprob);
    cr_assert(device->n_top == host->n_top, "round %d: %u, not %u", round, device->n_top,
              host->n_top);
    for (uint32_t i = 0; i < host->n_top; i++)
        cr_expect(device->top[i].token == host->top[i].token &&
                      device->top[i].logprob == host->top[i].logprob,
                  "round %d, top %u", round, i);
}

/* More blocks than there are quads for them, lists that are too small: nothing of it is seen. */
Test(cuda_sample, the_device_chooses_as_the_host_does) {
    static const uint32_t blocks[] = {1, 2, 3, 5}, lists[] = {SAMPLE_LIST, 60, 0};
    static struct scene s;
    struct sampler sampler;
    struct rng r = {11};

    cr_assert(sampler_init(&sampler, VOCAB) == 0);
    for (int round = 0; round < 400; round++) {
        struct engine_top top[ENGINE_TOP_MAX];
        struct engine_out host;
        struct sample_out device;

        make(&s, &r);
        struct sample_job job = {s.logits, &s.want, &s.param, s.masked ? s.mask : NULL,
                                 s.fed,    -1,      true};
        sampler_run(&sampler, &job, &host, top);
        simt_order((uint64_t)round);
        uint32_t n_blocks = round % 25 ? blocks[round % 4] : SAMPLE_BLOCKS;
        run_device(&s, n_blocks, lists[round % 3], &device);
        compare(&s, &host, &device, round);
    }
    sampler_deinit(&sampler);
}
