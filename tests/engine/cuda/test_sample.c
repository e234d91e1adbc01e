/* Sampling on the device against the sampler of the host: the same token, log probabilities and
 * digest for the same logits, whatever the parameters. */

#include <criterion/criterion.h>

#include "engine/cuda/kernels.h"
#include "tests/engine/cuda/simt.h"
#include "tests/support/few.h"
#include "tests/support/sample_scene.h"

enum { VOCAB = SCENE_VOCAB_MAX };

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

static struct sample_state state; /* state as earlier rounds leave it */
static float z[VOCAB];
static int32_t sampled;

/* Runs with @n_blocks blocks for a row and room for @list_max tokens on its list. */
static void run_device(struct sample_scene *s, uint32_t n_blocks, uint32_t list_max,
                       struct sample_out *out) {
    const struct engine_param *p = &s->param;
    struct penal penal[SCENE_LISTS];
    struct bias_entry bias[SCENE_LISTS];
    int32_t mask_index = s->job.mask ? 0 : -1;

    for (uint32_t i = 0; i < SCENE_LISTS; i++)
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
        .fed = s->job.fed >= 0 ? 0 : -1,
        .target = -1,
        .n_top = s->want.n_top,
        .logprob = s->want.logprob,
    };
    struct sample_args a = {
        .want = &w,
        .state = &state,
        .list_max = list_max,
        .logits = s->logits,
        .z = z,
        .bias = bias,
        .ban = s->bans,
        .penal = penal,
        .mask = s->mask,
        .mask_index = &mask_index,
        .fed_from = &s->job.fed,
        .sampled = &sampled,
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

static void compare(const struct engine_out *host, const struct sample_out *device, int round) {
    cr_assert(device->token == host->token, "round %d: %d, not %d", round, device->token,
              host->token);
    cr_expect(sampled == host->token && device->digest == host->digest, "round %d", round);
    cr_expect(device->logprob == host->logprob, "round %d: %g, not %g", round,
              (double)device->logprob, (double)host->logprob);
    cr_assert(device->n_top == host->n_top, "round %d: %u, not %u", round, device->n_top,
              host->n_top);
    for (uint32_t i = 0; i < host->n_top; i++)
        cr_expect(device->top[i].token == host->top[i].token &&
                      device->top[i].logprob == host->top[i].logprob,
                  "round %d, top %u", round, i);
}

/* More blocks than a row has groups of four tokens, and lists that overflow: the results must not
 * differ. */
Test(cuda_sample, the_device_chooses_as_the_host_does) {
    static const uint32_t blocks[] = {1, 2, 3, 5}, lists[] = {SAMPLE_LIST, 60, 0};
    static struct sample_scene s;
    struct sampler sampler;
    struct rng r = {11};

    cr_assert(sampler_init(&sampler, VOCAB) == 0);
    for (int round = 0; round < FEWEST(400, 200); round++) {
        struct engine_top top[ENGINE_TOP_MAX];
        struct engine_out host;
        struct sample_out device;

        sample_scene_make(&s, VOCAB, &r);
        sampler_run(&sampler, &s.job, &host, top);
        simt_order((uint64_t)round);
        uint32_t n_blocks = round % 25 ? blocks[round % 4] : SAMPLE_BLOCKS;
        run_device(&s, n_blocks, lists[round % 3], &device);
        compare(&host, &device, round);
    }
    sampler_deinit(&sampler);
}
