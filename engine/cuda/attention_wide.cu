/*
 * attention_wide - attention of prompts, with the bits of attention.cu. A thread block has 128
 * queries of a sequence, 16 a warp, and goes over the tiles of all their chunks one after the
 * other: a tile's keys and values come to shared memory once for all warps, by asynchronous copies,
 * two tiles ahead. A warp computes the tile's result as attention.cu does and merges it into its
 * chunk's at once, eight values of the head at a time; chunks are merged into the whole. So a tile
 * needs no other exchange than one barrier. A tile that none of a warp's queries sees is left out,
 * which changes no bit.
 *
 * Heads of up to 128 values: chunk and whole of 16 queries are 128 registers. Bound by mma and by
 * the reads of shared memory: 256 bytes an mma.
 */

#include "engine/cuda/attention.cuh"

#define STAGES ATTEND_WIDE_STAGES
#define WARPS (CUDA_THREADS / 32)

static_assert(ATTN_WIDE == WARPS * ATTN_QUERIES, "16 queries a warp");

/* A tile as it lies in pages, for heads of up to 32 D values; rows of keys in different banks. */
template <int D, bool Q8> struct Tile;

template <int D> struct alignas(16) Tile<D, false> {
    uint16_t keys[ATTN_TILE][32 * D + 32], values[32 * D][ATTN_TILE];
};

template <int D> struct alignas(16) Tile<D, true> {
    uint8_t keys[ATTN_TILE][32 * D + 32], values[32 * D][ATTN_TILE];
    uint16_t key_scales[ATTN_TILE * D]; /* [key][dim / 32] */
    uint16_t value_scales[D][ATTN_TILE];
};

static_assert(sizeof(Tile<2, false>) * STAGES == ATTEND_WIDE_SHARED(64, false), "kernels.h");
static_assert(sizeof(Tile<4, false>) * STAGES == ATTEND_WIDE_SHARED(128, false), "kernels.h");
static_assert(sizeof(Tile<2, true>) * STAGES == ATTEND_WIDE_SHARED(64, true), "kernels.h");
static_assert(sizeof(Tile<4, true>) * STAGES == ATTEND_WIDE_SHARED(128, true), "kernels.h");

/* Key @key of the tile that begins with @first, and value @d of it, or another one where a head of
 * @dim values has none: then what is computed with it is multiplied by zero or left out. */
DEVICE struct Group key_at(const struct Place &p, uint32_t first, uint32_t key) {
    struct Group at = group_at(p, first + (key & ~7u));

    return {at.page, at.slot + key % 8};
}

DEVICE uint32_t or_first(uint32_t d, uint32_t n) {
    return d < n ? d : 0;
}

/* Starts to bring the tile that begins with key @first, all of it. */
template <int D> DEVICE void fetch(struct Place p, Tile<D, false> &to, uint32_t first) {
    constexpr uint32_t per_key = 4 * D, at_once = CUDA_THREADS / per_key; /* pieces of 16 bytes */
    uint32_t d = threadIdx.x % per_key * 8, from = or_first(d, p.dim) * 2;
    uint32_t group = threadIdx.x % 4 * 8;
    struct Group of_values = group_at(p, first + group);
    const uint8_t *values = p.values + of_values.page + of_values.slot * 2u;

#pragma unroll
    for (uint32_t n = 0; n < ATTN_TILE / at_once; n++) {
        uint32_t key = threadIdx.x / per_key + n * at_once;
        struct Group at = key_at(p, first, key);

        copy_async(&to.keys[key][d], p.keys + at.page + at.slot * p.dim * 2u + from);
    }
#pragma unroll
    for (uint32_t n = 0; n < 32 * D * 4 / CUDA_THREADS; n++) {
        uint32_t row = threadIdx.x / 4 + n * CUDA_THREADS / 4;

        copy_async(&to.values[row][group], values + or_first(row, p.dim) * p.tokens * 2u);
    }
}

