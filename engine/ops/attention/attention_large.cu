/*
 * attention_large - attention for heads of more than 128 values, and latent attention (MLA) on
 * devices without bulk copies, with the merge tree and the bits of attention.cu.
 *
 * In attention.cu a warp computes a tile from scores to o, and the warps exchange o through shared
 * memory. With 256 or 512 values, o of eight tiles does not fit there. So the work of a chunk is
 * divided in two phases, with barriers between them:
 *
 *     large_weigh_tile() warp w: scores and softmax of tile w for all queries of the block;
 *                     writes p (as operands of mma), m and l to shared memory
 *     attention_weigh() one thread for each query: weights a, b of the merges, left to right
 *     merge_tiles()   warp w: an eighth of the values; for each tile o = p v by mma, merged into
 *                     its accumulators: (values / 8) x queries floats in registers
 *
 * Every warp thus needs p of all tiles but no other warp's o, and only p, m, l and the merge
 * weights pass through shared memory. The merges have the operands and the order of attention.cu,
 * hence the same bits.
 *
 * A latent key is its value as well (its first n_value values). It is loaded once for the scores of
 * all groups of 16 queries of a block and once more as values. Then a lane has whole pieces of
 * keys, while mma wants one value of several keys, so the columns of the products are permuted:
 * values that meet in one product are eight apart (struct Values<N, V, true>).
 *
 * attend_256, attend_512: 16 queries, static shared memory. attend_wide_256, attend_wide_512,
 * attend_latent: G groups of 16 queries, whose keys are loaded once; dynamic shared memory.
 */

#include "engine/ops/attention/attention.cuh"

#define WARPS (CUDA_THREADS / 32)

static_assert(WARPS == ATTN_TILES, "a warp has a tile of a chunk");

/* Shared memory of a block with G groups of 16 queries and heads of up to 32 D values. */
template <int D, int G> struct alignas(16) Shared {
    static constexpr uint32_t queries = G * ATTN_QUERIES;

    struct Place place;
    struct Group group[ATTN_CHUNK / 8];  /* where each eight keys of the chunk are */
    uint16_t q[D][2][G][32][8];          /* attention_load_queries() */
    struct vec4 p[ATTN_TILES][G][2][32]; /* p by lane, as operands of both mma of a product */
    float m[ATTN_TILES][queries], l[ATTN_TILES][queries];
    float a[ATTN_TILES][queries], b[ATTN_TILES][queries];
    float chunk_m[queries], chunk_l[queries], all_m[queries], all_l[queries];
    float all_a[queries], all_b[queries];
    struct Reach reach[queries];
};

/* Computes the scores of the tile that begins with key @first for all groups of 16 queries; each
 * key is loaded once. */
template <int D, int G, int K>
DEVICE void large_score(const struct Shared<D, G> &s, uint32_t first, uint32_t n_groups,
                        float c[G][4][4]) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, d0 = lane % 4 * 8;
    struct Group at = attention_group_at(s.place, first + g / 2 * 8);

#pragma unroll
    for (int b = 0; b < D; b++) {
        uint32_t d = attention_inside<D>(b, 32 * b + d0, s.place.dim);
        struct vec4 k[4];

        if (32 * D > HEAD_MAX && 32u * b >= s.place.dim) /* a latent head may be narrower */
            break;
#pragma unroll
        for (int j = 0; j < 4; j++)
            k[j] = load_key<K>(s.place, at, attn_key_of_column(j, g % 2), d);
#pragma unroll
        for (uint32_t n = 0; n < G; n++) {
            if (n >= n_groups)
                break;
            struct vec4 q0 = load16(s.q[b][0][n][lane]), q1 = load16(s.q[b][1][n][lane]);
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_32(c[n][j], q0, q1, k[j]);
        }
    }
}

/* Computes the softmax of the warp's tile: p as halves, m and l, to shared memory. */
template <int D, int G, int K>
DEVICE void large_weigh_tile(const struct attend_args &a, struct Shared<D, G> &s, uint32_t first,
                             uint32_t n_groups) {
    uint32_t tid = anew(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
    float c[G][4][4] = {};

    if (attention_is_seen(s.place, first))
        large_score<D, G, K>(s, first, n_groups, c);
#pragma unroll
    for (uint32_t n = 0; n < G; n++) {
        uint32_t h[2][4];

#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t query = n * ATTN_QUERIES + g + 8 * i;
            float m, l;

            soften(a, c[n], i, s.reach[query], first, true, &m, &l);
#pragma unroll
            for (int j = 0; j < 4; j++)
                h[i][j] = pack_halves(c[n][j][2 * i], c[n][j][2 * i + 1]);
            if (t == 0) {
                s.m[warp][query] = m;
                s.l[warp][query] = l;
            }
        }
#pragma unroll
        for (int k = 0; k < 2; k++)
            store16(&s.p[warp][n][k][lane],
                    {h[0][2 * k], h[1][2 * k], h[0][2 * k + 1], h[1][2 * k + 1]});
    }
}

