#pragma once

/*
 * sample_select - which of many tokens is drawn: the cuts of top_k, top_p and min_p, and the best
 * of l + T g among what they keep. One thread block, over tokens from anywhere: a stretch of a row
 * (struct Stretch) or a list (struct Listed). All that decides is a maximum or a sum of integers
 * (engine/shared/sampling.h), so neither the order of threads nor that of a list can matter; floats
 * are only used to leave out tokens that cannot win, with a margin.
 *
 * Cuts are found without sorting: a histogram over the upper 12 bits of the values, then inside the
 * bin that decides over the next 12 and the last 8, then among equal values by id.
 */

#include "engine/cuda/device.cuh"
#include "engine/shared/sampling.h"

#define NONE 0xFFFFFFFFu
#define CUT_SHIFT 20 /* bits of a value below those of its first bin */

struct Bench { /* shared memory of the block */
    uint64_t bins[SAMPLE_BINS], part[SAMPLE_THREADS];
    uint64_t word[SAMPLE_THREADS / 32];
    uint64_t above;
    uint32_t chosen, base;
};

/* Everything at or above the pair (value, id) is kept. */
struct Cut {
    float value;
    uint32_t id;
};

struct Drawn {
    uint64_t key; /* ordered_double() of l + T g */
    uint32_t id;  /* token; NONE: no token */
};

/* The sum (or maximum) of a value over the block, in every thread. */
template <bool MAX> DEVICE uint64_t combine(struct Bench &b, uint64_t v) {
    auto join = [](uint64_t x, uint64_t y) { return MAX ? larger(x, y) : x + y; };

    for (int m = 1; m < 32; m *= 2)
        v = join(v, lane_xor(v, m));
    return join_warps<SAMPLE_THREADS / 32>(v, b.word, join);
}

/* -- tokens ------------------------------------------------------------------------------------ */

/* Four neighbours, those that share a block of noise; -inf beyond the end. */
struct Quad {
    float z[4];

    MEMBER float max() const {
        return fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
    }
};

/* Tokens [from, to) of a row; from: a multiple of 4. A thread has four neighbours at a time, if the
 * row is aligned. */
struct Stretch {
    const float *z;
    uint32_t from, to;

    MEMBER bool holds(uint32_t i) const {
        return i - from < to - from;
    }
    /* @f(id, logit as it is) */
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
    /* @f(id, logit, random word) for all from @least up. */
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

/* Tokens that blocks of the same launch have put together: value above, id below. */
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

/* Token @id with logit @x as an entry of a list. */
DEVICE uint64_t listed(uint32_t id, float x) {
    return (uint64_t)mx_bits_of(x) << 32 | id;
}

/* -- truncation -------------------------------------------------------------------------------- */

/* The amount of a token: its weight at @inv_t, or 1 when that is 0. */
DEVICE uint64_t amount(float x, float max, float inv_t) {
    return inv_t > 0 ? samp_weight(x, max, inv_t) : 1;
}

/* The first, from the top, of @n sums at which, added to what is above, they reach @target; @n:
 * none. */
DEVICE uint32_t walk_down(const uint64_t *sums, uint32_t n, uint64_t target, uint64_t *above) {
    for (uint32_t i = n; i-- > 0; *above += sums[i])
        if (*above + sums[i] >= target)
            return i;
    return n;
}

/* The bin, from the top, at which the sums reach @target: b.chosen, n_bins when none does. A thread
 * sums its bins, 16 threads those of 32 threads, one walks down over sixteen sums, 32 and then a
 * thread's bins. */
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

/* The cut at which the amounts, summed from the best token down, reach @target. false: they do
 * not. */
template <typename S>
DEVICE bool select_cut(struct Bench &b, const S &tokens, uint32_t n_vocab, uint64_t target,
                       float max, float inv_t, struct Cut *out) {
    uint32_t prefix = 0, tid = threadIdx.x;

    if (tid == 0)
        b.above = 0;
    for (int v = 0; v < 3; v++) { /* bits 31 to 20, 19 to 8, 7 to 0 */
        uint32_t bits = v < 2 ? 12 : 8, n_bins = 1u << bits;
        uint32_t shift = v == 0 ? CUT_SHIFT : v == 1 ? 8 : 0, above_shift = shift + bits;

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
            return false; /* only at the first level */
        prefix = prefix << bits | b.chosen;
    }
    /* Tokens of this value have the same amount: the cut keeps as many as are needed, by id. */
    out->value = samp_unordered(prefix);
    uint64_t one = amount(out->value, max, inv_t), missing = target - b.above;
    uint64_t need = (missing + one - 1) / one, there = b.bins[prefix & 255] / one;
    uint32_t high = n_vocab - 1,
             low = need < there ? 0 : high; /* the id up to which there are @need */
    sync_block();
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t count = 0;

        tokens.each([&](uint32_t i, float x) { count += i <= middle && x == out->value; });
        if (combine<false>(b, count) >= need)
            high = middle;
        else
            low = middle + 1;
    }
    out->id = low;
    return true;
}

