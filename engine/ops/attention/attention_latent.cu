/*
 * attention_latent - latent attention (MLA) for data-center devices, which have bulk copies
 * (cp.async.bulk) and 212 KiB of shared memory for a block. Gives the same bits as attend_latent of
 * attention_large.cu.
 *
 * In attend_latent a key is loaded twice, as a key and as a value, and the warps wait for each
 * other twice per chunk. Here a tile of 32 keys is copied to shared memory once and serves both as
 * keys and as values, for up to 48 queries (3 groups of 16). The block is a software pipeline over
 * tiles, with one barrier for each tile. In the step that adds tile i:
 *
 *     copy      tile i + 3 is requested by one warp
 *     convert   tile i + 2: codes of q8_0 or q4_0 become halves, by all threads (not for f16)
 *     weigh     tile i + 1: scores, softmax and merge weights, by one warp for each 16 queries;
 *               the warps take turns, so that none falls behind
 *     add       tile i: o = p v for an eighth of the values by each warp, merged into the chunk
 *
 * A stage uses only what earlier steps have left, so the stages of a step need no order among
 * themselves. p and the merge weights are double-buffered (index i % 2).
 *
 * Tiles are merged into their chunk, and chunks into the result, as in attention.cu; x is the
 * current chunk and all is the result so far, both in registers.
 *
 * The kernel is bound by its reads of shared memory.
 */

#include "engine/cuda/bulk.cuh"
#include "engine/ops/attention/attention.cuh"

#define WARPS (CUDA_THREADS / 32)
#define GROUPS (ATTN_LATENT_BULK / ATTN_QUERIES)
#define BLOCKS (LATENT_KEY / 32) /* number of blocks of 32 values of a key */
/* Number of products with a tile's values for a warp and a group of queries. */
#define PRODUCTS (LATENT_VALUE / WARPS / 8)
#define AT_ONCE 4u /* products whose values are loaded together */

#ifdef WEFT_SIMT
extern "C" const bool attend_latent_built = true;
#else
/* Device families that have bulk copies and 212 KiB of shared memory, or that run code built for
 * such a family. */
constexpr uint32_t archs[] = {__CUDA_ARCH_LIST__};
constexpr bool serves(uint32_t arch) {
    return arch >= 900 && arch < 1200;
}
constexpr bool serves_any(uint32_t n) {
    return n > 0 && (serves(archs[n - 1]) || serves_any(n - 1));
}
extern "C" const bool attend_latent_built = serves_any(sizeof(archs) / sizeof(*archs));
#endif

#ifdef WEFT_BULK

/*
 * A tile of 32 keys in shared memory, placed so that the eight lanes of a load use different banks:
 * keys 2 t and 2 t + 1, which are read together for scores, are 64 bytes apart (modulo the banks),
 * and keys 8 t and 8 t + 1, read as values, 16 to 112 bytes.
 */
struct alignas(16) Tile {
    static constexpr uint32_t row = LATENT_KEY * 2, four = 4 * row + 16;

    uint8_t bytes[8 * four];
};

/* Returns the offset of key 8 @m + 2 @j + @odd in a tile. */
DEVICE uint32_t key_place(uint32_t m, uint32_t j, uint32_t odd) {
    return (4 * odd + m) * Tile::four + j * Tile::row;
}

/* A tile of 32 keys as it is in pages of coded formats. */
template <int K> struct alignas(16) Codes {
    uint8_t code[ATTN_TILE][LATENT_KEY / 8 * PAGE_BITS(K)];
    uint16_t scale[4][8 * BLOCKS]; /* scales of eight keys: [key][dim / 32] */
};

/* Tiles that are being copied and tiles in use: one whose values are added, one that is weighed,
 * and one that is converted. */
template <int K> struct Ring {
    static constexpr uint32_t stages = 2, tiles = 3;
    struct Tile tile[3];
    struct Codes<K> codes[2];
};

template <> struct Ring<PAGE_F16> {
    static constexpr uint32_t stages = 4, tiles = 4;
    struct Tile tile[4];
};

struct alignas(8) Pair {
    float a, b;
};

/* The tiles of an item that some of its queries see. */
struct Span {
    /* tiles */
    uint32_t first, n;
    /* tiles of the block's earlier items; continues the ring across items */
    uint32_t begun;
    uint32_t n_groups;
};

template <int K> struct alignas(16) Shared {
    static constexpr uint32_t queries = ATTN_LATENT_BULK;

    struct Ring<K> ring;
    uint16_t q[BLOCKS][2][GROUPS][32][8]; /* attention_load_queries() */
    struct vec4 p[2][GROUPS][2][32]; /* probabilities of two tiles, by lane, as mma takes them */
    struct Pair tile[2][queries];    /* weights for merging the tile into its chunk */
    struct Pair whole[2][queries];   /* weights for merging the chunk that ends with the tile */
    float chunk_m[queries], chunk_l[queries], all_m[queries], all_l[queries], all_a[queries];
    struct Reach reach[queries];
    struct Place place;
    struct Span span; /* tiles of the item */
    struct attn_item item;
    uint64_t full[Ring<K>::stages];
};

