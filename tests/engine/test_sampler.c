/*
 * Tests the sampler against a naive one that sorts everything, on random logits and parameters; its
 * two builds against each other, bit by bit; and its samples against the softmax that they should
 * follow.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "engine/sampler.h"
#include "engine/shared/sampling.h"
#include "tests/support/few.h"
#include "tests/support/sample_scene.h"

enum { VOCAB = 777, SCENES = FEWEST(6000, 2000), DRAWS = FEWER(100000, 10000) };

/* ---- the naive sampler */

static float values[VOCAB];

static int by_value(const void *x, const void *y) {
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

    if (values[a] != values[b])
        return values[a] > values[b] ? -1 : 1;
    return a < b ? -1 : 1;
}

static void sort(const float *l, uint32_t order[VOCAB]) {
    for (uint32_t i = 0; i < VOCAB; i++) {
        values[i] = samp_clean(l[i]);
        order[i] = i;
    }
    qsort(order, VOCAB, sizeof(*order), by_value);
}

static uint32_t count(const struct sample_scene *s, uint32_t token, bool prompt_too) {
    uint32_t n = s->job.fed == (int32_t)token;

    for (uint32_t i = prompt_too ? 0 : s->param.n_prompt; i < s->param.n_tokens; i++)
        n += s->tokens[i] == (int32_t)token;
    return n;
}

static int32_t token_back(const struct sample_scene *s, uint32_t k) {
    if (s->job.fed >= 0 && k == 0)
        return s->job.fed;
    return s->tokens[s->param.n_tokens - 1 - (k - (s->job.fed >= 0))];
}

static bool is_breaker(const struct sample_scene *s, int32_t t) {
    return s->samplers.breakers && s->samplers.breakers[t / 32] >> (t % 32) & 1;
}

/* DRY by its definition: for each occurrence of token @t, how many tokens before it equal those at
 * the end. */
static float dry(const struct sample_scene *s, int32_t t) {
    const struct engine_samplers *m = &s->samplers;
    uint32_t n = s->param.n_tokens + (s->job.fed >= 0), longest = 0;

    n = m->dry_last_n ? MIN(n, m->dry_last_n) : n;
    for (uint32_t at = 0; at + 1 < n; at++) {
        uint32_t len = 0;

        while (token_back(s, at) == t && at + 1 + len < n &&
               token_back(s, len) == token_back(s, at + 1 + len) &&
               !is_breaker(s, token_back(s, len)))
            len++;
        longest = MAX(longest, len);
    }
    if (m->dry_multiplier == 0 || longest == 0 || longest < m->dry_allowed || is_breaker(s, t))
        return 0;
    return (float)fmin(1e30, (double)m->dry_multiplier *
                                 pow((double)m->dry_base, longest - m->dry_allowed));
}

static float processed(const struct sample_scene *s, uint32_t i) {
    const struct engine_param *p = &s->param;
    float x = samp_clean(s->logits[i]);

    for (uint32_t k = 0; k < p->n_bias; k++)
        if (s->bias[k].token == (int32_t)i)
            x += s->bias[k].bias;
    if (count(s, i, true) > 0)
        x = x > 0 ? x / p->repetition : x * p->repetition;
    if (count(s, i, false) > 0)
        x = x - (float)count(s, i, false) * p->frequency - p->presence;
    if (p->samplers)
        x -= dry(s, (int32_t)i);
    for (uint32_t k = 0; k < p->n_bans; k++)
        if (s->bans[k] == (int32_t)i)
            x = -INFINITY;
    if (s->job.mask && !(s->mask[i / 32] >> (i % 32) & 1))
        x = -INFINITY;
    return samp_clean(x);
}

/* Returns how many of the sorted tokens top_k, top_p and min_p keep. */
static uint32_t n_kept(const struct engine_param *p, const float *z, const uint32_t *order) {
    uint64_t total = 0, sum = 0;
    uint32_t n = 0;

    while (n < VOCAB && z[order[n]] > -INFINITY && (p->top_k == 0 || n < p->top_k))
        n++;
    float max = z[order[0]], inv_t = 1 / p->temperature;
    for (uint32_t i = 0; i < n; i++)
        total += samp_weight(z[order[i]], max, inv_t);
    for (uint32_t i = 0; i < n && p->top_p < 1; i++) {
        sum += samp_weight(z[order[i]], max, inv_t);
        if ((double)sum >= (double)p->top_p * (double)total)
            n = i + 1;
    }
    while (n > 1 && p->min_p > 0 &&
           (double)z[order[n - 1]] <
               (double)max + (double)p->temperature * mx_log((double)p->min_p))
        n--;
    return n;
}

