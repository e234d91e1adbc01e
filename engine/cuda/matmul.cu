/*
 * matmul - y (+)= W x + bias. The strict recipe (docs/cuda-kernels.md): weights rounded once to half precision,
 * activations to half precision with a power of two per row, products by mma.m16n8k16 into f32 from left to
 * right inside a segment of columns, the segments' sums added from left to right, times the row's power of two,
 * plus bias, plus what was there. A column of mma does not see the others, so a row's result does not
 * depend on which rows come with it, nor on which of the two kernels computes it:
 *
 * matvec       up to 8 rows. A thread block has one row tile; warp s sums segment s. Bound by the weights' bytes.
 * matmul_wide  64 rows at a time. Each of 8 warps has a row tile of its own and walks over all columns; the
 *              activations pass through shared memory. Bound by the tensor cores and by what weights.cuh costs.
 */

#include "engine/cuda/weights.cuh"

/* Units whose loads are issued together. */
template <int F> DEVICE constexpr int units_at_once() {
    return F == TILE_F16 ? 2 : F < TILE_Q4_K ? 4 : F == TILE_Q4_K || F == TILE_IQ4_XS ? 2 : 1;
}

DEVICE uint32_t count_rows(const struct matmul_args &a) {
    return a.count && *a.count < a.n_rows ? *a.count : a.n_rows;
}

/* y of one element. */
DEVICE void put(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows, uint32_t row,
                uint32_t out, float sum) {
    if (row >= n_rows || out >= m.n_out)
        return;
    float *y = m.y + (size_t)row * m.n_out + out, v = sum * a.scale[row];

    if (m.bias)
        v += m.bias[out];
    *y = a.add ? *y + v : v;
}

/* -- matvec --------------------------------------------------------------------------------------- */

/* Adds @N units from @unit on to c. x: of the row group and lane. */
template <int F, int N>
DEVICE void add_units(const uint8_t *tiles, uint32_t unit, const uint16_t *x, uint32_t lane,
                      float c[4]) {
    constexpr int blocks = F >= TILE_Q4_K ? 16 : 4;
    struct Tile<F> tile[N];

#pragma unroll
    for (int n = 0; n < N; n++)
        tile[n].load(tiles + (size_t)(unit + n) * tile_bytes(F), lane);
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int kb = 0; kb < blocks; kb++) {
            uint32_t a[4], b[2];

            load8(x + ((size_t)(unit + n) * blocks + kb) * PACK_ROWS * 16, b);
            tile[n].block(kb, a);
            mma(c, a[0], a[1], a[2], a[3], b[0], b[1]);
        }
    }
}

template <int F>
DEVICE void add_segment(const uint8_t *tiles, uint32_t from, uint32_t to, const uint16_t *x,
                        uint32_t lane, float c[4]) {
    constexpr int n = units_at_once<F>();
    uint32_t u = from;

    for (; u + n <= to; u += n)
        add_units<F, n>(tiles, u, x, lane, c);
    if (n > 1)
        for (; u < to; u++)
            add_units<F, 1>(tiles, u, x, lane, c);
}

DEVICE void add_segment_of(const struct matrix &m, const uint8_t *tiles, uint32_t segment,
                           const uint16_t *x, uint32_t lane, float c[4]) {
    uint32_t from = tile_segment(m.n_units, segment), to = tile_segment(m.n_units, segment + 1);

    switch (m.format) {
    case TILE_F16:
        return add_segment<TILE_F16>(tiles, from, to, x, lane, c);
    case TILE_Q8_0:
        return add_segment<TILE_Q8_0>(tiles, from, to, x, lane, c);
    case TILE_Q4_0:
        return add_segment<TILE_Q4_0>(tiles, from, to, x, lane, c);
    case TILE_IQ4_NL:
        return add_segment<TILE_IQ4_NL>(tiles, from, to, x, lane, c);
    case TILE_Q4_K:
        return add_segment<TILE_Q4_K>(tiles, from, to, x, lane, c);
    case TILE_Q5_K:
        return add_segment<TILE_Q5_K>(tiles, from, to, x, lane, c);
    case TILE_Q6_K:
        return add_segment<TILE_Q6_K>(tiles, from, to, x, lane, c);
    case TILE_IQ4_XS:
        return add_segment<TILE_IQ4_XS>(tiles, from, to, x, lane, c);
    }
}

