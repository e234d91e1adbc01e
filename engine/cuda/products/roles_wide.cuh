#pragma once

/*
 * roles_wide - products of more than 64 rows, prompts among them, by warps with roles, as
 * matmul_roles.cu has them for fewer. An experiment: WEFT_CUDA_ROLES=1 turns it on
 * (docs/design/cuda-products.md).
 *
 * Two warpgroups multiply 64 outputs each by N = 96 or 128 rows, and one warp copies. A panel is
 * 128 rows of a matrix by N rows of activations. A block takes one panel after the other, and the
 * ring goes on: the copies of the next panel begin before the results of the last one are stored.
 *
 * Only two stages of 256 columns fit. Each half of a stage's slices therefore has barriers of its
 * own, so that its room is copied to while the next slices are multiplied.
 *
 * Two blocks are a cluster (kernels_roles.h): they have neighbouring panels of a matrix and the
 * same rows, and each copies half of these rows for both. A part of a stage is therefore free when
 * the warps of both blocks have used it.
 *
 * A kernel has few formats (F): with all of them ptxas finds too few registers to have products in
 * flight, and each wgmma waits for the one before (C7512).
 */

#include "engine/cuda/cluster.cuh"
#include "engine/cuda/products/kernels_roles.h"
#include "engine/cuda/products/roles.cuh"

#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define ROLES_WIDE_MULTIPLY (ROLES_WIDE_THREADS - 128u) /* threads that multiply */
/* registers of a thread of the launch (check_kernels.py), of one that copies, of one that
 * multiplies */
#define ROLES_WIDE_LAUNCHED 168u
#define ROLES_WIDE_FEW 40u
#define ROLES_WIDE_MANY 232u

/* Otherwise the warpgroups that multiply would wait for registers for ever. */
static_assert(128 * ROLES_WIDE_FEW + ROLES_WIDE_MULTIPLY * ROLES_WIDE_MANY <=
                  ROLES_WIDE_THREADS * ROLES_WIDE_LAUNCHED,
              "the registers that one warpgroup gives back are those that the others take");

/* Sizes of the ring of a kernel for formats F, REST...: its bytes, of a stage those of the largest
 * format, and as many stages as all of them allow. */
template <uint32_t N, int F, int... REST> struct RolesWideRing {
    static MEMBER uint32_t stage_bytes() {
        uint32_t bytes = roles_stage_bytes(N, F);

        if constexpr (sizeof...(REST) > 0) {
            uint32_t others = RolesWideRing<N, REST...>::stage_bytes();

            bytes = others > bytes ? others : bytes;
        }
        return bytes;
    }
    static MEMBER uint32_t most_stages() {
        uint32_t n = ROLES_WIDE_BARRIERS / roles_wide_barriers(F);

        if constexpr (sizeof...(REST) > 0) {
            uint32_t others = RolesWideRing<N, REST...>::most_stages();

            n = others < n ? others : n;
        }
        return n;
    }
    static MEMBER uint32_t stages() {
        uint32_t fit = ROLES_WIDE_ROOM / stage_bytes();

        return fit < most_stages() ? fit : most_stages();
    }
};

/* Returns barrier @i of copies that have arrived. The barriers are behind the ring and the room of
 * the exchange. */
DEVICE uint64_t *roles_wide_full(uint32_t ring_bytes, uint32_t i) {
    return (uint64_t *)(dynamic_shared() + (ring_bytes + ROLES_EXCHANGE_BYTES)) + i;
}

/* Returns barrier @i of the warps that have used a part of a stage. */
DEVICE uint64_t *roles_wide_empty(uint32_t ring_bytes, uint32_t i) {
    return roles_wide_full(ring_bytes, ROLES_WIDE_BARRIERS + i);
}

/* The next stage of the ring: its place, and how often the ring has been filled before. */
struct RolesWideAt {
    uint32_t slot, round;

    MEMBER void advance(uint32_t n_slots) {
        slot++;
        round += slot == n_slots;
        slot = slot == n_slots ? 0 : slot;
    }
    /* Returns the slot before. */
    MEMBER uint32_t before(uint32_t n_slots) const {
        return slot ? slot - 1 : n_slots - 1;
    }
};

/* A part of the product: a panel, or some of its segments. The block of a cluster with the last
 * panel of a matrix may have a neighbour with none, which copies, multiplies and stores nothing. */
