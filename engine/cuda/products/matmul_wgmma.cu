/*
 * matmul_wgmma - y (+)= W x + bias for more than a few rows on a Hopper: what matmul_wide does, by
 * wgmma. Whether that has the bits of mma.sync the self-test finds out on the device (selftest.c).
 * A block has 128 rows of the matrix and N of the activations, each of two warpgroups 64 x N, a
 * warp 16 x N: it makes the operands of its own row tile, and the warpgroup multiplies them with a
 * slice of 64 columns of the activations. Those lie in shared memory as they came
 * (pack_args.cores): cores of 8 rows by 8 halves. matmul_wgmma has 128 rows, matmul_wgmma_64 has 64
 * and can share the segments between blocks as matmul_wide does.
 *
 * While products of a slice are under way the operands of the next one are made. WGMMA_SLICES
 * slices are in shared memory: that of the products under way, the one before, whose place is free
 * at the next barrier, and three that come. They come by copies in bulk: what cp.async brings would
 * need a fence in front of wgmma, and that fence waits for all that is under way. Weights come by
 * cp.async in a ring of each warp's own.
 */

#include "engine/cuda/bulk.cuh"
#include "engine/cuda/products/gated.cuh"
#include "engine/cuda/products/wgmma.cuh"

#if defined(WEFT_SIMT) || defined(WEFT_SM90A)
extern "C" const bool matmul_wgmma_built = true;
#else
extern "C" const bool matmul_wgmma_built = false;
#endif

#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define BLOCKS (2 * SLICE_PAIRS) /* blocks of 16 columns of a slice */

/* Returns the block's barrier of place @i of the ring of slices: the slice there has come. */
DEVICE uint64_t *slice_has_come(uint32_t i) {
    SHARED uint64_t full[WGMMA_SLICES(WGMMA_ROWS)];

    return full + i;
}

/* wgmma_slots() */
template <int F> constexpr uint32_t slots = SLOTS_AHEAD(Steps<F>::of_stage, WGMMA_AHEAD);

