/*
 * matmul - y (+)= W x + bias. The recipe (docs/cuda-kernels.md): weights and activations in half
 * precision (weights.cuh), multiplied and added up by mma from left to right inside a segment, the
 * segments' sums added from left to right, times the row's and the matrix's powers of two, plus
 * bias, plus what was there. A column of mma does not see the others, so a row's result does
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

#include "engine/cuda/matvec.cuh"
#include "engine/cuda/rows.cuh"
#include "engine/cuda/wide.cuh"

DEVICE uint32_t count_rows(const struct matmul_args &a) {
    return a.count && *a.count < a.n_rows ? *a.count : a.n_rows;
}

/* y of one element; what was there apart. */
DEVICE float value_of(const struct matmul_args &a, const struct matrix &m, uint32_t row,
                      uint32_t out, float sum) {
    float v = sum * (a.scale[row] * m.inverse);

    return m.bias ? v + m.bias[out] : v;
}

DEVICE void put(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows, uint32_t row,
                uint32_t out, float sum) {
    if (row >= n_rows || out >= m.n_out)
        return;
    float *y = m.y + (size_t)row * m.n_out + out, v = value_of(a, m, row, out, sum);

    *y = a.add ? *y + v : v;
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

/* The activations of a lane: of row g of each group of 8 rows. Where there is no row g the lane
 * takes the first of the group, which costs nothing; what comes of it is not stored. */
template <int G> struct Rows {
    uint32_t x[G]; /* offsets in bytes */

    __device__ __forceinline__ void start(const struct matmul_args &a, uint32_t n_rows) {
        uint32_t lane = threadIdx.x % 32;

#pragma unroll
        for (uint32_t i = 0; i < G; i++) {
            bool there = i * PACK_ROWS + lane / 4 < n_rows;

            x[i] = i * a.n_blocks * 256 + (there ? lane : lane % 4) * 16;
        }
    }
};

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
        a.m[0].y[(size_t)row * m.n_out + out] = gated(a.glu, gate[threadIdx.x], v);
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
        add_units<G>(a, m.format, tile_segment(m.n_units, feed.segment),
                     tile_segment(m.n_units, feed.segment + 1), feed, rows, c);
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

        told[k] = part <= STORE_V && arrive(a.arrived + at, 1, n_tiles) ? part << 16 | h : NO_HEAD;
    }
    sync_block();
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t r = warp; told[k] != NO_HEAD && r < n_rows; r += CUDA_THREADS / 32) {
            uint32_t part = told[k] >> 16, h = told[k] & 0xFFFF;

            store_part(a.store, (enum store_part)part, r, h, head);
            if (part == STORE_K && a.n_mats == 2)
                store_part(a.store, STORE_V, r, h, head);
        }
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
    uint32_t tile = block * 8 + warp;

    for (uint32_t k = 0; k < SLICE_VECTORS; k++) { /* rows that do not exist are not read from y */
        uint32_t row = row0 + Supply::row_of(k);

        supply.take_row(k, a.x, a.n_blocks, row / PACK_ROWS * PACK_ROWS < n_rows ? row : row0);
    }
    supply.start(m, m.tiles, tile);
#pragma unroll
    for (uint32_t n = 0; n < WIDE_GROUPS; n++)
        total[n][0] = total[n][1] = total[n][2] = total[n][3] = 0;
    walk_of(m.format, supply, total);
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
