/*
 * sample - samples tokens from rows of logits: the chain of engine/sampler_core.c, with the same
 * result for the same logits. Several blocks share a row, each with a range of tokens (its
 * stretch). Their results are combined by sums of integers and maxima, so the number of blocks has
 * no effect on the token. A step uses up to three launches, as its wants need them
 * (sample_needs()):
 *
 *     scan    applies penalties, biases, bans and masks; finds the best token, the digest, and each
 *             block's best tokens for log probabilities. Greedy rows end here.
 *     weigh   sums the weights for log probabilities. For top_k or top_p it also fills a histogram
 *             of the logits, in which the last block finds the bin that contains the cut.
 *     draw    without top_k and top_p: each block finds its best l + T g (logit, temperature,
 *             Gumbel noise), and the last block the best of these. Otherwise the blocks put all
 *             tokens down to that bin on a list, typically a few hundred, and the last block cuts
 *             and draws among them (sample_select.cuh).
 *
 * A row goes through the L2 cache two or three times. If the list overflows (a flat distribution),
 * the last block reads the whole row alone, which is slow but correct. A counter tells a block that
 * it is the last one. It reads results of other blocks past the L1 cache, which is not coherent
 * (store_global(), get_global(), add_global(), ...). Every launch resets the sums of struct
 * sample_state to zero.
 *
 * Logits are cleaned when they are read, so rows without processors are never copied.
 */

#include "engine/cuda/sampling/sample_select.cuh"

/* temperatures below the best logit; lower tokens count for top_p but get no bin */
#define NEAR 12.0f

/* The row of logits that a block works on. */
struct Row {
    struct sample_want w;
    struct sample_state *state;
    struct sample_out *out;
    /* bitmap of allowed tokens, or NULL */
    const uint32_t *mask;
    /* this block's tokens: logits before and after the processors */
    struct Stretch raw, l;
    float *z;
    uint32_t needs, n, index;
    bool processed;
};

DEVICE struct Row sample_row(const struct sample_args &a) {
    struct Row r;
    uint32_t per = ((a.n_vocab + 3) / 4 + gridDim.x - 1) / gridDim.x * 4, want = blockIdx.y;
    uint32_t from = blockIdx.x * per < a.n_vocab ? blockIdx.x * per : a.n_vocab;
    int32_t m = a.mask_index[want];

    r.w = a.want[want];
    r.state = a.state + want;
    r.out = a.out + want;
    r.mask = m >= 0 ? a.mask + (size_t)m * a.mask_words : NULL;
    r.z = a.z + (size_t)want * a.n_vocab;
    r.raw = {a.logits + (size_t)want * a.n_vocab, from,
             from + per < a.n_vocab ? from + per : a.n_vocab};
    r.processed = r.w.n_bias || r.w.n_bans || r.mask || r.w.repetition != 1 || r.w.presence != 0 ||
                  r.w.frequency != 0;
    r.l = r.raw;
    if (r.processed)
        r.l.z = r.z;
    r.needs = sample_needs(&r.w, a.n_vocab);
    r.n = a.n_vocab;
    r.index = want;
    return r;
}

/* Reads a sum that the last block consumes, and resets it to zero for the next launch. */
template <typename T> DEVICE T consume_global(T *p) {
    T v = get_global(p);

    store_global(p, (T)0);
    return v;
}

/* -- processors: each block handles its stretch ------------------------------------------------ */

/* Adds all biases of a token in the order of the list, since float addition is not associative: the
 * thread of its first entry adds them all. */
DEVICE void sample_add_bias(const struct bias_entry *bias, const struct Row &r) {
    for (uint32_t i = threadIdx.x; i < r.w.n_bias; i += SAMPLE_THREADS) {
        bool first = r.l.holds((uint32_t)bias[i].token);

        for (uint32_t j = 0; first && j < i; j++)
            first = bias[j].token != bias[i].token;
        for (uint32_t j = i; first && j < r.w.n_bias; j++)
            if (bias[j].token == bias[i].token)
                r.z[bias[j].token] += bias[j].bias;
    }
}

DEVICE void penalise_token(const struct Row &r, int32_t token, uint32_t count) {
    if (!r.l.holds((uint32_t)token))
        return;
    float x = r.z[token];

    if (r.w.repetition != 1)
        x = x > 0 ? x / r.w.repetition : x * r.w.repetition;
    if (count) {
        float frequency = (float)count * r.w.frequency;

        x = x - frequency - r.w.presence;
    }
    r.z[token] = x;
}

/* Applies repetition, presence and frequency penalties. @fed is an output token that the list does
 * not count yet, sampled in the previous step, or -1. */