KERNEL(matvec, struct matmul_args, CUDA_THREADS, 2) {
    SHARED float sums[TILE_SEGMENTS][TILE_LANES][4];
    uint32_t tid = threadIdx.x, lane = tid % 32, warp = tid / 32, tile = blockIdx.x, i = 0;
    float c[4] = {0, 0, 0, 0};

    while (i + 1 < a.n_mats && tile >= a.m[i].n_row_tiles)
        tile -= a.m[i++].n_row_tiles;
    const struct matrix &m = a.m[i];
    const uint8_t *tiles = m.tiles + (size_t)tile * m.n_units * tile_bytes(m.format);
    const uint16_t *x = a.x + ((size_t)blockIdx.y * a.n_blocks * PACK_ROWS + lane / 4) * 16;

    for (size_t at = tid * 128; at < m.n_units * tile_bytes(m.format); at += CUDA_THREADS * 128)
        prefetch(tiles +
                 at); /* weights do not change: they may come before the activations are there */
    wait_for_previous();
    uint32_t n_rows = count_rows(a);
    if (blockIdx.y * PACK_ROWS >= n_rows)
        return;
    add_segment_of(m, tiles, warp, x + lane % 4 * 4, lane, c);
    for (int j = 0; j < 4; j++)
        sums[warp][lane][j] = c[j];
    sync_block();
    if (tid >= TILE_LANES * 4)
        return;
    uint32_t n = m.n_units < TILE_SEGMENTS ? m.n_units : TILE_SEGMENTS, l = tid / 4, j = tid % 4;
    float sum = sums[0][l][j];
    for (uint32_t s = 1; s < n; s++)
        sum += sums[s][l][j];
    put(a, m, n_rows, blockIdx.y * PACK_ROWS + l % 4 * 2 + j % 2,
        tile * TILE_ROWS + l / 4 + j / 2 * 8, sum);
}

/* -- matmul_wide ---------------------------------------------------------------------------------- */

#define WIDE_GROUPS (MATMUL_COLUMNS / PACK_ROWS)
#define SLICE_BLOCKS 4 /* blocks of 16 columns that are in shared memory at a time */
#define SLICE_BYTES (WIDE_GROUPS * SLICE_BLOCKS * PACK_ROWS * 16 * 2)
#define SLICE_VECTORS (SLICE_BYTES / 16 / CUDA_THREADS) /* per thread */

/* The activations of the block's rows: slices of 64 columns, the next one on its way while one is used. */
struct Slices {
    uint8_t *shared; /* [2][SLICE_BYTES] */
    const uint8_t *x;
    uint32_t n_blocks, n_groups, next; /* groups of rows that exist */
    struct vec4 v[SLICE_VECTORS];

    __device__ __forceinline__ void fetch() {
        if (next * SLICE_BLOCKS < n_blocks) {
#pragma unroll
            for (uint32_t i = 0; i < SLICE_VECTORS; i++) {
                uint32_t at = (threadIdx.x + i * CUDA_THREADS) * 16, per_group = SLICE_BLOCKS * 256;
                uint32_t group = at / per_group < n_groups ? at / per_group : 0;

                v[i] = load16(x + ((size_t)group * n_blocks + next * SLICE_BLOCKS) * 256 +
                              at % per_group);
            }
        }
        next++;
    }
    /* Puts what was fetched into shared memory, starts on the next, and gives the slice. */
    __device__ __forceinline__ const uint8_t *turn() {
        uint8_t *to = shared + (next & 1) * SLICE_BYTES;

#pragma unroll
        for (uint32_t i = 0; i < SLICE_VECTORS; i++)
            store16(to + (threadIdx.x + i * CUDA_THREADS) * 16, v[i]);
        fetch();
        sync_block();
        return to;
    }
};

