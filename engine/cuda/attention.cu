/*
 * attention - softmax(q k' scale) v over pages, for prompts and decoding alike. A thread block has
 * 16 queries (rows of one sequence x heads that share a key head) and goes over chunks of 256 keys;
 * in a chunk each of its 8 warps does one tile of 32 keys, then all threads merge the tiles. The
 * tree of engine/shared/pages.h: a query's result depends on its position and the keys alone, not
 * on the other queries, on how many rows the step has, or on whether the chunks were done by one
 * block or by many (merge).
 *
 * A layer with a window is the same tree: tiles lie where they always lie, one that is before the
 * windows of all of an item's queries is left out, and in the others keys outside a query's window
 * have no weight, as those behind the query. A sink is one more tile, the last, of one key without
 * a value.
 *
 * In a tile: s = q k' by mma, q as two halves (its upper and lower bits: keys are exact, so scores
 * are nearly f32), p = e^(scale s - m) rounded to half, o = p v by mma, l = sum of p before
 * rounding. A row of mma does not see the others. Keys behind the query have p = 0: pages hold no
 * infinities, so 0 v = 0.
 *
 * Lanes load keys and values from the page 16 bytes at a time in the order mma wants them
 * (engine/shared/pages.h); q8_0 codes become halves rounded once, d q. Bound by the bytes of keys
 * and values when decoding.
 */

#include "engine/cuda/rows.cuh"

/* Of heads of up to 32 D values. */
template <int D> struct Shared {
    static constexpr uint32_t queries = ATTN_QUERIES;
    static constexpr uint32_t stride = 32 * D + 8; /* halves: rows of q in different banks */
    static constexpr uint32_t part =
        D > 4 ? 32 : 64; /* values of a head that are merged at a time */

    uint16_t q[2][ATTN_QUERIES][stride]; /* upper, lower */
    float o[ATTN_TILES][ATTN_QUERIES][part];
    float m[ATTN_TILES][ATTN_QUERIES], l[ATTN_TILES][ATTN_QUERIES];
    float a[ATTN_TILES][ATTN_QUERIES], b[ATTN_TILES][ATTN_QUERIES];
    float chunk_m[ATTN_QUERIES], chunk_l[ATTN_QUERIES], all_m[ATTN_QUERIES], all_l[ATTN_QUERIES];
    float all_a[ATTN_QUERIES], all_b[ATTN_QUERIES];
    uint32_t pos[ATTN_QUERIES];
};

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

            x = a.q[((size_t)row * a.n_head + head) * dim + d];
        }
        uint32_t upper = pack_half(fminf(fmaxf(x, -65504.0f), 65504.0f));

        s.q[0][query][d] = (uint16_t)upper;
        s.q[1][query][d] = (uint16_t)pack_half(x - half_to_float((uint16_t)upper));
    }
}

/* Scores of the tile that begins with key @first: c[j] as mma leaves them. */
template <int D>
DEVICE void score(const struct Place &p, const struct Shared<D> &s, uint32_t first, float c[4][4]) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, d0 = lane % 4 * 8;

#pragma unroll
    for (int b = 0; b < D; b++) {
        struct vec4 k[4], q[2][2]; /* q: upper and lower; query g and g + 8 */

#pragma unroll
        for (int j = 0; j < 4; j++)
            k[j] = load_key(p, first + attn_key_of_column(j, g), 32 * b + d0);
#pragma unroll
        for (int i = 0; i < 4; i++)
            q[i / 2][i % 2] = load16(&s.q[i / 2][g + i % 2 * 8][32 * b + d0]);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma(c[j], q[i][0].x, q[i][1].x, q[i][0].y, q[i][1].y, k[j].x, k[j].y);
                mma(c[j], q[i][0].z, q[i][1].z, q[i][0].w, q[i][1].w, k[j].z, k[j].w);
            }
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