/* Pages have at least 16 tokens: codes of 16 keys come together. */
template <int D> DEVICE void fetch(struct Place p, Tile<D, true> &to, uint32_t first) {
    uint32_t n = p.dim / 32, tid = threadIdx.x, last = p.last & ~15u;

    for (uint32_t i = tid; i < ATTN_TILE * 2 * D; i += CUDA_THREADS) {
        uint32_t key = i / (2 * D), d = i % (2 * D) * 16;
        struct Group at = key_at(p, first, key);

        copy_async(&to.keys[key][d], p.keys + at.page + at.slot * p.dim + or_first(d, p.dim));
    }
    for (uint32_t i = tid; i < 32 * D * 2; i += CUDA_THREADS) {
        uint32_t d = i / 2, key = i % 2 * 16;
        struct Group at = group_at(p, first + key < last ? first + key : last);

        copy_async(&to.values[d][key],
                   p.values + at.page + or_first(d, p.dim) * p.tokens + at.slot);
    }
    if (tid < 4 * n) {
        uint32_t key = tid / n * 8;
        struct Group at = key_at(p, first, key);

        copy_async(&to.key_scales[key * n + tid % n * 8],
                   p.key_scales + at.page + (at.slot * n + tid % n * 8) * 2u);
    } else if (tid >= 32 && tid < 32 + 4 * D) {
        uint32_t block = (tid - 32) / 4, key = tid % 4 * 8;
        struct Group at = key_at(p, first, key);

        copy_async(&to.value_scales[block][key],
                   p.value_scales + at.page + (or_first(block, n) * p.tokens + at.slot) * 2u);
    }
}

/* Values @d .. @d + 7 of key @key of the tile. */
template <int D>
DEVICE struct vec4 tile_key(const Tile<D, false> &t, uint32_t key, uint32_t d, uint32_t) {
    return load16(&t.keys[key][d]);
}

template <int D>
DEVICE struct vec4 tile_key(const Tile<D, true> &t, uint32_t key, uint32_t d, uint32_t dim) {
    return scale_key(&t.keys[key][d], t.key_scales[key * (dim / 32) + or_first(d / 32, dim / 32)]);
}

/* Value @d of keys @key .. @key + 7 of the tile. */
template <int D> DEVICE struct vec4 tile_value(const Tile<D, false> &t, uint32_t key, uint32_t d) {
    return load16(&t.values[d][key]);
}

template <int D> DEVICE struct vec4 tile_value(const Tile<D, true> &t, uint32_t key, uint32_t d) {
    return scale_value(&t.values[d][key], &t.value_scales[d / 32][key]);
}

/* Of queries g and g + 8 of the warp: a result (m, l, o), o as mma leaves it. */
template <int D> struct Result { float m[2], l[2], o[4 * D][4]; };

template <int D> DEVICE void clear(Result<D> &r) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        r.m[i] = -INFINITY;
        r.l[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 16 * D; i++)
        r.o[i / 4][i % 4] = 0;
}

template <int D> DEVICE void merge_result(Result<D> &r, const Result<D> &x) {
    struct Weights w[2];

#pragma unroll
    for (int i = 0; i < 2; i++) {
        w[i] = merge_weights(r.m[i], x.m[i]);
        r.l[i] = merge_with(r.l[i], x.l[i], w[i].a, w[i].b);
        r.m[i] = w[i].max;
    }
#pragma unroll
    for (int i = 0; i < 16 * D; i++)
        r.o[i / 4][i % 4] =
            merge_with(r.o[i / 4][i % 4], x.o[i / 4][i % 4], w[i % 4 / 2].a, w[i % 4 / 2].b);
}

/* The warp's queries. */
template <int D> struct Queries {
    struct vec4 q[D][2]; /* operands of mma: of queries g and g + 8 */
    uint32_t pos[2];
    uint32_t low, high; /* of the positions of all 16 */
};

