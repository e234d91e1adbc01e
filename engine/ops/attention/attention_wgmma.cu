/*
 * attention_wgmma - attention_wide for Hopper, by wgmma, with the same bits. An experiment:
 * WEFT_CUDA_ATTEND_WGMMA=1 turns it on (docs/design/cuda-attention.md).
 *
 * In attention_wide each warp loads the keys and values of a tile from shared memory and waits for
 * every product. Here the four warps of a group issue the products of their 64 queries together,
 * and the tensor cores read keys and values from shared memory and queries and probabilities from
 * registers, while the warps do other work:
 *
 *     load()      keys and values of tile i + 2, to registers
 *     soften()    tile i: probabilities of its scores
 *     issue       o = p v of tile i, for 64 values at a time; then the scores of tile i + 1
 *     store()     tile i + 2, to shared memory, while these products run
 *     merge       each 64 values into the chunk, as soon as their products have ended
 *
 * Tile, chunk and result are those of attention_wide, and so is each sum: its products are added
 * up in slices of 16, of which a slice has the same operands at the same places. In a slice, lane t
 * of four has words 2 j and 2 j + 1 of eight successive numbers of its own (attention.cuh), so each
 * four words that are loaded together go to four core matrices (store()).
 *
 * Registers have the queries, the chunk and a tile's o; the result of all chunks, which is needed
 * once in eight tiles, is in shared memory.
 */

#include "engine/ops/attention/attention_wide.cuh"

#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "engine/cuda/bulk.cuh"
#include "engine/cuda/wgmma.cuh"

#define STAGES ATTEND_WGMMA_STAGES
#define GROUPS (CUDA_THREADS / 128)
#define GROUP_QUERIES (ATTN_WIDE / GROUPS)
#define CORE 128u /* bytes of a core matrix: 8 rows of 4 words */

/* A tile as wgmma reads it. keys: core [j][4 b + w] has word w of each eight of dimensions 32 b ..
 * 32 b + 31, of the eight keys of column block j (attn_key_of_column()). values: core [d / 8][w]
 * has word w of each eight keys. */
template <int D> struct alignas(CORE) Cores {
    uint32_t keys[4][4 * D][8][4], values[4 * D][4][8][4];
};

/* Dynamic shared memory: tile i is in element i % STAGES; the results of all chunks. */
template <int D, int K, int V> struct Room {
    Cores<D> tile[STAGES];
    float all[4 * D + 1][CUDA_THREADS][4];

    MEMBER void put(const Result<D> &r) {
        const float of[4] = {r.m[0], r.m[1], r.l[0], r.l[1]};

        store_some<4>(all[4 * D][threadIdx.x], of);
#pragma unroll
        for (int b = 0; b < 4 * D; b++)
            store_some<4>(all[b][threadIdx.x], r.o[b]);
    }
    MEMBER void get(Result<D> &r) const {
        float of[4];

        load_four(all[4 * D][threadIdx.x], of);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            r.m[i] = of[i];
            r.l[i] = of[2 + i];
        }
#pragma unroll
        for (int b = 0; b < 4 * D; b++)
            load_four(all[b][threadIdx.x], r.o[b]);
    }
    static_assert(sizeof(tile) + sizeof(all) == ATTEND_WGMMA_SHARED(32 * D), "as launched");
};

/* Stores four words to the same place of four successive core matrices, the first at @to. */
DEVICE void put_words(uint32_t *to, const struct vec4 &v) {
#pragma unroll
    for (int w = 0; w < 4; w++)
        to[w * (CORE / 4)] = word_of(v, w);
}

/* Number of words of eight values as they are in pages of format V: halves, or codes and scales. */
template <int V> constexpr int VALUE_WORDS = V == PAGE_F16 ? 4 : 6;

/* Loads the eight values of a group in row @row: of a dimension, with four bits of two. */
template <int V>
DEVICE void load_value_words(const struct Place &p, const struct Group &at, uint32_t row,
                             uint32_t *words) {
    constexpr uint32_t dims = PAGE_BITS(V) == 4 ? 2 : 1; /* of a row */
    uint32_t value = or_first(row, p.dim / dims) * p.tokens + at.slot;
    struct vec4 v;

    if constexpr (V == PAGE_F16) {
        v = load16_device(p.values + at.page + value * 2u);
    } else {
        load8_device(p.values + at.page + value, words);
        v = load16_device(value_scales(p, at, or_first(row, p.dim / dims) * dims));
    }
#pragma unroll
    for (int w = 0; w < 4; w++)
        words[VALUE_WORDS<V> - 4 + w] = word_of(v, w);
}

