/*
 * rows - the kernels that work on rows of activations: embedding, normalisation, RoPE, pages. Each
 * has one or several thread blocks for each row. Each thread sums fixed elements, then the threads'
 * sums are added in a fixed order, so a sum depends only on the row. With few rows the kernels are
 * bound by memory latency, so a row is read once, with wide loads.
 */

#include "engine/cuda/rows/kernels_blocks.h"
#include "engine/cuda/rows/rows.cuh"

/* Returns the @width values of row @r if it belongs to a picture, else NULL. */
DEVICE const float *picture_of(const struct batch_head *b, uint32_t r, uint32_t width) {
    if (!b->picture_row || b->picture_row[r] == NO_PICTURE)
        return nullptr;
    return b->picture + (size_t)b->picture_row[r] * width;
}

ROW_KERNEL(embed, struct embed_args, CUDA_THREADS, 2) {
    uint32_t n = a.table.n_in;

    const float *picture = picture_of(a.batch, r, a.picture_width);
    if (picture) {
        for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
            a.x[(size_t)r * n + i] = picture[i];
        return;
    }
    int32_t token = rows_token(a.batch, a.sampled, r);
    uint32_t t = (uint32_t)token < a.table.n_rows ? (uint32_t)token : 0, k = tile_k(a.format);
    const uint8_t *tiles = a.tiles + (size_t)(t / TILE_ROWS) * a.n_units * tile_bytes(a.format);
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
        float value;

        if (a.tiles)
            value = tile_read(a.format, tiles + i / k * tile_bytes(a.format), t % TILE_ROWS, i % k,
                              a.inverse);
        else
            value = tile_value_at(&a.table, t, i);
        a.x[(size_t)r * n + i] = a.scale * value;
    }
}

ROW_KERNEL(deep, struct deep_args, CUDA_THREADS, 2) {
    const float *picture = picture_of(a.batch, r, a.picture_width);
    for (uint32_t i = threadIdx.x; i < a.n && picture; i += CUDA_THREADS)
        a.x[(size_t)r * a.n + i] += picture[a.first + i];
}

/* One warp computes one layer's input of a row. */
ROW_KERNEL(layer_input, struct layer_input_args, CUDA_THREADS, 2) {
    uint32_t lane = threadIdx.x % 32;
    uint32_t l = blockIdx.y * (CUDA_THREADS / 32) + threadIdx.x / 32;

    if (l >= a.n_layer)
        return;
    int32_t token = rows_token(a.batch, a.sampled, r);
    bool has_token = (uint32_t)token < a.table.n_rows && !picture_of(a.batch, r, 0);
    uint32_t t = has_token ? (uint32_t)token : 0;
    float *p = a.p + ((size_t)r * a.n_layer + l) * a.n;

    for (uint32_t i = lane; i < a.n; i += 32)
        p[i] *= a.scale;
    float inverse = inverse_length(p, a.n, a.eps);
    for (uint32_t i = lane; i < a.n; i += 32) {
        float own = a.own * tile_value_at(&a.table, t, l * a.n + i);

        p[i] = (p[i] * inverse * a.norm[i] + own) * 0.70710678f;
    }
}

ROW_KERNEL(rope, struct rope_args, CUDA_THREADS, 2) {
    const auto &table = a.table[blockIdx.y];
    uint32_t pos = a.batch->pos[r] + a.ahead;
    if (a.temper && blockIdx.y == 0 && threadIdx.x == 0)
        a.temper[r] = (float)(1.0 + (double)a.slope * mx_log(1.0 + (double)(pos / a.span)));
    for (uint32_t i = threadIdx.x; i < table.n_pairs; i += CUDA_THREADS) {
        float *to = table.rope + ((size_t)r * table.n_pairs + i) * 2;
        double s, c;

        mx_sincos(a.batch->at[table.axis ? table.axis[i] : 0][r] * table.freq[i], &s, &c);
        to[0] = (float)c * table.mscale;
        to[1] = (float)s * table.mscale;
    }
}