/* Those from @query of the item on. */
template <int D>
DEVICE void take_warp(const struct attend_args &a, const struct attn_item &it, uint32_t query,
                      Queries<D> &q) {
    uint32_t lane = threadIdx.x % 32, dim = a.shape.head_dim;
    float factor = query_factor(a);

#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t mine = query + lane / 4 + 8 * i;
        const float *x = a.q + (mine < it.n_q ? query_place(a, it, mine) : 0) * dim;

        q.pos[i] = query_pos(a, it, mine);
#pragma unroll
        for (uint32_t b = 0; b < D; b++) {
            uint32_t d = 32 * b + lane % 4 * 8, h[4];

#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                float two[2] = {0, 0};

                if (mine < it.n_q && d < dim)
                    load_floats(x + d + 2 * k, two);
                h[k] = pack_halves(finite_half(two[0] * factor), finite_half(two[1] * factor));
            }
            q.q[b][i] = {h[0], h[1], h[2], h[3]};
        }
    }
    uint64_t low = q.pos[0] < q.pos[1] ? q.pos[0] : q.pos[1], high = q.pos[0] + q.pos[1] - low;
#pragma unroll
    for (int m = 4; m < 32; m *= 2) {
        uint64_t other_low = lane_xor(low, m), other_high = lane_xor(high, m);

        low = other_low < low ? other_low : low;
        high = other_high > high ? other_high : high;
    }
    q.low = (uint32_t)low;
    q.high = (uint32_t)high;
}

/* Merges the tile that begins with key @first into @chunk. */
template <int D, bool Q8>
DEVICE void add_tile(const struct attend_args &a, const Tile<D, Q8> &tile, const Queries<D> &q,
                     uint32_t first, Result<D> &chunk) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, dim = a.shape.head_dim;
    bool masked = first + ATTN_TILE - 1 > q.low || first < attn_first_key(q.high, a.window);
    float c[4][4];
    uint32_t h[2][4]; /* p as halves */
    struct Weights w[2];

#pragma unroll
    for (int b = 0; b < D; b++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            struct vec4 k = tile_key<D>(tile, attn_key_of_column(j, g), 32 * b + 8 * t, dim);

            if (b == 0)
                mma_first(c[j], q.q[b][0].x, q.q[b][1].x, q.q[b][0].y, q.q[b][1].y, k.x, k.y);
            else
                mma(c[j], q.q[b][0].x, q.q[b][1].x, q.q[b][0].y, q.q[b][1].y, k.x, k.y);
            mma(c[j], q.q[b][0].z, q.q[b][1].z, q.q[b][0].w, q.q[b][1].w, k.z, k.w);
        }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m, l;

        soften(a, c, i, q.pos[i], first, masked, &m, &l);
#pragma unroll
        for (int j = 0; j < 4; j++)
            h[i][j] = pack_halves(c[j][2 * i], c[j][2 * i + 1]);
        w[i] = merge_weights(chunk.m[i], m);
        chunk.l[i] = merge_with(chunk.l[i], l, w[i].a, w[i].b);
        chunk.m[i] = w[i].max;
    }
#pragma unroll
    for (int b = 0; b < 4 * D; b++) {
        struct vec4 v = tile_value<D>(tile, 8 * t, 8 * b + g);
        float o[4];

        mma_first(o, h[0][0], h[1][0], h[0][1], h[1][1], v.x, v.y);
        mma(o, h[0][2], h[1][2], h[0][3], h[1][3], v.z, v.w);
#pragma unroll
        for (int i = 0; i < 4; i++)
            chunk.o[b][i] = merge_with(chunk.o[b][i], o[i], w[i / 2].a, w[i / 2].b);
    }
}

/* The results of the warp's queries, from @query on: of the whole, or of one chunk. */
template <int D>
DEVICE void put_results(const struct attend_args &a, const struct attn_item &it, uint32_t query,
                        const Result<D> &r) {
    uint32_t lane = threadIdx.x % 32, t = lane % 4;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t mine = query + lane / 4 + 8 * i;

        if (mine >= it.n_q)
            continue;
        float *to = result_of(a, it, mine), scale = 1, sum = r.l[i];
        if (it.chunk >= 0 && t == 0) {
            to[a.n_value] = r.m[i];
            to[a.n_value + 1] = r.l[i];
        }
        if (a.sinks) {
            struct Weights w = merge_weights(r.m[i], sink_of(a, it.q0 + mine));

            sum = merge_with(sum, 1.0f, w.a, w.b);
            scale = w.a;
        }
#pragma unroll
        for (int b = 0; b < 4 * D; b++) {
            uint32_t two[2];

#pragma unroll
            for (int k = 0; k < 2; k++) {
                float x = r.o[b][2 * i + k];

                two[k] = mx_bits_of(it.chunk < 0 ? x * scale / sum : x);
            }
            if (8u * b < a.n_value)
                store8(to + 8 * b + 2 * t, two);
        }
    }
}

