/*
 * rows - the kernels that work on rows of activations: embedding, normalisation, RoPE, pages. One thread block
 * a row; a sum over a row goes over thread i's elements i, i + 256, ... and then over the threads in a fixed
 * order, so it depends on the row's length alone. All are bound by the bytes of the rows, far below the
 * weights'. Formulas: engine/reference/ops.c.
 */

#include "engine/cuda/device.cuh"

KERNEL(embed, struct embed_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x, n = a.table.n_in;

    if (r >= a.batch->n_rows)
        return;
    int32_t feed = a.batch->feed[r], token = feed >= 0 ? a.sampled[feed] : a.batch->token[r];
    uint32_t t = (uint32_t)token < a.table.n_rows ? (uint32_t)token : 0, k = tile_k(a.format);
    const uint8_t *tiles = a.tiles + (size_t)(t / TILE_ROWS) * a.n_units * tile_bytes(a.format);
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
        a.x[(size_t)r * n + i] = a.tiles ? tile_read(a.format, tiles + i / k * tile_bytes(a.format),
                                                     t % TILE_ROWS, i % k)
                                         : tile_value_at(&a.table, t, i);
}

KERNEL(turn, struct turn_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x;

    if (r >= a.batch->n_rows)
        return;
    uint32_t pos = a.batch->pos[r];
    for (uint32_t i = threadIdx.x; i < a.n_pairs; i += CUDA_THREADS) {
        float *to = a.turn + ((size_t)r * a.n_pairs + i) * 2;
        double s, c;

        mx_sincos(pos * a.freq[i], &s, &c);
        to[0] = (float)c * a.mscale;
        to[1] = (float)s * a.mscale;
    }
}

/* -- operands of matmul --------------------------------------------------------------------------- */

DEVICE float pack_value(const struct pack_args &a, const float *x, const float *up, float inverse,
                        uint32_t i) {
    if (i >= a.n)
        return 0;
    if (a.kind == PACK_NORM)
        return x[i] * inverse * a.weight[i];
    return a.kind == PACK_SILU ? mx_silu(x[i]) * up[i] : x[i];
}

/* 1 / sqrt(mean of squares + eps) of a row, in every thread. */
DEVICE float inverse_norm(const float *x, uint32_t n, float eps, float *shared8) {
    float sum = 0;

    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
        sum = fmaf(x[i], x[i], sum);
    return 1.0f / sqrtf(block_sum(sum, shared8) / (float)n + eps);
}

KERNEL(hidden, struct hidden_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float shared8[8];
    const float *x = a.x + (size_t)a.row[blockIdx.x] * a.n;
    float inverse = inverse_norm(x, a.n, a.eps, shared8);

    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        a.y[(size_t)blockIdx.x * a.n + i] = x[i] * inverse * a.weight[i];
}

/* 2^e, -126 <= e <= 127. */
DEVICE float power_of_two(int e) {
    return mx_float_of((uint32_t)(e + 127) << 23);
}

KERNEL(pack, struct pack_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float shared8[8];
    uint32_t r = blockIdx.x, tid = threadIdx.x;

    if (a.batch && r >= (a.wanted ? a.batch->n_wants : a.batch->n_rows))
        return;
    uint32_t row = a.wanted ? a.batch->want_row[r] : r;
    const float *x = a.x + (size_t)row * a.n, *up = a.up + (size_t)row * a.n;
    float inverse = 1, max = 0;

    if (a.kind == PACK_NORM)
        inverse = inverse_norm(x, a.n, a.eps, shared8);
    for (uint32_t i = tid; i < a.n; i += CUDA_THREADS)
        max = fmaxf(max, fabsf(pack_value(a, x, up, inverse, i)));
    max = block_max(max, shared8);

    /* Exponent of the largest magnitude; rows of nothing, infinities and NaN are not scaled. */
    int e = (int)(mx_bits_of(max) >> 23) - 127;
    e = max > 0 && max <= FLT_MAX ? (e > -100 ? e : -100) - 13 : 0;
    float shrink = power_of_two(-e);
    uint16_t *to = a.packed + (size_t)(r / PACK_ROWS) * PACK_ROWS * a.n_padded + r % PACK_ROWS * 32;
    float *sums = a.sums + (size_t)(r / PACK_ROWS) * a.n_padded / 32 * PACK_ROWS + r % PACK_ROWS;

    for (uint32_t first = 0; first < a.n_padded; first += 4 * CUDA_THREADS) {
        uint32_t i = first + 4 * tid,
                 h[2] = {0, 0}; /* all lanes meet, whether they have columns or not */

        if (i < a.n_padded) {
            float v[4];

            for (uint32_t j = 0; j < 4; j++)
                v[j] = pack_value(a, x, up, inverse, i + j) * shrink;
            h[0] = pack_halves(v[0], v[2]);
            h[1] = pack_halves(v[1], v[3]);
            store8(to + (size_t)(i / 32) * PACK_ROWS * 32 + pack_place(i % 32), h);
        }
        float sum = (half_to_float((uint16_t)h[0]) + half_to_float((uint16_t)(h[0] >> 16))) +
                    (half_to_float((uint16_t)h[1]) + half_to_float((uint16_t)(h[1] >> 16)));
        for (int m = 1; m < 8; m *= 2)
            sum += lane_xor(sum, m);
        if (i < a.n_padded && i % 32 == 0)
            sums[i / 32 * PACK_ROWS] = sum;
    }
    if (tid == 0)
        a.scale[r] = power_of_two(e);
}