struct RolesWidePart {
    /* with gates: the gate */
    const struct matrix *m;
    /* its number */
    uint32_t which;
    /* number of the panel among all and in its matrix; panels of matrices before */
    uint32_t panel, local, before;
    /* which N rows of the activations */
    uint32_t column;
    /* segments */
    uint32_t first, last;

    /* Finds the block's one of parts @part of its cluster, of panels of @n rows. */
    MEMBER void find(const struct matmul_args &a, uint32_t part, uint32_t n) {
        uint32_t each = TILE_SEGMENTS / a.n_splits, columns = roles_columns(a.n_rows, n), i = 0;

        panel = part / a.n_splits * ROLES_CLUSTER + cluster_rank();
        first = part % a.n_splits * each;
        last = first + each;
        column = part / a.n_splits % columns;
        local = part / a.n_splits / columns * ROLES_CLUSTER + cluster_rank();
        before = 0;
        while (!a.gated && i + 1 < a.n_mats && local >= paired_of(a.m[i])) {
            local -= paired_of(a.m[i]);
            before += panels_of(a.m[i++]);
        }
        which = i;
        m = &a.m[i];
    }
    static MEMBER uint32_t panels_of(const struct matrix &m) {
        return (m.n_row_tiles + ROLES_WIDE_TILES - 1) / ROLES_WIDE_TILES;
    }
    /* Returns the number of a matrix's panels, with that of a neighbour that has none. */
    static MEMBER uint32_t paired_of(const struct matrix &m) {
        return (panels_of(m) + ROLES_CLUSTER - 1) / ROLES_CLUSTER * ROLES_CLUSTER;
    }
    /* Returns the row tile of warp @warp, counted in its matrix. */
    MEMBER uint32_t tile_of(const struct matmul_args &a, uint32_t warp) const {
        constexpr uint32_t half = ROLES_WIDE_TILES / 2;

        if (a.gated)
            return local * half + warp % half;
        return local * ROLES_WIDE_TILES + warp;
    }
    /* Returns the matrix of warp @warp. */
    MEMBER const struct matrix &matrix_of(const struct matmul_args &a, uint32_t warp) const {
        return a.gated ? a.m[warp / (ROLES_WIDE_TILES / 2)] : *m;
    }
};

/* -- the warp that copies ---------------------------------------------------------------------- */

/* Copies of one lane, one for each stage: the first lanes copy tiles of a row of tiles, the others
 * the block's share of slices of the activations, to all blocks of the cluster. A row of tiles that
 * does not exist is replaced by the last one, since four warps multiply together. */
