/*
 * The sampler chain of docs/design/architecture.md (7), compiled twice: for any CPU
 * (sampler_run_plain) and for AVX2 with FMA (sampler_run_wide), where loops marked [v] become
 * vector code. Both give the same bits: sums are of integers, and every float operation is rounded
 * separately.
 *
 * Cost. A greedy row without processors is one pass over the logits. A sampled row must not compute
 * a double logarithm for each token. The noise is bounded, so a token far below the best candidate
 * cannot win whatever its random word is; blocks of 64 tokens are skipped by their maximum. For the
 * other tokens a float comparison of the word with exp((l - best) / T), with a tolerance of 0.1 %,
 * leaves a few dozen for the exact formula.
 *
 * top_k and top_p are turned into a cut, a pair (value, id): all tokens at or above it are kept. Up
 * to 256 tokens the cut is found with a heap, beyond that by histograms over the bits of the values
 * (select_cut).
 */

#include <assert.h>
#include <string.h>

#include "engine/sampler.h"
#include "engine/shared/sampling.h"

#ifdef SAMPLER_IS_WIDE
#define SAMPLER_RUN sampler_run_wide
#else
#define SAMPLER_RUN sampler_run_plain
#endif

#define BLOCK 64
#define SEEN 0x80000000u

/* Token i with logit l is kept when l > value, or l == value and i <= id. */
struct cut {
    float value;
    uint32_t id;
};

/* [v] Returns the largest logit, after NaN and infinities were replaced. */
static float max_clean(const float *l, uint32_t n) {
    float lane[16], max = -INFINITY;
    uint32_t i = 0;

    for (int j = 0; j < 16; j++)
        lane[j] = -INFINITY;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) {
            float x = samp_clean(l[i + (uint32_t)j]);

            lane[j] = x > lane[j] ? x : lane[j];
        }
    for (; i < n; i++)
        max = samp_clean(l[i]) > max ? samp_clean(l[i]) : max;
    for (int j = 0; j < 16; j++)
        max = lane[j] > max ? lane[j] : max;
    return max;
}

/* Returns the first token whose logit, after replacement, is @max; there is one. */
static uint32_t first_equal(const float *l, uint32_t n, float max) {
    uint32_t i = 0;

    for (; i + BLOCK <= n; i += BLOCK) {
        int hit = 0;

        for (uint32_t j = 0; j < BLOCK; j++) /* [v] */
            hit |= samp_clean(l[i + j]) == max;
        if (hit)
            break;
    }
    while (i < n && samp_clean(l[i]) != max)
        i++;
    assert(i < n);
    return i;
}

/* [v] Returns the sum of the weights at inverse temperature @inv_t. */
static uint64_t sum_weights(const float *l, uint32_t n, float max, float inv_t) {
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += samp_weight(samp_clean(l[i]), max, inv_t);
    return sum;
}

/* [v] */
static uint64_t digest(const float *l, uint32_t n) {
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += samp_digest_term(mx_bits_of(l[i]), i);
    return samp_digest_end(sum, n);
}

/* Lists the best @k tokens, best first, without those of -inf. Returns their number. */
static uint32_t sampler_best(const float *l, uint32_t n, uint32_t k, uint64_t *list) {
    uint32_t n_list = 0;
    float least = -INFINITY; /* only greater logits enter, so ties go to the lowest id */

    for (uint32_t b = 0; b < n && k > 0; b += BLOCK) {
        uint32_t end = MIN(b + BLOCK, n);
        int hit = 0;

        for (uint32_t i = b; i < end; i++) /* [v] */
            hit |= samp_clean(l[i]) > least;
        for (uint32_t i = b; hit && i < end; i++) {
            float x = samp_clean(l[i]);

            if (!(x > least))
                continue;
            if (n_list < k) {
                list[n_list++] = samp_rank(x, i);
                if (n_list < k)
                    continue;
                for (uint32_t j = k / 2; j-- > 0;)
                    sampler_sift_down(list, k, j);
            } else {
                list[0] = samp_rank(x, i);
                sampler_sift_down(list, k, 0);
            }
            least = samp_rank_value(list[0]);
        }
    }
    if (n_list < k)
        for (uint32_t j = n_list / 2; j-- > 0;)
            sampler_sift_down(list, n_list, j);
    for (uint32_t m = n_list; m > 1; m--) { /* heap sort of a min-heap: best first */
        uint64_t t = list[0];

        list[0] = list[m - 1];
        list[m - 1] = t;
        sampler_sift_down(list, m - 1, 0);
    }
    return n_list;
}

