/*
 * matmul_m128 - y (+)= W x + bias for many rows: what matmul_wide (matmul.cu) does, with the same
 * bits, for 128 rows of the activations a block. A block has 128 x 128 of y, a warp 16 x 128: what
 * it costs to make operands of a tile of weights is shared by sixteen groups of 8 rows. 3.1
 * instructions for each mma of Q4_K (counted in the machine code, sm_90), and 256 more at the end
 * of a segment: fewer than the 6.5 cycles that mma.sync takes on Hopper.
 *
 * Slices of 64 columns of the activations come by asynchronous copies while the one before is used,
 * weights in a ring of each warp's own two slices earlier at least. A slice and the weights are
 * groups of copies of their own, so that a slice can be waited for while weights are still under
 * way.
 */

#include "engine/cuda/products.cuh"

#define GROUPS (M128_ROWS / PACK_ROWS)
#define VECTORS (M128_ROWS * 64u * 2u / 16u / CUDA_THREADS) /* of a slice, that a thread copies */

struct Source {
    uint32_t ring; /* offset of the warp's; the two slices come first */
    const uint8_t *x,
        *tiles;       /* the thread's of the first slice; the warp's row of tiles, NULL: none */
    const void *grid; /* of the matrix */
    uint32_t n_units;
    uint32_t n_behind, group_bytes; /* groups of rows behind the thread's; of a group */

    /* Starts on slice @i. Groups of rows that do not exist are copies of the last: their results
     * are not read. */
    template <int F> __device__ __forceinline__ void fetch_slice(uint32_t i) {
        uint8_t *to = dynamic_shared() + (i % 2 * M128_SLICE_BYTES + threadIdx.x * 16);

        if (i < n_units * Steps<F>::slices) {
#pragma unroll
            for (uint32_t k = 0; k < VECTORS; k++) {
                uint32_t group = k * (GROUPS / VECTORS);

                group = group < n_behind ? group : n_behind;
                copy_async(to + k * CUDA_THREADS * 16, x + (size_t)group * group_bytes);
            }
            x += SLICE_PAIRS * 512;
        }
        copy_commit();
    }
    /* Stage @s of the weights. */
    template <int F> __device__ __forceinline__ void fetch_weights(uint32_t s) {
        const uint32_t bytes = tile_stage_bytes(F);
        uint32_t lane = threadIdx.x % 32 * 16, first = s * Steps<F>::units;

        if (tiles && first < n_units)
            fetch_stage<F>(shared_start() + (ring + s % m128_slots(F) * bytes + lane),
                           tiles + (s * bytes + lane), (n_units - first) * tile_bytes(F));
    }
    /* Slice @i, when it is there with its weights. */
    template <int F> __device__ __forceinline__ const uint8_t *take(uint32_t i) {
        copy_wait<1>();
        sync_block();
        fetch_slice<F>(i + 1);
        if (i % Steps<F>::of_stage == 0)
            fetch_weights<F>(i / Steps<F>::of_stage + m128_slots(F) - 1);
        copy_commit();
        return dynamic_shared() + i % 2 * M128_SLICE_BYTES;
    }
};

/* Two pairs of a tile times a slice. */
template <int F>
DEVICE void add_slice(const struct Tile<F> &tile, int first_pair, const uint8_t *slice,
                      float c[GROUPS][4]) {
    const uint8_t *x = slice + threadIdx.x % 32 * 16;

#pragma unroll
    for (uint32_t p = 0; p < SLICE_PAIRS; p++) {
        struct Pair<F> w;

        w.take(tile, first_pair + (int)p);
#pragma unroll
        for (uint32_t n = 0; n < GROUPS; n++) {
            uint32_t at = n * SLICE_PAIRS + p;

            w.add(load16(x + at * 512), c[n]);
        }
    }
}

/* The sum over the segments of one of the thread's elements. Registers have no room for them. */
DEVICE float *total(uint32_t n, uint32_t j) {
    return (float *)(dynamic_shared() + 2 * M128_SLICE_BYTES) + (n * 4 + j) * CUDA_THREADS +
           threadIdx.x;
}

