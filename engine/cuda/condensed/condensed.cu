/*
 * The kernels of kernels_condensed.h. The result of a row depends on its position and on the tokens
 * before it in its sequence alone: sums go over fixed elements of each thread and then over the
 * threads in a fixed order, and keys come in one order, the window's first, whether they lie in the
 * state or in the step.
 *
 * blend            a block a row; its first warp makes the weights, a lane a stream
 * spread           a thread a column of a row
 * turn_heads       a warp a head
 * condense         a block a row, which does something where a block of positions ends
 * keep_rows        a block a row that is kept, behind all that read what lay there
 * score_blocks     a row's queries in shared memory, a thread a key, which it holds in registers
 * choose_blocks    a block a row: the least score that is taken, byte by byte from the highest, and
 *                  then the blocks in their order
 * attend_condensed eight heads of a row, a warp each, which share the keys in shared memory
 */

#include "engine/cuda/condensed/kernels_condensed.h"
#include "engine/cuda/rows/rows.cuh"
#include "engine/shared/sampling.h"
#include "engine/shared/shares.h"

#define WARPS (CUDA_THREADS / 32)

/* -- residual streams -------------------------------------------------------------------------- */

/* The weights of row @r by one warp; m (shared): [n_low]. The first n_stream are those of x. */
DEVICE void blend_weights(const struct blend_args &a, uint32_t r, float inverse, float *m) {
    uint32_t lane = threadIdx.x % 32, n = a.n_stream;

    for (uint32_t i = lane; i < a.n_low; i += 32) {
        uint32_t part = i < n ? 0 : i < 2 * n ? 1 : 2;
        float z = a.low[(size_t)r * a.n_low + i] * inverse * a.scale[part] + a.base[i];

        m[i] = part == 0 ? sigmoid(z) + a.eps : part == 1 ? 2 * sigmoid(z) : z;
    }
    sync_warp();
    if (a.n_low == n)
        return;
    if (lane < n)
        softmax_shares(m + (2 + lane) * n, n, a.eps);
    sync_warp();
    for (uint32_t round = 0; round < a.rounds; round++) {
        if (lane < n && round > 0)
            share_out(m + (2 + lane) * n, n, 1, a.eps);
        sync_warp();
        if (lane < n)
            share_out(m + 2 * n + lane, n, n, a.eps);
        sync_warp();
    }
    for (uint32_t i = lane; i < n * (n + 1); i += 32)
        a.weight[(size_t)r * n * (n + 1) + i] = m[n + i];
}

KERNEL(blend, struct blend_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float shared[WARPS], m[BLEND_STREAMS * (BLEND_STREAMS + 2)];
    uint32_t r = blockIdx.x, n = a.n_stream * a.n;
    float sum[1] = {0};

    if (r >= a.batch->n_rows)
        return;
    const float *s = a.s + (size_t)r * n;
    for (uint32_t i = 4 * threadIdx.x; i < n; i += 4 * CUDA_THREADS) {
        float v[4];

        load_quad(s, i, n, v);
        for (int j = 0; j < 4; j++)
            sum[0] = fmaf(v[j], v[j], sum[0]);
    }
    float all = block_sums<CUDA_THREADS, 1>(sum, shared);
    if (threadIdx.x < 32)
        blend_weights(a, r, 1.0f / sqrtf(all / (float)n + a.rms_eps), m);
    sync_block();
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS) {
        float x = 0;

        for (uint32_t j = 0; j < a.n_stream; j++)
            x += m[j] * s[(size_t)j * a.n + i];
        a.x[(size_t)r * a.n + i] = x;
        a.b[(size_t)r * a.n + i] = 0;
    }
}

KERNEL(spread, struct spread_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x, i = blockIdx.y * CUDA_THREADS + threadIdx.x, n = a.n_stream;

    if (r >= a.batch->n_rows || i >= a.n)
        return;
    float x = a.x[(size_t)r * a.n + i], was[BLEND_STREAMS];
    float *s = a.s + (size_t)r * n * a.n + i;
    const float *w = a.weight ? a.weight + (size_t)r * n * (n + 1) : NULL;

#pragma unroll
    for (uint32_t j = 0; j < BLEND_STREAMS; j++)
        was[j] = w && j < n ? s[(size_t)j * a.n] : 0;
    for (uint32_t d = 0; d < n; d++) {
        float v = w ? w[d] * x : x;

#pragma unroll
        for (uint32_t j = 0; j < BLEND_STREAMS; j++)
            if (w && j < n)
                v += w[n + j * n + d] * was[j];
        s[(size_t)d * a.n] = v;
    }
}

