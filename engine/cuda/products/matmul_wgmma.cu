/*
 * matmul_wgmma - the products of matmul_wide (matmul.cu) on Hopper, by wgmma. They must have the
 * bits of mma.sync; the self-test checks that on the device (selftest.c).
 *
 * A block computes 128 outputs of N rows of the activations, with two warpgroups of 64 x N outputs,
 * 16 x N for each warp. wgmma takes A, the weights, from registers and B, the activations, from
 * shared memory. So each warp decodes its own row of tiles, and the warpgroup multiplies the result
 * with a slice of 64 columns of the activations, which is in shared memory in the layout of
 * pack_args.cores: core matrices of 8 rows by 8 halves. matmul_wgmma has N = 128; matmul_wgmma_64
 * has N = 64, and its blocks can share the segments as those of matmul_wide do.
 *
 * matmul_wgmma_join is matmul_wgmma_64 for clusters of WGMMA_JOIN blocks, each of which has two of
 * the segments of a panel. Their sums stay in registers until all blocks have ended, then go to the
 * shared memory of the block that adds them up: a quarter of the panel's rows for each block.
 *
 * wgmma is asynchronous. While the products of a slice run, the warps decode the weights of the
 * next slice into other registers:
 *
 *     decode 0 | decode 1          | decode 2          | decode 3 ...
 *              | wgmma of slice 0  | wgmma of slice 1  | wgmma of slice 2 ...
 *
 * Shared memory has WGMMA_SLICES slices: those that running products read, the one before, which is
 * free at the next barrier, and those that are being copied. Slices are copied in bulk
 * (cp.async.bulk): data from cp.async would need a proxy fence before wgmma, and that fence
 * waits for all running products. Weights, which no wgmma reads from shared memory, are copied by
 * cp.async to a ring for each warp.
 */

#include "engine/cuda/bulk.cuh"
#include "engine/cuda/cluster.cuh"
#include "engine/cuda/products/gated.cuh"
#include "engine/cuda/wgmma.cuh"

#if defined(WEFT_SIMT) || defined(WEFT_SM90A)
extern "C" const bool matmul_wgmma_built = true;
#else
extern "C" const bool matmul_wgmma_built = false;
#endif

#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define BLOCKS (2 * SLICE_PAIRS) /* number of blocks of 16 columns of a slice */

/* Returns the mbarrier of element @i of the ring of slices, which completes when the slice has
 * arrived. */
DEVICE uint64_t *slice_has_come(uint32_t i) {
    SHARED uint64_t full[WGMMA_SLICES(WGMMA_ROWS)];

    return full + i;
}

/* stages of a warp's ring of weights, as wgmma_slots() */
template <int F> constexpr uint32_t slots = SLOTS_AHEAD(Steps<F>::of_stage, WGMMA_AHEAD);

