/*
 * matmul - y (+)= W x + bias. The strict recipe (docs/cuda-kernels.md): products of exact codes and
 * activations in half precision by mma, group by group of columns from left to right inside a
 * segment (weights.cuh), the segments' sums added from left to right, times the row's power of two,
 * plus bias, plus what was there. A column of mma does not see the others, so a row's result does
 * not depend on which rows come with it, nor on which of the two kernels computes it.
 *
 * matvec       up to 16 rows. Warp s of a block sums segment s of a row tile; a block goes over
 * many tiles. Weights
 *              come through a ring in shared memory of each warp's own, filled by asynchronous
 *              copies that run ahead over the ends of tiles and matrices: two stages of 2 to 3 KiB
 *              are on their way while one is used, 16 warps on a multiprocessor, so 60 to 90 KiB of
 *              it. They begin before the kernel before has ended. Bound by the weights' bytes.
 * matmul_wide  64 rows at a time. Each of 8 warps has a row tile of its own and walks over all
 * columns; slices of the
 *              activations and weights come ahead by the same copies. Bound by the tensor cores.
 */

#include "engine/cuda/rows.cuh"
#include "engine/cuda/weights.cuh"

DEVICE uint32_t count_rows(const struct matmul_args &a) {
    return a.count && *a.count < a.n_rows ? *a.count : a.n_rows;
}

/* y of one element; what was there apart. */
DEVICE float value_of(const struct matmul_args &a, const struct matrix &m, uint32_t row,
                      uint32_t out, float sum) {
    float v = sum * a.scale[row];

    return m.bias ? v + m.bias[out] : v;
}

DEVICE void put(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows, uint32_t row,
                uint32_t out, float sum) {
    if (row >= n_rows || out >= m.n_out)
        return;
    float *y = m.y + (size_t)row * m.n_out + out, v = value_of(a, m, row, out, sum);

    *y = a.add ? *y + v : v;
}

/* Starts a warp's copy of @n bytes, a multiple of 16 and at most 3584: no stage is larger. */
DEVICE void fetch_bytes(uint8_t *to, const uint8_t *from, uint32_t n) {
    uint32_t at = threadIdx.x % 32 * 16;

    to += at;
    from += at;
    if (at < n)
        copy_async_at<0>(to, from);
    if (at + 512 < n)
        copy_async_at<512>(to, from);
    if (at + 1024 < n)
        copy_async_at<1024>(to, from);
    if (at + 1536 < n)
        copy_async_at<1536>(to, from);
    if (at + 2048 < n)
        copy_async_at<2048>(to, from);
    if (at + 2560 < n)
        copy_async_at<2560>(to, from);
    if (at + 3072 < n)
        copy_async_at<3072>(to, from);
}

/* -- matvec ------------------------------------------------------------------------------------ */

/* A block's tiles: every gridDim.x'th; gated: each with the same of the other matrix behind it.
 * n_tiles: the end. */
DEVICE uint32_t next_tile(const struct matmul_args &a, uint32_t tile) {
    if (tile < a.gated)
        return tile + a.gated;
    tile += gridDim.x - a.gated;
    return tile < a.n_tiles - a.gated ? tile : a.n_tiles;
}

/* The matrix of tile @tile; *local: which of its row tiles. */
DEVICE uint32_t matrix_of(const struct matmul_args &a, uint32_t tile, uint32_t *local) {
    uint32_t i = 0;

    while (i + 1 < a.n_mats && tile >= a.m[i].n_row_tiles)
        tile -= a.m[i++].n_row_tiles;
    *local = tile;
    return i;
}

/* What a warp fetches: its segments of the block's tiles, stage by stage. Registers are scarce
 * here. */
struct Feed {
    uint32_t ring, slot; /* offsets: of the warp's ring, in it of the slot that is fetched next */
    uint32_t segment, tile;     /* the tile that is being fetched, of all matrices */
    uint32_t n_left, n_at_once; /* bytes of its segment, of a stage */
    const uint8_t *from;

