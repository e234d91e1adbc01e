/*
 * compressed - the kernels of kernels_compressed.h. The result of a row depends only on its
 * position and on the tokens before it in its sequence: each thread sums fixed elements, then the
 * threads' sums are added in a fixed order, and keys have one order, the window's first, whether
 * they are read from the state or from the step.
 *
 * hc_in            one block for each row; its first warp computes the weights, one lane for each
 *                  stream
 * hc_out, hc_mean  one thread for each column of a row
 * turn_heads       one warp for each head
 * compress         one block for each row; it works only where a block of positions ends
 * keep_rows        one block for each row that is kept; a launch of its own, after all that read
 *                  the old rows
 * score_blocks     a row's queries in shared memory; a warp holds 16 keys in registers
 * score_heads      likewise; a warp computes the largest products of all keys of a block
 * choose_blocks    one block for each list of a row: radix search for the least score that is
 *                  chosen, byte by byte from the highest, then a list of the blocks in their order
 * attend_compressed one block for sixteen heads of a row, with tiles of 32 keys in shared memory in
 *                  half precision: a warp computes the scores of eight keys over one half of
 *                  their values, then accumulates 64 of the values
 */

#include "engine/ops/compressed/keys.cuh"
#include "engine/shared/sampling.h"
#include "engine/shared/shares.h"

/* -- residual streams -------------------------------------------------------------------------- */

/* Computes the weights of row @r by one warp; m (shared): [n_low]. The first n_stream are those of
 * x. */
