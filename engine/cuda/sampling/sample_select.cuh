#pragma once

/*
 * sample_select - chooses one token of a row of logits: the cuts of top_k, top_p and min_p, then
 * the Gumbel-max draw, the token with the largest l + T g among those that the cuts keep (logit,
 * temperature, Gumbel noise). One thread block does it, over a range of a row (struct Stretch) or
 * over a list of candidates (struct Listed).
 *
 * Results are decided only by maxima and by sums of integers (engine/shared/sampling.h), so they
 * depend neither on the order of threads nor on the order of a list. Floats serve only to skip
 * tokens that cannot win, with a margin for rounding.
 *
 * The cuts are found without sorting, by a radix search: a histogram over the upper 12 bits of the
 * values selects a bin, a second one over the next 12 bits and a third over the last 8 bits narrow
 * it to one value. Among tokens of equal value a binary search over the ids decides.
 */

#include "engine/cuda/device.cuh"
#include "engine/shared/sampling.h"

#define NONE 0xFFFFFFFFu
#define CUT_SHIFT 20 /* bits of a value below its upper 12, which number its first bin */

struct Bench { /* shared memory of the block */
    uint64_t bins[SAMPLE_BINS], part[SAMPLE_THREADS];
    uint64_t word[SAMPLE_THREADS / 32];
    uint64_t above;
    uint32_t chosen, base;
};

/* A threshold: a token is kept if its logit is above value, or equal to it with an id up to id. */
struct Cut {
    float value;
    uint32_t id;
};

struct Drawn {
    /* ordered_double() of l + T g */
    uint64_t key;
    /* the token; NONE if no token was found */
    uint32_t id;
};

/* Reduces a value of each thread to its sum, or maximum, over the block; every thread gets it. */
template <bool MAX> DEVICE uint64_t select_combine(struct Bench &b, uint64_t v) {
    auto join = [](uint64_t x, uint64_t y) { return MAX ? larger(x, y) : x + y; };

    if constexpr (MAX)
        v = warp_max(v);
    else
        v = warp_sum(v);
    return join_warps<SAMPLE_THREADS / 32>(v, b.word, join);
}

/* -- tokens ------------------------------------------------------------------------------------ */

/* Four consecutive tokens whose random words come from one call of the generator; -inf beyond the
 * end. */
struct Quad {
    float z[4];

    MEMBER float max() const {
        return fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
    }
};

/* Tokens [from, to) of a row, where from is a multiple of 4. If the row is aligned to 16 bytes, a
 * thread reads four tokens at a time. */
struct Stretch {
    const float *z;
    uint32_t from, to;

    MEMBER bool holds(uint32_t i) const {
        return i - from < to - from;
    }
    /* Calls @f(id, logit) with each logit as it is stored, not cleaned. */
    template <typename F> MEMBER void each_raw(F f) const {
        uint32_t end = (uintptr_t)z % 16 ? from : from + (to - from) / 4 * 4;

#pragma unroll 2
        for (uint32_t i = from + 4 * threadIdx.x; i < end; i += 4 * SAMPLE_THREADS) {
            float v[4];

            load_four(z + i, v);
            for (uint32_t j = 0; j < 4; j++)
                f(i + j, v[j]);
        }
        for (uint32_t i = end + threadIdx.x; i < to; i += SAMPLE_THREADS)
            f(i, z[i]);
    }
    template <typename F> MEMBER void each(F f) const {
        each_raw([&](uint32_t i, float x) { f(i, samp_clean(x)); });
    }
    MEMBER struct Quad quad(uint32_t i) const {
        struct Quad r;

        if ((uintptr_t)z % 16 == 0 && i + 4 <= to)
            load_four(z + i, r.z);
        else
            for (uint32_t j = 0; j < 4; j++)
                r.z[j] = i + j < to ? z[i + j] : -INFINITY;
        for (uint32_t j = 0; j < 4; j++)
            r.z[j] = samp_clean(r.z[j]);
        return r;
    }
    /* Calls @f(id, logit, random word) for each token whose logit is at least @least. Random words
     * are only generated for groups of four in which one token reaches it. */
    template <typename F>
    MEMBER void each_near(const struct sample_want &w, float least, F f) const {
        for (uint32_t i = from + 4 * threadIdx.x; i < to; i += 4 * SAMPLE_THREADS) {
            struct Quad q = quad(i);

            if (!(q.max() >= least))
                continue;
            struct rng_block words = rng_token_block(w.seed, w.choice, w.out_pos, i / 4);
            for (uint32_t j = 0; j < 4; j++)
                if (q.z[j] >= least)
                    f(i + j, q.z[j], words.v[j]);
        }
    }
};

/* A list of candidates that several blocks of the same launch have filled (select_listed()). */
struct Listed {
    uint64_t *entry;
    uint32_t n;

