#pragma once

/*
 * attention - device functions that all attention kernels share: loading keys and values from
 * pages, the softmax of a tile, and the merging of tiles and chunks (attention.cu has the idea).
 *
 * Layout. Within a page, a key head has its keys as [token][dim] and its values as [dim][token], so
 * that both are loaded 16 bytes at a time in the operand order of mma; scales of coded
 * formats are in areas of their own. Eight successive keys from a multiple of 8 on are always in
 * one page (struct Group), whatever the page size.
 *
 * Lanes. As in the PTX manual for mma.m16n8k16, lane 4 g + t has rows g and g + 8 of the 16
 * queries; its accumulators are scores of eight successive keys 8 t .. 8 t + 7 of a tile, because
 * the columns of the four products are permuted (attn_key_of_column()).
 *
 * Scores are kept in log2: queries are multiplied by scale * log2(e) once, and exp2 replaces exp.
 *
 * Queries beyond the item's last one compute with zeros and the reach of the item's first row; keys
 * beyond the last one seen are replaced by keys of the last group. Both are finite, so that no lane
 * needs a branch, and neither is stored or weighted.
 */

#include "engine/cuda/rows/rows.cuh"
#include "engine/ops/attention/kernels_attention.h"

/* Addresses of the keys and values of the block's key head, and the range that its queries see. */
struct Place {
    /* Addresses in page 0; the scales are those of 8-bit and 4-bit formats. */
    const uint8_t *keys, *values, *key_scales, *value_scales;
    /* page table of the sequence */
    const uint32_t *table;
    /* tokens of a page: 1 << shift */
    uint32_t page_bytes, dim, tokens, shift;
    /* range of the keys that any query of the block sees */
    uint32_t first, last;
};

/* Eight successive keys of one page, from a multiple of 8 on. */
struct Group {
    /* bytes from page 0 */
    size_t page;
    /* index of the first key in its page */
    uint32_t slot;
};

/* Returns the group of @key, a multiple of 8. Beyond the last group: the last one, whose keys are
 * finite; the caller gives them no weight. */
DEVICE struct Group attention_group_at(const struct Place &p, uint32_t key) {
    uint32_t last = p.last & ~7u, k = key < last ? key : last;

    return {(size_t)p.table[k >> p.shift] * p.page_bytes, k & (p.tokens - 1)};
}

/* Prefetches the keys of the tile that begins with @first, of format K, to the L2 cache; called by
 * a warp. */
template <int K> DEVICE void prefetch_keys(const struct Place &p, uint32_t first) {
    uint32_t each = p.tokens < ATTN_TILE ? p.tokens : ATTN_TILE,
             key_bytes = p.dim * PAGE_BITS(K) / 8;

    for (uint32_t key = first; key < first + ATTN_TILE; key += each) {
        struct Group at = attention_group_at(p, key);

        prefetch_bytes(p.keys + at.page + (at.slot & ~(each - 1)) * key_bytes, each * key_bytes);
    }
}

/* Number of words of load_key_words() for keys of format K. */
template <int K> constexpr int KEY_WORDS = K == PAGE_F16 ? 4 : PAGE_BITS(K) / 4 + 1;

/* Loads values @d .. @d + 7 of key @i of a group as stored: 16 bytes, or eight codes and a
 * scale. */
template <int K>
DEVICE void load_key_words(const struct Place &p, const struct Group &at, uint32_t i, uint32_t d,
                           uint32_t *words) {
    uint32_t slot = at.slot + i, value = slot * p.dim + d;

    if constexpr (K != PAGE_F16) {
        const uint16_t *scales = (const uint16_t *)(p.key_scales + at.page);

        load_codes<K>(p.keys + at.page + value / 8 * PAGE_BITS(K), words);
        words[PAGE_BITS(K) / 4] = scales[slot * (p.dim / 32) + d / 32];
    } else {
        struct vec4 v = load16(p.keys + at.page + value * 2u);

        words[0] = v.x;
        words[1] = v.y;
        words[2] = v.z;
        words[3] = v.w;
    }
}

/* Converts the words of load_key_words() to halves. */
template <int K> DEVICE struct vec4 key_of_words(const uint32_t *words) {
    if constexpr (K != PAGE_F16)
        return scale_key_words<K>(words, words[PAGE_BITS(K) / 4]);
    else
        return {words[0], words[1], words[2], words[3]};
}

/* Loads a key's words and converts them to halves. */
template <int K>
DEVICE struct vec4 load_key(const struct Place &p, const struct Group &at, uint32_t i, uint32_t d) {
    uint32_t words[4];

    load_key_words<K>(p, at, i, d, words);
    return key_of_words<K>(words);
}