template <uint32_t N, int... F> struct RolesWideCopies {
    static constexpr uint32_t slice_bytes = N * 128; /* bytes of a slice in the ring */
    static constexpr uint32_t share_bytes = slice_bytes / ROLES_CLUSTER;
    using Ring = RolesWideRing<N, F...>;

    const uint8_t *from;
    /* offset in a stage */
    uint32_t to;
    /* number in the stage; of other lanes no number of a slice */
    uint32_t slice;
    /* bytes of a row of tiles in a stage */
    uint32_t tile_stage;
    /* bytes of it that were not copied yet */
    uint32_t left;
    /* of a stage: its slices, and its barriers */
    uint32_t slices, n_barriers;

    MEMBER void start(const struct matmul_args &a, const struct RolesWidePart &part) {
        const struct matrix &m = *part.m;
        uint32_t lane = threadIdx.x % 32, units = roles_units(m.format);

        slices = units * (tile_k(m.format) / 64);
        n_barriers = roles_wide_barriers(m.format);
        tile_stage = units * tile_bytes(m.format);
        left = m.bytes[part.last] - m.bytes[part.first];
        slice = lane - ROLES_WIDE_TILES;
        if (lane < ROLES_WIDE_TILES) {
            const struct matrix &own = part.matrix_of(a, lane);
            uint32_t tile = part.tile_of(a, lane);

            tile = tile < own.n_row_tiles ? tile : own.n_row_tiles - 1;
            from = own.tiles + ((size_t)tile * own.bytes[TILE_SEGMENTS] + own.bytes[part.first]);
            to = slices * slice_bytes + lane * tile_stage;
        } else {
            from = (const uint8_t *)a.x +
                   ((size_t)part.column * (a.n_blocks / 4) +
                    m.unit[part.first] * tile_k(m.format) / 64 + slice) *
                       WGMMA_SLICE_BYTES(WGMMA_ROWS) +
                   cluster_rank() * share_bytes;
            to = slice * slice_bytes + cluster_rank() * share_bytes;
        }
    }
    static MEMBER uint64_t *full(uint32_t i) {
        return roles_wide_full(Ring::stages() * Ring::stage_bytes(), i);
    }
    static MEMBER uint64_t *empty(uint32_t i) {
        return roles_wide_empty(Ring::stages() * Ring::stage_bytes(), i);
    }
    /* Returns the bytes of a row of tiles in the next stage, and its number of slices. */
    MEMBER uint32_t bytes() const {
        return left < tile_stage ? left : tile_stage;
    }
    MEMBER uint32_t count() const {
        return slices * bytes() / tile_stage;
    }
    /* Announces what barrier @i of the next stage counts: its part of the slices, and the first one
     * also the tiles. */
    MEMBER void expect(uint32_t slot, uint32_t i) const {
        uint32_t n = count() / n_barriers * slice_bytes;

        if (i == 0)
            n += ROLES_WIDE_TILES * bytes();
        if (threadIdx.x % 32 == 0)
            bulk_expect(full(slot * n_barriers + i), n);
    }
    MEMBER uint8_t *place(uint32_t slot) const {
        return dynamic_shared() + slot * Ring::stage_bytes() + to;
    }
    /* Starts the lane's copy to the next stage, if it is one of tiles. */
    MEMBER void copy_tiles(uint32_t slot) const {
        if (threadIdx.x % 32 < ROLES_WIDE_TILES)
            bulk_copy(place(slot), from, bytes(), full(slot * n_barriers));
    }
    /* Starts the lane's copy to the next stage, if it is a slice that barrier @i counts. */
    MEMBER void copy_rows(uint32_t slot, uint32_t i) const {
        uint32_t n = count() / n_barriers;

        if (slice - i * n < n)
            cluster_copy(place(slot), from, share_bytes, full(slot * n_barriers + i),
                         (1u << ROLES_CLUSTER) - 1);
    }
    /* Goes to the next stage. */
    MEMBER void advance() {
        uint32_t step = slices * WGMMA_SLICE_BYTES(WGMMA_ROWS);

        left -= bytes();
        from += threadIdx.x % 32 < ROLES_WIDE_TILES ? tile_stage : step;
    }
    /* Fills the ring for the first time. Tiles, which the preceding kernel does not change, are
     * copied while it ends. */
    MEMBER void fill(struct RolesWideAt &at) {
        RolesWideCopies rows = *this;
        uint32_t n = 0;

        for (; n < Ring::stages() && left > 0; n++) {
            for (uint32_t i = 0; i < n_barriers; i++)
                expect(n, i);
            copy_tiles(n);
            advance();
            at.advance(Ring::stages());
        }
        wait_for_previous();
        for (uint32_t slot = 0; slot < n; slot++) {
            for (uint32_t i = 0; i < n_barriers; i++)
                rows.copy_rows(slot, i);
            rows.advance();
        }
    }
    /* Copies the stages that are left. The warps' loads from a stage precede their arrivals, and a
     * fence orders them before the copies. The other block's rows for the next round cannot come
     * before the last round's have been waited for, since its warps wait for ours, too. */
    MEMBER void run(struct RolesWideAt &at) {
        while (left > 0) {
            for (uint32_t i = 0; i < n_barriers; i++) {
                if (at.round > 0) {
                    cluster_bulk_wait(empty(at.slot * n_barriers + i), at.round - 1);
                    bulk_publish();
                }
                expect(at.slot, i);
                if (i + 1 == n_barriers)
                    copy_tiles(at.slot);
                copy_rows(at.slot, i);
            }
            advance();
            at.advance(Ring::stages());
        }
    }
};

/* -- the warps that multiply ------------------------------------------------------------------- */

/* Multiplies segments @first .. @last - 1 of one row of tiles with all rows, from the stages of the
 * ring on. total and c have the layout of mma accumulators, [8 rows][4]; total is -0 at first, to
 * which a sum is added without a change. If @shared is not NULL, each segment's sums are stored
 * there instead. */
