#pragma once

/*
 * keys - common parts of attention to chosen keys (compressed.cu, sparse/sparse.cu). For keys of
 * blocks of positions: their places in the pages, rotation, and the steps from a block's mean to
 * its key. For attention: scores and weights of CSA_TILE keys in shared memory for CSA_HEADS
 * heads of a row. Each warp computes the scores of eight keys over one half of their values, HALF
 * blocks of 64, with its queries in registers. Then sixteen threads compute the weights of a head's
 * keys.
 */

#include "engine/ops/attention/attention.cuh"
#include "engine/ops/compressed/kernels_compressed.h"

#define WARPS (CUDA_THREADS / 32)

/* Rotates pair @i of a head (shared) by an angle, given by cosine and sine. */
DEVICE void keys_turn_pair(const struct csa_rope &t, uint32_t i, float c, float s, float *head) {
    turn_pair(t.n_rot, t.neox, i, c, s, head + t.first);
}

/* Rotates a head (shared) by one warp; @sign -1 rotates it back. */
DEVICE void block_key_turn_head(const struct csa_rope &t, const float *rope, float sign,
                                float *head) {
    for (uint32_t i = threadIdx.x % 32; i < t.n_rot / 2; i += 32)
        keys_turn_pair(t, i, rope[2 * i], sign * rope[2 * i + 1], head);
    sync_warp();
}

/* Returns the address of the key of block @i of a sequence, in the page of the block's last
 * token. */
DEVICE uint16_t *block_key(const struct block_keys &k, const struct batch_head *batch,
                           const struct plan_seq &seq, uint32_t i) {
    uint32_t last = (i + 1) * k.block - 1;
    uint32_t page = batch->page_table[0][seq.page0 + last / k.page_tokens];

    return (uint16_t *)(k.pages + page * k.page_bytes) + k.at +
           (size_t)(last % k.page_tokens / k.block) * k.n;
}

/* Divides the mean of a block (shared) by its rms, multiplies it by the norm, and rotates it by the
 * position @first; @sum: the sum of squares of the thread's values. */
DEVICE void block_key_turn(const struct key_end &e, uint32_t first, float sum, float *key,
                           float *sums) {
    uint32_t n = e.keys.n;
    float inverse = 1.0f / sqrtf(block_sum<WARPS>(sum, sums) / (float)n + e.eps);

    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
        key[i] = key[i] * inverse * e.norm[i];
    sync_block();
    for (uint32_t i = threadIdx.x; i < e.turn.n_rot / 2; i += CUDA_THREADS) {
        double s, c;

        mx_sincos(first * e.freq[i], &s, &c);
        keys_turn_pair(e.turn, i, (float)c * e.mscale, (float)s * e.mscale, key);
    }
    sync_block();
}

/* Stores the key of the block of positions that ends at row @r, if one does: the block's mean, and
 * if there is a norm, its norm, rotated. mean(seq, first, i) returns value @i of the mean of the
 * block that begins at position @first. Shared: key [keys.n], sums [WARPS]. */
template <class MEAN>
DEVICE void block_key_put(const struct key_end &e, const struct batch_head *batch, uint32_t r,
                          float *key, float *sums, const MEAN &mean) {
    uint32_t n = e.keys.n, first = batch->pos[r] + 1 - e.keys.block;
    float sum = 0;

    if ((batch->pos[r] + 1) % e.keys.block)
        return;
    const struct plan_seq seq = batch->seq[batch->row_seq[r]];
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
        key[i] = mean(seq, first, i);
        sum = fmaf(key[i], key[i], sum);
    }
    if (e.norm)
        block_key_turn(e, first, sum, key, sums);
    uint16_t *to = block_key(e.keys, batch, seq, first / e.keys.block);
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
        to[i] = (uint16_t)pack_half(finite_half(key[i]));
}

/* Returns values @d .. @d + 7 of @x times @factor, as halves; zeros if @d >= @n, the number of
 * values. */
DEVICE struct vec4 eight_halves(const float *x, uint32_t d, uint32_t n, float factor) {
    float v[8];

    if (d >= n)
        return {0, 0, 0, 0};
    load_four(x + d, v);
    load_four(x + d + 4, v + 4);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = finite_half(v[i] * factor);
    return {pack_halves(v[0], v[1]), pack_halves(v[2], v[3]), pack_halves(v[4], v[5]),
            pack_halves(v[6], v[7])};
}

/* Loads the warp's part of sixteen queries as operands of mma; eight(head, d) returns values @d ..
 * @d + 7 of one as halves. Lane 4 g + t gets, of heads g and g + 8, 16 values from 16 t on of each
 * block of 64. */
