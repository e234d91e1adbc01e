#pragma once

/*
 * roles - the products of matmul_wgmma for 17 rows and more, by warps with roles. An experiment:
 * WEFT_CUDA_ROLES=1 turns it on (docs/design/cuda-products.md).
 *
 * In matmul_wgmma all warps of a block copy, decode and multiply, and meet at a barrier for each
 * slice of 64 columns; so they all decode at the same time, while the tensor cores wait. Here one
 * warp copies and the others multiply, and no barrier joins the warpgroups:
 *
 *     copying warp   | stage 3 -> room of 0 | stage 4 -> room of 1 | ...
 *     warpgroup 0    decode | wgmma  decode | wgmma  decode | ...
 *     warpgroup 1       decode | wgmma  decode | wgmma  decode | ...
 *     warpgroup 2          decode | wgmma  decode | wgmma  decode | ...
 *
 * A stage of the ring has up to 256 columns: slices of N rows of the activations, which wgmma
 * reads, and the tiles of each warp, which it decodes in registers. Two barriers belong to a stage:
 * `full` ends a phase when the copies have arrived, `empty` when all warps have used the stage. A
 * warp loads the codes of the next slice before it waits for the products of the last one, and
 * gives back a stage once the products that read it have ended.
 *
 * With more than 64 rows (wide), only two stages of 256 columns fit. Each half of the slices then
 * has barriers of its own, so that its room is copied to while the next slices are multiplied.
 *
 * The copying warp needs few registers, which its warpgroup gives to the others.
 *
 * A panel is ROLES_OUT(N) rows of a matrix by N rows of activations. If blocks share its segments,
 * they leave the sums where those of matmul_wide would be, so residual() and the order of the sum
 * are the same. The blocks of a wide product take one panel after the other, and the ring goes on
 * from one to the next.
 */

#include "engine/cuda/bulk.cuh"
#include "engine/cuda/products/gated.cuh"
#include "engine/cuda/products/wgmma.cuh"

#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define ROLES_BLOCKS (2 * SLICE_PAIRS) /* blocks of 16 columns of a slice */

/* The warps of a block. */
template <uint32_t N> struct RolesShape {
    static constexpr bool wide = ROLES_WIDE(N);
    static constexpr uint32_t tiles = ROLES_TILES(N); /* warps that multiply */
    static constexpr uint32_t out = ROLES_OUT(N), multiply = ROLES_GROUPS(N) * 128;
    /* registers of a thread of the launch (check_kernels.py), of one that copies, and of one that
     * multiplies */
    static constexpr uint32_t launched = wide ? 168 : 128, few = wide ? 40 : 32,
                              many = wide ? 232 : 160;

    /* Otherwise the warpgroups that multiply would wait for registers for ever. */
    static_assert(128 * few + multiply * many <= ROLES_THREADS(N) * launched,
                  "the registers that one warpgroup gives back are those that the others take");
};

/* Returns barrier @i of copies that have arrived. */
DEVICE uint64_t *roles_full(uint32_t i) {
    SHARED uint64_t full[ROLES_BARRIERS];

    return full + i;
}

/* Returns barrier @i of the warps that have used a stage. */
DEVICE uint64_t *roles_empty(uint32_t i) {
    SHARED uint64_t empty[ROLES_BARRIERS];

    return empty + i;
}

/* The next stage of the ring: its place, and how often the ring has been filled before. */
struct RolesRing {
    uint32_t slot, round;

    MEMBER void advance(uint32_t n_slots) {
        slot++;
        round += slot == n_slots;
        slot = slot == n_slots ? 0 : slot;
    }
};