/* The warp's tile: o in registers, m and l in shared memory. */
template <int D>
DEVICE void do_tile(const struct attend_args &a, const struct attn_item &it, const struct Place &p,
                    struct Shared<D> &s, uint32_t first, float o[4 * D][4]) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float c[4][4], m[2], l[2];
    uint32_t h[2][4]; /* p as halves: [query g, g + 8][block] */

#pragma unroll
    for (int i = 0; i < 16; i++)
        c[i / 4][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < 16 * D; i++)
        o[i / 4][i % 4] = 0;
    if (is_seen(p, first))
        score<D>(p, s, first, c);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t query = g + 8 * i;

        soften(a, c, i, s.pos[query], first, &m[i], &l[i]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            h[i][j] = pack_halves(c[j][2 * i], c[j][2 * i + 1]);
        if (t == 0) {
            s.m[warp][query] = m[i];
            s.l[warp][query] = l[i];
        }
    }
    if (!is_seen(p, first))
        return;
#pragma unroll
    for (int b = 0; b < 4 * D; b++) {
        struct vec4 v = load_value(p, first + 8 * t, 8 * b + g);

        mma(o[b], h[0][0], h[1][0], h[0][1], h[1][1], v.x, v.y);
        mma(o[b], h[0][2], h[1][2], h[0][3], h[1][3], v.z, v.w);
    }
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

/* Puts values [part0, part0 + part) of the warp's tile into shared memory. */
template <int D> DEVICE void put_part(struct Shared<D> &s, const float o[4 * D][4], int which) {
    constexpr int blocks = Shared<D>::part / 8;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int b = 0; b < blocks; b++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            s.o[warp][g + j / 2 * 8][8 * b + 2 * t + j % 2] = o[which * blocks + b][j];
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
    return a.partial + (((size_t)it.partial * gridDim.y + blockIdx.y) * ATTN_QUERIES + query) *
                           a.partial_stride;
}

/* Value @d of a query's result: @x, not divided yet. */
template <class S>
DEVICE void put_value(const struct attend_args &a, const struct attn_item &it, const S &s,
                      uint32_t query, uint32_t d, float x) {
    uint32_t q = it.q0 + query, head = blockIdx.y * a.group + q % a.group, dim = a.shape.head_dim;

    if (query >= it.n_q || d >= dim)
        return;
    if (it.chunk < 0)
        a.o[((size_t)(it.row0 + q / a.group) * a.n_head + head) * dim + d] =
            x * s.all_a[query] / s.all_l[query];
    else
        partial_of(a, it, query)[d] = x;
}

/* m and l of a chunk; it has at most ATTN_QUERIES queries. */
template <class S>
DEVICE void put_weights(const struct attend_args &a, const struct attn_item &it, const S &s) {
    if (it.chunk < 0 || threadIdx.x >= ATTN_QUERIES)
        return;
    float *to = partial_of(a, it, threadIdx.x) + a.shape.head_dim;

    to[0] = s.chunk_m[threadIdx.x];
    to[1] = s.chunk_l[threadIdx.x];
}

