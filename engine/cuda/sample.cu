/*
 * sample - from a row of logits to a token: the chain of engine/sampler_core.c with the same result for the same
 * logits. One thread block a want. Everything that decides is a maximum or a sum of integers
 * (engine/shared/sampling.h), so the order of threads cannot matter; floats are only used to leave out tokens that
 * cannot win, with a margin.
 *
 * Cuts (top_k, top_p) are found without sorting: a histogram over the upper 12 bits of the values, then inside
 * the bin that decides over the next 12 and the last 8, then among equal values by id.
 *
 * A row goes through the L2 cache a few times (twice for the best token, eight times with top_p), four values a load.
 * Logits are cleaned where they are read, so rows that nothing is added to are not copied.
 */

#include "engine/cuda/device.cuh"
#include "engine/shared/sampling.h"

#define BINS 4096u
#define NONE 0xFFFFFFFFu

struct Bench { /* of the block */
    uint64_t bins[BINS], part[SAMPLE_THREADS];
    uint64_t word[SAMPLE_THREADS / 32];
    uint64_t above;
    uint32_t chosen, id;
};

/* Everything at or above the pair (value, id) is kept. */
struct Cut {
    float value;
    uint32_t id;
};

DEVICE uint32_t ordered(float f) {
    uint32_t u = mx_bits_of(f);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

DEVICE float unordered(uint32_t o) {
    return mx_float_of(o & 0x80000000u ? o & 0x7FFFFFFFu : ~o);
}

/* Greater is better, ties go to the lowest id. */
DEVICE uint64_t rank_of(float f, uint32_t id) {
    return (uint64_t)ordered(f) << 32 | (uint32_t)~id;
}

DEVICE float rank_value(uint64_t r) {
    return unordered((uint32_t)(r >> 32));
}

DEVICE uint32_t rank_id(uint64_t r) {
    return ~(uint32_t)r;
}

/* The sum (or maximum) of a value over the block, in every thread. */
template <bool MAX> DEVICE uint64_t combine(struct Bench &b, uint64_t v) {
    for (int m = 1; m < 32; m *= 2) {
        uint64_t w = lane_xor(v, m);

        v = MAX ? (w > v ? w : v) : v + w;
    }
    sync_block();
    if (threadIdx.x % 32 == 0)
        b.word[threadIdx.x / 32] = v;
    sync_block();
    v = b.word[0];
    for (uint32_t i = 1; i < SAMPLE_THREADS / 32; i++)
        v = MAX ? (b.word[i] > v ? b.word[i] : v) : v + b.word[i];
    return v;
}

/* @f(id, logit) for every token; a thread has four neighbours at a time, if the row is aligned. */
template <typename F> DEVICE void each_token(const float *z, uint32_t n, F f) {
    uint32_t n_quads = (uintptr_t)z % 16 ? 0 : n / 4;

#pragma unroll 2
    for (uint32_t q = threadIdx.x; q < n_quads; q += SAMPLE_THREADS) {
        struct vec4 v = load16(z + 4 * q);

        f(4 * q, samp_clean(mx_float_of(v.x)));
        f(4 * q + 1, samp_clean(mx_float_of(v.y)));
        f(4 * q + 2, samp_clean(mx_float_of(v.z)));
        f(4 * q + 3, samp_clean(mx_float_of(v.w)));
    }
    for (uint32_t i = 4 * n_quads + threadIdx.x; i < n; i += SAMPLE_THREADS)
        f(i, samp_clean(z[i]));
}

/* -- processors ----------------------------------------------------------------------------------- */

DEVICE bool has_processors(const struct sample_want &w, const uint32_t *mask) {
    return w.n_bias || w.n_bans || mask || w.repetition != 1 || w.presence != 0 || w.frequency != 0;
}

/* The first entry of a token adds all of them, in order. */
DEVICE void add_bias(const struct bias_entry *bias, uint32_t n, float *z) {
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        bool first = true;

        for (uint32_t j = 0; j < i; j++)
            first = first && bias[j].token != bias[i].token;
        for (uint32_t j = i; first && j < n; j++)
            if (bias[j].token == bias[i].token)
                z[bias[j].token] += bias[j].bias;
    }
}