    template <typename F> MEMBER void each(F f) const {
        for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
            uint64_t e = get_global(&entry[i]);

            f((uint32_t)e, mx_float_of((uint32_t)(e >> 32)));
        }
    }
    template <typename F>
    MEMBER void each_near(const struct sample_want &w, float least, F f) const {
        each([&](uint32_t i, float x) {
            if (x >= least)
                f(i, x, rng_token_word(w.seed, w.choice, w.out_pos, i));
        });
    }
};

/* Returns an entry of a list: the bits of logit @x above, token @id below. */
DEVICE uint64_t select_listed(uint32_t id, float x) {
    return (uint64_t)mx_bits_of(x) << 32 | id;
}

/* -- truncation -------------------------------------------------------------------------------- */

/* Returns how much a token counts towards a cut: its weight at the inverse temperature @inv_t for
 * top_p; 1 when @inv_t is 0, for top_k. */
DEVICE uint64_t amount(float x, float max, float inv_t) {
    return inv_t > 0 ? samp_weight(x, max, inv_t) : 1;
}

/* Adds @n sums to *@above, from the last down, until the total reaches @target. Returns the index
 * at which it does, with *@above the total before it; @n if it never does. */
DEVICE uint32_t select_walk_down(const uint64_t *sums, uint32_t n, uint64_t target,
                                 uint64_t *above) {
    for (uint32_t i = n; i-- > 0; *above += sums[i])
        if (*above + sums[i] >= target)
            return i;
    return n;
}

/* Finds the highest bin at which the counts, added from the top bin down, reach @target: b.chosen,
 * or n_bins if they never do; b.above is the count in higher bins. Three levels keep the serial
 * part short: each thread sums its own bins, 16 threads sum 32 of those each, and one thread walks
 * down over the 16 sums, then over 32, then over the bins of one thread. */
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
        uint32_t w = select_walk_down(b.word, SAMPLE_THREADS / 32, target, &above), bin = n_bins;

        if (w < SAMPLE_THREADS / 32) {
            uint32_t t = 32 * w + select_walk_down(b.part + 32 * w, 32, target, &above);

            bin = t * per + select_walk_down(b.bins + t * per, per, target, &above);
        }
        b.above = above;
        b.chosen = bin;
    }
    sync_block();
}

/* Finds the cut at which the amounts, added from the best token down, reach @target. Returns false
 * if all tokens together do not reach it. */
template <typename S>
DEVICE bool select_find_cut(struct Bench &b, const S &tokens, uint32_t n_vocab, uint64_t target,
                            float max, float inv_t, struct Cut *out) {
    uint32_t prefix = 0, tid = threadIdx.x;

    if (tid == 0)
        b.above = 0;
    for (int v = 0; v < 3; v++) { /* levels: bits 31 to 20, 19 to 8, 7 to 0 */
        uint32_t bits = v < 2 ? 12 : 8, n_bins = 1u << bits;
        uint32_t low_shift = v == 1 ? 8 : 0;
        uint32_t shift = v == 0 ? CUT_SHIFT : low_shift, above_shift = shift + bits;

        for (uint32_t i = tid; i < n_bins; i += SAMPLE_THREADS)
            b.bins[i] = 0;
        sync_block();
        tokens.each([&](uint32_t i, float x) {
            uint32_t o = samp_ordered(x);

            if (!(x >= -FLT_MAX) || (v && o >> above_shift != prefix))
                return;
            uint64_t add = amount(x, max, inv_t);
            if (add)
                add_shared(&b.bins[(o >> shift) & (n_bins - 1)], add);
        });
        sync_block();
        choose_bin(b, n_bins, target);
        if (b.chosen == n_bins)
            /* only at the first level, since later levels divide a bin that reaches it */
            return false;
        prefix = prefix << bits | b.chosen;
    }
    /* Tokens of equal value count equally, so the cut keeps the first ones by id until the amount
     * is reached: the binary search finds the id up to which there are @need such tokens. */
    out->value = samp_unordered(prefix);
    uint64_t one = amount(out->value, max, inv_t), missing = target - b.above;
    uint64_t need = (missing + one - 1) / one, there = b.bins[prefix & 255] / one;
    uint32_t high = n_vocab - 1,
             low = need < there ? 0 : high; /* if all of them are needed, no id is excluded */
    sync_block();
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t count = 0;

        tokens.each([&](uint32_t i, float x) { count += i <= middle && x == out->value; });
        if (select_combine<false>(b, count) >= need)
            high = middle;
        else
            low = middle + 1;
    }
    out->id = low;
    return true;
}

/* Returns true if the cut keeps token @id, whose logit is @x. */
DEVICE bool select_is_kept(const struct Cut &c, float x, uint32_t id) {
    return x > c.value || (x == c.value && id <= c.id);
}

/* Returns the sum that weights must reach for top_p: part @top_p of @total, rounded up, at least
 * 1. */
