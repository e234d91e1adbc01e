#pragma once

/* matvec_walk - the walk of a block of matvec and its like over rows of tiles: the ring that each
 * warp fills, the rows of activations, and the sum over the segments (matmul.cu). */

#include "engine/cuda/dry.cuh"
#include "engine/cuda/products/gated.cuh"
#include "engine/cuda/products/kernels_norm.h"
#include "engine/cuda/products/matvec.cuh"

/* Three blocks of a multiprocessor have room for their rings. Products of bytes need more
 * registers. */
#ifdef WEFT_BYTES
#define MATVEC_BLOCKS 2
#define MATVEC_16_AHEAD 2 /* with a whole part's pairs registers are spilled */
#else
#define MATVEC_BLOCKS 3
#define MATVEC_16_AHEAD MATVEC_AHEAD
#endif

/* Returns the block's row tile after @tile, or n_tiles at the end. A block has every gridDim.x-th
 * row tile; with gates, each row tile of the gate is followed by the same one of the up matrix. */
DEVICE uint32_t next_tile(const struct matmul_args &a, uint32_t tile) {
    if (tile < a.gated)
        return tile + a.gated;
    tile += gridDim.x - a.gated;
    return tile < a.n_tiles - a.gated ? tile : a.n_tiles;
}

/* Returns the index of the matrix that has row tile @tile; *local: the number of the tile in it. */
DEVICE uint32_t matrix_of(const struct matmul_args &a, uint32_t tile, uint32_t *local) {
    uint32_t i = 0;

#pragma unroll
    for (; i + 1 < MATMUL_MATRICES; i++) {
        if (i + 1 >= a.n_mats || tile < a.m[i].n_row_tiles)
            break;
        tile -= a.m[i].n_row_tiles;
    }
    *local = tile;
    return i;
}

/* Multiplies, in a warp of matvec, its own segment of each of the block's row tiles. */
struct OfBlock {
    static MEMBER uint32_t segment() {
        return threadIdx.x / 32;
    }
    /* Returns the first row tile of which the warp has a part. */
    static MEMBER uint32_t first(const struct matmul_args &) {
        return blockIdx.x;
    }
};

/* Ring of a warp in shared memory, filled by cp.async stage by stage with the weights of the warp's
 * segment of its row tiles, which OF tells. Keeps few registers, which are scarce in this
 * kernel. */
template <int F, class OF = OfBlock> struct Feed {
    static constexpr uint32_t FULL = 1; /* in `slot`: no stage was taken yet */

    uint32_t slot, end;  /* offsets of the next stage and of the end of the ring */
    uint32_t tile;       /* row tile that is being fetched, counted over all matrices */
    uint32_t n_left;     /* bytes of its segment that are left; 0 after the last tile */
    const uint8_t *from; /* address of the lane's next bytes */

    /* Starts copying all stages; @dry 1: all but the last, which take() will start. */
    MEMBER void start(const struct matmul_args &a, uint32_t dry = 0) {
        end = (threadIdx.x / 32 + 1) * (a.n_stages * a.stage_bytes);
        slot = end - a.n_stages * a.stage_bytes;
        tile = OF::first(a);
        from = NULL;
        seek(a);
#pragma unroll 1
        for (uint32_t i = dry; i < a.n_stages; i++)
            fetch(a);
        if (!dry)
            slot |= FULL;
    }
    /* Lets take() return the first stage once more, after a dry pass that took only that. */
    MEMBER void take_again() {
        slot |= FULL;
    }
    /* Waits for the first stage; no stage was used before. */
    MEMBER void take_first(const struct matmul_args &a) {
        if (a.n_stages == MATVEC_STAGES)
            copy_wait<MATVEC_STAGES - 1>();
        else
            copy_wait<1>(); /* two */
        sync_warp();
    }
    /* Moves to the beginning of the warp's segment of `tile`. */
    MEMBER void seek(const struct matmul_args &a) {
        uint32_t local, segment = OF::segment();

        n_left = 0;
        if (tile >= a.n_tiles)
            return;
        const struct matrix &m = a.m[matrix_of(a, tile, &local)];

        n_left = m.bytes[segment + 1] - m.bytes[segment];
        from = m.tiles +
               ((size_t)local * m.bytes[TILE_SEGMENTS] + m.bytes[segment] + threadIdx.x % 32 * 16);
    }
    /* Starts copying the next stage; an empty one after the last tile, or if the warp has no
     * segment. */
    MEMBER void fetch(const struct matmul_args &a) {
        uint32_t n = tile_stage_bytes(F), to = shared_start() + slot + threadIdx.x % 32 * 16;

        if (n_left >= n) {
            fetch_bytes(to, from, n);
        } else {
            n = n_left;
            if (TILE_STAGE_UNITS(F) > 1)
                fetch_few(to, from, n);
        }
        if (n_left > 0) {
            from += n;
            n_left -= n;
            if (n_left == 0) {
                tile = next_tile(a, tile);
                seek(a);
            }
        }
        slot += a.stage_bytes;
        if (slot == end)
            slot -= a.n_stages * a.stage_bytes;
        copy_commit();
    }
    /* Waits for the oldest stage and returns it, and starts copying into the stage used before. */
    MEMBER const uint8_t *take(const struct matmul_args &a) {
        if (slot & FULL) {
            slot -= FULL;
            take_first(a);
            return dynamic_shared() + slot;
        }
        if (a.n_stages == MATVEC_STAGES)
            copy_wait<MATVEC_STAGES - 2>();
        else
            copy_wait<0>(); /* two */
        sync_warp();
        fetch(a);
        return dynamic_shared() + slot; /* all other stages are in flight */
    }
};