DEVICE void hc_in_weights(const struct hc_in_args &a, uint32_t r, float inverse, float *m) {
    uint32_t lane = threadIdx.x % 32, n = a.n_stream;

    for (uint32_t i = lane; i < a.n_low; i += 32) {
        uint32_t part = (i >= n) + (i >= 2 * n);
        float z = a.low[(size_t)r * a.n_low + i] * inverse * a.scale[part] + a.base[i];

        m[i] = z;
        if (part == 0)
            m[i] = mx_sigmoid(z) + a.eps;
        else if (part == 1)
            m[i] = 2 * mx_sigmoid(z);
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

ROW_KERNEL(hc_in, struct hc_in_args, CUDA_THREADS, 2) {
    SHARED float shared[WARPS], m[HC_STREAMS * (HC_STREAMS + 2)];
    uint32_t n = a.n_stream * a.n;
    float sum = 0;

    const float *s = a.s + (size_t)r * n;
    for (uint32_t i = 4 * threadIdx.x; i < n; i += 4 * CUDA_THREADS) {
        float v[1][4];

        load_quads<4>(s, i, n, v);
        for (int j = 0; j < 4; j++)
            sum = fmaf(v[0][j], v[0][j], sum);
    }
    float all = block_sum<WARPS>(sum, shared);
    if (threadIdx.x < 32)
        hc_in_weights(a, r, 1.0f / sqrtf(all / (float)n + a.rms_eps), m);
    sync_block();
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS) {
        float x = 0;

        for (uint32_t j = 0; j < a.n_stream; j++)
            x += m[j] * s[(size_t)j * a.n + i];
        a.x[(size_t)r * a.n + i] = x;
        a.b[(size_t)r * a.n + i] = 0;
    }
}

ROW_KERNEL(hc_out, struct hc_out_args, CUDA_THREADS, 2) {
    uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x, n = a.n_stream;

    if (i >= a.n)
        return;
    float x = a.x[(size_t)r * a.n + i], was[HC_STREAMS];
    float *s = a.s + (size_t)r * n * a.n + i;
    uint32_t n_weights = a.shares ? n * (n + 1) : n;
    const float *w = a.weight ? a.weight + (size_t)r * n_weights : NULL;

    if (w && !a.shares) {
        for (uint32_t d = 0; d < n; d++)
            s[(size_t)d * a.n] = fmaf(w[d], x, s[(size_t)d * a.n]);
        return;
    }
#pragma unroll
    for (uint32_t j = 0; j < HC_STREAMS; j++)
        was[j] = w && j < n ? s[(size_t)j * a.n] : 0;
    for (uint32_t d = 0; d < n; d++) {
        float v = w ? w[d] * x : x;

#pragma unroll
        for (uint32_t j = 0; j < HC_STREAMS; j++)
            if (w && j < n)
                v += w[n + j * n + d] * was[j];
        s[(size_t)d * a.n] = v;
    }
}

ROW_KERNEL(hc_mean, struct hc_out_args, CUDA_THREADS, 2) {
    uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x, n = a.n_stream;
    float sum = 0;

    if (i >= a.n)
        return;
    for (uint32_t j = 0; j < n; j++)
        sum += a.s[((size_t)r * n + j) * a.n + i];
    a.mean[(size_t)r * a.n + i] = sum / (float)n;
}

/* -- keys and queries -------------------------------------------------------------------------- */

ROW_KERNEL(turn_heads, struct turn_args, CUDA_THREADS, 2) {
    SHARED float heads[WARPS][CSA_DIM];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.turn.dim;
    uint32_t h = blockIdx.y * WARPS + warp;
    float *head = heads[warp], sum = 0, inverse = 1;

    if (h >= a.n_head)
        return;
    float *x = a.x + ((size_t)r * a.n_head + h) * n;
    for (uint32_t i = lane; i < n; i += 32) {
        head[i] = x[i];
        sum = fmaf(head[i], head[i], sum);
    }
    if (a.normed)
        inverse = 1.0f / sqrtf(warp_sum(sum) / (float)n + a.eps);
    const float *norm = a.norm && a.by_head ? a.norm + (size_t)h * n : a.norm;
    for (uint32_t i = lane; i < n; i += 32)
        head[i] = head[i] * inverse * (norm ? norm[i] : 1);
    sync_warp();
    block_key_turn_head(a.turn, a.rope + (size_t)r * a.turn.n_rot, 1, head);
    for (uint32_t i = lane; i < n; i += 32)
        x[i] = head[i];
}

/* -- keys of blocks ---------------------------------------------------------------------------- */

/* Returns u of position @pos; with @which 1 its raw weights. */
DEVICE const float *compressed_token(const struct compress_args &a, const struct plan_seq &seq,
                                     uint32_t pos, uint32_t which) {
    if (pos < seq.pos0)
        return a.state + seq.state * a.stride + (2 * (size_t)(pos % a.n_kept) + which) * a.width;
    return (which ? a.g : a.u) + (size_t)(seq.row0 + pos - seq.pos0) * a.width;
}

/* Returns channel @c of the weighted mean of the block that begins at @first: of the block's own
 * tokens and of the @before tokens preceding it, whose channels are in the first half of u. */
DEVICE float compressed_block_mean(const struct compress_args &a, const struct plan_seq &seq,
                                   uint32_t first, uint32_t before, uint32_t c) {
    uint32_t block = a.end.keys.block, own = a.overlaps ? a.end.keys.n + c : c;
    uint32_t end = first + block;
    float max = -INFINITY, sum = 0, mean = 0;

    for (uint32_t p = first - before; p < end; p++) {
        uint32_t i = p < first ? c : own;
        float score = compressed_token(a, seq, p, 1)[i] + a.place[i * block + p % block];

        max = score > max ? score : max;
    }
    for (uint32_t p = first - before; p < end; p++) {
        uint32_t i = p < first ? c : own;
        float score = compressed_token(a, seq, p, 1)[i] + a.place[i * block + p % block];
        float weight = mx_expf(score - max);

        sum += weight;
        mean += weight * compressed_token(a, seq, p, 0)[i];
    }
    return mean / sum;
}

ROW_KERNEL(compress, struct compress_args, CUDA_THREADS, 2) {
    SHARED float key[CSA_DIM], sums[WARPS];
    auto mean = [&](const struct plan_seq &seq, uint32_t first, uint32_t i) {
        return compressed_block_mean(a, seq, first, a.overlaps && first ? a.end.keys.block : 0, i);
    };

    block_key_put(a.end, a.batch, r, key, sums, mean);
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

/* Stores the queries of row @r in shared memory as operands of mma, for each 16 heads and 32
 * values: lane 4 g + t has 8 values from 8 t on of heads g and g + 8, for two products. */
DEVICE void load_picks(const struct pick_args &a, uint32_t r, struct vec4 *to) {
    uint32_t n = a.keys.n, blocks = (n + 31) / 32, tiles = (a.n_head + 15) / 16;

    for (uint32_t i = threadIdx.x; i < tiles * blocks * 32; i += CUDA_THREADS) {
        uint32_t lane = i % 32, head = i / 32 / blocks * 16 + lane / 4;
        uint32_t d = i / 32 % blocks * 32 + lane % 4 * 8;
        const float *q = a.q + ((size_t)r * a.n_head + head) * n;
        struct vec4 low = eight_halves(q, d, head < a.n_head ? n : 0, 1);
        struct vec4 high = eight_halves(q + 8 * n, d, head + 8 < a.n_head ? n : 0, 1);

        store16(to + i / 32 * 64 + lane, {low.x, high.x, low.y, high.y});
        store16(to + i / 32 * 64 + 32 + lane, {low.z, high.z, low.w, high.w});
    }
}

/* Loads keys @i .. @i + 15 of a row's @n as operands of mma, by one warp. */
DEVICE void load_sixteen(const struct pick_args &a, const struct plan_seq &seq, uint32_t i,
                         uint32_t n, struct vec4 k[2][PICK_DIM / 32]) {
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        uint32_t at = i + 8 * e + g;
        const uint16_t *key = block_key(a.keys, a.batch, seq, at < n ? at : n - 1);

#pragma unroll
        for (uint32_t b = 0; b < PICK_DIM / 32; b++)
            k[e][b] = 32 * b + 8 * t < a.keys.n ? load16(key + 32 * b + 8 * t) : vec4{0, 0, 0, 0};
    }
}

/* Multiplies sixteen keys by sixteen queries of load_picks(), by one warp: c[e][j] belongs to key 8
 * e + 2 t + j % 2 and head g + j / 2 * 8. */
DEVICE void multiply_sixteen(const struct pick_args &a, const struct vec4 *q,
                             const struct vec4 k[2][PICK_DIM / 32], float c[2][4]) {
    uint32_t lane = threadIdx.x % 32, blocks = (a.keys.n + 31) / 32;

#pragma unroll
    for (uint32_t b = 0; b < PICK_DIM / 32; b++) {
        if (b >= blocks)
            break;
        struct vec4 q0 = load16(q + b * 64 + lane), q1 = load16(q + b * 64 + 32 + lane);

#pragma unroll
        for (uint32_t e = 0; e < 2; e++)
            mma_32(c[e], q0, q1, k[e][b]);
    }
}

/* Scores keys @i .. @i + 15 of a row's @n, by one warp; q, weight: shared. */
DEVICE void score_keys(const struct pick_args &a, const struct plan_seq &seq, uint32_t i,
                       uint32_t n, const struct vec4 *q, const float *weight, float *score) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, blocks = (a.keys.n + 31) / 32;
    struct vec4 k[2][PICK_DIM / 32];
    float sum[2][2] = {};

    load_sixteen(a, seq, i, n, k);
    for (uint32_t h = 0; h < a.n_head; h += 16, q += blocks * 64) {
        float c[2][4] = {};

        multiply_sixteen(a, q, k, c);
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
            float z = c[j / 4][j % 4], &to = sum[j / 4][j % 2];

            to = fmaf(z > 0 ? z : 0, weight[h + g + j % 4 / 2 * 8], to);
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        float all = warp_sum<32, 4>(sum[j / 2][j % 2]);
        uint32_t at = i + j / 2 * 8 + 2 * t + j % 2;

        if (g == 0 && at < n)
            score[at] = all;
    }
}