template <uint32_t HALF, class EIGHT>
DEVICE void load_heads_by(const EIGHT &eight, struct vec4 to[HALF][4]) {
    uint32_t lane = threadIdx.x % 32, head = lane / 4;

#pragma unroll
    for (uint32_t e = 0; e < 2 * HALF; e++) {
        uint32_t d = threadIdx.x / 128 * (HALF * 64) + e / 2 * 64 + lane % 4 * 16 + e % 2 * 8;
        struct vec4 low = eight(head, d), high = eight(head + 8, d);

        to[e / 2][e % 2 * 2] = {low.x, high.x, low.y, high.y};
        to[e / 2][e % 2 * 2 + 1] = {low.z, high.z, low.w, high.w};
    }
}

/* Loads @n_head queries of @n values each from @q, multiplied by @scale log2(e). */
template <uint32_t HALF>
DEVICE void load_heads(const float *q, uint32_t n_head, uint32_t n, float scale,
                       struct vec4 to[HALF][4]) {
    auto eight = [&](uint32_t head, uint32_t d) {
        return eight_halves(q + (size_t)head * n, d, head < n_head ? n : 0, scale * LOG2_E);
    };

    load_heads_by<HALF>(eight, to);
}

/* Computes the scores of eight keys of the tile over one half of their @n values, by one warp. */
template <uint32_t HALF, class S>
DEVICE void score_tile(const struct vec4 q[HALF][4], uint32_t n, S &s) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    uint32_t key = warp % 4 * 8, d0 = warp / 4 * (HALF * 64);
    float c[2][4] = {}, *to = s.score[warp / 4][g] + key + 2 * t;

#pragma unroll
    for (uint32_t b = 0; b < HALF; b++) {
        const uint16_t *from = s.key[key + g] + d0 + b * 64 + 16 * t;

        if (d0 + b * 64 >= n)
            break;
#pragma unroll
        for (uint32_t e = 0; e < 2; e++)
            mma_32(c[e], q[b][2 * e], q[b][2 * e + 1], load16(from + 8 * e));
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++)
        to[j / 2 * 8 * (CSA_TILE + 8) + j % 2] = c[0][j] + c[1][j];
}

/* Running values of a head, equal in the 16 threads that weigh its keys: the largest score so far,
 * in powers of two, and the sum of weights relative to it. */
struct csa_head {
    float max, sum;
};

/* Computes the weights 2^(score - max) of the tile's @n keys; each thread has two keys of one head.
 * s.back is the factor that rescales earlier sums to the new maximum. */
template <class S> DEVICE void weigh_keys(uint32_t n, struct csa_head &h, S &s) {
    uint32_t head = threadIdx.x / 16, key = threadIdx.x % 16 * 2;
    float z[2], max = h.max, sum;

#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
        z[j] = s.score[0][head][key + j] + s.score[1][head][key + j];
        z[j] = key + j < n ? z[j] : -INFINITY;
        max = fmaxf(max, z[j]);
    }
    max = warp_max<16>(max);
    float back = exp2_fast(h.max - max), w0 = exp2_fast(z[0] - max), w1 = exp2_fast(z[1] - max);
    sum = warp_sum<16>(w0 + w1);
    h.max = max;
    h.sum = fmaf(h.sum, back, sum);
    *(uint32_t *)&s.weight[head][key] = pack_halves(w0, w1);
    if (key == 0)
        s.back[head] = back;
}

/* Loads the weights of the tile's keys as operands of mma: of heads g and g + 8, two blocks of 16
 * keys. */
template <class S> DEVICE void load_key_weights(const S &s, uint32_t p[2][4]) {
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
    for (uint32_t j = 0; j < 8; j++)
        p[j / 4][j % 4] =
            *(const uint32_t *)&s.weight[g + j % 2 * 8][j / 4 * 16 + j % 4 / 2 * 8 + 2 * t];
}

/* Adds the tile's keys as values, multiplied by their weights, to the warp's 64 of the @n values of
 * each head. */
template <class S> DEVICE void add_key_values(uint32_t n, const S &s, float o[8][4]) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, d0 = threadIdx.x / 32 * 64;
    float back[2] = {s.back[g], s.back[g + 8]};
    uint32_t p[2][4];

    load_key_weights(s, p);
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
        if (d0 + 8 * j >= n)
            break;
        struct vec4 v = load_transposed(&s.key[lane][d0 + 8 * j]);

#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            o[j][k] *= back[k / 2];
        mma(o[j], p[0][0], p[0][1], p[0][2], p[0][3], v.x, v.y);
        mma(o[j], p[1][0], p[1][1], p[1][2], p[1][3], v.z, v.w);
    }
}
