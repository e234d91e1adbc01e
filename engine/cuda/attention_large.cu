/*
 * attention_large - attention of heads of more than 256 values and latent attention, in the tree of
 * attention.cu: a warp has a tile, and 16 values of the head are computed and merged at a time,
 * since results of all would not fit the registers. Latent attention has up to 32 queries a block,
 * whose keys are loaded once for both groups of 16, and once more as values.
 */

#include "engine/cuda/attention.cuh"

#define PART 16u /* values of a head whose tiles are computed and merged at a time */

/* Of G groups of 16 queries and heads of up to 32 D values. */
template <int D, int G> struct alignas(16) Shared {
    static constexpr uint32_t queries = G * ATTN_QUERIES;
    static constexpr uint32_t stride = 32 * D + 8;

    struct Place place;
    uint16_t q[queries][stride];
    float o[ATTN_TILES][queries][PART + 4]; /* rows in different banks */
    float m[ATTN_TILES][queries], l[ATTN_TILES][queries];
    float a[ATTN_TILES][queries], b[ATTN_TILES][queries];
    float chunk_m[queries], chunk_l[queries], all_m[queries], all_l[queries];
    float all_a[queries], all_b[queries];
    uint32_t pos[queries];
};

/* Scores of the tile that begins with key @first, for all groups of 16 queries: a key is loaded
 * once. */
template <int D, int G, bool Q8>
DEVICE void score(const struct Shared<D, G> &s, uint32_t first, uint32_t n_groups,
                  float c[G][4][4]) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, d0 = lane % 4 * 8;
    struct Group at = group_at(s.place, first + g / 2 * 8);

#pragma unroll
    for (int b = 0; b < D; b++) {
        uint32_t d = inside<D>(b, 32 * b + d0, s.place.dim);
        struct vec4 k[4], q[2];

        if (32 * D > HEAD_MAX && 32u * b >= s.place.dim) /* of latent attention */
            break;
#pragma unroll
        for (int j = 0; j < 4; j++)
            k[j] = load_key<Q8>(s.place, at, attn_key_of_column(j, g % 2), d);
#pragma unroll
        for (uint32_t n = 0; n < G; n++) {
            if (n >= n_groups)
                break;
#pragma unroll
            for (int i = 0; i < 2; i++)
                q[i] = load16(&s.q[n * ATTN_QUERIES + g + 8 * i][32 * b + d0]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                mma(c[n][j], q[0].x, q[1].x, q[0].y, q[1].y, k[j].x, k[j].y);
                mma(c[n][j], q[0].z, q[1].z, q[0].w, q[1].w, k[j].z, k[j].w);
            }
        }
    }
}

/* The warp's tile: probabilities in registers, m and l in shared memory. */
template <int D, int G, bool Q8>
DEVICE void weigh_tile(const struct attend_args &a, struct Shared<D, G> &s, uint32_t first,
                       uint32_t n_groups, uint32_t h[G][2][4]) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
    float c[G][4][4];

#pragma unroll
    for (uint32_t i = 0; i < 16 * G; i++)
        c[i / 16][i / 4 % 4][i % 4] = 0;
    if (is_seen(s.place, first))
        score<D, G, Q8>(s, first, n_groups, c);
#pragma unroll
    for (uint32_t n = 0; n < G; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t query = n * ATTN_QUERIES + g + 8 * i;
            float m, l;

            soften(a, c[n], i, s.pos[query], first, true, &m, &l);
#pragma unroll
            for (int j = 0; j < 4; j++)
                h[n][i][j] = pack_halves(c[n][j][2 * i], c[n][j][2 * i + 1]);
            if (lane % 4 == 0) {
                s.m[warp][query] = m;
                s.l[warp][query] = l;
            }
        }
}

/* Values [d0, d0 + PART) of the warp's tile, into shared memory: a value is loaded once. */
template <int D, int G, bool Q8>
DEVICE void do_part(struct Shared<D, G> &s, uint32_t first, uint32_t d0, uint32_t n_groups,
                    const uint32_t h[G][2][4]) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    struct Group at = group_at(s.place, first + 8 * t);
    bool seen = is_seen(s.place, first);