/* -- processors -------------------------------------------------------------------------------- */

static void count_outputs(struct sampler *s, const struct sample_job *job, int by) {
    const struct engine_param *p = job->param;

    for (uint32_t i = p->n_prompt; i < p->n_tokens; i++)
        if (p->tokens[i] >= 0)
            s->count[p->tokens[i]] += (uint32_t)by;
    if (job->fed >= 0)
        s->count[job->fed] += (uint32_t)by;
}

static void repeat_once(struct sampler *s, int32_t t, float repetition) {
    if (t < 0 || s->count[t] & SEEN)
        return;
    s->count[t] |= SEEN;
    s->z[t] = s->z[t] > 0 ? s->z[t] / repetition : s->z[t] * repetition;
}

static void penalise_once(struct sampler *s, int32_t t, const struct engine_param *p) {
    if (t < 0 || !(s->count[t] & ~SEEN))
        return;
    float frequency = (float)(s->count[t] & ~SEEN) * p->frequency;
    s->z[t] = s->z[t] - frequency - p->presence;
    s->count[t] &= SEEN;
}

/* Repetition divides positive logits and multiplies negative ones, once for every token of prompt
 * and output (Keskar et al. 2019); then frequency * count and presence are subtracted for output
 * tokens. */
static void sampler_penalise(struct sampler *s, const struct sample_job *job) {
    const struct engine_param *p = job->param;

    if (p->repetition == 1 && p->presence == 0 && p->frequency == 0)
        return;
    count_outputs(s, job, 1);
    if (p->repetition != 1) {
        for (uint32_t i = 0; i < p->n_tokens; i++)
            repeat_once(s, p->tokens[i], p->repetition);
        if (job->fed >= 0)
            repeat_once(s, job->fed, p->repetition);
    }
    for (uint32_t i = p->n_prompt; i < p->n_tokens; i++)
        penalise_once(s, p->tokens[i], p);
    if (job->fed >= 0)
        penalise_once(s, job->fed, p);
    for (uint32_t i = 0; i < p->n_tokens; i++)
        if (p->tokens[i] >= 0)
            s->count[p->tokens[i]] = 0;
    if (job->fed >= 0)
        s->count[job->fed] = 0;
}

static void apply_mask(float *z, uint32_t n, const uint32_t *mask) {
    for (uint32_t i = 0; i < n; i++) /* [v] */
        z[i] = (mask[i / 32] >> (i % 32)) & 1 ? z[i] : -INFINITY;
}

static bool has_processors(const struct sample_job *job) {
    const struct engine_param *p = job->param;

    return p->n_bias || p->n_bans || job->mask || p->repetition != 1 || p->presence != 0 ||
           p->frequency != 0 || p->samplers;
}

/* Fills s->z with the processed logits. */
static void sampler_process(struct sampler *s, const struct sample_job *job) {
    const struct engine_param *p = job->param;
    uint32_t n = s->n_vocab;

    for (uint32_t i = 0; i < n; i++) /* [v] */
        s->z[i] = samp_clean(job->logits[i]);
    for (uint32_t i = n; i % BLOCK; i++)
        s->z[i] = -INFINITY;
    if (!has_processors(job))
        return;
    for (uint32_t i = 0; i < p->n_bias; i++) {
        assert((uint32_t)p->bias[i].token < n);
        s->z[p->bias[i].token] += p->bias[i].bias;
    }
    sampler_penalise(s, job);
    if (p->samplers)
        sampler_dry(s, job);
    for (uint32_t i = 0; i < p->n_bans; i++) {
        assert((uint32_t)p->bans[i] < n);
        s->z[p->bans[i]] = -INFINITY;
    }
    if (job->mask)
        apply_mask(s->z, n, job->mask);
    for (uint32_t i = 0; i < n; i++) /* [v] huge logits and biases may have met */
        s->z[i] = samp_clean(s->z[i]);
}

