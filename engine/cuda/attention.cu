/*
 * attention - softmax(q k' scale) v over pages, for decoding. A thread block has 16 queries (rows
 * of one sequence x heads that share a key head) and goes over chunks of 256 keys, all or those
 * behind what others had in common; in a chunk each of its 8 warps does one tile of 32 keys, then
 * all threads merge the tiles. The tree of
 * engine/shared/pages.h: a query's result depends on its position and the keys alone, not on the
 * other queries, on how many rows the step has, or on whether the chunks were done by one block or
 * by many (merge). attention_wide.cu is the same for prompts, attention_large.cu for large heads.
 *
 * A layer with a window is the same tree: tiles lie where they always lie, one that is before the
 * windows of all of an item's queries is left out, and in the others keys outside a query's window
 * have no weight, as those behind the query. A sink is one more tile, the last, of one key without
 * a value.
 *
 * In a tile: s = q k' by mma, q scaled and rounded to half, p = 2^(s - m) rounded to half, o = p v
 * by mma, l = sum of p before rounding. A row of mma does not see the others. Keys behind the query
 * have p = 0: pages hold no infinities, so 0 v = 0.
 *
 * Lanes load keys and values from the page 16 bytes at a time in the order mma wants them
 * (engine/shared/pages.h), eight keys of a page each; q8_0 codes become halves rounded once, d q.
 * Bound by the bytes of keys and values.
 */

#include "engine/cuda/attention.cuh"

#define PART 64u /* values of a head that are merged at a time */

/* Of heads of up to 32 D values. */
template <int D> struct alignas(16) Shared {
    static constexpr uint32_t queries = ATTN_QUERIES;

    struct Place place;         /* here, not in registers: tiles need all of these */
    uint16_t q[D][2][1][32][8]; /* take_queries() */
    float o[ATTN_TILES][ATTN_QUERIES][PART + 8]; /* rows in different banks */
    float m[ATTN_TILES][ATTN_QUERIES], l[ATTN_TILES][ATTN_QUERIES];
    float a[ATTN_TILES][ATTN_QUERIES], b[ATTN_TILES][ATTN_QUERIES];
    float chunk_m[ATTN_QUERIES], chunk_l[ATTN_QUERIES], all_m[ATTN_QUERIES], all_l[ATTN_QUERIES];
    float all_a[ATTN_QUERIES], all_b[ATTN_QUERIES];
    uint32_t pos[ATTN_QUERIES];
};

/* Starts to bring the keys and values of the tile: values are asked for late, a part at a time. */
template <int D, bool Q8> DEVICE void prefetch_tile(const struct Place &p, uint32_t first) {
    uint32_t lane = threadIdx.x % 32, n = p.tokens < ATTN_TILE ? p.tokens : ATTN_TILE;

    for (uint32_t key = first; key < first + ATTN_TILE; key += n) {
        struct Group at = group_at(p, key);

#pragma unroll
        for (int b = 0; b < D; b++) {
            uint32_t d = inside<D>(b, 32 * b + lane, p.dim), size = Q8 ? 1 : 2;

            prefetch(p.keys + at.page + (at.slot * p.dim + d * n) * size);
            prefetch(p.values + at.page + (d * p.tokens + at.slot) * size);
        }
    }
}

/* Scores of the tile that begins with key @first: c[j] as mma leaves them. */
template <int D, bool Q8>
DEVICE void score(const struct Place &p, const struct Shared<D> &s, uint32_t first, float c[4][4]) {
    uint32_t lane = threadIdx.x % 32, g = lane / 4, d0 = lane % 4 * 8;
    struct Group at = group_at(p, first + g / 2 * 8);

#pragma unroll
    for (int b = 0; b < D; b++) {
        uint32_t d = inside<D>(b, 32 * b + d0, p.dim);
        struct vec4 k[4];

#pragma unroll
        for (int j = 0; j < 4; j++)
            k[j] = load_key<Q8>(p, at, attn_key_of_column(j, g % 2), d);
        struct vec4 q0 = load16(s.q[b][0][0][lane]), q1 = load16(s.q[b][1][0][lane]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            mma(c[j], q0.x, q0.y, q0.z, q0.w, k[j].x, k[j].y);
            mma(c[j], q1.x, q1.y, q1.z, q1.w, k[j].z, k[j].w);
        }
    }
}