#pragma unroll
    for (uint32_t b = 0; b < PART / 8; b++) {
        uint32_t d = d0 + 8 * b;
        struct vec4 v = load_value<Q8>(s.place, at, inside<D>(d / 32, d + g, s.place.dim));

#pragma unroll
        for (uint32_t n = 0; n < G; n++) {
            float o[4] = {0, 0, 0, 0};

            if (n >= n_groups)
                break;
            if (seen) {
                mma(o, h[n][0][0], h[n][1][0], h[n][0][1], h[n][1][1], v.x, v.y);
                mma(o, h[n][0][2], h[n][1][2], h[n][0][3], h[n][1][3], v.z, v.w);
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
                s.o[warp][n * ATTN_QUERIES + g + j / 2 * 8][8 * b + 2 * t + j % 2] = o[j];
        }
    }
}

/*
 * Values that are the first of the keys: a lane loads values 64 b + 8 g .. + 7 of each of its eight
 * keys, and has in a word of two keys what mma wants of two values. Those that meet in a product
 * are eight apart: value 8 g + j of all g in product j.
 */
struct Latent {
    static constexpr int parts = 64 / PART; /* of the values that are loaded at a time */
    struct vec4 key[8];

    template <bool Q8>
    __device__ __forceinline__ void load(const struct Place &p, uint32_t first, int b) {
        uint32_t lane = threadIdx.x % 32, d = 64 * b + lane / 4 * 8;
        struct Group at = group_at(p, first + lane % 4 * 8);

#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            key[i] = load_key<Q8>(p, at, i, d < p.dim ? d : 0);
    }
    /* Word @w of keys 2 i and 2 i + 1: @high: the upper halves. */
    __device__ __forceinline__ uint32_t pair(int i, int w, int high) const {
        const struct vec4 &x = key[2 * i], &y = key[2 * i + 1];
        uint32_t u = w == 0 ? x.x : w == 1 ? x.y : w == 2 ? x.z : x.w;
        uint32_t v = w == 0 ? y.x : w == 1 ? y.y : w == 2 ? y.z : y.w;

        return byte_permute(u, v, high ? 0x7632u : 0x5410u);
    }
    /* Which value column @column of part @n is. */
    __device__ __forceinline__ static uint32_t value_of(uint32_t n, uint32_t column) {
        return n / parts * 64 + column % 8 * 8 + n % parts * 2 + column / 8;
    }
};

/* As do_part(), of the @w'th part of the values in @v. */
template <int D, int G>
DEVICE void do_latent_part(const struct Latent &v, int w, struct Shared<D, G> &s, bool seen,
                           uint32_t n_groups, const uint32_t h[G][2][4]) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
        for (uint32_t n = 0; n < G; n++) {
            float o[4] = {0, 0, 0, 0};

            if (n >= n_groups)
                break;
            if (seen) {
                mma(o, h[n][0][0], h[n][1][0], h[n][0][1], h[n][1][1], v.pair(0, w, b),
                    v.pair(1, w, b));
                mma(o, h[n][0][2], h[n][1][2], h[n][0][3], h[n][1][3], v.pair(2, w, b),
                    v.pair(3, w, b));
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
                s.o[warp][n * ATTN_QUERIES + g + j / 2 * 8][8 * b + 2 * t + j % 2] = o[j];
        }
}

/* The merged chunk at query @query and value @d of the part. */
template <class S> DEVICE float merged(const S &s, uint32_t query, uint32_t d) {
    float x = 0;

    for (uint32_t w = 0; w < ATTN_TILES; w++)
        x = merge_with(x, s.o[w][query][d], s.a[w][query], s.b[w][query]);
    return x;
}

/* Value @d of a query's result: @x, not divided yet. */
template <class S>
DEVICE void put_value(const struct attend_args &a, const struct attn_item &it, const S &s,
                      uint32_t query, uint32_t d, float x) {
    if (query >= it.n_q || d >= a.n_value)
        return;
    result_of(a, it, query)[d] = it.chunk < 0 ? x * s.all_a[query] / s.all_l[query] : x;
}