template <int D>
DEVICE void attend_item(const struct attend_args &a, const struct attn_item &it,
                        struct Shared<D> &s) {
    constexpr uint32_t part = Shared<D>::part;
    constexpr int n_parts = 32 * D / part, per_thread = ATTN_QUERIES * part / CUDA_THREADS;
    uint32_t tid = threadIdx.x, warp = tid / 32;
    struct Place p = place_of(a, it);
    uint32_t from = it.chunk < 0 ? p.first / ATTN_CHUNK : (uint32_t)it.chunk;
    uint32_t to = it.chunk < 0 ? it.n_chunks : from + 1;
    float all[n_parts][per_thread], o[4 * D][4];

    if (to * ATTN_CHUNK <= p.first) /* no merge looks at it */
        return;
    take_queries<D>(a, it, s);
    if (tid < ATTN_QUERIES) {
        s.all_m[tid] = -INFINITY;
        s.all_l[tid] = 0;
    }
#pragma unroll
    for (int i = 0; i < n_parts * per_thread; i++)
        all[i / per_thread][i % per_thread] = 0;
    sync_block();
    for (uint32_t c = from; c < to; c++) {
        do_tile<D>(a, it, p, s, c * ATTN_CHUNK + warp * ATTN_TILE, o);
        sync_block();
        if (tid < ATTN_QUERIES)
            weigh(s, tid);
#pragma unroll
        for (int n = 0; n < n_parts; n++) {
            put_part<D>(s, o, n);
            sync_block();
#pragma unroll
            for (int i = 0; i < per_thread; i++) {
                uint32_t at = tid + i * CUDA_THREADS, query = at / part;
                struct attn_weights w = {0, s.all_a[query], s.all_b[query]};
                float x = merged(s, query, at % part);

                all[n][i] = it.chunk < 0 ? attn_merge(all[n][i], x, w) : x;
            }
            sync_block();
        }
    }
    if (tid < ATTN_QUERIES)
        end_query(a, it, s, tid);
    sync_block();
#pragma unroll
    for (int n = 0; n < n_parts; n++)
#pragma unroll
        for (int i = 0; i < per_thread; i++) {
            uint32_t at = tid + i * CUDA_THREADS;

            put_value(a, it, s, at / part, n * part + at % part, all[n][i]);
        }
    put_weights(a, it, s);
}

#define MERGE_AHEAD 4u /* chunks whose loads are issued together */

/* Queries of one merge, of the block's key head. */
DEVICE void merge_queries(const struct merge_args &a, const struct attn_merge &it) {
    uint32_t dim = a.head_dim;
    size_t stride = (size_t)a.n_head_kv * ATTN_QUERIES * a.partial_stride;

    for (uint32_t i = threadIdx.x; i < it.n_q * dim; i += CUDA_THREADS) {
        uint32_t query = i / dim, d = i % dim, q = it.q0 + query;
        uint32_t head = blockIdx.y * a.group + q % a.group, row = it.row0 + q / a.group;
        uint32_t first = a.window < UINT32_MAX ? attn_first_key(a.batch->pos[row], a.window) : 0;
        size_t place = (blockIdx.y * ATTN_QUERIES + query) * (size_t)a.partial_stride;
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
    struct merge_args m = {
        a.batch,          a.partial,        a.o,      a.n_head, gridDim.y, a.group,
        a.shape.head_dim, a.partial_stride, a.window, a.sinks};
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

template <int D> DEVICE void attend(const struct attend_args &a, struct Shared<D> &s) {
    uint32_t n = a.batch->n_items;

    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct attn_item &it = a.batch->item[i];

        attend_item<D>(a, it, s);
        if (a.merged)
            finish_item(a, it);
        sync_block();
    }
}

KERNEL(attend_64, struct attend_args, CUDA_THREADS, 2) {
    wait_for_previous();
    alignas(16) SHARED struct Shared<2> s;

    attend<2>(a, s);
}

KERNEL(attend_128, struct attend_args, CUDA_THREADS, 2) {
    wait_for_previous();
    alignas(16) SHARED struct Shared<4> s;

    attend<4>(a, s);
}

KERNEL(attend_256, struct attend_args, CUDA_THREADS, 1) {
    wait_for_previous();
    alignas(16) SHARED struct Shared<8> s;

    attend<8>(a, s);
}

/* -- many queries ------------------------------------------------------------------------------ */

#define WIDE_GROUPS (int)(ATTN_WIDE / ATTN_QUERIES)
#define WIDE_PART 16u /* values of a head whose tiles are computed and merged at a time */

/* Of G groups of 16 queries. ATTN_WIDE of them: in dynamic shared memory, ATTEND_WIDE_SHARED().
 * One group: for heads whose results would take too many registers. */
template <int D, int G> struct WideShared {
    static constexpr uint32_t queries = G * ATTN_QUERIES;
    static constexpr uint32_t stride = 32 * D + 8;

    uint16_t q[2][queries][stride];
    float o[ATTN_TILES][queries][WIDE_PART + 4]; /* rows in different banks */
    float m[ATTN_TILES][queries], l[ATTN_TILES][queries];
    float a[ATTN_TILES][queries], b[ATTN_TILES][queries];
    float chunk_m[queries], chunk_l[queries], all_m[queries], all_l[queries];
    float all_a[queries], all_b[queries];
    uint32_t pos[queries];
};

static_assert(sizeof(struct WideShared<2, WIDE_GROUPS>) == ATTEND_WIDE_SHARED(64), "kernels.h");
static_assert(sizeof(struct WideShared<4, WIDE_GROUPS>) == ATTEND_WIDE_SHARED(128), "kernels.h");

/* As score(), for all groups of 16 queries: a key is loaded once. */
template <int D, int G>
DEVICE void score_wide(const struct Place &p, const struct WideShared<D, G> &s, uint32_t first,
                       uint32_t n_groups, float c[G][4][4]) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, d0 = lane % 4 * 8;

#pragma unroll
    for (int b = 0; b < D; b++) {
        struct vec4 k[4], q[2][2];

#pragma unroll
        for (int j = 0; j < 4; j++)
            k[j] = load_key(p, first + attn_key_of_column(j, g), 32 * b + d0);
#pragma unroll
        for (uint32_t n = 0; n < G; n++) {
            if (n >= n_groups)
                break;
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[i / 2][i % 2] =
                    load16(&s.q[i / 2][n * ATTN_QUERIES + g + i % 2 * 8][32 * b + d0]);
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    mma(c[n][j], q[i][0].x, q[i][1].x, q[i][0].y, q[i][1].y, k[j].x, k[j].y);
                    mma(c[n][j], q[i][0].z, q[i][1].z, q[i][0].w, q[i][1].w, k[j].z, k[j].w);
                }
        }
    }
}

