/*
 * sparse - the kernels of kernels_sparse.h. The result of a row depends only on its position and on
 * the tokens before it in its sequence: the keys that it attends to have one order and are divided
 * into parts of a fixed size, which are merged from left to right.
 *
 * mean_keys     one block for each row; it works only where a block of positions ends
 * attend_sparse one block for sixteen heads of a row that share a key head. It copies 32 keys at a
 *               time to shared memory, as halves: eight threads copy a key, and each thread one
 *               value of all 32, four neighbours at a time. The rest is as in attend_compressed.
 * attend_sparse_latent  the same for latent attention, whose keys are the values, too: they are
 *               copied once
 * merge_sparse  one thread for each four values of a head
 */

#include "engine/ops/compressed/keys.cuh"
#include "engine/ops/sparse/kernels_sparse.h"

/* -- keys of blocks ---------------------------------------------------------------------------- */

ROW_KERNEL(mean_keys, struct mean_args, CUDA_THREADS, 2) {
    SHARED float key[PICK_DIM], sums[WARPS];
    auto mean = [&](const struct plan_seq &seq, uint32_t first, uint32_t i) {
        uint32_t n = a.end.keys.n, block = a.end.keys.block;
        float sum = 0;

        for (uint32_t p = first; p < first + block; p++)
            sum += p < seq.pos0 ? a.state[seq.state * a.stride + (size_t)(p % block) * n + i]
                                : a.k[(size_t)(seq.row0 + p - seq.pos0) * n + i];
        return sum / (float)block;
    };

    block_key_put(a.end, a.batch, r, key, sums, mean);
}

/* -- attention --------------------------------------------------------------------------------- */

#define SPARSE_HALF (SPARSE_DIM / 64 / 2) /* HALF of load_heads() */
#define QUADS (CSA_TILE / 4)

/* A tile of keys, [key][d], and of values, transposed: [d][key]. Scores are partial sums over
 * either half of a key's values. Rows are padded so that eight consecutive ones begin on different
 * banks. */
struct alignas(16) sparse_shared {
    uint16_t key[CSA_TILE][SPARSE_DIM + 8];
    uint16_t value[SPARSE_DIM][CSA_TILE + 8];
    float score[2][CSA_HEADS][CSA_TILE + 8];
    uint16_t weight[CSA_HEADS][CSA_TILE + 8];
    float back[CSA_HEADS];
    struct Group at[SPARSE_PART]; /* places of the part's keys in the pages */
};

/* The work of a thread block: part @blockIdx.x of the keys of a row, for heads that share a key
 * head. */
struct sparse_view {
    /* key head, and query heads [head0, head0 + n_head) */
    uint32_t row, kv, head0, n_head;
    /* the part's keys [first, first + n) among the row's */
    uint32_t first, n;
};

/* Returns the number of keys that a row attends to. */
DEVICE uint32_t count_keys(const struct sparse_args &a, uint32_t r) {
    return a.n_pick[r] * a.block + (a.of.batch->pos[r] + 1) % a.block;
}

/* Finds the work of the thread block. Returns false if there is no such row or part. */
DEVICE bool find_view(const struct sparse_args &a, struct sparse_view *v) {
    uint32_t groups = (a.of.group + CSA_HEADS - 1) / CSA_HEADS, n_kv = a.of.shape.n_head_kv;
    uint32_t first = blockIdx.y % groups * CSA_HEADS, left = a.of.group - first;

    v->row = a.row0 + blockIdx.y / groups / n_kv;
    v->kv = blockIdx.y / groups % n_kv;
    v->head0 = v->kv * a.of.group + first;
    v->n_head = left < CSA_HEADS ? left : CSA_HEADS;
    v->first = blockIdx.x * SPARSE_PART;
    if (v->row >= a.of.batch->n_rows)
        return false;
    uint32_t n = count_keys(a, v->row);
    v->n = n - v->first < SPARSE_PART ? n - v->first : SPARSE_PART;
    return v->first < n;
}

/* Finds the places of the part's keys, one thread for each. Places after the last key must be
 * readable and keep groups of four together: they get the part's first four keys, or the two of its
 * first block, whose scores are masked. The rest of a longer block may have no page. */
DEVICE void sparse_find_keys(const struct sparse_args &a, const struct sparse_view &v,
                             const struct Place &p, struct Group *at) {
    uint32_t i = threadIdx.x, whole = (a.of.batch->pos[v.row] + 1) / a.block;

    if (i >= SPARSE_PART)
        return;
    uint32_t together = a.block < 4 ? a.block : 4;
    uint32_t key = v.first + (i < v.n ? i : i % together), nth = key / a.block;
    const uint32_t *pick = a.pick + ((size_t)v.row * a.n_set + v.kv % a.n_set) * a.n_best;
    uint32_t block = nth < a.n_pick[v.row] ? pick[nth] : whole;
    uint32_t pos = block * a.block + key % a.block;

    at[i] = {(size_t)p.table[pos >> p.shift] * p.page_bytes, pos & (p.tokens - 1)};
}