/* -- keys and values ------------------------------------------------------------------------------ */

#define HEAD_MAX 256u

/* A page never holds infinities or NaN: a masked key still meets a probability of 0. */
DEVICE float finite_half(float x) {
    return fminf(fmaxf(x, -65504.0f), 65504.0f);
}

/* The rms norm and RoPE of one head by one warp: x (device memory) to head (shared). */
DEVICE void turn_head(const struct store_args &a, const float *x, const float *norm,
                      const float *turn, float *head) {
    uint32_t lane = threadIdx.x % 32, dim = a.shape.head_dim;
    float inverse = 1;

    if (norm) {
        float sum = 0;

        for (uint32_t i = lane; i < dim; i += 32)
            sum = fmaf(x[i], x[i], sum);
        for (int m = 1; m < 32; m *= 2)
            sum += lane_xor(sum, m);
        inverse = 1.0f / sqrtf(sum / (float)dim + a.eps);
    }
    for (uint32_t i = lane; i < dim; i += 32)
        head[i] = norm ? x[i] * inverse * norm[i] : x[i];
    sync_warp();
    for (uint32_t i = lane; i < a.n_rot / 2; i += 32) {
        uint32_t i0 = a.neox ? i : 2 * i, i1 = a.neox ? i + a.n_rot / 2 : i0 + 1;
        float c = turn[2 * i], s = turn[2 * i + 1], p0 = head[i0], p1 = head[i1];

        head[i0] = p0 * c - p1 * s;
        head[i1] = p0 * s + p1 * c;
    }
    sync_warp();
}

/* Writes a head of keys (PAGE_K) or values (PAGE_V) at token @slot of the page. */
DEVICE void store_head(const struct store_args &a, uint32_t h, enum page_part part, uint8_t *page,
                       uint32_t slot, const float *head) {
    uint32_t lane = threadIdx.x % 32, dim = a.shape.head_dim, tokens = a.shape.page_tokens;
    size_t at = page_offset(&a.shape, h, part);
    bool keys = part == PAGE_K;

    if (!a.shape.q8) {
        uint16_t *to = (uint16_t *)(page + at);

        for (uint32_t i = lane; i < dim; i += 32)
            to[keys ? slot * dim + i : i * tokens + slot] =
                (uint16_t)pack_half(finite_half(head[i]));
        return;
    }
    uint16_t *scales =
        (uint16_t *)(page + page_offset(&a.shape, h, keys ? PAGE_K_SCALES : PAGE_V_SCALES));
    for (uint32_t i = lane, group = 0; group < dim / 32; i += 32, group++) {
        float x = finite_half(head[i]), max = fabsf(x);

        for (int m = 1; m < 32; m *= 2)
            max = fmaxf(max, lane_xor(max, m));
        float inverse = max > 0 ? 127.0f / max : 0;
        float q = x * inverse + 12582912.0f - 12582912.0f; /* nearest integer */

        q = fminf(fmaxf(q, -127.0f), 127.0f);
        page[at + (keys ? slot * dim + i : i * tokens + slot)] = (uint8_t)(int8_t)q;
        if (lane == 0)
            scales[keys ? slot * (dim / 32) + group : group * tokens + slot] =
                (uint16_t)pack_half(max / 127.0f);
    }
}

/* A warp a head: queries, then keys, then values. */
KERNEL(store, struct store_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float heads[CUDA_THREADS / 32][HEAD_MAX];
    uint32_t r = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t dim = a.shape.head_dim, n_kv = a.shape.n_head_kv;

    if (r >= a.batch->n_rows)
        return;
    uint8_t *page = a.pages + (size_t)a.batch->row_page[r] * page_layer_bytes(&a.shape);
    const float *turn = a.turn + (size_t)r * a.n_rot;
    float *head = heads[warp];
    uint32_t slot = a.batch->row_slot[r];

    for (uint32_t h = warp; h < a.n_head; h += CUDA_THREADS / 32) {
        float *q = a.q + ((size_t)r * a.n_head + h) * dim;

        turn_head(a, q, a.q_norm, turn, head);
        for (uint32_t i = lane; i < dim; i += 32)
            q[i] = head[i];
        sync_warp();
    }
    for (uint32_t h = warp; h < n_kv; h += CUDA_THREADS / 32) {
        size_t at = ((size_t)r * n_kv + h) * dim;

        turn_head(a, a.k + at, a.k_norm, turn, head);
        store_head(a, h, PAGE_K, page, slot, head);
        store_head(a, h, PAGE_V, page, slot, a.v + at);
        sync_warp();
    }
}

KERNEL(copy_page, struct copy_args, CUDA_THREADS, 2) {
    wait_for_previous();
    const uint8_t *from = a.from + blockIdx.y * a.from_layer;
    uint8_t *to = a.to + blockIdx.y * a.to_layer;
    size_t step = (size_t)gridDim.x * CUDA_THREADS * 16;

    for (size_t i = ((size_t)blockIdx.x * CUDA_THREADS + threadIdx.x) * 16; i < a.page_bytes;
         i += step)
        store16(to + i, load16(from + i));
}