/* The warp's tile: probabilities in registers, m and l in shared memory. */
template <int D, int G>
DEVICE void weigh_tile(const struct attend_args &a, const struct Place &p,
                       struct WideShared<D, G> &s, uint32_t first, uint32_t n_groups,
                       uint32_t h[G][2][4]) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
    float c[G][4][4];

#pragma unroll
    for (uint32_t i = 0; i < 16 * G; i++)
        c[i / 16][i / 4 % 4][i % 4] = 0;
    if (is_seen(p, first))
        score_wide<D, G>(p, s, first, n_groups, c);
#pragma unroll
    for (uint32_t n = 0; n < G; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t query = n * ATTN_QUERIES + g + 8 * i;
            float m, l;

            soften(a, c[n], i, s.pos[query], first, &m, &l);
#pragma unroll
            for (int j = 0; j < 4; j++)
                h[n][i][j] = pack_halves(c[n][j][2 * i], c[n][j][2 * i + 1]);
            if (lane % 4 == 0) {
                s.m[warp][query] = m;
                s.l[warp][query] = l;
            }
        }
}

/* Values [d0, d0 + WIDE_PART) of the warp's tile, into shared memory: a value is loaded once. */
template <int D, int G>
DEVICE void do_part(const struct Place &p, struct WideShared<D, G> &s, uint32_t first, uint32_t d0,
                    uint32_t n_groups, const uint32_t h[G][2][4]) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (uint32_t b = 0; b < WIDE_PART / 8; b++) {
        struct vec4 v = load_value(p, first + 8 * t, d0 + 8 * b + g);

#pragma unroll
        for (uint32_t n = 0; n < G; n++) {
            float o[4] = {0, 0, 0, 0};

            if (n >= n_groups)
                break;
            if (is_seen(p, first)) {
                mma(o, h[n][0][0], h[n][1][0], h[n][0][1], h[n][1][1], v.x, v.y);
                mma(o, h[n][0][2], h[n][1][2], h[n][0][3], h[n][1][3], v.z, v.w);
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
                s.o[warp][n * ATTN_QUERIES + g + j / 2 * 8][8 * b + 2 * t + j % 2] = o[j];
        }
    }
}

