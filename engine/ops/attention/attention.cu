/*
 * attention - decode attention over paged keys and values: o = softmax(q k' scale) v, where o is
 * (rows, heads, values).
 *
 * The algorithm is flash decoding with a merge tree that never changes. The keys of a sequence are
 * divided into tiles of 32 and chunks of 256 (8 tiles), always at the same positions. For a query,
 * a tile yields the maximum score m, the sum l of 2^(score - m), and o, the values weighted by
 * 2^(score - m). Two such results merge as
 *
 *     m = max(m1, m2)   l = l1 2^(m1 - m) + l2 2^(m2 - m)   o = o1 2^(m1 - m) + o2 2^(m2 - m)
 *
 * Tiles are merged from left to right into their chunk, and chunks from left to right into the
 * result (engine/shared/pages.h). Any block may compute any chunk, in any order, since the merges
 * stay the same. So the result of a query has the same bits alone or in a batch, split over the
 * device or not, and whether or not its chunks are shared with other sequences. plan.cu divides the
 * work among blocks.
 *
 *     keys    0 ............ 255 | 256 ............ 511 | 512 .. 600
 *     tiles   t0 t1 t2 .. t7     | t0 t1 .. t7          | t0 t1 t2 (25 keys of t2 are seen)
 *             \_____ chunk 0 __/   \___ chunk 1 ____/     \_ chunk 2
 *     result  = merge(merge(chunk 0, chunk 1), chunk 2)
 *
 * A thread block processes items. An item is 16 queries (rows of one sequence times the query heads
 * of one key head, so that each key is loaded once for all of them) and either one chunk or all
 * chunks after those that are shared. In each chunk, each of the 8 warps has one tile:
 *
 *     1  cp.async copies the tile's values to shared memory; keys are loaded to registers
 *     2  s = q k' by mma; q was scaled and rounded to half precision
 *     3  p = 2^(s - m), rounded to half precision for the product; l is the sum before rounding
 *     4  o = p v by mma, written to shared memory over the values
 *     5  after one barrier, each warp merges the eight tiles for one or two of the queries
 *
 * A chunk therefore costs one barrier, and a block has up to 64 KiB of keys and as many of values
 * in flight. The loads of the first tile start before store() has ended, if this step writes no key
 * of that tile. Prefetching the next chunk to the L2 cache would cost more than it gains, because
 * the chunks of all blocks together fill the cache. The output of an item is the final o, or, if
 * each chunk is an item, a partial result (o, m, l) that merge() merges.
 *
 * Keys after the query's position get p = 0. That suffices, because pages hold no infinities, so
 * that 0 v = 0. A layer with a window uses the same tree: tiles before the windows of all queries
 * are skipped, and in other tiles a key outside a query's window gets p = 0. An attention sink is
 * one more tile at the end, of a key without a value.
 *
 * Lanes load keys and values 16 bytes at a time, in the operand order of mma
 * (engine/shared/pages.h). Codes of q8_0 and q4_0 become halves, scale times code, rounded once. A
 * row of mma does not depend on the other rows. The kernel is bound by the bytes of keys and
 * values.
 *
 * attend_decode_64 and attend_decode_128 also do the work of store() and merge() in steps of few
 * rows. A chunk of a sequence is then one item with all of its queries (plan_args.few), which are
 * computed 16 at a time, so that no other block of the launch reads or writes the tiles with the
 * step's keys. The block computes these queries and keys from the products of q, k and v, and
 * stores the keys in their page before it reads their tile. The block that is last to leave a
 * result of a merge merges, in the same order.
 *
 * Variants: attention_wide.cu for prompts, attention_large.cu for heads of more than 128 values,
 * attention_latent.cu for latent attention (MLA) on data-center devices.
 */

#include "engine/ops/attention/attention.cuh"

/* Static shared memory of a block, for heads of up to 32 D values. */
template <int D> struct alignas(16) Shared {
    static constexpr uint32_t queries = ATTN_QUERIES;

    uint16_t q[D][2][1][32][8]; /* attention_load_queries(); first: 16 bytes are stored at a time */
    struct attn_item item;      /* in shared memory because tiles need the registers */
    uint32_t index, first;      /* of attention_load_item() */
    struct Place place;
    float m[ATTN_QUERIES][ATTN_TILES], l[ATTN_QUERIES][ATTN_TILES];
    struct Reach reach[ATTN_QUERIES];
};