/* The thread's part of a tile, as it is in pages. Lane 4 g + t of a warp has eight numbers of row
 * g of core matrices, for their word t. */
template <int D, int K, int V> struct Part {
    static constexpr uint32_t rows =
        32 * D * 4 / CUDA_THREADS; /* of values, without codes of four bits */
    static constexpr uint32_t n_keys = D / 2, n_values = PAGE_BITS(V) == 4 ? (rows + 1) / 2 : rows;
    static constexpr bool whole = PAGE_BITS(V) != 4 || rows % 2 == 0; /* all threads have values */

    uint32_t keys[n_keys][KEY_WORDS<K>], values[n_values][VALUE_WORDS<V>];

    /* Column block and block of 32 dimensions of piece @n of the keys. */
    static MEMBER uint32_t column_of(uint32_t n) {
        return (threadIdx.x / 32 + n * WARPS) % 4;
    }
    static MEMBER uint32_t block_of(uint32_t n) {
        return (threadIdx.x / 32 + n * WARPS) / 4;
    }
    static MEMBER uint32_t row_of(uint32_t n) {
        return threadIdx.x / 4 + n * (CUDA_THREADS / 4);
    }
    static MEMBER bool has_values() {
        return whole || threadIdx.x < CUDA_THREADS / 2;
    }
    /* Loads the part of the tile that begins with key @first. */
    MEMBER void load(const struct Place &p, uint32_t first) {
        uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const struct Group of_keys = attention_group_at(p, first + g / 2 * 8);
        const struct Group of_values = attention_group_at(p, first + t * 8);

#pragma unroll
        for (uint32_t n = 0; n < n_keys; n++)
            load_key_words<K>(p, of_keys, 2 * column_of(n) + g % 2,
                              or_first(32 * block_of(n) + 8 * t, p.dim), keys[n]);
#pragma unroll
        for (uint32_t n = 0; n < n_values && has_values(); n++)
            load_value_words<V>(p, of_values, row_of(n), values[n]);
    }
    /* Stores it as halves. */
    MEMBER void store(Cores<D> &to) const {
        uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
        for (uint32_t n = 0; n < n_keys; n++)
            put_words(&to.keys[column_of(n)][4 * block_of(n)][g][t], key_of_words<K>(keys[n]));
#pragma unroll
        for (uint32_t n = 0; n < n_values && has_values(); n++)
            store_values(to, row_of(n) / 8, g, t, values[n]);
    }
    /* Stores eight values of row @g of block @block of the rows, of four bits for two blocks. */
    static MEMBER void store_values(Cores<D> &to, uint32_t block, uint32_t g, uint32_t t,
                                    const uint32_t *words) {
        const uint32_t *s = words + VALUE_WORDS<V> - 4;
        const struct vec4 last = {s[0], s[1], s[2], s[3]};

        if constexpr (V == PAGE_F16) {
            put_words(&to.values[block][0][g][t], last);
        } else if constexpr (PAGE_BITS(V) == 8) {
            put_words(&to.values[block][0][g][t], scale_words<V>(words, last));
        } else {
            struct vec4 v[2];

            scale_pair<V>(words, last, &v[0], &v[1]);
            put_words(&to.values[2 * block][0][g][t], v[0]);
            put_words(&to.values[2 * block + 1][0][g][t], v[1]);
        }
    }
};

/* Scores of a tile, and its products with values, of the group's queries. */
struct Scores {
    float c[4][4];

    MEMBER void hold() {
#pragma unroll
        for (int j = 0; j < 4; j++)
            wgmma_hold(c[j]);
    }
};

/* Issues the scores of the tile at @tile (wgmma_place()) with the warp's queries @q, as a group. */
template <int D>
DEVICE void issue_scores(struct Scores &s, const uint32_t (&q)[2 * D][4], uint32_t tile) {
    constexpr uint32_t along_n = 4 * D * CORE;

    wgmma_begin();
    wgmma_first_n32(s.c[0], q[0], wgmma_operand(tile, CORE, along_n));
#pragma unroll
    for (uint32_t i = 1; i < 2 * D; i++)
        wgmma_n32(s.c[0], q[i], wgmma_operand(tile + i * (2 * CORE / 16), CORE, along_n));
    wgmma_commit();
}