/* The part of the product that a block computes. */
template <uint32_t N> struct RolesPart {
    static constexpr uint32_t tiles = ROLES_TILES(N);

    /* with gates: the gate */
    const struct matrix *m;
    /* its number */
    uint32_t which;
    /* number of the panel in the grid and of its matrix; panels of 128 rows of matrices before */
    uint32_t panel, local, before;
    /* which N rows of the activations */
    uint32_t column;
    /* segments */
    uint32_t first, last;

    /* Finds part @part. */
    MEMBER void find(const struct matmul_args &a, uint32_t part) {
        uint32_t each = TILE_SEGMENTS / a.n_splits, i = 0;

        panel = part / a.n_splits;
        first = part % a.n_splits * each;
        last = first + each;
        local = panel;
        column = 0;
        if (ROLES_WIDE(N)) {
            local = panel / roles_columns(a.n_rows, N);
            column = panel % roles_columns(a.n_rows, N);
        }
        before = 0;
        while (!a.gated && i + 1 < a.n_mats && local >= panels_of(a.m[i])) {
            local -= panels_of(a.m[i]);
            before += (a.m[i++].n_row_tiles + 7) / 8;
        }
        which = i;
        m = &a.m[i];
    }
    static MEMBER uint32_t panels_of(const struct matrix &m) {
        return (m.n_row_tiles + tiles - 1) / tiles;
    }
    /* Returns the row tile of warp @warp, counted in its matrix. */
    MEMBER uint32_t tile_of(const struct matmul_args &a, uint32_t warp) const {
        if (a.gated)
            return local * (tiles / 2) + warp % (tiles / 2);
        return local * tiles + warp;
    }
    /* Returns the matrix of warp @warp. */
    MEMBER const struct matrix &matrix_of(const struct matmul_args &a, uint32_t warp) const {
        return a.gated ? a.m[warp / (tiles / 2)] : *m;
    }
};

/* -- the warp that copies ---------------------------------------------------------------------- */

/* Copies of one lane, one for each stage: the first lanes copy tiles of a row of tiles, the others
 * slices of the activations. A row of tiles that does not exist is replaced by the last one, since
 * four warps multiply together. */