/* The values of a tile's 32 keys in the warp's share, which begins with value @d0: eight for each
 * of N products. get() returns the operand of product j; column c of it is value value_of(j, c). */
template <int N, int V, bool LATENT> struct Values;

template <int N, int V> struct Values<N, V, false> {
    struct vec4 v[N];

    MEMBER void load(const struct Place &p, const struct Group &at, uint32_t d0) {
        static_assert(N % 2 == 0, "values are loaded in pairs");
#pragma unroll
        for (uint32_t j = 0; j < N; j += 2)
            load_two_values<V>(p, at, d0 + threadIdx.x % 32 / 4 + 8 * j, v + j);
    }
    MEMBER struct vec4 get(int j) const {
        return v[j];
    }
    static MEMBER uint32_t value_of(uint32_t j, uint32_t column) {
        return 8 * j + column;
    }
};

/* Values of latent attention, which are the first values of the keys. A lane loads values d0 + 8 g
 * .. d0 + 8 g + 7 of each of its eight keys; two keys' halves of one value form a word of an
 * operand. Values that meet in one product are therefore eight apart. */
template <int N, int V> struct Values<N, V, true> {
    struct vec4 key[8];

    static_assert(N == 8, "a load has a value of each product");

    MEMBER void load(const struct Place &p, const struct Group &at, uint32_t d0) {
        uint32_t d = d0 + threadIdx.x % 32 / 4 * 8;

#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            key[i] = load_key<V>(p, at, i, d < p.dim ? d : 0);
    }
    /* Returns value j of keys 2 i and 2 i + 1. */
    MEMBER uint32_t pair(int i, int j) const {
        return byte_permute(word_of(key[2 * i], j / 2), word_of(key[2 * i + 1], j / 2),
                            j % 2 ? 0x7632u : 0x5410u);
    }
    MEMBER struct vec4 get(int j) const {
        return {pair(0, j), pair(1, j), pair(2, j), pair(3, j)};
    }
    static MEMBER uint32_t value_of(uint32_t j, uint32_t column) {
        return 8 * column + j;
    }
};

/* Merges the chunk's tiles from left to right into @x, the accumulators of the warp's share of the
 * values, which begins with @d0; x[n] belongs to group n of queries. */
template <int D, int G, int N, int V, bool LATENT>
DEVICE void merge_tiles(const struct Shared<D, G> &s, uint32_t chunk, uint32_t d0,
                        uint32_t n_groups, float x[G][N][4]) {
    [[maybe_unused]] constexpr int unroll = G > 1 ? 1 : 2;
    uint32_t lane = anew(threadIdx.x) % 32, g = lane / 4;

#pragma unroll unroll
    for (uint32_t w = 0; w < ATTN_TILES; w++) {
        Values<N, V, LATENT> values;

        if (!attention_is_seen(s.place, chunk + w * ATTN_TILE))
            continue;
        values.load(s.place, s.group[w * (ATTN_TILE / 8) + lane % 4], d0);
#pragma unroll
        for (uint32_t n = 0; n < G; n++) {
            uint32_t query = n * ATTN_QUERIES + g;

            if (n >= n_groups)
                break;
            struct vec4 p0 = load16(&s.p[w][n][0][lane]), p1 = load16(&s.p[w][n][1][lane]);
            float a[2] = {s.a[w][query], s.a[w][query + 8]};
            float b[2] = {s.b[w][query], s.b[w][query + 8]};
#pragma unroll
            for (int j = 0; j < N; j++) {
                float o[4];

                mma_32_first(o, p0, p1, values.get(j));
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[n][j][i] = merge_with(x[n][j][i], o[i], a[i / 2], b[i / 2]);
            }
        }
    }
}

/* Writes the warp's share of the results, which begins with value @d0; @x is not divided by l
 * yet. */
template <int D, int G, int N, class VALUES>
DEVICE void large_store_share(const struct attend_args &a, const struct attn_item &it,
                              const struct Shared<D, G> &s, uint32_t d0, const float x[G][N][4]) {
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
    for (uint32_t i = 0; i < 2 * G; i++) {
        uint32_t query = 8 * i + g;

        if (query >= it.n_q)
            continue;
        float *to = attention_result(a, it, query);
#pragma unroll
        for (uint32_t k = 0; k < 2 * N; k++) {
            uint32_t d = d0 + VALUES::value_of(k / 2, 2 * t + k % 2);
            float v = x[i / 2][k / 2][i % 2 * 2 + k % 2];

            if (d < a.n_value)
                to[d] = it.chunk < 0 ? v * s.all_a[query] / s.all_l[query] : v;
        }
    }
}

/* Computes an item. N: most values of a head's result; LATENT: values are the first values of the
 * keys; K, V: bits of keys and values. */
