/*
 * attention_wide - prefill attention for heads of up to 128 values: many queries per block, with
 * the merge tree and the bits of attention.cu.
 *
 * A thread block has 128 queries, 16 for each warp. They belong to one sequence and go over all its
 * chunks, or to several sequences with a common prefix and go over a run of the chunks that these
 * share. A warp keeps the results of its queries in registers, so the block goes over the tiles in
 * order and each tile is loaded once for all warps:
 *
 *     cp.async     tile i + 2 (as codes: i + 3) to shared memory, keys and values
 *     wide_decode() tile i + 1: codes of q8_0 or q4_0 become halves, once for all warps
 *     add_tile()   tile i: each warp computes scores, softmax and o = p v for its 16 queries, and
 *                  merges each eight values into the chunk as soon as mma has produced them
 *     end_chunk()  after eight tiles, merges the chunk into the result
 *
 * A tile costs one barrier, and nothing is exchanged between warps. A warp skips a tile that none
 * of its queries sees, which does not change any bit.
 *
 * Output. An item over all chunks ends with the final result. A run that begins with chunk 0 yields
 * one partial result, since it is a prefix of the merge order; a run in the middle yields one for
 * each chunk, since chunks must be merged from left to right.
 *
 * Chunk and result of 16 queries take 128 registers of a lane for heads of 128 values. The kernel
 * is bound by instructions: for each tile and warp, 64 mma, the softmax of 512 scores and the merge
 * of 2048 values.
 */

#include "engine/ops/attention/attention_wide.cuh"

#define STAGES ATTEND_WIDE_STAGES

/* A tile as warps read it, for heads of up to 32 D values. Rows of keys are padded so that they
 * begin in different banks. */
template <int D> struct alignas(16) Tile {
    uint16_t keys[ATTN_TILE][32 * D + 32], values[32 * D][ATTN_TILE];
};

/* A tile as it is in pages, of keys and values of formats K and V. */
template <int D, int K, int V> struct alignas(16) Codes {
    uint8_t keys[ATTN_TILE][4 * D * PAGE_BITS(K)], values[4 * D * PAGE_BITS(V)][ATTN_TILE];
    uint16_t key_scales[ATTN_TILE * D]; /* [key][dim / 32] */
    uint16_t value_scales[D][ATTN_TILE];
};

/* Tiles that are being copied, and decoded tiles. Tile i is in element i % (number of elements). */
template <int D, int K, int V> struct Ring {
    Tile<D> tile[2];
    Codes<D, K, V> codes[STAGES];

    static_assert(sizeof(tile) + sizeof(codes) == ATTEND_WIDE_SHARED(32 * D, K, V), "as launched");
};

template <int D> struct Ring<D, PAGE_F16, PAGE_F16> {
    Tile<D> tile[STAGES];

    static_assert(sizeof(tile) == ATTEND_WIDE_SHARED(32 * D, PAGE_F16, PAGE_F16), "as launched");
};

/* Returns where key @key of the tile that begins with key @first is. */
DEVICE struct Group wide_key_at(const struct Place &p, uint32_t first, uint32_t key) {
    struct Group at = attention_group_at(p, first + (key & ~7u));

    return {at.page, at.slot + key % 8};
}

/* Starts copying the tile that begins with key @first. */
template <int D> DEVICE void wide_fetch(struct Place p, Tile<D> &to, uint32_t first) {
    /* in pieces of 16 bytes */
    constexpr uint32_t per_key = 4 * D, at_once = CUDA_THREADS / per_key;
    uint32_t d = threadIdx.x % per_key * 8, from = or_first(d, p.dim) * 2;
    uint32_t group = threadIdx.x % 4 * 8;
    struct Group of_values = attention_group_at(p, first + group);
    const uint8_t *values = p.values + of_values.page + of_values.slot * 2u;

#pragma unroll
    for (uint32_t n = 0; n < ATTN_TILE / at_once; n++) {
        uint32_t key = threadIdx.x / per_key + n * at_once;
        struct Group at = wide_key_at(p, first, key);

        copy_async(&to.keys[key][d], p.keys + at.page + at.slot * p.dim * 2u + from);
    }
#pragma unroll
    for (uint32_t n = 0; n < 32 * D * 4 / CUDA_THREADS; n++) {
        uint32_t row = threadIdx.x / 4 + n * CUDA_THREADS / 4;

        copy_async(&to.values[row][group], values + or_first(row, p.dim) * p.tokens * 2u);
    }
}

/* Starts copying the codes of the tile that begins with key @first. Pages have at least 16 tokens,
 * so codes of 16 keys are contiguous. */