/* Returns the address of the scales of value @d of the keys of a group; 8-bit and 4-bit formats
 * only. */
DEVICE const uint8_t *value_scales(const struct Place &p, const struct Group &at, uint32_t d) {
    return p.value_scales + at.page + (d / 32 * p.tokens + at.slot) * 2u;
}

/* Loads value @d of the eight keys of a group; a value is half a word or a byte. */
template <int V>
DEVICE struct vec4 load_value(const struct Place &p, const struct Group &at, uint32_t d) {
    uint32_t value = d * p.tokens + at.slot;

    if constexpr (V == PAGE_F16) {
        return load16_device(p.values + at.page + value * 2u);
    } else {
        uint32_t q[2];

        load8_device(p.values + at.page + value, q);
        return scale_words<V>(q, load16_device(value_scales(p, at, d)));
    }
}

/* Loads values @d and @d + 8 of the eight keys of a group to @v; beyond the head's last value, any
 * of its values. @d % 16 must be below 8. */
template <int V>
DEVICE void load_two_values(const struct Place &p, const struct Group &at, uint32_t d,
                            struct vec4 *v) {
    uint32_t last = p.dim - 1;

    if constexpr (PAGE_BITS(V) == 4) {
        uint32_t row = page_value_row(d < last ? d : last), q[2];

        load8_device(p.values + at.page + row * p.tokens + at.slot, q);
        scale_pair<V>(q, load16_device(value_scales(p, at, 2 * row)), v, v + 1);
    } else {
        v[0] = load_value<V>(p, at, d < last ? d : last);
        v[1] = load_value<V>(p, at, d + 8 < last ? d + 8 : last);
    }
}

/* Returns @d, or 0 if a head of @dim values has no value @d; the caller multiplies by zero or drops
 * what it computes from it. @dim is more than half of 32 D if that is above 64. */
template <int D> DEVICE uint32_t attention_inside(int block, uint32_t d, uint32_t dim) {
    return (D > 2 && 2 * block < D) || d < dim ? d : 0;
}

#define LOG2_E 1.44269504088896341f

/* Returns four values of a query, scaled, as halves in two words. */
DEVICE void query_halves(const struct attend_args &a, float x[4], uint32_t words[2]) {
    float factor = a.scale * LOG2_E; /* scores are exponents of two */

#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = finite_half(x[i] * factor);
    words[0] = pack_halves(x[0], x[1]);
    words[1] = pack_halves(x[2], x[3]);
}

/* Loads values @d .. @d + 3 of the query of row and head @at, scaled, as halves in two words. */
DEVICE void query_values(const struct attend_args &a, size_t at, uint32_t d, uint32_t words[2]) {
    float x[4];

    if (!a.turned)
        load_four(a.q + at * a.shape.head_dim + d, x);
    else if (d < a.n_value)
        load_four(a.q + at * a.n_value + d, x);
    else
        load_four(a.turned + at * a.turned_stride + d - a.n_value, x);
    query_halves(a, x, words);
}

/* Returns row * n_head + head of query @query of an item. */
DEVICE size_t query_place(const struct attend_args &a, const struct attn_item &it, uint32_t query) {
    uint32_t n = it.q0 + query, head = blockIdx.y * a.group + n % a.group;

    return (size_t)(it.row0 + n / a.group) * a.n_head + head;
}

/* The first and the last key that a query sees. */
struct Reach {
    uint32_t first, last;
};

/* Returns the last key that query @query of an item sees: its own, or with two_way that of its
 * picture's last row. */
DEVICE uint32_t last_key_of(const struct attend_args &a, const struct attn_item &it,
                            uint32_t query) {
    uint32_t row = it.row0 + (it.q0 + query) / a.group;

    return a.two_way ? a.batch->last[row] : a.batch->pos[row];
}

/* Returns the keys that query @query of an item sees; beyond the last query, those of the item's
 * first row. */
DEVICE struct Reach query_reach(const struct attend_args &a, const struct attn_item &it,
                                uint32_t query) {
    uint32_t row = it.row0 + (it.q0 + query) / a.group;
    uint32_t pos = query < it.n_q ? a.batch->pos[row] : it.pos0;

    return {attn_first_key(pos, a.window, a.chunked),
            query < it.n_q ? last_key_of(a, it, query) : pos};
}