DEVICE void penalise_token(const struct sample_want &w, float *z, int32_t token, uint32_t count) {
    float x = z[token];

    if (w.repetition != 1)
        x = x > 0 ? x / w.repetition : x * w.repetition;
    if (count) {
        float frequency = (float)count * w.frequency;

        x = x - frequency - w.presence;
    }
    z[token] = x;
}

/* @fed: a token of the output that the list does not count yet, or -1. */
DEVICE void penalise(struct Bench &b, const struct sample_want &w, const struct penal *list,
                     int32_t fed, float *z) {
    if (w.repetition == 1 && w.presence == 0 && w.frequency == 0)
        return;
    if (threadIdx.x == 0)
        b.chosen = 0;
    sync_block();
    for (uint32_t i = threadIdx.x; i < w.n_penals; i += SAMPLE_THREADS) {
        penalise_token(w, z, list[i].token, list[i].count + (list[i].token == fed));
        if (list[i].token == fed)
            b.chosen = 1;
    }
    sync_block();
    if (threadIdx.x == 0 && fed >= 0 && !b.chosen)
        penalise_token(w, z, fed, 1);
}

DEVICE void process(const struct sample_args &a, struct Bench &b, const struct sample_want &w,
                    const uint32_t *mask, int32_t fed, const float *logits, float *z) {
    uint32_t n = a.n_vocab;

    each_token(logits, n, [=](uint32_t i, float x) { z[i] = x; });
    sync_block();
    add_bias(a.bias + w.bias0, w.n_bias, z);
    sync_block();
    penalise(b, w, a.penal + w.penal0, fed, z);
    sync_block();
    for (uint32_t i = threadIdx.x; i < w.n_bans; i += SAMPLE_THREADS)
        put_alike((uint32_t *)&z[a.ban[w.ban0 + i]],
                  mx_bits_of(-INFINITY)); /* may be there twice */
    sync_block();
    if (mask)
        each_token(z, n, [=](uint32_t i, float x) {
            if (!((mask[i / 32] >> (i % 32)) & 1))
                z[i] = -INFINITY;
        });
    sync_block();
}

/* No token has a finite logit: the lowest id that mask and bans allow, else that the bans allow, else 0. */
DEVICE uint32_t last_resort(const struct sample_args &a, struct Bench &b,
                            const struct sample_want &w, const uint32_t *mask) {
    for (int use_mask = mask != NULL; use_mask >= 0; use_mask--) {
        uint64_t best = 0;

        for (uint32_t i = threadIdx.x; i < a.n_vocab; i += SAMPLE_THREADS) {
            bool allowed = !use_mask || ((mask[i / 32] >> (i % 32)) & 1);

            for (uint32_t j = 0; allowed && j < w.n_bans; j++)
                allowed = (uint32_t)a.ban[w.ban0 + j] != i;
            if (allowed && (uint64_t)~i > best)
                best = (uint32_t)~i;
        }
        best = combine<true>(b, best);
        if (best)
            return ~(uint32_t)best;
    }
    return 0;
}

/* -- truncation ----------------------------------------------------------------------------------- */

/* The amount of a token: its weight at @inv_t, or 1 when that is 0. */
DEVICE uint64_t amount(float x, float max, float inv_t) {
    return inv_t > 0 ? samp_weight(x, max, inv_t) : 1;
}

/* The first, from the top, of @n sums at which, added to what is above, they reach @target; @n: none. */
DEVICE uint32_t walk_down(const uint64_t *sums, uint32_t n, uint64_t target, uint64_t *above) {
    for (uint32_t i = n; i-- > 0; *above += sums[i])
        if (*above + sums[i] >= target)
            return i;
    return n;
}

/* The bin, from the top, at which the sums reach @target: b.chosen, n_bins when none does. A thread sums its bins, 16
 * threads those of 32 threads, one walks down over sixteen sums, 32 and then a thread's bins. */