/* -- hidden states ----------------------------------------------------------------------------- */

/* Returns the factor of the RMS norm of x - @mean, with the sum in the order of pack_row(). */
DEVICE float inverse_rms(const float *x, uint32_t n, float mean, float eps, float *shared) {
    float sum = 0, v[1][4];

    for (uint32_t i = 4 * threadIdx.x; i < n; i += 4 * PACK_THREADS) {
        load_quads<4>(x, i, n, v);
        for (uint32_t j = 0; j < 4; j++) {
            float d = i + j < n ? v[0][j] - mean : 0;

            sum = fmaf(d, d, sum);
        }
    }
    return 1.0f / sqrtf(block_sum<PACK_THREADS / 32>(sum, shared) / (float)n + eps);
}

/* Computes y = rms norm of x times weight; copies x if weight is NULL. */
DEVICE void rows_norm_one(const float *x, const float *weight, uint32_t n, float eps, float *y,
                          float *shared) {
    float inverse = weight ? inverse_rms(x, n, 0, eps, shared) : 1;

    for (uint32_t i = threadIdx.x; i < n; i += PACK_THREADS)
        y[i] = weight ? x[i] * inverse * weight[i] : x[i];
}

/* Returns the address at which the hidden state of position @pos of a sequence is kept. */
template <class ARGS> DEVICE float *kept_of(const ARGS &a, const struct plan_seq &s, uint32_t pos) {
    return a.kept + ((size_t)s.state * a.n_kept + pos % a.n_kept) * a.n;
}

template <class ARGS> DEVICE void rows_keep(const ARGS &a, const struct plan_seq &s, uint32_t i) {
    const float *from = a.hidden + (size_t)(s.row0 + i) * a.n;
    float *to = kept_of(a, s, s.pos0 + i);

    for (uint32_t k = threadIdx.x; k < a.n; k += PACK_THREADS)
        to[k] = from[k];
}

KERNEL(keep, struct keep_args, PACK_THREADS, 2) {
    wait_for_previous();
    SHARED float shared[PACK_THREADS / 32];
    uint32_t r = blockIdx.x;

    if (!a.row && r >= a.batch->n_rows)
        return;
    const float *x = a.x + (size_t)(a.row ? a.row[r] : r) * a.n;
    float *y = a.hidden + (size_t)r * a.n, sum = 0;

    if (a.centred) {
        for (uint32_t k = threadIdx.x; k < a.n; k += PACK_THREADS)
            sum += x[k];
        float mean = block_sum<PACK_THREADS / 32>(sum, shared) / (float)a.n;
        float inverse = inverse_rms(x, a.n, mean, a.eps, shared);

        for (uint32_t k = threadIdx.x; k < a.n; k += PACK_THREADS)
            y[k] = (x[k] - mean) * inverse * a.weight[k] + (a.bias ? a.bias[k] : 0);
    } else {
        rows_norm_one(x, a.weight, a.n, a.eps, y, shared);
    }
    if (!a.kept)
        return;
    const struct plan_seq s = a.batch->seq[a.batch->row_seq[r]];
    if (r - s.row0 + a.n_kept >= s.n_rows)
        rows_keep(a, s, r - s.row0);
}

/* With codes of eight bits two blocks have too few registers, and spill. */
#ifdef WEFT_BYTES
#define PAIR_BLOCKS 1
#else
#define PAIR_BLOCKS 2
#endif

/* Row 0 reads the state of position pos0 - 1, whose place the last row with a number of -1 modulo
 * n_kept will overwrite. To avoid a race, the block of row 0 stores that row, too, after it has
 * read. */
