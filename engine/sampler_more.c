/*
 * Samplers that few requests use, compiled once and written for clarity. As in sampler_core.c, sums
 * of weights are of integers in 2^-40 fixed point, and floating-point sums are in the order of ids,
 * so each sampler is the same function of logits and tokens on every CPU.
 */

#include <math.h>

#include "engine/sampler.h"
#include "engine/shared/sampling.h"

#define PENALTY_MAX 1e30 /* largest penalty of DRY: beyond it a token is as good as banned */

/* -- DRY --------------------------------------------------------------------------------------- */

static bool breaks(const struct engine_samplers *m, int32_t t) {
    return t < 0 || (m->breakers && m->breakers[t / 32] >> (t % 32) & 1);
}

/* Copies the last tokens to s->recent, last first. Returns their number. */
static uint32_t copy_recent(struct sampler *s, const struct sample_job *job) {
    const struct engine_param *p = job->param;
    uint32_t n = 0, last_n = p->samplers->dry_last_n;
    uint32_t most = SAMPLER_RECENT_MAX;

    if (last_n)
        most = MIN(last_n, SAMPLER_RECENT_MAX);
    if (job->fed >= 0)
        s->recent[n++] = job->fed;
    for (uint32_t i = p->n_tokens; i > 0 && n < most; i--)
        s->recent[n++] = p->tokens[i - 1];
    return n;
}

/* Sets s->repeat_length[k], k from 1 to @n - 1, to the number of last tokens that also occurred k
 * tokens earlier: the Z function of s->recent (Gusfield 1997), in linear time for any input. */
static void find_repeats(struct sampler *s, uint32_t n) {
    uint32_t from = 0, to = 0; /* [from, to) is known to be equal to [0, to - from) */

    for (uint32_t k = 1; k < n; k++) {
        uint32_t len = 0;

        if (k < to)
            len = MIN(s->repeat_length[k - from], to - k);
        while (k + len < n && s->recent[len] == s->recent[k + len])
            len++;
        s->repeat_length[k] = len;
        if (k + len > to) {
            from = k;
            to = k + len;
        }
    }
}

static float penalty_of(const struct engine_samplers *m, uint32_t length) {
    double penalty = (double)m->dry_multiplier;

    for (uint32_t i = m->dry_allowed; i < length && penalty < PENALTY_MAX && m->dry_base > 1; i++)
        penalty *= (double)m->dry_base;
    return (float)MIN(penalty, PENALTY_MAX);
}

/* A token that would extend a repetition of @length tokens, the longest one, loses multiplier *
 * base ^ (length - allowed) if @length is at least the allowed length. Repetitions do not extend
 * across breakers, and breakers are not penalised (p-e-w, "DRY: a modern repetition penalty",
 * text-generation-webui pull request 5677). */
void sampler_dry(struct sampler *s, const struct sample_job *job) {
    const struct engine_samplers *m = job->param->samplers;
    uint32_t n, reach = 0, least = MAX(m->dry_allowed, 1u);

    if (m->dry_multiplier <= 0)
        return;
    n = copy_recent(s, job);
    while (reach < n && !breaks(m, s->recent[reach]))
        reach++;
    if (reach < least)
        return;
    find_repeats(s, n);
    for (uint32_t k = 1; k < n; k++) {
        uint32_t len = MIN(s->repeat_length[k], reach);
        int32_t next = s->recent[k - 1];

        if (len >= least && !breaks(m, next))
            s->count[next] = MAX(s->count[next], len);
    }
    for (uint32_t k = 1; k < n; k++) {
        int32_t next = s->recent[k - 1];

        if (next < 0 || !s->count[next])
            continue;
        s->z[next] -= penalty_of(m, s->count[next]);
        s->count[next] = 0;
    }
}

/* -- truncation -------------------------------------------------------------------------------- */