/* -- keys and queries -------------------------------------------------------------------------- */

/* Turns pair @i of a head (shared) by an angle. */
DEVICE void turn_pair(const struct lean_rope &t, uint32_t i, float c, float s, float *head) {
    float *x = head + t.dim - t.n_rot + (t.neox ? i : 2 * i), *y = x + (t.neox ? t.n_rot / 2 : 1);
    float p = *x, q = *y;

    *x = p * c - q * s;
    *y = p * s + q * c;
}

/* Turns a head (shared) by one warp; @sign -1: back. */
DEVICE void turn_head(const struct lean_rope &t, const float *rope, float sign, float *head) {
    for (uint32_t i = threadIdx.x % 32; i < t.n_rot / 2; i += 32)
        turn_pair(t, i, rope[2 * i], sign * rope[2 * i + 1], head);
    sync_warp();
}

KERNEL(turn_heads, struct turn_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float heads[WARPS][LEAN_DIM];
    uint32_t r = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.turn.dim;
    uint32_t h = blockIdx.y * WARPS + warp;
    float *head = heads[warp], sum = 0, inverse = 1;

    if (r >= a.batch->n_rows || h >= a.n_head)
        return;
    float *x = a.x + ((size_t)r * a.n_head + h) * n;
    for (uint32_t i = lane; i < n; i += 32) {
        head[i] = x[i];
        sum = fmaf(head[i], head[i], sum);
    }
    if (a.normed)
        inverse = 1.0f / sqrtf(warp_sum(sum) / (float)n + a.eps);
    for (uint32_t i = lane; i < n; i += 32)
        head[i] = head[i] * inverse * (a.norm ? a.norm[i] : 1);
    sync_warp();
    turn_head(a.turn, a.rope + (size_t)r * a.turn.n_rot, 1, head);
    for (uint32_t i = lane; i < n; i += 32)
        x[i] = head[i];
}

/* -- keys of blocks ---------------------------------------------------------------------------- */

/* Returns the key of block @i of a sequence. */
DEVICE uint16_t *key_of(const struct block_keys &k, const struct batch_head *batch,
                        const struct plan_seq &seq, uint32_t i) {
    uint32_t last = (i + 1) * k.block - 1;
    uint32_t page = batch->page_table[0][seq.page0 + last / k.page_tokens];

    return (uint16_t *)(k.pages + page * k.page_bytes) + k.at +
           (size_t)(last % k.page_tokens / k.block) * k.n;
}

/* Returns u of position @pos, or with @which 1 its raw weights. */
DEVICE const float *token_of(const struct condense_args &a, const struct plan_seq &seq,
                             uint32_t pos, uint32_t which) {
    if (pos < seq.pos0)
        return a.state + seq.state * a.stride + (2 * (size_t)(pos % a.n_kept) + which) * a.width;
    return (which ? a.g : a.u) + (size_t)(seq.row0 + pos - seq.pos0) * a.width;
}

/* Channel @c of the mean of the block that begins at @first: of its own tokens, and of @before
 * tokens in front of it, whose channels are those of the first half. */
DEVICE float mean_of(const struct condense_args &a, const struct plan_seq &seq, uint32_t first,
                     uint32_t before, uint32_t c) {
    uint32_t own = a.overlaps ? a.keys.n + c : c, end = first + a.keys.block;
    float max = -INFINITY, sum = 0, mean = 0;

    for (uint32_t p = first - before; p < end; p++) {
        uint32_t i = p < first ? c : own;
        float score = token_of(a, seq, p, 1)[i] + a.place[i * a.keys.block + p % a.keys.block];

        max = score > max ? score : max;
    }
    for (uint32_t p = first - before; p < end; p++) {
        uint32_t i = p < first ? c : own;
        float score = token_of(a, seq, p, 1)[i] + a.place[i * a.keys.block + p % a.keys.block];
        float weight = mx_expf(score - max);

        sum += weight;
        mean += weight * token_of(a, seq, p, 0)[i];
    }
    return mean / sum;
}