ROW_KERNEL(pair, struct pair_args, PACK_THREADS, PAIR_BLOCKS) {
    SHARED float shared[PACK_SHARED];
    const struct plan_seq s = a.batch->seq[a.batch->row_seq[r]];
    uint32_t i = r - s.row0;
    float *to = a.pair + (size_t)r * 2 * a.n_x;

    if (a.x)
        rows_norm_one(a.x + (size_t)r * a.n_x, a.x_norm, a.n_x, a.eps, to, shared);
    if (i > 0 || s.before) {
        const float *before = i > 0 ? a.hidden + (size_t)(r - 1) * a.n : kept_of(a, s, s.pos0 - 1);

        rows_norm_one(before + a.part, a.h_norm, a.n_x, a.eps, to + a.n_x, shared);
    } else {
        for (uint32_t k = threadIdx.x; k < a.n_x; k += PACK_THREADS)
            to[a.n_x + k] = 0;
    }
    sync_block();
    pack_row(a.pack, r, r, shared);
    if (a.keeps && i + a.n_kept >= s.n_rows && i % a.n_kept != a.n_kept - 1)
        rows_keep(a, s, i);
    if (a.keeps && i == 0 && s.n_rows >= a.n_kept)
        rows_keep(a, s, s.n_rows / a.n_kept * a.n_kept - 1);
}

/* The registers leave room on a multiprocessor for a block of matmul_wgmma_64, which is launched
 * early (check_kernels.py). */
KERNEL(residual, struct residual_args, CUDA_THREADS, 3) {
    SHARED float shared[PACK_SHARED];
    uint32_t r = blockIdx.x;
    bool there = r < a.batch->n_rows;

    if (!there && may_exit())
        return;
    prefetch_weights(a.norm, a.n);
    prefetch_weights(a.packs ? a.pack.weight : NULL, a.n);
    wait_for_previous();
    if (!there)
        return;
    residual_row(a, r, a.left.sums != NULL, shared, [&](uint32_t i, auto &v) {
        if (a.left.sums)
            add_left<4 * CUDA_THREADS>(a.left, r, i, a.n, v);
        else
            load_quads<4 * CUDA_THREADS>(a.t + (size_t)r * a.n, i, a.n, v);
    });
}

KERNEL(cap, struct cap_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t i = blockIdx.x * CUDA_THREADS + threadIdx.x;

    if (i >= a.n || (a.count && blockIdx.y >= *a.count))
        return;
    float *l = a.logits + (size_t)blockIdx.y * a.n + i, z = *l * a.scale;

    *l = a.cap != 0 ? mx_soft_cap(z, a.cap) : z;
}

ROW_KERNEL(soft_gate, struct soft_gate_args, CUDA_THREADS, 2) {
    uint32_t per = a.n / a.n_gate;

    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS) {
        float gate = a.gate[(size_t)r * a.n_gate + i / per];

        if (a.sigmoid)
            gate = mx_sigmoid(gate);
        else
            gate = mx_softplus(gate);
        a.o[(size_t)r * a.n + i] *= gate;
    }
}

ROW_KERNEL(thin_gates, struct thin_args, CUDA_THREADS, 2) {
    SHARED float shared[CUDA_THREADS / 32];
    float *gate = a.gate + (size_t)r * a.n, sum = 0, squares = 0;

    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        sum += gate[i];
    float mean = block_sum<CUDA_THREADS / 32>(sum, shared) / (float)a.n;
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        squares = fmaf(gate[i] - mean, gate[i] - mean, squares);
    squares = block_sum<CUDA_THREADS / 32>(squares, shared);
    float least = mean + a.sparsity * sqrtf(squares / (float)(a.n - 1));
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        gate[i] = fmaxf(gate[i] - least, 0);
}

/* Returns true if row @r of a pack exists in the batch. */
DEVICE bool has_row(const struct pack_args &a, uint32_t r) {
    uint32_t each = a.each ? a.each : 1;

    return !a.batch || r < (a.wanted ? a.batch->n_wants : a.batch->n_rows * each);
}

/* Bound by the latency of loading x and the kernel's own instructions: with few rows, each part of
 * the code runs only once. */