    /* Stands at the beginning of @tile's segment, or of the next one that has anything for this
     * warp. */
    __device__ __forceinline__ void seek(const struct matmul_args &a) {
        for (; tile < a.n_tiles; tile = next_tile(a, tile)) {
            uint32_t local, i = matrix_of(a, tile, &local);
            uint32_t unit = tile_segment(a.m[i].n_units, segment);
            uint32_t end = tile_segment(a.m[i].n_units, segment + 1);
            uint32_t bytes = tile_bytes(a.m[i].format);

            n_left = (end - unit) * bytes;
            n_at_once = tile_stage_units(a.m[i].format) * bytes;
            from = a.m[i].tiles + ((size_t)local * a.m[i].n_units + unit) * bytes;
            if (unit < end)
                return;
        }
    }
    /* Starts on one stage; none when all have been. */
    __device__ __forceinline__ void fetch(const struct matmul_args &a) {
        if (tile < a.n_tiles) {
            uint32_t n = n_left < n_at_once ? n_left : n_at_once;

            fetch_bytes(dynamic_shared() + ring + slot, from, n);
            from += n;
            n_left -= n;
            if (n_left == 0) {
                tile = next_tile(a, tile);
                seek(a);
            }
        }
        slot = next(a, slot);
        copy_commit();
    }
    __device__ __forceinline__ uint32_t next(const struct matmul_args &a, uint32_t at) const {
        return at + a.stage_bytes < MATVEC_STAGES * a.stage_bytes ? at + a.stage_bytes : 0;
    }
    /* The oldest stage, when it is there; another is started in the place of the one before. */
    __device__ __forceinline__ const uint8_t *take(const struct matmul_args &a) {
        copy_wait<MATVEC_STAGES - 2>();
        sync_warp();
        fetch(a);
        return dynamic_shared() + ring + slot; /* all slots but this one are on their way */
    }
};

/* The activations of a lane: of row g of each group of 8 rows, and the sums of rows 2t and 2t + 1.
 * Where there is no row g the lane takes the first of the group, which costs nothing; what comes of
 * it is not stored. */
template <int G> struct Rows {
    uint32_t x[G], sums[G]; /* offsets in bytes */

    __device__ __forceinline__ void start(const struct matmul_args &a, uint32_t n_rows) {
        uint32_t lane = threadIdx.x % 32;

#pragma unroll
        for (uint32_t i = 0; i < G; i++) {
            bool there = i * PACK_ROWS + lane / 4 < n_rows;

            x[i] = i * a.n_blocks * 256 + (there ? lane : lane % 4) * 16;
            sums[i] = i * a.n_blocks * 16 + lane % 4 * 8;
        }
    }
};

/* Adds the tile of unit @unit, at @tile in shared memory. */
template <int F, int G>
DEVICE void add_unit(const struct matmul_args &a, const uint8_t *tile, uint32_t unit,
                     const struct Rows<G> &rows, float c[G][4]) {
    constexpr int pairs = F >= TILE_Q4_K ? 8 : 2;
    struct Tile<F> t;

    t.load(tile, threadIdx.x % 32);
#pragma unroll
    for (int p = 0; p < pairs; p++) {
        struct Pair<F> w;

        w.take(t, p);
#pragma unroll
        for (int i = 0; i < G; i++) {
            const uint8_t *x = (const uint8_t *)a.x + (rows.x[i] + unit * (pairs * 512));
            const uint8_t *sums =
                (const uint8_t *)a.sums + (rows.sums[i] + unit * (pairs * PACK_ROWS * 4));
            struct vec4 v = load16(x + p * 512);
            float sum[2] = {0, 0};

            if (Pair<F>::has_min)
                load_floats((const float *)(sums + p * PACK_ROWS * 4), sum);
            w.add(v, sum, c[i]);
        }
    }
}