KERNEL(score_blocks, struct pick_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED struct vec4 q[PICK_QUERY / 8];
    SHARED float weight[PICK_HEADS];
    uint32_t r = a.row0 + blockIdx.x, first = (blockIdx.y * WARPS + threadIdx.x / 32) * 16;

    if (r >= a.batch->n_rows)
        return;
    uint32_t n = (a.batch->pos[r] + 1) / a.keys.block;
    if (n <= a.n_best || blockIdx.y * WARPS * 16 >= n)
        return;
    const struct plan_seq seq = a.batch->seq[a.batch->row_seq[r]];
    load_picks(a, r, q);
    for (uint32_t i = threadIdx.x; i < (a.n_head + 15) / 16 * 16; i += CUDA_THREADS) {
        weight[i] = i < a.n_head;
        if (a.weight && i < a.n_head)
            weight[i] = a.weight[(size_t)r * a.n_head + i] * a.by;
    }
    sync_block();
    for (uint32_t i = first; i < n; i += gridDim.y * WARPS * 16)
        score_keys(a, seq, i, n, q, weight, a.score + (size_t)blockIdx.x * a.stride);
}

/* Scores block @i of a row for sixteen heads, by one warp: to[j] is that of head g + 8 j. */
DEVICE void score_positions(const struct pick_args &a, const struct plan_seq &seq, uint32_t i,
                            const struct vec4 *q, float to[2]) {
    uint32_t end = (i + 1) * a.block;

    to[0] = to[1] = -INFINITY;
    for (uint32_t p = i * a.block; p < end; p += 16) {
        struct vec4 k[2][PICK_DIM / 32];
        float c[2][4] = {};

        load_sixteen(a, seq, p, end, k);
        multiply_sixteen(a, q, k, c);
#pragma unroll
        for (uint32_t j = 0; j < 8; j++)
            to[j % 4 / 2] = fmaxf(to[j % 4 / 2], c[j / 4][j % 4]);
    }
    for (uint32_t j = 0; j < 2; j++)
        to[j] = warp_max<4>(to[j]);
}