template <uint32_t N> struct Source {
    static constexpr uint32_t slice_bytes = WGMMA_SLICE_BYTES(N), slices = WGMMA_SLICES(N);
    static constexpr uint32_t row_bytes = 2 * WGMMA_ROWS; /* of a column of all rows of a panel */
    /* Slices whose products may be under way while the next one's operands are made: two, or one,
     * where another block's products go on beside. */
    static constexpr uint32_t under_way = N == MATMUL_COLUMNS ? 1 : 2, ahead = slices - under_way;

    const uint8_t *x;     /* slice 0 */
    const uint8_t *tiles; /* the warp's row of tiles */
    uint32_t ring;        /* offset of the warp's; the slices come first */
    uint32_t n_units;     /* units of segments @first .. @last - 1. */

    /* The weights of segments @first .. @last - 1 of row tile @tile of those at @all, or of the
     * last one where there is none: four warps multiply together. */
    MEMBER void start(const struct matrix &m, const uint8_t *all, uint32_t tile, uint32_t first,
                      uint32_t last) {
        ring = slices * slice_bytes +
               threadIdx.x / 32 * (wgmma_slots(m.format) * tile_stage_bytes(m.format));
        n_units = m.unit[last] - m.unit[first];
        tile = tile < m.n_row_tiles ? tile : m.n_row_tiles - 1;
        tiles = all + ((size_t)tile * m.bytes[TILE_SEGMENTS] + m.bytes[first]);
    }
    /* The activations, the @column'th N rows, from column @at of the matrix on. Rows that do not
     * exist are copied as they are: their results are not read. */
    MEMBER void start_rows(const struct matmul_args &a, uint32_t column, uint32_t at) {
        constexpr uint32_t each = WGMMA_ROWS / N;

        x = (const uint8_t *)a.x + (size_t)(column / each) * a.n_blocks * (16 * row_bytes) +
            (size_t)at * row_bytes + column % each * slice_bytes;
    }
    /* Starts on slice @i, the next one, by one thread: warps take turns. */
    template <int F> MEMBER void fetch_slice(uint32_t i) {
        uint32_t place = i % slices;

        if (i >= n_units * Steps<F>::slices || threadIdx.x != i % (CUDA_THREADS / 32) * 32)
            return;
        bulk_expect(slice_has_come(place), slice_bytes);
        bulk_copy(dynamic_shared() + place * slice_bytes, x + (size_t)i * (64 * row_bytes),
                  slice_bytes, slice_has_come(place));
    }
    /* Stage @s of the weights. */
    template <int F> MEMBER void fetch_weights(uint32_t s) {
        const uint32_t bytes = tile_stage_bytes(F);
        uint32_t lane = threadIdx.x % 32 * 16, first = s * Steps<F>::units;

        if (first < n_units)
            fetch_stage<F>(shared_start() + (ring + s % slots<F> * bytes + lane),
                           tiles + (s * bytes + lane), (n_units - first) * tile_bytes(F));
    }
    /* The first of all. Weights do not change: they come while the kernel before ends. */
    template <int F> MEMBER void begin(const struct matmul_args &a, uint32_t column, uint32_t at) {
        for (uint32_t s = 0; s < slots<F>; s++)
            fetch_weights<F>(s);
        copy_commit();
        if (threadIdx.x == 0) {
            for (uint32_t k = 0; k < slices; k++)
                bulk_init(slice_has_come(k));
            bulk_publish();
        }
        sync_block();
        wait_for_previous();
        start_rows(a, column, at);
        for (uint32_t i = 0; i < ahead; i++)
            fetch_slice<F>(i);
        copy_wait<0>();
        sync_warp();
    }
    /* Waits for slice @i, and the weights of the next one; for all threads. */
    template <int F> MEMBER void wait(uint32_t i) {
        copy_wait<(int)((slots<F> - 1) * Steps<F>::of_stage) - 1>();
        bulk_wait(slice_has_come(i % slices), i / slices);
        sync_block();
    }
    /* Behind the products of slice @i: in the places of the last slice that is no longer under way,
     * and of the stage that is used up. */
    template <int F> MEMBER void fetch(uint32_t i) {
        fetch_slice<F>(i + ahead);
        if ((i + 1) % Steps<F>::of_stage == 0)
            fetch_weights<F>((i + 1) / Steps<F>::of_stage - 1 + slots<F>);
        copy_commit();
    }
};

DEVICE void wgmma(float (&d)[64], const uint32_t a[4], uint64_t b) {
    wgmma_n128(d, a, b);
}

DEVICE void wgmma(float (&d)[32], const uint32_t a[4], uint64_t b) {
    wgmma_n64(d, a, b);
}

/* Segments @first .. @last - 1 of one row of tiles, times the @column'th N rows; total, c: [column
 * of 8 rows][4], as mma's. With @shared, first_sum(), each segment's sums go there instead. */