/* All columns of one row tile. @active: the tile exists; all warps take part in the slices. */
template <int F>
DEVICE void walk(const struct matrix &m, const uint8_t *tiles, bool active, struct Slices &slices,
                 float total[WIDE_GROUPS][4]) {
    constexpr uint32_t blocks = F >= TILE_Q4_K ? 16 : 4;
    uint32_t lane = threadIdx.x % 32, segment = 0, end = tile_segment(m.n_units, 1);
    float c[WIDE_GROUPS][4];
    struct Tile<F> tile, next; /* next: on its way while tile is used */

    if (active)
        next.load(tiles, lane);
#pragma unroll
    for (uint32_t n = 0; n < WIDE_GROUPS; n++)
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
    for (uint32_t u = 0; u < m.n_units; u++) {
        const uint8_t *slice = NULL;

        tile = next;
        if (active && u + 1 < m.n_units)
            next.load(tiles + (size_t)(u + 1) * tile_bytes(F), lane);
#pragma unroll
        for (uint32_t kb = 0; kb < blocks; kb++) {
            if (kb % SLICE_BLOCKS == 0)
                slice = slices.turn();
            if (!active)
                continue;
            uint32_t a[4];

            tile.block(kb, a);
#pragma unroll
            for (uint32_t n = 0; n < WIDE_GROUPS; n++) {
                uint32_t b[2];

                load8(slice + ((n * SLICE_BLOCKS + kb % 4) * 8 + lane / 4) * 32 + lane % 4 * 8, b);
                mma(c[n], a[0], a[1], a[2], a[3], b[0], b[1]);
            }
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

DEVICE void walk_of(const struct matrix &m, const uint8_t *tiles, bool active,
                    struct Slices &slices, float total[WIDE_GROUPS][4]) {
    switch (m.format) {
    case TILE_F16:
        return walk<TILE_F16>(m, tiles, active, slices, total);
    case TILE_Q8_0:
        return walk<TILE_Q8_0>(m, tiles, active, slices, total);
    case TILE_Q4_0:
        return walk<TILE_Q4_0>(m, tiles, active, slices, total);
    case TILE_IQ4_NL:
        return walk<TILE_IQ4_NL>(m, tiles, active, slices, total);
    case TILE_Q4_K:
        return walk<TILE_Q4_K>(m, tiles, active, slices, total);
    case TILE_Q5_K:
        return walk<TILE_Q5_K>(m, tiles, active, slices, total);
    case TILE_Q6_K:
        return walk<TILE_Q6_K>(m, tiles, active, slices, total);
    case TILE_IQ4_XS:
        return walk<TILE_IQ4_XS>(m, tiles, active, slices, total);
    }
}

KERNEL(matmul_wide, struct matmul_args, CUDA_THREADS, 1) {
    wait_for_previous();
    alignas(16) SHARED uint8_t shared[2 * SLICE_BYTES];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = blockIdx.x, i = 0;
    uint32_t row0 = blockIdx.y * MATMUL_COLUMNS, n_rows = count_rows(a);
    float total[WIDE_GROUPS][4];

    if (row0 >= n_rows)
        return;
    while (i + 1 < a.n_mats && block >= (a.m[i].n_row_tiles + 7) / 8)
        block -= (a.m[i++].n_row_tiles + 7) / 8;
    const struct matrix &m = a.m[i];
    uint32_t tile = block * 8 + warp;
    bool active = tile < m.n_row_tiles;
    const uint8_t *tiles = m.tiles + (size_t)tile * m.n_units * tile_bytes(m.format);
    struct Slices slices;

    slices.shared = shared;
    slices.x = (const uint8_t *)a.x + (size_t)row0 * a.n_blocks * 32;
    slices.n_blocks = a.n_blocks;
    slices.n_groups = (n_rows - row0 + PACK_ROWS - 1) / PACK_ROWS;
    slices.next = 0;
    slices.fetch();
#pragma unroll
    for (uint32_t n = 0; n < WIDE_GROUPS; n++)
        total[n][0] = total[n][1] = total[n][2] = total[n][3] = 0;
    walk_of(m, tiles, active, slices, total);
    if (!active)
        return;
#pragma unroll
    for (uint32_t n = 0; n < WIDE_GROUPS; n++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            put(a, m, n_rows, row0 + n * PACK_ROWS + lane % 4 * 2 + j % 2,
                tile * TILE_ROWS + lane / 4 + j / 2 * 8, total[n][j]);
}