/* Returns how many of the whole blocks a row at @pos chooses. The last block, if it is not whole,
 * is among the n_best of a head that chooses for itself. */
DEVICE uint32_t picks_at(const struct pick_args &a, uint32_t pos) {
    return a.n_local && (pos + 1) % a.block ? a.n_best - 1 : a.n_best;
}

KERNEL(score_heads, struct pick_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED struct vec4 q[PICK_QUERY / 8];
    uint32_t r = a.row0 + blockIdx.x, lane = threadIdx.x % 32;
    uint32_t first = blockIdx.y * WARPS + threadIdx.x / 32, tile = (a.keys.n + 31) / 32 * 64;

    if (r >= a.batch->n_rows)
        return;
    uint32_t pos = a.batch->pos[r], n = (pos + 1) / a.block, all = pos / a.block + 1;
    if (n <= picks_at(a, pos) || blockIdx.y * WARPS >= n)
        return;
    const struct plan_seq seq = a.batch->seq[a.batch->row_seq[r]];
    load_picks(a, r, q);
    sync_block();
    for (uint32_t i = first; i < n; i += gridDim.y * WARPS)
        for (uint32_t h = 0; h < a.n_head; h += 16) {
            float max[2] = {INFINITY, INFINITY};

            if (i + a.n_local < all)
                score_positions(a, seq, i, q + h / 16 * tile, max);
            for (uint32_t j = 0; j < 2; j++) {
                uint32_t head = h + lane / 4 + 8 * j;

                if (lane % 4 == 0 && head < a.n_head)
                    a.score[((size_t)blockIdx.x * a.n_set + head) * a.stride + i] = max[j];
            }
        }
}

/* Returns samp_ordered() of @x, with -0 equal to +0. */
DEVICE uint32_t order_of(float x) {
    return samp_ordered(x + 0.0f);
}

/* Returns order_of() the @k-th largest of @n scores, by the block; sets *ties to the number of
 * scores equal to it that are chosen. shared: [256 + 2]. */