/* Stores the reach of each of the block's queries in s.reach. */
template <class S>
DEVICE void load_reaches(const struct attend_args &a, const struct attn_item &it, S &s) {
    if (threadIdx.x < S::queries)
        s.reach[threadIdx.x] = query_reach(a, it, threadIdx.x);
}

/* Loads the block's queries to s.q in half precision, zero where there is none. s.q has, for each
 * block of 32 values and each of its two products, the operands of the lanes of each group of 16
 * queries in the order of mma: assembling an operand from two loads would cost four moves for each
 * mma. */
template <int D, class S>
DEVICE void attention_load_queries(const struct attend_args &a, const struct attn_item &it, S &s) {
    uint32_t warp = threadIdx.x / 32;

    /* queries first + warp and first + warp + 8 */
    for (uint32_t first = 0; first < S::queries; first += 16)
        for (uint32_t d = threadIdx.x % 32 * 4; d < 32 * D; d += 32 * 4) {
            uint32_t low[2] = {0, 0}, high[2] = {0, 0}, query = first + warp;

            if (query < it.n_q && d < a.shape.head_dim)
                query_values(a, query_place(a, it, query), d, low);
            if (query + 8 < it.n_q && d < a.shape.head_dim)
                query_values(a, query_place(a, it, query + 8), d, high);
            store16(s.q[d / 32][d / 4 % 2][first / 16][warp * 4 + d % 32 / 8],
                    {low[0], high[0], low[1], high[1]});
        }
}

/* Returns true if any of the block's queries sees a key of the tile that begins with @first. */
DEVICE bool attention_is_seen(const struct Place &p, uint32_t first) {
    return first <= p.last && first + ATTN_TILE > p.first;
}

/* Computes the softmax of a tile for query g (@half 0) or g + 8 (1), which sees the keys @reach:
 * replaces the scores c by p, and returns m and l. @masked: the query may not see all keys of the
 * tile. */
DEVICE void soften(const struct attend_args &a, float c[4][4], int half, struct Reach reach,
                   uint32_t first, bool masked, float *m_out, float *l_out) {
    uint32_t t = threadIdx.x % 4;
    float m = -INFINITY, l = 0, *x[8]; /* x: addresses of the query's scores */

#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = &c[i / 2][2 * half + i % 2];
    if (a.holes)
#pragma unroll
        for (int i = 0; i < 8; i++)
            *x[i] = fabsf(*x[i]) <= FLT_MAX ? *x[i] : -INFINITY;
    if (a.cap != 0)
#pragma unroll
        for (int i = 0; i < 8; i++)
            *x[i] = mx_soft_cap(*x[i] * (1.0f / LOG2_E), a.cap) * LOG2_E;
    if (masked)
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            *x[i] = first + 8 * t + i - reach.first <= reach.last - reach.first ? *x[i] : -INFINITY;
#pragma unroll
    for (int i = 0; i < 8; i++)
        m = fmaxf(m, *x[i]);
    m = warp_max<4>(m);
    float base = m > -INFINITY ? m : 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        *x[i] = exp2_fast(*x[i] - base);
        l += *x[i];
    }
    *m_out = m;
    *l_out = warp_sum<4>(l);
}

/* Merging (m, l, o) into (M, L, O): M' = max(M, m), O' = O a + o b, L' = L a + l b with a = 2^(M -
 * M') and b = 2^(m - M'); m = -inf: nothing to merge, a = 1 and b = 0. */
struct Weights {
    float max, a, b;
};

/* Returns M', a and b for M @old_max. Avoids -inf - -inf, which is NaN. */
DEVICE struct Weights merge_weights(float old_max, float m) {
    float max = fmaxf(old_max, m), base = max > -INFINITY ? max : 0;

    return {max, m > -INFINITY ? exp2_fast(old_max - base) : 1.0f, exp2_fast(m - base)};
}

/* Returns O' or L' from O or L (@old) and o or l (@x); fma does not round the product x b. */
DEVICE float merge_with(float old, float x, float a, float b) {
    return fmaf(x, b, old * a);
}

/* Computes the weights with which a query's tiles are merged into its chunk, and the chunk into its
 * whole result. */
template <class S> DEVICE void attention_weigh(S &s, uint32_t query) {
    float max = -INFINITY, l = 0;

    for (uint32_t w = 0; w < ATTN_TILES; w++) {
        struct Weights x = merge_weights(max, s.m[w][query]);

        l = merge_with(l, s.l[w][query], x.a, x.b);
        max = x.max;
        s.a[w][query] = x.a;
        s.b[w][query] = x.b;
    }
    struct Weights x = merge_weights(s.all_m[query], max);
    s.chunk_m[query] = max;
    s.chunk_l[query] = l;
    s.all_l[query] = merge_with(s.all_l[query], l, x.a, x.b);
    s.all_m[query] = x.max;
    s.all_a[query] = x.a;
    s.all_b[query] = x.b;
}