template <uint32_t N> struct RolesCopies {
    static constexpr uint32_t slice_bytes = N * 128; /* bytes of a slice in the ring */
    static constexpr uint32_t tiles = ROLES_TILES(N);

    const uint8_t *from;
    /* offset in a stage */
    uint32_t to;
    /* number in the stage; of other lanes no number of a slice */
    uint32_t slice;
    /* of the ring */
    uint32_t stage_bytes;
    /* bytes of a row of tiles in a stage */
    uint32_t tile_stage;
    /* bytes of it that were not copied yet */
    uint32_t left;
    /* of a stage: its slices, and its barriers; stages of the ring */
    uint32_t slices, n_barriers, n_slots;

    MEMBER void start(const struct matmul_args &a, const struct RolesPart<N> &part) {
        const struct matrix &m = *part.m;
        uint32_t lane = threadIdx.x % 32, units = roles_units(m.format);

        slices = units * (tile_k(m.format) / 64);
        n_barriers = roles_barriers(N, m.format);
        tile_stage = units * tile_bytes(m.format);
        stage_bytes = ROLES_WIDE(N) ? a.stage_bytes : roles_stage_bytes(N, m.format);
        n_slots = ROLES_WIDE(N) ? a.n_stages : roles_stages(N, m.format);
        left = m.bytes[part.last] - m.bytes[part.first];
        slice = lane - tiles;
        if (lane < tiles) {
            const struct matrix &own = part.matrix_of(a, lane);
            uint32_t tile = part.tile_of(a, lane);

            tile = tile < own.n_row_tiles ? tile : own.n_row_tiles - 1;
            from = own.tiles + ((size_t)tile * own.bytes[TILE_SEGMENTS] + own.bytes[part.first]);
            to = slices * slice_bytes + lane * tile_stage;
        } else {
            from = (const uint8_t *)a.x + ((size_t)part.column * (a.n_blocks / 4) +
                                           m.unit[part.first] * tile_k(m.format) / 64 + slice) *
                                              WGMMA_SLICE_BYTES(WGMMA_ROWS);
            to = slice * slice_bytes;
        }
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
            n += tiles * bytes();
        if (threadIdx.x % 32 == 0)
            bulk_expect(roles_full(slot * n_barriers + i), n);
    }
    MEMBER uint8_t *place(uint32_t slot) const {
        return dynamic_shared() + slot * stage_bytes + to;
    }
    /* Starts the lane's copy to the next stage, if it is one of tiles. */
    MEMBER void copy_tiles(uint32_t slot) const {
        if (threadIdx.x % 32 < tiles)
            bulk_copy(place(slot), from, bytes(), roles_full(slot * n_barriers));
    }
    /* Starts the lane's copy to the next stage, if it is a slice that barrier @i counts. */
    MEMBER void copy_rows(uint32_t slot, uint32_t i) const {
        uint32_t n = count() / n_barriers;

        if (slice - i * n < n)
            bulk_copy(place(slot), from, slice_bytes, roles_full(slot * n_barriers + i));
    }
    /* Goes to the next stage. */
    MEMBER void advance() {
        uint32_t step = slices * WGMMA_SLICE_BYTES(WGMMA_ROWS);

        left -= bytes();
        from += threadIdx.x % 32 < tiles ? tile_stage : step;
    }
    /* Fills the ring for the first time. Tiles, which the preceding kernel does not change, are
     * copied while it ends. */
    MEMBER void fill(struct RolesRing &ring) {
        RolesCopies rows = *this;
        uint32_t n = 0;

        for (; n < n_slots && left > 0; n++) {
            for (uint32_t i = 0; i < n_barriers; i++)
                expect(n, i);
            copy_tiles(n);
            advance();
            ring.advance(n_slots);
        }
        wait_for_previous();
        for (uint32_t slot = 0; slot < n; slot++) {
            for (uint32_t i = 0; i < n_barriers; i++)
                rows.copy_rows(slot, i);
            rows.advance();
        }
    }
    /* Copies the stages that are left. The warps' loads from a stage precede their arrivals, and a
     * fence orders them before the copies. */
    MEMBER void run(struct RolesRing &ring) {
        while (left > 0) {
            for (uint32_t i = 0; i < n_barriers; i++) {
                if (ring.round > 0) {
                    bulk_wait(roles_empty(ring.slot * n_barriers + i), ring.round - 1);
                    bulk_publish();
                }
                expect(ring.slot, i);
                if (i + 1 == n_barriers)
                    copy_tiles(ring.slot);
                copy_rows(ring.slot, i);
            }
            advance();
            ring.advance(n_slots);
        }
    }
};

/* -- the warps that multiply ------------------------------------------------------------------- */

/* Issue d += a b for as many rows as @d has sums for: twice the sums of a thread. */
DEVICE void roles_wgmma(float (&d)[12], const uint32_t a[4], uint64_t b) {
    wgmma_n24(d, a, b);
}

DEVICE void roles_wgmma(float (&d)[16], const uint32_t a[4], uint64_t b) {
    wgmma_n32(d, a, b);
}

DEVICE void roles_wgmma(float (&d)[24], const uint32_t a[4], uint64_t b) {
    wgmma_n48(d, a, b);
}

DEVICE void roles_wgmma(float (&d)[32], const uint32_t a[4], uint64_t b) {
    wgmma_n64(d, a, b);
}

DEVICE void roles_wgmma(float (&d)[48], const uint32_t a[4], uint64_t b) {
    wgmma_n96(d, a, b);
}

DEVICE void roles_wgmma(float (&d)[64], const uint32_t a[4], uint64_t b) {
    wgmma_n128(d, a, b);
}

/* Multiplies segments @first .. @last - 1 of one row of tiles with all rows, from the stages of the
 * ring on. total and c have the layout of mma accumulators, [8 rows][4]; a wide total is -0 at
 * first, to which a sum is added without a change. If @shared is not NULL, each segment's sums are
 * stored there instead of being added to total. */