template <uint32_t N, int... ALL> struct RolesWideWalk {
    const struct matmul_args &a;
    /* number of the matrix: its address would need two registers */
    uint32_t which;
    uint32_t first, last;
    struct RolesWideAt &ring;
    float (&total)[N / 2];
    float *shared;

    /* Ends a segment: waits for its products, adds c to the total, and clears c. */
    MEMBER void add_up(uint32_t segment, float (&c)[N / 2]) const {
        constexpr uint32_t half = MATMUL_COLUMNS / 2; /* sums of a panel of matmul_wide */

        wgmma_wait<0>();
        wgmma_hold(c);
#pragma unroll
        for (uint32_t k = 0; k < N / 2; k++) {
            if (shared)
                shared[segment * WIDE_SUMS + k / half * (TILE_SEGMENTS * WIDE_SUMS) +
                       sum_place(k % half)] = c[k];
            else
                total[k] += c[k];
            c[k] = 0;
        }
        wgmma_hold(c);
    }
    /* Gives back what barrier @bar counts to all blocks of the cluster, a lane to each; what the
     * warp reads there has been read. */
    static MEMBER void release(uint64_t *bar) {
        sync_warp();
        if (threadIdx.x % 32 < ROLES_CLUSTER)
            cluster_bulk_arrive(bar, threadIdx.x % 32);
    }
    template <int F> MEMBER void of() const {
        constexpr uint32_t slices = Steps<F>::slices;     /* of a tile */
        constexpr uint32_t of_part = Parts<F>::pairs / 2; /* slices of a part of a tile */
        constexpr bool whole = Steps<F>::unroll > 1;      /* a tile is unrolled */
        constexpr uint32_t step = whole ? slices : 2;     /* even, because w alternates */
        /* slices that are loaded together: of formats that need many registers one */
        constexpr uint32_t together = F == TILE_Q5_K || F == TILE_Q6_K ? 1 : of_part;
        using Ring = RolesWideRing<N, ALL...>;
        const struct matrix &m = a.m[which];
        const uint32_t units = roles_units(F), of_stage = slices * units;
        const uint32_t stage_bytes = Ring::stage_bytes(), n_slots = Ring::stages();
        const uint32_t ring_bytes = n_slots * stage_bytes;
        const uint32_t n_barriers = roles_wide_barriers(F); /* of a stage */
        const uint32_t of_barrier = of_stage / n_barriers;  /* slices that a barrier counts */
        const uint32_t tiles =
            of_stage * (N * 128) + threadIdx.x / 32 * (units * tile_bytes(F)); /* in a stage */
        const uint32_t n = (m.unit[last] - m.unit[first]) * slices;
        uint32_t segment = first, end = end_of(segment, slices), done;
        struct RolesWideAt at = ring; /* stage of the slice that is loaded */
        uint32_t operand = wgmma_place(at.slot * stage_bytes); /* the slice that is multiplied */
        float c[N / 2] = {};
        uint32_t w[2][ROLES_BLOCKS][4]; /* decoded weights of the slices whose products run */
        struct Tile<F> tile;            /* the part of a tile that belongs to the next slice */

        wgmma_hold(c);
        bulk_wait(roles_wide_full(ring_bytes, at.slot * n_barriers), at.round);
        tile.load(dynamic_shared() + (at.slot * stage_bytes + tiles), threadIdx.x % 32, 0, m.grid);
        for (uint32_t i0 = 0; i0 < n; i0 += done) {
            done = step;
#pragma unroll
            for (uint32_t j = 0; j < step; j++) {
                const uint32_t i = i0 + j, in_tile = (whole ? j : i) % slices;
                const uint32_t in_stage = whole ? j : i % of_stage;

                /* the segment has an odd number of slices: the next one starts with w[0] again */
                if (slices == 1 && j > 0 && i == end) {
                    wgmma_wait<0>();
                    done = j;
                    break;
                }
                roles_decode<F>(tile, in_tile % of_part * ROLES_BLOCKS, w[j % 2]);
                if (j == 0 && i == end) {
                    add_up(segment++, c);
                    end = end_of(segment, slices);
                }
                roles_slice(c, w[j % 2], operand);
                operand += N * 128 / 16;
                const bool ends = in_stage == of_stage - 1 || (units > 1 && i + 1 == n);
                const uint32_t used = at.before(n_slots), slot = at.slot;

                if (ends) {
                    at.advance(n_slots);
                    operand = wgmma_place(at.slot * stage_bytes);
                }
                const uint32_t part = (in_stage + 1) / of_barrier % n_barriers;

                if ((ends || (in_stage + 1) % of_barrier == 0) && i + 1 < n)
                    bulk_wait(roles_wide_full(ring_bytes, at.slot * n_barriers + part), at.round);
                if ((in_tile + 1) % together == 0 && i + 1 < n) {
                    const uint32_t next = (in_tile + 1) % slices;
                    const uint32_t unit = ends ? 0 : (in_stage + 1) / slices;

                    tile.load(dynamic_shared() +
                                  (at.slot * stage_bytes + tiles + unit * tile_bytes(F)),
                              threadIdx.x % 32, next / of_part, m.grid);
                }
                wgmma_wait<1>();
                if (in_stage == 0 && i > 0)
                    release(roles_wide_empty(ring_bytes, used * n_barriers + n_barriers - 1));
                if (in_stage > 0 && in_stage % of_barrier == 0)
                    release(roles_wide_empty(ring_bytes,
                                             slot * n_barriers + in_stage / of_barrier - 1));
            }
        }
        add_up(segment, c);
        release(roles_wide_empty(ring_bytes, at.before(n_slots) * n_barriers + n_barriers - 1));
        ring = at;
    }
    /* Returns the index of the first slice after segment @segment. */
    MEMBER uint32_t end_of(uint32_t segment, uint32_t slices) const {
        return (a.m[which].unit[segment + 1] - a.m[which].unit[first]) * slices;
    }
};