template <uint32_t N> struct Walk {
    const struct matmul_args &a;
    struct Source<N> &from;
    const struct matrix &m;
    uint32_t first, last, column;
    float (&total)[N / 2];
    float *shared;

    /* Behind the products of a segment; c for the next one. */
    MEMBER void add_up(uint32_t segment, float (&c)[N / 2]) const {
        wgmma_wait<0>();
        wgmma_hold(c);
#pragma unroll
        for (uint32_t k = 0; k < N / 2; k++) {
            if (N == MATMUL_COLUMNS && shared)
                shared[segment * WIDE_SUMS + sum_place(k)] = c[k];
            else
                total[k] = segment ? total[k] + c[k] : c[k];
            c[k] = 0;
        }
        wgmma_hold(c);
    }
    /* Returns the first slice behind segment @segment. */
    MEMBER uint32_t end_of(uint32_t segment, uint32_t slices) const {
        return (m.unit[segment + 1] - m.unit[first]) * slices;
    }
    /* The last products of a segment are under way while the operands of the next slice are made:
     * they are waited for where that is multiplied. */
    template <int F> MEMBER void of() const {
        constexpr uint32_t slices = Steps<F>::slices, units = Steps<F>::units;
        constexpr uint32_t step = Steps<F>::unroll > 1 ? slices : 2; /* even: w */

        from.template begin<F>(a, column, m.unit[first] * tile_k(F));
        const uint32_t start = wgmma_place(0), n = from.n_units * slices;
        uint32_t segment = first, end = end_of(first, slices), done;
        float c[N / 2] = {};
        constexpr uint32_t under_way = Source<N>::under_way;
        /* Decoded weights of the slices under way: of two, w[0] of even ones of the segment. */
        uint32_t w[under_way][BLOCKS][4];

        wgmma_hold(c);
        for (uint32_t i0 = 0; i0 < n; i0 += done) {
            done = step;
#pragma unroll
            for (uint32_t j = 0; j < step; j++) {
                uint32_t i = i0 + j, u = i / slices;

                if (slices == 1 && j > 0 && i == end) { /* an odd number: w[0] is next */
                    wgmma_wait<0>();
                    done = j;
                    break;
                }
                const uint8_t *stage =
                    dynamic_shared() + (from.ring + u / units % slots<F> * tile_stage_bytes(F));
                struct Tile<F> tile; /* the slice's part of a tile */

                int pair =
                    load_slice<F>(tile, stage + u % units * tile_bytes(F), i % slices, m.grid);
#pragma unroll
                for (uint32_t k = 0; k < BLOCKS; k++) {
                    weights_of<F>(tile, 2 * pair + (int)k, w[j % under_way][k]);
                    wgmma_hold(w[j % under_way][k]);
                }
                from.template wait<F>(i);
                if (j == 0 && i == end) {
                    add_up(segment++, c);
                    end = end_of(segment, slices);
                }
                const uint32_t slice = start + i % from.slices * (from.slice_bytes / 16);

                wgmma_begin();
#pragma unroll
                for (uint32_t k = 0; k < BLOCKS; k++)
                    wgmma(c, w[j % under_way][k], wgmma_operand(slice + k * 16, 128, 1024));
                wgmma_commit();
                from.template fetch<F>(i);
                wgmma_wait<(int)under_way - 1>();
            }
        }
        add_up(segment, c);
    }
};

template <uint32_t N> DEVICE void multiply(const struct matmul_args &a, struct Part part) {
    constexpr bool divides = N == MATMUL_COLUMNS; /* segments between blocks */
    uint32_t block = part.panel / a.n_columns, column = part.panel % a.n_columns;
    uint32_t row0 = column * N, lane = threadIdx.x % 32;
    float total[N / 2], *shared = NULL;
    struct Source<N> from;

    /* Gate and up have all parameters of the walk in common, so it is the same for both
     * warpgroups. */
    const struct matrix &m = a.gated ? a.m[0] : matrix_of_block(a, &block);
    const struct matrix &own = a.gated ? a.m[threadIdx.x / 128] : m;
    uint32_t tile = a.gated ? gated_tile(block) : block * 8 + threadIdx.x / 32;

    if (divides && a.n_splits > 1)
        shared = first_sum(a, part.panel * TILE_SEGMENTS);
    from.start(m, own.tiles, tile, part.first, part.last);
    walk_of(m.format, Walk<N>{a, from, m, part.first, part.last, column, total, shared});
    copy_wait<0>();
    uint32_t n_rows = count_rows(a);
    if (divides && shared)
        return put_shared(a, m, n_rows, row0, block * WIDE_OUT, part.panel);
    if (a.gated) {
        sync_block();
#pragma unroll
        for (uint32_t k = 0; k < N / 2; k++)
            keep_gated(a, own, n_rows, row0, tile, k, total[k]);
        return put_gated_rows<N>(a, n_rows, row0, block);
    }
    if (tile >= m.n_row_tiles)
        return;
#pragma unroll
    for (uint32_t k = 0; k < N / 2; k++)
        put(a, m, n_rows, row0 + k / 4 * PACK_ROWS + lane % 4 * 2 + k % 2,
            tile * TILE_ROWS + lane / 4 + k % 4 / 2 * 8, total[k]);
}

#endif

KERNEL(matmul_wgmma, struct matmul_args, CUDA_THREADS, 1) {
#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    multiply<WGMMA_ROWS>(a, {blockIdx.x, 0, TILE_SEGMENTS});
#endif
}

KERNEL(matmul_wgmma_64, struct matmul_args, CUDA_THREADS, 2) {
#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    multiply<MATMUL_COLUMNS>(a, part_of_block(a));
#endif
}