static bool is_banned(const struct engine_param *p, uint32_t t) {
    for (uint32_t i = 0; i < p->n_bans; i++)
        if ((uint32_t)p->bans[i] == t)
            return true;
    return false;
}

/* Returns the token if none has a finite logit (sampler.h). */
static uint32_t sampler_last_resort(const struct sampler *s, const struct sample_job *job) {
    for (int use_mask = job->mask != NULL; use_mask >= 0; use_mask--)
        for (uint32_t i = 0; i < s->n_vocab; i++)
            if ((!use_mask || (job->mask[i / 32] >> (i % 32)) & 1) && !is_banned(job->param, i))
                return i;
    return 0;
}

/* -- truncation -------------------------------------------------------------------------------- */

/* Finds the cut at which the sum of amounts, from the best token down, reaches @target; the amount
 * of a token is its weight (@inv_t > 0) or 1 (@inv_t 0). Returns false if the sum of all is less.
 * Uses three histograms, over 12, 12 and 8 bits of the value, then resolves ties by id. */
static bool sampler_select_cut(struct sampler *s, uint64_t target, float max, float inv_t,
                               struct cut *out) {
    static const struct { unsigned shift, bits; } level[] = {{20, 12}, {8, 12}, {0, 8}};
    const uint32_t floor = samp_ordered(-FLT_MAX); /* below: -inf */
    uint32_t prefix = 0;
    uint64_t above = 0; /* amount of everything above the chosen bin */

    for (size_t v = 0; v < ARRAY_SIZE(level); v++) {
        uint32_t n_bins = 1u << level[v].bits, chosen = n_bins;

        memset(s->bins, 0, n_bins * sizeof(*s->bins));
        for (uint32_t i = 0; i < s->n_vocab; i++) {
            uint32_t o = samp_ordered(s->z[i]);

            if (o < floor || (v > 0 && o >> level[v - 1].shift != prefix))
                continue;
            s->bins[(o >> level[v].shift) & (n_bins - 1)] +=
                inv_t > 0 ? samp_weight(s->z[i], max, inv_t) : 1;
        }
        while (chosen > 0 && above + s->bins[chosen - 1] < target)
            above += s->bins[--chosen];
        if (chosen == 0)
            return false; /* only at the first level */
        prefix = prefix << level[v].bits | (chosen - 1);
    }
    *out = (struct cut){.value = samp_unordered(prefix)};
    for (uint32_t i = 0; i < s->n_vocab && above < target; i++)
        if (s->z[i] == out->value) {
            above += inv_t > 0 ? samp_weight(s->z[i], max, inv_t) : 1;
            out->id = i;
        }
    return true;
}

static bool sampler_is_kept(const struct cut *c, float l, uint32_t id) {
    return l > c->value || (l == c->value && id <= c->id);
}

/* Returns the cut of top_p: the smallest set of best tokens that has top_p of the weight of those
 * above @c. @n_list: best tokens in s->list; @is_all: they are all that @c keeps. */
static struct cut nucleus(struct sampler *s, const struct engine_param *p, float max, float inv_t,
                          struct cut c, uint32_t n_list, bool is_all) {
    uint64_t total = 0, sum = 0;

    if (is_all)
        for (uint32_t i = 0; i < n_list; i++)
            total += samp_weight(samp_rank_value(s->list[i]), max, inv_t);
    else if (c.value == -INFINITY)
        total = sum_weights(s->z, s->n_vocab, max, inv_t);
    else
        for (uint32_t i = 0; i < s->n_vocab; i++)
            total += sampler_is_kept(&c, s->z[i], i) ? samp_weight(s->z[i], max, inv_t) : 0;

    double part = (double)MAX(p->top_p, 0.0f) * (double)total;
    uint64_t target = (uint64_t)part;
    target += (double)target < part;
    target = MIN(MAX(target, 1), total);
    for (uint32_t i = 0; i < n_list; i++) {
        sum += samp_weight(samp_rank_value(s->list[i]), max, inv_t);
        if (sum >= target)
            return (struct cut){samp_rank_value(s->list[i]), samp_rank_id(s->list[i])};
    }
    bool found = sampler_select_cut(s, target, max, inv_t, &c);
    assert(found);
    return c;
}