KERNEL(pack, struct pack_args, PACK_THREADS, 2) {
    SHARED float shared[PACK_SHARED];
    uint32_t r = blockIdx.x, row = r;
    bool there = has_row(a, r);

    if (!there && may_exit())
        return;
    if (a.wanted && there)
        row = a.batch->want_row[r];
    prefetch_weights(a.weight, a.n);
    wait_for_previous();
    if (there)
        pack_row(a, r, row, shared);
}

/* Packs row @r of the batch as row @r after a dry pass (dry.cuh) over a.settled. Short rows have no
 * dry pass: some threads alone pack them, and the others end. */
DEVICE void pack_dry_row(const struct pack_args &a, uint32_t r, bool there, float *shared) {
    struct DryPass pass;
    uint32_t row = r;

    if (a.wanted && there)
        row = a.batch->want_row[r];
    pass.start(!there || a.n_padded <= 4 * SHORT_THREADS);
#pragma unroll 1
    for (;;) {
        const float *x = a.settled;

        if (pass.is_live()) {
            wait_for_previous();
            x = a.x + (size_t)row * (a.x_stride ? a.x_stride : a.n);
        }
        if (there)
            pack_row_to(a, DryPlace{a, r, pass.is_live()}, shared,
                        [&](uint32_t i, auto &v) { load_quads<4 * PACK_THREADS>(x, i, a.n, v); });
        if (pass.ends())
            return;
        sync_block(); /* the next pass uses @shared again */
    }
}

KERNEL(pack_dry, struct pack_args, PACK_THREADS, 2) {
    SHARED float shared[PACK_SHARED];
    bool there = has_row(a, blockIdx.x);

    if (!there && may_exit())
        return;
    prefetch_weights(a.weight, a.n);
    if constexpr (WEFT_DRY)
        pack_dry_row(a, blockIdx.x, there, shared);
}

/* Packs row @r, of which @load returns columns; shared: [PACK_SHARED]. Rows of up to 12288 columns
 * are loaded once and kept in registers. */
template <typename LOAD>
DEVICE void pack_loaded(const struct pack_args &a, uint32_t r, float *shared, const LOAD &load) {
    if (!has_row(a, r))
        return;
    if (a.n <= 2 * 4 * PACK_THREADS)
        pack_quads<PACK_THREADS, 2, false, false>(a, r, shared, load);
    else
        pack_quads<PACK_THREADS, 6, true, false>(a, r, shared, load);
}

/* Packs kinds from PACK_RELU to PACK_XIELU. */
KERNEL_ALLOTTED(pack_activated, struct pack_args, PACK_THREADS, PACK_ALLOTTED, 1) {
    wait_for_previous();
    SHARED float shared[PACK_SHARED];
    uint32_t r = blockIdx.x, n = a.n;
    const float *x = a.x + (size_t)r * (a.x_stride ? a.x_stride : n);
    auto load = [&](uint32_t i, auto &v) {
        constexpr uint32_t step = 4 * PACK_THREADS;

        load_quads<step>(x, i, n, v);
        activate_quads<step>(a, i, v);
    };

    pack_loaded(a, r, shared, load);
}

/* Packs kinds from PACK_SILU on. */
KERNEL_ALLOTTED(pack_gated, struct pack_args, PACK_THREADS, PACK_ALLOTTED, 1) {
    wait_for_previous();
    SHARED float shared[PACK_SHARED];
    uint32_t r = blockIdx.x, n = a.n;
    const float *x = a.x + (size_t)r * (a.x_stride ? a.x_stride : n);
    const float *up = a.up + (size_t)r * (a.up_stride ? a.up_stride : n);
    auto load = [&](uint32_t i, auto &v) {
        constexpr uint32_t step = 4 * PACK_THREADS;
        float u[sizeof(v) / sizeof(v[0])][4];

        load_quads<step>(x, i, n, v);
        load_quads<step>(up, i, n, u);
        gate_quads<step>(a, i, u, v);
    };

    pack_loaded(a, r, shared, load);
}

/* -- block drafters ---------------------------------------------------------------------------- */