template <int D, int G>
DEVICE void attend_wide_item(const struct attend_args &a, const struct attn_item &it,
                             struct WideShared<D, G> &s) {
    constexpr uint32_t queries = G * ATTN_QUERIES;
    constexpr int n_parts = 32 * D / WIDE_PART, per_thread = queries * WIDE_PART / CUDA_THREADS;
    uint32_t tid = threadIdx.x, n_groups = (it.n_q + ATTN_QUERIES - 1) / ATTN_QUERIES;
    struct Place p = place_of(a, it);
    uint32_t from = it.chunk < 0 ? p.first / ATTN_CHUNK : (uint32_t)it.chunk;
    uint32_t to = it.chunk < 0 ? it.n_chunks : from + 1;
    float all[n_parts][per_thread];
    uint32_t h[G][2][4];

    if (to * ATTN_CHUNK <= p.first) /* no merge looks at it */
        return;
    take_queries<D>(a, it, s);
    if (tid < queries) {
        s.all_m[tid] = -INFINITY;
        s.all_l[tid] = 0;
    }
#pragma unroll
    for (int i = 0; i < n_parts * per_thread; i++)
        all[i / per_thread][i % per_thread] = 0;
    sync_block();
    for (uint32_t c = from; c < to; c++) {
        uint32_t first = c * ATTN_CHUNK + tid / 32 * ATTN_TILE;

        weigh_tile<D, G>(a, p, s, first, n_groups, h);
        sync_block();
        if (tid < queries)
            weigh(s, tid);
#pragma unroll
        for (int n = 0; n < n_parts; n++) {
            do_part<D, G>(p, s, first, n * WIDE_PART, n_groups, h);
            sync_block();
#pragma unroll
            for (int i = 0; i < per_thread; i++) {
                uint32_t at = tid + i * CUDA_THREADS, query = at / WIDE_PART;

                if (query >= n_groups * ATTN_QUERIES)
                    break;
                struct attn_weights w = {0, s.all_a[query], s.all_b[query]};
                float x = merged(s, query, at % WIDE_PART);

                all[n][i] = it.chunk < 0 ? attn_merge(all[n][i], x, w) : x;
            }
            sync_block();
        }
    }
    if (tid < queries)
        end_query(a, it, s, tid);
    sync_block();
#pragma unroll
    for (int n = 0; n < n_parts; n++)
#pragma unroll
        for (int i = 0; i < per_thread; i++) {
            uint32_t at = tid + i * CUDA_THREADS;

            put_value(a, it, s, at / WIDE_PART, n * WIDE_PART + at % WIDE_PART, all[n][i]);
        }
    put_weights(a, it, s);
}

template <int D> DEVICE void attend_wide(const struct attend_args &a) {
    struct WideShared<D, WIDE_GROUPS> &s = *(struct WideShared<D, WIDE_GROUPS> *)dynamic_shared();
    uint32_t n = a.batch->n_items;

    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        attend_wide_item<D, WIDE_GROUPS>(a, a.batch->item[i], s);
        sync_block();
    }
}

KERNEL(attend_wide_64, struct attend_args, CUDA_THREADS, 1) {
    wait_for_previous();
    attend_wide<2>(a);
}

KERNEL(attend_wide_128, struct attend_args, CUDA_THREADS, 1) {
    wait_for_previous();
    attend_wide<4>(a);
}

KERNEL(attend_512, struct attend_args, CUDA_THREADS, 1) {
    wait_for_previous();
    alignas(16) SHARED struct WideShared<16, 1> s;
    uint32_t n = a.batch->n_items;

    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct attn_item &it = a.batch->item[i];

        attend_wide_item<16, 1>(a, it, s);
        if (a.merged)
            finish_item(a, it);
        sync_block();
    }
}

KERNEL(merge, struct merge_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t n = a.batch->n_merges;

    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        struct attn_merge it = a.batch->merge[i];

        merge_queries(a, it);
    }
}