DEVICE uint32_t compressed_find_least(const float *score, uint32_t n, uint32_t k, uint32_t *shared,
                                      uint32_t *ties) {
    uint32_t *found = shared + 256, *left = shared + 257, mask = 0;

    if (threadIdx.x == 0) {
        *found = 0;
        *left = k;
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

/* Returns the sum of @v over the threads before this one (exclusive scan); shared:
 * [CUDA_THREADS]. */
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
    uint32_t n = (a.batch->pos[r] + 1) / a.block, k = picks_at(a, a.batch->pos[r]);
    uint32_t *pick = a.pick + ((size_t)r * a.n_set + blockIdx.y) * a.n_best;
    const float *score = a.score + ((size_t)blockIdx.x * a.n_set + blockIdx.y) * a.stride;
    if (threadIdx.x == 0 && blockIdx.y == 0)
        a.n_pick[r] = n < k ? n : k;
    if (n <= k) {
        for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
            pick[i] = i;
        return;
    }
    uint32_t least = compressed_find_least(score, n, k, shared, &ties);
    uint32_t each = (n + CUDA_THREADS - 1) / CUDA_THREADS, from = threadIdx.x * each;
    uint32_t to = from + each < n ? from + each : n;
    for (uint32_t i = from; i < to; i++) {
        more += order_of(score[i]) > least;
        equal += order_of(score[i]) == least;
    }
    uint32_t ahead = sum_before(equal, shared); /* number of equal scores in preceding threads */
    uint32_t at = sum_before(more, shared) + (ahead < ties ? ahead : ties);
    for (uint32_t i = from; i < to; i++) {
        uint32_t u = order_of(score[i]);

        if (u > least || (u == least && ahead++ < ties))
            pick[at++] = i;
    }
}

/* -- attention --------------------------------------------------------------------------------- */

/* Keys of a row, @n in all: @n_window of positions from @first on, then keys of blocks. */
struct csa_view {
    struct plan_seq seq;
    uint32_t row, first, n_window, n;
};

DEVICE struct csa_view view_of(const struct csa_args &a, uint32_t r) {
    struct csa_view v;
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

/* halves of a key in shared memory; padded so that eight rows begin on different banks */
#define CSA_ROW (CSA_DIM + 8)
#define CSA_HALF (CSA_DIM / 64 / 2) /* HALF of load_heads() */

/* A tile of keys, partial scores over either half of their values, and weights. */
struct alignas(16) csa_shared {
    uint16_t key[CSA_TILE][CSA_ROW];
    float score[2][CSA_HEADS][CSA_TILE + 8];
    uint16_t weight[CSA_HEADS][CSA_TILE + 8];
    float back[CSA_HEADS], sum[CSA_HEADS]; /* back: factor that rescales o; sum: of the weights */
};

/* Copies the tile of keys from @i on to shared memory, eight threads for each key; zeros after the
 * last key and after a key's last value. */
DEVICE void bring_keys(const struct csa_args &a, const struct csa_view &v, uint32_t i,
                       struct csa_shared &s) {
    uint32_t nth = threadIdx.x / 8, at = i + nth, n = a.turn.dim, pos = v.first + at;
    uint32_t end = (n + 63) / 64 * 64, block = at - v.n_window;
    uint16_t *to = s.key[nth];

    if (at < v.n_window) {
        const float *from = pos < v.seq.pos0
                                ? a.state + v.seq.state * a.stride + (size_t)(pos % a.n_kept) * n
                                : a.key + (size_t)(v.seq.row0 + pos - v.seq.pos0) * n;

        for (uint32_t d = threadIdx.x % 8 * 8; d < end; d += 64)
            store16(to + d, eight_halves(from, d, n, 1));
        return;
    }
    const uint16_t *from = NULL;
    if (at < v.n)
        from = block_key(a.keys, a.batch, v.seq,
                         a.pick ? a.pick[(size_t)v.row * a.n_best + block] : block);
    for (uint32_t d = threadIdx.x % 8 * 8; d < end; d += 64)
        store16(to + d, from && d < n ? load16(from + d) : vec4{0, 0, 0, 0});
}

/* Divides by the sums of weights, rotates back and stores the heads from @head0 on. They are
 * exchanged in the shared memory of the keys. */
DEVICE void write_heads(const struct csa_args &a, uint32_t r, uint32_t head0, const float o[8][4],
                        struct csa_shared &s) {
    float(*head)[CSA_ROW] = (float(*)[CSA_ROW])s.key;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.turn.dim;

    static_assert(sizeof(float[CSA_HEADS][CSA_ROW]) <= sizeof(s.key), "the heads' place");
#pragma unroll
    for (uint32_t j = 0; j < 8; j++)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t h = lane / 4 + k / 2 * 8, d = warp * 64 + 8 * j + lane % 4 * 2 + k % 2;

            if (d < n)
                head[h][d] = o[j][k] / s.sum[h];
        }
    sync_block();
    for (uint32_t h = warp; h < CSA_HEADS && head0 + h < a.n_head; h += WARPS) {
        block_key_turn_head(a.turn, a.rope + (size_t)r * a.turn.n_rot, -1, head[h]);
        for (uint32_t i = lane; i < n; i += 32)
            a.o[((size_t)r * a.n_head + head0 + h) * n + i] = head[h][i];
    }
}

ROW_KERNEL(attend_compressed, struct csa_args, CUDA_THREADS, 2) {
    SHARED struct csa_shared s;
    uint32_t head0 = blockIdx.y * CSA_HEADS, head = head0 + threadIdx.x / 16;
    struct vec4 q[CSA_HALF][4];
    float o[8][4] = {};

    const struct csa_view v = view_of(a, r);
    struct csa_head h = {head < a.n_head ? a.sinks[head] * LOG2_E : 0, 1};
    load_heads<CSA_HALF>(a.q + ((size_t)r * a.n_head + head0) * a.turn.dim, a.n_head - head0,
                         a.turn.dim, a.scale, q);
    for (uint32_t i = 0; i < v.n; i += CSA_TILE) {
        sync_block();
        bring_keys(a, v, i, s);
        sync_block();
        score_tile<CSA_HALF>(q, a.turn.dim, s);
        sync_block();
        weigh_keys(v.n - i, h, s);
        sync_block();
        add_key_values(a.turn.dim, s, o);
    }
    if (threadIdx.x % 16 == 0)
        s.sum[threadIdx.x / 16] = h.sum;
    sync_block();
    write_heads(a, r, head0, o, s);
}