DEVICE void choose_bin(struct Bench &b, uint32_t n_bins, uint64_t target) {
    uint32_t tid = threadIdx.x, per = n_bins / SAMPLE_THREADS ? n_bins / SAMPLE_THREADS : 1;
    uint64_t sum = 0;

    for (uint32_t i = tid * per; i < (tid + 1) * per && i < n_bins; i++)
        sum += b.bins[i];
    b.part[tid] = sum;
    sync_block();
    if (tid < SAMPLE_THREADS / 32) {
        sum = 0;
        for (uint32_t i = 0; i < 32; i++)
            sum += b.part[32 * tid + i];
        b.word[tid] = sum;
    }
    sync_block();
    if (tid == 0) {
        uint64_t above = b.above;
        uint32_t w = walk_down(b.word, SAMPLE_THREADS / 32, target, &above), bin = n_bins;

        if (w < SAMPLE_THREADS / 32) {
            uint32_t t = 32 * w + walk_down(b.part + 32 * w, 32, target, &above);

            bin = t * per + walk_down(b.bins + t * per, per, target, &above);
        }
        b.above = above;
        b.chosen = bin;
    }
    sync_block();
}

/* The cut at which the amounts, summed from the best token down, reach @target. false: they do not. */
DEVICE bool select_cut(struct Bench &b, const float *z, uint32_t n, uint64_t target, float max,
                       float inv_t, struct Cut *out) {
    uint32_t prefix = 0, tid = threadIdx.x;

    if (tid == 0)
        b.above = 0;
    for (int v = 0; v < 3; v++) { /* bits 31 to 20, 19 to 8, 7 to 0 */
        uint32_t bits = v < 2 ? 12 : 8, n_bins = 1u << bits;
        uint32_t shift = v == 0 ? 20 : v == 1 ? 8 : 0, above_shift = shift + bits;

        for (uint32_t i = tid; i < n_bins; i += SAMPLE_THREADS)
            b.bins[i] = 0;
        sync_block();
        each_token(z, n, [&](uint32_t i, float x) {
            uint32_t o = ordered(x);

            if (!(x >= -FLT_MAX) || (v && o >> above_shift != prefix))
                return;
            uint64_t add = amount(x, max, inv_t);
            if (add)
                add_shared(&b.bins[(o >> shift) & (n_bins - 1)], add);
        });
        sync_block();
        choose_bin(b, n_bins, target);
        if (b.chosen == n_bins)
            return false; /* only at the first level */
        prefix = prefix << bits | b.chosen;
    }
    /* All of this value have the same amount: as many as are needed, by id. */
    out->value = unordered(prefix);
    uint64_t one = amount(out->value, max, inv_t), missing = target - b.above;
    uint64_t need = (missing + one - 1) / one, there = b.bins[prefix & 255] / one;
    uint32_t low = need < there ? 0 : n - 1, high = n - 1; /* the id up to which there are @need */
    sync_block();
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t count = 0;

        for (uint32_t i = tid; i <= middle; i += SAMPLE_THREADS)
            count += samp_clean(z[i]) == out->value;
        if (combine<false>(b, count) >= need)
            high = middle;
        else
            low = middle + 1;
    }
    out->id = low;
    return true;
}

DEVICE bool is_kept(const struct Cut &c, float x, uint32_t id) {
    return x > c.value || (x == c.value && id <= c.id);
}

/* What top_k, top_p and min_p keep. */
DEVICE struct Cut truncate_tail(const struct sample_args &a, struct Bench &b,
                                const struct sample_want &w, const float *z, float max) {
    struct Cut c = {-INFINITY, 0}, found;
    uint32_t n = a.n_vocab;
    float inv_t = 1.0f / w.temperature;

    if (w.top_k > 0 && w.top_k < n && select_cut(b, z, n, w.top_k, max, 0, &found))
        c = found;
    if (w.top_p < 1) {
        uint64_t total = 0;

        each_token(z, n, [&](uint32_t i, float x) {
            total += is_kept(c, x, i) ? samp_weight(x, max, inv_t) : 0;
        });
        total = combine<false>(b, total);
        double part = (double)(w.top_p > 0 ? w.top_p : 0.0f) * (double)total;
        uint64_t target = (uint64_t)part;
        target += (double)target < part;
        target = target > 1 ? target : 1;
        target = target < total ? target : total;
        if (select_cut(b, z, n, target, max, inv_t, &found))
            c = found;
    }
    if (w.min_p > 0) {
        double p = w.min_p < 1 ? w.min_p : 1.0f;
        double least = (double)max + (double)w.temperature * mx_log(p);
        float f = (float)least;

        if ((double)f < least)
            f = unordered(ordered(f) + 1);
        if (f > c.value)
            c = {f, NONE};
    }
    return c;
}