static float sampler_max(const struct sampler *s) {
    float max = -INFINITY;

    for (uint32_t i = 0; i < s->n_vocab; i++)
        max = MAX(max, s->z[i]);
    return max;
}

/* Keeps logits of at least max - n * sigma, where sigma is the standard deviation over the tokens
 * that are still possible (Tang et al. 2024, "Top-n-sigma: not all logits are you need"). */
void sampler_top_n_sigma(struct sampler *s, float n_sigma) {
    double sum = 0, squares = 0, n = 0;
    float max = sampler_max(s);

    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (s->z[i] > -INFINITY) {
            sum += (double)s->z[i];
            n++;
        }
    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (s->z[i] > -INFINITY) {
            double d = (double)s->z[i] - sum / n;

            squares += d * d;
        }
    double least = (double)max - (double)n_sigma * sqrt(squares / n);
    for (uint32_t i = 0; i < s->n_vocab; i++)
        if ((double)s->z[i] < least)
            s->z[i] = -INFINITY;
}

/* Keeps the tokens whose surprise -log p is nearest to its mean, the entropy, as many as have @mass
 * of the probability (Meister et al. 2023, "Locally typical sampling"); ties go to the lowest id.
 * With x = (max - l) / T, surprise and entropy are x and its mean, plus the same constant. */
void sampler_typical(struct sampler *s, float mass, float inv_t) {
    uint64_t total = 0, moment = 0, sum = 0;
    float max = sampler_max(s);
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_vocab; i++) {
        uint64_t w = samp_weight(s->z[i], max, inv_t);

        total += w;
        if (w)
            moment += (uint64_t)((double)w * (double)((max - s->z[i]) * inv_t) + 0.5);
    }
    double mean = (double)moment / (double)total;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        float far = (float)fabs((double)((max - s->z[i]) * inv_t) - mean);

        if (samp_weight(s->z[i], max, inv_t))
            /* far >= 0, so its bits have its order */
            s->rank[n++] = (uint64_t)mx_bits_of(far) << 32 | i;
        else
            s->z[i] = -INFINITY;
    }
    for (uint32_t i = n / 2; i-- > 0;)
        sampler_sift_down(s->rank, n, i);
    while (n > 0 && (double)sum < (double)mass * (double)total) {
        sum += samp_weight(s->z[(uint32_t)s->rank[0]], max, inv_t);
        s->rank[0] = s->rank[--n];
        sampler_sift_down(s->rank, n, 0);
    }
    for (uint32_t i = 0; i < n; i++)
        s->z[(uint32_t)s->rank[i]] = -INFINITY;
}

/* With the request's probability (drawn from its own noise), removes all tokens of at least the
 * threshold's probability except the least probable of them, the highest id among equals (p-e-w,
 * "Exclude Top Choices", text-generation-webui pull request 6335). */
void sampler_xtc(struct sampler *s, const struct sample_job *job, float inv_t) {
    const struct engine_param *p = job->param;
    const struct engine_samplers *m = p->samplers;
    /* A random word that no token uses, so that the noise of tokens does not change. */
    uint32_t word = rng_token_word(p->seed, p->choice, job->want->out_pos, UINT32_MAX);
    uint32_t n = 0, least = 0;
    uint64_t total = 0;
    float max = sampler_max(s);

    if (((double)word + 0.5) * 0x1p-32 >= (double)m->xtc_probability)
        return;
    for (uint32_t i = 0; i < s->n_vocab; i++)
        total += samp_weight(s->z[i], max, inv_t);
    double bar = (double)m->xtc_threshold * (double)total;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (s->z[i] == -INFINITY || (double)samp_weight(s->z[i], max, inv_t) < bar)
            continue;
        if (n++ == 0 || s->z[i] <= s->z[least])
            least = i;
    }
    for (uint32_t i = 0; i < s->n_vocab && n >= 2; i++)
        if (i != least && (double)samp_weight(s->z[i], max, inv_t) >= bar)
            s->z[i] = -INFINITY;
}
