#include "tests/support/sample_scene.h"

#include <math.h>

#include "base/util.h"

float sample_scene_gauss(struct rng *r) {
    return (float)(rng_unit(r) + rng_unit(r) + rng_unit(r) - 1.5) * 4;
}

static void make_logits(struct sample_scene *s, uint32_t n_vocab, struct rng *r) {
    uint32_t kind = rng_below(r, 6);

    for (uint32_t i = 0; i < n_vocab; i++) {
        float g = sample_scene_gauss(r);

        s->logits[i] = kind == 0   ? 0.5f                    /* all equal */
                       : kind == 1 ? roundf(g)               /* many ties */
                       : kind == 2 ? g * 20                  /* one logit is far above the others */
                       : kind == 3 ? (i % 9 ? -INFINITY : g) /* few tokens are possible */
                                   : g;
    }
    if (rng_below(r, 8) == 0)
        s->logits[rng_below(r, n_vocab)] = NAN;
    if (rng_below(r, 8) == 0)
        s->logits[rng_below(r, n_vocab)] = INFINITY;
    if (rng_below(r, 16) == 0)
        for (uint32_t i = 0; i < n_vocab; i++)
            s->logits[i] = -INFINITY;
}

static void make_param(struct sample_scene *s, uint32_t n_vocab, struct rng *r) {
    static const float temperatures[] = {0, 1e-6f, 0.2f, 1, 1, 2};

    s->param = (struct engine_param){
        .temperature = temperatures[rng_below(r, 6)],
        .top_p = rng_below(r, 2) ? 1 : (float)rng_unit(r),
        .min_p = rng_below(r, 4) ? 0 : (float)rng_unit(r) * 0.3f,
        .repetition = rng_below(r, 3) ? 1 : 1.3f,
        .presence = rng_below(r, 3) ? 0 : 0.7f,
        .frequency = rng_below(r, 3) ? 0 : 0.4f,
        .top_k = rng_below(r, 2)   ? 0
                 : rng_below(r, 2) ? 1 + rng_below(r, 30)
                                   : rng_below(r, n_vocab + 200),
        .seed = rng_next(r),
        .choice = rng_below(r, 3),
        .n_bias = rng_below(r, 3) ? 0 : rng_below(r, SCENE_LISTS),
        .n_bans = rng_below(r, 3) ? 0 : rng_below(r, SCENE_LISTS),
        .bias = s->bias,
        .bans = s->bans,
        .tokens = s->tokens,
        .n_prompt = rng_below(r, SCENE_LISTS / 2),
        .n_tokens = SCENE_LISTS,
    };
}

void sample_scene_make(struct sample_scene *s, uint32_t n_vocab, struct rng *r) {
    *s = (struct sample_scene){0};
    make_logits(s, n_vocab, r);
    make_param(s, n_vocab, r);
    for (uint32_t i = 0; i < SCENE_LISTS; i++) {
        s->tokens[i] = (int32_t)rng_below(r, 60);
        s->bans[i] = (int32_t)rng_below(r, n_vocab);
        s->bias[i] = (struct engine_bias){(int32_t)rng_below(r, 30), sample_scene_gauss(r)};
    }
    for (size_t i = 0; i < ARRAY_SIZE(s->mask); i++)
        s->mask[i] = (uint32_t)rng_next(r) & (uint32_t)rng_next(r);
    s->want = (struct engine_want){.out_pos = rng_below(r, 1000),
                                   .what = WANT_SAMPLE,
                                   .n_top = (uint8_t)(rng_below(r, 2) ? 0 : rng_below(r, 21)),
                                   .logprob = rng_below(r, 2)};
    s->job = (struct sample_job){.logits = s->logits,
                                 .want = &s->want,
                                 .param = &s->param,
                                 .mask = rng_below(r, 3) ? NULL : s->mask,
                                 .fed = rng_below(r, 2) ? (int32_t)rng_below(r, n_vocab) : -1,
                                 .target = -1,
                                 .digest = true};
}

void sample_scene_make_more(struct sample_scene *s, uint32_t n_vocab, struct rng *r) {
    sample_scene_make(s, n_vocab, r);
    s->samplers = (struct engine_samplers){
        .top_n_sigma = rng_below(r, 2) ? 0 : (float)rng_unit(r) * 3,
        .typical_p = rng_below(r, 2) ? 0 : (float)rng_unit(r),
        .xtc_probability = rng_below(r, 2) ? 0 : (float)rng_unit(r) * 1.5f,
        .xtc_threshold = rng_below(r, 4) ? (float)rng_unit(r) * 0.3f : 0,
        .dry_multiplier = rng_below(r, 2) ? 0 : (float)rng_unit(r) * 2,
        .dry_base = rng_below(r, 4) ? 1 + (float)rng_unit(r) * 2 : 1e20f,
        .dry_allowed = rng_below(r, 4),
        .dry_last_n = rng_below(r, 2) ? 0 : 1 + rng_below(r, SCENE_LISTS + 9),
        .breakers = rng_below(r, 2) ? NULL : s->breakers,
    };
    for (uint32_t i = 0; i < SCENE_LISTS; i++) /* lists with few tokens */
        s->tokens[i] = (int32_t)rng_below(r, 2 + rng_below(r, 3));
    if (s->job.fed >= 0)
        s->job.fed = (int32_t)rng_below(r, 4);
    s->breakers[0] = 1u << rng_below(r, 4);
    s->param.samplers = &s->samplers;
}