/* -- noise ---------------------------------------------------------------------------------------- */

/* About l + T g, within a thousandth of T and a hundred-thousandth of itself. */
DEVICE float rough_key(float l, float temperature, uint32_t word) {
    float u = ((float)word + 0.5f) * 0x1p-32f, rest = ((float)~word + 0.5f) * 0x1p-32f;
    float t = u < 0.5f ? -approximate_log1p(-u) : -approximate_log(rest);

    return l - temperature * approximate_log(t);
}

/* Doubles as integers of the same order. */
DEVICE uint64_t ordered_double(double d) {
    uint64_t u = mx_bits_of_double(d + 0.0);

    return u >> 63 ? ~u : u | 1ull << 63;
}

/* Four neighbours, those that share a block of noise; -inf beyond the row. */
struct Quad {
    float z[4];

    __device__ __forceinline__ float max() const {
        return fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
    }
};

DEVICE struct Quad quad_at(const float *z, uint32_t n, uint32_t q) {
    struct Quad r;

    if ((uintptr_t)z % 16 == 0 && 4 * q + 4 <= n) {
        struct vec4 v = load16(z + 4 * q);

        r = {{mx_float_of(v.x), mx_float_of(v.y), mx_float_of(v.z), mx_float_of(v.w)}};
    } else {
        for (uint32_t j = 0; j < 4; j++)
            r.z[j] = 4 * q + j < n ? z[4 * q + j] : -INFINITY;
    }
    for (uint32_t j = 0; j < 4; j++)
        r.z[j] = samp_clean(r.z[j]);
    return r;
}

/* argmax of l + T g over what @c keeps. First roughly; then exactly for those that are near the best. */
DEVICE uint32_t draw(const struct sample_args &a, struct Bench &b, const struct sample_want &w,
                     const float *z, float max, struct Cut c) {
    uint32_t n = a.n_vocab, tid = threadIdx.x;
    float least = max - SAMP_NOISE_MAX * w.temperature - 4 * w.temperature - fabsf(max) * 1e-5f;
    float best = -INFINITY;

    /* The noise of the best token is above -3.3: what is 26.3 T below it cannot win. */
    for (uint32_t q = tid; 4 * q < n; q += SAMPLE_THREADS) {
        struct Quad z4 = quad_at(z, n, q);

        if (!(z4.max() >= least))
            continue;
        struct rng_block words = rng_token_block(w.seed, w.choice, w.out_pos, q);
        for (uint32_t j = 0; j < 4; j++)
            if (z4.z[j] >= least && is_kept(c, z4.z[j], 4 * q + j))
                best = fmaxf(best, rough_key(z4.z[j], w.temperature, words.v[j]));
    }
    best = rank_value(combine<true>(b, rank_of(best, 0)));
    float bar = best - 4e-3f * w.temperature - 4e-5f * (fabsf(best) + fabsf(max));
    uint64_t exact = 0;
    uint32_t id = NONE;
    for (uint32_t q = tid; 4 * q < n; q += SAMPLE_THREADS) {
        struct Quad z4 = quad_at(z, n, q);
        float greatest = z4.max();

        if (!(greatest >= least && greatest + 23.0f * w.temperature >= bar))
            continue;
        struct rng_block words = rng_token_block(w.seed, w.choice, w.out_pos, q);
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t i = 4 * q + j;
            float x = z4.z[j];

            if (!(x >= least) || !is_kept(c, x, i) || rough_key(x, w.temperature, words.v[j]) < bar)
                continue;
            uint64_t key = ordered_double(samp_key(x, w.temperature, words.v[j]));

            if (key > exact) {
                exact = key;
                id = i;
            }
        }
    }
    uint64_t top = combine<true>(b, exact);
    uint64_t lowest = combine<true>(b, exact == top && id != NONE ? (uint32_t)~id : 0);
    return ~(uint32_t)lowest;
}