/* Returns the attention sink of a query's head in the unit of scores (log2); a.sinks is set. */
DEVICE float sink_of(const struct attend_args &a, uint32_t query) {
    return a.sinks[blockIdx.y * a.group + query % a.group] * LOG2_E;
}

/* Merges the sink of a query, if there is one. The final result is then the merged values times
 * all_a, divided by all_l. */
template <class S>
DEVICE void end_query(const struct attend_args &a, const struct attn_item &it, S &s,
                      uint32_t query) {
    s.all_a[query] = 1;
    if (!a.sinks)
        return;
    struct Weights x = merge_weights(s.all_m[query], sink_of(a, it.q0 + query));
    s.all_l[query] = merge_with(s.all_l[query], 1.0f, x.a, x.b);
    s.all_a[query] = x.a;
}

/* Returns the first key that any query of an item sees. */
DEVICE uint32_t first_key_of(const struct attend_args &a, const struct attn_item &it) {
    return attn_first_key(it.pos0 + it.q0 / a.group, a.window, a.chunked);
}

/* Fills @p with the addresses of key head @head of the sequence whose page table begins at entry
 * @page0. */
DEVICE void find_pages(struct Place &p, const struct attend_args &a, uint32_t head,
                       uint32_t page0) {
    const struct page_shape &s = a.shape;

    p.keys = a.pages + page_offset(&s, head, PAGE_K);
    p.values = a.pages + page_offset(&s, head, PAGE_V);
    p.key_scales = a.pages + page_offset(&s, head, PAGE_K_SCALES);
    p.value_scales = a.pages + page_offset(&s, head, PAGE_V_SCALES);
    p.table = a.batch->page_table[a.cls] + page0;
    p.page_bytes = (uint32_t)page_layer_bytes(&s);
    p.dim = s.head_dim;
    p.tokens = s.page_tokens;
    p.shift = 4 + (s.page_tokens > 16) + (s.page_tokens > 32); /* of 16, 32 or 64 tokens */
}

/* Fills @p for an item; @first: first_key_of(). */
DEVICE void find_place(struct Place &p, const struct attend_args &a, const struct attn_item &it,
                       uint32_t first) {
    find_pages(p, a, blockIdx.y, it.page0);
    p.first = first;
    p.last = it.pos0 + (it.q0 + it.n_q - 1) / a.group;
    if (a.two_way && p.last < last_key_of(a, it, it.n_q - 1))
        p.last = last_key_of(a, it, it.n_q - 1);
}

/* Returns the offset, in floats, of query @place in partial result @index of the block's key
 * head. */
DEVICE size_t partial_at(const struct attend_args &a, uint32_t index, uint32_t place) {
    uint32_t at = index + place / a.few;

    return (((size_t)at * gridDim.y + blockIdx.y) * a.few + place % a.few) * a.partial_stride;
}

/* Returns the address of query @query in the item's first partial result. */
DEVICE float *partial_of(const struct attend_args &a, const struct attn_item &it, uint32_t query) {
    return a.partial + partial_at(a, it.partial, it.shared.place + query);
}

/* Returns where the values of query @query's result go: to o, or to the partial result of the
 * item's chunk. */
DEVICE float *attention_result(const struct attend_args &a, const struct attn_item &it,
                               uint32_t query) {
    if (it.chunk >= 0)
        return partial_of(a, it, query);
    return a.o + query_place(a, it, query) * a.n_value;
}

/* Writes m and l of the item's chunk to its partial result. */
template <class S>
DEVICE void store_weights(const struct attend_args &a, const struct attn_item &it, const S &s) {
    if (it.chunk < 0 || threadIdx.x >= a.few)
        return;
    float *to = partial_of(a, it, threadIdx.x) + a.n_value;

    to[0] = s.chunk_m[threadIdx.x];
    to[1] = s.chunk_l[threadIdx.x];
}

/* Place of a query's packed values: @row of the operand, from column @column on. */
struct PackedQuery {
    uint32_t row, column;

