/*
 * rows - the kernels that work on rows of activations: embedding, normalisation, RoPE, pages. One
 * thread block a row, or several; a sum over a row goes over fixed elements of each thread and then
 * over the threads in a fixed order, so it depends on the row's length alone. With few rows what
 * they take is the latency of memory, so a row is read once and wide.
 */

#include "engine/cuda/rows.cuh"

KERNEL(embed, struct embed_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x, n = a.table.n_in;

    if (r >= a.batch->n_rows)
        return;
    int32_t feed = a.batch->feed[r], token = feed >= 0 ? a.sampled[feed] : a.batch->token[r];
    uint32_t t = (uint32_t)token < a.table.n_rows ? (uint32_t)token : 0, k = tile_k(a.format);
    const uint8_t *tiles = a.tiles + (size_t)(t / TILE_ROWS) * a.n_units * tile_bytes(a.format);
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
        a.x[(size_t)r * n + i] =
            a.scale * (a.tiles ? tile_read(a.format, tiles + i / k * tile_bytes(a.format),
                                           t % TILE_ROWS, i % k, a.inverse)
                               : tile_value_at(&a.table, t, i));
}

/* A warp a layer. */
KERNEL(layer_input, struct layer_input_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x, lane = threadIdx.x % 32;
    uint32_t l = blockIdx.y * (CUDA_THREADS / 32) + threadIdx.x / 32;

    if (r >= a.batch->n_rows || l >= a.n_layer)
        return;
    int32_t feed = a.batch->feed[r], token = feed >= 0 ? a.sampled[feed] : a.batch->token[r];
    uint32_t t = (uint32_t)token < a.table.n_rows ? (uint32_t)token : 0;
    float *p = a.p + ((size_t)r * a.n_layer + l) * a.n, sum = 0;

    for (uint32_t i = lane; i < a.n; i += 32)
        sum = fmaf(p[i] * a.scale, p[i] * a.scale, sum);
    for (int m = 1; m < 32; m *= 2)
        sum += lane_xor(sum, m);
    float inverse = 1.0f / sqrtf(sum / (float)a.n + a.eps);
    for (uint32_t i = lane; i < a.n; i += 32) {
        float own = a.own * tile_value_at(&a.table, t, l * a.n + i);

        p[i] = (p[i] * a.scale * inverse * a.norm[i] + own) * 0.70710678f;
    }
}

KERNEL(rope, struct rope_args, CUDA_THREADS, 2) {
    wait_for_previous();
    const auto &table = a.table[blockIdx.y];
    uint32_t r = blockIdx.x;

    if (r >= a.batch->n_rows)
        return;
    uint32_t pos = a.batch->pos[r];
    if (a.temper && blockIdx.y == 0 && threadIdx.x == 0)
        a.temper[r] = (float)(1.0 + (double)a.slope * mx_log(1.0 + (double)(pos / a.span)));
    for (uint32_t i = threadIdx.x; i < table.n_pairs; i += CUDA_THREADS) {
        float *to = table.rope + ((size_t)r * table.n_pairs + i) * 2;
        double s, c;

        mx_sincos(pos * table.freq[i], &s, &c);
        to[0] = (float)c * table.mscale;
        to[1] = (float)s * table.mscale;
    }
}

KERNEL(hidden, struct hidden_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float shared8[8];
    const float *x = a.x + (size_t)a.row[blockIdx.x] * a.n;
    float sum = 0;

    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        sum = fmaf(x[i], x[i], sum);
    float inverse = 1.0f / sqrtf(block_sum<8>(sum, shared8) / (float)a.n + a.eps);
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        a.y[(size_t)blockIdx.x * a.n + i] = x[i] * inverse * a.weight[i];
}

KERNEL(residual, struct residual_args, PACK_THREADS, 2) {
    wait_for_previous();
    SHARED float shared[PACK_THREADS / 32];
    size_t at = (size_t)blockIdx.x * a.n;
    float inverse = 1;

    if (blockIdx.x >= a.batch->n_rows)
        return;
    if (a.norm) {
        float sum = 0;

        for (uint32_t i = threadIdx.x; i < a.n; i += PACK_THREADS)
            sum = fmaf(a.t[at + i], a.t[at + i], sum);
        sum = block_sum<PACK_THREADS / 32>(sum, shared);
        inverse = 1.0f / sqrtf(sum / (float)a.n + a.eps);
    }
    for (uint32_t i = threadIdx.x; i < a.n; i += PACK_THREADS) {
        float t = a.norm ? a.t[at + i] * inverse * a.norm[i] : a.t[at + i];

        a.to[at + i] = ((a.base ? a.base[at + i] : 0) + a.gain * t) * a.scale;
    }
    if (!a.packs)
        return;
    sync_block();
    pack_row<PACK_THREADS>(a.pack, blockIdx.x, blockIdx.x, shared);
}

KERNEL(cap, struct cap_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t i = blockIdx.x * CUDA_THREADS + threadIdx.x;

    if (i >= a.n || (a.count && blockIdx.y >= *a.count))
        return;
    float *l = a.logits + (size_t)blockIdx.y * a.n + i, z = *l * a.scale;

    *l = a.cap != 0 ? mx_soft_cap(z, a.cap) : z;
}

KERNEL(soft_gate, struct soft_gate_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x, per = a.n / a.n_gate;

    if (r >= a.batch->n_rows)
        return;
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        a.o[(size_t)r * a.n + i] *= softplus(a.gate[(size_t)r * a.n_gate + i / per]);
}

KERNEL(pack, struct pack_args, PACK_THREADS, 2) {
    wait_for_previous();
    SHARED float shared[PACK_THREADS / 32];
    uint32_t r = blockIdx.x, each = a.each ? a.each : 1;

    if (a.batch && r >= (a.wanted ? a.batch->n_wants : a.batch->n_rows * each))
        return;
    pack_row<PACK_THREADS>(a, r, a.wanted ? a.batch->want_row[r] : r, shared);
}

/* A warp a head: queries, then keys with their values. */
KERNEL(store, struct store_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float heads[CUDA_THREADS / 32][HEAD_MAX];
    uint32_t r = blockIdx.x, warp = threadIdx.x / 32;
    uint32_t h = blockIdx.y * (CUDA_THREADS / 32) + warp;

    if (r >= a.batch->n_rows || h >= a.n_head + a.n_kv)
        return;
    if (h < a.n_head) {
        store_part(a, STORE_Q, r, h, heads[warp]);
    } else {
        store_part(a, STORE_K, r, h - a.n_head, heads[warp]);
        store_part(a, STORE_V, r, h - a.n_head, heads[warp]);
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
