#pragma once

/*
 * attention - what the kernels of attention.cu have in common, for any number of queries a block:
 * keys and values from their pages, the softmax of a tile, the merging of tiles and chunks, and
 * what the last blocks do.
 */

#include "engine/cuda/rows.cuh"

struct Place { /* where the keys of the block's head lie */
    const uint8_t *pages;
    const uint32_t *table; /* of the sequence */
    struct page_shape shape;
    uint32_t head, first, last; /* of the keys that any of the block's queries sees */
    uint32_t shift, mask;       /* key >> shift: its page, key & mask: its place there */
};

/* Pages have 16, 32 or 64 tokens. */
DEVICE uint32_t page_shift(uint32_t tokens) {
    return tokens == 16 ? 4 : tokens == 32 ? 5 : 6;
}

DEVICE const uint8_t *page_of(const struct Place &p, uint32_t key, enum page_part part) {
    return p.pages + (size_t)p.table[key >> p.shift] * page_layer_bytes(&p.shape) +
           page_offset(&p.shape, p.head, part);
}

/* Four codes in a word times d: two words of halves. */
DEVICE void scale_codes(uint32_t codes, uint32_t d, uint32_t *h0, uint32_t *h1) {
    uint32_t q = codes ^ 0x80808080u; /* 1024 + 128 + q */

    *h0 = mul_halves(sub_halves(byte_permute(q, 0x64646464u, 0x4140u), 0x64806480u), d);
    *h1 = mul_halves(sub_halves(byte_permute(q, 0x64646464u, 0x4342u), 0x64806480u), d);
}

/* Values d .. d + 7 of a key. */
DEVICE struct vec4 load_key(const struct Place &p, uint32_t key, uint32_t d) {
    struct vec4 v = {0, 0, 0, 0};
    uint32_t dim = p.shape.head_dim, slot = key & p.mask;

    if (key > p.last || d >= dim)
        return v;
    const uint8_t *k = page_of(p, key, PAGE_K);
    if (!p.shape.q8)
        return load16(k + ((size_t)slot * dim + d) * 2);
    const uint32_t *codes = (const uint32_t *)(k + (size_t)slot * dim + d);
    const uint16_t *scales = (const uint16_t *)page_of(p, key, PAGE_K_SCALES);
    uint32_t scale = scales[slot * (dim / 32) + d / 32] * 0x10001u;

    scale_codes(codes[0], scale, &v.x, &v.y);
    scale_codes(codes[1], scale, &v.z, &v.w);
    return v;
}

/* Value d of keys key .. key + 7. */
DEVICE struct vec4 load_value(const struct Place &p, uint32_t key, uint32_t d) {
    struct vec4 v = {0, 0, 0, 0};
    uint32_t tokens = p.shape.page_tokens, slot = key & p.mask;

    if (key > p.last || d >= p.shape.head_dim)
        return v;
    const uint8_t *values = page_of(p, key, PAGE_V);
    if (!p.shape.q8)
        return load16(values + ((size_t)d * tokens + slot) * 2);
    const uint32_t *codes = (const uint32_t *)(values + (size_t)d * tokens + slot);
    const uint16_t *scales = (const uint16_t *)page_of(p, key, PAGE_V_SCALES);
    struct vec4 s = load16(scales + d / 32 * tokens + slot);
    uint32_t one = 0x3C003C00u;

    scale_codes(codes[0], one, &v.x, &v.y);
    scale_codes(codes[1], one, &v.z, &v.w);
    v.x = mul_halves(v.x, s.x);
    v.y = mul_halves(v.y, s.y);
    v.z = mul_halves(v.z, s.z);
    v.w = mul_halves(v.w, s.w);
    return v;
}

/* Value @d of the query of row and head @at. */
DEVICE float query_value(const struct attend_args &a, size_t at, uint32_t d) {
    if (!a.turned)
        return a.q[at * a.shape.head_dim + d];
    return d < a.n_value ? a.q[at * a.n_value + d] : a.turned[at * a.turned_stride + d - a.n_value];
}

/* The block's queries, split into two halves each, zero where there is none. */
template <int D, class S>
DEVICE void take_queries(const struct attend_args &a, const struct attn_item &it, S &s) {
    uint32_t dim = a.shape.head_dim, mine = threadIdx.x;

    if (mine < S::queries)
        s.pos[mine] = mine < it.n_q ? a.batch->pos[it.row0 + (it.q0 + mine) / a.group] : it.pos0;
    for (uint32_t i = threadIdx.x; i < S::queries * 32 * D; i += CUDA_THREADS) {
        uint32_t query = i / (32 * D), d = i % (32 * D), n = it.q0 + query;
        float x = 0;

        if (query < it.n_q && d < dim) {
            uint32_t head = blockIdx.y * a.group + n % a.group, row = it.row0 + n / a.group;

            x = query_value(a, (size_t)row * a.n_head + head, d);
        }
        uint32_t upper = pack_half(fminf(fmaxf(x, -65504.0f), 65504.0f));

        s.q[0][query][d] = (uint16_t)upper;
        s.q[1][query][d] = (uint16_t)pack_half(x - half_to_float((uint16_t)upper));
    }
}