template <int F, int G>
DEVICE void add_segment(const struct matmul_args &a, uint32_t from, uint32_t to, struct Feed &feed,
                        const struct Rows<G> &rows, float c[G][4]) {
    constexpr uint32_t units = F == TILE_Q8_0 ? 2 : F == TILE_Q4_0 || F == TILE_IQ4_NL ? 4 : 1;

    for (uint32_t u = from; u < to; u += units) {
        const uint8_t *stage = feed.take(a);

#pragma unroll
        for (uint32_t n = 0; n < units; n++)
            if (u + n < to)
                add_unit<F, G>(a, stage + n * tile_bytes(F), u + n, rows, c);
    }
}

template <int G>
DEVICE void add_segment_of(const struct matmul_args &a, const struct matrix &m, struct Feed &feed,
                           const struct Rows<G> &rows, float c[G][4]) {
    uint32_t from = tile_segment(m.n_units, feed.segment);
    uint32_t to = tile_segment(m.n_units, feed.segment + 1);

    switch (m.format) {
    case TILE_F16:
        return add_segment<TILE_F16, G>(a, from, to, feed, rows, c);
    case TILE_Q8_0:
        return add_segment<TILE_Q8_0, G>(a, from, to, feed, rows, c);
    case TILE_Q4_0:
        return add_segment<TILE_Q4_0, G>(a, from, to, feed, rows, c);
    case TILE_IQ4_NL:
        return add_segment<TILE_IQ4_NL, G>(a, from, to, feed, rows, c);
    case TILE_Q4_K:
        return add_segment<TILE_Q4_K, G>(a, from, to, feed, rows, c);
    case TILE_Q5_K:
        return add_segment<TILE_Q5_K, G>(a, from, to, feed, rows, c);
    case TILE_Q6_K:
        return add_segment<TILE_Q6_K, G>(a, from, to, feed, rows, c);
    case TILE_IQ4_XS:
        return add_segment<TILE_IQ4_XS, G>(a, from, to, feed, rows, c);
    }
}

/* An element of gate (@i 0), which is kept in shared memory until up comes, or of up. */
DEVICE void put_gated(const struct matmul_args &a, const struct matrix &m, uint32_t i,
                      uint32_t n_rows, uint32_t row, uint32_t out, float sum) {
    SHARED float gate[CUDA_THREADS]; /* a thread's own */

    if (row >= n_rows || out >= m.n_out)
        return;
    float v = value_of(a, m, row, out, sum);

    if (i == 0)
        gate[threadIdx.x] = v;
    else
        a.m[0].y[(size_t)row * m.n_out + out] = mx_silu(gate[threadIdx.x]) * v;
}

/* The block's tiles for G groups of 8 rows. */
template <int G>
DEVICE void multiply(const struct matmul_args &a, struct Feed &feed, uint32_t n_rows,
                     float (*sums)[8][TILE_LANES]) {
    uint32_t tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    struct Rows<G> rows;

    rows.start(a, n_rows);
    for (uint32_t tile = blockIdx.x; tile < a.n_tiles; tile = next_tile(a, tile)) {
        uint32_t local, i = matrix_of(a, tile, &local);
        float c[G][4];
        const struct matrix &m = a.m[i];
        uint32_t n = m.n_units < TILE_SEGMENTS ? m.n_units : TILE_SEGMENTS;
#pragma unroll
        for (int j = 0; j < 4 * G; j++)
            c[j / 4][j % 4] = 0;
        add_segment_of<G>(a, m, feed, rows, c);
#pragma unroll
        for (int j = 0; j < 4 * G; j++)
            sums[warp][j][lane] = c[j / 4][j % 4];
        sync_block();
        if (tid < TILE_LANES * 4 * G) {
            uint32_t j = warp % 4, g = warp / 4;
            float sum = sums[0][warp][lane];

            for (uint32_t s = 1; s < n; s++)
                sum += sums[s][warp][lane];
            uint32_t row = g * PACK_ROWS + lane % 4 * 2 + j % 2;
            uint32_t out = local * TILE_ROWS + lane / 4 + j / 2 * 8;
            if (a.gated)
                put_gated(a, m, i, n_rows, row, out, sum);
            else
                put(a, m, n_rows, row, out, sum);
        }
        sync_block();
    }
}