/* Layout of the dynamic shared memory. Each warp has room for the values of its tile, which its
 * result later overwrites. Eight rows of values take 512 bytes: 16 bytes for each lane. q8_0:
 * [row][32 codes], and after every fourth group of eight rows [32 scales] of 32 rows. q4_0: [row of
 * bytes][32 codes], sixteen rows in the room of eight. Results: [query][8 values], where query i is
 * at index i ^ row / 8 % 4, so that lanes that read or write together use different banks. */
template <int D> constexpr uint32_t TILE_BYTES = 4 * D * 512;
static_assert(ATTN_TILES * TILE_BYTES<2> == ATTEND_SHARED(64), "kernels_attention.h");
static_assert(ATTN_TILES * TILE_BYTES<4> == ATTEND_SHARED(128), "kernels_attention.h");

/* Returns the room of the warp's tile; computed anew each time, because tiles need the
 * registers. */
template <int D> DEVICE uint8_t *own_room() {
    return dynamic_shared() + anew(threadIdx.x) / 32 * TILE_BYTES<D>;
}

/* Returns the address of value @d of query @query in the result of the tile at @tile. */
DEVICE float *result_at(uint8_t *tile, uint32_t query, uint32_t d) {
    return (float *)(tile + d / 8 * 512 + (query ^ d / 8 % 4) * 32 + d % 8 * 4);
}

/* A lane's part of the keys of a tile, loaded together: for each block of 32 values, those of four
 * keys. */
