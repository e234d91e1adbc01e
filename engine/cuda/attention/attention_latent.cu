/*
 * attention_latent - latent attention with the bits of attend_latent (attention_large.cu), for
 * devices with copies in bulk and the shared memory of servers. A tile of keys comes to shared
 * memory once, for the scores and as values, for up to 48 queries. While the block adds the values
 * of a tile, each warp an eighth of them, the scores of the next one are made, by one warp for each
 * 16 queries, in turn, and the tiles behind are on their way: one barrier a tile.
 *
 * Bound, in the model, by what it reads of shared memory.
 */

#include "engine/cuda/attention/attention.cuh"
#include "engine/cuda/bulk.cuh"

#define WARPS (CUDA_THREADS / 32)
#define GROUPS (ATTN_LATENT_BULK / ATTN_QUERIES)
#define BLOCKS (LATENT_KEY / 32) /* blocks of 32 values of a key */
/* Products of a tile's values for a warp and a group of queries. */
#define PRODUCTS (LATENT_VALUE / WARPS / 8)
#define AT_ONCE 4u /* products whose values are loaded together */

#ifdef WEFT_SIMT
extern "C" const bool attend_latent_built = true;
#else
/* Families that have copies in bulk and 212 KiB of shared memory, or run code for one that does. */
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
 * 32 keys. Those of one lane's loads lie so that eight lanes reach all banks: keys 2 t and 2 t + 1
 * of scores are 64 bytes apart, keys 8 t and 8 t + 1 of values 16 to 112.
 */
struct alignas(16) Tile {
    static constexpr uint32_t row = LATENT_KEY * 2, four = 4 * row + 16;

    uint8_t bytes[8 * four];
};

/* Returns the offset of key 8 @m + 2 @j + @odd in a tile. */
DEVICE uint32_t key_place(uint32_t m, uint32_t j, uint32_t odd) {
    return (4 * odd + m) * Tile::four + j * Tile::row;
}

/* 32 keys as pages of 8 or 4 bits have them. */
template <int K> struct alignas(16) Codes {
    uint8_t code[ATTN_TILE][LATENT_KEY / 8 * K];
    uint16_t scale[4][8 * BLOCKS]; /* scales of eight keys: [key][dim / 32] */
};

/* Tiles on their way and in use: that whose values are added, that whose scores are made, and
 * that whose codes become halves. */
template <int K> struct Ring {
    static constexpr uint32_t stages = 2, tiles = 3;
    struct Tile tile[3];
    struct Codes<K> codes[2];
};

template <> struct Ring<16> {
    static constexpr uint32_t stages = 4, tiles = 4;
    struct Tile tile[4];
};

struct alignas(8) Pair {
    float a, b;
};

/* The tiles of an item that its queries see. */
struct Span {
    uint32_t first, n; /* tiles */
    uint32_t begun;    /* tiles of the items before it */
    uint32_t n_groups;
};

template <int K> struct alignas(16) Shared {
    static constexpr uint32_t queries = ATTN_LATENT_BULK;

    struct Ring<K> ring;
    uint16_t q[BLOCKS][2][GROUPS][32][8]; /* take_queries() */
    struct vec4 p[2][GROUPS][2][32]; /* probabilities of two tiles, by lane, as mma takes them */
    struct Pair tile[2][queries];    /* weights of the merging into the chunk . */
    struct Pair whole[2][queries];   /* .. and of the chunk, if it ends with the tile */
    float chunk_m[queries], chunk_l[queries], all_m[queries], all_l[queries], all_a[queries];
    struct Reach reach[queries];
    struct Place place;
    struct Span span; /* keys of the item */
    struct attn_item item;
    uint64_t full[Ring<K>::stages];
};

/* Starts to bring tile @i, by a warp, a key a lane. */
template <int K> DEVICE void fetch(struct Shared<K> &s, uint32_t i) {
    constexpr uint32_t stages = Ring<K>::stages;
    const struct Place &p = s.place;
    uint32_t lane = anew(threadIdx.x) % 32, stage = (s.span.begun + i) % stages, bytes = p.dim * 2;
    struct Group from = group_at(p, (s.span.first + i) * ATTN_TILE + lane / 8 * 8);
    uint32_t slot = from.slot + lane % 8;
    uint64_t *full = &s.full[stage];

    if constexpr (K < 16)
        bytes = p.dim / 8 * K + p.dim / 16;
    bulk_publish(); /* the tile that lay there has been read */
    if (lane == 0)
        bulk_expect(full, ATTN_TILE * bytes);
    sync_warp();
    if constexpr (K < 16) {
        struct Codes<K> &to = s.ring.codes[stage];
        uint32_t n = p.dim / 8 * K;

        bulk_copy(to.code[lane], p.keys + from.page + slot * n, n, full);
        if (lane % 8 == 0)
            bulk_copy(to.scale[lane / 8], p.key_scales + from.page + slot * (p.dim / 16), p.dim / 2,
                      full);
    } else {
        bulk_copy(s.ring.tile[stage].bytes + key_place(lane / 8, lane % 8 / 2, lane % 2),
                  p.keys + from.page + slot * p.dim * 2, bytes, full);
    }
}

template <int K> DEVICE void wait_for(struct Shared<K> &s, uint32_t i) {
    constexpr uint32_t stages = Ring<K>::stages;
    uint32_t n = s.span.begun + i;

    bulk_wait(&s.full[n % stages], n / stages);
}