/* -- what comes behind it, by the blocks that are last ----------------------------------------- */

DEVICE_APART void finish_rows(const struct matmul_args &a, uint32_t n_rows,
                              float (*sums)[8][TILE_LANES]) {
    uint32_t *told = (uint32_t *)&sums[1][0][0];

    sync_block();
    if (threadIdx.x == 0)
        *told = arrive(a.arrived, 1, gridDim.x);
    sync_block();
    if (!*told)
        return;
    for (uint32_t r = 0; r < n_rows; r++)
        pack_row<CUDA_THREADS>(a.pack, r, r, &sums[0][0][0]);
}

#define NO_HEAD UINT32_MAX

/* A warp a row; the room of the weights is free. */
DEVICE_APART void finish_heads(const struct matmul_args &a, uint32_t n_rows) {
    uint32_t n_tiles = a.store.shape.head_dim / TILE_ROWS, n = 0, warp = threadIdx.x / 32;
    float *head = (float *)dynamic_shared() + warp * HEAD_MAX;
    uint32_t *told = (uint32_t *)dynamic_shared() + CUDA_THREADS / 32 * HEAD_MAX;

    if (blockIdx.x < a.n_tiles)
        n = (a.n_tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
    sync_block();
    for (uint32_t k = threadIdx.x; k < n; k += CUDA_THREADS) {
        uint32_t local, part = matrix_of(a, blockIdx.x + k * gridDim.x, &local);
        uint32_t h = local / n_tiles, at = h + (part > 0 ? a.store.n_head : 0) +
                                           (part > 1 ? a.store.shape.n_head_kv : 0);

        told[k] = arrive(a.arrived + at, 1, n_tiles) ? part << 16 | h : NO_HEAD;
    }
    sync_block();
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t r = warp; told[k] != NO_HEAD && r < n_rows; r += CUDA_THREADS / 32)
            store_part(a.store, (enum store_part)(told[k] >> 16), r, told[k] & 0xFFFF, head);
}

KERNEL(matvec, struct matmul_args, CUDA_THREADS, 2) {
    SHARED float sums[TILE_SEGMENTS][8][TILE_LANES];
    struct Feed feed;

    feed.segment = threadIdx.x / 32;
    feed.ring = feed.segment * MATVEC_STAGES * a.stage_bytes;
    feed.slot = 0;
    feed.tile = blockIdx.x;
    feed.seek(a);
    for (uint32_t i = 0; i + 1 < MATVEC_STAGES; i++) /* weights do not change */
        feed.fetch(a);
    wait_for_previous();
    uint32_t n_rows = count_rows(a);
    if (n_rows > PACK_ROWS)
        multiply<2>(a, feed, n_rows, sums);
    else
        multiply<1>(a, feed, n_rows, sums);
    copy_wait<0>();
    if (a.finish == FINISH_PACK)
        finish_rows(a, count_rows(a), sums);
    else if (a.finish == FINISH_STORE)
        finish_heads(a, count_rows(a));
}

/* -- matmul_wide ------------------------------------------------------------------------------- */

#define WIDE_GROUPS (MATMUL_COLUMNS / PACK_ROWS)
#define SLICE_PAIRS 2u /* of 32 columns in a slice */

/*
 * What a block has on its way: slices of 64 columns of the activations, WIDE_SLICES of them in a
 * ring of all warps, and in rings of their own the warps' weights for as far. A group of copies is
 * what one slice brings.
 */
struct Supply {
    uint8_t *slices, *ring;   /* [WIDE_SLICES][slice], of the warp [n_slots][stage_bytes] */
    const uint8_t *x, *tiles; /* of the block's rows; of the warp's row tile, NULL: none */
    const float *sums;
    uint32_t n_pairs, n_groups; /* of a row; groups of rows that exist */
    uint32_t next, n_slices;
    uint32_t per_stage, n_slots, stage_bytes,
        row_bytes; /* slices of a stage; bytes of a row of tiles */