template <int D, bool Q8>
DEVICE void attend_item(const struct attend_args &a, const struct attn_item &it,
                        const struct Place &p, Tile<D, Q8> *ring) {
    uint32_t query = threadIdx.x / 32 * ATTN_QUERIES, chunk = (uint32_t)it.chunk;
    uint32_t from = p.first / ATTN_TILE, to = p.last / ATTN_TILE + 1, stage = 0;
    Queries<D> q;
    Result<D> all, part;

    if (it.chunk >= 0) {
        from = from > chunk * ATTN_TILES ? from : chunk * ATTN_TILES;
        to = to < (chunk + 1) * ATTN_TILES ? to : (chunk + 1) * ATTN_TILES;
    }
    if (from >= to) /* no merge looks at it */
        return;
    for (uint32_t i = 0; i + 1 < STAGES; i++) {
        if (from + i < to)
            fetch<D>(p, ring[i], (from + i) * ATTN_TILE);
        copy_commit();
    }
    take_warp<D>(a, it, query, q);
    clear<D>(all);
    clear<D>(part);
    for (uint32_t i = from; i < to; i++) {
        uint32_t first = i * ATTN_TILE, next = stage == 0 ? STAGES - 1 : stage - 1;

        copy_wait<STAGES - 2>();
        sync_block(); /* the tile is there, and the one before it is read */
        if (i + STAGES - 1 < to)
            fetch<D>(p, ring[next], (i + STAGES - 1) * ATTN_TILE);
        copy_commit();
        if (query < it.n_q && first <= q.high &&
            first + ATTN_TILE > attn_first_key(q.low, a.window))
            add_tile<D, Q8>(a, ring[stage], q, first, part);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        if ((i + 1) % ATTN_TILES == 0 || i + 1 == to) {
            merge_result<D>(all, part);
            clear<D>(part);
        }
    }
    put_results<D>(a, it, query, all);
}

/* What all warps of a block know, here and not in registers. */
struct Common {
    uint32_t index; /* of the item */
    struct attn_item item;
    struct Place place;
};

DEVICE void copy_item(struct attn_item &to, const struct attn_item &from) {
    to.row0 = from.row0;
    to.pos0 = from.pos0;
    to.q0 = from.q0;
    to.n_q = from.n_q;
    to.page0 = from.page0;
    to.chunk = from.chunk;
    to.partial = from.partial;
    to.n_merges = from.n_merges;
}

template <int D, bool Q8> DEVICE void attend(const struct attend_args &a, struct Common &s) {
    for (uint32_t i = blockIdx.x; i < a.batch->n_items;) {
        if (threadIdx.x == 0) {
            s.index = i;
            copy_item(s.item, a.batch->item[i]);
            find_place(s.place, a, s.item, first_key_of(a, s.item));
        }
        sync_block();
        attend_item<D, Q8>(a, s.item, s.place, (Tile<D, Q8> *)dynamic_shared());
        i = s.index + gridDim.x;
        sync_block();
    }
}

#define ATTEND_WIDE(NAME, D, Q8)                                                                   \
    KERNEL(NAME, struct attend_args, CUDA_THREADS, 1) {                                            \
        wait_for_previous();                                                                       \
        SHARED struct Common s;                                                                    \
                                                                                                   \
        attend<D, Q8>(a, s);                                                                       \
    }

ATTEND_WIDE(attend_wide_64, 2, false)
ATTEND_WIDE(attend_wide_64_q8, 2, true)
ATTEND_WIDE(attend_wide_128, 4, false)
ATTEND_WIDE(attend_wide_128_q8, 4, true)