DEVICE void sample_penalise(struct Bench &b, const struct Row &r, const struct penal *list,
                            int32_t fed) {
    if (r.w.repetition == 1 && r.w.presence == 0 && r.w.frequency == 0)
        return;
    if (threadIdx.x == 0)
        b.chosen = 0;
    sync_block();
    for (uint32_t i = threadIdx.x; i < r.w.n_penals; i += SAMPLE_THREADS) {
        penalise_token(r, list[i].token, list[i].count + (list[i].token == fed));
        if (list[i].token == fed)
            b.chosen = 1;
    }
    sync_block();
    if (threadIdx.x == 0 && fed >= 0 && !b.chosen)
        penalise_token(r, fed, 1);
}

/* Applies penalties, biases, bans and the mask to z, which holds the clean logits. */
DEVICE void sample_process_row(const struct sample_args &a, struct Bench &b, const struct Row &r) {
    sync_block();
    sample_add_bias(a.bias + r.w.bias0, r);
    sync_block();
    sample_penalise(b, r, a.penal + r.w.penal0, r.w.fed >= 0 ? a.fed_from[r.w.fed] : -1);
    sync_block();
    for (uint32_t i = threadIdx.x; i < r.w.n_bans; i += SAMPLE_THREADS)
        if (r.l.holds((uint32_t)a.ban[r.w.ban0 + i]))
            store_alike((uint32_t *)&r.z[a.ban[r.w.ban0 + i]],
                        /* an atomic store, since a token may be listed twice */
                        mx_bits_of(-INFINITY));
    sync_block();
    if (r.mask)
        r.l.each([&](uint32_t i, float x) {
            if (!((r.mask[i / 32] >> (i % 32)) & 1))
                r.z[i] = -INFINITY;
        });
    sync_block();
}

/* Returns the token for a row without a finite logit: the lowest id that the mask and the bans
 * allow, else the lowest that the bans allow, else 0. */
DEVICE uint32_t sample_last_resort(const struct sample_args &a, struct Bench &b,
                                   const struct Row &r) {
    for (int use_mask = r.mask != NULL; use_mask >= 0; use_mask--) {
        uint64_t best = 0;

        for (uint32_t i = threadIdx.x; i < a.n_vocab; i += SAMPLE_THREADS) {
            bool allowed = !use_mask || ((r.mask[i / 32] >> (i % 32)) & 1);

            for (uint32_t j = 0; allowed && j < r.w.n_bans; j++)
                allowed = (uint32_t)a.ban[r.w.ban0 + j] != i;
            if (allowed && (uint64_t)~i > best)
                best = (uint32_t)~i;
        }
        best = select_combine<true>(b, best);
        if (best)
            return ~(uint32_t)best;
    }
    return 0;
}

/* -- scan -------------------------------------------------------------------------------------- */

DEVICE void sample_settle(const struct sample_args &a, const struct Row &r, uint32_t token) {
    if (threadIdx.x == 0) {
        r.out->token = (int32_t)token;
        a.sampled[r.index] = (int32_t)token;
    }
}

/* Stores the best tokens of the stretch in order, each as a samp_rank(); 0 if there are fewer. */
DEVICE void rank_tops(struct Bench &b, const struct Row &r, uint64_t best) {
    for (uint32_t k = 0; k < r.w.n_top; k++) {
        uint64_t next = 0;

        if (threadIdx.x == 0)
            store_global(&r.state->tops[blockIdx.x][k], best);
        if (k + 1u < r.w.n_top)
            r.raw.each([&](uint32_t i, float x) {
                uint64_t rank = samp_rank(x, i);

                next = rank < best && rank > next ? rank : next;
            });
        best = select_combine<true>(b, next);
    }
}

/* Combines the results of all blocks and stores the token if it is known. The last block calls
 * it. */
DEVICE void end_scan(const struct sample_args &a, struct Bench &b, const struct Row &r) {
    if (threadIdx.x == 0) {
        b.part[0] = consume_global(&r.state->best);
        b.part[1] = consume_global(&r.state->best_raw);
        b.part[2] = consume_global(&r.state->digest);
    }
    sync_block();
    uint64_t best = b.part[0];
    bool any = samp_rank_value(best) > -INFINITY,
         settled = r.w.target >= 0 || !any || !(r.needs & SAMPLE_DRAW);
    uint32_t token;
    if (r.w.target >= 0)
        token = (uint32_t)r.w.target;
    else if (any)
        token = samp_rank_id(best);
    else
        token = sample_last_resort(a, b, r);
    if (settled)
        sample_settle(a, r, token);
    if (threadIdx.x == 0) {
        r.state->max = samp_rank_value(best);
        r.state->max_raw = samp_rank_value(b.part[1]);
        r.state->settled = settled;
        r.out->digest = a.digest ? samp_digest_end(b.part[2], r.n) : 0;
        r.out->logprob = 0;
        r.out->n_top = 0;
    }
}