/* Returns the cut that top_k, top_p and min_p make in s->z. */
static struct cut sampler_truncate_tail(struct sampler *s, const struct engine_param *p, float max,
                                        float inv_t) {
    struct cut c = {-INFINITY, 0}; /* keeps all finite logits; a token of -inf never wins */
    bool small_k = p->top_k > 0 && p->top_k <= SAMPLER_LIST_MAX, with_p = p->top_p < 1;
    uint32_t n_list = 0;

    if (small_k || with_p)
        n_list = sampler_best(s->z, s->n_vocab, small_k ? p->top_k : SAMPLER_LIST_MAX, s->list);
    if (small_k)
        c = (struct cut){samp_rank_value(s->list[n_list - 1]), samp_rank_id(s->list[n_list - 1])};
    else if (p->top_k > 0 && p->top_k < s->n_vocab)
        sampler_select_cut(s, p->top_k, max, 0, &c);
    if (with_p)
        c = nucleus(s, p, max, inv_t, c, n_list, small_k || n_list < SAMPLER_LIST_MAX);
    if (p->min_p > 0) {
        double least = (double)max + (double)p->temperature * mx_log((double)MIN(p->min_p, 1.0f));
        float f = (float)least;

        if ((double)f < least)
            f = nextafterf(f, INFINITY);
        if (f > c.value)
            c = (struct cut){f, UINT32_MAX};
    }
    return c;
}

static void sampler_cut_logits(struct sampler *s, struct cut c) {
    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (!sampler_is_kept(&c, s->z[i], i))
            s->z[i] = -INFINITY;
}

/* Applies the samplers of sampler_more.c in their order; sets every token that is not kept to -inf.
 * typical_p and XTC may remove the best tokens. */
static void truncate_more(struct sampler *s, const struct sample_job *job, float max, float inv_t) {
    const struct engine_samplers *m = job->param->samplers;
    struct engine_param p = *job->param;

    if (m->top_n_sigma > 0)
        sampler_top_n_sigma(s, m->top_n_sigma);
    if (m->typical_p > 0) {
        p.top_p = 1;
        p.min_p = 0;
        sampler_cut_logits(s, sampler_truncate_tail(s, &p, max, inv_t));
        sampler_typical(s, m->typical_p, inv_t);
        max = max_clean(s->z, s->n_vocab);
        p = *job->param;
        p.top_k = 0;
    }
    sampler_cut_logits(s, sampler_truncate_tail(s, &p, max, inv_t));
    if (m->xtc_probability > 0)
        sampler_xtc(s, job, inv_t);
}

/* -- noise ------------------------------------------------------------------------------------- */

/* Computes the random words of 64 tokens. [v]: sixteen blocks of Philox in parallel. */
static void sampler_words(const struct sample_job *job, uint32_t first, uint32_t words[BLOCK]) {
    uint32_t lane[4][BLOCK / 4];

    for (uint32_t i = 0; i < BLOCK / 4; i++) {
        struct rng_block b = rng_token_block(job->param->seed, job->param->choice,
                                             job->want->out_pos, first / 4 + i);

        for (int j = 0; j < 4; j++)
            lane[j][i] = b.v[j];
    }
    for (uint32_t i = 0; i < BLOCK; i++)
        words[i] = lane[i % 4][i / 4];
}

/* Returns a float slightly below @x. */
static float sampler_below(double x) {
    float f = (float)x;

    return f - fabsf(f) * 0x1p-22f - 0x1p-100f;
}

