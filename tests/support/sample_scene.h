#pragma once

/* sample_scene - random logits and sampling parameters, including extreme ones, for tests of
 * samplers. */

#include "base/rng.h"
#include "engine/sampler.h"

#define SCENE_VOCAB_MAX 1003
#define SCENE_LISTS 40 /* most tokens, biases and bans */

struct sample_scene {
    float logits[SCENE_VOCAB_MAX];
    uint32_t mask[(SCENE_VOCAB_MAX + 31) / 32];
    int32_t tokens[SCENE_LISTS], bans[SCENE_LISTS];
    struct engine_bias bias[SCENE_LISTS];
    struct engine_samplers samplers;
    uint32_t breakers[(SCENE_VOCAB_MAX + 31) / 32];
    struct engine_param param;
    struct engine_want want;
    /* points to the members above, so a scene must not be moved */
    struct sample_job job;
};

/* Makes a scene without the samplers of sampler_more.c. */
void sample_scene_make(struct sample_scene *s, uint32_t n_vocab, struct rng *r);
/* Makes a scene with them, each in every second scene, on tokens that repeat. */
void sample_scene_make_more(struct sample_scene *s, uint32_t n_vocab, struct rng *r);
/* Returns a number of about a normal distribution of standard deviation 2. */
float sample_scene_gauss(struct rng *r);