/* Calls walk.of<F>() for @format, one of F, REST.... */
template <int F, int... REST, class WALK>
DEVICE void roles_wide_walk(uint32_t format, const WALK &walk) {
    if constexpr (sizeof...(REST) == 0) {
        walk.template of<F>();
    } else {
        if (format == F)
            walk.template of<F>();
        else
            roles_wide_walk<REST...>(format, walk);
    }
}

/* -- results ----------------------------------------------------------------------------------- */

/* Returns the address of output @out of tile @tile, row 0, in the sums that blocks share. Each 64
 * rows have panels of their own. */
DEVICE float *roles_wide_sum(const struct matmul_args &a, const struct RolesWidePart &part,
                             uint32_t tile, uint32_t out) {
    return a.sums + (size_t)(part.before + tile / 8) * a.n_columns * (TILE_SEGMENTS * WIDE_SUMS) +
           (tile % 8 * TILE_ROWS + out);
}

/* Returns the thread's place in row @i of the room for sums that are exchanged. */
DEVICE float *roles_wide_room(uint32_t ring_bytes, uint32_t i, uint32_t thread) {
    return (float *)(dynamic_shared() + ring_bytes) + (i * ROLES_WIDE_MULTIPLY + thread);
}

/* Returns true for the last block to arrive of those that share the segments of a panel; called by
 * the threads that multiply. */
DEVICE bool roles_wide_is_last(const struct matmul_args &a, uint32_t panel, uint32_t ring_bytes) {
    uint32_t *is_last = (uint32_t *)(void *)roles_wide_room(ring_bytes, 0, 0);

    wgmma_sync(ROLES_WIDE_MULTIPLY);
    if (threadIdx.x == 0)
        *is_last = arrive(a.arrived + panel, 1, a.n_splits);
    wgmma_sync(ROLES_WIDE_MULTIPLY);
    return *is_last;
}

/* Adds up the sums of a panel, done by the last block to arrive of those that share its segments. A
 * thread has four outputs of every eighth row. */
DEVICE void roles_wide_store_shared(const struct matmul_args &a, const struct RolesWidePart &part,
                                    uint32_t n_rows, uint32_t ring_bytes) {
    constexpr uint32_t across = WIDE_OUT / 4;
    uint32_t out = threadIdx.x % across * 4, row = threadIdx.x / across;
    uint32_t tile = part.local * ROLES_WIDE_TILES + out / TILE_ROWS;

    if (!roles_wide_is_last(a, part.panel, ring_bytes) || tile >= part.m->n_row_tiles)
        return;
    const float *all = roles_wide_sum(a, part, tile, out % TILE_ROWS);
#pragma unroll 2
    for (; row < n_rows; row += ROLES_WIDE_MULTIPLY / across) {
        const float *from = all + row / MATMUL_COLUMNS * (TILE_SEGMENTS * WIDE_SUMS) +
                            row % MATMUL_COLUMNS * WIDE_OUT;

        store_segments(a, *part.m, n_rows, row, tile * TILE_ROWS + out % TILE_ROWS, from);
    }
}