template <int D, int K, int V>
DEVICE void wide_fetch(struct Place p, Codes<D, K, V> &to, uint32_t first) {
    /* number of 16-byte vectors of a key, of all keys and of all values */
    constexpr uint32_t per_key = D * PAGE_BITS(K) / 4, keys = ATTN_TILE * per_key;
    constexpr uint32_t values = 8 * D * PAGE_BITS(V);
    uint32_t n = p.dim / 32, tid = threadIdx.x, last = p.last & ~15u;

    static_assert(keys <= CUDA_THREADS && values <= CUDA_THREADS, "a thread brings one of each");
    if (keys == CUDA_THREADS || tid < keys) {
        uint32_t key = tid / per_key, d = tid % per_key * 16, bytes = p.dim / 8 * PAGE_BITS(K);
        struct Group at = wide_key_at(p, first, key);

        copy_async(&to.keys[key][d], p.keys + at.page + at.slot * bytes + or_first(d, bytes));
    }
    if (values == CUDA_THREADS || tid < values) {
        uint32_t row = tid / 2, key = tid % 2 * 16;
        struct Group at = attention_group_at(p, first + key < last ? first + key : last);

        copy_async(&to.values[row][key], p.values + at.page +
                                             or_first(row, p.dim / 8 * PAGE_BITS(V)) * p.tokens +
                                             at.slot);
    }
    if (tid < 4 * n) {
        uint32_t key = tid / n * 8;
        struct Group at = wide_key_at(p, first, key);

        copy_async(&to.key_scales[key * n + tid % n * 8],
                   p.key_scales + at.page + (at.slot * n + tid % n * 8) * 2u);
    } else if (tid >= 32 && tid < 32 + 4 * D) {
        uint32_t block = (tid - 32) / 4, key = tid % 4 * 8;
        struct Group at = wide_key_at(p, first, key);

        copy_async(&to.value_scales[block][key],
                   p.value_scales + at.page + (or_first(block, n) * p.tokens + at.slot) * 2u);
    }
}

template <int D, int K, int V>
DEVICE void wide_fetch(struct Place p, Ring<D, K, V> &ring, uint32_t tile) {
    if constexpr (K == PAGE_F16)
        wide_fetch<D>(p, ring.tile[tile % STAGES], tile * ATTN_TILE);
    else
        wide_fetch<D, K, V>(p, ring.codes[tile % STAGES], tile * ATTN_TILE);
}

/* Converts the codes of a tile with heads of @dim values to halves, eight at a time. */
template <int D, int K, int V>
DEVICE void wide_decode(const Codes<D, K, V> &from, Tile<D> &to, uint32_t dim) {
    constexpr uint32_t times = ATTN_TILE * 4 * D / CUDA_THREADS;
    constexpr uint32_t pieces = 16 * D * PAGE_BITS(V); /* a piece: eight keys of a row of bytes */
    uint32_t n = dim / 32;

#pragma unroll
    for (uint32_t i = 0; i < times; i++) {
        uint32_t piece = threadIdx.x + i * CUDA_THREADS, key = piece / (4 * D);
        uint32_t d = piece % (4 * D) * 8;

        store16(&to.keys[key][d], scale_key<K>(&from.keys[key][d / 8 * PAGE_BITS(K)],
                                               from.key_scales[key * n + or_first(d / 32, n)]));
    }
#pragma unroll
    for (uint32_t i = 0; i < (pieces + CUDA_THREADS - 1) / CUDA_THREADS; i++) {
        if (pieces < CUDA_THREADS && threadIdx.x >= pieces)
            break;
        uint32_t piece = threadIdx.x + i * CUDA_THREADS, row = piece / 4, key = piece % 4 * 8;
        struct vec4 s = load16(&from.value_scales[row / (4 * PAGE_BITS(V))][key]), v[2];
        uint32_t q[2];

        load8(&from.values[row][key], q);
        if constexpr (PAGE_BITS(V) == 8) {
            store16(&to.values[row][key], scale_words<V>(q, s));
        } else {
            scale_pair<V>(q, s, &v[0], &v[1]);
            store16(&to.values[row / 8 * 16 + row % 8][key], v[0]);
            store16(&to.values[row / 8 * 16 + row % 8 + 8][key], v[1]);
        }
    }
}

/* Computes the tile that begins with key @first for the warp's queries from @query on, and merges
 * it into @chunk. @masked as in soften(). */
template <int D>
DEVICE void add_tile(const struct attend_args &a, const struct Shared<D> &s, const Tile<D> &tile,
                     uint32_t query, uint32_t first, bool masked, Result<D> &chunk) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float c[4][4];
    uint32_t h[2][4]; /* p, rounded to halves */
    struct Weights w[2];