/* Value d of four keys, encoded: four halves, or codes in w[0] and their scales. */
struct Quad {
    uint32_t w[2], scale[2];
};

/* Loads value @d of four keys. Blocks of four or more positions keep them contiguous (@together),
 * so one load suffices. */
template <int V>
DEVICE struct Quad load_quad(const struct Place &p, const struct Group *at, bool together,
                             uint32_t d) {
    const uint8_t *from =
        p.values + (PAGE_BITS(V) == 4 ? page_value_row(d) : d) * p.tokens * (V == PAGE_F16 ? 2 : 1);
    struct Quad q = {};

    if (together) {
        if constexpr (V == PAGE_F16) {
            load8_device(from + at->page + at->slot * 2u, q.w);
        } else {
            q.w[0] = *(const uint32_t *)(from + at->page + at->slot);
            load8_device(value_scales(p, *at, d), q.scale);
        }
        return q;
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        if constexpr (V == PAGE_F16) {
            uint32_t h = *(const uint16_t *)(from + at[j].page + at[j].slot * 2u);

            q.w[j / 2] |= h << j % 2 * 16;
        } else {
            uint32_t s = *(const uint16_t *)value_scales(p, at[j], d);

            q.w[0] |= (uint32_t)from[at[j].page + at[j].slot] << 8 * j;
            q.scale[j / 2] |= s << j % 2 * 16;
        }
    }
    return q;
}

/* Decodes value @d of four keys to halves in shared memory. */
template <int V> DEVICE void store_quad(const struct Quad &q, uint32_t d, uint16_t *to) {
    uint32_t h[2] = {q.w[0], q.w[1]};

    if constexpr (V != PAGE_F16)
        four_halves<V>(q.w[0], d % 16 >= 8, h);
    if constexpr (V != PAGE_F16)
        for (int j = 0; j < 2; j++)
            h[j] = mul_halves(h[j], q.scale[j]);
    store8(to, h);
}

/* Copies the tile of keys from @i on, and their values, to shared memory. All loads are issued
 * before the first store, to overlap their latencies. Keys are padded with zeros to a multiple of
 * 64 values. */
template <int K, int V>
DEVICE void bring_tile(const struct sparse_args &a, const struct Place &p, uint32_t i,
                       struct sparse_shared &s) {
    uint32_t nth = threadIdx.x / 8, d = threadIdx.x, end = (p.dim + 63) / 64 * 64;
    struct vec4 k[SPARSE_DIM / 64];
    struct Quad v[QUADS];

    static_assert(CUDA_THREADS == SPARSE_DIM && CUDA_THREADS == 8 * CSA_TILE, "shares of threads");
#pragma unroll
    for (uint32_t e = 0; e < SPARSE_DIM / 64; e++) {
        uint32_t at = threadIdx.x % 8 * 8 + e * 64;

        k[e] = at < p.dim ? load_key<K>(p, s.at[i + nth], 0, at) : vec4{0, 0, 0, 0};
    }
#pragma unroll
    for (uint32_t e = 0; e < QUADS; e++)
        if (d < p.dim)
            v[e] = load_quad<V>(p, s.at + i + 4 * e, a.block >= 4, d);
#pragma unroll
    for (uint32_t e = 0; e < SPARSE_DIM / 64; e++)
        if (threadIdx.x % 8 * 8 + e * 64 < end)
            store16(s.key[nth] + threadIdx.x % 8 * 8 + e * 64, k[e]);
#pragma unroll
    for (uint32_t e = 0; e < QUADS; e++)
        if (d < p.dim)
            store_quad<V>(v[e], d, s.value[d] + 4 * e);
}

#define SPARSE_EACH (SPARSE_DIM / WARPS) /* values of a head that a warp accumulates */

/* Adds the tile's values, multiplied by their weights, to the warp's 32 of the @n values of each
 * head. */
DEVICE void sparse_add(uint32_t n, const struct sparse_shared &s, float o[SPARSE_EACH / 8][4]) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t d0 = threadIdx.x / 32 * SPARSE_EACH;
    float back[2] = {s.back[g], s.back[g + 8]};
    uint32_t p[2][4];

    load_key_weights(s, p);