    __device__ __forceinline__ void fetch() {
        if (next < n_slices) {
            uint8_t *to = slices + next % WIDE_SLICES * WIDE_SLICE_BYTES;
            uint32_t stage = next / per_stage, at = stage * stage_bytes;

#pragma unroll
            for (uint32_t i = threadIdx.x; i < WIDE_GROUPS * SLICE_PAIRS * 32; i += CUDA_THREADS) {
                uint32_t group = i / (SLICE_PAIRS * 32), v = i % (SLICE_PAIRS * 32);

                if (group >= n_groups)
                    group = 0; /* its result is not read */
                copy_async(to + i * 16,
                           x + ((size_t)group * n_pairs + next * SLICE_PAIRS) * 512 + v * 16);
            }
            if (threadIdx.x < WIDE_GROUPS * SLICE_PAIRS * 2) {
                uint32_t group = threadIdx.x / (SLICE_PAIRS * 2),
                         v = threadIdx.x % (SLICE_PAIRS * 2);

                group = group < n_groups ? group : 0;
                copy_async(to + WIDE_GROUPS * SLICE_PAIRS * 512 + threadIdx.x * 16,
                           sums + ((size_t)group * n_pairs + next * SLICE_PAIRS) * PACK_ROWS +
                               v * 4);
            }
            if (tiles && next % per_stage == 0)
                fetch_bytes(ring + stage % n_slots * stage_bytes, tiles + at,
                            row_bytes - at < stage_bytes ? row_bytes - at : stage_bytes);
        }
        next++;
        copy_commit();
    }
    /* Slice @i, when it is there with its weights; the next one is started in the place of the one
     * before. */
    __device__ __forceinline__ const uint8_t *take(uint32_t i) {
        copy_wait<WIDE_SLICES - 2>();
        sync_block();
        fetch();
        return slices + i % WIDE_SLICES * WIDE_SLICE_BYTES;
    }
};

/* Two pairs of a tile times a slice. */
template <int F>
DEVICE void add_slice(const struct Tile<F> &tile, int first_pair, const uint8_t *slice,
                      float c[WIDE_GROUPS][4]) {
    uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (uint32_t p = 0; p < SLICE_PAIRS; p++) {
        struct Pair<F> w;

        w.take(tile, first_pair + (int)p);
#pragma unroll
        for (uint32_t n = 0; n < WIDE_GROUPS; n++) {
            uint32_t at = n * SLICE_PAIRS + p;
            struct vec4 x = load16(slice + at * 512 + lane * 16);
            float sum[2] = {0, 0};

            if (Pair<F>::has_min)
                load_floats((const float *)(slice + WIDE_GROUPS * SLICE_PAIRS * 512) +
                                at * PACK_ROWS + lane % 4 * 2,
                            sum);
            w.add(x, sum, c[n]);
        }
    }
}

/* All columns of one row tile. All warps take part in the slices, also those that have no tile. */
template <int F>
DEVICE void walk(const struct matrix &m, struct Supply &supply, float total[WIDE_GROUPS][4]) {
    constexpr uint32_t slices = F >= TILE_Q4_K ? 4 : 1; /* of a unit */
    constexpr uint32_t units = F == TILE_Q8_0 ? 2 : F == TILE_Q4_0 || F == TILE_IQ4_NL ? 4 : 1;
    uint32_t segment = 0, end = tile_segment(m.n_units, 1);
    float c[WIDE_GROUPS][4];

#pragma unroll
    for (uint32_t n = 0; n < WIDE_GROUPS; n++)
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
    for (uint32_t u = 0; u < m.n_units; u++) {
        const uint8_t *stage = supply.ring + u / units % supply.n_slots * supply.stage_bytes;

#pragma unroll
        for (uint32_t i = 0; i < slices; i++) {
            const uint8_t *slice = supply.take(u * slices + i);
            struct Tile<F> tile; /* what the slice needs of it: registers are scarce */

            if (!supply.tiles)
                continue;
            tile.load(stage + u % units * tile_bytes(F), threadIdx.x % 32);
            add_slice<F>(tile, (int)(i * SLICE_PAIRS), slice, c);
        }
        if (u + 1 < end)
            continue;
#pragma unroll
        for (uint32_t n = 0; n < WIDE_GROUPS; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                total[n][j] = segment ? total[n][j] + c[n][j] : c[n][j];
                c[n][j] = 0;
            }
        segment++;
        end = tile_segment(m.n_units, segment + 1);
    }
}