template <int D, int K> struct Keys {
    uint32_t w[D][4][KEY_WORDS<K>]; /* eight values, or eight codes and a scale */

    MEMBER void load(const struct Place &p, uint32_t first) {
        uint32_t lane = anew(threadIdx.x) % 32, g = lane / 4;
        struct Group at = attention_group_at(p, first + g / 2 * 8);

#pragma unroll
        for (int b = 0; b < D; b++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                load_key_words<K>(p, at, attn_key_of_column(j, g % 2),
                                  attention_inside<D>(b, 32 * b + lane % 4 * 8, p.dim), w[b][j]);
    }

    /* Computes the scores of the tile; c[j] is an accumulator of mma. */
    MEMBER void score(const struct Shared<D> &s, float c[4][4]) const {
        uint32_t lane = threadIdx.x % 32;

#pragma unroll
        for (int b = 0; b < D; b++) {
            struct vec4 q0 = load16(s.q[b][0][0][lane]), q1 = load16(s.q[b][1][0][lane]);

#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_32(c[j], q0, q1, key_of_words<K>(w[b][j]));
        }
    }
};

/* Starts copying the values of the tile that begins with key @first to @tile. */
template <int D, int V>
DEVICE void start_values(const struct Place &p, uint32_t first, uint8_t *tile) {
    uint32_t lane = anew(threadIdx.x) % 32, dim = p.dim, tokens = p.tokens;
    struct Group at = attention_group_at(p, first + lane % 4 * 8);
    /* p is in shared memory, and after each copy the compiler would load it again */
    const uint8_t *values = p.values;

    if constexpr (V != PAGE_F16) { /* a lane copies codes of 16 keys, which are in one page */
        constexpr uint32_t bits = PAGE_BITS(V), per_byte = 8 / bits;
        uint32_t last = p.last & ~15u, key = first + lane % 2 * 16, n = lane / 4;
        struct Group two = attention_group_at(p, key < last ? key : last);

#pragma unroll
        for (int i = 0; i < D * (int)bits / 4; i++) {
            uint32_t row = 16 * i + lane / 2; /* row of bytes */
            uint32_t from = attention_inside<D>(i * 4 / (int)bits, row * per_byte, dim) / per_byte;

            copy_async(tile + row / 8 * per_byte * 512 + row % 8 * 32 + lane % 2 * 16,
                       values + two.page + from * tokens + two.slot);
        }
        if (n < D)
            copy_async(tile + n * 2048 + 256 + lane % 4 * 16,
                       value_scales(p, at, attention_inside<D>(n, 32 * n, dim)));
    } else {
#pragma unroll
        for (int b = 0; b < 4 * D; b++) {
            uint32_t d = attention_inside<D>(b / 4, 8 * b + lane / 4, dim);

            copy_async(tile + b * 512 + lane * 16, values + at.page + (d * tokens + at.slot) * 2u);
        }
    }
    copy_commit();
}

/* Loads rows 64 n .. 64 n + 63 of the values as operands of mma. */
template <int V> DEVICE void load_values(const uint8_t *tile, int n, struct vec4 v[8]) {
    uint32_t lane = anew(threadIdx.x) % 32;

    tile += n * 8 * 512;
#pragma unroll
    for (int b = 0; b < 8; b++)
        if constexpr (V == PAGE_F16) {
            v[b] = load16(tile + b * 512 + lane * 16);
        } else if (PAGE_BITS(V) == 8 || b % 2 == 0) {
            struct vec4 s = load16(tile + b / 4 * 2048 + 256 + lane % 4 * 16);
            uint32_t q[2];

            load8(tile + b * 512 + lane * 8, q);
            if constexpr (PAGE_BITS(V) == 8)
                v[b] = scale_words<V>(q, s);
            else
                scale_pair<V>(q, s, &v[b], &v[b + 1]);
        }
}

/* Computes o = p v and writes it over the values, for the lower eight queries or for @both halves;
 * zeros if the tile is not @seen. */
template <int D, int V>
DEVICE void weigh_values(uint8_t *tile, bool seen, bool both, const uint32_t h[2][4]) {
    uint32_t lane = anew(threadIdx.x) % 32, g = lane / 4, t = lane % 4;

    copy_wait<0>();
    sync_warp();
#pragma unroll
    for (int n = 0; n < D / 2; n++) {
        struct vec4 v[8] = {};

        if (seen)
            load_values<V>(tile, n, v);
        sync_warp(); /* every lane has read its values */
#pragma unroll
        for (int b = 0; b < 8; b++) {
            float o[4];

            mma_first(o, h[0][0], h[1][0], h[0][1], h[1][1], v[b].x, v[b].y);
            mma(o, h[0][2], h[1][2], h[0][3], h[1][3], v[b].z, v[b].w);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (i == 0 || both)
                    store_some<2>(result_at(tile, g + 8 * i, 64 * n + 8 * b + 2 * t), o + 2 * i);
        }
    }
}

/* Computes the softmax of the warp's tile for queries 8 HALF + g: p as halves to @h, m and l to
 * shared memory. */
template <int D, int HALF>
DEVICE void weigh_half(const struct attend_args &a, struct Shared<D> &s, uint32_t first,
                       float c[4][4], uint32_t h[4]) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, query = lane / 4 + 8 * HALF;
    float m, l;

    soften(a, c, HALF, s.reach[query], first, true, &m, &l);
#pragma unroll
    for (int j = 0; j < 4; j++)
        h[j] = pack_halves(c[j][2 * HALF], c[j][2 * HALF + 1]);
    if (lane % 4 == 0) {
        s.m[query][warp] = m;
        s.l[query][warp] = l;
    }
}

/* The result of a query for one chunk, or for all chunks so far. Warp w has queries w and w + 8; a
 * lane has D of a query's values. */