#pragma unroll
    for (int b = 0; b < D; b++) {
        /* Each thread has its own element, ordered by warp and lane. */
        struct vec4 q0 = load16(s.q[b][0][0] + anew(threadIdx.x));
        struct vec4 q1 = load16(s.q[b][1][0] + anew(threadIdx.x));

#pragma unroll
        for (int j = 0; j < 4; j++) {
            struct vec4 k = load16(&tile.keys[attn_key_of_column(j, g)][32 * b + 8 * t]);

            if (b == 0)
                mma_32_first(c[j], q0, q1, k);
            else
                mma_32(c[j], q0, q1, k);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m, l;

        soften(a, c, i, s.reach[query + g + 8 * i], first, masked, &m, &l);
#pragma unroll
        for (int j = 0; j < 4; j++)
            h[i][j] = pack_halves(c[j][2 * i], c[j][2 * i + 1]);
        w[i] = merge_weights(chunk.m[i], m);
        chunk.l[i] = merge_with(chunk.l[i], l, w[i].a, w[i].b);
        chunk.m[i] = w[i].max;
    }
#pragma unroll
    for (int b = 0; b < 4 * D; b++) {
        struct vec4 v = load16(&tile.values[8 * b + g][8 * t]);
        float o[4];

        mma_first(o, h[0][0], h[1][0], h[0][1], h[1][1], v.x, v.y);
        mma(o, h[0][2], h[1][2], h[0][3], h[1][3], v.z, v.w);
#pragma unroll
        for (int i = 0; i < 4; i++)
            chunk.o[b][i] = merge_with(chunk.o[b][i], o[i], w[i / 2].a, w[i / 2].b);
    }
}

template <int D, int K, int V>
DEVICE void wide_attend_item(const struct attend_args &a, struct Shared<D> &s,
                             Ring<D, K, V> &ring) {
    constexpr bool coded = K != PAGE_F16;
    constexpr uint32_t ahead = coded ? STAGES : STAGES - 1,
                       n_tiles = sizeof(ring.tile) / sizeof(Tile<D>);
    const struct Place &p = s.place;
    uint32_t warp = threadIdx.x / 32, query = warp * ATTN_QUERIES;
    uint32_t low = s.item.chunk < 0 ? 0 : (uint32_t)s.item.chunk * ATTN_TILES;
    uint32_t from = p.first / ATTN_TILE > low ? p.first / ATTN_TILE : low;
    Result<D> all, part;

    if (from >= s.n_tiles) /* the item is before the windows of all queries */
        return;
    for (uint32_t i = from; i < from + ahead; i++) {
        if (i < s.n_tiles)
            wide_fetch<D, K, V>(p, ring, i);
        copy_commit();
    }
    load_reaches(a, s.item, s);
    attention_load_queries<D>(a, s.item, s);
    if (threadIdx.x < WARPS)
        wide_find_range<D>(a, s, ATTN_QUERIES);
    clear<D>(all);
    clear<D>(part);
    if constexpr (coded) {
        copy_wait<STAGES - 1>();
        sync_block();
        wide_decode<D, K, V>(ring.codes[from % STAGES], ring.tile[from % n_tiles], p.dim);
    }
    for (uint32_t i = from; i < s.n_tiles; i++) {
        uint32_t first = i * ATTN_TILE;

        copy_wait<STAGES - 2>();
        /* tile i has arrived (as codes: tile i + 1), and all warps have read tile i - 1 */
        sync_block();
        if (i + ahead < s.n_tiles)
            wide_fetch<D, K, V>(p, ring, i + ahead);
        copy_commit();
        if constexpr (coded)
            if (i + 1 < s.n_tiles)
                wide_decode<D, K, V>(ring.codes[(i + 1) % STAGES], ring.tile[(i + 1) % n_tiles],
                                     p.dim);
        uint32_t low = s.low[warp], high = s.high[warp];
        if (low <= high && first <= high && first + ATTN_TILE > s.low_key[warp])
            add_tile<D>(a, s, ring.tile[i % n_tiles], query, first,
                        first + ATTN_TILE - 1 > low || first < s.high_key[warp], part);
        if ((i + 1) % ATTN_TILES == 0 || i + 1 == s.n_tiles)
            end_chunk<D>(a, s, query, i / ATTN_TILES, i + 1 == s.n_tiles, part, all);
    }
}

#define ATTEND_WIDE(NAME, K, V, D)                                                                 \
    KERNEL(NAME, struct attend_args, CUDA_THREADS, 1) {                                            \
        wait_for_previous();                                                                       \
        SHARED struct Shared<D> s;                                                                 \
        Ring<D, K, V> &ring = *(Ring<D, K, V> *)dynamic_shared();                                  \
                                                                                                   \
        wide_attend<D>(a, s, [&] { wide_attend_item<D, K, V>(a, s, ring); });                      \
    }

FOR_PAGES(ATTEND_WIDE, attend_wide_64, 2)
FOR_PAGES(ATTEND_WIDE, attend_wide_128, 4)