/* Whether any of the block's queries sees a key of the tile that begins with @first. */
DEVICE bool is_seen(const struct Place &p, uint32_t first) {
    return first <= p.last && first + ATTN_TILE > p.first;
}

/* The softmax of a tile for query g (@half 0) or g + 8 (1) at position @pos: c becomes p. */
DEVICE void soften(const struct attend_args &a, float c[4][4], int half, uint32_t pos,
                   uint32_t first, float *m_out, float *l_out) {
    uint32_t t = threadIdx.x % 4, from = attn_first_key(pos, a.window);
    float m = -INFINITY, l = 0;

    if (a.holes)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float *x = &c[i / 2][2 * half + i % 2];

            *x = fabsf(*x) <= FLT_MAX ? *x : -INFINITY;
        }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float *x = &c[j][2 * half + e];

            *x *= a.scale;
            if (a.cap != 0)
                *x = mx_soft_cap(*x, a.cap);
            *x = first + 8 * t + 2 * j + e - from <= pos - from ? *x : -INFINITY;
            m = fmaxf(m, *x);
        }
    m = fmaxf(m, lane_xor(m, 1));
    m = fmaxf(m, lane_xor(m, 2));
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float *x = &c[j][2 * half + e];

            *x = m > -INFINITY ? mx_expf(*x - m) : 0.0f;
            l += *x;
        }
    l += lane_xor(l, 1);
    l += lane_xor(l, 2);
    *m_out = m;
    *l_out = l;
}

/* How the tiles merge into the chunk and the chunk into the whole, for one query. */
template <class S> DEVICE void weigh(S &s, uint32_t query) {
    float max = -INFINITY, l = 0;

    for (uint32_t w = 0; w < ATTN_TILES; w++) {
        struct attn_weights x = attn_merge_weights(max, s.m[w][query]);

        l = attn_merge(l, s.l[w][query], x);
        max = x.max;
        s.a[w][query] = x.a;
        s.b[w][query] = x.b;
    }
    struct attn_weights x = attn_merge_weights(s.all_m[query], max);
    s.chunk_m[query] = max;
    s.chunk_l[query] = l;
    s.all_l[query] = attn_merge(s.all_l[query], l, x);
    s.all_m[query] = x.max;
    s.all_a[query] = x.a;
    s.all_b[query] = x.b;
}

/* The merged chunk at query @query and value @d of the part. */
template <class S> DEVICE float merged(const S &s, uint32_t query, uint32_t d) {
    float x = 0;

    for (uint32_t w = 0; w < ATTN_TILES; w++) {
        struct attn_weights m = {0, s.a[w][query], s.b[w][query]};

        x = attn_merge(x, s.o[w][query][d], m);
    }
    return x;
}

/* Of a merge's or an item's query. */
template <class ARGS> DEVICE float sink_of(const ARGS &a, uint32_t query) {
    return a.sinks[blockIdx.y * a.group + query % a.group];
}

/* How the whole of a query becomes its result: times all_a, divided by all_l. */
template <class S>
DEVICE void end_query(const struct attend_args &a, const struct attn_item &it, S &s,
                      uint32_t query) {
    s.all_a[query] = 1;
    if (!a.sinks)
        return;
    struct attn_weights x = attn_merge_weights(s.all_m[query], sink_of(a, it.q0 + query));
    s.all_l[query] = attn_merge(s.all_l[query], 1.0f, x);
    s.all_a[query] = x.a;
}

/* The first key that any query of an item sees. Several merges: a row of a sequence each. */
DEVICE uint32_t first_key_of(const struct attend_args &a, const struct attn_item &it) {
    uint32_t low = it.pos0 + it.q0 / a.group;

    for (uint32_t r = 1; r < it.n_merges; r++) {
        uint32_t pos = a.batch->pos[it.row0 + r];

        low = pos < low ? pos : low;
    }
    return attn_first_key(low, a.window);
}

DEVICE struct Place place_of(const struct attend_args &a, const struct attn_item &it) {
    return {a.pages,
            a.batch->page_table[a.cls] + it.page0,
            a.shape,
            blockIdx.y,
            first_key_of(a, it),
            it.pos0 + (it.q0 + it.n_q - 1) / a.group,
            page_shift(a.shape.page_tokens),
            a.shape.page_tokens - 1};
}

/* Where query @query's part of the partial result is. */
DEVICE float *partial_of(const struct attend_args &a, const struct attn_item &it, uint32_t query) {
    return a.partial +
           (((size_t)it.partial * gridDim.y + blockIdx.y) * a.few + query) * a.partial_stride;
}

/* Value @d of a query's result: @x, not divided yet. */
template <class S>
DEVICE void put_value(const struct attend_args &a, const struct attn_item &it, const S &s,
                      uint32_t query, uint32_t d, float x) {
    uint32_t q = it.q0 + query, head = blockIdx.y * a.group + q % a.group, n = a.n_value;

    if (query >= it.n_q || d >= n)
        return;
    if (it.chunk < 0)
        a.o[((size_t)(it.row0 + q / a.group) * a.n_head + head) * n + d] =
            x * s.all_a[query] / s.all_l[query];
    else
        partial_of(a, it, query)[d] = x;
}