static void keep(const struct engine_param *p, float *z) {
    uint32_t order[VOCAB];

    sort(z, order);
    for (uint32_t i = n_kept(p, z, order); i < VOCAB; i++)
        z[order[i]] = -INFINITY;
}

static double weight(const float *z, uint32_t i, float inv_t) {
    float max = -INFINITY;

    for (uint32_t k = 0; k < VOCAB; k++)
        max = fmaxf(max, z[k]);
    return (double)samp_weight(z[i], max, inv_t);
}

static void keep_typical(float *z, float mass, float inv_t) {
    double p[VOCAB], total = 0, entropy = 0, sum = 0;
    float distance[VOCAB];
    uint32_t order[VOCAB], n = 0;

    for (uint32_t i = 0; i < VOCAB; i++)
        total += p[i] = weight(z, i, inv_t);
    for (uint32_t i = 0; i < VOCAB; i++)
        entropy -= p[i] > 0 ? p[i] / total * log(p[i] / total) : 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        distance[i] = p[i] > 0 ? -(float)fabs(-log(p[i] / total) - entropy) : -INFINITY;
    sort(distance, order);
    while (n < VOCAB && sum < (double)mass * total)
        sum += p[order[n++]];
    for (; n < VOCAB; n++)
        z[order[n]] = -INFINITY;
}

static void keep_sigma(float *z, float n_sigma) {
    double n = 0, mean = 0, variance = 0, max = -INFINITY;

    for (uint32_t i = 0; i < VOCAB; i++)
        if (z[i] > -INFINITY) {
            n++;
            mean += (double)z[i];
            max = fmax(max, (double)z[i]);
        }
    mean /= n;
    for (uint32_t i = 0; i < VOCAB; i++)
        if (z[i] > -INFINITY)
            variance += ((double)z[i] - mean) * ((double)z[i] - mean) / n;
    for (uint32_t i = 0; i < VOCAB; i++)
        if ((double)z[i] < max - (double)n_sigma * sqrt(variance))
            z[i] = -INFINITY;
}

static void exclude_top(const struct sample_scene *s, float *z, float inv_t) {
    const struct engine_param *p = &s->param;
    uint32_t word = rng_token_word(p->seed, p->choice, s->want.out_pos, UINT32_MAX);
    uint32_t order[VOCAB], n = 0;
    double w[VOCAB], total = 0;

    if (((double)word + 0.5) / 0x1p32 >= (double)s->samplers.xtc_probability)
        return;
    for (uint32_t i = 0; i < VOCAB; i++)
        total += w[i] = weight(z, i, inv_t);
    sort(z, order);
    while (n < VOCAB && z[order[n]] > -INFINITY &&
           w[order[n]] >= (double)s->samplers.xtc_threshold * total)
        n++;
    for (uint32_t i = 0; i + 1 < n; i++)
        z[order[i]] = -INFINITY;
}

static void keep_more(const struct sample_scene *s, float *z) {
    float inv_t = 1 / s->param.temperature;
    struct engine_param p = s->param;

    if (s->samplers.top_n_sigma > 0)
        keep_sigma(z, s->samplers.top_n_sigma);
    if (s->samplers.typical_p > 0) {
        keep(&(struct engine_param){.top_k = p.top_k, .top_p = 1, .temperature = p.temperature}, z);
        keep_typical(z, s->samplers.typical_p, inv_t);
        p.top_k = 0;
    }
    keep(&p, z);
    if (s->samplers.xtc_probability > 0)
        exclude_top(s, z, inv_t);
}

/* Returns -1 if nothing is possible. */
static int32_t naive(const struct sample_scene *s) {
    const struct engine_param *p = &s->param;
    uint32_t order[VOCAB], best = 0;
    float z[VOCAB];
    double most = -INFINITY;

    for (uint32_t i = 0; i < VOCAB; i++)
        z[i] = processed(s, i);
    sort(z, order);
    if (z[order[0]] == -INFINITY)
        return -1;
    if (p->temperature < SAMP_T_MIN)
        return (int32_t)order[0];
    if (p->samplers) {
        keep_more(s, z);
        sort(z, order);
    }
    uint32_t n = p->samplers ? VOCAB : n_kept(p, z, order);
    for (uint32_t k = 0; k < n && z[order[k]] > -INFINITY; k++) {
        uint32_t i = order[k];
        double key =
            samp_key(z[i], p->temperature, rng_token_word(p->seed, p->choice, s->want.out_pos, i));

        if (key > most || (key == most && i < best)) {
            most = key;
            best = i;
        }
    }
    return (int32_t)best;
}