#pragma unroll
    for (uint32_t j = 0; j < SPARSE_EACH / 8; j++) {
        const uint16_t *v = s.value[d0 + 8 * j + g] + 2 * t;

        if (d0 + 8 * j >= n)
            break;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            o[j][k] *= back[k / 2];
#pragma unroll
        for (uint32_t k = 0; k < 2; k++)
            mma(o[j], p[k][0], p[k][1], p[k][2], p[k][3], *(const uint32_t *)(v + 16 * k),
                *(const uint32_t *)(v + 16 * k + 8));
    }
}

/* -- results of parts -------------------------------------------------------------------------- */

/* Returns the address of the result of part @part for head @head of row @row. */
DEVICE float *sparse_part_at(const struct sparse_args &a, uint32_t row, uint32_t head,
                             uint32_t part) {
    size_t at = ((size_t)(row - a.row0) * a.of.n_head + head) * a.n_parts + part;

    return a.of.partial + at * (a.of.n_value + 4);
}

/* Stores the results of the block's part: o, of which a warp has EACH values, then m and l of each
 * head. */
template <uint32_t EACH>
DEVICE void store_block_part(const struct sparse_args &a, const struct sparse_view &v,
                             const struct csa_head &h, const float o[EACH / 8][4]) {
    uint32_t lane = threadIdx.x % 32, n = a.of.n_value, head = threadIdx.x / 16;

#pragma unroll
    for (uint32_t i = 0; i < EACH / 4; i++) {
        uint32_t own = lane / 4 + i % 2 * 8;
        uint32_t d = threadIdx.x / 32 * EACH + i / 2 * 8 + lane % 4 * 2;

        if (own < v.n_head && d < n)
            store_some<2>(sparse_part_at(a, v.row, v.head0 + own, blockIdx.x) + d,
                          &o[i / 2][i % 2 * 2]);
    }
    if (threadIdx.x % 16 == 0 && head < v.n_head) {
        float *to = sparse_part_at(a, v.row, v.head0 + head, blockIdx.x) + n;

        to[0] = h.max;
        to[1] = h.sum;
    }
}

template <int K, int V>
DEVICE void attend_part(const struct sparse_args &a, struct sparse_shared &s) {
    struct vec4 q[SPARSE_HALF][4];
    float o[SPARSE_EACH / 8][4] = {};
    struct csa_head h = {-INFINITY, 0};
    struct sparse_view v;
    struct Place p;

    if (!find_view(a, &v))
        return;
    find_pages(p, a.of, v.kv, a.of.batch->seq[a.of.batch->row_seq[v.row]].page0);
    sparse_find_keys(a, v, p, s.at);
    load_heads<SPARSE_HALF>(a.of.q + ((size_t)v.row * a.of.n_head + v.head0) * p.dim, v.n_head,
                            p.dim, a.of.scale, q);
    for (uint32_t i = 0; i < v.n; i += CSA_TILE) {
        sync_block();
        bring_tile<K, V>(a, p, i, s);
        sync_block();
        score_tile<SPARSE_HALF>(q, p.dim, s);
        sync_block();
        weigh_keys(v.n - i, h, s);
        sync_block();
        sparse_add(p.dim, s, o);
    }
    store_block_part<SPARSE_EACH>(a, v, h, o);
}

#define ATTEND_SPARSE(NAME, K, V)                                                                  \
    KERNEL(NAME, struct sparse_args, CUDA_THREADS, 2) {                                            \
        SHARED struct sparse_shared s;                                                             \
                                                                                                   \
        wait_for_previous();                                                                       \
        attend_part<K, V>(a, s);                                                                   \
    }

FOR_PAGES(ATTEND_SPARSE, attend_sparse)

/* -- latent attention -------------------------------------------------------------------------- */

#define SPARSE_BLOCKS (LATENT_KEY / 64)              /* of 64 values of a key */
#define SPARSE_LATENT_HALF ((SPARSE_BLOCKS + 1) / 2) /* HALF of load_heads_by() */
#define SPARSE_LATENT_EACH (LATENT_VALUE / WARPS)    /* values of a head that a warp accumulates */

/* Holds what struct sparse_shared does, except values, which are the keys here. */
struct alignas(16) sparse_latent_shared {
    uint16_t key[CSA_TILE][LATENT_KEY + 8];
    float score[2][CSA_HEADS][CSA_TILE + 8];
    uint16_t weight[CSA_HEADS][CSA_TILE + 8];
    float back[CSA_HEADS];
    struct Group at[SPARSE_PART];
};