/* Computes the scores of the first tile that the group sees. */
template <int D>
DEVICE void first_scores(struct Scores &s, const uint32_t (&q)[2 * D][4], uint32_t tile) {
    issue_scores<D>(s, q, tile);
    wgmma_wait<0>();
    s.hold();
}

/* Issues o = p v for values 64 @piece .. 64 @piece + 63 of the tile at @tile, as a group. @h: p in
 * halves, as operands of both products. */
template <int D>
DEVICE void issue_values(float (&o)[32], const uint32_t (&h)[2][4], uint32_t tile, uint32_t piece) {
    constexpr uint32_t along_n = 4 * CORE, keys = sizeof(Cores<D>::keys);
    uint32_t place = tile + (keys + piece * 8 * along_n) / 16;

    wgmma_begin();
    wgmma_first_n64(o, h[0], wgmma_operand(place, CORE, along_n));
    wgmma_n64(o, h[1], wgmma_operand(place + 2 * CORE / 16, CORE, along_n));
    wgmma_commit();
}

/* Merges 64 values of a tile, whose products have ended, into those of the chunk, @to. */
DEVICE void merge_values_of(float (&o)[32], const struct Weights w[2], float (*to)[4]) {
    wgmma_hold(o);
#pragma unroll
    for (uint32_t i = 0; i < 32; i++)
        to[i / 4][i % 4] = merge_with(to[i / 4][i % 4], o[i], w[i % 4 / 2].a, w[i % 4 / 2].b);
}

/* Merges m and l of a tile for query @i of the two of the thread, whose scores become
 * probabilities. Returns the tile's weights. */
template <int D>
DEVICE struct Weights weigh_scores(const struct attend_args &a, const struct Shared<D> &s,
                                   struct Scores &scores, int i, uint32_t first, bool masked,
                                   Result<D> &chunk) {
    uint32_t query = threadIdx.x / 32 * ATTN_QUERIES + threadIdx.x % 32 / 4 + 8 * i;
    float m, l;

    soften(a, scores.c, i, s.reach[query], first, masked, &m, &l);
    struct Weights w = merge_weights(chunk.m[i], m);
    chunk.l[i] = merge_with(chunk.l[i], l, w.a, w.b);
    chunk.m[i] = w.max;
    return w;
}

/* Returns where tile @i is, as descriptors have it. */
template <int D> DEVICE uint32_t cores_place(uint32_t i) {
    return wgmma_place(i % STAGES * (uint32_t)sizeof(Cores<D>));
}

/* Computes tile @i from its scores and merges it into @chunk; replaces the scores by those of tile
 * @ahead; and stores @next, tile @i + 2, while products run. @masked as in soften(). */
template <int D, int K, int V>
DEVICE void wgmma_add_tile(const struct attend_args &a, const struct Shared<D> &s,
                           Room<D, K, V> &room, const uint32_t (&q)[2 * D][4], uint32_t i,
                           uint32_t ahead, bool masked, const Part<D, K, V> &next,
                           struct Scores &scores, Result<D> &chunk) {
    constexpr uint32_t pieces = D / 2;
    float o[pieces][32];
    uint32_t h[2][4];
    struct Weights w[2];

#pragma unroll
    for (int k = 0; k < 2; k++) {
        w[k] = weigh_scores<D>(a, s, scores, k, i * ATTN_TILE, masked, chunk);
#pragma unroll
        for (int j = 0; j < 4; j++)
            h[j / 2][j % 2 * 2 + k] = pack_halves(scores.c[j][2 * k], scores.c[j][2 * k + 1]);
    }
    wgmma_hold(h[0]);
    wgmma_hold(h[1]);
#pragma unroll
    for (uint32_t piece = 0; piece < pieces; piece++)
        issue_values<D>(o[piece], h, cores_place<D>(i), piece);
    issue_scores<D>(scores, q, cores_place<D>(ahead));
    next.store(room.tile[(i + 2) % STAGES]);
    if constexpr (pieces == 2) {
        wgmma_wait<2>();
        merge_values_of(o[0], w, chunk.o);
    }
    wgmma_wait<1>();
    merge_values_of(o[pieces - 1], w, &chunk.o[8 * (pieces - 1)]);
    wgmma_wait<0>();
    scores.hold();
}