static double softmax_log(const float *l, uint32_t token) {
    double sum = 0, max = -INFINITY;

    for (uint32_t i = 0; i < VOCAB; i++)
        max = fmax(max, (double)samp_clean(l[i]));
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += exp((double)samp_clean(l[i]) - max);
    return fmax((double)samp_clean(l[token]) - max - log(sum), (double)SAMP_LOGPROB_MIN);
}

Test(sampler, is_the_chain_written_plainly) {
    struct sampler s;
    struct rng r = {1};
    uint32_t n_possible = 0;

    cr_assert_eq(sampler_init(&s, VOCAB), 0);
    for (uint32_t k = 0; k < SCENES; k++) {
        struct engine_top top[ENGINE_TOP_MAX];
        struct engine_out out;
        uint32_t order[VOCAB];
        struct sample_scene scene;

        sample_scene_make(&scene, VOCAB, &r);
        scene.want.logprob = true;
        int32_t token = naive(&scene);
        sampler_run(&s, &scene.job, &out, top);
        if (token < 0)
            continue; /* results of that case: see nothing_possible */
        n_possible++;
        cr_assert_eq(out.token, token, "scene %u: %d, naive %d", k, out.token, token);
        cr_assert_float_eq((double)out.logprob, softmax_log(scene.logits, (uint32_t)token), 2e-5);
        sort(scene.logits, order);
        for (uint32_t i = 0; i < out.n_top; i++) {
            cr_assert_eq(top[i].token, (int32_t)order[i], "scene %u, top %u", k, i);
            cr_assert_float_eq((double)top[i].logprob, softmax_log(scene.logits, order[i]), 2e-5);
        }
    }
    cr_assert_gt(n_possible, SCENES / 2);
    sampler_deinit(&s);
}

/* Sums are rounded differently, so a token at the very border of a set may be in only one of the
 * two. */
Test(sampler, more_samplers_are_what_their_papers_say) {
    struct sampler s;
    struct rng r = {3};
    uint32_t n_wrong = 0, n_changed = 0;

    cr_assert_eq(sampler_init(&s, VOCAB), 0);
    for (uint32_t k = 0; k < SCENES / 3; k++) {
        struct engine_top top[2][ENGINE_TOP_MAX];
        struct engine_out out[3];
        struct sample_scene scene;

        sample_scene_make_more(&scene, VOCAB, &r);
        int32_t token = naive(&scene);
        sampler_run_plain(&s, &scene.job, &out[0], top[0]);
        if (s.wide) {
            sampler_run(&s, &scene.job, &out[1], top[1]);
            cr_assert_eq(out[0].token, out[1].token, "scene %u", k);
        }
        n_wrong += token >= 0 && out[0].token != token;
        scene.param.samplers = NULL;
        sampler_run(&s, &scene.job, &out[2], top[0]);
        n_changed += out[0].token != out[2].token;
    }
    cr_expect_leq(n_wrong, 2, "%u", n_wrong);
    cr_expect_gt(n_changed, SCENES / 20, "%u wrong, %u changed", n_wrong, n_changed);
    for (uint32_t i = 0; i < VOCAB; i++)
        cr_assert_eq(s.count[i], 0);
    sampler_deinit(&s);
}

Test(sampler, both_builds_give_the_same_bits) {
    struct sampler s;
    struct rng r = {2};

    cr_assert_eq(sampler_init(&s, VOCAB), 0);
    if (!s.wide)
        cr_skip_test("this CPU has no AVX2");
    for (uint32_t k = 0; k < SCENES; k++) {
        struct engine_top top[2][ENGINE_TOP_MAX];
        struct engine_out out[2];
        struct sample_scene scene;

        sample_scene_make(&scene, VOCAB, &r);
        scene.want.logprob = true;
        sampler_run_plain(&s, &scene.job, &out[0], top[0]);
        sampler_run(&s, &scene.job, &out[1], top[1]);
        cr_assert_eq(out[0].token, out[1].token, "scene %u", k);
        cr_assert_eq(out[0].digest, out[1].digest);
        cr_assert_eq(mx_bits_of(out[0].logprob), mx_bits_of(out[1].logprob));
        cr_assert_eq(out[0].n_top, out[1].n_top);
        cr_assert_arr_eq(top[0], top[1], out[0].n_top * sizeof(top[0][0]));
    }
    sampler_deinit(&s);
}