ROW_KERNEL(convolve, struct convolve_args, CUDA_THREADS, 2) {
    uint32_t n_groups = a.n / a.group;

    uint32_t before = r - a.batch->seq[a.batch->row_seq[r]].row0;
    const float *d = a.d + ((size_t)r * 2 + a.side) * a.kernel * n_groups;
    const float *base = a.base + (size_t)a.side * a.kernel * a.n;
    for (uint32_t c = threadIdx.x; c < a.n; c += CUDA_THREADS) {
        float sum = 0;

        for (uint32_t t = 0; t < a.kernel && t <= before; t++)
            sum += (d[(size_t)t * n_groups + c / a.group] + base[(size_t)t * a.n + c]) *
                   a.in[(size_t)(r - t) * a.n + c];
        a.out[(size_t)r * a.n + c] = sum;
    }
}

/* Returns the largest key below @bound among a thread's tokens; 0 if there is none. */
DEVICE uint64_t largest_below(const float *logits, uint32_t n, uint64_t bound) {
    uint64_t most = 0;

    for (uint32_t t = threadIdx.x; t < n; t += CUDA_THREADS) {
        uint64_t key = samp_rank(logits[t] + 0.0f, t); /* adding 0 turns -0 into +0 */

        most = key < bound && key > most ? key : most;
    }
    return most;
}

/* Returns the sequence of want @i. */
DEVICE uint32_t want_seq(const struct batch_head *b, uint32_t i) {
    return b->row_seq[b->want_row[i]];
}

/* Each iteration takes the largest remaining key; the thread that owned it then searches its next
 * one. Bound by reading the logits once, then by the latency of one thread's share of them. */
KERNEL(candidates, struct select_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED uint64_t most[CUDA_THREADS / 32];
    uint32_t i = a.first + blockIdx.x;

    if (i >= a.batch->n_wants || a.batch->want_row[i] == a.batch->seq[want_seq(a.batch, i)].row0)
        return;
    float *logits = a.logits + (size_t)blockIdx.x * a.n_vocab;
    uint64_t own = largest_below(logits, a.n_vocab, UINT64_MAX);
    for (uint32_t k = 0; k < a.top_k; k++) {
        uint64_t key = block_max<CUDA_THREADS / 32>(own, most);

        if (threadIdx.x == 0)
            a.pick[(size_t)blockIdx.x * a.top_k + k] = key;
        if (own == key)
            own = largest_below(logits, a.n_vocab, key);
    }
    for (uint32_t t = threadIdx.x; t < a.n_vocab; t += CUDA_THREADS)
        logits[t] -= 1e4f;
}

/* The block of a sequence's first want processes all wants of the sequence in order, one warp for
 * each candidate. Bound by the latency of loads from the tables. */
KERNEL(choose_candidate, struct select_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float score[SELECT_CANDIDATES];
    const struct batch_head *b = a.batch;
    uint32_t i = a.first + blockIdx.x, end = a.first + gridDim.x, lane = threadIdx.x % 32;

    end = end < b->n_wants ? end : b->n_wants;
    if (i >= end || (blockIdx.x > 0 && want_seq(b, i - 1) == want_seq(b, i)))
        return;
    uint32_t seq = want_seq(b, i), row0 = b->seq[seq].row0;
    bool goes_on = i > 0 && want_seq(b, i - 1) == seq && b->want_row[i - 1] > row0;
    uint32_t token = (uint32_t)(goes_on ? a.best[i - 1] : b->token[row0]);
    for (; i < end && want_seq(b, i) == seq; i++) {
        const uint64_t *pick = a.pick + (size_t)(i - a.first) * a.top_k;
        const float *g = a.g + (size_t)(i - a.first) * a.rank;
        float *logits = a.logits + (size_t)(i - a.first) * a.n_vocab;
        uint32_t best = 0;

        if (b->want_row[i] == row0)
            continue;
        for (uint32_t k = threadIdx.x / 32; k < a.top_k; k += CUDA_THREADS / 32) {
            float sum = 0;

            for (uint32_t r = lane; r < a.rank; r += 32)
                sum += tile_value_at(&a.after, samp_rank_id(pick[k]), r) *
                       (tile_value_at(&a.before, token, r) * g[r]);
            sum = warp_sum(sum);
            if (lane == 0)
                score[k] = samp_rank_value(pick[k]) + sum;
        }
        sync_block();
        for (uint32_t k = 1; k < a.top_k; k++)
            best = score[k] > score[best] ? k : best;
        token = samp_rank_id(pick[best]);
        if (threadIdx.x < a.top_k)
            logits[samp_rank_id(pick[threadIdx.x])] = score[threadIdx.x];
        if (threadIdx.x == 0)
            a.best[i] = (int32_t)token;
        sync_block();
    }
}