/* The codes of tile @i become halves, by all threads: eight threads a key. */
template <int K> DEVICE void convert(struct Shared<K> &s, uint32_t i) {
    uint32_t tid = anew(threadIdx.x), key = tid / 8, n = s.span.begun + i;
    const struct Codes<K> &from = s.ring.codes[n % Ring<K>::stages];
    uint8_t *to = s.ring.tile[n % Ring<K>::tiles].bytes + key_place(key / 8, key % 8 / 2, key % 2);
    const uint16_t *scale = from.scale[key / 8] + key % 8 * (s.place.dim / 32);

    for (uint32_t d = tid % 8 * 8; d < s.place.dim; d += 64)
        store16(to + 2 * d, scale_key<K>(from.code[key] + d / 8 * K, scale[d / 32]));
}

/* Returns true if a chunk, or the part of it that is seen, ends with tile @i. */
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

/* Scores of tile @i and 16 queries, group @n; then probabilities and what merges them. */
template <int K>
DEVICE void weigh_tile(const struct attend_args &a, struct Shared<K> &s, uint32_t i, uint32_t n) {
    uint32_t lane = anew(threadIdx.x) % 32, g = lane / 4, t = lane % 4, dim = s.place.dim;
    uint32_t first = (s.span.first + i) * ATTN_TILE;
    const uint8_t *keys =
        s.ring.tile[(s.span.begun + i) % Ring<K>::tiles].bytes + key_place(g / 2, 0, g % 2);
    float c[4][4] = {}, m[2], l[2];
    uint32_t h[2][4];

#pragma unroll 1
    for (uint32_t b = 0; 32 * b < dim; b++) {
        struct vec4 q0 = load16(s.q[b][0][n][lane]), q1 = load16(s.q[b][1][n][lane]);
        uint32_t d = 32 * b + 8 * t; /* behind the last value queries are zero */
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

/* Adds the values of tile @i, the warp's share, which begins with value @d0, to the chunk's. */
template <int K>
DEVICE void add_values(const struct Shared<K> &s, uint32_t i, uint32_t d0, uint32_t n_value,
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

/* The chunk that ends with tile @i goes into the whole; the first one is the whole. */
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

/* The warp's share of the results, which begins with value @d0. */
template <int K>
DEVICE void put_share(const struct attend_args &a, const struct attn_item &it,
                      const struct Shared<K> &s, uint32_t d0,
                      const float all[GROUPS][PRODUCTS][4]) {
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
    for (uint32_t i = 0; i < 2 * GROUPS; i++) {
        uint32_t query = 8 * i + g;

        if (query >= it.n_q)
            continue;
        float *to = result_of(a, it, query) + d0 + 2 * t;
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

/* By one thread: item @i, of whose tiles those of @begun were before it. */
template <int K>
DEVICE void take_item(const struct attend_args &a, struct Shared<K> &s, uint32_t i) {
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
 * Step i: tile i + 3 is asked for, tile i + 2 becomes halves, tile i + 1 is weighed, tile i added.
 * Each needs what the step before has left, or left off using.
 */
template <int K> DEVICE void attend_item(const struct attend_args &a, struct Shared<K> &s) {
    constexpr uint32_t before = K < 16 ? 2 : 1; /* steps before the first tile is added */
    uint32_t tid = threadIdx.x, warp = tid / 32, d0 = warp * (LATENT_VALUE / WARPS);
    float x[GROUPS][PRODUCTS][4] = {}, all[GROUPS][PRODUCTS][4] = {};

    if (tid < s.queries) {
        s.all_m[tid] = s.chunk_m[tid] = -INFINITY;
        s.all_l[tid] = s.chunk_l[tid] = 0;
    }
    if (warp == 0)
        for (uint32_t i = 0; i < 3 - before && i < s.span.n; i++)
            fetch(s, i);
    take_reaches(a, s.item, s);
    take_queries<BLOCKS>(a, s.item, s);
    for (uint32_t step = 0; step < s.span.n + before; step++) {
        uint32_t ahead = step + 3 - before,
                 weighed = step + 1 - before; /* tiles before 0 do not exist */

        sync_block();
        if (ahead < s.span.n && warp == (ahead + 1) * GROUPS % WARPS)
            fetch(s, ahead);
        if constexpr (K < 16) {
            if (step < s.span.n) {
                wait_for(s, step);
                convert(s, step);
            }
        }
        uint32_t group = (warp - weighed * GROUPS) % WARPS;
        if (group < s.span.n_groups && weighed < s.span.n) {
            if (K == 16)
                wait_for(s, weighed);
            weigh_tile(a, s, weighed, group);
        }
        if (step < before)
            continue;
        uint32_t i = step - before;
        if (K == 16)
            wait_for(s, i);
        if (d0 < a.n_value)
            add_values(s, i, d0, a.n_value, x);
        if (ends_chunk(s.span, i))
            add_chunk(s, i, x, all);
    }
    if (tid < s.queries)
        end_query(a, s.item, s, tid);
    sync_block();
    if (d0 < a.n_value)
        put_share(a, s.item, s, d0, all);
    put_weights(a, s.item, s);
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
            take_item(a, s, i);
        sync_block();
        if (s.span.n > 0) /* plan.cu makes no item of which no query sees a key */
            attend_item(a, s);
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