/* The softmax of the warp's tile: @h: p as halves, [query g, g + 8][block]; m and l in shared
 * memory. */
template <int D, bool Q8>
DEVICE void weigh_tile(const struct attend_args &a, struct Shared<D> &s, uint32_t first,
                       uint32_t h[2][4]) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
    float c[4][4];

#pragma unroll
    for (int i = 0; i < 16; i++)
        c[i / 4][i % 4] = 0;
    if (__builtin_expect(is_seen(s.place, first), 1))
        score<D, Q8>(s.place, s, first, c);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t query = g + 8 * i;
        float m, l;

        soften(a, c, i, s.pos[query], first, true, &m, &l);
#pragma unroll
        for (int j = 0; j < 4; j++)
            h[i][j] = pack_halves(c[j][2 * i], c[j][2 * i + 1]);
        if (lane % 4 == 0) {
            s.m[warp][query] = m;
            s.l[warp][query] = l;
        }
    }
}

/* Values [PART which, PART (which + 1)) of the warp's tile, into shared memory. */
template <int D, bool Q8>
DEVICE void put_part(struct Shared<D> &s, uint32_t first, int which, const uint32_t h[2][4]) {
    uint32_t tid = anew(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
    const struct Place p = s.place;
    struct Group at = group_at(p, first + 8 * t);
    bool seen = is_seen(p, first);

#pragma unroll
    for (uint32_t b = 0; b < PART / 8; b++) {
        uint32_t d0 = which * PART + 8 * b, d = inside<D>(d0 / 32, d0 + g, p.dim);
        float o[4] = {0, 0, 0, 0};

        if (__builtin_expect(seen, 1)) {
            struct vec4 v = load_value<Q8>(p, at, d);

            mma_first(o, h[0][0], h[1][0], h[0][1], h[1][1], v.x, v.y);
            mma(o, h[0][2], h[1][2], h[0][3], h[1][3], v.z, v.w);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t two[2] = {mx_bits_of(o[2 * i]), mx_bits_of(o[2 * i + 1])};

            store8(&s.o[warp][g + 8 * i][8 * b + 2 * t], two);
        }
    }
}

/* Merges a part of a chunk's tiles, half of them at a time (registers): a thread has four values of
 * query threadIdx.x / 16. */
template <int D> DEVICE void merge_part(const struct Shared<D> &s, float x[4]) {
    uint32_t tid = anew(threadIdx.x), query = tid / 16, d = tid % 16 * 4;

#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = 0;
#pragma unroll 4
    for (uint32_t w = 0; w < ATTN_TILES; w++) {
        struct vec4 o = load16(&s.o[w][query][d]);
        float a = s.a[w][query], b = s.b[w][query];

        x[0] = merge_with(x[0], mx_float_of(o.x), a, b);
        x[1] = merge_with(x[1], mx_float_of(o.y), a, b);
        x[2] = merge_with(x[2], mx_float_of(o.z), a, b);
        x[3] = merge_with(x[3], mx_float_of(o.w), a, b);
    }
}

/* What the whole of each query begins with, which sees keys from @first on: what the item goes on
 * from. A thread's four values of part n are left in s.o[n], for the same thread. */
template <int D>
DEVICE_APART void begin_whole(const struct attend_args &a, const struct attn_item &it,
                              uint32_t first, struct Shared<D> &s) {
    constexpr int n_parts = 32 * D / PART;
    uint32_t mine = threadIdx.x / 16, place = it.shared.place + (mine < it.n_q ? mine : 0);
    size_t step = (size_t)it.shared.step * gridDim.y * a.few * a.partial_stride;
    const float *from = a.partial + partial_at(a, gridDim.y, blockIdx.y, it.shared.partial, place);
    float max = -INFINITY, l = 0, o[n_parts][4];

#pragma unroll
    for (int i = 0; i < n_parts * 4; i++)
        o[i / 4][i % 4] = 0;
    for (uint32_t r = attn_first_result(&it.shared, first / ATTN_CHUNK); r < it.shared.n_results;
         r++) {
        const float *x = from + r * step;
        struct Weights w = merge_weights(max, x[a.n_value]);

        l = merge_with(l, x[a.n_value + 1], w.a, w.b);
        max = w.max;
#pragma unroll
        for (int n = 0; n < n_parts; n++) {
            uint32_t d = n * PART + threadIdx.x % 16 * 4;
            float v[4];

            if (d >= a.n_value)
                continue;
            load_four(x + d, v);
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[n][i] = merge_with(o[n][i], v[i], w.a, w.b);
        }
    }
    if (threadIdx.x % 16 == 0) {
        s.all_m[mine] = max;
        s.all_l[mine] = l;
    }
#pragma unroll
    for (int n = 0; n < n_parts; n++)
        store16(&s.o[n][mine][threadIdx.x % 16 * 4], {mx_bits_of(o[n][0]), mx_bits_of(o[n][1]),
                                                      mx_bits_of(o[n][2]), mx_bits_of(o[n][3])});
}

template <int D, bool Q8>
DEVICE void attend_item(const struct attend_args &a, uint32_t i, struct Shared<D> &s) {
    const struct attn_item &it = a.batch->item[i];
    constexpr int n_parts = 32 * D / PART;
    uint32_t tid = threadIdx.x, warp = tid / 32, mine = tid / 16;
    uint32_t first = first_key_of(a, it);
    uint32_t low = it.chunk < 0 ? it.shared.n_chunks : (uint32_t)it.chunk;
    uint32_t from = it.chunk < 0 && first / ATTN_CHUNK > low ? first / ATTN_CHUNK : low;
    uint32_t to = it.chunk < 0 ? it.n_chunks : from + 1;
    bool whole = it.chunk < 0;
    float all[n_parts][4];

    static_assert(CUDA_THREADS == 16 * ATTN_QUERIES && PART == 16 * 4, "a thread has four values");
    if (to * ATTN_CHUNK <= first) /* no merge looks at it */
        return;
    if (tid == 0)
        find_place(s.place, a, it, first);
    take_queries<D>(a, it, s);
    begin_whole<D>(a, it, first, s);
#pragma unroll
    for (int n = 0; n < n_parts; n++)
        load_four(&s.o[n][mine][tid % 16 * 4], all[n]);
    sync_block();
    if (a.batch->n_items <= gridDim.x) { /* this one is all that the block has */
        prefetch_tile<D, Q8>(s.place, from * ATTN_CHUNK + warp * ATTN_TILE);
        prefetch_ahead(a.ahead, blockIdx.y * a.batch->n_items + blockIdx.x,
                       a.batch->n_items * gridDim.y);
    }
    for (uint32_t tile = from * ATTN_CHUNK + warp * ATTN_TILE; tile < to * ATTN_CHUNK;
         tile += ATTN_CHUNK) { /* the warp's of each chunk */
        uint32_t h[2][4];

        weigh_tile<D, Q8>(a, s, tile, h);
        sync_block();
        if (anew(threadIdx.x) < ATTN_QUERIES)
            weigh(s, anew(threadIdx.x));
#pragma unroll
        for (int n = 0; n < n_parts; n++) {
            float x[4];

            put_part<D, Q8>(s, tile, n, h);
            sync_block();
            merge_part<D>(s, x);
#pragma unroll
            for (int i = 0; i < 4; i++)
                all[n][i] = whole ? merge_with(all[n][i], x[i], s.all_a[anew(threadIdx.x) / 16],
                                               s.all_b[anew(threadIdx.x) / 16])
                                  : x[i];
            sync_block();
        }
    }
    const struct attn_item &now = a.batch->item[anew(i)];
    tid = anew(threadIdx.x);
    mine = tid / 16;
    if (tid < ATTN_QUERIES)
        end_query(a, now, s, tid);
    sync_block();
    float *to_row = result_of(a, now, mine < now.n_q ? mine : 0);
#pragma unroll
    for (int n = 0; n < n_parts; n++) {
        uint32_t d = n * PART + tid % 16 * 4;

        if (whole)
#pragma unroll
            for (int i = 0; i < 4; i++)
                all[n][i] = all[n][i] * s.all_a[mine] / s.all_l[mine];
        if (mine < now.n_q && d < a.n_value)
            store16(to_row + d, {mx_bits_of(all[n][0]), mx_bits_of(all[n][1]),
                                 mx_bits_of(all[n][2]), mx_bits_of(all[n][3])});
    }
    put_weights(a, now, s);
}

template <int D, bool Q8> DEVICE void attend(const struct attend_args &a, struct Shared<D> &s) {
    for (uint32_t i = blockIdx.x; i < a.batch->n_items; i += gridDim.x) {
        attend_item<D, Q8>(a, i, s);
        if (a.merged)
            finish_item(a, a.batch->item[anew(i)]);
        sync_block();
    }
}

#define ATTEND(NAME, D, Q8, blocks)                                                                \
    KERNEL(NAME, struct attend_args, CUDA_THREADS, blocks) {                                       \
        wait_for_previous();                                                                       \
        SHARED struct Shared<D> s;                                                                 \
                                                                                                   \
        attend<D, Q8>(a, s);                                                                       \
    }

ATTEND(attend_64, 2, false, 2)
ATTEND(attend_64_q8, 2, true, 2)
ATTEND(attend_128, 4, false, 2)
ATTEND(attend_128_q8, 4, true, 2)

/* Which merge has the query of row @r of each head of a group: 1 + its number; 0: none. */
DEVICE void find_merges(const struct merge_args &a, uint32_t r, uint32_t *merge_of) {
    for (uint32_t i = threadIdx.x; i < a.group; i += PACK_THREADS)
        merge_of[i] = 0;
    sync_block();
    for (uint32_t i = threadIdx.x; i < a.batch->n_merges; i += PACK_THREADS) {
        const struct attn_merge &it = a.batch->merge[i];
        uint32_t first = (r - it.row0) * a.group; /* of its queries, among the sequence's */

        for (uint32_t q = it.q0; r >= it.row0 && q < it.q0 + it.n_q; q++)
            if (q >= first && q < first + a.group)
                merge_of[q - first] = i + 1;
    }
    sync_block();
}

KERNEL(merge_rows, struct merge_rows_args, PACK_THREADS, 2) {
    wait_for_previous();
    SHARED uint32_t merge_of[MERGE_GROUP];
    SHARED float shared[PACK_THREADS / 32];
    const struct merge_args &m = a.merge;
    uint32_t r = blockIdx.x, quads = m.n_value / 4;

    if (r >= m.batch->n_rows)
        return;
    find_merges(m, r, merge_of);
    for (uint32_t i = threadIdx.x; i < m.n_head * quads; i += PACK_THREADS) {
        uint32_t head = i / quads, found = merge_of[head % m.group];

        if (found == 0)
            continue;
        struct attn_merge it = m.batch->merge[found - 1];
        uint32_t query = (r - it.row0) * m.group + head % m.group - it.q0;

        merge_values<4>(m, it, head / m.group, query, i % quads * 4);
    }
    sync_block();
    pack_row<PACK_THREADS>(a.pack, r, r, shared);
}

KERNEL(merge, struct merge_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t n = a.batch->n_merges;

    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        struct attn_merge it = a.batch->merge[i];

        merge_queries(a, it);
    }
}