/* One warp computes a token, so its sum does not depend on the division of tokens among blocks.
 * Bound by reading @after once for each sequence. */
KERNEL(chain, struct chain_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float row[CHAIN_RANK];
    SHARED uint64_t most[CUDA_THREADS / 32];
    const struct batch_head *b = a.batch;
    uint32_t i = a.first + blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    if (i >= b->n_wants)
        return;
    uint32_t row0 = b->seq[want_seq(b, i)].row0, place = b->want_row[i] - row0;
    if (place == a.place + 1 && blockIdx.x == 0 && threadIdx.x == 0)
        a.best[i] = 0;
    if (place != a.place || place < a.first_draft)
        return;
    uint32_t token =
        place == a.first_draft ? (uint32_t)b->token[row0] : samp_rank_id(a.best[i - 1]);
    for (uint32_t r = threadIdx.x; r < a.rank; r += CUDA_THREADS)
        row[r] = tile_value_at(&a.before, token, r);
    sync_block();
    uint32_t begin = blockIdx.x * CHAIN_TOKENS, end = begin + CHAIN_TOKENS;
    end = end < a.n_vocab ? end : a.n_vocab;
    float *logits = a.logits + (size_t)blockIdx.y * a.n_vocab;
    uint64_t best = 0;
    for (uint32_t t = begin + warp; t < end; t += CUDA_THREADS / 32) {
        float sum = 0;

        for (uint32_t r = lane; r < a.rank; r += 32)
            sum = fmaf(tile_value_at(&a.after, t, r), row[r], sum);
        sum = logits[t] + warp_sum(sum);
        sync_warp();
        if (lane == 0)
            logits[t] = sum;
        best = larger(best, samp_rank(sum + 0.0f, t)); /* adding 0 turns -0 into +0 */
    }
    best = join_warps<CUDA_THREADS / 32>(best, most, larger);
    if (threadIdx.x == 0)
        max_global(a.best + i, best);
}

/* One warp stores one head: queries first, then keys with their values. */
KERNEL(store, struct store_args, CUDA_THREADS, 2) {
    SHARED float heads[CUDA_THREADS / 32][HEAD_MAX];
    uint32_t r = blockIdx.x, warp = threadIdx.x / 32;
    uint32_t h = blockIdx.y * (CUDA_THREADS / 32) + warp;

    if (r >= a.batch->n_rows || h >= a.n_head + a.n_kv) {
        if (!may_exit())
            wait_for_previous();
    } else if (a.shape.head_dim <= 128)
        store_values<4>(a, r, h, heads[warp]);
    else
        store_values<HEAD_MAX / 32>(a, r, h, heads[warp]);
}

/* One warp transforms one head. */
ROW_KERNEL(hadamard, struct hadamard_args, CUDA_THREADS, 2) {
    SHARED float heads[CUDA_THREADS / 32][HEAD_MAX];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t h = blockIdx.y * (CUDA_THREADS / 32) + warp;

    if (h >= a.n_head)
        return;
    float *o = a.o + ((size_t)r * a.n_head + h) * a.head_dim;

    for (uint32_t i = lane; i < a.head_dim; i += 32)
        heads[warp][i] = o[i];
    sync_warp();
    hadamard_head(heads[warp], a.head_dim, a.run);
    for (uint32_t i = lane; i < a.head_dim; i += 32)
        o[i] = heads[warp][i];
}