/* Exchanges sums with the thread of the other warpgroup that has the same outputs of the other
 * matrix. Then each has gates in the first half of total and ups in the second one, of half of the
 * panel's rows: those of the first half of the sums are the gate's warpgroup's. The copies of the
 * next panel are under way, so this has room of its own. */
template <uint32_t N>
DEVICE void roles_wide_exchange(bool is_up, uint32_t ring_bytes, float (&total)[N / 2]) {
    constexpr uint32_t half = N / 4;
    uint32_t other = threadIdx.x ^ 128;

#pragma unroll
    for (uint32_t k = 0; k < half; k += ROLES_EXCHANGED) {
#pragma unroll
        for (uint32_t j = 0; j < ROLES_EXCHANGED; j++) {
            if (is_up)
                *roles_wide_room(ring_bytes, j, threadIdx.x) = total[k + j];
            else
                *roles_wide_room(ring_bytes, j, threadIdx.x) = total[half + k + j];
        }
        wgmma_sync(ROLES_WIDE_MULTIPLY);
#pragma unroll
        for (uint32_t j = 0; j < ROLES_EXCHANGED; j++) {
            if (is_up)
                total[k + j] = *roles_wide_room(ring_bytes, j, other);
            else
                total[half + k + j] = *roles_wide_room(ring_bytes, j, other);
        }
        wgmma_sync(ROLES_WIDE_MULTIPLY);
    }
}

/* Packs @h, output @out of rows @row and @row + 1, by the static scale, as write_quads() packs rows
 * for wgmma. A thread exchanges one of them with that of output @out xor 2, so that each stores the
 * two of one row, which are next to each other. */
DEVICE void roles_wide_pack(const struct matmul_args &a, uint32_t n_rows, uint32_t row,
                            uint32_t out, const float (&h)[2]) {
    bool second = out & 2;
    float low = h[0], high = h[1];
    float got = lane_xor(second ? low : high, 8);

    if (second)
        low = got;
    else
        high = got;
    row += second;
    if (row >= n_rows || out >= a.m[0].n_out)
        return;
    uint16_t *to = core_place(a.packed, row, a.m[0].n_out, out / 4 * 4) + out % 2 * CORE_NEXT;
    *(uint32_t *)to = pack_halves(low * a.fixed, high * a.fixed);
    if (out < 4 && out % 2 == 0)
        a.packed_scale[row] = 1.0f / a.fixed;
}

/* Stores glu(gate, up), or packs it for the next product, for the thread's outputs of half of the
 * rows. */
template <uint32_t N>
DEVICE void roles_wide_store_gated(const struct matmul_args &a, const struct RolesWidePart &part,
                                   uint32_t n_rows, uint32_t ring_bytes, float (&total)[N / 2]) {
    bool is_up = threadIdx.x / 128;
    uint32_t lane = threadIdx.x % 32, tile = part.tile_of(a, threadIdx.x / 32);
    uint32_t row0 = part.column * N + is_up * (N / 2) + lane % 4 * 2;

    roles_wide_exchange<N>(is_up, ring_bytes, total);
#pragma unroll
    for (uint32_t k = 0; k < N / 4; k += 2) {
        uint32_t row = row0 + k / 4 * PACK_ROWS;
        uint32_t out = tile * TILE_ROWS + lane / 4 + k % 4 / 2 * 8;
        float h[2] = {};

#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            if (row + j >= n_rows || out >= a.m[0].n_out)
                continue;
            float gate = product_value(a, a.m[0], row + j, out, total[k + j]);
            float up = product_value(a, a.m[1], row + j, out, total[N / 4 + k + j]);

            h[j] = gated(a.glu, gate, up);
            if (!a.packed)
                a.m[0].y[(size_t)(row + j) * a.m[0].n_out + out] = h[j];
        }
        if (a.packed)
            roles_wide_pack(a, n_rows, row, out, h);
    }
    if (a.packed)
        fence_bulk(); /* the next product reads them by bulk copies */
}