KERNEL(sample_scan, struct sample_args, SAMPLE_THREADS, 1) {
    wait_for_previous();
    SHARED struct Bench b;
    struct Row r = sample_row(a);
    uint64_t digest = 0, raw = 0, best = 0;

    r.raw.each_raw([&](uint32_t i, float x) {
        if (a.digest)
            digest += samp_digest_term(mx_bits_of(x), i);
        x = samp_clean(x);
        if (r.processed)
            r.z[i] = x;
        raw = larger(raw, samp_rank(x, i));
    });
    best = raw;
    if (r.processed) {
        best = 0;
        sample_process_row(a, b, r);
        r.l.each([&](uint32_t i, float x) { best = larger(best, samp_rank(x, i)); });
    }
    best = select_combine<true>(b, best);
    raw = select_combine<true>(b, raw);
    digest = select_combine<false>(b, digest);
    if (threadIdx.x == 0) {
        max_global(&r.state->best, best);
        max_global(&r.state->best_raw, raw);
        add_global(&r.state->digest, digest);
    }
    rank_tops(b, r, raw);
    if (last_of(&r.state->n_arrived, gridDim.x))
        end_scan(a, b, r);
}

/* -- weigh ------------------------------------------------------------------------------------- */

/* Writes the log probabilities of @token and of the best tokens, under the logits before all
 * processors. The best tokens are merged from the sorted lists of the blocks. */
DEVICE void write_logprobs(struct Bench &b, const struct Row &r, uint32_t token) {
    uint64_t sum = r.state->logprob_sum, below = ~0ull;
    float max = r.state->max_raw;
    uint32_t n_top = 0;

    for (; n_top < r.w.n_top; n_top++) {
        uint64_t next = 0;

        for (uint32_t i = threadIdx.x; i < gridDim.x * r.w.n_top; i += SAMPLE_THREADS) {
            uint64_t rank = r.state->tops[i / r.w.n_top][i % r.w.n_top];

            next = rank < below && rank > next ? rank : next;
        }
        below = select_combine<true>(b, next);
        if (!(below && samp_rank_value(below) > -INFINITY))
            break;
        if (threadIdx.x == 0) {
            r.out->top[n_top].token = (int32_t)samp_rank_id(below);
            r.out->top[n_top].logprob = samp_logprob(samp_rank_value(below), max, sum);
        }
    }
    if (threadIdx.x == 0) {
        r.out->n_top = n_top;
        r.out->logprob = samp_logprob(samp_clean(r.raw.z[token]), max, sum);
    }
}

/* Fills the histogram of the stretch by the upper bits of the logits: counts for top_k, weights for
 * top_p. For top_p, tokens far below the best one are added to the total only. */
DEVICE void fill_bins(struct Bench &b, const struct Row &r, float max) {
    float inv_t = sample_has_top_k(&r.w, r.n) ? 0 : 1.0f / r.w.temperature;
    float least = inv_t > 0 ? max - NEAR * r.w.temperature : -INFINITY;
    uint64_t total = 0, finite = 0;

    for (uint32_t i = threadIdx.x; i < SAMPLE_BINS; i += SAMPLE_THREADS)
        b.bins[i] = 0;
    sync_block();
    r.l.each([&](uint32_t i, float x) {
        if (!(x >= -FLT_MAX))
            return;
        uint64_t add = amount(x, max, inv_t);

        total += add;
        finite++;
        if (add && x >= least)
            add_shared(&b.bins[samp_ordered(x) >> CUT_SHIFT], add);
    });
    total = select_combine<false>(b, total);
    finite = select_combine<false>(b, finite);
    for (uint32_t i = threadIdx.x; i < SAMPLE_BINS; i += SAMPLE_THREADS)
        if (b.bins[i])
            add_global(&r.state->bins[i], b.bins[i]);
    if (threadIdx.x == 0) {
        add_global(&r.state->total, total);
        add_global(&r.state->n_finite, finite);
    }
}

/* Finds the lowest bin whose tokens must be listed for the cut; NONE if the cut is below all bins.
 * The last block calls it. */
DEVICE void find_bin(const struct sample_args &a, struct Bench &b, const struct Row &r) {
    uint64_t *taken = b.part; /* b.part; b.word and b.above are used by choose_bin() */

    for (uint32_t i = threadIdx.x; i < SAMPLE_BINS; i += SAMPLE_THREADS)
        b.bins[i] = consume_global(&r.state->bins[i]);
    if (threadIdx.x == 0) {
        b.above = 0;
        taken[0] = consume_global(&r.state->total);
        taken[1] = consume_global(&r.state->n_finite);
    }
    sync_block();
    uint64_t total = taken[0], n_finite = taken[1];
    sync_block();
    choose_bin(b, SAMPLE_BINS,
               sample_has_top_k(&r.w, r.n) ? r.w.top_k : target_of(r.w.top_p, total));
    if (threadIdx.x == 0) {
        uint32_t bin = b.chosen < SAMPLE_BINS ? b.chosen : NONE;

        r.state->weight = total;
        r.state->bin = n_finite <= a.list_max ? 0 : bin;
    }
}