template <int D, int G, int N, int K, int V, bool LATENT>
DEVICE void large_attend_item(const struct attend_args &a, const struct attn_item &it,
                              struct Shared<D, G> &s) {
    constexpr int n = N / WARPS / 8; /* products per tile and group of queries */
    constexpr uint32_t queries = G * ATTN_QUERIES;
    uint32_t tid = threadIdx.x, n_groups = (it.n_q + ATTN_QUERIES - 1) / ATTN_QUERIES;
    uint32_t seen = first_key_of(a, it), g = tid % 32 / 4, d0 = tid / 32 * (N / WARPS);
    uint32_t from = it.chunk < 0 ? seen / ATTN_CHUNK : (uint32_t)it.chunk;
    uint32_t to = it.chunk < 0 ? it.n_chunks : from + 1;
    float all[G][n][4] = {};

    if (to * ATTN_CHUNK <= seen) /* no merge reads this chunk */
        return;
    if (tid == 0)
        find_place(s.place, a, it, seen);
    load_reaches(a, it, s);
    attention_load_queries<D>(a, it, s);
    if (tid < queries) {
        s.all_m[tid] = -INFINITY;
        s.all_l[tid] = 0;
    }
    sync_block();
    for (uint32_t c = from; c < to; c++) {
        float x[G][n][4] = {};

        large_weigh_tile<D, G, K>(a, s, c * ATTN_CHUNK + tid / 32 * ATTN_TILE, n_groups);
        sync_block();
        if (tid < queries)
            attention_weigh(s, tid);
        if (tid >= CUDA_THREADS - ATTN_CHUNK / 8)
            s.group[tid % (ATTN_CHUNK / 8)] =
                attention_group_at(s.place, c * ATTN_CHUNK + tid % (ATTN_CHUNK / 8) * 8);
        sync_block();
        if (d0 < a.n_value)
            merge_tiles<D, G, n, V, LATENT>(s, c * ATTN_CHUNK, d0, n_groups, x);
#pragma unroll
        for (int i = 0; i < G * n * 4; i++) {
            uint32_t query = i / (4 * n) * ATTN_QUERIES + g + i % 4 / 2 * 8;
            float &whole = all[i / (4 * n)][i / 4 % n][i % 4];
            float part = x[i / (4 * n)][i / 4 % n][i % 4];

            whole = it.chunk < 0 ? merge_with(whole, part, s.all_a[query], s.all_b[query]) : part;
        }
        sync_block();
    }
    if (tid < queries)
        end_query(a, it, s, tid);
    sync_block();
    large_store_share<D, G, n, Values<n, V, LATENT>>(a, it, s, d0, all);
    store_weights(a, it, s);
}

template <int D, int G, int N, int K, int V, bool LATENT>
DEVICE void large_attend(const struct attend_args &a, struct Shared<D, G> &s) {
    for (uint32_t i = blockIdx.x; i < a.batch->n_items; i += gridDim.x) {
        large_attend_item<D, G, N, K, V, LATENT>(a, a.batch->item[i], s);
        sync_block();
    }
}

#define ATTEND(NAME, K, V, D)                                                                      \
    KERNEL(NAME, struct attend_args, CUDA_THREADS, 1) {                                            \
        wait_for_previous();                                                                       \
        SHARED struct Shared<D, 1> s;                                                              \
                                                                                                   \
        large_attend<D, 1, 32 * D, K, V, false>(a, s);                                             \
    }

FOR_PAGES(ATTEND, attend_256, 8)
FOR_PAGES(ATTEND, attend_512, 16)

/* Runs large_attend() with dynamic shared memory. */
template <int D, int G, int N, int K, int V, bool LATENT>
DEVICE void attend_groups(const struct attend_args &a) {
    using S = struct Shared<D, G>;
    S &s = *(S *)dynamic_shared();

    static_assert(sizeof(S) == ATTEND_GROUPS_SHARED(32 * D, G * ATTN_QUERIES), "kernels.h");
    static_assert(sizeof(S) <= 99 * 1024, "what every device has");
    large_attend<D, G, N, K, V, LATENT>(a, s);
}

#define ATTEND_GROUPS(NAME, K, V, D, G, N, LATENT)                                                 \
    KERNEL(NAME, struct attend_args, CUDA_THREADS, 1) {                                            \
        wait_for_previous();                                                                       \
        attend_groups<D, (G) / ATTN_QUERIES, N, K, V, LATENT>(a);                                  \
    }

FOR_PAGES(ATTEND_GROUPS, attend_wide_256, 8, ATTN_WIDE_256, 256, false)
FOR_PAGES(ATTEND_GROUPS, attend_wide_512, 16, ATTN_WIDE_512, 512, false)
FOR_PAGES_ALIKE(ATTEND_GROUPS, attend_latent, LATENT_KEY / 32, ATTN_LATENT, LATENT_VALUE, true)
