#pragma once

/*
 * attention_wide - what kernels for prompts share (attention_wide.cu, attention_wgmma.cu): blocks
 * of 128 queries, 16 for each warp, which keeps their results in registers; items and results.
 */

#include "engine/ops/attention/attention.cuh"

#define WARPS (CUDA_THREADS / 32)

static_assert(ATTN_WIDE == WARPS * ATTN_QUERIES, "16 queries a warp");

/* Returns @d, or 0 if it is not below @n. */
DEVICE uint32_t or_first(uint32_t d, uint32_t n) {
    return d < n ? d : 0;
}

/* The result (m, l, o) of queries g and g + 8 of the warp; o is in the layout of mma
 * accumulators. */
template <int D> struct Result { float m[2], l[2], o[4 * D][4]; };

/* Sets @r to the result of no key. */
template <int D> DEVICE void clear(Result<D> &r) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        r.m[i] = -INFINITY;
        r.l[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 16 * D; i++)
        r.o[i / 4][i % 4] = 0;
}

/* Merges @x, of later keys, into @r. */
template <int D> DEVICE void merge_result(Result<D> &r, const Result<D> &x) {
    struct Weights w[2];

#pragma unroll
    for (int i = 0; i < 2; i++) {
        w[i] = merge_weights(r.m[i], x.m[i]);
        r.l[i] = merge_with(r.l[i], x.l[i], w[i].a, w[i].b);
        r.m[i] = w[i].max;
    }
#pragma unroll
    for (int i = 0; i < 16 * D; i++)
        r.o[i / 4][i % 4] =
            merge_with(r.o[i / 4][i % 4], x.o[i / 4][i % 4], w[i % 4 / 2].a, w[i % 4 / 2].b);
}

/* Shared memory of a block: its item, the addresses of keys and values, and its queries. */
template <int D> struct alignas(16) Shared {
    static constexpr uint32_t queries = ATTN_WIDE;

    uint16_t q[D][2][WARPS][32][8]; /* attention_load_queries() */
    struct Reach reach[ATTN_WIDE];
    /* range of the positions of a warp's queries, low > high if it has none, and the first keys
     * that queries at its ends see */
    uint32_t low[WARPS], high[WARPS], low_key[WARPS], high_key[WARPS];
    uint32_t index;   /* index of the item */
    uint32_t n_tiles; /* end of the tiles that are seen */
    struct attn_item item;
    struct Place place;
};

/* Finds the range of positions of the queries of warp threadIdx.x, or of that group of warps: of
 * @each queries. Every query sees all of the
 * shared chunks except for windows; for a shared item the highest position is not looked up, so
 * with a window all its tiles are masked. */
template <int D>
DEVICE void wide_find_range(const struct attend_args &a, struct Shared<D> &s, uint32_t each) {
    uint32_t query = threadIdx.x * each, end = query + each, n_q = s.item.n_q;
    bool shared = s.item.chunk >= 0;

    s.low[threadIdx.x] = s.item.pos0 + (shared ? 0 : (s.item.q0 + query) / a.group);
    if (query >= n_q)
        s.high[threadIdx.x] = 0;
    else if (shared)
        s.high[threadIdx.x] = INT32_MAX;
    else
        s.high[threadIdx.x] = last_key_of(a, s.item, (end < n_q ? end : n_q) - 1);
    s.low_key[threadIdx.x] = attn_first_key(s.low[threadIdx.x], a.window, a.chunked);
    s.high_key[threadIdx.x] = attn_first_key(s.high[threadIdx.x], a.window, a.chunked);
}

/* Stores values 2 t and 2 t + 1 of each eight of query g (@i 0) or g + 8 (1), times @scale /
 * @sum. */
template <int D>
DEVICE void wide_store_values(const struct attend_args &a, float *to, int i, const Result<D> &r,
                              float scale, float sum) {
    uint32_t t = threadIdx.x % 4;

#pragma unroll
    for (int b = 0; b < 4 * D; b++) {
        const float *x = &r.o[b][2 * i];
        float two[2] = {x[0] * scale / sum, x[1] * scale / sum};

        if (8u * b < a.n_value)
            store_some<2>(to + 8 * b + 2 * t, two);
    }
}

/* Packs what wide_store_values() stores for query @query of the item, if it has so many. A lane
 * exchanges one value of each eight with its neighbour, so that it has two that are next to each
 * other. */