Test(sampler, says_a_token_that_may_be_said_when_none_is_likely) {
    struct sampler s;
    struct sample_scene scene = {0};
    struct engine_out out;

    cr_assert_eq(sampler_init(&s, VOCAB), 0);
    for (uint32_t i = 0; i < VOCAB; i++)
        scene.logits[i] = -INFINITY;
    scene.mask[2] = 0x30; /* tokens 68 and 69 */
    scene.bans[0] = 68;
    scene.param = (struct engine_param){
        .temperature = 1, .top_p = 1, .repetition = 1, .bans = scene.bans, .n_bans = 1};
    scene.want = (struct engine_want){.what = WANT_SAMPLE};
    scene.job = (struct sample_job){.logits = scene.logits,
                                    .want = &scene.want,
                                    .param = &scene.param,
                                    .mask = scene.mask,
                                    .fed = -1};
    sampler_run(&s, &scene.job, &out, NULL);
    cr_assert_eq(out.token, 69);
    sampler_deinit(&s);
}

/* ---- distribution of samples */

/* Chi-square of @DRAWS samples against the softmax of the processed logits at the temperature, as a
 * number of standard deviations (Wilson and Hilferty 1931). Tokens expected fewer than 5 times are
 * combined. */
static double deviation(struct sample_scene *scene, bool by_position) {
    double p[VOCAB], sum = 0, chi = 0, rest = 0, rest_seen = 0;
    float t = scene->param.temperature;
    uint32_t seen[VOCAB] = {0}, n_cells = 0;
    struct engine_out out;
    struct sampler s;

    cr_assert_eq(sampler_init(&s, VOCAB), 0);
    for (uint32_t k = 0; k < DRAWS; k++) {
        *(by_position ? &scene->want.out_pos : (uint32_t *)&scene->param.seed) = k;
        sampler_run(&s, &scene->job, &out, NULL);
        seen[out.token]++;
    }
    sampler_deinit(&s);
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += p[i] = exp((double)(processed(scene, i) / t));
    for (uint32_t i = 0; i < VOCAB; i++) {
        double expected = p[i] / sum * DRAWS;

        if (expected < 5) {
            rest += expected;
            rest_seen += seen[i];
        } else {
            chi += (seen[i] - expected) * (seen[i] - expected) / expected;
            n_cells++;
        }
    }
    if (rest > 0) {
        chi += (rest_seen - rest) * (rest_seen - rest) / rest;
        n_cells++;
    }
    double f = n_cells - 1;
    return (cbrt(chi / f) - (1 - 2 / (9 * f))) / sqrt(2 / (9 * f));
}

static struct sample_scene *drawing_scene(float temperature) {
    static struct sample_scene s;
    struct rng r = {3};

    s = (struct sample_scene){0};
    for (uint32_t i = 0; i < VOCAB; i++)
        s.logits[i] = i % 3 ? -INFINITY : sample_scene_gauss(&r);
    s.bias[0] = (struct engine_bias){6, 2};
    s.param = (struct engine_param){
        .temperature = temperature, .top_p = 1, .repetition = 1, .bias = s.bias, .n_bias = 1};
    s.want = (struct engine_want){.what = WANT_SAMPLE};
    s.job = (struct sample_job){.logits = s.logits, .want = &s.want, .param = &s.param, .fed = -1};
    return &s;
}

/* The seeds are fixed, and so are the figures; 4 deviations would occur once in 30,000 sets of
 * seeds. */
Test(sampler, draws_from_the_softmax_over_seeds) {
    cr_assert_lt(fabs(deviation(drawing_scene(1), false)), 4);
    cr_assert_lt(fabs(deviation(drawing_scene(0.5f), false)), 4);
}

Test(sampler, draws_from_the_softmax_over_positions) {
    cr_assert_lt(fabs(deviation(drawing_scene(1), true)), 4);
    cr_assert_lt(fabs(deviation(drawing_scene(1.7f), true)), 4);
}

#if FEWER(1, 0) /* one token gets all samples */
/* The tests above would notice a temperature that is off by 2 %. */
Test(sampler, the_distribution_test_is_not_blind) {
    struct sample_scene *s = drawing_scene(1);
    struct engine_param drawn = s->param;

    s->job.param = &drawn;
    s->param.temperature = 1.02f; /* expected counts */
    cr_assert_gt(fabs(deviation(s, true)), 4);
}
#endif

Test(sampler, exp_is_exp) {
    for (float x = -86; x <= 0; x += 0.00371f) {
        double e = exp((double)x);

        cr_assert_lt(fabs((double)samp_expf(x) - e), e * 2.5e-7, "exp(%g)", (double)x);
        cr_assert_eq(mx_bits_of(samp_expf(x)), mx_bits_of(mx_expf(x)));
    }
}