KERNEL(condense, struct condense_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float key[LEAN_DIM], shared[WARPS];
    uint32_t r = blockIdx.x, n = a.keys.n;
    float sum[1] = {0};

    if (r >= a.batch->n_rows || (a.batch->pos[r] + 1) % a.keys.block)
        return;
    const struct plan_seq seq = a.batch->seq[a.batch->row_seq[r]];
    uint32_t first = a.batch->pos[r] + 1 - a.keys.block;
    uint32_t before = a.overlaps && first ? a.keys.block : 0;
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
        float v = mean_of(a, seq, first, before, i);

        sum[0] = fmaf(v, v, sum[0]);
        key[i] = v;
    }
    float inverse = 1.0f / sqrtf(block_sums<CUDA_THREADS, 1>(sum, shared) / (float)n + a.eps);
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
        key[i] = key[i] * inverse * a.norm[i];
    sync_block();
    for (uint32_t i = threadIdx.x; i < a.turn.n_rot / 2; i += CUDA_THREADS) {
        double s, c;

        mx_sincos(first * a.freq[i], &s, &c);
        turn_pair(a.turn, i, (float)c, (float)s, key);
    }
    sync_block();
    uint16_t *to = key_of(a.keys, a.batch, seq, first / a.keys.block);
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
        to[i] = (uint16_t)pack_half(finite_half(key[i]));
}

KERNEL(keep_rows, struct keep_rows_args, CUDA_THREADS, 2) {
    wait_for_previous();
    if (blockIdx.x >= a.batch->n_seqs)
        return;
    const struct plan_seq seq = a.batch->seq[blockIdx.x];
    if (blockIdx.y >= seq.n_rows)
        return;
    uint32_t i = seq.n_rows - 1 - blockIdx.y, place = (seq.pos0 + i) % a.n_kept;
    float *to = a.state + seq.state * a.stride + (size_t)place * a.n_from * a.width;

    for (uint32_t f = 0; f < a.n_from; f++)
        for (uint32_t k = threadIdx.x; k < a.width; k += CUDA_THREADS)
            to[(size_t)f * a.width + k] = a.from[f][(size_t)(seq.row0 + i) * a.width + k];
}

/* -- the choice of blocks ---------------------------------------------------------------------- */

/* The sum over heads for one key; q, weight: shared. */
DEVICE float score_of(const struct pick_args &a, const uint16_t *key, const float *q,
                      const float *weight) {
    struct vec4 k[PICK_DIM / 8];
    float score = 0;

#pragma unroll
    for (uint32_t c = 0; c < PICK_DIM / 8; c++)
        if (c * 8 < a.keys.n)
            k[c] = load16(key + c * 8);
    for (uint32_t h = 0; h < a.n_head; h++, q += a.keys.n) {
        float z = 0;

#pragma unroll
        for (uint32_t c = 0; c < PICK_DIM / 8; c++)
            if (c * 8 < a.keys.n)
#pragma unroll
                for (uint32_t i = 0; i < 8; i++)
                    z = fmaf(q[c * 8 + i],
                             half_to_float((uint16_t)(word_of(k[c], (int)i / 2) >> i % 2 * 16)), z);
        score += z > 0 ? z * weight[h] : 0;
    }
    return score;
}

KERNEL(score_blocks, struct pick_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float q[PICK_QUERY], weight[PICK_HEADS];
    uint32_t r = a.row0 + blockIdx.x, first = blockIdx.y * CUDA_THREADS;

    if (r >= a.batch->n_rows)
        return;
    uint32_t n = (a.batch->pos[r] + 1) / a.keys.block, n_q = a.n_head * a.keys.n;
    if (n <= a.n_best || first >= n)
        return;
    const struct plan_seq seq = a.batch->seq[a.batch->row_seq[r]];
    for (uint32_t i = threadIdx.x; i < n_q; i += CUDA_THREADS)
        q[i] = a.q[(size_t)r * n_q + i];
    for (uint32_t i = threadIdx.x; i < a.n_head; i += CUDA_THREADS)
        weight[i] = a.weight[(size_t)r * a.n_head + i] * a.by;
    sync_block();
    for (uint32_t i = first + threadIdx.x; i < n; i += gridDim.y * CUDA_THREADS)
        a.score[(size_t)blockIdx.x * a.stride + i] =
            score_of(a, key_of(a.keys, a.batch, seq, i), q, weight);
}