/* m and l of a chunk. */
template <class S>
DEVICE void put_weights(const struct attend_args &a, const struct attn_item &it, const S &s) {
    if (it.chunk < 0 || threadIdx.x >= a.few)
        return;
    float *to = partial_of(a, it, threadIdx.x) + a.n_value;

    to[0] = s.chunk_m[threadIdx.x];
    to[1] = s.chunk_l[threadIdx.x];
}

#define MERGE_AHEAD 4u /* chunks whose loads are issued together */

/* Queries of one merge, of the block's key head. */
DEVICE void merge_queries(const struct merge_args &a, const struct attn_merge &it) {
    uint32_t dim = a.n_value;
    size_t stride = (size_t)a.n_head_kv * a.few * a.partial_stride;

    for (uint32_t i = threadIdx.x; i < it.n_q * dim; i += CUDA_THREADS) {
        uint32_t query = i / dim, d = i % dim, q = it.q0 + query;
        uint32_t head = blockIdx.y * a.group + q % a.group, row = it.row0 + q / a.group;
        uint32_t first = a.window < UINT32_MAX ? attn_first_key(a.batch->pos[row], a.window) : 0;
        size_t place = (blockIdx.y * a.few + query) * (size_t)a.partial_stride;
        const float *own = a.partial + it.partial * stride + place;
        const float *shared =
            a.partial + it.shared * stride + place + (size_t)it.shared_q * a.partial_stride;
        float max = -INFINITY, l = 0, o = 0;

        for (uint32_t c = first / ATTN_CHUNK; c < it.n_chunks; c += MERGE_AHEAD) {
            float next[MERGE_AHEAD][3];

#pragma unroll
            for (uint32_t k = 0; k < MERGE_AHEAD; k++) {
                bool there = c + k < it.n_chunks;
                uint32_t at = there ? c + k : c;
                const float *p =
                    at < it.n_shared ? shared + at * stride : own + (at - it.n_shared) * stride;

                next[k][0] = there ? p[dim] : -INFINITY;
                next[k][1] = p[dim + 1];
                next[k][2] = p[d];
            }
#pragma unroll
            for (uint32_t k = 0; k < MERGE_AHEAD; k++) {
                struct attn_weights w = attn_merge_weights(max, next[k][0]);

                max = w.max;
                l = attn_merge(l, next[k][1], w);
                o = attn_merge(o, next[k][2], w);
            }
        }
        if (a.sinks) { /* as end_query() */
            struct attn_weights w = attn_merge_weights(max, sink_of(a, q));

            l = attn_merge(l, 1.0f, w);
            o *= w.a;
        }
        a.o[((size_t)row * a.n_head + head) * dim + d] = o / l;
    }
}

/* Packs the rows of queries [q0, q0 + n_q) whose last heads these are. */
DEVICE void finish_rows(const struct attend_args &a, uint32_t row0, uint32_t q0, uint32_t n_q,
                        uint32_t *told, float *sums) {
    uint32_t first = q0 / a.group, n = (q0 + n_q - 1) / a.group - first + 1, t = threadIdx.x;

    sync_block();
    if (t < n) {
        uint32_t begin = (first + t) * a.group, end = begin + a.group;

        begin = begin > q0 ? begin : q0;
        end = end < q0 + n_q ? end : q0 + n_q;
        told[t] = arrive(a.rows + row0 + first + t, end - begin, a.n_head);
    }
    sync_block();
    for (uint32_t i = 0; i < n; i++)
        if (told[i])
            pack_row<CUDA_THREADS>(a.pack, row0 + first + i, row0 + first + i, sums);
}

/* What is possible now that the block has done its item. */
DEVICE void finish_item(const struct attend_args &a, const struct attn_item &it) {
    SHARED uint32_t told[ATTN_QUERIES], rows[ATTN_QUERIES];
    SHARED float sums[PACK_THREADS / 32];

    if (it.chunk < 0) {
        finish_rows(a, it.row0, it.q0, it.n_q, rows, sums);
        return;
    }
    struct merge_args m = {a.batch,          a.partial, a.o,    a.n_head,
                           gridDim.y,        a.group,   a.few,  a.n_value,
                           a.partial_stride, a.window,  a.sinks};
    sync_block();
    if (threadIdx.x < it.n_merges) {
        uint32_t at = it.merge + threadIdx.x;

        told[threadIdx.x] =
            arrive(a.merged + at * gridDim.y + blockIdx.y, 1, a.batch->merge[at].n_chunks);
    }
    sync_block();
    for (uint32_t i = 0; i < it.n_merges; i++) {
        if (!told[i])
            continue;
        struct attn_merge g = a.batch->merge[it.merge + i];

        merge_queries(m, g);
        finish_rows(a, g.row0, g.q0, g.n_q, rows, sums);
    }
}