/* V: values that a head's result has at most; fewer than 32 D: those of the keys. */
template <int D, int G, int V, bool Q8>
DEVICE void attend_item(const struct attend_args &a, const struct attn_item &it,
                        struct Shared<D, G> &s) {
    constexpr bool is_latent = V < 32 * D;
    constexpr uint32_t queries = G * ATTN_QUERIES;
    constexpr int n_parts = V / PART, per_thread = queries * PART / CUDA_THREADS;
    uint32_t tid = threadIdx.x, n_groups = (it.n_q + ATTN_QUERIES - 1) / ATTN_QUERIES;
    uint32_t seen = first_key_of(a, it);
    uint32_t from = it.chunk < 0 ? seen / ATTN_CHUNK : (uint32_t)it.chunk;
    uint32_t to = it.chunk < 0 ? it.n_chunks : from + 1;
    float all[n_parts][per_thread];
    uint32_t h[G][2][4];
    struct Latent values;

    if (to * ATTN_CHUNK <= seen) /* no merge looks at it */
        return;
    if (tid == 0)
        find_place(s.place, a, it, seen);
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

        weigh_tile<D, G, Q8>(a, s, first, n_groups, h);
        sync_block();
        if (tid < queries)
            weigh(s, tid);
#pragma unroll
        for (int n = 0; n < n_parts; n++) {
            if (is_latent && n / Latent::parts * 64u >= a.n_value)
                break;
            if (is_latent && n % Latent::parts == 0)
                values.load<Q8>(s.place, first, n / Latent::parts);
            if (is_latent)
                do_latent_part<D, G>(values, n % Latent::parts, s, is_seen(s.place, first),
                                     n_groups, h);
            else
                do_part<D, G, Q8>(s, first, n * PART, n_groups, h);
            sync_block();
#pragma unroll
            for (int i = 0; i < per_thread; i++) {
                uint32_t at = tid + i * CUDA_THREADS, query = at / PART;

                if (query >= n_groups * ATTN_QUERIES)
                    break;
                float x = merged(s, query, at % PART);

                all[n][i] =
                    it.chunk < 0 ? merge_with(all[n][i], x, s.all_a[query], s.all_b[query]) : x;
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
            uint32_t at = tid + i * CUDA_THREADS, column = at % PART;

            put_value(a, it, s, at / PART,
                      is_latent ? Latent::value_of(n, column) : n * PART + column, all[n][i]);
        }
    put_weights(a, it, s);
}

template <bool Q8>
DEVICE void attend_512_all(const struct attend_args &a, struct Shared<16, 1> &s) {
    for (uint32_t i = blockIdx.x; i < a.batch->n_items; i += gridDim.x) {
        const struct attn_item &it = a.batch->item[i];

        attend_item<16, 1, 512, Q8>(a, it, s);
        if (a.merged)
            finish_item(a, it);
        sync_block();
    }
}

KERNEL(attend_512, struct attend_args, CUDA_THREADS, 1) {
    wait_for_previous();
    SHARED struct Shared<16, 1> s;

    attend_512_all<false>(a, s);
}

KERNEL(attend_512_q8, struct attend_args, CUDA_THREADS, 1) {
    wait_for_previous();
    SHARED struct Shared<16, 1> s;

    attend_512_all<true>(a, s);
}

template <bool Q8> DEVICE void attend_latent_all(const struct attend_args &a) {
    constexpr int groups = ATTN_LATENT / ATTN_QUERIES;
    using S = struct Shared<LATENT_KEY / 32, groups>;
    S &s = *(S *)dynamic_shared();

    static_assert(sizeof(S) == ATTEND_LATENT_SHARED && sizeof(S) <= 99 * 1024, "kernels.h");
    for (uint32_t i = blockIdx.x; i < a.batch->n_items; i += gridDim.x) {
        attend_item<LATENT_KEY / 32, groups, LATENT_VALUE, Q8>(a, a.batch->item[i], s);
        sync_block();
    }
}

KERNEL(attend_latent, struct attend_args, CUDA_THREADS, 1) {
    wait_for_previous();
    attend_latent_all<false>(a);
}

KERNEL(attend_latent_q8, struct attend_args, CUDA_THREADS, 1) {
    wait_for_previous();
    attend_latent_all<true>(a);
}