/* Offsets of a lane's activations: row g of each group of 8 rows. If there is no row g, the lane
 * loads the first row of the group; the results are not stored. */
template <int G> struct Rows {
    using pass = struct LivePass;

    uint32_t x[G]; /* offsets in bytes */

    MEMBER void start(const struct matmul_args &a, uint32_t n_rows) {
        uint32_t lane = threadIdx.x % 32;

#pragma unroll
        for (uint32_t i = 0; i < G; i++) {
            bool there = i * PACK_ROWS + lane / 4 < n_rows;

            x[i] = i * (uint32_t)weights_group_bytes(a.n_blocks) + (there ? lane : lane % 4) * 16;
        }
    }
    /* Returns the scale of the row whose outputs the thread stores. */
    MEMBER float settle(const struct matmul_args &a, const struct LivePass &, uint32_t row,
                        uint32_t n_rows, float *, float *) {
        return row < n_rows ? a.scale[row] : 0;
    }
};

/* Rows that are loaded only in the live pass. */
template <int G> struct DryRows : Rows<G> {
    using pass = struct DryPass;

    uint32_t live;

    MEMBER float settle(const struct matmul_args &a, const struct DryPass &pass, uint32_t row,
                        uint32_t n_rows, float *, float *) {
        live = pass.live;
        return live && row < n_rows ? a.scale[row] : 0;
    }
    /* Loads a lane's activations (matvec.cuh). */
    template <int F>
    MEMBER void load(const struct matmul_args &a, int i, uint32_t part, uint32_t p,
                     struct vec4 &v) const {
        load16_device_if(live, matvec_activations<F>(a, *this, i, part, p), v);
    }
};

template <int G> constexpr bool matvec_rows_load<struct DryRows<G>> = true;

/* Place of a row of a block of matvec_norm and of its scale in shared memory, for
 * pack_quads_to(). */
struct OwnPlace {
    uint16_t *to;
    uint32_t n_padded;
    float *scale;

    MEMBER bool keeps_scale() const {
        return threadIdx.x == 0;
    }
    MEMBER void keep_scale(float of_row) const {
        *scale = of_row;
    }
    template <uint32_t STEP, int QUADS>
    MEMBER void write(uint32_t i, float shrink, float (&v)[QUADS][4]) const {
        write_row<STEP>(to + i / 32 * 32, 1, n_padded, i, shrink, true, v);
    }
};

/* The rows of a block of matvec_norm, behind the rings: [PACK_PLANES][n_padded] each. A lane
 * without a row loads the first. */
struct OwnRows {
    using pass = struct LivePass;

    const struct pack_args &norm;
    /* offset in bytes of the lane's activations */
    uint32_t x;

    MEMBER void start(const struct matmul_args &a, uint32_t n_rows) {
        uint32_t lane = threadIdx.x % 32, row = lane / 4 < n_rows ? lane / 4 : 0;

        x = matvec_shared(a.stage_bytes, a.n_stages) +
            row * matvec_norm_row(norm.n_padded, PACK_PLANES) + lane % 4 * 16;
        if (blockIdx.x == 0)
            prefetch_weights(norm.weight, norm.n);
    }
    /* Packs the rows; afterwards no thread uses @scratch, PACK_SHARED floats for each row. Returns
     * the scale of row @row, read from @scales, which is not written before the next barrier. */
    MEMBER float settle(const struct matmul_args &a, const struct LivePass &, uint32_t row,
                        uint32_t n_rows, float *scratch, float *scales) const {
        uint8_t *to = dynamic_shared() + matvec_shared(a.stage_bytes, a.n_stages);

#pragma unroll 1
        for (uint32_t r = 0; r < n_rows; r++) {
            uint8_t *at = to + r * matvec_norm_row(norm.n_padded, PACK_PLANES);
            const struct OwnPlace place = {(uint16_t *)at, norm.n_padded, scales + r};
            const float *from = norm.x + (size_t)r * norm.n;

            pack_quads_to<CUDA_THREADS, MATVEC_NORM_COLUMNS / (4 * CUDA_THREADS), false, true>(
                norm, place, scratch + r * PACK_SHARED,
                [&](uint32_t i, auto &v) { load_quads<4 * CUDA_THREADS>(from, i, norm.n, v); });
        }
        sync_block();
        return row < n_rows ? scales[row] : 0;
    }
    /* Loads a lane's activations (matvec.cuh). */
    template <int F>
    MEMBER void load(const struct matmul_args &a, int, uint32_t part, uint32_t p,
                     struct vec4 &v) const {
        const uint8_t *from = dynamic_shared() + (x + part * (Parts<F>::pairs * 64u));