template <int D> struct State {
    float m, l, o[D];

    MEMBER void clear() {
        m = -INFINITY;
        l = 0;
#pragma unroll
        for (int i = 0; i < D; i++)
            o[i] = 0;
    }

    MEMBER void merge(float its_m, float its_l, const float *its_o) {
        struct Weights w = merge_weights(m, its_m);

        l = merge_with(l, its_l, w.a, w.b);
        m = w.max;
#pragma unroll
        for (int i = 0; i < D; i++)
            o[i] = merge_with(o[i], its_o[i], w.a, w.b);
    }

    /* Sets the state to the merged tiles of a chunk. */
    MEMBER void merge_tiles(const struct Shared<D> &s, uint32_t query) {
        uint32_t d = anew(threadIdx.x) % 32 * D;
        uint8_t *tile = dynamic_shared();

        clear();
#pragma unroll 4
        for (uint32_t w = 0; w < ATTN_TILES; w++, tile += TILE_BYTES<D>) {
            float v[D];

            load_some<D>(result_at(tile, query, d), v);
            merge(s.m[query][w], s.l[query][w], v);
        }
    }

    /* Merges the results of the chunks before the item's, which several sequences share, into the
     * state of its query @query; chunks before @first are outside its window. */
    MEMBER void begin(const struct attend_args &a, const struct attn_item &it, uint32_t first,
                      uint32_t query) {
        size_t step = (size_t)it.shared.step * gridDim.y * a.few * a.partial_stride;
        uint32_t place = it.shared.place + query, d = threadIdx.x % 32 * D;
        const float *x = a.partial + partial_at(a, it.shared.partial, place);
        uint32_t r = attn_first_result(&it.shared, first);

        for (x += r * step; r < it.shared.n_results; r++, x += step) {
            float v[D];

            load_some<D>(x + (d < a.n_value ? d : 0), v);
            merge(x[a.n_value], x[a.n_value + 1], v);
        }
    }

    /* Writes the result: the final one (@whole) or that of a chunk. */
    MEMBER void put(const struct attend_args &a, const struct attn_item &it, bool whole,
                    uint32_t query) {
        uint32_t d = threadIdx.x % 32 * D;
        float *to = attention_result(a, it, query), factor = 1;

        if (whole && a.sinks) {
            struct Weights w = merge_weights(m, sink_of(a, it.q0 + query));

            l = merge_with(l, 1.0f, w.a, w.b);
            factor = w.a;
        }
#pragma unroll
        for (int i = 0; i < D && whole; i++)
            o[i] = o[i] * factor / l;
        if (d < a.n_value && whole && a.packed)
            attention_pack<D>(a, it, query, d, o);
        else if (d < a.n_value)
            store_some<D>(to + d, o);
        if (!whole && threadIdx.x % 32 == 0) {
            to[a.n_value] = m;
            to[a.n_value + 1] = l;
        }
    }
};

/* Merges the chunk's tiles for query 8 HALF + warp into @all; if the item is a single chunk, sets
 * @all to the result. */
template <int D, int HALF> DEVICE void merge_half(const struct Shared<D> &s, struct State<D> &all) {
    uint32_t query = threadIdx.x / 32 + 8 * HALF;
    struct State<D> now;

    if (query >= s.item.n_q)
        return;
    now.merge_tiles(s, query);
    if (s.item.chunk < 0)
        all.merge(now.m, now.l, now.o);
    else
        all = now;
}

/* Returns word @at of an item of which only the ATTN_QUERIES queries from @first on are computed;
 * @word: of the whole item. */
DEVICE uint32_t item_word(uint32_t at, uint32_t word, uint32_t first) {
    if (at == offsetof(struct attn_item, n_q) / 4) {
        uint32_t left = word - first;

        return left < ATTN_QUERIES ? left : ATTN_QUERIES;
    }
    bool begins = at == offsetof(struct attn_item, q0) / 4 ||
                  at == offsetof(struct attn_item, shared.place) / 4;

    return begins ? word + first : word;
}

/* Reads the part of item @i from query @first on, the addresses of its keys, and the reach of its
 * queries. plan() must have ended. */
template <int D>
DEVICE void attention_load_item(const struct attend_args &a, uint32_t i, uint32_t first,
                                struct Shared<D> &s) {
    constexpr uint32_t words = sizeof(struct attn_item) / 4;
    uint32_t at = threadIdx.x;

    if (at == 0) {
        s.index = i;
        s.first = first;
    }
    if (at < words)
        ((uint32_t *)&s.item)[at] = item_word(at, ((const uint32_t *)&a.batch->item[i])[at], first);
    sync_block();
    if (threadIdx.x == 0)
        find_place(s.place, a, s.item, first_key_of(a, s.item));
    load_reaches(a, s.item, s);
    sync_block();
}

/* attend_64, attend_128: store() has stored queries and keys. */
template <int D> struct Stored {
    static constexpr bool fresh = false;

    MEMBER void load(const struct attend_args &a, struct Shared<D> &s, uint32_t from,
                     uint32_t to) const {
        attention_load_queries<D>(a, s.item, s);
    }
};