/* Starts copying tile @i; called by a warp, of which each lane copies a key. */
template <int K> DEVICE void latent_fetch(struct Shared<K> &s, uint32_t i) {
    constexpr uint32_t stages = Ring<K>::stages;
    const struct Place &p = s.place;
    uint32_t lane = anew(threadIdx.x) % 32, stage = (s.span.begun + i) % stages, bytes = p.dim * 2;
    struct Group from = attention_group_at(p, (s.span.first + i) * ATTN_TILE + lane / 8 * 8);
    uint32_t slot = from.slot + lane % 8;
    uint64_t *full = &s.full[stage];

    if constexpr (K != PAGE_F16)
        bytes = p.dim / 8 * PAGE_BITS(K) + p.dim / 16;
    bulk_publish(); /* orders earlier reads of this stage before the copy */
    if (lane == 0)
        bulk_expect(full, ATTN_TILE * bytes);
    sync_warp();
    if constexpr (K != PAGE_F16) {
        struct Codes<K> &to = s.ring.codes[stage];
        uint32_t n = p.dim / 8 * PAGE_BITS(K);

        bulk_copy(to.code[lane], p.keys + from.page + slot * n, n, full);
        if (lane % 8 == 0)
            bulk_copy(to.scale[lane / 8], p.key_scales + from.page + slot * (p.dim / 16), p.dim / 2,
                      full);
    } else {
        bulk_copy(s.ring.tile[stage].bytes + key_place(lane / 8, lane % 8 / 2, lane % 2),
                  p.keys + from.page + slot * p.dim * 2, bytes, full);
    }
}

template <int K> DEVICE void latent_wait_for(struct Shared<K> &s, uint32_t i) {
    constexpr uint32_t stages = Ring<K>::stages;
    uint32_t n = s.span.begun + i;

    bulk_wait(&s.full[n % stages], n / stages);
}

/* Converts the codes of tile @i to halves; called by all threads, eight for each key. */
template <int K> DEVICE void latent_convert(struct Shared<K> &s, uint32_t i) {
    uint32_t tid = anew(threadIdx.x), key = tid / 8, n = s.span.begun + i;
    const struct Codes<K> &from = s.ring.codes[n % Ring<K>::stages];
    uint8_t *to = s.ring.tile[n % Ring<K>::tiles].bytes + key_place(key / 8, key % 8 / 2, key % 2);
    const uint16_t *scale = from.scale[key / 8] + key % 8 * (s.place.dim / 32);

    for (uint32_t d = tid % 8 * 8; d < s.place.dim; d += 64)
        store16(to + 2 * d, scale_key<K>(from.code[key] + d / 8 * PAGE_BITS(K), scale[d / 32]));
}

/* Returns true if tile @i is the last one of its chunk that is seen. */
DEVICE bool ends_chunk(const struct Span &at, uint32_t i) {
    return i + 1 == at.n || (at.first + i + 1) % ATTN_TILES == 0;
}

/* Computes the weights with which query @query merges tile @i, whose maximum is @m and whose sum is
 * @l, into its chunk, and the chunk, if it ends here, into the whole. */
template <int K>
DEVICE void weigh_query(struct Shared<K> &s, uint32_t i, uint32_t query, float m, float l) {
    bool begins = i == 0 || (s.span.first + i) % ATTN_TILES == 0;
    struct Weights w = merge_weights(begins ? -INFINITY : s.chunk_m[query], m);
    float sum = merge_with(begins ? 0 : s.chunk_l[query], l, w.a, w.b);

    s.tile[i % 2][query] = {w.a, w.b};
    s.chunk_m[query] = w.max;
    s.chunk_l[query] = sum;
    if (!ends_chunk(s.span, i))
        return;
    w = merge_weights(s.all_m[query], w.max);
    s.all_l[query] = merge_with(s.all_l[query], sum, w.a, w.b);
    s.all_m[query] = w.max;
    s.whole[i % 2][query] = {w.a, w.b};
}