        if constexpr (has_bytes(F))
            from += a.n_blocks * 32;
        v = load16(from + p * 64);
    }
};

template <> constexpr bool matvec_rows_load<struct OwnRows> = true;

/* The element of y that a thread computes in each row tile of a block. */
template <class PASS> struct Element {
    PASS pass;
    uint32_t n_rows;
    /* scale of the row */
    float scale;

    static MEMBER uint32_t row_of(uint32_t tid) {
        return tid / 128 * PACK_ROWS + tid % 4 * 2 + tid / 32 % 2;
    }
    /* Packs column @out of n, as write_quads() does. */
    MEMBER void pack(const struct matmul_args &a, uint32_t n, uint32_t row, uint32_t out,
                     float v) const {
        uint32_t group = row / PACK_ROWS * (n / 32) + out / 32;
        uint16_t half = (uint16_t)pack_half(v * a.fixed);

        if (pass.is_live())
            a.packed[(group * PACK_ROWS + row % PACK_ROWS) * 32 + pack_place(out % 32)] = half;
        if (out == 0 && pass.is_live())
            a.packed_scale[row] = 1.0f / a.fixed;
    }
    /* Stores the element, whose sum is @sum, of row tile @local of matrix @i. With gates, the
     * gate's is kept in @gate (shared memory) until the up matrix's follows. A dry pass goes the
     * way of the up matrix. */
    MEMBER void put(const struct matmul_args &a, const struct matrix &m, uint32_t i, uint32_t local,
                    float sum, float *gate) const {
        uint32_t tid = anew(threadIdx.x), row = row_of(tid);
        uint32_t out = local * TILE_ROWS + tid % 32 / 4 + tid / 64 % 2 * 8;

        if (row >= n_rows || out >= m.n_out)
            return;
        float *y = (a.gated ? a.m[0].y : m.y) + ((size_t)row * m.n_out + out);
        float v = product_scaled(m, scale, out, sum);

        if (!pass.is_live())
            *gate = 0;
        if (a.gated && i == 0 && pass.is_live())
            *gate = v;
        else if (a.packed)
            pack(a, m.n_out, row, out, gated(a.glu, *gate, v));
        else if (a.gated)
            put_one(y, gated(a.glu, *gate, v));
        else
            put_one(y, a.add && pass.is_live() ? *y + v : v);
    }
    MEMBER void put_one(float *y, float v) const {
        if (pass.is_live())
            *y = v;
    }
};

/* Returns the sum of a value over the segments of a row of @n_units tiles, from left to right.
 * @value: the first warp's; those of the next warps are TILE_LANES apart. */
DEVICE float add_segments(const float *value, uint32_t n_units) {
    float sum = value[0];

    if (n_units >= TILE_SEGMENTS) {
#pragma unroll
        for (uint32_t s = 1; s < TILE_SEGMENTS; s++)
            sum += value[s * TILE_LANES];
        return sum;
    }
#pragma unroll 1
    for (uint32_t s = 1; s < n_units; s++)
        sum += value[s * TILE_LANES];
    return sum;
}

#if defined(WEFT_SIMT) || __CUDA_ARCH__ == 890
#define WEFT_AHEAD 1
#else
#define WEFT_AHEAD 0
#endif

/* Prefetches the first weights of the next product to the L2 cache, each block a part, while other
 * blocks still multiply. On Ada, whose L2 cache holds half a layer, and where no kernel starts
 * early. */
DEVICE void prefetch_ahead(const struct matmul_args &a) {
#pragma unroll
    for (uint32_t i = 0; i < MATMUL_MATRICES; i++)
#pragma unroll 1
        for (uint32_t at = (blockIdx.x * CUDA_THREADS + threadIdx.x) * 128; at < a.ahead[i].bytes;
             at += gridDim.x * (CUDA_THREADS * 128))
            prefetch(a.ahead[i].tiles + at);
}