/* -- the whole ------------------------------------------------------------------------------------ */

/* The best token of a row as a rank; -inf logits included. */
DEVICE uint64_t best_rank(struct Bench &b, const float *l, uint32_t n) {
    uint64_t best = 0;

    each_token(l, n, [&](uint32_t i, float x) {
        uint64_t r = rank_of(x, i);

        best = r > best ? r : best;
    });
    return combine<true>(b, best);
}

DEVICE uint32_t sample_token(const struct sample_args &a, struct Bench &b,
                             const struct sample_want &w, const float *logits, float *z) {
    int32_t m = a.mask_index[blockIdx.x], fed = w.fed >= 0 ? a.fed_from[w.fed] : -1;
    const uint32_t *mask = m >= 0 ? a.mask + (size_t)m * a.mask_words : NULL;
    bool greedy = !(w.temperature >= SAMP_T_MIN), processed = has_processors(w, mask);
    const float *l = logits;

    if (processed) {
        process(a, b, w, mask, fed, logits, z);
        l = z;
    }
    uint64_t best = best_rank(b, l, a.n_vocab);
    float max = rank_value(best);
    if (!(max > -INFINITY))
        return last_resort(a, b, w, mask);
    if (greedy)
        return rank_id(best);
    return draw(a, b, w, l, max, truncate_tail(a, b, w, l, max));
}

/* Log probabilities under the logits before all processors. */
DEVICE void write_logprobs(const struct sample_args &a, struct Bench &b,
                           const struct sample_want &w, const float *l, uint32_t token,
                           struct sample_out *out) {
    uint32_t n = a.n_vocab, n_top = 0;
    uint64_t below = best_rank(b, l, n), sum = 0;
    float max = rank_value(below);

    if (max > -INFINITY)
        each_token(l, n, [&](uint32_t i, float x) { sum += samp_weight(x, max, 1); });
    sum = combine<false>(b, sum);
    for (; n_top < w.n_top && rank_value(below) > -INFINITY; n_top++) {
        uint64_t next = 0;

        if (threadIdx.x == 0) {
            out->top[n_top].token = (int32_t)rank_id(below);
            out->top[n_top].logprob = samp_logprob(rank_value(below), max, sum);
        }
        each_token(l, n, [&](uint32_t i, float x) {
            uint64_t r = rank_of(x, i);

            next = r < below && r > next ? r : next;
        });
        below = combine<true>(b, next);
        if (below == 0)
            below = rank_of(-INFINITY, 0);
    }
    if (threadIdx.x == 0) {
        out->n_top = n_top;
        out->logprob = samp_logprob(samp_clean(l[token]), max, sum);
    }
}

KERNEL(sample, struct sample_args, SAMPLE_THREADS, 1) {
    wait_for_previous();
    SHARED struct Bench b;
    struct sample_want w = a.want[blockIdx.x];
    const float *l = a.logits + (size_t)blockIdx.x * a.n_vocab;
    struct sample_out *out = a.out + blockIdx.x;
    uint64_t digest = 0;
    uint32_t token = w.target >= 0 ? (uint32_t)w.target
                                   : sample_token(a, b, w, l, a.z + (size_t)blockIdx.x * a.n_vocab);

    if (a.digest) {
        for (uint32_t i = threadIdx.x; i < a.n_vocab; i += SAMPLE_THREADS)
            digest += samp_digest_term(mx_bits_of(l[i]), i);
        digest = samp_digest_end(combine<false>(b, digest), a.n_vocab);
    }
    if (threadIdx.x == 0) {
        out->token = (int32_t)token;
        out->digest = digest;
        out->logprob = 0;
        out->n_top = 0;
        a.sampled[blockIdx.x] = (int32_t)token;
    }
    sync_block();
    if (w.logprob || w.n_top)
        write_logprobs(a, b, w, l, token, out);
}