/* Computes the thread's outputs of part @i, or with shared segments their sums. */
template <uint32_t N, int... F>
DEVICE void roles_wide_multiply(const struct matmul_args &a, uint32_t i, struct RolesWideAt &ring,
                                float (&total)[N / 2]) {
    uint32_t lane = threadIdx.x % 32;
    float *shared = NULL;
    struct RolesWidePart part;

    part.find(a, i, N);
    uint32_t tile = part.tile_of(a, threadIdx.x / 32);
    /* warps without a row tile multiply as well, and store nothing */
    if (a.n_splits > 1 && tile < part.m->n_row_tiles)
        shared = roles_wide_sum(a, part, tile, lane / 4) + lane % 4 * 2 * WIDE_OUT;
#pragma unroll
    for (uint32_t k = 0; k < N / 2; k++)
        total[k] = -0.0f;
    RolesWideWalk<N, F...> walk{a, part.which, part.first, part.last, ring, total, shared};
    roles_wide_walk<F...>(part.m->format, walk);
}

/* Writes y. Computes the part again, since registers are scarce during the walk. */
template <uint32_t N>
DEVICE void roles_wide_store(const struct matmul_args &a, uint32_t i, uint32_t ring_bytes,
                             float (&total)[N / 2]) {
    uint32_t lane = threadIdx.x % 32, n_rows = product_count_rows(a);
    struct RolesWidePart part;

    if (a.leave)
        return;
    part.find(a, i, N);
    uint32_t tile = part.tile_of(a, threadIdx.x / 32);
    if (a.n_splits > 1)
        return roles_wide_store_shared(a, part, n_rows, ring_bytes);
    if (a.gated)
        return roles_wide_store_gated<N>(a, part, n_rows, ring_bytes, total);
    if (tile >= part.m->n_row_tiles)
        return;
#pragma unroll
    for (uint32_t k = 0; k < N / 2; k++)
        product_store(a, *part.m, n_rows,
                      part.column * N + k / 4 * PACK_ROWS + lane % 4 * 2 + k % 2,
                      tile * TILE_ROWS + lane / 4 + k % 4 / 2 * 8, total[k]);
}

/* Copies the stages of the block's parts, by one warp. */
template <uint32_t N, int... F> DEVICE void roles_wide_copy(const struct matmul_args &a) {
    struct RolesWideCopies<N, F...> copies;
    struct RolesWideAt at = {0, 0};
    struct RolesWidePart part;

    part.find(a, blockIdx.x / ROLES_CLUSTER, N);
    copies.start(a, part);
    copies.fill(at);
    copies.run(at);
    for (uint32_t i = (blockIdx.x + gridDim.x) / ROLES_CLUSTER; i < a.n_panels * a.n_splits;
         i += gridDim.x / ROLES_CLUSTER) {
        part.find(a, i, N);
        copies.start(a, part);
        copies.run(at);
    }
}

/* Computes the block's parts of the products of @a, N rows each, for formats F...: the first
 * warpgroups multiply, and a warp of the last one copies. */
template <uint32_t N, int... F> DEVICE void roles_wide_run(const struct matmul_args &a) {
    const uint32_t ring_bytes =
        RolesWideRing<N, F...>::stages() * RolesWideRing<N, F...>::stage_bytes();

    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < ROLES_WIDE_BARRIERS; i++) {
            bulk_init(roles_wide_full(ring_bytes, i));
            bulk_init(roles_wide_empty(ring_bytes, i), ROLES_CLUSTER * ROLES_WIDE_TILES);
        }
        cluster_publish();
    }
    cluster_arrive();
    cluster_wait();
    if (threadIdx.x < ROLES_WIDE_MULTIPLY) {
        struct RolesWideAt at = {0, 0};
        float total[N / 2];

        wgmma_more<ROLES_WIDE_MANY>();
        wait_for_previous();
        for (uint32_t i = blockIdx.x / ROLES_CLUSTER; i < a.n_panels * a.n_splits;
             i += gridDim.x / ROLES_CLUSTER) {
            roles_wide_multiply<N, F...>(a, i, at, total);
            roles_wide_store<N>(a, anew(i), ring_bytes, total);
        }
    } else {
        wgmma_fewer<ROLES_WIDE_FEW>();
        if (threadIdx.x < ROLES_WIDE_MULTIPLY + 32)
            roles_wide_copy<N, F...>(a);
        else
            wait_for_previous();
    }
    cluster_arrive();
    cluster_wait();
}

#define ROLES_WIDE_BODY(N, ...) roles_wide_run<N, __VA_ARGS__>(a)
#else
#define ROLES_WIDE_BODY(N, ...)
#endif