/* Stores @next while the group sees no key of the present tile. */
template <int D, int K, int V> DEVICE void pass_tile(const Part<D, K, V> &next, Cores<D> &to) {
    next.store(to);
}

/* The tiles that a group of warps sees. */
struct Seen {
    uint32_t begin, end;
};

template <int D> DEVICE struct Seen tiles_seen(const struct Shared<D> &s, uint32_t group) {
    uint32_t low = s.low[group], high = s.high[group], end = high / ATTN_TILE + 1;

    if (low > high)
        return {UINT32_MAX, 0};
    return {s.low_key[group] / ATTN_TILE, end};
}

template <int D, int K, int V>
DEVICE void wgmma_attend_item(const struct attend_args &a, struct Shared<D> &s,
                              Room<D, K, V> &room) {
    const struct Place &p = s.place;
    uint32_t warp = threadIdx.x / 32, group = warp / 4, query = warp * ATTN_QUERIES;
    uint32_t low = s.item.chunk < 0 ? 0 : (uint32_t)s.item.chunk * ATTN_TILES;
    uint32_t from = p.first / ATTN_TILE > low ? p.first / ATTN_TILE : low;
    Part<D, K, V> next;
    Result<D> part;
    struct Scores scores;
    uint32_t q[2 * D][4];

    if (from >= s.n_tiles) /* the item is before the windows of all queries */
        return;
    for (uint32_t i = from; i < from + 2; i++) {
        next.load(p, i * ATTN_TILE);
        next.store(room.tile[i % STAGES]);
    }
    load_reaches(a, s.item, s);
    attention_load_queries<D>(a, s.item, s);
    if (threadIdx.x < GROUPS)
        wide_find_range<D>(a, s, GROUP_QUERIES);
    clear<D>(part);
    room.put(part);
    bulk_publish();
    sync_block();
#pragma unroll
    for (uint32_t i = 0; i < 2 * D; i++) {
        struct vec4 v = load16(s.q[i / 2][i % 2][warp][threadIdx.x % 32]);

#pragma unroll
        for (int w = 0; w < 4; w++)
            q[i][w] = word_of(v, w);
        wgmma_hold(q[i]);
    }
    const struct Seen seen = tiles_seen<D>(s, group);
    const uint32_t begin = seen.begin > from ? seen.begin : from;
    for (uint32_t i = from; i < s.n_tiles; i++) {
        uint32_t first = i * ATTN_TILE;

        next.load(p, first + 2 * ATTN_TILE); /* behind the last tile: its last keys again */
        if (i == begin && i < seen.end)
            first_scores<D>(scores, q, cores_place<D>(i));
        if (i >= begin && i < seen.end) {
            bool masked = first + ATTN_TILE - 1 > s.low[group] || first < s.high_key[group];
            bool again = i + 1 == seen.end || i + 1 == s.n_tiles; /* scores that are not used */

            wgmma_add_tile<D, K, V>(a, s, room, q, i, again ? i : i + 1, masked, next, scores,
                                    part);
        } else {
            pass_tile(next, room.tile[(i + 2) % STAGES]);
        }
        if ((i + 1) % ATTN_TILES == 0 || i + 1 == s.n_tiles) {
            Result<D> all;

            room.get(all);
            end_chunk<D>(a, s, query, i / ATTN_TILES, i + 1 == s.n_tiles, part, all);
            room.put(all);
        }
        bulk_publish();
        sync_block(); /* tile i + 2 has been stored, and tile i has been read */
    }
}

#define ATTEND_WGMMA_BODY(K, V, D)                                                                 \
    wait_for_previous();                                                                           \
    SHARED struct Shared<D> s;                                                                     \
    Room<D, K, V> &room = *(Room<D, K, V> *)dynamic_shared();                                      \
                                                                                                   \
    wide_attend<D>(a, s, [&] { wgmma_attend_item<D, K, V>(a, s, room); })
#else
#define ATTEND_WGMMA_BODY(K, V, D)
#endif

#define ATTEND_WGMMA(NAME, K, V, D)                                                                \
    KERNEL(NAME, struct attend_args, CUDA_THREADS, 1) {                                            \
        ATTEND_WGMMA_BODY(K, V, D);                                                                \
    }

FOR_PAGES(ATTEND_WGMMA, attend_wgmma_64, 2)
FOR_PAGES(ATTEND_WGMMA, attend_wgmma_128, 4)