template <int D>
DEVICE void wide_pack_values(const struct attend_args &a, const struct attn_item &it,
                             uint32_t query, int i, const Result<D> &r, float scale, float sum) {
    PackedQuery to = PackedQuery::of(a, it.row0, it.q0 + query);
    uint32_t t = threadIdx.x % 4, at = t % 2 ? to.apart(a) : 0;

#pragma unroll
    for (int b = 0; b < 4 * D; b++) {
        const float *x = &r.o[b][2 * i];
        float low = x[0] * scale / sum * a.fixed, high = x[1] * scale / sum * a.fixed;
        float other = t % 2 ? low : high, got = lane_xor(other, 1);

        if (t % 2)
            low = got;
        else
            high = got;
        if (query < it.n_q && 8u * b < a.n_value)
            *(uint32_t *)(to.place(a, 8 * b + t / 2 * 4) + at) = pack_halves(low, high);
    }
    if (query < it.n_q)
        to.end(a, 2 * t);
}

/* Writes the final results of the warp's queries, which begin with @query. */
template <int D>
DEVICE void wide_store_results(const struct attend_args &a, const struct attn_item &it,
                               uint32_t query, const Result<D> &r) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t mine = query + threadIdx.x % 32 / 4 + 8 * i;
        float *to = a.o + query_place(a, it, mine) * a.n_value, scale = 1, sum = r.l[i];

        if (a.sinks) {
            struct Weights w = merge_weights(r.m[i], sink_of(a, it.q0 + mine));

            sum = merge_with(sum, 1.0f, w.a, w.b);
            scale = w.a;
        }
        if (a.packed)
            wide_pack_values<D>(a, it, mine, i, r, scale, sum);
        else if (mine < it.n_q)
            wide_store_values<D>(a, to, i, r, scale, sum);
    }
}

/* Writes the partial results of the warp's queries, which begin with @query: of chunk @chunk, or of
 * all chunks up to it. */
template <int D>
DEVICE void store_partial(const struct attend_args &a, const struct attn_item &it, uint32_t query,
                          uint32_t chunk, const Result<D> &r) {
    uint32_t step = (it.n_q + ATTN_QUERIES - 1) / ATTN_QUERIES;
    uint32_t before = it.chunk > 0 ? chunk - (uint32_t)it.chunk : 0, g = threadIdx.x % 32 / 4;
    uint32_t index = it.partial + before * step + query / ATTN_QUERIES;
    size_t place = ((size_t)index * gridDim.y + blockIdx.y) * ATTN_QUERIES + g;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *to = a.partial + (place + 8 * i) * a.partial_stride;

        if (query + g + 8 * i >= it.n_q)
            continue;
        wide_store_values<D>(a, to, i, r, 1, 1);
        if (threadIdx.x % 4 == 0) {
            to[a.n_value] = r.m[i];
            to[a.n_value + 1] = r.l[i];
        }
    }
}

/* Ends chunk @chunk (@last: the item's last one): merges it, and writes the result of the chunk or
 * of the item where one is due. */
template <int D>
DEVICE void end_chunk(const struct attend_args &a, const struct Shared<D> &s, uint32_t query,
                      uint32_t chunk, bool last, Result<D> &part, Result<D> &all) {
    merge_result<D>(all, part);
    clear<D>(part);
    if (s.item.chunk <= 0 && !last)
        return;
    if (s.item.chunk < 0)
        wide_store_results<D>(a, s.item, query, all);
    else
        store_partial<D>(a, s.item, query, chunk, all);
    clear<D>(all);
}

/* Finds the block's next item. Called by one thread. */
template <int D> DEVICE void wide_find_item(const struct attend_args &a, struct Shared<D> &s) {
    struct attn_item &to = s.item;

    s.index += gridDim.x;
    if (s.index >= a.batch->n_wide_items)
        return;
    to = a.batch->wide_item[s.index];
    find_place(s.place, a, to, first_key_of(a, to));
    s.n_tiles =
        to.chunk < 0 ? s.place.last / ATTN_TILE + 1 : ((uint32_t)to.chunk + to.n_run) * ATTN_TILES;
}

/* Computes the block's items, each by @attend_item(). */
template <int D, class ITEM>
DEVICE void wide_attend(const struct attend_args &a, struct Shared<D> &s, const ITEM &attend_item) {
    if (threadIdx.x == 0)
        s.index = blockIdx.x - gridDim.x;
    while (true) {
        if (threadIdx.x == 0)
            wide_find_item<D>(a, s);
        sync_block();
        if (s.index >= a.batch->n_wide_items)
            break;
        attend_item();
        sync_block();
    }
}