/* Returns true if the cut keeps token @id, whose logit is @x. */
DEVICE bool is_kept(const struct Cut &c, float x, uint32_t id) {
    return x > c.value || (x == c.value && id <= c.id);
}

/* Returns the sum that the weights must reach for top_p. */
DEVICE uint64_t target_of(float top_p, uint64_t total) {
    double part = (double)(top_p > 0 ? top_p : 0.0f) * (double)total;
    uint64_t target = (uint64_t)part;

    target += (double)target < part;
    target = target > 1 ? target : 1;
    return target < total ? target : total;
}

/* min_p besides what @c keeps. */
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

/* Finds the cut of top_k, top_p and min_p. @tokens: at least those that top_k, or else top_p,
 * keeps. @total: the weights of all tokens of the row, if there is no top_k. */
template <typename S>
DEVICE struct Cut truncate_tail(struct Bench &b, const struct sample_want &w, const S &tokens,
                                uint32_t n_vocab, float max, uint64_t total) {
    struct Cut c = {-INFINITY, 0}, found;
    float inv_t = 1.0f / w.temperature;

    if (sample_has_top_k(&w, n_vocab)) {
        if (select_cut(b, tokens, n_vocab, w.top_k, max, 0, &found))
            c = found;
        total = 0;
        if (w.top_p < 1)
            tokens.each([&](uint32_t i, float x) {
                total += is_kept(c, x, i) ? samp_weight(x, max, inv_t) : 0;
            });
        total = combine<false>(b, total);
    }
    if (w.top_p < 1 &&
        select_cut(b, tokens, n_vocab, target_of(w.top_p, total), max, inv_t, &found))
        c = found;
    return cut_low(w, max, c);
}

/* -- noise ------------------------------------------------------------------------------------- */

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

/* The best of what every thread has found; among equals the lowest id. */
DEVICE struct Drawn best_of(struct Bench &b, struct Drawn mine) {
    uint64_t top = combine<true>(b, mine.key);
    bool is_top = mine.key == top && mine.id != NONE;

    return {top, ~(uint32_t)combine<true>(b, is_top ? (uint32_t)~mine.id : 0)};
}

/* argmax of l + T g over those of @tokens that @c keeps. First roughly; then exactly for those that
 * are near the best. @max: of the row. */
template <typename S>
DEVICE struct Drawn draw(struct Bench &b, const struct sample_want &w, const S &tokens, float max,
                         struct Cut c) {
    /* The noise of the best token is above -3.3: what is 26.3 T below it cannot win. */
    float least = max - SAMP_NOISE_MAX * w.temperature - 4 * w.temperature - fabsf(max) * 1e-5f;
    float best = -INFINITY;
    struct Drawn mine = {0, NONE};

    tokens.each_near(w, least, [&](uint32_t i, float x, uint32_t word) {
        if (is_kept(c, x, i))
            best = fmaxf(best, rough_key(x, w.temperature, word));
    });
    best = samp_rank_value(combine<true>(b, samp_rank(best, 0)));
    float bar = best - 4e-3f * w.temperature - 4e-5f * (fabsf(best) + fabsf(max));
    least = fmaxf(least, bar - 23.0f * w.temperature);
    tokens.each_near(w, least, [&](uint32_t i, float x, uint32_t word) {
        if (!is_kept(c, x, i) || rough_key(x, w.temperature, word) < bar)
            return;
        uint64_t key = ordered_double(samp_key(x, w.temperature, word));

        if (key > mine.key || (key == mine.key && i < mine.id)) {
            mine.key = key;
            mine.id = i;
        }
    });
    return best_of(b, mine);
}