/* attend_decode_64, attend_decode_128: the block computes queries and keys for itself. */
template <int D> struct Computed {
    static constexpr bool fresh = true;
    const struct store_args &store;
    /* shared, of the block's warps */
    float (*head)[32 * D];

    /* Computes query @query of the item; a lane gets four of its values. */
    MEMBER void compute_query(const struct attend_args &a, const struct attn_item &it,
                              uint32_t query, uint32_t words[2]) const {
        uint32_t n = it.q0 + query, d = threadIdx.x % 32 * 4;
        float *of = head[threadIdx.x / 32], x[4];

        if (query >= it.n_q)
            return;
        float factor =
            store_compute<D>(store, it.row0 + n / a.group, blockIdx.y * a.group + n % a.group, of);
        if (d < a.shape.head_dim) {
            load_four(of + d, x);
            for (int i = 0; i < 4; i++)
                x[i] *= factor;
            query_halves(a, x, words);
        }
        sync_warp(); /* @of is used again */
    }

    /* Stores the queries as attention_load_queries() does, and those keys of the rows in their
     * pages whose positions are @from to @to - 1. */
    MEMBER void load(const struct attend_args &a, struct Shared<D> &s, uint32_t from,
                     uint32_t to) const {
        const struct attn_item &it = s.item;
        uint32_t warp = threadIdx.x / 32, d = threadIdx.x % 32 * 4;
        uint32_t low[2] = {0, 0}, high[2] = {0, 0};

        compute_query(a, it, warp, low);
        compute_query(a, it, warp + 8, high);
        if (d < 32 * D)
            store16(s.q[d / 32][d / 4 % 2][0][warp * 4 + d % 32 / 8],
                    {low[0], high[0], low[1], high[1]});
        /* the first part of the item stores the keys of its rows */
        uint32_t n_rows =
            s.first || !store.n_kv ? 0 : (a.batch->item[s.index].n_q + a.group - 1) / a.group;
        /* the last warps have the fewest queries */
        for (uint32_t i = CUDA_THREADS / 32 - 1 - warp; i < n_rows; i += CUDA_THREADS / 32) {
            uint32_t pos = a.batch->pos[it.row0 + i];

            if (pos < from || pos >= to)
                continue;
            store_compute<D>(store, it.row0 + i, a.n_head + blockIdx.y, head[warp]);
            sync_warp();
        }
    }
};

/* Computes the item that the block has taken. */
template <int D, int K, int V, class ROWS>
DEVICE void attention_attend_item(const struct attend_args &a, const ROWS &rows,
                                  struct Shared<D> &s) {
    const struct attn_item &it = s.item;
    uint32_t warp = threadIdx.x / 32, first = s.place.first / ATTN_CHUNK;
    uint32_t low = it.chunk < 0 ? it.shared.n_chunks : (uint32_t)it.chunk;
    uint32_t from = it.chunk < 0 && first > low ? first : low;
    /* first key of the warp's tile in the current chunk */
    uint32_t tile = from * ATTN_CHUNK + warp * ATTN_TILE;
    struct State<D> all[2];
    bool seen = attention_is_seen(s.place, tile);

    static_assert(CUDA_THREADS / 32 == ATTN_TILES && ATTN_QUERIES == 2 * ATTN_TILES,
                  "a warp has a tile, and two queries");
    for (bool begins = true;; begins = false) {
        uint32_t h[2][4] = {}, next = tile + ATTN_CHUNK;
        float c[4][4] = {};
        /* this step writes keys of the tile */
        bool written = begins && tile + ATTN_TILE > it.pos0;

        if (written && !ROWS::fresh)
            wait_for_previous();
        if (seen && !(written && ROWS::fresh))
            start_values<D, V>(s.place, tile, own_room<D>());
        if (begins) {
            if (seen)
                prefetch_keys<K>(s.place, tile);
            uint32_t to = (it.chunk < 0 ? it.n_chunks : from + 1) * ATTN_CHUNK;

            wait_for_previous();
            if (to <= s.place.first) /* no merge reads this chunk */
                return;
            rows.load(a, s, tile / ATTN_CHUNK * ATTN_CHUNK, to);
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                all[k].clear();
                if (warp + 8 * k < it.n_q)
                    all[k].begin(a, it, s.place.first / ATTN_CHUNK, warp + 8 * k);
            }
            sync_block();
            if (seen && written && ROWS::fresh)
                start_values<D, V>(s.place, tile, own_room<D>());
        }
        if (seen) {
            struct Keys<D, K> keys;

            keys.load(s.place, tile);
            keys.score(s, c);
        }
        weigh_half<D, 0>(a, s, tile, c, h[0]);
        if (it.n_q > 8)
            weigh_half<D, 1>(a, s, tile, c, h[1]);
        weigh_values<D, V>(own_room<D>(), seen, it.n_q > 8, h);
        sync_block();
        merge_half<D, 0>(s, all[0]);
        merge_half<D, 1>(s, all[1]);
        /* read again, because tiles need the registers */
        if (it.chunk >= 0 || next >= it.n_chunks * ATTN_CHUNK)
            break;
        sync_block();
        tile = next;
        seen = attention_is_seen(s.place, tile);
    }
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
        if (warp + 8 * k < it.n_q)
            all[k].put(a, it, it.chunk < 0, warp + 8 * k);
}