template <uint32_t N> struct RolesWalk {
    static constexpr bool wide = ROLES_WIDE(N);

    const struct matmul_args &a;
    /* number of the matrix: its address would need two registers */
    uint32_t which;
    uint32_t first, last;
    struct RolesRing &ring;
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
            else if (wide)
                total[k] += c[k];
            else
                total[k] = segment ? total[k] + c[k] : c[k];
            c[k] = 0;
        }
        wgmma_hold(c);
    }
    /* Gives back what barrier @i counts; what the warp reads there has been read. */
    MEMBER void release(uint32_t i) const {
        sync_warp();
        if (threadIdx.x % 32 == 0)
            bulk_arrive(roles_empty(i));
    }
    template <int F> MEMBER void of() const {
        constexpr uint32_t slices = Steps<F>::slices;     /* of a tile */
        constexpr uint32_t of_part = Parts<F>::pairs / 2; /* slices of a part of a tile */
        constexpr bool whole = Steps<F>::unroll > 1;      /* a tile is unrolled */
        constexpr uint32_t step = whole ? slices : 2;     /* even, because w alternates */
        /* slices that are loaded together: of formats that need many registers one */
        constexpr uint32_t together = F == TILE_Q5_K || F == TILE_Q6_K ? 1 : of_part;
        const struct matrix &m = a.m[which];
        const uint32_t units = roles_units(F), of_stage = slices * units;
        const uint32_t stage_bytes = wide ? a.stage_bytes : roles_stage_bytes(N, F);
        const uint32_t n_slots = wide ? a.n_stages : roles_stages(N, F);
        const uint32_t n_barriers = roles_barriers(N, F);  /* of a stage */
        const uint32_t of_barrier = of_stage / n_barriers; /* slices that a barrier counts */
        const uint32_t tiles =
            of_stage * (N * 128) + threadIdx.x / 32 * (units * tile_bytes(F)); /* in a stage */
        const uint32_t n = (m.unit[last] - m.unit[first]) * slices;
        uint32_t segment = first, end = end_of(segment, slices), done;
        struct RolesRing at = {0, 0}; /* stage of the slice that is loaded */

        if (wide)
            at = ring;
        uint32_t operand = wgmma_place(at.slot * stage_bytes); /* the slice that is multiplied */
        float c[N / 2] = {};
        uint32_t w[2][ROLES_BLOCKS][4]; /* decoded weights of the slices whose products run */
        struct Tile<F> tile;            /* the part of a tile that belongs to the next slice */

        wgmma_hold(c);
        bulk_wait(roles_full(at.slot * n_barriers), at.round);
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
#pragma unroll
                for (uint32_t k = 0; k < ROLES_BLOCKS; k++) {
                    weights_of<F>(tile, (int)(in_tile % of_part * ROLES_BLOCKS + k), w[j % 2][k]);
                    wgmma_hold(w[j % 2][k]);
                }
                if (j == 0 && i == end) {
                    add_up(segment++, c);
                    end = end_of(segment, slices);
                }
                wgmma_begin();
#pragma unroll
                for (uint32_t k = 0; k < ROLES_BLOCKS; k++)
                    roles_wgmma(c, w[j % 2][k], wgmma_operand(operand + k * 16, 128, 1024));
                wgmma_commit();
                operand += N * 128 / 16;
                const bool ends = in_stage == of_stage - 1 || (wide && units > 1 && i + 1 == n);
                const uint32_t used = slot_before(at, n_slots), slot = at.slot;

                if (ends) {
                    at.advance(n_slots);
                    operand = wgmma_place(at.slot * stage_bytes);
                }
                const uint32_t part = (in_stage + 1) / of_barrier % n_barriers;

                if ((ends || (in_stage + 1) % of_barrier == 0) && i + 1 < n)
                    bulk_wait(roles_full(at.slot * n_barriers + part), at.round);
                if ((in_tile + 1) % together == 0 && i + 1 < n) {
                    const uint32_t next = (in_tile + 1) % slices;
                    const uint32_t unit = ends ? 0 : (in_stage + 1) / slices;

                    tile.load(dynamic_shared() +
                                  (at.slot * stage_bytes + tiles + unit * tile_bytes(F)),
                              threadIdx.x % 32, next / of_part, m.grid);
                }
                wgmma_wait<1>();
                if (in_stage == 0 && i > 0)
                    release(used * n_barriers + n_barriers - 1);
                if (in_stage > 0 && in_stage % of_barrier == 0)
                    release(slot * n_barriers + in_stage / of_barrier - 1);
            }
        }
        add_up(segment, c);
        if (wide) {
            release(slot_before(at, n_slots) * n_barriers + n_barriers - 1);
            ring = at;
        }
    }
    static MEMBER uint32_t slot_before(const struct RolesRing &at, uint32_t n_slots) {
        return at.slot ? at.slot - 1 : n_slots - 1;
    }
    /* Returns the index of the first slice after segment @segment. */
    MEMBER uint32_t end_of(uint32_t segment, uint32_t slices) const {
        return (a.m[which].unit[segment + 1] - a.m[which].unit[first]) * slices;
    }
};