/* Returns the argmax of l + T g over the tokens that @c keeps, where g is Gumbel noise; @first: the
 * token with the largest logit. */
static uint32_t sampler_draw(const struct sampler *s, const struct sample_job *job, struct cut c,
                             uint32_t first) {
    const struct engine_param *p = job->param;
    float temp = p->temperature, inv_t = 1.0f / temp;
    uint32_t best_id = first, words[BLOCK];
    double best =
        samp_key(s->z[first], temp, rng_token_word(p->seed, p->choice, job->want->out_pos, first));

    for (uint32_t b = 0; b < s->n_vocab; b += BLOCK) {
        const float *z = s->z + b;
        float bestf = sampler_below(best),
              least = sampler_below((double)bestf - (double)(SAMP_NOISE_MAX * temp));
        float bar[BLOCK];
        int hit = 0;

        least = MAX(least, c.value);
        for (int j = 0; j < BLOCK; j++) /* [v] */
            hit |= z[j] >= least;
        if (!hit)
            continue;
        sampler_words(job, b, words);
        for (int j = 0; j < BLOCK; j++) { /* [v] the word must be below this for the token to win */
            float e = samp_expf((z[j] - bestf) * inv_t) * (1.001f * 0x1p32f);

            bar[j] = z[j] >= least ? e : -1.0f;
        }
        for (uint32_t j = 0; j < BLOCK; j++) {
            if ((float)words[j] > bar[j] || !sampler_is_kept(&c, z[j], b + j))
                continue;
            double key = samp_key(z[j], temp, words[j]);

            if (key > best || (key == best && b + j < best_id)) {
                best = key;
                best_id = b + j;
            }
        }
    }
    return best_id;
}

/* -- the whole --------------------------------------------------------------------------------- */

static uint32_t sampler_sample(struct sampler *s, const struct sample_job *job) {
    const struct engine_param *p = job->param;
    bool greedy = !(p->temperature >= SAMP_T_MIN);
    const float *l = job->logits;

    if (!greedy || has_processors(job)) {
        sampler_process(s, job);
        l = s->z;
    }
    float max = max_clean(l, s->n_vocab);
    if (max == -INFINITY)
        return sampler_last_resort(s, job);
    uint32_t first = first_equal(l, s->n_vocab, max);
    if (greedy)
        return first;
    if (p->samplers) {
        truncate_more(s, job, max, 1.0f / p->temperature);
        first = first_equal(s->z, s->n_vocab, max_clean(s->z, s->n_vocab));
        return sampler_draw(s, job, (struct cut){-INFINITY, 0}, first);
    }
    struct cut c = sampler_truncate_tail(s, p, max, 1.0f / p->temperature);
    return sampler_draw(s, job, c, first);
}

void SAMPLER_RUN(struct sampler *s, const struct sample_job *job, struct engine_out *out,
                 struct engine_top *top) {
    const struct engine_want *w = job->want;
    const float *l = job->logits;

    assert(w->what == WANT_SAMPLE || w->what == WANT_PROMPT_LP);
    assert(w->n_top <= ENGINE_TOP_MAX);
    *out = (struct engine_out){.token = job->target, .top = top};
    if (w->what == WANT_SAMPLE)
        out->token = (int32_t)sampler_sample(s, job);
    assert((uint32_t)out->token < s->n_vocab);
    if (job->digest)
        out->digest = digest(l, s->n_vocab);
    if (!w->logprob && !w->n_top)
        return;
    float max = max_clean(l, s->n_vocab);
    uint64_t sum = max > -INFINITY ? sum_weights(l, s->n_vocab, max, 1) : 0;
    out->logprob = samp_logprob(samp_clean(l[out->token]), max, sum);
    out->n_top = sampler_best(l, s->n_vocab, w->n_top, s->list);
    for (uint32_t i = 0; i < out->n_top; i++)
        top[i] = (struct engine_top){
            .token = (int32_t)samp_rank_id(s->list[i]),
            .logprob = samp_logprob(samp_rank_value(s->list[i]), max, sum),
        };
}