/* Goes over the block's row tiles, for G groups of 8 rows. Successive row tiles use alternate
 * halves of @sums, so that the barrier of a tile also orders the reads of the tile before it. The
 * loop over tiles is instantiated for each format, so that its code is contiguous. @sums: [2][4 G];
 * @gate: [TILE_LANES * 4 G]; AHEAD: of Activations; ROWS: Rows<G>, DryRows<G> or OwnRows. */
template <int G, int AHEAD, class ROWS> struct TilesWalk {
    using PASS = typename ROWS::pass;

    const struct matmul_args &a;
    const ROWS &with;
    float (*sums)[CUDA_THREADS];
    float *gate;

    /* Accumulates the warp's segment of a row of tiles of @m in c; c[i] has the mma accumulators of
     * group i. @x: the activations of the segment's first part, on entry and again on return. */
    template <int F>
    MEMBER void add(const PASS &pass, const struct matrix &m, struct Feed<F> &feed,
                    const ROWS &rows, struct Activations<F, G, AHEAD> &x, float c[G][4]) const {
        constexpr uint32_t units = TILE_STAGE_UNITS(F);
        uint32_t from = m.unit[threadIdx.x / 32], to = m.unit[threadIdx.x / 32 + 1];

        if (!pass.is_live() && from + units < to)
            to = from + units;

#pragma unroll 1
        for (uint32_t u = from; u < to; u += units) {
            const uint8_t *stage = feed.take(a);

#pragma unroll
            for (uint32_t n = 0; n < units; n++)
                if (u + n < to)
                    matvec_add_unit(a, m, stage + n * tile_bytes(F), u + n,
                                    u + n + 1 < to ? u + n + 1 : from, rows, x, c);
        }
    }
    /* Stores the warp's sums in @half, and after a barrier writes y from the sums of all warps. */
    MEMBER void finish(float (*half)[CUDA_THREADS], uint32_t tile,
                       const struct Element<PASS> &element, const float c[G][4]) const {
        uint32_t local, tid = anew(threadIdx.x), i = matrix_of(a, anew(tile), &local);

#pragma unroll
        for (int j = 0; j < 4 * G; j++)
            half[j][tid] = c[j / 4][j % 4];
        sync_block();
        if (tid < TILE_LANES * 4 * G)
            element.put(a, a.m[i], i, local,
                        add_segments(&half[tid / 32][tid % 32], a.m[i].n_units), &gate[tid]);
    }
    template <int F> MEMBER void of() const {
        uint32_t half = 0, local, n_rows, tile = blockIdx.x, warp = threadIdx.x / 32;
        const struct matrix &m = a.m[matrix_of(a, tile, &local)];
        struct Activations<F, G, AHEAD> x;
        struct Element<PASS> element;
        struct Feed<F> feed;
        ROWS rows = with;

        /* before the preceding kernel has ended: it does not change weights */
        feed.start(a, PASS::dry);
        n_rows = product_count_rows(a);
        rows.start(a, n_rows);
        element.pass.start();
        if (PASS::dry)
            x.clear();
#pragma unroll 1
        for (;;) {
            const PASS &pass = element.pass;

            if (pass.is_live())
                wait_for_previous();
            element.n_rows = n_rows;
            element.scale =
                rows.settle(a, pass, element.row_of(threadIdx.x), n_rows, sums[0], gate);
            if (m.unit[warp] < m.n_units)
                x.take_all(a, rows, m.unit[warp] * Parts<F>::n);
#pragma unroll 1
            for (tile = blockIdx.x; tile < a.n_tiles; tile = next_tile(a, tile)) {
                float c[G][4] = {};

                add<F>(pass, a.m[matrix_of(a, tile, &local)], feed, rows, x, c);
                finish(sums + half, tile, element, c);
                half ^= 4 * G;
                if (!pass.is_live())
                    break;
            }
            if (element.pass.ends())
                break;
            feed.take_again();
        }
        if (WEFT_AHEAD)
            prefetch_ahead(a);
        copy_wait<0>();
    }
};

/* Multiplies the block's tiles, which all have one format. */
template <int G, int AHEAD = MATVEC_AHEAD, class ROWS>
DEVICE void matvec_groups(const struct matmul_args &a, const ROWS &rows,
                          float (*sums)[CUDA_THREADS], float *gate) {
    uint32_t local;

    walk_of(a.m[matrix_of(a, blockIdx.x, &local)].format,
            TilesWalk<G, AHEAD, ROWS>{a, rows, sums, gate});
}