/* -- results ----------------------------------------------------------------------------------- */

/* Returns the address of output @out of tile @tile, row 0, in the sums that blocks share. Each 64
 * rows have panels of their own. */
template <uint32_t N>
DEVICE float *roles_sum(const struct matmul_args &a, const struct RolesPart<N> &part, uint32_t tile,
                        uint32_t out) {
    return a.sums + (size_t)(part.before + tile / 8) * a.n_columns * (TILE_SEGMENTS * WIDE_SUMS) +
           (tile % 8 * TILE_ROWS + out);
}

/* Returns true for the last block to arrive of those that share the segments of panel @panel;
 * called by the @n threads that multiply. */
DEVICE bool roles_are_last(const struct matmul_args &a, uint32_t panel, uint32_t n) {
    SHARED uint32_t is_last;

    wgmma_sync(n);
    if (threadIdx.x == 0)
        is_last = arrive(a.arrived + panel, 1, a.n_splits);
    wgmma_sync(n);
    return is_last;
}

/* Adds up the sums of a panel, done by the last block to arrive of those that share its segments. A
 * thread has four outputs of every eighth row. */
template <uint32_t N>
DEVICE void roles_store_shared(const struct matmul_args &a, const struct RolesPart<N> &part,
                               uint32_t n_rows) {
    constexpr uint32_t across = ROLES_OUT(N) / 4, multiply = RolesShape<N>::multiply;
    uint32_t out = threadIdx.x % across * 4, row = threadIdx.x / across;
    uint32_t tile = part.local * ROLES_TILES(N) + out / TILE_ROWS;

    if (!roles_are_last(a, part.panel, multiply) || tile >= part.m->n_row_tiles)
        return;
    const float *all = roles_sum(a, part, tile, out % TILE_ROWS);
#pragma unroll 2
    for (; row < n_rows; row += multiply / across) {
        const float *from = all + row / MATMUL_COLUMNS * (TILE_SEGMENTS * WIDE_SUMS) +
                            row % MATMUL_COLUMNS * WIDE_OUT;
        float v[TILE_SEGMENTS][4];

#pragma unroll
        for (uint32_t s = 0; s < TILE_SEGMENTS; s++)
            load_four(from + s * WIDE_SUMS, v[s]);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            float sum = v[0][j];

#pragma unroll
            for (uint32_t s = 1; s < TILE_SEGMENTS; s++)
                sum += v[s][j];
            product_store(a, *part.m, n_rows, row, tile * TILE_ROWS + out % TILE_ROWS + j, sum);
        }
    }
}