DEVICE uint64_t target_of(float top_p, uint64_t total) {
    double part = (double)(top_p > 0 ? top_p : 0.0f) * (double)total;
    uint64_t target = (uint64_t)part;

    target += (double)target < part;
    target = target > 1 ? target : 1;
    return target < total ? target : total;
}

/* Returns the stricter one of @c and the cut of min_p: the least logit whose probability is min_p
 * times the best token's, l >= max + T ln(min_p), rounded up to a float. */
DEVICE struct Cut cut_low(const struct sample_want &w, float max, struct Cut c) {
    if (!(w.min_p > 0))
        return c;
    double p = w.min_p < 1 ? w.min_p : 1.0f;
    double least = (double)max + (double)w.temperature * mx_log(p);
    float f = (float)least;

    if ((double)f < least)
        f = samp_unordered(samp_ordered(f) + 1);
    if (f > c.value)
        c = {f, NONE};
    return c;
}

/* Finds the cut of top_k, top_p and min_p. @tokens must contain every token that top_k keeps, or,
 * without top_k, that top_p keeps. @total is the sum of weights over the row; top_k replaces it by
 * the sum over the tokens that it keeps. */
template <typename S>
DEVICE struct Cut select_truncate_tail(struct Bench &b, const struct sample_want &w,
                                       const S &tokens, uint32_t n_vocab, float max,
                                       uint64_t total) {
    struct Cut c = {-INFINITY, 0}, found;
    float inv_t = 1.0f / w.temperature;

    if (sample_has_top_k(&w, n_vocab)) {
        if (select_find_cut(b, tokens, n_vocab, w.top_k, max, 0, &found))
            c = found;
        total = 0;
        if (w.top_p < 1)
            tokens.each([&](uint32_t i, float x) {
                total += select_is_kept(c, x, i) ? samp_weight(x, max, inv_t) : 0;
            });
        total = select_combine<false>(b, total);
    }
    if (w.top_p < 1 &&
        select_find_cut(b, tokens, n_vocab, target_of(w.top_p, total), max, inv_t, &found))
        c = found;
    return cut_low(w, max, c);
}

/* -- noise ------------------------------------------------------------------------------------- */

/* Returns l + T g with fast logarithms. The error is below 1e-3 T + 1e-5 |l|. */
DEVICE float rough_key(float l, float temperature, uint32_t word) {
    float u = ((float)word + 0.5f) * 0x1p-32f, rest = ((float)~word + 0.5f) * 0x1p-32f;
    float t;
    if (u < 0.5f)
        t = -approximate_log1p(-u);
    else
        t = -approximate_log(rest);
    return l - temperature * approximate_log(t);
}

/* Maps a double to an integer of the same order. */
DEVICE uint64_t ordered_double(double d) {
    uint64_t u = mx_bits_of_double(d + 0.0);

    return u >> 63 ? ~u : u | 1ull << 63;
}

/* Returns the best of the tokens that the threads found; among equal keys the lowest id. */
DEVICE struct Drawn select_best(struct Bench &b, struct Drawn mine) {
    uint64_t top = select_combine<true>(b, mine.key);
    bool is_top = mine.key == top && mine.id != NONE;

    return {top, ~(uint32_t)select_combine<true>(b, is_top ? (uint32_t)~mine.id : 0)};
}

/* Returns the token with the largest l + T g among the tokens that @c keeps; @max is the largest
 * logit of the row. A first pass finds the best approximate key. A second pass computes the exact
 * key for the few tokens whose approximate key is within the error of it. */
template <typename S>
DEVICE struct Drawn select_draw(struct Bench &b, const struct sample_want &w, const S &tokens,
                                float max, struct Cut c) {
    /* Noise lies in (-3.2, 22.9), so the best token has a key above max - 3.2 T, and a token more
     * than 26.1 T below max cannot reach it. The bound here is 26.9 T, a margin for rounding. */
    float least = max - SAMP_NOISE_MAX * w.temperature - 4 * w.temperature - fabsf(max) * 1e-5f;
    float best = -INFINITY;
    struct Drawn mine = {0, NONE};

    tokens.each_near(w, least, [&](uint32_t i, float x, uint32_t word) {
        if (select_is_kept(c, x, i))
            best = fmaxf(best, rough_key(x, w.temperature, word));
    });
    best = samp_rank_value(select_combine<true>(b, samp_rank(best, 0)));
    float bar = best - 4e-3f * w.temperature - 4e-5f * (fabsf(best) + fabsf(max));
    least = fmaxf(least, bar - 23.0f * w.temperature);
    tokens.each_near(w, least, [&](uint32_t i, float x, uint32_t word) {
        if (!select_is_kept(c, x, i) || rough_key(x, w.temperature, word) < bar)
            return;
        uint64_t key = ordered_double(samp_key(x, w.temperature, word));

        if (key > mine.key || (key == mine.key && i < mine.id)) {
            mine.key = key;
            mine.id = i;
        }
    });
    return select_best(b, mine);
}