/* The end of a segment. */
DEVICE void add_up(float c[GROUPS][4], bool first) {
#pragma unroll
    for (uint32_t n = 0; n < GROUPS; n++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            *total(n, j) = first ? c[n][j] : *total(n, j) + c[n][j];
            c[n][j] = 0;
        }
}

/* All columns of one row of tiles. All warps take part in the slices, also those that have no
 * tiles. */
template <int F> DEVICE void walk(struct Source &from) {
    [[maybe_unused]] constexpr uint32_t unroll = Steps<F>::unroll;
    uint32_t segment = 0, end = tile_segment(from.n_units, 1);
    float c[GROUPS][4];

    for (uint32_t s = 0; s + 1 < m128_slots(F); s++)
        from.fetch_weights<F>(s);
    from.fetch_slice<F>(0);
    copy_commit(); /* as in take() */
#pragma unroll
    for (uint32_t n = 0; n < GROUPS; n++)
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
    for (uint32_t u = 0; u < from.n_units; u++) {
        const uint8_t *stage = dynamic_shared() + (from.ring + u / Steps<F>::units % m128_slots(F) *
                                                                   tile_stage_bytes(F));

#pragma unroll unroll
        for (uint32_t i = 0; i < Steps<F>::slices; i++) {
            const uint8_t *slice = from.take<F>(u * Steps<F>::slices + i);
            struct Tile<F> tile; /* what the slice needs of it: registers are scarce */

            if (!from.tiles)
                continue;
            int first =
                load_slice<F>(tile, stage + u % Steps<F>::units * tile_bytes(F), i, from.grid);
            add_slice<F>(tile, first, slice, c);
        }
        if (u + 1 < end)
            continue;
        add_up(c, segment == 0);
        end = tile_segment(from.n_units, ++segment + 1);
    }
}

struct M128Walk {
    struct Source &from;

    template <int F> __device__ __forceinline__ void of() const {
        walk<F>(from);
    }
};

DEVICE struct Source source_of(const struct matmul_args &a, const struct matrix &m, uint32_t tile,
                               uint32_t row0, uint32_t n_rows) {
    struct Source s;
    uint32_t n_pairs = a.n_blocks / 2, tid = threadIdx.x;
    uint32_t group = tid / 64;

    uint32_t last = (n_rows - row0 - 1) / PACK_ROWS;
    group = group < last ? group : last;
    s.n_behind = last - group;
    s.group_bytes = n_pairs * 512;
    s.x =
        (const uint8_t *)a.x + ((size_t)(row0 / PACK_ROWS + group) * n_pairs * 512 + tid % 64 * 16);
    s.ring = 2 * M128_SLICE_BYTES + M128_SUM_BYTES +
             tid / 32 * m128_slots(m.format) * tile_stage_bytes(m.format);
    s.n_units = m.n_units;
    s.grid = m.grid;
    s.tiles =
        tile < m.n_row_tiles ? m.tiles + (size_t)tile * m.n_units * tile_bytes(m.format) : NULL;
    return s;
}

/* y of the warp. */
DEVICE void put_all(const struct matmul_args &a, const struct matrix &m, uint32_t n_rows,
                    uint32_t row0, uint32_t tile) {
    uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (uint32_t n = 0; n < GROUPS; n++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            put(a, m, n_rows, row0 + n * PACK_ROWS + lane % 4 * 2 + j % 2,
                tile * TILE_ROWS + lane / 4 + j / 2 * 8, *total(n, j));
}

/* Devices without the shared memory are never asked (matmul_m128.c): they need no code. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870 ||                     \
                               __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
#define HAS_ROOM false
#else
#define HAS_ROOM true
#endif

KERNEL(matmul_m128, struct matmul_args, CUDA_THREADS, 1) {
    if (!HAS_ROOM)
        return;
    wait_for_previous();
    uint32_t block = blockIdx.y, row0 = blockIdx.x * M128_ROWS, n_rows = count_rows(a);

    if (row0 >= n_rows)
        return;
    const struct matrix &m = matrix_of_block(a, &block);
    uint32_t tile = block * 8 + threadIdx.x / 32;
    struct Source from = source_of(a, m, tile, row0, n_rows);

    walk_of(m.format, M128Walk{from});
    copy_wait<0>();
    if (from.tiles)
        put_all(a, m, n_rows, row0, tile);
}