/* Stores glu(gate, up) of the thread's outputs. */
template <uint32_t N>
DEVICE void roles_store_gated(const struct matmul_args &a, const struct RolesPart<N> &part,
                              uint32_t n_rows, const float (&total)[N / 2]) {
    constexpr uint32_t multiply = RolesShape<N>::multiply, out = ROLES_OUT(N) / 2;
    uint32_t warp = threadIdx.x / 32;
    const struct matrix &own = part.matrix_of(a, warp);

    wgmma_sync(multiply);
#pragma unroll
    for (uint32_t k = 0; k < N / 2; k++)
        keep_gated<out>(a, own, n_rows, 0, part.tile_of(a, warp), k, total[k]);
    wgmma_sync(multiply);
    put_gated_rows<N, out>(a, n_rows, 0, part.local, multiply);
}

/* Returns the thread's place in row @i of the room for sums that are exchanged. */
DEVICE float *roles_room(uint32_t i, uint32_t thread) {
    SHARED float room[ROLES_EXCHANGED][256];

    return &room[i][thread];
}

/* Exchanges sums of a wide product with the thread of the other warpgroup that has the same outputs
 * of the other matrix. Then each has gates in the first half of total and ups in the second one, of
 * half of the panel's rows: those of the first half of the sums are the gate's warpgroup's. The
 * copies of the next panel are under way, so this has room of its own. */
template <uint32_t N> DEVICE void roles_exchange(bool is_up, float (&total)[N / 2]) {
    constexpr uint32_t half = N / 4;
    uint32_t other = threadIdx.x ^ 128;

#pragma unroll
    for (uint32_t k = 0; k < half; k += ROLES_EXCHANGED) {
#pragma unroll
        for (uint32_t j = 0; j < ROLES_EXCHANGED; j++) {
            if (is_up)
                *roles_room(j, threadIdx.x) = total[k + j];
            else
                *roles_room(j, threadIdx.x) = total[half + k + j];
        }
        wgmma_sync(RolesShape<N>::multiply);
#pragma unroll
        for (uint32_t j = 0; j < ROLES_EXCHANGED; j++) {
            if (is_up)
                total[k + j] = *roles_room(j, other);
            else
                total[half + k + j] = *roles_room(j, other);
        }
        wgmma_sync(RolesShape<N>::multiply);
    }
}

/* Stores glu(gate, up) of a wide product, for the thread's outputs of half of the rows. */
template <uint32_t N>
DEVICE void roles_store_wide(const struct matmul_args &a, const struct RolesPart<N> &part,
                             uint32_t n_rows, float (&total)[N / 2]) {
    bool is_up = threadIdx.x / 128;
    uint32_t lane = threadIdx.x % 32, tile = part.tile_of(a, threadIdx.x / 32);
    uint32_t row0 = part.column * N + is_up * (N / 2) + lane % 4 * 2;

    roles_exchange<N>(is_up, total);
#pragma unroll
    for (uint32_t k = 0; k < N / 4; k++) {
        uint32_t row = row0 + k / 4 * PACK_ROWS + k % 2;
        uint32_t out = tile * TILE_ROWS + lane / 4 + k % 4 / 2 * 8;

        if (row >= n_rows || out >= a.m[0].n_out)
            continue;
        float gate = product_value(a, a.m[0], row, out, total[k]);
        float up = product_value(a, a.m[1], row, out, total[N / 4 + k]);

        a.m[0].y[(size_t)row * a.m[0].n_out + out] = gated(a.glu, gate, up);
    }
}