KERNEL(sample_weigh, struct sample_args, SAMPLE_THREADS, 1) {
    wait_for_previous();
    SHARED struct Bench b;
    struct Row r = sample_row(a);
    bool settled = r.state->settled, cuts = (r.needs & SAMPLE_CUT) && !settled;
    bool scores = r.needs & SAMPLE_SCORE;
    uint64_t sum = 0;

    if (!cuts && !scores)
        return;
    if (scores) {
        float max = r.state->max_raw;

        if (max > -INFINITY)
            r.raw.each([&](uint32_t i, float x) { sum += samp_weight(x, max, 1); });
        sum = select_combine<false>(b, sum);
        if (threadIdx.x == 0)
            add_global(&r.state->sum, sum);
    }
    if (cuts)
        fill_bins(b, r, r.state->max);
    if (!last_of(&r.state->n_arrived, gridDim.x))
        return;
    if (threadIdx.x == 0)
        r.state->logprob_sum = consume_global(&r.state->sum);
    sync_block();
    if (cuts)
        find_bin(a, b, r);
    if (settled && scores)
        write_logprobs(b, r, (uint32_t)r.out->token);
}

/* -- draw -------------------------------------------------------------------------------------- */

/* Appends the tokens of the stretch whose bin is @bin or higher to the list. Tokens beyond its
 * capacity are counted but not stored. */
DEVICE void list_tokens(const struct sample_args &a, struct Bench &b, const struct Row &r,
                        uint32_t bin) {
    uint64_t n = 0;

    r.l.each(
        [&](uint32_t i, float x) { n += x >= -FLT_MAX && samp_ordered(x) >> CUT_SHIFT >= bin; });
    n = select_combine<false>(b, n);
    if (threadIdx.x == 0)
        b.base = n ? add_global(&r.state->n_listed, (uint32_t)n) : 0;
    sync_block();
    if (n)
        r.l.each([&](uint32_t i, float x) {
            if (!(x >= -FLT_MAX && samp_ordered(x) >> CUT_SHIFT >= bin))
                return;
            uint32_t at = add_shared(&b.base, 1u);

            if (at < a.list_max)
                store_global(&r.state->list[at], select_listed(i, x));
        });
}

/* Draws the token of a row with top_k or top_p. The last block calls it. */
DEVICE struct Drawn draw_cut(const struct sample_args &a, struct Bench &b, const struct Row &r,
                             uint32_t bin, float max) {
    if (threadIdx.x == 0)
        b.base = consume_global(&r.state->n_listed);
    sync_block();
    if (bin != NONE && b.base <= a.list_max) {
        struct Listed tokens = {r.state->list, b.base};
        struct Cut c = select_truncate_tail(b, r.w, tokens, r.n, max, r.state->weight);

        return select_draw(b, r.w, tokens, max, c);
    }
    struct Stretch whole = {r.l.z, 0, r.n};
    struct Cut c = select_truncate_tail(b, r.w, whole, r.n, max, r.state->weight);

    return select_draw(b, r.w, whole, max, c);
}

KERNEL(sample_draw, struct sample_args, SAMPLE_THREADS, 1) {
    wait_for_previous();
    SHARED struct Bench b;
    struct Row r = sample_row(a);
    struct Drawn d = {0, NONE};

    if (!(r.needs & SAMPLE_DRAW) || r.state->settled)
        return;
    float max = r.state->max;
    if (r.needs & SAMPLE_CUT) {
        uint32_t bin = r.state->bin;

        if (bin != NONE)
            list_tokens(a, b, r, bin);
        if (!last_of(&r.state->n_arrived, gridDim.x))
            return;
        d = draw_cut(a, b, r, bin, max);
    } else {
        struct sample_drawn *drawn = r.state->drawn;

        d = select_draw(b, r.w, r.l, max, cut_low(r.w, max, {-INFINITY, 0}));
        if (threadIdx.x == 0) {
            store_global(&drawn[blockIdx.x].key, d.key);
            store_global(&drawn[blockIdx.x].id, d.id);
        }
        if (!last_of(&r.state->n_arrived, gridDim.x))
            return;
        d = {0, NONE};
        if (threadIdx.x < gridDim.x)
            d = {get_global(&drawn[threadIdx.x].key), get_global(&drawn[threadIdx.x].id)};
        d = select_best(b, d);
    }
    sample_settle(a, r, d.id);
    if (r.needs & SAMPLE_SCORE)
        write_logprobs(b, r, d.id);
}