DEVICE void walk_of(const struct matrix &m, struct Supply &supply, float total[WIDE_GROUPS][4]) {
    switch (m.format) {
    case TILE_F16:
        return walk<TILE_F16>(m, supply, total);
    case TILE_Q8_0:
        return walk<TILE_Q8_0>(m, supply, total);
    case TILE_Q4_0:
        return walk<TILE_Q4_0>(m, supply, total);
    case TILE_IQ4_NL:
        return walk<TILE_IQ4_NL>(m, supply, total);
    case TILE_Q4_K:
        return walk<TILE_Q4_K>(m, supply, total);
    case TILE_Q5_K:
        return walk<TILE_Q5_K>(m, supply, total);
    case TILE_Q6_K:
        return walk<TILE_Q6_K>(m, supply, total);
    case TILE_IQ4_XS:
        return walk<TILE_IQ4_XS>(m, supply, total);
    }
}

KERNEL(matmul_wide, struct matmul_args, CUDA_THREADS, 1) {
    wait_for_previous();
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = blockIdx.y, i = 0;
    uint32_t row0 = blockIdx.x * MATMUL_COLUMNS, n_rows = count_rows(a);
    float total[WIDE_GROUPS][4];
    struct Supply supply;

    if (row0 >= n_rows)
        return;
    while (i + 1 < a.n_mats && block >= (a.m[i].n_row_tiles + 7) / 8)
        block -= (a.m[i++].n_row_tiles + 7) / 8;
    const struct matrix &m = a.m[i];
    uint32_t tile = block * 8 + warp, columns = tile_k(m.format) * tile_stage_units(m.format);

    supply.slices = dynamic_shared();
    supply.stage_bytes = tile_stage_bytes(m.format);
    supply.per_stage = columns / (32 * SLICE_PAIRS);
    supply.n_slots = wide_slots(m.format);
    supply.ring = supply.slices + WIDE_SLICES * WIDE_SLICE_BYTES +
                  (size_t)warp * supply.n_slots * supply.stage_bytes;
    supply.row_bytes = m.n_units * tile_bytes(m.format);
    supply.tiles = tile < m.n_row_tiles ? m.tiles + (size_t)tile * supply.row_bytes : NULL;
    supply.n_pairs = a.n_blocks / 2;
    supply.n_slices = m.n_units * (tile_k(m.format) / (32 * SLICE_PAIRS));
    supply.x = (const uint8_t *)a.x + (size_t)row0 * a.n_blocks * 32;
    supply.sums = a.sums + (size_t)row0 / PACK_ROWS * a.n_blocks * 4;
    supply.n_groups = (n_rows - row0 + PACK_ROWS - 1) / PACK_ROWS;
    supply.next = 0;
    for (uint32_t s = 0; s < WIDE_SLICES - 1; s++)
        supply.fetch();
#pragma unroll
    for (uint32_t n = 0; n < WIDE_GROUPS; n++)
        total[n][0] = total[n][1] = total[n][2] = total[n][3] = 0;
    walk_of(m, supply, total);
    copy_wait<0>();
    if (!supply.tiles)
        return;
#pragma unroll
    for (uint32_t n = 0; n < WIDE_GROUPS; n++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            put(a, m, n_rows, row0 + n * PACK_ROWS + lane % 4 * 2 + j % 2,
                tile * TILE_ROWS + lane / 4 + j / 2 * 8, total[n][j]);
}