/* Computes the thread's outputs of part @i, or with shared segments their sums. */
template <uint32_t N>
DEVICE void roles_multiply(const struct matmul_args &a, uint32_t i, struct RolesRing &ring,
                           float (&total)[N / 2]) {
    uint32_t lane = threadIdx.x % 32;
    float *shared = NULL;
    struct RolesPart<N> part;

    part.find(a, i);
    uint32_t tile = part.tile_of(a, threadIdx.x / 32);
    /* warps without a row tile multiply as well, and store nothing */
    if (a.n_splits > 1 && tile < part.m->n_row_tiles)
        shared = roles_sum(a, part, tile, lane / 4) + lane % 4 * 2 * WIDE_OUT;
#pragma unroll
    for (uint32_t k = 0; k < N / 2 && ROLES_WIDE(N); k++)
        total[k] = -0.0f;
    walk_of(part.m->format,
            RolesWalk<N>{a, part.which, part.first, part.last, ring, total, shared});
}

/* Writes y. Computes the part again, since registers are scarce during the walk. */
template <uint32_t N>
DEVICE void roles_store(const struct matmul_args &a, uint32_t i, float (&total)[N / 2]) {
    uint32_t lane = threadIdx.x % 32, n_rows = product_count_rows(a);
    struct RolesPart<N> part;

    if (a.leave)
        return;
    part.find(a, i);
    uint32_t tile = part.tile_of(a, threadIdx.x / 32);
    if (a.n_splits > 1)
        return roles_store_shared<N>(a, part, n_rows);
    if (a.gated) {
        if constexpr (ROLES_WIDE(N))
            roles_store_wide<N>(a, part, n_rows, total);
        else
            roles_store_gated<N>(a, part, n_rows, total);
        return;
    }
    if (tile >= part.m->n_row_tiles)
        return;
#pragma unroll
    for (uint32_t k = 0; k < N / 2; k++)
        product_store(a, *part.m, n_rows,
                      part.column * N + k / 4 * PACK_ROWS + lane % 4 * 2 + k % 2,
                      tile * TILE_ROWS + lane / 4 + k % 4 / 2 * 8, total[k]);
}

/* Copies the stages of the block's parts, by one warp. */
template <uint32_t N> DEVICE void roles_copy(const struct matmul_args &a) {
    struct RolesRing ring = {0, 0};
    struct RolesCopies<N> copies;
    struct RolesPart<N> part;

    part.find(a, blockIdx.x);
    copies.start(a, part);
    copies.fill(ring);
    copies.run(ring);
    if constexpr (ROLES_WIDE(N))
        for (uint32_t i = blockIdx.x + gridDim.x; i < a.n_panels * a.n_splits; i += gridDim.x) {
            part.find(a, i);
            copies.start(a, part);
            copies.run(ring);
        }
}

/* Computes the block's parts of the products of @a, N rows each: the first warpgroups multiply, and
 * a warp of the last one copies. */
template <uint32_t N> DEVICE void roles_run(const struct matmul_args &a) {
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < ROLES_BARRIERS; i++) {
            bulk_init(roles_full(i));
            bulk_init(roles_empty(i), RolesShape<N>::tiles);
        }
        bulk_publish();
    }
    sync_block();
    if (threadIdx.x < RolesShape<N>::multiply) {
        struct RolesRing ring = {0, 0};
        float total[N / 2];

        wgmma_more<RolesShape<N>::many>();
        wait_for_previous();
        if constexpr (ROLES_WIDE(N)) {
            for (uint32_t i = blockIdx.x; i < a.n_panels * a.n_splits; i += gridDim.x) {
                roles_multiply<N>(a, i, ring, total);
                roles_store<N>(a, anew(i), total);
            }
        } else {
            roles_multiply<N>(a, blockIdx.x, ring, total);
            roles_store<N>(a, anew(blockIdx.x), total);
        }
    } else {
        wgmma_fewer<RolesShape<N>::few>();
        if (threadIdx.x < RolesShape<N>::multiply + 32)
            roles_copy<N>(a);
        else
            wait_for_previous();
    }
}

#define ROLES_BODY(N) roles_run<N>(a)
#else
#define ROLES_BODY(N)
#endif