/* Loads the queries of the block's heads: the part for latent vectors, then the rest. */
DEVICE void sparse_load_latent(const struct sparse_args &a, const struct sparse_view &v,
                               struct vec4 q[SPARSE_LATENT_HALF][4]) {
    const size_t first = (size_t)v.row * a.of.n_head + v.head0;
    uint32_t n = a.of.n_value, rest = a.of.shape.head_dim - n;
    float factor = a.of.scale * LOG2_E;
    auto eight = [&](uint32_t head, uint32_t d) {
        size_t at = first + head;

        if (head >= v.n_head)
            return vec4{0, 0, 0, 0};
        if (d < n)
            return eight_halves(a.of.q + at * n, d, n, factor);
        return eight_halves(a.of.turned + at * a.of.turned_stride, d - n, rest, factor);
    };

    load_heads_by<SPARSE_LATENT_HALF>(eight, q);
}

/* Copies the tile of keys from @i on to shared memory, eight threads for each key, padded with
 * zeros to a multiple of 64 values. All loads are issued before the first store. */
template <int K>
DEVICE void sparse_bring_latent(const struct sparse_args &a, const struct Place &p, uint32_t i,
                                struct sparse_latent_shared &s) {
    uint32_t nth = threadIdx.x / 8, at = threadIdx.x % 8 * 8, end = (p.dim + 63) / 64 * 64;
    struct vec4 k[SPARSE_BLOCKS];

    static_assert(CUDA_THREADS == 8 * CSA_TILE, "shares of threads");
#pragma unroll
    for (uint32_t e = 0; e < SPARSE_BLOCKS; e++)
        k[e] =
            at + e * 64 < p.dim ? load_key<K>(p, s.at[i + nth], 0, at + e * 64) : vec4{0, 0, 0, 0};
#pragma unroll
    for (uint32_t e = 0; e < SPARSE_BLOCKS; e++)
        if (at + e * 64 < end)
            store16(s.key[nth] + at + e * 64, k[e]);
}

template <int K>
DEVICE void attend_latent_part(const struct sparse_args &a, struct sparse_latent_shared &s) {
    struct vec4 q[SPARSE_LATENT_HALF][4];
    float o[SPARSE_LATENT_EACH / 8][4] = {};
    struct csa_head h = {-INFINITY, 0};
    struct sparse_view v;
    struct Place p;

    static_assert(SPARSE_LATENT_EACH == 64, "add_key_values()");
    if (!find_view(a, &v))
        return;
    find_pages(p, a.of, v.kv, a.of.batch->seq[a.of.batch->row_seq[v.row]].page0);
    sparse_find_keys(a, v, p, s.at);
    sparse_load_latent(a, v, q);
    for (uint32_t i = 0; i < v.n; i += CSA_TILE) {
        sync_block();
        sparse_bring_latent<K>(a, p, i, s);
        sync_block();
        score_tile<SPARSE_LATENT_HALF>(q, p.dim, s);
        sync_block();
        weigh_keys(v.n - i, h, s);
        sync_block();
        add_key_values(a.of.n_value, s, o);
    }
    store_block_part<SPARSE_LATENT_EACH>(a, v, h, o);
}

#define ATTEND_SPARSE_LATENT(NAME, K, V)                                                           \
    KERNEL(NAME, struct sparse_args, CUDA_THREADS, 1) {                                            \
        SHARED struct sparse_latent_shared s;                                                      \
                                                                                                   \
        wait_for_previous();                                                                       \
        attend_latent_part<K>(a, s);                                                               \
    }

FOR_PAGES_ALIKE(ATTEND_SPARSE_LATENT, attend_sparse_latent)

/* -- merging ----------------------------------------------------------------------------------- */

KERNEL(merge_sparse, struct sparse_args, CUDA_THREADS, 4) {
    wait_for_previous();
    uint32_t r = a.row0 + blockIdx.x, n = a.of.n_value, quads = n / 4;
    uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x, head = i / quads, d = i % quads * 4;
    float max = -INFINITY, l = 0, o[4] = {};

    if (r >= a.of.batch->n_rows || head >= a.of.n_head)
        return;
    uint32_t n_parts = (count_keys(a, r) + SPARSE_PART - 1) / SPARSE_PART;
#pragma unroll 4
    for (uint32_t part = 0; part < n_parts; part++) {
        const float *from = sparse_part_at(a, r, head, part);
        struct Weights w = merge_weights(max, from[n]);
        float x[4];

        load_four(from + d, x);
        max = w.max;
        l = merge_with(l, from[n + 1], w.a, w.b);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            o[k] = merge_with(o[k], x[k], w.a, w.b);
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        o[k] /= l;
    store_some<4>(a.of.o + ((size_t)r * a.of.n_head + head) * n + d, o);
}