/* Computes the scores of tile @i for group @n of 16 queries, then p and the merge weights. */
template <int K>
DEVICE void latent_weigh_tile(const struct attend_args &a, struct Shared<K> &s, uint32_t i,
                              uint32_t n) {
    uint32_t lane = anew(threadIdx.x) % 32, g = lane / 4, t = lane % 4, dim = s.place.dim;
    uint32_t first = (s.span.first + i) * ATTN_TILE;
    const uint8_t *keys =
        s.ring.tile[(s.span.begun + i) % Ring<K>::tiles].bytes + key_place(g / 2, 0, g % 2);
    float c[4][4] = {}, m[2], l[2];
    uint32_t h[2][4];

#pragma unroll 1
    for (uint32_t b = 0; 32 * b < dim; b++) {
        struct vec4 q0 = load16(s.q[b][0][n][lane]), q1 = load16(s.q[b][1][n][lane]);
        uint32_t d = 32 * b + 8 * t; /* beyond the last value queries are zero */
        const uint8_t *key = keys + (d < dim ? 2 * d : 0);

#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            mma_32(c[j], q0, q1, load16(key + j * Tile::row));
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        soften(a, c, k, s.reach[n * ATTN_QUERIES + g + 8 * k], first, true, &m[k], &l[k]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            h[k][j] = pack_halves(c[j][2 * k], c[j][2 * k + 1]);
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
        store16(&s.p[i % 2][n][k][lane],
                {h[0][2 * k], h[1][2 * k], h[0][2 * k + 1], h[1][2 * k + 1]});
    if (t < 2)
        weigh_query(s, i, n * ATTN_QUERIES + g + 8 * t, t ? m[1] : m[0], t ? l[1] : l[0]);
}

/* Computes o of tile @i for the warp's share of the values, which begins with value @d0, and merges
 * it into the chunk's @x. */
template <int K>
DEVICE void latent_add_values(const struct Shared<K> &s, uint32_t i, uint32_t d0, uint32_t n_value,
                              float x[GROUPS][PRODUCTS][4]) {
    uint32_t lane = anew(threadIdx.x) % 32, g = lane / 4, r = lane % 8;
    const uint8_t *values = s.ring.tile[(s.span.begun + i) % Ring<K>::tiles].bytes +
                            key_place(r / 2, lane / 8, r % 2) + d0 * 2;

#pragma unroll
    for (uint32_t half = 0; half < PRODUCTS; half += AT_ONCE) {
        struct vec4 v[AT_ONCE];

#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++)
            v[j] = load_transposed(values + (d0 + 8 * (half + j) < n_value ? 16 * (half + j) : 0));
#pragma unroll
        for (uint32_t n = 0; n < GROUPS; n++) {
            if (n >= s.span.n_groups)
                break;
            struct vec4 p0 = load16(&s.p[i % 2][n][0][lane]), p1 = load16(&s.p[i % 2][n][1][lane]);
            const struct Pair *w = &s.tile[i % 2][n * ATTN_QUERIES + g];
            float ab[2][2];

            load_floats(&w[0].a, ab[0]);
            load_floats(&w[8].a, ab[1]);
#pragma unroll
            for (uint32_t j = 0; j < AT_ONCE; j++) {
                float *to = x[n][half + j], o[4];

                mma_32_first(o, p0, p1, v[j]);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    to[k] = merge_with(to[k], o[k], ab[k / 2][0], ab[k / 2][1]);
            }
        }
    }
}

/* Merges the chunk @x that ends with tile @i into @all, and clears @x. */
template <int K>
DEVICE void add_chunk(const struct Shared<K> &s, uint32_t i, float x[GROUPS][PRODUCTS][4],
                      float all[GROUPS][PRODUCTS][4]) {
    uint32_t g = anew(threadIdx.x) % 32 / 4;

#pragma unroll
    for (uint32_t n = 0; n < GROUPS; n++) {
        const struct Pair *w = &s.whole[i % 2][n * ATTN_QUERIES + g];

        if (n >= s.span.n_groups)
            break;
#pragma unroll
        for (uint32_t k = 0; k < PRODUCTS * 4; k++) {
            float &to = all[n][k / 4][k % 4], &part = x[n][k / 4][k % 4];

            to = merge_with(to, part, w[k % 4 / 2 * 8].a, w[k % 4 / 2 * 8].b);
            part = 0;
        }
    }
}

/* Writes the warp's share of the results, which begins with value @d0. */
template <int K>
DEVICE void latent_store_share(const struct attend_args &a, const struct attn_item &it,
                               const struct Shared<K> &s, uint32_t d0,
                               const float all[GROUPS][PRODUCTS][4]) {
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
    for (uint32_t i = 0; i < 2 * GROUPS; i++) {
        uint32_t query = 8 * i + g;

        if (query >= it.n_q)
            continue;
        float *to = attention_result(a, it, query) + d0 + 2 * t;
#pragma unroll
        for (uint32_t j = 0; j < PRODUCTS; j++) {
            float two[2];

#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                float v = all[i / 2][j][i % 2 * 2 + k];

                two[k] = it.chunk < 0 ? v * s.all_a[query] / s.all_l[query] : v;
            }
            if (d0 + 8 * j < a.n_value)
                store_some<2>(to + 8 * j, two);
        }
    }
}

/* Reads item @i; called by one thread. */
template <int K>
DEVICE void latent_load_item(const struct attend_args &a, struct Shared<K> &s, uint32_t i) {
    struct attn_item &it = s.item;

    it = a.batch->item[i];
    uint32_t seen = first_key_of(a, it), last = it.pos0 + (it.q0 + it.n_q - 1) / a.group;
    uint32_t from = seen / ATTN_TILE, to = last / ATTN_TILE + 1;
    uint32_t chunk = (uint32_t)it.chunk * ATTN_TILES;

    if (it.chunk >= 0) {
        from = from > chunk ? from : chunk;
        to = to < chunk + ATTN_TILES ? to : chunk + ATTN_TILES;
    }
    find_place(s.place, a, it, seen);
    s.span.begun += s.span.n;
    s.span.first = from;
    s.span.n = to > from ? to - from : 0;
    s.span.n_groups = (it.n_q + ATTN_QUERIES - 1) / ATTN_QUERIES;
}

/*
 * Computes an item: the pipeline of the top of this file. Each stage needs data that the step
 * before has completed, or room that it has finished reading.
 */
template <int K> DEVICE void latent_attend_item(const struct attend_args &a, struct Shared<K> &s) {
    constexpr uint32_t before = K != PAGE_F16 ? 2 : 1; /* steps until the first tile is added */
    uint32_t tid = threadIdx.x, warp = tid / 32, d0 = warp * (LATENT_VALUE / WARPS);
    float x[GROUPS][PRODUCTS][4] = {}, all[GROUPS][PRODUCTS][4] = {};

    if (tid < s.queries) {
        s.all_m[tid] = s.chunk_m[tid] = -INFINITY;
        s.all_l[tid] = s.chunk_l[tid] = 0;
    }
    if (warp == 0)
        for (uint32_t i = 0; i < 3 - before && i < s.span.n; i++)
            latent_fetch(s, i);
    load_reaches(a, s.item, s);
    attention_load_queries<BLOCKS>(a, s.item, s);
    for (uint32_t step = 0; step < s.span.n + before; step++) {
        uint32_t ahead = step + 3 - before,
                 weighed = step + 1 - before; /* unsigned: wraps to a large number before tile 0 */

        sync_block();
        if (ahead < s.span.n && warp == (ahead + 1) * GROUPS % WARPS)
            latent_fetch(s, ahead);
        if constexpr (K != PAGE_F16) {
            if (step < s.span.n) {
                latent_wait_for(s, step);
                latent_convert(s, step);
            }
        }
        uint32_t group = (warp - weighed * GROUPS) % WARPS;
        if (group < s.span.n_groups && weighed < s.span.n) {
            if (K == PAGE_F16)
                latent_wait_for(s, weighed);
            latent_weigh_tile(a, s, weighed, group);
        }
        if (step < before)
            continue;
        uint32_t i = step - before;
        if (K == PAGE_F16)
            latent_wait_for(s, i);
        if (d0 < a.n_value)
            latent_add_values(s, i, d0, a.n_value, x);
        if (ends_chunk(s.span, i))
            add_chunk(s, i, x, all);
    }
    if (tid < s.queries)
        end_query(a, s.item, s, tid);
    sync_block();
    if (d0 < a.n_value)
        latent_store_share(a, s.item, s, d0, all);
    store_weights(a, s.item, s);
}

template <int K> DEVICE void attend_items(const struct attend_args &a) {
    using S = struct Shared<K>;
    S &s = *(S *)dynamic_shared();

    static_assert(sizeof(S) <= ATTEND_LATENT_SHARED, "kernels_attention.h");
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < Ring<K>::stages; i++)
            bulk_init(&s.full[i]);
        bulk_publish();
        s.span = {0, 0, 0, 0};
    }
    for (uint32_t i = blockIdx.x; i < a.batch->n_items; i += gridDim.x) {
        if (threadIdx.x == 0)
            latent_load_item(a, s, i);
        sync_block();
        if (s.span.n > 0) /* plan.cu makes no item of which no query sees a key */
            latent_attend_item(a, s);
        sync_block();
    }
}

#define ATTEND_BULK(K)                                                                             \
    wait_for_previous();                                                                           \
    attend_items<K>(a)
#else
#define ATTEND_BULK(K)
#endif
#define ATTEND_LATENT(NAME, K, V)                                                                  \
    KERNEL(NAME, struct attend_args, CUDA_THREADS, 1) {                                            \
        ATTEND_BULK(K);                                                                            \
    }

FOR_PAGES_ALIKE(ATTEND_LATENT, attend_latent_bulk)