/* Returns samp_ordered() of x, where -0 is 0. */
DEVICE uint32_t order_of(float x) {
    return samp_ordered(x + 0.0f);
}

/* Finds order_of() the n_best'th score of @n, by the block; *ties: so many of those equal to it are
 * taken. shared: [256 + 2]. */
DEVICE uint32_t find_least(const struct pick_args &a, const float *score, uint32_t n,
                           uint32_t *shared, uint32_t *ties) {
    uint32_t *found = shared + 256, *left = shared + 257, mask = 0;

    if (threadIdx.x == 0) {
        *found = 0;
        *left = a.n_best;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < 256; i += CUDA_THREADS)
            shared[i] = 0;
        sync_block();
        uint32_t high = *found;
        for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
            uint32_t u = order_of(score[i]);

            if ((u & mask) == high)
                add_shared(shared + (u >> shift & 255), 1u);
        }
        sync_block();
        if (threadIdx.x == 0) {
            uint32_t digit = 255, rest = *left;

            while (shared[digit] < rest)
                rest -= shared[digit--];
            *left = rest;
            *found = high | digit << shift;
        }
        mask |= 255u << shift;
        sync_block();
    }
    *ties = *left;
    return *found;
}

/* The sum of @v over the threads before this one; shared: [CUDA_THREADS]. */
DEVICE uint32_t sum_before(uint32_t v, uint32_t *shared) {
    uint32_t sum = 0;

    sync_block();
    shared[threadIdx.x] = v;
    sync_block();
    for (uint32_t i = 0; i < threadIdx.x; i++)
        sum += shared[i];
    return sum;
}

KERNEL(choose_blocks, struct pick_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED uint32_t shared[CUDA_THREADS + 2];
    uint32_t r = a.row0 + blockIdx.x, ties = 0, more = 0, equal = 0;

    if (r >= a.batch->n_rows)
        return;
    uint32_t n = (a.batch->pos[r] + 1) / a.keys.block, *pick = a.pick + (size_t)r * a.n_best;
    const float *score = a.score + (size_t)blockIdx.x * a.stride;
    if (threadIdx.x == 0)
        a.n_pick[r] = n < a.n_best ? n : a.n_best;
    if (n <= a.n_best) {
        for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
            pick[i] = i;
        return;
    }
    uint32_t least = find_least(a, score, n, shared, &ties);
    uint32_t each = (n + CUDA_THREADS - 1) / CUDA_THREADS, from = threadIdx.x * each;
    uint32_t to = from + each < n ? from + each : n;
    for (uint32_t i = from; i < to; i++) {
        more += order_of(score[i]) > least;
        equal += order_of(score[i]) == least;
    }
    uint32_t ahead = sum_before(equal, shared); /* equals of the threads before */
    uint32_t at = sum_before(more, shared) + (ahead < ties ? ahead : ties);
    for (uint32_t i = from; i < to; i++) {
        uint32_t u = order_of(score[i]);

        if (u > least || (u == least && ahead++ < ties))
            pick[at++] = i;
    }
}

/* -- attention --------------------------------------------------------------------------------- */

/* The keys that a row sees: @n_window of positions from @first on, then those of blocks. */
struct lean_view {
    struct plan_seq seq;
    uint32_t row, first, n_window, n;
};

/* Brings key @i of a row to shared memory, by one warp. */
DEVICE void bring_key(const struct lean_args &a, const struct lean_view &v, uint32_t i, float *to) {
    uint32_t lane = threadIdx.x % 32, n = a.turn.dim, pos = v.first + i;

    if (i < v.n_window) {
        const float *from = pos < v.seq.pos0
                                ? a.state + v.seq.state * a.stride + (size_t)(pos % a.window) * n
                                : a.key + (size_t)(v.seq.row0 + pos - v.seq.pos0) * n;

        for (uint32_t k = lane; k < n; k += 32)
            to[k] = from[k];
        return;
    }
    uint32_t block = i - v.n_window;
    const uint16_t *from =
        key_of(a.keys, a.batch, v.seq, a.pick ? a.pick[(size_t)v.row * a.n_best + block] : block);
    for (uint32_t k = lane; k < n; k += 32)
        to[k] = half_to_float(from[k]);
}