template <int D, int K, int V>
DEVICE void attention_attend(const struct attend_args &a, struct Shared<D> &s) {
    for (uint32_t i = blockIdx.x; i < a.batch->n_items; i += gridDim.x) {
        attention_load_item<D>(a, i, 0, s);
        attention_attend_item<D, K, V>(a, Stored<D>(), s);
        sync_block();
    }
}

#define ATTEND(NAME, K, V, D)                                                                      \
    KERNEL(NAME, struct attend_args, CUDA_THREADS, 2) {                                            \
        SHARED struct Shared<D> s;                                                                 \
                                                                                                   \
        attention_attend<D, K, V>(a, s);                                                           \
        if (!may_exit())                                                                           \
            wait_for_previous(); /* it may have no item */                                         \
    }

FOR_PAGES(ATTEND, attend_64, 2)
FOR_PAGES(ATTEND, attend_128, 4)

/* Computes the values of a merge. */
DEVICE void merge_queries(const struct attend_args &a, const struct attn_merge &it) {
    uint32_t quads = a.n_value / 4;

    for (uint32_t k = threadIdx.x; k < it.n_q * quads; k += CUDA_THREADS)
        merge_values(a, it, k / quads, k % quads * 4);
}

/* Computes each merge of an item's results for which no result is missing any more; @arrived: how
 * many of each merge and key head are there. */
DEVICE void merge_complete(const struct attend_args &a, const struct attn_item &it,
                           uint32_t *arrived) {
    for (uint32_t i = it.merge; it.chunk >= 0 && i < it.merge + it.n_merges; i++) {
        struct attn_merge merge = a.batch->merge[i];
        uint32_t n = merge.n_chunks - merge.shared.n_chunks + merge.shared.n_results;

        if (last_of(&arrived[i * gridDim.y + blockIdx.y], n))
            merge_queries(a, merge);
    }
}

/* Computes the items of a step of few rows, from the products of q, k and v to the result. */
template <int D, int K, int V>
DEVICE void attention_decode(const struct decode_args &a, struct Shared<D> &s,
                             float (*head)[32 * D]) {
    const struct attend_args &at = a.attend;

    /* the position is kept in shared memory, because tiles need the registers */
    for (uint32_t i = blockIdx.x, first = 0; i < at.batch->n_items;) {
        attention_load_item<D>(at, i, first, s);
        attention_attend_item<D, K, V>(at, Computed<D>{a.store, head}, s);
        i = s.index;
        first = s.first + ATTN_QUERIES;
        if (first >= at.batch->item[i].n_q) {
            sync_block();
            merge_complete(at, s.item, a.arrived);
            i += gridDim.x;
            first = 0;
        }
        sync_block();
    }
}

#define ATTEND_DECODE(NAME, K, V, D)                                                               \
    KERNEL(NAME, struct decode_args, CUDA_THREADS, 2) {                                            \
        SHARED struct Shared<D> s;                                                                 \
        SHARED struct alignas(16) { float of[CUDA_THREADS / 32][32 * D]; } head;                   \
                                                                                                   \
        attention_decode<D, K, V>(a, s, head.of);                                                  \
        if (!may_exit())                                                                           \
            wait_for_previous(); /* it may have no item */                                         \
    }

FOR_PAGES(ATTEND_DECODE, attend_decode_64, 2)
FOR_PAGES(ATTEND_DECODE, attend_decode_128, 4)

KERNEL(merge, struct attend_args, CUDA_THREADS, 4) {
    uint32_t n = a.batch->n_merges, i = blockIdx.x;
    const struct attn_merge *merge = a.batch->merge; /* loaded together with n */
    struct attn_merge it = merge[i < n ? i : 0];

    if (i >= n && may_exit())
        return;
    wait_for_previous();
    while (i < n) {
        merge_queries(a, it);
        i += gridDim.x;
        it = merge[i < n ? i : 0];
    }
}
