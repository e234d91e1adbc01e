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

#include "engine/cuda/attention.cuh"

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

        if (32 * D > HEAD_MAX && 32u * b >= p.shape.head_dim) /* of latent attention */
            break;
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

/*
 * Values that are the first of the keys: a lane loads values 64 b + 8 g .. + 7 of each of its eight
 * keys, and has in a word of two keys what mma wants of two values. Those that meet in a product
 * are eight apart: value 8 g + j of all g in product j.
 */
struct Latent {
    static constexpr int parts = 64 / WIDE_PART; /* of the values that are loaded at a time */
    struct vec4 key[8];

    __device__ __forceinline__ void load(const struct Place &p, uint32_t first, int b) {
        uint32_t lane = threadIdx.x % 32;

#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            key[i] = load_key(p, first + lane % 4 * 8 + i, 64 * b + lane / 4 * 8);
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
DEVICE void do_latent_part(const struct Latent &v, int w, struct WideShared<D, G> &s, bool seen,
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

/* V: values that a head's result has at most; fewer than 32 D: those of the keys. */
template <int D, int G, int V = 32 * D>
DEVICE void attend_wide_item(const struct attend_args &a, const struct attn_item &it,
                             struct WideShared<D, G> &s) {
    constexpr bool is_latent = V < 32 * D;
    constexpr uint32_t queries = G * ATTN_QUERIES;
    constexpr int n_parts = V / WIDE_PART, per_thread = queries * WIDE_PART / CUDA_THREADS;
    uint32_t tid = threadIdx.x, n_groups = (it.n_q + ATTN_QUERIES - 1) / ATTN_QUERIES;
    struct Place p = place_of(a, it);
    uint32_t from = it.chunk < 0 ? p.first / ATTN_CHUNK : (uint32_t)it.chunk;
    uint32_t to = it.chunk < 0 ? it.n_chunks : from + 1;
    float all[n_parts][per_thread];
    uint32_t h[G][2][4];
    struct Latent values;

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
            if (is_latent && n / Latent::parts * 64u >= a.n_value)
                break;
            if (is_latent && n % Latent::parts == 0)
                values.load(p, first, n / Latent::parts);
            if (is_latent)
                do_latent_part<D, G>(values, n % Latent::parts, s, is_seen(p, first), n_groups, h);
            else
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
            uint32_t at = tid + i * CUDA_THREADS, column = at % WIDE_PART;

            put_value(a, it, s, at / WIDE_PART,
                      is_latent ? Latent::value_of(n, column) : n * WIDE_PART + column, all[n][i]);
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

KERNEL(attend_latent, struct attend_args, CUDA_THREADS, 1) {
    wait_for_previous();
    constexpr int groups = ATTN_LATENT / ATTN_QUERIES;
    using S = struct WideShared<LATENT_KEY / 32, groups>;
    S &s = *(S *)dynamic_shared();
    uint32_t n = a.batch->n_items;

    static_assert(sizeof(S) == ATTEND_LATENT_SHARED && sizeof(S) <= 99 * 1024, "kernels.h");
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        attend_wide_item<LATENT_KEY / 32, groups, LATENT_VALUE>(a, a.batch->item[i], s);
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