/* A head's attention to some of the keys: the largest score so far, the sum of the weights, and the
 * lane's part of the query and of the sum of values. */
struct lean_head {
    float max, sum, q[LEAN_DIM / 32], o[LEAN_DIM / 32];
};

/* Weighs @n keys (shared), by one warp. */
DEVICE void weigh_keys(const struct lean_args &a, const float (*key)[LEAN_DIM], uint32_t n,
                       struct lean_head &h) {
    uint32_t lane = threadIdx.x % 32;
    float z[LEAN_TILE], max = h.max;

#pragma unroll
    for (uint32_t j = 0; j < LEAN_TILE; j++) {
        z[j] = 0;
        if (j < n)
#pragma unroll
            for (uint32_t e = 0; e < LEAN_DIM / 32; e++)
                if (lane + 32 * e < a.turn.dim)
                    z[j] = fmaf(h.q[e], key[j][lane + 32 * e], z[j]);
    }
#pragma unroll
    for (uint32_t j = 0; j < LEAN_TILE; j++) {
        z[j] = warp_sum(z[j]) * a.scale;
        max = j < n && z[j] > max ? z[j] : max;
    }
    float back = mx_expf(h.max - max);
    h.max = max;
    h.sum *= back;
#pragma unroll
    for (uint32_t e = 0; e < LEAN_DIM / 32; e++)
        h.o[e] *= back;
#pragma unroll
    for (uint32_t j = 0; j < LEAN_TILE; j++) {
        if (j >= n)
            continue;
        float weight = mx_expf(z[j] - max);

        h.sum += weight;
#pragma unroll
        for (uint32_t e = 0; e < LEAN_DIM / 32; e++)
            if (lane + 32 * e < a.turn.dim)
                h.o[e] = fmaf(weight, key[j][lane + 32 * e], h.o[e]);
    }
}

DEVICE struct lean_view view_of(const struct lean_args &a, uint32_t r) {
    struct lean_view v;
    uint32_t end = a.batch->pos[r] + 1;

    v.seq = a.batch->seq[a.batch->row_seq[r]];
    v.row = r;
    v.first = end > a.window ? end - a.window : 0;
    v.n_window = end - v.first;
    v.n = v.n_window;
    if (a.keys.block)
        v.n += a.pick ? a.n_pick[r] : end / a.keys.block;
    return v;
}

KERNEL(attend_condensed, struct lean_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float key[LEAN_TILE][LEAN_DIM];
    uint32_t r = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.turn.dim;
    uint32_t head = blockIdx.y * LEAN_HEADS + warp;

    if (r >= a.batch->n_rows)
        return;
    bool is_head = head < a.n_head; /* the others bring keys */
    size_t at = ((size_t)r * a.n_head + (is_head ? head : 0)) * n;
    struct lean_head h = {a.sinks[is_head ? head : 0], 1, {}, {}};
    const struct lean_view v = view_of(a, r);
#pragma unroll
    for (uint32_t e = 0; e < LEAN_DIM / 32; e++) {
        h.q[e] = lane + 32 * e < n ? a.q[at + lane + 32 * e] : 0;
        h.o[e] = 0;
    }
    for (uint32_t i = 0; i < v.n; i += LEAN_TILE) {
        sync_block();
        for (uint32_t j = warp; j < LEAN_TILE && i + j < v.n; j += WARPS)
            bring_key(a, v, i + j, key[j]);
        sync_block();
        weigh_keys(a, key, v.n - i < LEAN_TILE ? v.n - i : LEAN_TILE, h);
    }
    sync_block();
#pragma unroll
    for (uint32_t e = 0; e < LEAN_DIM / 32; e++)
        if (lane + 32 * e < n)
            key[warp][lane + 32 * e] = h.o[e] / h.sum;
    sync_warp();
    turn_head(a.turn, a.rope + (size_t)r * a.turn.n_rot, -1, key[warp]);
    for (uint32_t i = lane; i < n && is_head; i += 32)
        a.o[at + i] = key[warp][i];
}