    /* Finds query @q of the sequence that begins with row @row0. */
    static MEMBER PackedQuery of(const struct attend_args &a, uint32_t row0, uint32_t q) {
        return {row0 + q / a.group, (blockIdx.y * a.group + q % a.group) * a.n_value};
    }
    /* Returns where values @d and @d + 2 are packed (@d % 4 is 0), as write_quads() packs rows;
     * values @d + 1 and @d + 3 are apart() halves further. */
    MEMBER uint16_t *place(const struct attend_args &a, uint32_t d) const {
        uint32_t n = a.n_head * a.n_value, i = column + d;
        uint32_t group = row / PACK_ROWS * (n / 32) + i / 32;

        if (a.cores)
            return core_place(a.packed, row, n, i);
        return a.packed + ((group * PACK_ROWS + row % PACK_ROWS) * 32 + pack_place(i % 32));
    }
    static MEMBER uint32_t apart(const struct attend_args &a) {
        return a.cores ? CORE_NEXT : 2;
    }
    /* Called by the thread that packs value @d, with all others. */
    MEMBER void end(const struct attend_args &a, uint32_t d) const {
        if (column + d == 0)
            a.packed_scale[row] = 1.0f / a.fixed;
        if (a.cores)
            fence_bulk(); /* the product reads them by bulk copies */
    }
};

/* Packs N values, 2 or 4, of query @query of the item or merge @it from value @d on. */
template <int N, class ITEM>
DEVICE void attention_pack(const struct attend_args &a, const ITEM &it, uint32_t query, uint32_t d,
                           const float v[N]) {
    PackedQuery to = PackedQuery::of(a, it.row0, it.q0 + query);
    uint16_t *at = to.place(a, d / 4 * 4) + d % 4 / 2, *next = at + to.apart(a);

    if constexpr (N == 4) {
        *(uint32_t *)at = pack_halves(v[0] * a.fixed, v[2] * a.fixed);
        *(uint32_t *)next = pack_halves(v[1] * a.fixed, v[3] * a.fixed);
    } else {
        *at = (uint16_t)pack_half(v[0] * a.fixed);
        *next = (uint16_t)pack_half(v[1] * a.fixed);
    }
    to.end(a, d);
}

#define MERGE_AHEAD 4u /* chunks whose loads are issued together */

/* Computes values @d .. @d + 3 of query @query of a merge: shared chunks first, then its own. */
DEVICE void merge_values(const struct attend_args &a, const struct attn_merge &it, uint32_t query,
                         uint32_t d) {
    uint32_t dim = a.n_value, q = it.q0 + query, head = blockIdx.y * a.group + q % a.group;
    uint32_t row = it.row0 + q / a.group, n_shared = it.shared.n_results;
    uint32_t n = n_shared + it.n_chunks - it.shared.n_chunks;
    uint32_t key = 0;

    if (a.window < UINT32_MAX)
        key = attn_first_key(a.batch->pos[row], a.window, a.chunked);
    size_t stride = (size_t)gridDim.y * a.few * a.partial_stride, step = it.shared.step * stride;
    const float *own = a.partial + partial_at(a, it.partial, query);
    const float *shared = a.partial + partial_at(a, it.shared.partial, it.shared.place + query);
    float max = -INFINITY, l = 0, o[4] = {};

    for (uint32_t r = attn_first_result(&it.shared, key / ATTN_CHUNK); r < n; r += MERGE_AHEAD) {
        float next[MERGE_AHEAD][2 + 4];

#pragma unroll
        for (uint32_t k = 0; k < MERGE_AHEAD; k++) {
            bool there = r + k < n;
            uint32_t at = there ? r + k : r;
            const float *p = at < n_shared ? shared + at * step : own + (at - n_shared) * stride;

            next[k][0] = there ? p[dim] : -INFINITY;
            next[k][1] = p[dim + 1];
            load_four(p + d, next[k] + 2);
        }
#pragma unroll
        for (uint32_t k = 0; k < MERGE_AHEAD; k++) {
            struct Weights w = merge_weights(max, next[k][0]);

            max = w.max;
            l = merge_with(l, next[k][1], w.a, w.b);
#pragma unroll
            for (uint32_t v = 0; v < 4; v++)
                o[v] = merge_with(o[v], next[k][2 + v], w.a, w.b);
        }
    }
    if (a.sinks) { /* merge the sink as end_query() does */
        struct Weights w = merge_weights(max, sink_of(a, q));

        l = merge_with(l, 1.0f, w.a, w.b);
#pragma unroll
        for (uint32_t v = 0; v < 4; v++)
            o[v] *= w.a;
    }
#pragma unroll
    for (uint32_t v = 0; v < 4; v++)
        o[v] /= l;
    if (a.packed)
        attention_pack<4>(a, it, query, d, o);
    else
        store_some<4>(&a.o[((size_t)row * a.n_head + head) * dim + d], o);
}