template <uint32_t N, bool JOINS> struct Source {
    /* offset of the ring of slices */
    static constexpr uint32_t base = JOINS ? WGMMA_JOIN_BASE : 0;
    static constexpr uint32_t slice_bytes = WGMMA_SLICE_BYTES(N), slices = WGMMA_SLICES(N);
    /* bytes of a column of all rows of a panel */
    static constexpr uint32_t row_bytes = 2 * WGMMA_ROWS;
    /* Slices whose products may run while the next slice is decoded: two; one for N = 64, where the
     * products of another block of the multiprocessor run meanwhile. */
    static constexpr uint32_t under_way = N == MATMUL_COLUMNS ? 1 : 2, ahead = slices - under_way;

    const uint8_t *x;     /* slice 0 */
    const uint8_t *tiles; /* address of the warp's row of tiles */
    uint32_t ring;        /* offset of the warp's ring of weights, which follows the slices */
    uint32_t n_units;     /* number of units of the block's segments */

    /* Returns the mbarrier of element @i of the ring. Clusters have no static shared memory. */
    static MEMBER uint64_t *bar(uint32_t i) {
        if (JOINS)
            return (uint64_t *)dynamic_shared() + i;
        return slice_has_come(i);
    }
    /* Sets the source of the weights: segments @first .. @last - 1 of row tile @tile of those at
     * @all. A warp without a row tile takes the last one, since four warps multiply together. */
    MEMBER void start(const struct matrix &m, const uint8_t *all, uint32_t tile, uint32_t first,
                      uint32_t last) {
        ring = base + slices * slice_bytes +
               threadIdx.x / 32 * (wgmma_slots(m.format) * tile_stage_bytes(m.format));
        n_units = m.unit[last] - m.unit[first];
        tile = tile < m.n_row_tiles ? tile : m.n_row_tiles - 1;
        tiles = all + ((size_t)tile * m.bytes[TILE_SEGMENTS] + m.bytes[first]);
    }
    /* Sets the source of the activations: rows @column N to (@column + 1) N - 1, from column @at of
     * the matrix on. Rows that do not exist are copied too; their results are not stored. */
    MEMBER void start_rows(const struct matmul_args &a, uint32_t column, uint32_t at) {
        constexpr uint32_t each = WGMMA_ROWS / N;

        x = (const uint8_t *)a.x + (size_t)(column / each) * a.n_blocks * (16 * row_bytes) +
            (size_t)at * row_bytes + column % each * slice_bytes;
    }
    /* Starts copying slice @i, the next one; done by one thread of the warp whose turn it is. */
    template <int F> MEMBER void fetch_slice(uint32_t i) {
        uint32_t place = i % slices;

        if (i >= n_units * Steps<F>::slices || threadIdx.x != i % (CUDA_THREADS / 32) * 32)
            return;
        bulk_expect(bar(place), slice_bytes);
        bulk_copy(dynamic_shared() + (base + place * slice_bytes), x + (size_t)i * (64 * row_bytes),
                  slice_bytes, bar(place));
    }
    /* Starts copying stage @s of the weights. */
    template <int F> MEMBER void fetch_weights(uint32_t s) {
        const uint32_t bytes = tile_stage_bytes(F);
        uint32_t lane = threadIdx.x % 32 * 16, first = s * Steps<F>::units;

        if (first < n_units)
            fetch_stage<F>(shared_start() + (ring + s % slots<F> * bytes + lane),
                           tiles + (s * bytes + lane), (n_units - first) * tile_bytes(F));
    }
    /* Starts the first copies. Weights are copied while the preceding kernel ends, since that does
     * not change them. */
    template <int F> MEMBER void begin(const struct matmul_args &a, uint32_t column, uint32_t at) {
        for (uint32_t s = 0; s < slots<F>; s++)
            fetch_weights<F>(s);
        copy_commit();
        if (threadIdx.x == 0) {
            for (uint32_t k = 0; k < slices; k++)
                bulk_init(bar(k));
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
    /* Waits for slice @i and for the weights of the next one; called by all threads. */
    template <int F> MEMBER void wait(uint32_t i) {
        copy_wait<(int)((slots<F> - 1) * Steps<F>::of_stage) - 1>();
        bulk_wait(bar(i % slices), i / slices);
        sync_block();
    }
    /* Called once the products of slice @i have begun: starts copies to the room of the last slice
     * that no product reads any more, and of the weights that are used up. */
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

/* Multiplies segments @first .. @last - 1 of one row of tiles with the @column-th N rows. total and
 * c have the layout of mma accumulators, [column of 8 rows][4]. If @shared (first_sum()) is not
 * NULL, each segment's sums are stored there instead; with JOINS total has those of two segments,
 * one after the other. */
template <uint32_t N, bool JOINS> struct Walk {
    static constexpr uint32_t n_totals = JOINS ? N : N / 2;

    const struct matmul_args &a;
    struct Source<N, JOINS> &from;
    const struct matrix &m;
    uint32_t first, last, column;
    float (&total)[n_totals];
    float *shared;

    /* Keeps sum @k of a segment, one of two. What the first one leaves in the place of the second
     * is replaced: registers have no index that is known only at run time. */
    MEMBER void keep(uint32_t segment, uint32_t k, float sum) const {
        if (segment == first)
            total[k] = sum;
        total[n_totals - N / 2 + k] = sum;
    }
    /* Ends a segment: waits for its products, adds c to the total, and clears c. */
    MEMBER void add_up(uint32_t segment, float (&c)[N / 2]) const {
        wgmma_wait<0>();
        wgmma_hold(c);
#pragma unroll
        for (uint32_t k = 0; k < N / 2; k++) {
            if (JOINS)
                keep(segment, k, c[k]);
            else if (N == MATMUL_COLUMNS && shared)
                shared[segment * WIDE_SUMS + sum_place(k)] = c[k];
            else
                total[k] = segment ? total[k] + c[k] : c[k];
            c[k] = 0;
        }
        wgmma_hold(c);
    }
    /* Returns the index of the first slice after segment @segment. */
    MEMBER uint32_t end_of(uint32_t segment, uint32_t slices) const {
        return (m.unit[segment + 1] - m.unit[first]) * slices;
    }
    /* Goes over the slices. The last products of a segment still run while the next slice is
     * decoded; add_up() waits for them before that slice is multiplied. */
    template <int F> MEMBER void of() const {
        constexpr uint32_t slices = Steps<F>::slices, units = Steps<F>::units;
        /* even, because w alternates */
        constexpr uint32_t step = Steps<F>::unroll > 1 ? slices : 2;

        from.template begin<F>(a, column, m.unit[first] * tile_k(F));
        const uint32_t start = wgmma_place(from.base), n = from.n_units * slices;
        uint32_t segment = first, end = end_of(first, slices), done;
        float c[N / 2] = {};
        constexpr uint32_t under_way = Source<N, JOINS>::under_way;
        /* Decoded weights of the slices whose products run; w[0] belongs to even slices of the
         * segment. */
        uint32_t w[under_way][BLOCKS][4];

        wgmma_hold(c);
        for (uint32_t i0 = 0; i0 < n; i0 += done) {
            done = step;
#pragma unroll
            for (uint32_t j = 0; j < step; j++) {
                uint32_t i = i0 + j, u = i / slices;

                /* the segment has an odd number of slices: the next one starts with w[0] again */
                if (slices == 1 && j > 0 && i == end) {
                    wgmma_wait<0>();
                    done = j;
                    break;
                }
                const uint8_t *stage =
                    dynamic_shared() + (from.ring + u / units % slots<F> * tile_stage_bytes(F));
                struct Tile<F> tile; /* the part of a tile that belongs to the slice */

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

#define JOIN_GROUPS (MATMUL_COLUMNS / PACK_ROWS / WGMMA_JOIN) /* of 8 rows, of a block */

/* Returns the thread's place, in the shared memory of a block of the cluster, for value @j of the
 * accumulators of segment @segment and the block's group @g of 8 rows. */
DEVICE float *join_place(uint32_t segment, uint32_t g, uint32_t j) {
    return (float *)(dynamic_shared() + WGMMA_JOIN_BASE) +
           ((segment * JOIN_GROUPS + g) * 4 + j) * CUDA_THREADS + threadIdx.x;
}

/* Adds up the sums of a panel: sends the thread's @sums of segments @first and @first + 1 to the
 * blocks of their rows, and writes y of the block's own rows, of row tile @tile of @m. */
DEVICE void join_store(const struct matmul_args &a, const struct matrix &m, uint32_t row0,
                       uint32_t tile, uint32_t first, const float (&sums)[MATMUL_COLUMNS]) {
    uint32_t lane = threadIdx.x % 32, n_rows = product_count_rows(a), rank = cluster_rank();

    cluster_arrive();
    cluster_wait(); /* no block reads its ring any more */
#pragma unroll
    for (uint32_t k = 0; k < MATMUL_COLUMNS; k++) {
        constexpr uint32_t n = MATMUL_COLUMNS / 2;
        uint32_t group = k % n / 4;

        cluster_store(join_place(first + k / n, group % JOIN_GROUPS, k % 4), group / JOIN_GROUPS,
                      sums[k]);
    }
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (uint32_t k = 0; k < JOIN_GROUPS * 4; k++) {
        float sum = *join_place(0, k / 4, k % 4);

#pragma unroll
        for (uint32_t s = 1; s < TILE_SEGMENTS; s++)
            sum += *join_place(s, k / 4, k % 4);
        product_store(a, m, n_rows,
                      row0 + (rank * JOIN_GROUPS + k / 4) * PACK_ROWS + lane % 4 * 2 + k % 2,
                      tile * TILE_ROWS + lane / 4 + k % 4 / 2 * 8, sum);
    }
}

template <uint32_t N, bool JOINS = false>
DEVICE void wgmma_multiply(const struct matmul_args &a, struct Part part) {
    constexpr bool divides = N == MATMUL_COLUMNS && !JOINS; /* blocks may share segments */
    uint32_t block = part.panel / a.n_columns, column = part.panel % a.n_columns;
    uint32_t row0 = column * N, lane = threadIdx.x % 32;
    float total[Walk<N, JOINS>::n_totals], *shared = NULL;
    struct Source<N, JOINS> from;

    /* Gate and up have all parameters of the walk in common, so it is the same for both
     * warpgroups. */
    const struct matrix &m = a.gated ? a.m[0] : matrix_of_block(a, &block);
    const struct matrix &own = a.gated ? a.m[threadIdx.x / 128] : m;
    uint32_t tile = a.gated ? gated_tile(block) : block * 8 + threadIdx.x / 32;

    if (divides && a.n_splits > 1)
        shared = first_sum(a, part.panel * TILE_SEGMENTS);
    from.start(m, own.tiles, tile, part.first, part.last);
    walk_of(m.format, Walk<N, JOINS>{a, from, m, part.first, part.last, column, total, shared});
    copy_wait<0>();
    if constexpr (JOINS)
        return join_store(a, m, row0, tile, part.first, total);
    uint32_t n_rows = product_count_rows(a);
    if (divides && shared)
        return store_shared(a, m, n_rows, row0, block * WIDE_OUT, part.panel);
    if (a.gated) {
        sync_block();
#pragma unroll
        for (uint32_t k = 0; k < N / 2; k++)
            keep_gated(a, own, n_rows, row0, tile, k, total[k]);
        sync_block();
        return put_gated_rows<N, true>(a, n_rows, row0, block, CUDA_THREADS);
    }
    if (tile >= m.n_row_tiles)
        return;
#pragma unroll
    for (uint32_t k = 0; k < N / 2; k++)
        product_store(a, m, n_rows, row0 + k / 4 * PACK_ROWS + lane % 4 * 2 + k % 2,
                      tile * TILE_ROWS + lane / 4 + k % 4 / 2 * 8, total[k]);
}

#endif

KERNEL(matmul_wgmma, struct matmul_args, CUDA_THREADS, 1) {
#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    wgmma_multiply<WGMMA_ROWS>(a, {blockIdx.x, 0, TILE_SEGMENTS});
#endif
}

KERNEL(matmul_wgmma_64, struct matmul_args, CUDA_THREADS, 2) {
#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    wgmma_multiply<MATMUL_COLUMNS>(a, part_of_block(a));
#endif
}

KERNEL_CLUSTER(matmul_wgmma_join, struct matmul_args, CUDA_THREADS, 2, WGMMA_JOIN) {
#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    wgmma_multiply<MATMUL_COLUMNS, true>(a, part_of_block(a));
#endif
}