/* One warp writes one head of a placeholder key: zeros and one infinity (or a scale of infinity),
 * so that any score of it is infinite or NaN. */
ROW_KERNEL(holes, struct store_args, CUDA_THREADS, 2) {
    SHARED float heads[CUDA_THREADS / 32][LATENT_KEY];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t h = blockIdx.y * (CUDA_THREADS / 32) + warp, dim = a.shape.head_dim;

    if (h >= a.n_kv)
        return;
    uint32_t slot = a.batch->row_slot[r], infinity = 0x7C00;
    uint8_t *page = a.pages + (size_t)a.batch->row_page[a.cls][r] * page_layer_bytes(&a.shape);

    for (uint32_t i = lane; i < dim; i += 32)
        heads[warp][i] = 0;
    sync_warp();
    store_head(a, h, PAGE_K, page, slot, heads[warp]);
    if (!a.shape.latent)
        store_head(a, h, PAGE_V, page, slot, heads[warp]);
    sync_warp();
    if (lane > 0)
        return;
    enum page_part part = PAGE_BITS(a.shape.k) < 16 ? PAGE_K_SCALES : PAGE_K;
    uint32_t n = PAGE_BITS(a.shape.k) < 16 ? dim / 32 : dim;
    uint16_t *to = (uint16_t *)(page + page_offset(&a.shape, h, part));

    to[slot * n + n - 1] = (uint16_t)infinity;
}

/* One warp stores one head: the queries, then the key. */
ROW_KERNEL(store_latent, struct store_args, CUDA_THREADS, 2) {
    SHARED float heads[CUDA_THREADS / 32][LATENT_KEY];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t h = blockIdx.y * (CUDA_THREADS / 32) + warp, rank = a.shape.head_dim - a.n_rot;

    if (h > a.n_head)
        return;
    const float *rope = a.rope ? a.rope + (size_t)r * a.n_rot : NULL;
    float *head = heads[warp];
    if (h < a.n_head) {
        float *q = a.q + ((size_t)r * a.n_head + h + 1) * a.width - a.n_rot;
        float factor = a.temper ? a.temper[r] : 1;

        for (uint32_t i = lane; i < a.n_rot; i += 32)
            head[i] = q[i];
        sync_warp();
        if (rope)
            rows_turn(a, rope, head);
        for (uint32_t i = lane; i < a.n_rot; i += 32)
            q[i] = head[i] * factor;
        if (!a.temper)
            return;
        float *latent = a.latent + ((size_t)r * a.n_head + h) * rank;
        for (uint32_t i = lane; i < rank; i += 32)
            latent[i] *= factor;
        return;
    }
    const float *k = a.k + (size_t)r * a.shape.head_dim;
    float inverse = inverse_length(k, rank, a.eps);
    for (uint32_t i = lane; i < a.shape.head_dim; i += 32)
        head[i] = i < rank && a.k_norm ? k[i] * inverse * a.k_norm[i] : k[i];
    sync_warp();
    if (rope)
        rows_turn(a, rope, head + rank);
    store_head(a, 0, PAGE_K,
               a.pages + (size_t)a.batch->row_page[a.cls][r] * page_layer_bytes(&a.shape),
               a.batch->row_slot[r], head);
    fence_bulk(); /* attend_latent_bulk reads the page */
}

KERNEL(copy_page, struct copy_args, CUDA_THREADS, 2) {
    wait_for_previous();
    const uint8_t *from = a.from + blockIdx.y * a.from_layer;
    uint8_t *to = a.to + blockIdx.y * a.to_layer;
    size_t step = (size_t)gridDim.x * CUDA_THREADS * 16;

    for (size_t i = ((size_t)blockIdx.x * CUDA_THREADS + threadIdx.x) * 16; i < a.page_bytes;
         i += step)
        store16(to + i, load16(from + i));
    fence_bulk(); /* attend_latent_bulk reads the page */
}
